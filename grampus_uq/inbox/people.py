"""The people of an inbox, in the session store: who they are, their passkeys, invitations and sessions.

A runner believes none of it: which public keys may decide stands in its own `PublicKeys`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from grampus_uq.errors import ApprovalError, ConfigurationError, SessionConflictError, StoreError
from grampus_uq.gate.signatures import DEPUTY
from grampus_uq.records.values import sha256_of
from grampus_uq.runtime.store import Delete, Document, Put, SessionStore, pages, parsed, try_write
from grampus_uq.runtime.stored_delegations import revoke_delegation, stored_delegations

_PERSON, _INVITATION, _LOGIN, _USED = "inbox_person", "inbox_invitation", "inbox_login", "inbox_used"
_REGISTRATION = "inbox_registration"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SWEPT = 50
_MAX_PASSKEYS = 20
_TRIES = 50
_BY_ROLE: Final = "the operator of the inbox"
SESSION_S: Final = 12 * 3600.0
INVITATION_S: Final = 3600.0
CHALLENGE_S: Final = 300.0


class Role(StrEnum):
    """Rights of a person, each including those after it: decide, deputise, label, look.

    A deputy decides only in the place of somebody who delegated it.
    """

    DECIDE = "decide"
    DEPUTY = "deputy"
    LABEL = "label"
    LOOK = "look"

    def covers(self, needed: Role) -> bool:
        """True when this role may do what needs the other."""
        order = list(Role)
        return order.index(self) <= order.index(needed)


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class Passkey(_Kept):
    """A registered credential: its id, and its public key as the line that a runner takes."""

    id: str = Field(min_length=1, max_length=2_048)
    line: str = Field(max_length=4_096)
    added_s: float


class Person(_Kept):
    """Somebody with a passkey. `name` is the principal of their decisions."""

    name: str
    role: Role
    passkeys: tuple[Passkey, ...] = Field(max_length=_MAX_PASSKEYS)


class Invitation(_Kept):
    """An invitation that was not used yet; the link holds its token, the store a hash of it."""

    name: str
    role: Role
    until_s: float


class Login(_Kept):
    """A session of one browser: whose, with which passkey, from which kind of device, until when."""

    name: str
    passkey: str
    device: str
    since_s: float
    until_s: float


class People:
    """Typed access to the people in one store."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._secret: bytes | None = None

    async def all(self) -> list[Person]:
        """Everybody, by name."""
        return [_person(found) for found in await self._store.scan(_PERSON)]

    async def find(self, name: str) -> Person | None:
        """The person of this name, or None."""
        found = await self._store.get(_PERSON, name)
        return None if found is None else _person(found)

    async def with_passkey(self, credential: str) -> tuple[Person, Passkey] | None:
        """The person who registered this credential."""
        return next(((p, key) for p in await self.all() for key in p.passkeys if key.id == credential), None)

    async def remove(self, name: str) -> bool:
        """Forget a person: their sessions, invitations and delegations end at once. The runner's keys are not here.

        False when there is no such person; what is of that name ends all the same.
        """
        async for sent in pages(self._store, _INVITATION):
            if parsed(Invitation, sent.body, "An invitation").name == name:
                await try_write(self._store, sent.removal())
        async for login in pages(self._store, _LOGIN, name):
            await try_write(self._store, login.removal())
        await self._revoke(name, made=True, given=True)
        found = await self._store.get(_PERSON, name)
        if found is None:
            return False
        await self._store.write(found.removal())
        return True

    # -- invitations ----------------------------------------------------------------------------------------------

    async def invite(self, name: str, role: Role, *, for_s: float = INVITATION_S) -> str:
        """The token of a new invitation, which is stored nowhere; a name that has a passkey gets another one."""
        if not _NAME.fullmatch(name):
            rule = "1 to 64 ASCII letters, digits and . _ @ -"
            raise ConfigurationError.of("NAME", "inbox invite", rule, name)
        token = secrets.token_urlsafe(32)
        invitation = Invitation(name=name, role=role, until_s=await self._store.now() + for_s)
        await self._store.put(_INVITATION, sha256_of(token), invitation.model_dump_json(), expected=0)
        return token

    async def invitation(self, token: str) -> Invitation | None:
        """The open invitation with this token, or None."""
        found = await self._store.get(_INVITATION, sha256_of(token))
        return None if found is None else _open(found)

    async def register(self, token: str, passkey: Passkey) -> Person:
        """Use an invitation up, and give its person this passkey; raises ApprovalError where that cannot be.

        Each registration is written over the one before: of two at one moment the second looks at all people again.
        """
        for _ in range(_TRIES):
            last = await self._store.get(_REGISTRATION, _REGISTRATION)
            count = Put(kind=_REGISTRATION, key=_REGISTRATION, body="{}", expected=0 if last is None else last.version)
            used, put, person = await self._registered(token, passkey)
            less = {"made": person.role is not Role.DECIDE, "given": not person.role.covers(Role.DEPUTY)}
            if put.expected:  # first: who dies in between has taken away too much, and not too little
                await self._revoke(person.name, **less)
            with suppress(SessionConflictError):
                await self._store.write(used, put, count)
                if put.expected:
                    await self._revoke(person.name, **less)  # what was made meanwhile
                return person
        raise ApprovalError("Too many people are registering right now. Try again.")

    async def _registered(self, token: str, passkey: Passkey) -> tuple[Delete, Put, Person]:
        """The end of the invitation, and its person with one more passkey."""
        found = await self._store.get(_INVITATION, sha256_of(token))
        invitation = None if found is None else _open(found)
        if found is None or invitation is None:
            raise ApprovalError("The invitation was used or has expired. Ask for a new one.")
        for other in await self.all():
            if any(known.id == passkey.id or known.line == passkey.line for known in other.passkeys):
                raise ApprovalError("This passkey is registered already.")
        before = await self._store.get(_PERSON, invitation.name)
        known = () if before is None else _person(before).passkeys
        if len(known) >= _MAX_PASSKEYS:
            raise ApprovalError(f"{invitation.name} has {len(known)} passkeys already.")
        person = Person(name=invitation.name, role=invitation.role, passkeys=(*known, passkey))
        expected = 0 if before is None else before.version
        put = Put(kind=_PERSON, key=person.name, body=person.model_dump_json(), expected=expected)
        return found.removal(), put, person

    async def _revoke(self, name: str, *, made: bool, given: bool) -> None:
        """Revoke the delegations that are by this person, or to them, or both."""
        for one in await stored_delegations(self._store):
            mine = (made and one.delegation.principal == name) or (given and one.delegation.deputy == name)
            if mine and one.revoked is None:
                await revoke_delegation(self._store, one.delegation.id, _BY_ROLE)

    # -- sessions -------------------------------------------------------------------------------------------------

    async def begin(self, person: Person, passkey: Passkey, nonce: str, device: str) -> tuple[str, Login]:
        """A new session's cookie, for a challenge that was not used before; raises ApprovalError."""
        now_s, cookie = await self._store.now(), secrets.token_urlsafe(32)
        login = Login(
            name=person.name, passkey=passkey.id, device=sha256_of(device), since_s=now_s, until_s=now_s + SESSION_S
        )
        for kind, oldest_s in ((_LOGIN, SESSION_S), (_USED, 2 * CHALLENGE_S)):  # some of what is over goes
            for found in await self._store.scan(kind, after=secrets.token_hex(32), limit=_SWEPT):
                if now_s - found.written_s > oldest_s:
                    await try_write(self._store, found.removal())
        try:
            await self._store.write(
                Put(kind=_USED, key=sha256_of(nonce), body="{}", expected=0),
                Put(kind=_LOGIN, key=sha256_of(cookie), body=login.model_dump_json(), expected=0, label=person.name),
            )
        except SessionConflictError as error:
            raise ApprovalError("This sign-in was used already. Try again.") from error
        return cookie, login

    async def session(self, cookie: str, device: str) -> tuple[Person, float] | None:
        """The session's person and the store's time; None once over, for another device, or a passkey that is gone."""
        found = await self._store.get(_LOGIN, sha256_of(cookie))
        if found is None:
            return None
        login = parsed(Login, found.body, "A session of the inbox")
        person = await self.find(login.name)
        known = person is not None and any(key.id == login.passkey for key in person.passkeys)
        same = hmac.compare_digest(login.device, sha256_of(device))
        alive = known and same and found.read_s < login.until_s
        return (person, found.read_s) if person is not None and alive else None

    async def end(self, cookie: str) -> None:
        """End a session."""
        found = await self._store.get(_LOGIN, sha256_of(cookie))
        if found is not None:
            await self._store.write(found.removal())

    # -- what the server alone can make ---------------------------------------------------------------------------

    async def mac(self, *parts: str) -> str:
        """A message authentication code of these texts, by the secret that all servers of this store share."""
        if self._secret is None:
            self._secret = await self._shared_secret()
        joined = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(self._secret, joined.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    async def _shared_secret(self) -> bytes:
        found = await self._store.get("inbox_secret", "1")
        if found is None:
            with suppress(SessionConflictError):  # another server was first
                await self._store.put("inbox_secret", "1", f'"{secrets.token_hex(32)}"', expected=0)
            found = await self._store.get("inbox_secret", "1")
        if found is None:
            raise StoreError("The secret of the inbox was removed while it was read.")
        return bytes.fromhex(found.body.strip('"'))


def keys_of(people: Sequence[Person], role: Role = Role.DECIDE) -> dict[str, list[str]]:
    """The public keys of everybody with this role, as the JSON file of `PublicKeys` has them.

    Those of deputies are marked as such; of who only looks or labels there are none.
    """
    mark = {Role.DECIDE: "", Role.DEPUTY: DEPUTY}.get(role)
    wanted = [one for one in people if one.role is role and one.passkeys and mark is not None]
    return {one.name: [f"{mark}{key.line}" for key in one.passkeys] for one in wanted}


def _person(found: Document) -> Person:
    return parsed(Person, found.body, f"The person {found.key!r:.80}")


def _open(found: Document) -> Invitation | None:
    invitation = parsed(Invitation, found.body, "An invitation")
    return invitation if found.read_s < invitation.until_s else None
