"""The tool calls of one watched session, kept in memory: judged once each, held until humans decide, run once.

The host of `grampus_uq.gate` for frameworks that hand over one call at a time. A call is known by its id, its name and
its canonical arguments together, and by the answer of the model that proposed it: the same call of a later answer, or
of a sub-agent, is another one.

    the model answers         -> `propose` its calls under one step id
    the framework brings one  -> `judge` -> it may run, or waits with an `ApprovalRequest`
    humans decide             -> `decide` (refused when it is on another call, expired, unsigned or not permitted)
    just before it would run  -> `release` -> run it, answer for it, or go on waiting -> `settle`

`carried_calls` writes what leaves the process, and takes it up.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from grampus_uq import (
    ApprovalDecision,
    ApprovalError,
    ApprovalKind,
    ApprovalRequest,
    Effect,
    Session,
    StoreError,
    ToolCall,
    UncertaintyAction,
    UncertaintyError,
)
from grampus_uq.gate.call import (
    RAN_BEFORE,
    REJECTED_IN_THREAD,
    STANDING_APPROVAL,
    UNKNOWN_OUTCOME,
    UNREAD,
    CallPhase,
    CallRecord,
    against,
    remembered,
    settled,
)
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.gate.gate import FRAMEWORK_ASKS, Gate, record_answer
from grampus_uq.gate.requests import Arrived
from grampus_uq.gate.seal import session_place
from grampus_uq.integrations.call_records import OVER, CallRecords, Key
from grampus_uq.integrations.model_turn import ModelTurn, end_aborted, observe_turn
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.records.latest import Latest
from grampus_uq.wire import error_text, observed_text

_MAX_ARRIVED = 64
_MAX_UNSEEN = 1_024
_HUMANS_ALONE = (REJECTED_IN_THREAD.rule, UNKNOWN_OUTCOME.rule)
_WENT_ON = "Not executed: the run went on before anybody decided."


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Instruction for a call that is about to run.

    `run`: execute `record.call`, which a human may have edited, and `settle` the slot. `answer`: give this text to the
    model in its place. Neither: it waits, under `request`.
    """

    slot: int
    record: CallRecord
    run: bool = False
    answer: str | None = None

    @property
    def request(self) -> ApprovalRequest | None:
        """The request under which it waits."""
        return next(iter(self.record.requests), None) if self.record.waiting else None


