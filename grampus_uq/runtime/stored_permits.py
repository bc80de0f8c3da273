"""Permits in a session store that any number of workers share: definitions, states, tickets, and the log of each.

- `permit`: what a principal signed; written by `grant_permit`, closed by `close_permit`, never changed by a host;
- `permit-state`: where it stands, by compare-and-set;
- `permit-ticket`: one a covered call, `PERMIT/IDENTITY`: its number, and the answer that was given;
- the log `permit/ID`: every change, in the same write as the state that it leads to.

A ticket and the state that knows of it are one write, so a call that is judged again, by whomever, finds its ticket,
and no answer enters twice. Where the host seals, states and tickets carry its seal; without one that holds, a permit
lets nothing ahead. A seal does not tell an old state from the newest: this process refuses what is older than what it
has seen, and only `expires_s` bounds what an old state can do to one that just began.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio

from grampus_uq.errors import ApprovalError, ConfigurationError, DataError, SessionConflictError, StoreError
from grampus_uq.gate.call import CallRecord, Terms
from grampus_uq.gate.gate import Released
from grampus_uq.gate.permits import (
    Entry,
    Permit,
    PermitState,
    applied,
    identity_of,
    issued,
    label_of,
    replayed,
    same_of,
    sentence,
)
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.monitor.session import Session
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import canonical_json
from grampus_uq.runtime.store import Append, Change, Document, Put, SessionStore

_PERMIT, _STATE, _TICKET = "permit", "permit-state", "permit-ticket"
_TRIES: Final = 100
_UNFORESEEN: Final = secrets.SystemRandom().random
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A permit with its state: `trouble` says why it lets nothing ahead whatever it has earned.

    `closing` is what a host has to write where a human closed it.
    """

    permit: Permit
    state: PermitState
    version: int
    now_s: float
    trouble: str | None = None
    closing: Entry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    number: int
    asked: bool
    wrong: bool | None
    version: int


