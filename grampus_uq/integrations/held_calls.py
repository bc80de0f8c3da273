"""The tool calls of one watched session, kept in memory: judged once each, held until humans decide, run once.

The host of `grampus_uq.gate` for frameworks that hand over one call at a time. A call is known by its id, its name and
its canonical arguments together, and by the answer of the model that proposed it: the same call of a later answer, or
of a sub-agent, is another one.

    the model answers         -> `propose` its calls under one step id
    the framework brings one  -> `judge` -> it may run, or waits with an `ApprovalRequest`
    humans decide             -> `decide` (refused when it is on another call, expired, unsigned or not permitted)
    just before it would run  -> `release` -> run it, answer for it, or go on waiting -> `settle`

What leaves the process (`snapshot`) carries a seal where decisions are signed. A state whose seal does not hold says
nothing: its calls wait, and its belief releases nothing that may be irreversible for the rest of the run.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from grampus_uq import (
    ApprovalDecision,
    ApprovalError,
    ApprovalKind,
    ApprovalRequest,
    ConfigurationError,
    DataError,
    Effect,
    Session,
    ToolCall,
    UncertaintyAction,
    UncertaintyError,
)
from grampus_uq.gate.call import (
    MAX_REJECTED,
    RAN_BEFORE,
    UNREAD,
    CallPhase,
    CallRecord,
    asked,
    asked_again,
    bound,
    edit_note,
    settled,
)
from grampus_uq.gate.carried import read_record, write_record
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.gate.gate import FRAMEWORK_ASKS, Gate
from grampus_uq.gate.recovery import recovered, restored
from grampus_uq.gate.requests import Arrived
from grampus_uq.gate.seal import session_place
from grampus_uq.integrations.model_turn import ModelTurn, observe_turn
from grampus_uq.integrations.settings import AdapterSettings

__all__ = ["HeldCalls", "Release", "calls_in", "note_schema", "take_up", "waiting_in"]

VERSION = 2
_READABLE = (1, 2)
_MAX_SETTLED = 256
_MAX_ARRIVED = 64
_MAX_UNSEEN = 1_024
Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What to do with a call that is about to run.

    `run`: execute `record.call`, which a human may have edited, and `settle` the slot. `answer`: give this text to the
    model in its place. Neither: it waits, under `request`.
    """

    slot: int
    record: CallRecord
    run: bool = False
    answer: str | None = None

    @property
    def request(self) -> ApprovalRequest | None:
        """What it waits for."""
        return next(iter(self.record.requests), None) if self.record.waiting else None


