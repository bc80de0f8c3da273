"""Sessions, decisions and grants in a store, as typed operations."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from pydantic import JsonValue

from grampus_uq.errors import ApprovalError, ConfigurationError, SessionConflictError, SessionError, StoreError
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy, ApprovalRequest, Arrived
from grampus_uq.gate.seal import Seal, session_place
from grampus_uq.records.values import Message, ToolCall, canonical_json
from grampus_uq.records.vocabulary import ENDED, AgentStatus
from grampus_uq.runtime.asked_rows import row_changes
from grampus_uq.runtime.cards import Card, card
from grampus_uq.runtime.run_state import ATTENDED, STATE_VERSION, AgentState, PendingSession
from grampus_uq.runtime.session_heads import SessionHead
from grampus_uq.runtime.standing_grants import GRANT, put_grant, standing_grant
from grampus_uq.runtime.store import Append, Change, Document, Drop, Put, SessionStore, parsed, try_write
from grampus_uq.runtime.stored_permits import closing_words, closings
from grampus_uq.runtime.transcript import Transcript, changes, extended, replayed
from grampus_uq.runtime.worker_jobs import ABOVE, PARENT, WAKES, Job, looked_after, read_job, within_parent
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

_SHORTEST_ID = 8
_SEALED = '{"seal":"'
_TRIES = 20
_FEW = 10  # requests whose ids begin alike
_log = logging.getLogger(__name__)

Note = tuple[str, Mapping[str, JsonValue]]
"""An entry of the audit: what happened, and the facts."""


def session_key(agent_id: str, session_id: str) -> str:
    """The key of a session; ids may hold any character."""
    try:
        return session_place(agent_id, session_id, errors="strict")
    except (UnicodeEncodeError, TypeError) as error:
        rule = "text without lone surrogates"
        raise ConfigurationError.of(
            "agent_id and session_id", "session", rule, ascii((agent_id, session_id))
        ) from error


def audit_of(agent_id: str, session_id: str, notes: Sequence[Note]) -> Append:
    """The change of a store that adds these notes to a session's audit."""
    bodies = tuple(canonical_json(replace_lone_surrogates({"what": what, "data": dict(data)})) for what, data in notes)
    return Append(log=f"audit/{session_key(agent_id, session_id)}", bodies=bodies, expected=None)


