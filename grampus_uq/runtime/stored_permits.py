"""Permits in a session store that any number of workers share: definitions, states, tickets, and the log of each.

- `permit`: what a principal signed; written by `grant_permit`, closed by `close_permit` and by a rejection that says
  never, in the write that stores it (`Ledger.decide`); never changed otherwise;
- `permit-state`: where it stands, by compare-and-set;
- `permit-ticket`: one a covered call, `PERMIT/IDENTITY`: its number, and the answer that was given;
- the log `permit/ID`: every change, in the same write as the state that it leads to.

A ticket and the state that knows of it are one write, so a call that is judged again, by whomever, finds its ticket,
and no answer enters twice. Where the host seals, states and tickets carry its seal; without one that holds, a permit
lets nothing ahead. Whoever looks at a permit under the seal (it judges, starts or takes the answer on a call of its
tool) writes a closing into the state, so that it does not depend on the definition any more. A seal does not tell an
old state from the newest: this process refuses what is older than what it has seen, and only `expires_s` bounds what an
old state can do to one that just began.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread

from grampus_uq.errors import ApprovalError, ConfigurationError, DamagedLogError, DataError, StoreError
from grampus_uq.gate.call import CallRecord, Terms
from grampus_uq.gate.gate import Held, Released
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
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy
from grampus_uq.gate.seal import Seal
from grampus_uq.monitor.session import Session
from grampus_uq.records.configuration import checked
from grampus_uq.records.events import InForce
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.runtime.standing_grants import grants_in_force
from grampus_uq.runtime.store import Append, Change, Document, Put, SessionStore, documents, find_record, try_write

_PERMIT, _STATE, _TICKET = "permit", "permit-state", "permit-ticket"
_TRIES: Final = 100
_TELLING_TRIES: Final = 5
_TELLING_S: Final = 2.0
_Read = tuple[Document | None, Document | None, int]
"""A permit's state and definition in the store, and the revision seen before they were read."""
_MIXED: Final = "answers of this run were made with different models, prompts or tools: name what varies"
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

    @property
    def is_open(self) -> bool:
        """False once a human closed it or it expired."""
        return self.state.closed is None and self.now_s < self.permit.expires_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """Ruling of a permit on a covered call; `audit` if the call took a ticket."""

    standing: Standing
    ahead: bool = False
    audit: float | None = None
    trouble: str | None = None