class StoredPermits:
    """What `AgentRunner` and the adapters ask about calls that would wait because of their tool alone.

    Args:
        store: shared by all workers.
        approvals: who may grant, and the seal of what is stored: that of the host.
        agent_version: names your model, prompt and tools where the framework does not tell them; permits are bound to
            it.
        draw: a number in [0, 1) for each covered call, which nobody can foresee; for tests.
    """

    def __init__(
        self,
        store: SessionStore,
        approvals: ApprovalPolicy | None = None,
        *,
        agent_version: str = "",
        draw: Callable[[], float] = _UNFORESEEN,
    ) -> None:
        self.store = store
        self.agent_version = agent_version
        self._approvals = approvals or ApprovalPolicy()
        self._draw = draw
        self._seen: dict[str, int] = {}

    # -- what the gate asks ---------------------------------------------------------------------------------------

    async def release(self, record: CallRecord, session: Session, terms: Terms, *, alike: bool) -> Released | None:
        """Take tickets for a call that waits, of every permit that covers it; how it goes ahead if all let it."""
        try:
            said = []
            for document in await self.store.scan(_PERMIT, label=record.proposed.name):
                permit = self._trusted(document)
                if permit is None or not permit.covers(record.proposed, terms.agent_id, document.read_s):
                    continue
                said.append(await self._propose(permit, record, session, terms, alike))
        except StoreError as error:
            _log.warning("permits cannot be read, so everything is asked about: %s", error)
            return None
        if not said or None in said:
            return None
        permits = [standing for standing in said if standing is not None]
        principals = " and ".join(dict.fromkeys(standing.permit.principal for standing in permits))
        ids = " and ".join(standing.permit.id for standing in permits)
        why = "; ".join(sentence(standing.permit, standing.state) for standing in permits)
        return Released(by=f"permit {ids}", principal=principals, why=why)

    async def standing(self, released_by: str) -> str | None:
        """Why a call that was let ahead must not run now after all: one of its permits is closed or has expired."""
        for permit_id in released_by.removeprefix("permit ").split(" and "):
            try:
                document = await self.store.get(_PERMIT, permit_id)
                permit = None if document is None else self._trusted(document)
                if document is None or permit is None or document.read_s >= permit.expires_s:
                    return f"permit {permit_id[:8]} does not stand any more"
                now = await self._standing(permit)
                if now.closing is not None:
                    await self._written(now, now.state, now.closing)
                if now.state.closed is not None:
                    return f"permit {permit_id[:8]} is closed: {now.state.closed}"
                if now.trouble is not None or not now.state.in_force(permit):
                    return f"permit {permit_id[:8]} lets nothing ahead any more: {now.trouble or 'it was withdrawn'}"
            except StoreError as error:
                return f"permit {permit_id[:8]} cannot be read: {error}"
        return None

    async def answered(self, record: CallRecord, terms: Terms) -> None:
        """Take the answer on a call into each permit that has a ticket of it; once, however often it is told."""
        wrong = label_of(record)
        if wrong is None:
            return
        try:
            for document in await self.store.scan(_PERMIT, label=record.proposed.name):
                permit = self._trusted(document)
                if permit is not None:
                    await self._answer(permit, identity_of(record, terms), wrong)
                    if permit.covers(record.proposed, terms.agent_id, 0.0) and _never(record):
                        await close_permit(self.store, permit.id, f"{record.decisions[0].principal} said never")
        except StoreError as error:
            _log.warning("an answer could not be stored; unless told again it counts as wrong: %s", error)

    # -- tickets --------------------------------------------------------------------------------------------------

    async def _propose(
        self, permit: Permit, record: CallRecord, session: Session, terms: Terms, alike: bool
    ) -> Standing | None:
        """Take the ticket of a call, or find the one it has; the permit if it lets the call ahead."""
        score = session.call_score(permit.stream, record.proposed, record.step_id)
        if score is None:
            return None
        key, judge, draw = identity_of(record, terms), session.judge(self.agent_version), self._draw()
        for attempt in range(_TRIES):
            now = await self._standing(permit)
            known = await self._ticket(permit, key)
            if now.closing is not None:
                await self._written(now, now.state, now.closing)
            if now.trouble is not None or now.state.closed is not None:
                return None
            if known is not None:
                return None if known.asked or not now.state.in_force(permit) else now
            entry = Entry(
                do="propose",
                now_s=now.now_s,
                score=score,
                same=same_of(record, terms),
                judge=judge,
                draw=draw,
                alike=alike,
            )
            taken = issued(permit, now.state, entry)
            if taken is None:
                return None
            number, ticket = taken
            body = self._sealed(f"{permit.id}/{key}", {"number": number, "asked": ticket.asked, "wrong": None})
            put = Put(kind=_TICKET, key=f"{permit.id}/{key}", body=body, expected=0, label=permit.id)
            if await self._written(now, applied(permit, now.state, entry), entry, put):
                return None if ticket.asked else now
            await anyio.sleep(min(0.001 * attempt, 0.05))
        raise StoreError(f"permit {permit.id[:8]}: another worker was first {_TRIES} times.")

    async def _answer(self, permit: Permit, key: str, wrong: bool) -> None:
        for attempt in range(_TRIES):
            now, known = await self._standing(permit), await self._ticket(permit, key)
            if known is None or known.wrong == wrong or not known.asked:
                return
            if now.trouble is not None or now.state.closed is not None:
                return
            entry = Entry(do="answer", now_s=now.now_s, ticket=known.number, wrong=wrong)
            values = {"number": known.number, "asked": True, "wrong": wrong}
            body = self._sealed(f"{permit.id}/{key}", values)
            put = Put(kind=_TICKET, key=f"{permit.id}/{key}", body=body, expected=known.version, label=permit.id)
            if await self._written(now, applied(permit, now.state, entry), entry, put):
                return
            await anyio.sleep(min(0.001 * attempt, 0.05))
        raise StoreError(f"permit {permit.id[:8]}: another worker was first {_TRIES} times.")

    async def _ticket(self, permit: Permit, key: str) -> _Found | None:
        """The ticket of a call; one that cannot be believed counts as asked and not answerable."""
        document = await self.store.get(_TICKET, f"{permit.id}/{key}")
        if document is None:
            return None
        values = self._opened(document)
        number = None if values is None else values.get("number")
        if values is None or type(number) is not int or type(values.get("asked")) is not bool:
            return _Found(number=-1, asked=True, wrong=None, version=document.version)
        return _Found(number=number, asked=values["asked"], wrong=values.get("wrong"), version=document.version)

    # -- states ---------------------------------------------------------------------------------------------------

    async def _standing(self, permit: Permit) -> Standing:
        """The state as far as it is believed, brought up to what a human closed meanwhile."""
        definition = await self.store.get(_PERMIT, permit.id)
        document = await self.store.get(_STATE, permit.id)
        now_s = 0.0 if definition is None else definition.read_s
        state, trouble, version = PermitState.fresh(permit), None, 0
        if document is not None:
            version, values = document.version, self._opened(document)
            try:
                state = PermitState.read(permit, values)
            except DataError as error:
                trouble = str(error) if values is not None else "its state carries no seal that holds"
        if trouble is None and state.revision < self._seen.get(permit.id, 0):
            trouble = "its state is older than one that was seen here"
        if trouble is None:
            self._seen[permit.id] = state.revision
        closed, closing = "its definition is gone" if definition is None else _body(definition).get("closed"), None
        if closed is not None and state.closed is None:
            closing = Entry(do="close", now_s=now_s, why=str(closed)[:300])
            state = applied(permit, state, closing)
            closing = closing if trouble is None else None
        return Standing(permit=permit, state=state, version=version, now_s=now_s, trouble=trouble, closing=closing)

    async def _written(self, now: Standing, state: PermitState, entry: Entry, *more: Change) -> bool:
        """Write the next state with its entry and what belongs to it, all or nothing; False where another was first."""
        permit = now.permit
        values = state.model_dump(mode="json")
        put = Put(
            kind=_STATE,
            key=permit.id,
            body=self._sealed(permit.id, values),
            expected=now.version,
            label="closed" if state.closed else "open",
        )
        log = Append(log=f"permit/{permit.id}", bodies=(canonical_json(entry.to_json()),), expected=None)
        try:
            await self.store.write(put, log, *more)
        except SessionConflictError:
            return False
        self._seen[permit.id] = max(state.revision, self._seen.get(permit.id, 0))
        return True

    def _trusted(self, document: Document) -> Permit | None:
        """A stored definition whose principal may grant and has signed; None for any other."""
        try:
            permit = _permit(document)
            self._approvals.check_grant(permit, "permit")
        except (ApprovalError, DataError):
            return None
        return permit if permit.tool == document.label and permit.id == document.key else None

    def _sealed(self, key: str, values: Mapping[str, Any]) -> str:
        seal = self._approvals.seal
        return json.dumps(values if seal is None else seal.sealed(f"permit/{key}", values), separators=(",", ":"))

    def _opened(self, document: Document) -> dict[str, Any] | None:
        """The stored values, if the seal holds where one is needed."""
        values = _body(document)
        seal = self._approvals.seal
        if seal is not None and not seal.authentic(f"permit/{document.key}", values):
            return None
        values.pop("seal", None)
        return values