class Ledger:
    """Typed access to one store."""

    def __init__(self, store: SessionStore, *, seal: Seal | None = None) -> None:
        self.store = store
        self._seal = seal
        self._offset_s: float | None = None

    def now_s(self) -> float:
        """The store's clock, extrapolated from its last answer; this machine's clock before the first answer."""
        return time.time() if self._offset_s is None else self._offset_s + time.monotonic()

    def _set_clock(self, now_s: float) -> None:
        self._offset_s = now_s - time.monotonic()

    # -- seals ----------------------------------------------------------------------------------------------------

    def sealed(self, place: str, body: str) -> str:
        """The stored text of a JSON object at this place: with a seal over all of it, if this ledger has one."""
        return body if self._seal is None else f'{_SEALED}{self._seal.mac(place, body)}",{body[1:]}'

    def opened(self, place: str, text: str) -> tuple[str, bool]:
        """The stored JSON object, and whether its seal is valid (True for a ledger without a seal)."""
        body, mac = text, ""
        if text.startswith(_SEALED):
            mac, _, rest = text.removeprefix(_SEALED).partition('",')
            body = "{" + rest
        return body, self._seal is None or self._seal.holds(place, body, mac)

    # -- sessions -------------------------------------------------------------------------------------------------

    async def load(self, agent_id: str, session_id: str) -> tuple[AgentState, int] | None:
        """The stored state and its version, or None."""
        key = session_key(agent_id, session_id)
        found = await self.store.get("session", key)
        while found is not None:
            state = self.state_in(found)
            if state.transcript is None:  # written by a release that kept the messages in the document
                return state, found.version
            try:
                state.messages = replayed(state.transcript, await self.store.read(state.transcript.log))
            except StoreError:
                again = await self.store.get("session", key)
                if again is not None and again.version == found.version:
                    raise
                found = again  # another run took its place while it was read
                continue
            state._kept = state.transcript, list(state.messages)
            return state, found.version
        return None

    async def unreadable(self, found: Document) -> bool:
        """True where nobody can read a stored session or its transcript; raises StoreError where the store is down."""
        try:
            transcript = self.state_in(found).transcript
        except StoreError:
            return True
        if transcript is None:
            return False
        entries = await self.store.read(transcript.log)
        try:
            replayed(transcript, entries)
        except StoreError:
            return True
        return False

    async def known(self, agent_id: str, session_id: str) -> tuple[AgentState, int]:
        """The stored state and its version; raises SessionError when there is none."""
        loaded = await self.load(agent_id, session_id)
        if loaded is None:
            raise SessionError(f"There is no session {session_id!r:.80} of agent {agent_id!r:.80}.")
        return loaded

    async def fresh(self, agent_id: str, session_id: str, **values: Any) -> tuple[AgentState, int]:
        """A new state, in the place of an ended session of the same id; raises SessionError for one that is alive."""
        loaded = await self.load(agent_id, session_id)
        state = AgentState(agent_id=agent_id, session_id=session_id, **values)
        if loaded is None:
            return state, 0
        if loaded[0].status not in ENDED:
            raise SessionError(
                f"Session {session_id!r:.80} of agent {agent_id!r:.80} is {loaded[0].status}: resume it, or choose "
                "another session_id."
            )
        return state.replaces(loaded[0]), loaded[1]

    def state_in(self, found: Document) -> AgentState:
        """The state in a stored session without its messages, with the end of its lease; raises StoreError."""
        self._set_clock(found.read_s)
        body, holds = self.opened(found.key, found.body)
        state = parsed(AgentState, body, f"The stored session {found.key!r:.80}")
        if session_key(state.agent_id, state.session_id) != found.key:
            raise StoreError(f"What is stored as session {found.key!r:.100} is the state of another one.")
        state._sealed = holds
        state._leased_until = time.monotonic() + _left(state, found)
        state._asked = state.pending()
        return state

    def head(self, found: Document) -> tuple[SessionHead, float]:
        """The head of a stored session, and the seconds left of its lease (0: nobody runs it)."""
        self._set_clock(found.read_s)
        state = parsed(SessionHead, self.opened(found.key, found.body)[0], f"The stored session {found.key!r:.80}")
        return state, max(0.0, _left(state, found)) if state.status is AgentStatus.RUNNING else 0.0

    async def save(self, state: AgentState, version: int, notes: Sequence[Note] = ()) -> int:
        """Write the next version, the new part of its transcript and these notes in its audit: all or nothing.

        Raises SessionConflictError when another worker wrote first, StoreError when the store is down.
        """
        key = session_key(state.agent_id, state.session_id)
        log = f"transcript/{key}/{quote(state.run_id, safe='')}"
        kept = state._kept
        transcript, before = (Transcript(log=log), []) if kept is None or kept[0].log != log else kept
        entries, messages, pending = changes(before, state.messages), list(state.messages), state.pending()
        state.v, state.lease_until_s, state.transcript = STATE_VERSION, 0.0, extended(transcript, entries)
        body = state.model_dump_json(exclude={"messages"})
        body = self.sealed(key, body) if state.sealed else body  # what came in without a seal is never given one
        writes: list[Change] = [Put(kind="session", key=key, body=body, expected=version, label=state.status.value)]
        if entries:
            writes.append(Append(log=log, bodies=tuple(entries), expected=transcript.entries))
        if notes:
            writes.append(audit_of(state.agent_id, state.session_id, notes))
        if state._replaces not in (None, log):
            writes.append(Drop(log=state._replaces))
        place = Job(agent_id=state.agent_id, session_id=state.session_id)
        written, rows = state.transcript, await row_changes(self.store, place, state._asked, pending)
        self._set_clock(await self.store.write(*writes, *await self._waking(state, pending), *rows))
        state._kept, state._replaces, state._asked, state._unfinished = (written, messages), None, pending, False
        return version + 1

    async def _waking(self, state: AgentState, pending: Sequence[ApprovalRequest]) -> list[Change]:
        """For each new request whom a decision wakes, and its expiry; a sub-agent's session has none of its own."""
        parent = _named(state.metadata.get(PARENT))
        if parent is not None:
            back = state.status in ENDED or (state._unfinished and not looked_after.get())
            wakes = back and not within_parent.get()
            return [parent.model_copy(update={"sure": True}).now(self.now_s())] if wakes else []
        attended = state.metadata.get(ATTENDED) is True
        job = Job(agent_id=state.agent_id, session_id=state.session_id, attended=attended)
        key = session_key(state.agent_id, state.session_id)
        asked = {request.id for request in state._asked}
        new = {request.id: request for request in pending if request.id not in asked}
        body, before = job.model_dump_json(exclude_defaults=True), dict[str, int]()
        if new:  # one that it asked before, and asks once more by the same id, has its row already
            rows = await self.store.children(WAKES, [quote(request_id, safe="") for request_id in new])
            before = {row.key: row.version for row in rows}
        changes: list[Change] = [
            Put(kind=WAKES, key=row, body=body, expected=before.get(row, 0))
            for row in (f"{quote(request_id, safe='')}/{key}" for request_id in new)
        ]
        if not attended:
            changes += [job.at(due_s) for due_s in {request.expires_s for request in new.values()} if due_s is not None]
            changes += [job.now(self.now_s())] if state._unfinished and not looked_after.get() else []
        return changes

    async def adopt(self, state: AgentState) -> tuple[AgentState, int] | None:
        """The stored session after a lost answer; if this worker wrote it, `state` takes over what is stored of it."""
        found = await self.load(state.agent_id, state.session_id)
        if found is not None and found[0].worker == state.worker and found[0]._kept is not None:
            transcript, theirs = found[0]._kept
            mine: list[Message | None] = [*state.messages, *([None] * len(theirs))]
            state._kept = transcript, [own if own == other else other for own, other in zip(mine, theirs, strict=False)]
            state._asked = found[0]._asked
        return found

    async def pending(self, agent_id: str | None = None, *, containing: str = "") -> list[PendingSession]:
        """The readable sessions `containing` a text that wait, or whose worker died while a request was pending."""
        prefix, waiting = "" if agent_id is None else session_key(agent_id, ""), []
        for status in (AgentStatus.WAITING_FOR_HUMAN, AgentStatus.RUNNING):
            for document in await self.store.scan("session", label=status.value, prefix=prefix):
                found = await self.pending_in(document) if containing in document.body else None
                if found is not None:
                    waiting.append(found)
        return waiting

    async def above(self, parents: Any) -> list[tuple[Document, SessionHead, Any]]:
        """The stored sessions above a sub-agent's, as far as they can be read, each with the run that it was."""
        found = list[tuple[Document, SessionHead, Any]]()
        for one in parents if isinstance(parents, list) else ():
            job = _named(one[:2] if isinstance(one, list) and len(one) == 3 else None)
            place = None if job is None else session_key(job.agent_id, job.session_id)
            document = None if place is None else await self.store.get("session", place)
            with contextlib.suppress(StoreError):  # what it is cannot be read
                found += [] if document is None else [(document, self.head(document)[0], one[2])]
        return found

    async def ordered_above(self, state: AgentState) -> bool:
        """True if a session above this sub-agent's was ordered to stop, and has not heard it yet."""
        for document, head, _ in await self.above(state.metadata.get(ABOVE)):
            own = await self.store.get("stop", document.key)
            if own is not None and head.stops_seen is not None and own.version > head.stops_seen[1]:
                return True
        return False

    async def parent_status(
        self, parent: Any, run: Any, above: Sequence[tuple[Document, SessionHead, Any]] = ()
    ) -> str | None:
        """The status of the parent that a sub-agent's session names; None without one in this store.

        Nothing of a session runs any more if a session above it has ended; so has one that is another run by now.
        """
        for document, head, theirs in above:
            if document.label in ENDED or head.run_id != theirs:
                return AgentStatus.FAILED.value
        job = _named(parent)
        found = None if job is None else await self.store.get("session", session_key(job.agent_id, job.session_id))
        if found is not None and isinstance(run, str):
            with contextlib.suppress(StoreError):  # what it is cannot be read
                if self.head(found)[0].run_id != run:
                    return AgentStatus.FAILED.value
        return None if found is None else found.label

    async def pending_in(self, document: Document) -> PendingSession | None:
        """The pending approvals of a stored session; None if it does not wait, cannot be read, or lost its parent."""
        try:
            state, left = self.head(document)
        except StoreError as error:
            _log.warning("session %s is left out of the pending requests: %s", document.key, type(error).__name__)
            return None
        requests = state.pending()
        asks = state.status is AgentStatus.RUNNING and requests and (state.attended or not left)
        if state.status is not AgentStatus.WAITING_FOR_HUMAN and not asks:
            return None
        parent = state.metadata.parent_session
        above = await self.above(state.metadata.parents)
        if parent is not None and await self.parent_status(parent, state.metadata.parent_run, above) in ENDED:
            return None
        since_s = min((request.created_s for request in requests), default=state.claimed_s)
        return PendingSession(
            agent_id=state.agent_id, session_id=state.session_id, waiting_since_s=since_s, requests=requests
        )

    async def _asking(self, request: str) -> list[PendingSession]:
        """The sessions that wait for a request of this beginning, by the rows that say whom a decision wakes."""
        named = [read_job(row.body) for row in await self.store.scan(WAKES, prefix=request, limit=_FEW)]
        places = dict.fromkeys((job.agent_id, job.session_id) for job in named if job is not None)
        found: dict[tuple[str, str], PendingSession] = {}
        while places:
            document = await self.store.get("session", session_key(*(place := places.popitem()[0])))
            one = None if document is None else await self.pending_in(document)
            if one is not None:
                found[place] = one
                asked = (r for r in one.requests if r.child_session is not None and r.id.startswith(request))
                owners = ((request.agent_id, request.session_id) for request in asked)
                places |= dict.fromkeys(owner for owner in owners if owner not in found)
        return list(found.values())

    async def running(self) -> dict[str, str]:
        """The sessions that a live worker runs, by key, with the worker."""
        found = {}
        for document in await self.store.scan("session", label=AgentStatus.RUNNING.value):
            with contextlib.suppress(StoreError):  # nobody runs what nobody can read
                state, left = self.head(document)
                if left and state.worker is not None:
                    found[document.key] = state.worker
        return found

    async def find_request(self, request_id: str) -> tuple[AgentState, ApprovalRequest]:
        """The waiting request with this id, or a unique beginning of it of 8 characters or more.

        A shorter one could match a request that the caller never saw. Raises SessionError when there is none.
        """
        if len(request_id) < _SHORTEST_ID:
            raise SessionError(f"{request_id!r:.40} is too short: give at least {_SHORTEST_ID} characters of the id.")
        contained = request_id if request_id.isalnum() else ""
        asking = await self._asking(quote(request_id, safe=""))
        own = [
            (pending, request)
            for pending in asking or await self.pending(containing=contained)
            for request in pending.requests
            if request.child_session is None
        ]
        matches = [(pending, request) for pending, request in own if request.id.startswith(request_id)]
        if len(matches) != 1:
            what = "No pending request has" if not matches else f"{len(matches)} pending requests have"
            now = ", ".join(request.id[:_SHORTEST_ID] for _, request in own[:_FEW]) if asking and not matches else ""
            told = f" Its session waits for another one now: {now}." if now else ""
            if any(request.id.startswith(request_id) for pending in asking for request in pending.requests):
                told = " The sub-agent that asks is at work now: try again, or in its store if it has one of its own."
            raise SessionError(f"{what} an id beginning with {request_id!r:.40}.{told}")
        pending, request = matches[0]
        state, _ = await self.known(pending.agent_id, pending.session_id)
        return state, request

    # -- decisions ------------------------------------------------------------------------------------------------

    async def decide(
        self,
        decision: ApprovalDecision,
        *,
        shown: Card | None = None,
        wake: bool = True,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a decision beside the others; the runner, which has the keys, decides which of them count.

        Beside it what was `shown`, and the tool's `parameters`. In the same write, `wake` queues the session that
        waits, and a never closes the permits that cover the call, whoever said so.
        """
        body = decision.model_dump_json()
        key = f"{quote(decision.request_id, safe='')}/{decision_digest(decision)}"
        kept = {"decision": json.loads(body)} | ({} if shown is None else {"shown": shown.model_dump(mode="json")})
        kept |= {} if parameters is None else {"parameters": parameters}
        put = Put(kind="decision", key=key, body=json.dumps(kept), expected=0)
        jobs = [job.now(self.now_s()) for job in await self._woken_by(key.partition("/")[0])] if wake else []
        for _ in range(_TRIES):
            closing = await self._closing(decision, shown) if decision.never else []
            try:
                self._set_clock(await self.store.write(put, *closing, *jobs))
            except SessionConflictError:
                if closing and await self.store.get(put.kind, put.key) is None:
                    continue  # one of the permits changed meanwhile
                if jobs:  # this very decision is there: whoever gave it may not have come to the jobs
                    await self.store.write(*jobs)
            return
        raise StoreError(f"The decision on {decision.request_id!r:.40} is not stored: the permits change all the time.")

    async def _closing(self, decision: ApprovalDecision, shown: Card | None) -> list[Put]:
        """The changes that close the permits on the call of a rejection that says never."""
        if shown is None:
            waiting = await self._asking(quote(decision.request_id, safe="")) or await self.pending()
            found = (card(one) for session in waiting for one in session.requests if one.id == decision.request_id)
            shown = next(found, None)
        if shown is None or shown.tool is None:
            return []
        call = ToolCall(name=shown.tool, arguments=shown.arguments)
        return await closings(self.store, call, shown.agent_id, closing_words(decision))

    async def _woken_by(self, request: str) -> list[Job]:
        """The sessions that a decision on this request wakes; one of an older release, or whose parent does not know of
        the request yet, is found by looking."""
        found = [read_job(document.body) for document in await self.store.children(WAKES, [request])]
        jobs = [job for job in found if job is not None and not job.attended]
        if not found:
            waiting = await self.pending(containing=unquote(request))
            asking = [one for one in waiting if unquote(request) in {asked.id for asked in one.requests}]
            jobs = [await self._uppermost(Job(agent_id=one.agent_id, session_id=one.session_id)) for one in asking]
        return jobs

    async def _uppermost(self, job: Job) -> Job:
        """The job of the session on top, where this store has it: a sub-agent asks before those above know of it."""
        found = await self.store.get("session", session_key(job.agent_id, job.session_id))
        above = None if found is None else _named(self.head(found)[0].metadata.parent_session)
        there = above and await self.store.get("session", session_key(above.agent_id, above.session_id))
        return job if above is None or there is None else above

    async def decisions(self, request_ids: Sequence[str]) -> dict[str, list[Arrived]]:
        """The readable decisions on each request, in the order of their arrival by the store's clock."""
        parents = {quote(request_id, safe=""): request_id for request_id in request_ids}
        found: dict[str, list[Arrived]] = {request_id: [] for request_id in request_ids}
        documents = await self.store.children("decision", list(parents))
        for document in sorted(documents, key=lambda one: one.written_s):
            self._set_clock(document.read_s)
            request_id = parents[document.key.partition("/")[0]]
            try:
                decision = ApprovalDecision.model_validate(decision_values(document))
            except (ValueError, TypeError, RecursionError):
                _log.warning("a stored decision on request %.40s cannot be read and does not count", ascii(request_id))
                continue
            found[request_id].append((decision, document.written_s))
        return found

    # -- grants ---------------------------------------------------------------------------------------------------

    async def grant(self, grant: Grant) -> None:
        """Store a grant."""
        await self.store.write(put_grant(grant, 0))

    async def use_grant(
        self, call: ToolCall, *, agent_id: str, session_id: str, policy: ApprovalPolicy, started_by: str | None = None
    ) -> Grant | None:
        """Use one grant that covers this call now, by the store's clock, and count the use; None when there is none."""
        for document in await self.store.scan(GRANT, label=call.name):
            found = standing_grant(document, policy)
            if found is None or not found.grant.covers(
                call, agent_id=agent_id, session_id=session_id, now_s=found.now_s
            ):
                continue
            with contextlib.suppress(ApprovalError):
                policy.check_other(found.grant.principal, started_by)
                if await self._count_use(document, policy):
                    return found.grant
        return None

    async def _count_use(self, document: Document, policy: ApprovalPolicy) -> bool:
        """Count one use; False when none is left, or under too much contention."""
        newest: Document | None = document
        for _ in range(_TRIES):
            found = None if newest is None else standing_grant(newest, policy)
            if newest is None or found is None:
                return False
            if await try_write(self.store, put_grant(found.grant, found.uses + 1, expected=found.version)):
                return True
            newest = await self.store.get(GRANT, found.grant.id)  # used, or revoked, at this moment
        return False


def decision_digest(decision: ApprovalDecision) -> str:
    """The digest of a whole decision, its signature included: two decisions of one principal differ in it."""
    return hashlib.sha256(decision.model_dump_json().encode()).hexdigest()


def decision_values(document: Document) -> Mapping[str, Any]:
    """The decision in a stored document, as plain values; none for one that cannot be read: it counts for nothing."""
    try:
        values = json.loads(document.body)["decision"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _named(parent: Any) -> Job | None:
    if not isinstance(parent, list | tuple) or len(parent) != 2 or not all(isinstance(one, str) for one in parent):
        return None  # whatever was stored there
    return Job(agent_id=parent[0], session_id=parent[1])


def _left(state: AgentState | SessionHead, found: Document) -> float:
    """Seconds that are left of the lease of whoever wrote this document, by the store's clock."""
    return state.lease_s - found.age_s if state.v >= STATE_VERSION else state.lease_until_s - found.read_s