def _nothing(now: Standing, why: object) -> _Said:
    return _Said(standing=now, trouble=f"permit {now.permit.id[:8]} lets nothing ahead: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    number: int
    asked: bool
    wrong: bool | None
    version: int = 0


@checked
class StoredPermits:
    """Permits for `AgentRunner` and the adapters, asked about calls held by their tool alone.

    Args:
        store: shared by all workers.
        approvals: who may grant, and the seal of what is stored: that of the host.
        agent_version: names your model, prompt and tools where the framework does not tell them, or gives that name
            for a tool; permits are bound to it.
        draw: a number in [0, 1) for each covered call, which nobody can foresee; for tests.
    """

    def __init__(
        self,
        store: SessionStore,
        approvals: ApprovalPolicy | None = None,
        *,
        agent_version: str | Callable[[str], str] = "",
        draw: Callable[[], float] = _UNFORESEEN,
    ) -> None:
        self.store = store
        self.agent_version = agent_version
        self._approvals = approvals or ApprovalPolicy()
        self._draw = draw
        self._seen: dict[str, int] = {}
        self._owed: dict[str, tuple[CallRecord, Terms]] = {}

    # -- what the gate asks ---------------------------------------------------------------------------------------

    async def release(self, record: CallRecord, session: Session, terms: Terms, *, alike: bool) -> Released | Held:
        """Take tickets for a call that waits, of every permit that covers it; how it goes ahead if all let it.

        What is wrong with a permit or the store is no secret, other than why a call is asked about.
        """
        said: list[_Said] = []
        try:
            await self._pay(record.proposed.name)
            in_force = await grants_in_force(self.store, record.proposed.name, self._approvals)
            for document in await self.store.scan(_PERMIT, label=record.proposed.name):
                permit = self._trusted(document)
                if permit is None or document.read_s >= permit.expires_s:
                    continue
                if permit.covers(record.proposed, terms.agent_id, document.read_s):
                    said.append(await self._propose(permit, record, session, terms, alike))
                elif (await self._looked(permit)).state.closed is None:
                    in_force.append(InForce(rule="permit", id=permit.id))
        except StoreError as error:
            _log.warning("permits cannot be read, so everything is asked about: %s", error)
            return Held(trouble=f"permits cannot be read: {str(error)[:200]}")
        said = [one for one in said if one.trouble is not None or one.standing.state.closed is None]
        if not said or not all(one.ahead for one in said):
            in_force += [InForce(rule="permit", id=one.standing.permit.id, audit=one.audit) for one in said]
            trouble = next((one.trouble for one in said if one.trouble is not None), None)
            return Held(trouble=trouble, in_force=tuple(in_force))
        permits = [one.standing for one in said]
        principals = " and ".join(dict.fromkeys(standing.permit.principal for standing in permits))
        ids = " and ".join(standing.permit.id for standing in permits)
        why = "; ".join(f"{sentence(one.permit, one.state)} (permit {one.permit.id[:8]})" for one in permits)
        return Released(by=f"permit {ids}", principal=principals, why=why)

    async def standing(self, released: Iterable[str]) -> dict[str, str]:
        """The reasons not to run calls that were let ahead, by what let them: a permit ended, or an audit was wrong.

        All permits are read in one turn of the store: while one is looked at, no other is closed unseen.
        """
        by = {one: one.removeprefix("permit ").split(" and ") for one in released}
        ids = list(dict.fromkeys(itertools.chain.from_iterable(by.values())))
        try:
            ends = await self._ends(ids)
        except StoreError as error:
            ends = dict.fromkeys(ids, f"cannot be read: {error}")
        found = {one: next((permit_id for permit_id in of if permit_id in ends), None) for one, of in by.items()}
        return {one: f"permit {of[:8]} {ends[of]}" for one, of in found.items() if of is not None}

    async def _ends(self, ids: Sequence[str]) -> dict[str, str]:
        """By id, why permits let no call start now."""
        ends = dict[str, str]()
        for permit_id, (document, definition, seen) in (await self._documents(ids)).items():
            permit = None if definition is None else self._trusted(definition)
            if definition is None or permit is None or definition.read_s >= permit.expires_s:
                ends[permit_id] = "does not stand any more"
                continue
            now = self._judged(permit, document, definition, seen)
            if now.closing is not None:
                await self._looked(permit)
            if now.state.closed is not None:
                ends[permit_id] = f"is closed: {now.state.closed}"
            elif now.trouble is not None or not now.state.in_force(permit):
                ends[permit_id] = f"lets nothing ahead any more: {now.trouble or 'it was withdrawn'}"
            elif now.state.suspects(permit):
                ends[permit_id] = "lets nothing ahead now: a call that it could let ahead was wrong"
        return ends

    async def answered(self, record: CallRecord, terms: Terms) -> None:
        """Take the answer on a call into each permit that has a ticket of it; once, however often it is told.

        A never closes each permit that covers the call, whatever its state. Where the store fails, an answer against a
        call is told again before a call of the tool goes ahead here; a right one counts as wrong unless told again.
        """
        try:
            await self._taken(record, None, terms)
        except StoreError as error:
            _log.warning("an answer could not be stored; unless told again it counts as wrong: %s", error)
            if label_of(record):
                self._owed[identity_of(record, terms)] = record, terms

    async def tell_first(self, said: Sequence[tuple[CallRecord, ApprovalDecision | None]], terms: Terms) -> list[str]:
        """Take answers against calls that no host has taken yet; why each could not be stored, "" where it was.

        All are tried for two seconds at most, if the store can be interrupted. Right answers: `answered`.
        """
        left = [number for number, (record, given) in enumerate(said) if label_of(record) or (given and given.never)]
        failed = dict.fromkeys(left, f"the store took nothing within {_TELLING_S:g} seconds")
        with anyio.move_on_after(_TELLING_S):
            for attempt in range(_TELLING_TRIES):
                await anyio.sleep(0.05 * 2 ** (attempt - 1) if attempt else 0.0)
                for number in left:
                    record, given = said[number]
                    await anyio.lowlevel.checkpoint()  # a store that cannot be interrupted may have taken all the time
                    try:
                        await self._taken(record, given, terms)
                    except StoreError as error:
                        failed[number] = str(error) or type(error).__name__
                    else:
                        del failed[number]
                left = list(failed)
                if not left:
                    break
        return [failed.get(number, "") for number in range(len(said))]

    async def _pay(self, tool: str) -> None:
        """Tell again what the store did not take of the answers against calls of a tool; raises StoreError."""
        for key, (record, terms) in list(self._owed.items()):
            if record.proposed.name == tool:
                await self._taken(record, None, terms)
                self._owed.pop(key, None)

    async def _taken(self, record: CallRecord, given: ApprovalDecision | None, terms: Terms) -> None:
        """Take an answer, with `given` where the record lacks it, and close what a never closes; raises StoreError.

        A permit whose log is damaged takes no answer, and lets nothing ahead.
        """
        wrong = label_of(record)
        decisions = record.decisions if given is None else (*record.decisions, given)
        never = next((decision for decision in decisions if decision.never), None)
        for document in await self.store.scan(_PERMIT, label=record.proposed.name) if wrong is not None else ():
            permit = self._trusted(document)
            if permit is not None and wrong is not None:
                try:
                    await self._answer(permit, identity_of(record, terms), wrong)
                except DamagedLogError as error:
                    _log.warning("permit %s lets nothing ahead, and takes no answer: %s", permit.id[:8], error)
        if never is not None:
            await self._close(record, terms, never)

    async def _close(self, record: CallRecord, terms: Terms, decision: ApprovalDecision) -> None:
        for document in await self.store.scan(_PERMIT, label=record.proposed.name):
            with contextlib.suppress(DataError):
                if _permit(document).covers(record.proposed, terms.agent_id, 0.0):
                    await close_permit(self.store, document.key, closing_words(decision))
                    if (permit := self._trusted(document)) is not None:
                        await self._looked(permit)

    # -- tickets --------------------------------------------------------------------------------------------------

    async def _propose(self, permit: Permit, record: CallRecord, session: Session, terms: Terms, alike: bool) -> _Said:
        """Take a ticket of a call, unless the permit is closed or cannot be believed.

        A call that is judged again waits while the question on its ticket is open. Otherwise it takes another ticket,
        with every check and a draw of its own: no call ever goes ahead on a ticket that let one ahead before.
        """
        score = session.call_score(permit.stream, record.proposed, record.step_id)
        version = self.agent_version if isinstance(self.agent_version, str) else self.agent_version(permit.tool)
        key, judge, draw = identity_of(record, terms), session.judge(version, permit.stream), self._draw()
        for attempt in range(_TRIES):
            now = await self._looked(permit)
            if now.trouble is not None:
                return _nothing(now, now.trouble)
            if now.state.closed is not None:
                return _Said(standing=now)
            try:
                self._approvals.check_other(permit.principal, terms.started_by)
            except ApprovalError as error:
                return _nothing(now, error)
            if score is None:
                return _Said(standing=now)
            if judge is None:
                return _nothing(now, _MIXED)
            known = await self._ticket(permit, key)
            if known is not None and known.asked and known.wrong is None:
                return _Said(standing=now)
            same = same_of(record, terms)
            entry = Entry(do="propose", now_s=now.now_s, score=score, same=same, judge=judge, draw=draw, alike=alike)
            taken = issued(permit, now.state, entry)
            if taken is None:
                return _Said(standing=now)
            number, ticket = taken
            put = self._put_ticket(permit, key, _Found(number=number, asked=ticket.asked, wrong=None), known)
            try:
                written = await self._written(now, applied(permit, now.state, entry), entry, put)
            except DamagedLogError as error:  # of this permit: the others learn beside it
                return _nothing(now, error)
            if written:
                return _Said(standing=now, ahead=not ticket.asked, audit=ticket.audit)
            await _pause(attempt)
        raise _busy(permit.id)

    async def _answer(self, permit: Permit, key: str, wrong: bool) -> None:
        """Take an answer; of several on one ticket the wrong one counts."""
        for attempt in range(_TRIES):
            now, known = await self._looked(permit), await self._ticket(permit, key)
            if known is None or not known.asked or known.wrong in (wrong, True):
                return
            if now.trouble is not None or now.state.closed is not None:
                return
            entry = Entry(do="answer", now_s=now.now_s, ticket=known.number, wrong=wrong)
            put = self._put_ticket(permit, key, replace(known, wrong=wrong), known)
            if await self._written(now, applied(permit, now.state, entry), entry, put):
                return
            await _pause(attempt)
        raise _busy(permit.id)

    def _put_ticket(self, permit: Permit, key: str, ticket: _Found, before: _Found | None) -> Put:
        place = f"{permit.id}/{key}"
        values = {"number": ticket.number, "asked": ticket.asked, "wrong": ticket.wrong}
        expected = 0 if before is None else before.version
        return Put(kind=_TICKET, key=place, body=self._sealed(place, values), expected=expected, label=permit.id)

    async def _ticket(self, permit: Permit, key: str) -> _Found | None:
        """The ticket of a call; one that cannot be believed counts as asked and not answerable."""
        document = await self.store.get(_TICKET, f"{permit.id}/{key}")
        if document is None:
            return None
        values = self._opened(document) or {}
        number, asked, wrong = (values.get(name) for name in ("number", "asked", "wrong"))
        if type(number) is not int or type(asked) is not bool or type(wrong) not in (bool, type(None)):
            return _Found(number=-1, asked=True, wrong=None, version=document.version)
        return _Found(number=number, asked=asked, wrong=wrong, version=document.version)

    # -- states ---------------------------------------------------------------------------------------------------

    async def _looked(self, permit: Permit) -> Standing:
        """The standing, with what a human closed written into the state, unless the permit's log is damaged.

        It waits for nothing but the store, so that it may be part of one turn of it.
        """
        for _ in range(_TRIES):
            now = await self._standing(permit)
            if now.closing is None:
                return now
            try:
                if await self._written(now, now.state, now.closing):
                    return replace(now, version=now.version + 1, closing=None)
            except DamagedLogError:
                return replace(now, closing=None)
        raise _busy(permit.id)

    async def _standing(self, permit: Permit) -> Standing:
        """The state as far as it is believed, brought up to what a human closed meanwhile."""
        return self._judged(permit, *(await self._documents([permit.id]))[permit.id])

    async def _documents(self, ids: Sequence[str]) -> dict[str, _Read]:
        """The states and definitions of permits, read in one turn of the store.

        Beside them the revisions seen before the read began: another task may write while the answer is under way.
        """
        seen = {permit_id: self._seen.get(permit_id, 0) for permit_id in ids}

        async def read() -> dict[str, _Read]:
            states = await documents(self.store, _STATE, ids)
            definitions = await documents(self.store, _PERMIT, ids)  # last: a human closes them there
            return {one: (states.get(one), definitions.get(one), seen[one]) for one in ids}

        return await self.store.at_once(read)

    def _judged(self, permit: Permit, document: Document | None, definition: Document | None, seen: int) -> Standing:
        now_s = 0.0 if definition is None else definition.read_s
        state, trouble, version = PermitState.fresh(permit), None, 0
        if document is not None:
            version, values = document.version, self._opened(document)
            try:
                state = PermitState.read(permit, values)
            except DataError as error:
                trouble = str(error) if values is not None else "its state has no valid seal"
        if trouble is None and state.revision < seen:
            trouble = "its state is older than one that was seen here"
        if trouble is None:
            self._seen[permit.id] = max(state.revision, self._seen.get(permit.id, 0))
        closed = "its definition is gone" if definition is None else _values(definition.body).get("closed")
        closing = None
        if closed is not None and state.closed is None:
            entry = Entry(do="close", now_s=now_s, why=str(closed)[:300])
            state = applied(permit, state, entry)
            closing = entry if trouble is None else None
        return Standing(permit=permit, state=state, version=version, now_s=now_s, trouble=trouble, closing=closing)

    async def _written(self, now: Standing, state: PermitState, entry: Entry, *more: Change) -> bool:
        """Write the next state with its entry and what belongs to it, all or nothing; False where another was first."""
        permit, label = now.permit, "closed" if state.closed else "open"
        body = self._sealed(permit.id, state.model_dump(mode="json"))
        put = Put(kind=_STATE, key=permit.id, body=body, expected=now.version, label=label)
        log = Append(log=f"permit/{permit.id}", bodies=(canonical_json(entry.to_json()),), expected=None)
        written = await try_write(self.store, put, log, *more)
        if written:
            self._seen[permit.id] = max(state.revision, self._seen.get(permit.id, 0))
        return written

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
        values = _values(document.body)
        seal = self._approvals.seal
        if seal is not None and not seal.authentic(f"permit/{document.key}", values):
            return None
        values.pop("seal", None)
        return values


# -- for people -------------------------------------------------------------------------------------------------------


async def grant_permit(
    store: SessionStore, permit: Permit, begun_with: Sequence[Entry] = (), *, seal: Seal | None = None
) -> PermitState:
    """Store a permit and return its state; raises SessionConflictError where one of its id is there.

    `begun_with`: earlier answers for its log, which sealing hosts believe under their own `seal` only.
    """
    changes: list[Change] = [_definition(permit)]
    log = [canonical_json(entry.to_json()) for entry in begun_with]
    state = replayed(permit, map(json.loads, log))
    if begun_with:
        sealed = StoredPermits(store, ApprovalPolicy(seal=seal))._sealed(permit.id, state.model_dump(mode="json"))
        changes.append(Put(kind=_STATE, key=permit.id, body=sealed, expected=0, label="open"))
        changes.append(Append(log=f"permit/{permit.id}", bodies=tuple(log), expected=None))
    await store.write(*changes)
    return state


async def close_permit(store: SessionStore, permit_id: str, why: str) -> None:
    """Close a permit for good, for every worker; anybody who reaches the store may. Closed stays closed."""
    for _ in range(_TRIES):
        document = await store.get(_PERMIT, permit_id)
        if document is None:
            raise DataError(f"There is no permit {permit_id!r:.80}.")
        put = _closed(document, why)
        if put is None or await try_write(store, put):
            return
    raise _busy(permit_id)


async def replace_permit(store: SessionStore, old_id: str, permit: Permit) -> PermitState:
    """Store a permit and close the one that it narrows, in one write; raises DataError where that one is not open."""
    new = _definition(permit)
    for _ in range(_TRIES):
        document = await store.get(_PERMIT, old_id)
        put = None if document is None else _closed(document, f"{permit.principal} narrowed it to {permit.id[:8]}")
        if document is None or put is None or document.read_s >= permit.expires_s:
            raise DataError(f"Permit {old_id[:8]} is closed or expired: grant a new one.")
        if await try_write(store, new, put):
            return PermitState.fresh(permit)
    raise _busy(old_id)


async def stored_permits(store: SessionStore, approvals: ApprovalPolicy | None = None) -> list[Standing]:
    """Every permit of a store with its state; without `approvals` neither signatures nor seals are looked at."""
    return await _standings(StoredPermits(store, approvals), [one for _, one in _read(await store.scan(_PERMIT))])


async def find_permit(store: SessionStore, permit_id: str) -> Standing:
    """The permit with this id, or a unique beginning of it (`find_record`), unchecked; raises DataError for none."""
    return await StoredPermits(store)._standing(await find_record(store, _PERMIT, permit_id, _permit))


async def listed_permits(store: SessionStore, start: int, most: int) -> tuple[list[Standing], bool]:
    """The `most` permits from the `start`-th on, unchecked, open ones first, new before old; whether more follow."""
    permits = await anyio.to_thread.run_sync(_open_first, await store.scan(_PERMIT))
    return await _standings(StoredPermits(store, None), permits[start : start + most]), len(permits) > start + most


async def _standings(reader: StoredPermits, permits: Sequence[Permit]) -> list[Standing]:
    found = []
    for permit in permits:
        with _warning(permit.id):
            found.append(await reader._standing(permit))
    return found


def _open_first(documents: Sequence[Document]) -> list[Permit]:
    found = [
        (doc.read_s < one.expires_s and _values(doc.body).get("closed") is None, one) for doc, one in _read(documents)
    ]
    return [one for _, one in sorted(found, key=lambda row: (not row[0], -row[1].created_s))]


def _read(documents: Sequence[Document]) -> list[tuple[Document, Permit]]:
    """The permits that can be read, each with its document."""
    found = []
    for document in documents:
        with _warning(document.key):
            found.append((document, _permit(document)))
    return found


@contextlib.contextmanager
def _warning(key: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        _log.warning("permit %r cannot be read: %s", key[:40], error)


async def replayed_permit(store: SessionStore, permit: Permit) -> PermitState:
    """The state by the log, equal to the stored one but for a closing that no host saw; raises DataError for no log."""
    return replayed(permit, await permit_log(store, permit.id))


async def permit_log(store: SessionStore, permit_id: str) -> list[dict[str, Any]]:
    """The entries of a permit's log, for `replay`; {} for one that cannot be read."""
    return [_values(body) for body in await store.read(f"permit/{permit_id}")]


def closing_words(decision: ApprovalDecision) -> str:
    """The reason for closing a permit by a rejection with `never`."""
    return f"{decision.principal} said never"


async def closings(store: SessionStore, call: ToolCall, agent_id: str, why: str) -> list[Put]:
    """The changes that close every permit that covers a call, for the write that stores why."""
    found = []
    for document in await store.scan(_PERMIT, label=call.name):
        with contextlib.suppress(DataError):
            if _permit(document).covers(call, agent_id, 0.0) and (put := _closed(document, why)) is not None:
                found.append(put)
    return found


def _definition(permit: Permit) -> Put:
    body = json.dumps({"permit": permit.model_dump(mode="json"), "closed": None})
    return Put(kind=_PERMIT, key=permit.id, body=body, expected=0, label=permit.tool)


def _closed(document: Document, why: str) -> Put | None:
    """The change that closes a permit; None for one that is closed."""
    values = _values(document.body)
    if values.get("closed") is not None:
        return None
    body = json.dumps({**values, "closed": why})
    return Put(kind=_PERMIT, key=document.key, body=body, expected=document.version, label=document.label)


async def _pause(attempt: int) -> None:
    await anyio.sleep(min(0.001 * attempt, 0.05))


def _busy(permit_id: str) -> StoreError:
    return StoreError(f"permit {permit_id[:8]}: another worker was first {_TRIES} times.")


def _permit(document: Document) -> Permit:
    try:
        return Permit.model_validate(_values(document.body)["permit"])
    except (ConfigurationError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a permit: {str(error)[:300]}", field="permit") from error


def _values(body: str) -> dict[str, Any]:
    try:
        values = parse_json(body)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