class HeldCalls:
    """The calls of one session. Not shared between sessions; safe for concurrent tasks of one event loop.

    `place` is what the seal of a snapshot is bound to; `vouched` is False for a session that goes on from a state whose
    seal did not hold. `run_id` names the run that a snapshot is of; a new run has a new one, also in a known session.
    """

    def __init__(
        self,
        session: Session,
        gate: Gate | None = None,
        *,
        place: str | None = None,
        vouched: bool = True,
        run_id: str | None = None,
    ) -> None:
        self.session = session
        self.gate = gate or Gate()
        self.place = place or session_place(session.agent_id, session.session_id)
        policy = session.profile.policy
        run_id = uuid.uuid4().hex if run_id is None else run_id
        thread = session.session_id  # of which there may be other runs
        self.terms = self.gate.terms(session.agent_id, thread, policy, run_id=run_id, vouched=vouched, thread=thread)
        self.records = CallRecords()
        self.unseen: Latest[Key, list[str]] = Latest(_MAX_UNSEEN)
        self.from_outside: set[int] = set()
        self.renewed: set[int] = set()
        self.arrived: dict[str, list[Arrived]] = {}
        self.rejected: list[str] = []
        self.turns = 0
        self._untold: list[CallRecord] = []
        self._told_first: dict[str, bool] = {}
        self._aborted = False

    @property
    def acts(self) -> bool:
        """True unless it only advises."""
        return not self.session.profile.advisory

    async def observe(self, settings: AdapterSettings, turn: ModelTurn, proposed: Iterable[ToolCall]) -> None:
        """Observe an answer of the model; the framework brings each of the `proposed` calls once, also equal ones.

        Commits the calls in it that nothing here can stop. Raises UncertaintyError when the run aborts.
        """
        step_id = self.propose(proposed)
        await self.tell()
        _, action = await observe_turn(self.session, settings, turn, step_id)
        self._stop_on(action, step_id)
        for call, output in turn.ungated:
            _, action = await self.session.observe_tool_call(call, step_id, effect=self.effect(call))
            if output is not None:
                self.session.observe_tool_result(call.id, _text(output))
            self._stop_on(action, step_id)

    def _stop_on(self, action: UncertaintyAction, step_id: str) -> None:
        if action is UncertaintyAction.ABORT:
            if not self._aborted:  # calls of one answer are judged at the same time: each of them may end the run
                end_aborted(self.session)
            self._aborted = True
            latest = self.session.summary()["decision"]
            details = {"session_id": self.session.session_id, "step_id": step_id, "decision": latest}
            raise UncertaintyError("The uncertainty policy aborted the run.", details=details)

    def propose(self, calls: Iterable[ToolCall]) -> str:
        """Take the calls of the model's next answer: the step id of the answer and of its calls."""
        step_id = f"llm_{self.turns}"
        self.turns += 1
        for call in calls:
            self.unseen.setdefault(self.records.key(call), []).append(step_id)
        return step_id

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(
        self, call: ToolCall, *, framework_asks: bool = False, from_model: bool = False, unread: bool = False
    ) -> CallRecord:
        """Commit that this call is proposed, the first time it is seen; raises UncertaintyError when the run aborts.

        With `framework_asks` it waits whatever the monitor says. Nobody vouches for a call that no answer held, unless
        it is `from_model`. One of an `unread` answer waits unless harmless: what was said before does not speak for it.
        """
        return self.records[await self._judged(call, framework_asks, from_model, unread)]

    async def _judged(
        self,
        call: ToolCall,
        framework_asks: bool = False,
        from_model: bool = False,
        unread: bool = False,
        standing: str | None = None,
    ) -> int:
        key = self.records.key(call)
        steps = self.unseen.pop(key, [])
        if len(steps) > 1:
            self.unseen[key] = steps[1:]
        known = None if steps else self.records.slot_of(call)
        if known is not None:
            if framework_asks and self.records[known].phase is CallPhase.CLEARED:
                self.records.keep(known, self.gate.asked(self.records[known], self.terms, FRAMEWORK_ASKS))
            return known
        if not steps:
            self.records.forget_waiting(call.id)
        step_id = steps[0] if steps else f"llm_{max(0, self.turns - 1)}"
        slot = self.records.add(CallRecord.new(call, step_id))
        terms = self.terms
        if not steps and not from_model and self.gate.approvals.signer is not None:
            terms = replace(terms, vouched=False)
        record, action = await self.gate.judge(
            self.records[slot],
            self.session,
            terms,
            rejected=self.rejected if self.acts else (),
            waiting=[other for other in self.records.values() if other.waiting],
            framework_asks=framework_asks,
            doubt=UNREAD if unread and self.acts and self.effect(call) not in HARMLESS else None,
            standing=standing,
        )
        self.records.keep(slot, record)
        self._stop_on(action, record.step_id)
        return slot

    def effect(self, call: ToolCall) -> Effect:
        """The effect of a call, by this session's policy."""
        return self.gate.effect(call, None, self.session.profile.policy)

    # -- deciding -------------------------------------------------------------------------------------------------

    def _renew(self, slot: int) -> CallRecord:
        record = self.gate.renewed(self.records[slot], self.terms)
        if record is not self.records[slot]:
            self.renewed.add(slot)
        return self.records.keep(slot, record)

    def requests(self) -> tuple[ApprovalRequest, ...]:
        """The pending requests, in order, for humans to see; one that expired is replaced by a new one."""
        records = [self._renew(slot) for slot in self.records]
        self.renewed.clear()
        return tuple(request for record in records if record.waiting for request in record.requests)

    def pending(self) -> list[str]:
        """The ids of the pending requests, as they are."""
        return [one.id for record in self.records.values() if record.waiting for one in record.requests]

    async def tell_first(self, decisions: Iterable[ApprovalDecision]) -> None:
        """Let permits learn from decisions against calls, before `decide` is given them.

        Raises ApprovalError after the last where one could not be stored: `decide` then refuses it.
        """
        on = [(self._waiting_on(decision), decision) for decision in decisions]
        said = [(self.records[slot], decision) for slot, decision in on if slot is not None]
        failed = await self.gate.tell_first(said, self.terms, self.gate.now_s())
        pending = self.pending()
        self._told_first = {one: told for one, told in self._told_first.items() if one in pending}
        self._told_first |= {decision.request_id: decision.request_id not in failed for _, decision in said}
        if failed:
            raise ApprovalError(next(iter(failed.values())))

    def decide(self, decision: ApprovalDecision) -> CallRecord:
        """Take a decision on a waiting call; raises ApprovalError when it is refused, and the call waits on.

        Where several must approve, those that came are remembered, in snapshots too. One that `tell_first` could not
        store is refused, and a rejection that says never until it was given that.
        """
        slot = self._waiting_on(decision)
        if slot is None:
            raise ApprovalError(f"No pending request {decision.request_id!r:.40}: stale or already decided.")
        told = self._told_first.get(decision.request_id)
        if told is False and decision.kind is not ApprovalKind.APPROVE:
            raise ApprovalError("The permits on this call could not learn of it: await `tell_first` again.")
        if decision.never and self.gate.permits is not None and told is None:
            raise ApprovalError("It says never: await `tell_first` first, which stores it.")
        return self._decide(slot, decision)

    def _waiting_on(self, decision: ApprovalDecision) -> int | None:
        """The slot of the waiting call that a decision is on, by the id of its request."""
        for slot, record in self.records.items():
            if record.waiting and any(request.id == decision.request_id for request in record.requests):
                return slot
        return None

    def _decide(self, slot: int, decision: ApprovalDecision) -> CallRecord:
        before = self.arrived.get(decision.request_id, [])
        arrived = [*before, self.gate.arrived(decision, self.gate.now_s())][-_MAX_ARRIVED:]
        after, refused = self.gate.decide(self.records[slot], self.terms, arrived)
        self.records.keep(slot, after)
        why = next((why for one, why in refused if one is decision), None)
        if why is not None:
            self._renew(slot)
            raise ApprovalError(why)
        if after.waiting:
            pending = self.pending()
            self.arrived = {one: given for one, given in self.arrived.items() if one in pending}
            self.arrived[decision.request_id] = arrived
            return after
        self._untold.append(after)
        for one in after.decisions:
            record_answer(self.session, one, step_id=after.step_id, call=after.proposed)
        self.rejected = remembered(self.rejected, after)
        if against(after) is not None:
            self.gate.starts.know_rejected(after.proposed, self.terms)
        return after

    def accept_foreign(
        self, call: ToolCall, *, principal: str, arguments: dict[str, JsonValue] | None = None, standing: bool = False
    ) -> bool:
        """Take the framework's own approval of a waiting call, if this policy takes decisions unsigned from anybody.

        `arguments` are those of an edit. None is of a request that was renewed since humans saw one. One that is
        `standing`, of a whole tool or a program's, teaches permits nothing, and lets no call run that a human answered
        against before, or that may have run, unless it waited when the run began.
        """
        record, slot = self.records.find(call), self.records.slot_of(call)
        if record is None or not record.waiting or not record.requests or slot in self.renewed:
            return False
        if standing and slot not in self.from_outside and record.requests[0].rule in _HUMANS_ALONE:
            return False
        kind = ApprovalKind.APPROVE if arguments is None else ApprovalKind.EDIT
        message = STANDING_APPROVAL if standing else None
        try:
            decision = record.requests[0].decide(kind, principal=principal, arguments=arguments, message=message)
            return not self.decide(decision).waiting
        except ApprovalError:
            return False

    def reject_foreign(self, call: ToolCall, *, principal: str) -> None:
        """Take the framework's own rejection of a waiting call, if this policy takes decisions unsigned from anybody.

        It is known by what the framework told the model in place of a result. Permits hear of it at the next `tell`.
        """
        record = self.records.find(call)
        if record is not None and self.acts and record.waiting:
            with contextlib.suppress(ApprovalError):
                self.decide(record.requests[0].decide(ApprovalKind.REJECT, principal=principal))

    def give_up(self, call: ToolCall) -> None:
        """Close a waiting call that the framework went past: nothing can bring it here again."""
        slot = self.records.slot_of(call)
        if slot is not None and self.records[slot].waiting:
            self.records.keep(slot, settled(self.records[slot], _WENT_ON, is_error=True))

    def close(self) -> None:
        """Close all calls that are not over: the framework went past the answer that held them."""
        for slot, record in self.records.items():
            if record.phase not in OVER:
                text = _WENT_ON if record.waiting else None  # one that was cleared may have run
                self.records.keep(slot, settled(record, text, is_error=record.waiting))

    async def void(self, record: CallRecord, *, starts: bool) -> bool:
        """True if a call that was just approved waits again, for frameworks that cannot hold it later.

        First all calls are asked for without `starts`, then those that still may run with it (`Gate.held_before`).
        """
        slot = next((s for s, r in self.records.items() if r is record), None)
        acts = slot is not None and self.acts
        again = await self.gate.held_before(record, self.terms, starts=starts) if acts else None
        if slot is None or again is None or record.phase is not CallPhase.CLEARED:
            return False
        self.records.keep(slot, again)
        return True

    # -- executing ------------------------------------------------------------------------------------------------

    async def release(
        self, call: ToolCall, *, running: ToolCall | None = None, principal: str | None = None, standing: bool = False
    ) -> Release:
        """Say what becomes of a call that is about to run; an approved one runs once, and never again.

        `running` is what would be executed, where the record says otherwise. `principal`: of a framework that brings
        only what it holds for approved: a call that waits is taken so, if this policy takes such decisions (`standing`
        as in `accept_foreign`), unless its request was renewed here.
        """
        slot = await self._judged(call, standing=principal if standing else None)
        record = self._renew(slot)
        if record.decisions and record not in self._untold:
            self._untold.append(record)  # decided in a process that may have died before it told
        if principal is not None and record.waiting:
            self.accept_foreign(call, principal=principal, standing=standing)
            record = self.records[slot]
        again = record.child_session is not None or slot in self.from_outside
        if record.phase is CallPhase.STARTED and again:
            record = self.gate.recovered(record, self.terms, self.effect(record.proposed))
            self.records.keep(slot, record.change(child_session=None))
        await self.tell()
        if record.phase is CallPhase.CLEARED and not self.acts:
            record = self.records.keep(slot, self.records[slot].change(phase=CallPhase.STARTED))
        elif record.phase is CallPhase.CLEARED:
            record = await self.gate.start(
                self.records[slot],
                record.call if running is None else running,
                self.terms,
                None,
                self.session.profile.policy,
                lambda new: self.records.keep(slot, new),
            )
            if record.phase is CallPhase.STARTED:
                return Release(slot=slot, record=record, run=True)
        answer = record.text if record.decisions or self.acts else None
        if answer is None and not self.acts:
            return Release(slot=slot, record=record, run=True)
        ran_before = record.phase in OVER and answer is None
        return Release(slot=slot, record=record, answer=RAN_BEFORE if ran_before else answer)

    async def tell(self, *, stored: bool = False) -> None:
        """Let permits and other runs learn from what was decided: hosts await it as soon as they took decisions.

        A rejection that cannot be stored is told again the next time, or where it has to be `stored` raises StoreError.
        """
        for record in tuple(self._untold):
            try:
                await self.gate.answered(record, self.terms)
            except StoreError:
                if stored:
                    raise
                return
            self._untold = [one for one in self._untold if one is not record]

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
                self.settle(release, error_text(error), is_error=True)
            raise
        if suspends(result):
            self._suspend(release)
        else:
            self.settle(release, _text(result, plain))
        return result

    def settle(self, release: Release, output: Any, *, is_error: bool = False) -> None:
        """Tell the session what came of a call that ran: its result, as text."""
        record = self.records.get(release.slot)
        if record is not None and record.phase is CallPhase.STARTED:
            self.records.keep(release.slot, settled(record, None, is_error=is_error))
        self.session.observe_tool_result(release.record.proposed.id, _text(output), is_error=is_error)

    def _suspend(self, release: Release) -> None:
        record = self.records.get(release.slot)
        if record is not None and record.phase is CallPhase.STARTED:
            self.records.keep(release.slot, record.change(child_session=self.session.session_id))

    def would_allow(self, call: ToolCall) -> bool:
        """True if this call would be allowed now. Changes nothing."""
        return self.session.would_allow(call, effect=self.gate.effects.resolve(call)).allowed


def _text(output: Any, plain: Callable[[Any], Any] = lambda output: output) -> str:
    """The text of what a tool gave: that it has none, or that it cannot be made, is nothing to the run."""
    try:
        return output if isinstance(output, str) else str(plain(output))
    except Exception:  # noqa: BLE001 (a value of the user's that cannot even be printed)
        return observed_text(output)