class HeldCalls:
    """The calls of one session. Not shared between sessions; safe for concurrent tasks of one event loop.

    `place` is what the seal of a snapshot is bound to; `vouched` is False for a session that goes on from a state whose
    seal did not hold.
    """

    def __init__(
        self, session: Session, gate: Gate | None = None, *, place: str | None = None, vouched: bool = True
    ) -> None:
        self.session = session
        self.gate = gate or Gate()
        self.place = place or session_place(session.agent_id, session.session_id)
        policy = session.profile.policy
        self.terms = self.gate.terms(session.agent_id, session.session_id, policy, vouched=vouched)
        self._records: dict[int, CallRecord] = {}
        self._slots: dict[Key, list[int]] = {}
        self._as_edited: dict[Key, int] = {}
        self._unseen: dict[Key, list[str]] = {}
        self._from_outside: set[int] = set()
        self._arrived: dict[str, list[Arrived]] = {}
        self._rejected: list[str] = []
        self._digests: dict[str, tuple[ToolCall, str]] = {}
        self._next_slot = 0
        self._turns = 0

    @property
    def acts(self) -> bool:
        """True unless it only advises."""
        return not self.session.profile.advisory

    async def observe(self, settings: AdapterSettings, turn: ModelTurn, proposed: Iterable[ToolCall]) -> None:
        """Observe an answer of the model; the framework brings each of the `proposed` calls once, also equal ones.

        Commits the calls in it that nothing here can stop. Raises UncertaintyError when the run aborts.
        """
        step_id = self.propose(proposed)
        _, action = await observe_turn(self.session, settings, turn, step_id)
        self._stop_on(action, step_id)
        for call, output in turn.ungated:
            _, action = await self.session.observe_tool_call(call, step_id, effect=self.effect(call))
            if output is not None:
                self.session.observe_tool_result(call.id, _text(output))
            self._stop_on(action, step_id)

    def _stop_on(self, action: UncertaintyAction, step_id: str) -> None:
        if action is UncertaintyAction.ABORT:
            details = {
                "session_id": self.session.session_id,
                "step_id": step_id,
                "decision": self.session.summary()["decision"],
            }
            raise UncertaintyError("The uncertainty policy aborted the run.", details=details)

    def propose(self, calls: Iterable[ToolCall]) -> str:
        """Take the calls of the model's next answer: the step id of the answer and of its calls."""
        step_id = f"llm_{self._turns}"
        self._turns += 1
        for call in calls:
            self._unseen.setdefault(self._key(call), []).append(step_id)
        while len(self._unseen) > _MAX_UNSEEN:
            del self._unseen[next(iter(self._unseen))]
        return step_id

    def _key(self, call: ToolCall) -> Key:
        """What identifies a call; of one and the same object it is worked out once."""
        known = self._digests.get(call.id)
        if known is None or known[0] is not call:
            if len(self._digests) >= _MAX_SETTLED:
                self._digests.clear()
            known = self._digests[call.id] = call, call.digest()
        return call.id, known[1]

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(
        self, call: ToolCall, *, framework_asks: bool = False, from_model: bool = False, unread: bool = False
    ) -> CallRecord:
        """Commit that this call is proposed, the first time it is seen; raises UncertaintyError when the run aborts.

        With `framework_asks` it waits even where the monitor would let it through. A call that no answer of the model
        held (nor the adapter knows to be `from_model`) is vouched for by nobody. One of an answer that is `unread`
        as yet waits unless it is harmless: what was said before does not speak for it.
        """
        return self._records[await self._judged(call, framework_asks, from_model, unread)]

    async def _judged(
        self, call: ToolCall, framework_asks: bool = False, from_model: bool = False, unread: bool = False
    ) -> int:
        key = self._key(call)
        steps = self._unseen.pop(key, [])
        if len(steps) > 1:
            self._unseen[key] = steps[1:]
        known = None if steps else self._find(key)
        if known is not None:
            if framework_asks and self._records[known].phase is CallPhase.CLEARED:
                self._ask(known, framework=True)
            return known
        if not steps:
            self._forget_waiting(call.id)
        slot = self._new(
            CallRecord(proposed=call, call=call, step_id=steps[0] if steps else f"llm_{max(0, self._turns - 1)}"), key
        )
        terms = self.terms
        if not steps and not from_model and self.gate.approvals.signer is not None:
            terms = replace(terms, vouched=False)
        record, action = await self.gate.judge(
            self._records[slot],
            self.session,
            terms,
            rejected=self._rejected if self.acts else (),
            framework_asks=framework_asks,
            doubt=UNREAD if unread and self.acts and self.effect(call) not in HARMLESS else None,
        )
        self._keep(slot, record)
        self._stop_on(action, record.step_id)
        return slot

    def effect(self, call: ToolCall) -> Effect:
        """What a call does, by this session's policy."""
        return self.gate.effect(call, None, self.session.profile.policy)

    def find(self, call: ToolCall) -> CallRecord | None:
        """The record of a call that was judged before, as it was proposed or as a human edited it."""
        slot = self._find(self._key(call))
        return None if slot is None else self._records[slot]

    def proposed_as(self, call: ToolCall) -> ToolCall:
        """The call as it was proposed, where this is one that a human edited."""
        record = self.find(call)
        return call if record is None else record.proposed

    def _find(self, key: Key) -> int | None:
        """The record of a call that was seen before: one that has not run yet, else the latest."""
        slots = self._slots.get(key, [])
        over = (CallPhase.STARTED, CallPhase.SETTLED)
        still = (s for s in slots if self._records[s].phase not in over or self._records[s].child_session is not None)
        slot = next(still, slots[-1] if slots else self._as_edited.get(key))
        return slot if slots or slot is None or self._is_edited_to(slot, key) else None

    def _is_edited_to(self, slot: int, key: Key) -> bool:
        record = self._records.get(slot)
        return record is not None and record.edited and self._key(record.call) == key

    def _new(self, record: CallRecord, key: Key) -> int:
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        self._records[slot] = record
        self._slots.setdefault(key, []).append(slot)
        if len(self._records) > 2 * _MAX_SETTLED:
            over = [s for s, r in self._records.items() if r.phase is CallPhase.SETTLED]
            for old in over[:-_MAX_SETTLED]:
                self._drop(old)
        return slot

    def _keep(self, slot: int, record: CallRecord) -> CallRecord:
        self._records[slot] = record
        return record

    def _note_edit(self, slot: int, record: CallRecord) -> None:
        """The call is known by its new arguments as well: a transcript may hold either."""
        if record.edited:
            self._as_edited[self._key(record.call)] = slot

    def _drop(self, slot: int) -> None:
        record = self._records.pop(slot)
        self._from_outside.discard(slot)
        if record.edited:
            self._as_edited.pop(self._key(record.call), None)
        key = record.proposed.id, record.proposed.digest()
        self._slots[key].remove(slot)
        if not self._slots[key]:
            del self._slots[key]

    def _forget_waiting(self, call_id: str) -> None:
        """Arguments that no answer held take the place of those under the same id: what waited there is not asked."""
        for slot in [s for s, r in self._records.items() if r.proposed.id == call_id and r.waiting]:
            self._drop(slot)

    # -- deciding -------------------------------------------------------------------------------------------------

    def _ask(self, slot: int, why: str | None = None, *, framework: bool = False) -> CallRecord:
        record, now_s = self._records[slot], time.time()
        if framework:
            return self._keep(slot, asked(record, self.terms, self.gate.approvals, FRAMEWORK_ASKS, now_s))
        return self._keep(slot, asked_again(record, self.terms, self.gate.approvals, now_s, why))

    def _renew(self, slot: int) -> CallRecord:
        """The record, asked about anew where its request can never be answered any more."""
        record = self._records[slot]
        if not record.waiting:
            return record
        if not all(bound(request, record, self.terms) for request in record.requests):
            return self._ask(slot, "it was asked under other rules")
        if any(request.expired() for request in record.requests):
            return self._ask(slot, "the request before it expired")
        return record

    def requests(self) -> tuple[ApprovalRequest, ...]:
        """What waits, in order; a request that expired is replaced by a new one."""
        records = [self._renew(slot) for slot in self._records]
        return tuple(request for record in records if record.waiting for request in record.requests)

    def decide(self, decision: ApprovalDecision) -> CallRecord:
        """Take a decision on a waiting call; raises ApprovalError when it is refused, and the call waits on.

        Where several must approve, those that came are remembered, in snapshots too.
        """
        for slot, record in self._records.items():
            if record.waiting and any(request.id == decision.request_id for request in record.requests):
                return self._decide(slot, decision)
        raise ApprovalError(f"Nothing waits under request {decision.request_id!r:.40}: stale or already decided.")

    def _decide(self, slot: int, decision: ApprovalDecision) -> CallRecord:
        before = self._arrived.get(decision.request_id, [])
        arrived = [*before, (decision, time.time())][-_MAX_ARRIVED:]
        after, refused = self.gate.decide(self._records[slot], self.terms, arrived)
        self._keep(slot, after)
        why = next((why for one, why in refused if one is decision), None)
        if why is not None:
            self._renew(slot)
            raise ApprovalError(why)
        if after.waiting:
            self._arrived[decision.request_id] = arrived
            return after
        self._arrived.pop(decision.request_id, None)
        self._note_edit(slot, after)
        for one in after.decisions:
            self.session.record_decision(
                one.kind.value,
                principal=one.principal,
                step_id=after.step_id,
                call=after.proposed,
                message=one.message,
            )
        if after.decisions[0].kind is ApprovalKind.REJECT:
            self._rejected = [*self._rejected, after.proposed.digest()][-MAX_REJECTED:]
        return after

    def accept_foreign(self, call: ToolCall, *, principal: str, arguments: dict[str, JsonValue] | None = None) -> bool:
        """Take the framework's own approval of a waiting call, if this policy takes decisions unsigned from anybody.

        `arguments` are those that a human put in place of the call's own, None for a call that was not edited.
        """
        slot = self._find(self._key(call))
        request = None if slot is None else next(iter(self._records[slot].requests), None)
        if slot is None or request is None or not self._records[slot].waiting:
            return False
        kind = ApprovalKind.APPROVE if arguments is None else ApprovalKind.EDIT
        try:
            return not self.decide(request.decide(kind, principal=principal, arguments=arguments)).waiting
        except ApprovalError:
            return False

    async def void(self, record: CallRecord) -> bool:
        """Ask the precondition of a call that was just approved: when it fails the call waits again, and True returns.

        For frameworks that cannot make a call wait any more once it is on its way: `release` asks once more.
        """
        slot = next((s for s, r in self._records.items() if r is record), None)
        why = None if slot is None else await self.gate.hindrance(record)
        if slot is None or why is None or record.phase is not CallPhase.CLEARED:
            return False
        self._keep(slot, self.gate.void(record, self.terms, why))
        return True

    # -- executing ------------------------------------------------------------------------------------------------

    async def release(
        self,
        call: ToolCall,
        *,
        running: ToolCall | None = None,
        principal: str | None = None,
    ) -> Release:
        """Say what becomes of a call that is about to run; an approved one is let through once, and never again.

        `running` is what the framework would execute, where that is not what the record says. `principal` is for a
        framework that comes here only with calls that it holds for approved: one that still waits is first taken as
        approved by it, if this policy takes such decisions. A request that is renewed here waits on.
        """
        slot = await self._judged(call)
        record = self._renew(slot)
        policy = self.session.profile.policy
        if principal is not None and record.waiting:
            self.accept_foreign(call, principal=principal)
            record = self._records[slot]
        again = record.child_session is not None or slot in self._from_outside
        if record.phase is CallPhase.STARTED and again:
            effect = self.effect(record.proposed)
            record = recovered(record, self.terms, self.gate.approvals, effect, time.time())
            self._keep(slot, record.change(child_session=None))
        if record.phase is CallPhase.CLEARED:
            record = await self.gate.start(
                self._records[slot],
                record.call if running is None else running,
                self.terms,
                None,
                policy,
                lambda new: self._keep(slot, new),
            )
            if record.phase is CallPhase.STARTED:
                return Release(slot=slot, record=record, run=True)
        answer = record.text if record.decisions or self.acts else None
        if answer is None and not self.acts:
            return Release(slot=slot, record=record, run=True)
        over = record.phase in (CallPhase.STARTED, CallPhase.SETTLED)
        return Release(slot=slot, record=record, answer=RAN_BEFORE if over and answer is None else answer)

    async def execute(
        self,
        release: Release,
        work: Callable[[], Awaitable[Any]],
        *,
        suspends: Callable[[Any], bool] = lambda result: False,
        plain: Callable[[Any], Any] = lambda result: result,
    ) -> Any:
        """Run a released call and tell the session what came of it; the result is as the tool gave it.

        A result or an exception that `suspends` is a sub-agent's whose own calls wait: the call is brought here again.
        """
        try:
            result = await work()
        except Exception as error:
            if suspends(error):
                self._suspend(release)
            else:
                self.settle(release, f"{type(error).__name__}: {error}", is_error=True)
            raise
        if suspends(result):
            self._suspend(release)
        else:
            self.settle(release, result if isinstance(result, str) else plain(result))
        return result

    def settle(self, release: Release, output: Any, *, is_error: bool = False) -> None:
        """Tell the session what came of a call that ran: its result, as text."""
        record = self._records.get(release.slot)
        if record is not None and record.phase is CallPhase.STARTED:
            self._keep(release.slot, settled(record, None, is_error=is_error))
        self.session.observe_tool_result(release.record.proposed.id, _text(output), is_error=is_error)

    def _suspend(self, release: Release) -> None:
        record = self._records.get(release.slot)
        if record is not None and record.phase is CallPhase.STARTED:
            self._keep(release.slot, record.change(child_session=self.session.session_id))

    # -- asking ---------------------------------------------------------------------------------------------------

    def known(self, name: str) -> list[ToolCall]:
        """The calls of a tool that were judged, those first that have not run."""
        over = (CallPhase.STARTED, CallPhase.SETTLED)
        records = [record for record in self._records.values() if record.proposed.name == name]
        return [record.proposed for record in sorted(records, key=lambda record: record.phase in over)]

    def approved(self, call_id: str) -> list[ToolCall]:
        """The calls with this id that humans approved, as they approved them."""
        records = (record for record in self._records.values() if record.proposed.id == call_id)
        return [r.call for r in records if r.decisions and r.phase in (CallPhase.CLEARED, CallPhase.STARTED)]

    def waiting_tools(self) -> set[str]:
        """Names of the tools whose calls wait."""
        return {record.proposed.name for record in self._records.values() if record.waiting}

    def edited(self) -> list[CallRecord]:
        """The calls that a human edited and that have not run."""
        return [record for record in self._records.values() if record.edited and record.phase is CallPhase.CLEARED]

    @property
    def edits(self) -> bool:
        """True once a human edited a call."""
        return bool(self._as_edited)

    def notes(self, call_ids: Iterable[str]) -> list[str]:
        """What the model is told beside the results of these calls: which arguments a human changed."""
        ids = set(call_ids)
        records = (r for r in self._records.values() if r.edited and r.proposed.id in ids)
        return [note for record in records if (note := edit_note(record)) is not None]

    def would_allow(self, call: ToolCall) -> bool:
        """What would be said of this call now. Changes nothing."""
        return self.session.would_allow(call, effect=self.gate.effects.resolve(call)).allowed

    # -- in another process ---------------------------------------------------------------------------------------

    def snapshot(self, **more: JsonValue) -> dict[str, Any]:
        """The belief, the calls and what else the adapter carries, as JSON values, sealed where decisions are signed.

        What travels with the framework's own state.
        """
        values: dict[str, Any] = {
            "v": VERSION,
            "belief": self.session.snapshot(),
            "calls": [write_record(record) for record in self._records.values()],
            "unseen": [[key[0], key[1], step] for key, steps in self._unseen.items() for step in steps],
            "arrived": [
                [decision.model_dump(mode="json"), arrived_s]
                for arrived in self._arrived.values()
                for decision, arrived_s in arrived
            ],
            "rejected": list(self._rejected),
            "turns": self._turns,
            "vouched": self.terms.vouched,
            **more,
        }
        seal = self.gate.approvals.seal
        return values if seal is None else seal.sealed(self.place, values)

    def restore(self, snapshot: Mapping[str, Any], *, believed: bool) -> None:
        """Take up what `snapshot` gave (the session was started with its belief already); raises DataError."""
        records, now_s = calls_in(snapshot), time.time()
        try:
            self._rejected = [str(digest) for digest in snapshot["rejected"]][-MAX_REJECTED:]
            self._turns = max(self._turns, int(snapshot.get("turns", snapshot.get("steps", 0))))
            arrived = [(ApprovalDecision.model_validate(d), float(s)) for d, s in snapshot.get("arrived", ())]
            unseen = [(str(i), str(digest), str(step)) for i, digest, step in snapshot.get("unseen", ())]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"not the calls of a session: {error}", field="rejected") from error
        for decision, arrived_s in arrived:  # an arrival that nobody vouches for is now: nothing expired is made good
            entry = decision, arrived_s if believed else now_s
            self._arrived.setdefault(decision.request_id, []).append(entry)
        for call_id, digest, step_id in unseen if believed else ():
            self._unseen.setdefault((call_id, digest), []).append(step_id)
        for record in records:
            new = restored(record, self.terms, self.gate.approvals, now_s, believed=believed)
            slot = self._new(new, (new.proposed.id, new.proposed.digest()))
            self._from_outside.add(slot)
            self._note_edit(slot, new)
            if new.waiting and not all(bound(request, new, self.terms) for request in new.requests):
                self._ask(slot, "it was asked under other rules")