# -- for people -------------------------------------------------------------------------------------------------------


async def grant_permit(store: SessionStore, permit: Permit) -> None:
    """Store a permit; raises SessionConflictError where one of its id is there."""
    body = json.dumps({"permit": permit.model_dump(mode="json"), "closed": None})
    await store.put(_PERMIT, permit.id, body, expected=0, label=permit.tool)


async def close_permit(store: SessionStore, permit_id: str, why: str) -> None:
    """Close a permit for good, for every worker; anybody who reaches the store may. Closed stays closed."""
    for _ in range(_TRIES):
        document = await store.get(_PERMIT, permit_id)
        if document is None:
            raise DataError(f"There is no permit {permit_id!r:.80}.")
        values = _body(document)
        if values.get("closed") is not None:
            return
        try:
            body = json.dumps({**values, "closed": why})
            await store.put(_PERMIT, permit_id, body, expected=document.version, label=document.label)
        except SessionConflictError:
            continue
        return
    raise StoreError(f"permit {permit_id[:8]}: another worker was first {_TRIES} times.")


async def stored_permits(store: SessionStore, approvals: ApprovalPolicy | None = None) -> list[Standing]:
    """Every permit of a store with its state; without `approvals` neither signatures nor seals are looked at."""
    reader = StoredPermits(store, approvals)
    found = []
    for document in await store.scan(_PERMIT):
        try:
            found.append(await reader._standing(_permit(document)))
        except DataError as error:
            _log.warning("permit %s cannot be read: %s", document.key[:40], error)
    return found


async def replayed_permit(store: SessionStore, permit: Permit) -> PermitState:
    """The state as the log tells it: equal to the stored one to the last digit, but for a closing that no host saw."""
    return replayed(permit, (json.loads(body) for body in await store.read(f"permit/{permit.id}")))


def _permit(document: Document) -> Permit:
    try:
        return Permit.model_validate(_body(document)["permit"])
    except (ConfigurationError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a permit: {str(error)[:300]}", field="permit") from error


def _body(document: Document) -> dict[str, Any]:
    try:
        values = parse_json(document.body)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _never(record: CallRecord) -> bool:
    return any(decision.never for decision in record.decisions)