def _text(output: Any) -> str:
    return output if isinstance(output, str) else str(output)


def take_up(
    settings: AdapterSettings,
    gate: Gate,
    session_id: str,
    agent_id: str,
    snapshot: Mapping[str, Any] | None = None,
    *,
    model: str = "",
    vouched: bool = True,
) -> HeldCalls:
    """A session and its calls: new, or taken up from what `snapshot` gave, as far as that is believed.

    `session_id` and `agent_id` are what the host knows the session as, and its seal is bound to; `vouched` False is for
    a state that came with something else that does not hold. Raises DataError on state that is none; in advisory mode
    it begins anew.
    """
    place, monitor = session_place(agent_id, session_id), settings.monitor
    try:
        if snapshot is not None and snapshot.get("v") not in _READABLE:
            raise DataError(f"version {snapshot.get('v')!r:.40} is not {VERSION}", field="v")
        seal = gate.approvals.seal
        believed = snapshot is None or gate.believes(vouched and seal is not None and seal.authentic(place, snapshot))
        session = monitor.session(
            session_id,
            agent_id,
            model=model,
            snapshot=None if snapshot is None else snapshot.get("belief"),
            advisory=settings.advisory,
        )
        stays = snapshot is None or snapshot.get("vouched", True) is True
        held = HeldCalls(session, gate, place=place, vouched=believed and vouched and stays)
        if snapshot is not None:
            held.restore(snapshot, believed=believed)
        return held
    except (AttributeError, ConfigurationError, DataError, KeyError, TypeError, ValueError) as error:
        if settings.acts:
            raise error if isinstance(error, DataError) else DataError(f"not a session's state: {error}") from error
        session = monitor.session(session_id, agent_id, model=model, advisory=settings.advisory)
        return HeldCalls(session, gate, place=place, vouched=False)


def note_schema(schemas: dict[str, Any], name: str, schema: Any) -> None:
    """Keep the JSON schema of a tool; where two tools of one name differ there is none to hold an edit against."""
    known = schemas.setdefault(name, schema)
    if known is not schema and known is not None and known != schema:
        schemas[name] = None


def calls_in(snapshot: Mapping[str, Any]) -> list[CallRecord]:
    """What a snapshot says of its calls; raises DataError."""
    if snapshot.get("v") not in _READABLE:
        raise DataError(f"version {snapshot.get('v')!r:.40} is not {VERSION}", field="v")
    calls = snapshot.get("calls")
    try:
        return [read_record(entry) for entry in (calls if isinstance(calls, Sequence) else ())]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not the calls of a session: {error}", field="calls") from error


def waiting_in(snapshot: Mapping[str, Any]) -> tuple[ApprovalRequest, ...]:
    """What waits in a snapshot, for those who show it to a human; raises DataError."""
    return tuple(request for record in calls_in(snapshot) if record.waiting for request in record.requests)
