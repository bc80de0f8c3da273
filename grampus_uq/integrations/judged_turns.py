"""Judges a model's turn and its tool calls for frameworks that keep state themselves and may run a step again.

carried = judge.states.read(session_id, place, state)          the framework's state (`carried_states`)
carried = await judge.judge(carried, turn)                     each call is cleared, waits, or is answered for
carried, refusals = await judge.decide(carried, answer)        a human's decisions
with judge.running(carried, record, call) as refusal: ...      just before a call runs
state = judge.states.write(carried)
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from grampus_uq import (
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ToolCall,
    UncertaintyAction,
    UncertaintyMonitor,
)
from grampus_uq.gate.call import (
    RAN_BEFORE,
    REJECTED_BEFORE,
    UNKNOWN_OUTCOME,
    UNREAD,
    UNVOUCHED,
    CallPhase,
    CallRecord,
    Doubt,
    Terms,
    against,
    cleared,
    decided,
    doubt_of,
    remembered,
    settled,
    under,
)
from grampus_uq.gate.carried import read_arrived, read_decisions, write_arrived
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.gate.gate import HOST_LEFT, both, record_answer
from grampus_uq.gate.requests import Arrived
from grampus_uq.gate.starts import by_itself, permitted
from grampus_uq.integrations.carried_states import Carried, CarriedStates, Turn, requests_of, step_id_of
from grampus_uq.integrations.model_turn import ModelTurn, end_aborted, observe_turn
from grampus_uq.integrations.settings import AdapterSettings, Settings
from grampus_uq.records.latest import Latest

NOT_CLEARED = "Not executed: this call was not cleared. Propose it in a turn of the model."
_STOPPED = "Not executed: the run was stopped ({why})."
_MAX_OVERRULED = 1_024
_ANOTHER_ANSWER = replace(UNREAD, reason="The answer that holds this call is not the one that was judged.")


class TurnJudge:
    """The frozen wiring of an adapter, shared by its runs; a human's edits are checked against the tools' `schemas`."""

    def __init__(self, monitor: UncertaintyMonitor, **settings: Unpack[Settings]) -> None:
        self.settings = AdapterSettings(monitor=monitor, **settings)
        self.schemas: dict[str, Callable[[], Mapping[str, Any]]] = {}
        self.described: list[Mapping[str, Any]] | None = None
        """The tools as a model is offered them, as far as the adapter was given them; None for none."""
        self.gate = self.settings.gate(lambda name: self.schemas[name]() if name in self.schemas else None)
        self.states = CarriedStates(self.settings, self.gate)
        self._overruled: Latest[str, None] = Latest(_MAX_OVERRULED)

    @property
    def acts(self) -> bool:
        """False while it only advises."""
        return self.settings.acts

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(self, carried: Carried, answer: ModelTurn) -> Carried:
        """Observe a turn of the model and each of its calls; what may happen now is in the turn's records."""
        carried = await self._heard_last(carried)
        if not carried.belief["turns"]:  # a session's first turn: a new run, also under a known session
            run_id = uuid.uuid4().hex
            terms = replace(carried.terms, run_id=run_id)
            carried = replace(carried, belief={**carried.belief, "run": run_id}, terms=terms)
        session, belief = carried.session, carried.belief
        step_id = f"llm_{belief['turns']}"
        step, action = await observe_turn(session, self.settings, answer, step_id)
        doubt = doubt_of(step) if action.stops else None
        because = f"{step.level.value}: {step.reasoning}" if step.reasoning else step.level.value
        stopped = because if action is UncertaintyAction.ABORT else None
        records: list[CallRecord] = []
        if stopped is None and answer.calls:
            records, stopped = await self._judge_calls(carried, answer.calls, step_id, doubt)
        request = None
        if stopped is not None:
            why = _STOPPED.format(why=stopped)
            unrun = [CallRecord.new(call, step_id) for call in answer.calls]
            records = [settled(record, why, is_error=True) for record in unrun]
            end_aborted(session)
        elif action is UncertaintyAction.PAUSE_FOR_HUMAN and doubt is not None and not answer.calls:
            request = self.gate.review(carried.terms, doubt, step_id).model_dump(mode="json")
        turn: Turn = {
            "step_id": step_id,
            "action": (step.advisory_action or step.action)._value_,  # as `.value`, without a call
            "level": step.level._value_,
            "confidence": step.propagated_confidence if session.state.has_reading else None,  # nothing read yet
            "rule": step.rule,
            "reason": step.reasoning,
            "guarantee": step.guarantee,
            "review": request,
            "arrived": [],
            "stopped": stopped,
            "reflect": step.reflection_injected,
        }
        return Carried(
            session=session,
            belief={**belief, "turns": belief["turns"] + 1},
            terms=carried.terms,
            turn=turn,
            records=tuple(records),
            place=carried.place,
        )

    async def _judge_calls(
        self, carried: Carried, calls: Sequence[ToolCall], step_id: str, doubt: Doubt | None
    ) -> tuple[list[CallRecord], str | None]:
        """The record of each call; none, and why the run stops, if one of them stops it."""
        records, belief, undecided = list[CallRecord](), carried.belief, dict[str, Doubt]()
        for record in carried.records:
            if record.waiting and record.requests:
                undecided[record.proposed.likeness()] = doubt_of(record.requests[0])
        for call in calls:
            record, action = await self.gate.judge(
                CallRecord.new(call, step_id),
                carried.session,
                carried.terms,
                rejected=belief["rejected"],
                repeated=bool(belief["repeats"]) and call.is_among(belief["repeats"]),
                doubt=doubt or (undecided.get(call.likeness()) if undecided else None),
                waiting=[*carried.records, *records],
            )
            if action is UncertaintyAction.ABORT:
                latest = carried.session.summary()["decision"] or {}
                return [], f"{latest.get('level', 'critical')}: {latest.get('reasoning', '')}"
            records.append(record)
        return records, None

    async def _heard_last(self, carried: Carried) -> Carried:
        """The state with what humans said against calls of the thread that a stop order kept from it."""
        left, against_them = HOST_LEFT.get() or [], list[CallRecord]()
        for record, arrived in [*left]:  # another turn may hear at the same time
            deciding, _ = self.gate.approvals.holding(record.requests[0], arrived, self.gate.problem)
            after = decided(record, deciding) if deciding else record
            if against(after) not in (None, *carried.belief["rejected"]):
                await self.gate.answered(after.change(requests=record.requests), carried.terms)
                against_them.append(after)
        left.clear()
        return self.record_decisions(carried, against_them)

    def doubted(self, carried: Carried) -> Carried:
        """The state as one that nobody vouches for, from here to the run's end; as it is where nobody signs."""
        vouched = carried.terms.vouched and self.gate.believes(False)
        terms = replace(carried.terms, vouched=vouched)
        return replace(carried, belief={**carried.belief, "vouched": vouched}, terms=terms)

    def unjudged(self, carried: Carried, call: ToolCall) -> Carried:
        """The state with the record, still new, of a call that the model's turn did not hold."""
        return replace(carried, records=(CallRecord.new(call, step_id_of(carried)),))

    async def judge_late(self, carried: Carried, *, read: bool) -> dict[str, Any]:
        """Judge the call of `unjudged` without committing it, as `write_part` writes it.

        `read` False: it is not of the answer judged last.
        """
        (record,), call, belief = carried.records, carried.records[0].proposed, carried.belief
        record = record.change(effect=self.gate.effect(call, None, carried.session.profile.policy))
        verdict = carried.session.would_allow(call, effect=record.effect)
        doubt = None
        if not verdict.allowed:
            doubt = doubt_of(verdict)
        elif not read and record.effect not in HARMLESS:
            doubt = _ANOTHER_ANSWER
        elif not self.gate.believes(False) and record.effect not in HARMLESS:
            doubt = UNVOUCHED  # that another hook changed it, and not the checkpoint's owner, nobody can tell
        repeated, known = call.is_among(belief["repeats"]), belief["rejected"]
        if call.is_among(known):
            return self.states.write_part(replace(carried, records=(settled(record, REJECTED_BEFORE, is_error=True),)))
        held = await self.gate.held_back(call, carried.terms, record.effect, repeated=repeated, known=known)
        doubt = both(held, doubt)
        record = cleared(record) if doubt is None else self.gate.asked(record, carried.terms, doubt)
        return self.states.write_part(replace(carried, records=(record,)))

    # -- deciding -------------------------------------------------------------------------------------------------

    async def decide(self, carried: Carried, answer: Any) -> tuple[Carried, list[str]]:
        """Take what a human answered to the turn's requests: the state after it, and why decisions were refused.

        The reasons are in the order of the requests, behind those of what is no decision on one.
        What waits on is asked anew where its request expired or its precondition failed; too few approvals are kept.
        """
        now_s = self.gate.now_s()
        decisions, refusals = read_decisions(answer)
        on = {request.id: record for record in carried.records for request in record.requests}
        said = [(on[decision.request_id], decision) for decision in decisions if decision.request_id in on]
        failed = await self.gate.tell_first(said, carried.terms, now_s)  # what permits must know of and could not store
        new = [decision for decision in decisions if decision.request_id not in failed]
        known = {request["id"] for request in requests_of(carried)}
        stale = [one.request_id for one in new if one.request_id not in known]
        refusals += [f"No pending request {one:.40}: stale or already decided." for one in stale]
        turn: Turn = dict(carried.turn or {})
        arrived = read_arrived(turn.get("arrived") or ())
        before = [decision for decision, _ in arrived]
        arrived += [self.gate.arrived(one, now_s) for one in new if one.request_id in known and one not in before]
        records, refused = list[CallRecord](), list[tuple[ApprovalDecision, str]]()
        for record in carried.records:
            after, why = await self._decided(record, carried.terms, _on(record.requests, arrived))
            refused += why
            records.append(after)
        if turn.get("review") is not None:
            request = ApprovalRequest.model_validate(turn["review"])
            begun = replace(carried.terms, run_id=request.run_id)  # of several first answers each begins a run
            ours = under(request, begun, step_id_of(carried))
            holding, why = self.gate.approvals.holding(request, _on([request], arrived if ours else ()))
            refused += why
            if holding:
                turn |= {"review": None, "reviewed": [decision.model_dump(mode="json") for decision in holding]}
            elif not ours or self.gate.expired(request):
                refusals += [] if ours else ["the request was made under other rules, or elsewhere"]
                again = self.gate.review(carried.terms, doubt_of(request), step_id_of(carried))
                turn["review"] = again.model_dump(mode="json")
        after_all = replace(carried, turn=turn, records=tuple(records))
        ids, gone = {request["id"] for request in requests_of(after_all)}, [one for one, _ in refused]
        turn["arrived"] = write_arrived(one for one in arrived if one[0].request_id in ids and one[0] not in gone)
        refused += [(one, failed[one.request_id]) for one in decisions if one.request_id in failed]
        order = {request["id"]: n for n, request in enumerate(requests_of(carried))}  # so a host tells whose each is
        refused.sort(key=lambda said: order.get(said[0].request_id, 0))
        return after_all, [*refusals, *(why for _, why in refused)]

    async def _decided(
        self, record: CallRecord, terms: Terms, arrived: Sequence[Arrived]
    ) -> tuple[CallRecord, list[tuple[ApprovalDecision, str]]]:
        if not arrived:
            return self.gate.renewed(record, terms), []
        after, refused = self.gate.decide(record, terms, arrived)
        await self.gate.answered(after.change(requests=record.requests), terms)
        if after.waiting:
            return self.gate.renewed(after, terms), refused
        if after.phase is CallPhase.CLEARED:
            if self.gate.starts.spent(after, terms.run_id):
                return self.gate.asked(after, terms, UNKNOWN_OUTCOME), [*refused, (after.decisions[0], RAN_BEFORE)]
            why = await self.gate.hindrance(after)
            if why is not None:
                refused.append((after.decisions[0], f"The approval is void: {why}"))
                return self.gate.void(after, terms, why), refused
        return after, refused

    def record_decisions(self, carried: Carried, decided: Iterable[CallRecord]) -> Carried:
        """Take what humans decided on these calls, and on the turn's answer, into the belief and the recording."""
        decided = list(decided)
        of_calls = [(decision, record.proposed) for record in decided for decision in record.decisions]
        turn = dict(carried.turn or {})
        if not of_calls and "reviewed" not in turn:
            return carried
        reviewed = [ApprovalDecision.model_validate(one) for one in turn.pop("reviewed", None) or ()]
        for decision, call in [*of_calls, *((one, None) for one in reviewed)]:
            record_answer(carried.session, decision, step_id=turn.get("step_id"), call=call)
        belief = {**carried.belief, "rejected": remembered(carried.belief["rejected"], *decided)}
        return replace(carried, belief=belief, turn=turn if reviewed else carried.turn)

    # -- running --------------------------------------------------------------------------------------------------

    def clears(self, carried: Carried, record: CallRecord | None, call: ToolCall) -> bool:
        """The check at the moment of running: True when exactly this call may run now."""
        return record is not None and self.gate.allows(record, call, carried.terms, carried.session.profile.policy)

    def running(
        self, carried: Carried, record: CallRecord | None, call: ToolCall, *, may_change: bool = False
    ) -> contextlib.AbstractContextManager[str | None]:
        """The answer in a call's place, or None where exactly this call runs now: decided or permitted, once a process.

        `may_change`: harmless changes of arguments run too. When the tool raises, the framework may run it again.
        """
        refusal = self.refusal(carried, record, call)
        if record is None or (refusal is None and by_itself(record)):
            return contextlib.nullcontext(refusal)
        if may_change and not record.decisions:
            harmless = self.gate.effect(call, None, carried.session.profile.policy) in HARMLESS
            if harmless and call.name == record.call.name and self.clears(carried, record, record.call):
                return contextlib.nullcontext()
        if refusal is not None:
            return contextlib.nullcontext(refusal)
        return self._once(record, carried.terms.run_id)

    @contextlib.contextmanager
    def _once(self, record: CallRecord, run_id: str) -> Iterator[str | None]:
        with self.gate.starts.once(record, run_id) as first:
            yield None if first else RAN_BEFORE

    def overruled(self, record: CallRecord, answers: Iterable[Any]) -> bool:
        """Return True if one of these answers rejects or edits a call that was cleared by another one.

        It stays so in this process: a cancelled run forgets its answers.
        """
        if record.phase is not CallPhase.CLEARED or not record.decisions:
            return False
        request, now_s, gate = record.requests[0], self.gate.now_s(), self.gate
        said = self.answered(record, answers)
        others = [one for one in said if one not in record.decisions and one.kind is not ApprovalKind.APPROVE]
        if any(gate.approvals.holding(request, [gate.arrived(one, now_s)], gate.problem)[0] for one in others):
            self._overruled[request.id] = None
        return request.id in self._overruled

    def answered(self, record: CallRecord, answers: Iterable[Any]) -> list[ApprovalDecision]:
        """The decisions in these answers that are on this call's requests."""
        ids = {request.id for request in record.requests}
        return [one for answer in answers for one in read_decisions(answer)[0] if one.request_id in ids]

    def ask_again(self, carried: Carried, record: CallRecord, *, began: bool = False) -> CallRecord:
        """The cleared record with a new request: about its unknown outcome where it `began`, here or elsewhere."""
        if began or self.gate.starts.spent(record, carried.terms.run_id):
            return self.gate.asked(record, carried.terms, UNKNOWN_OUTCOME)
        return self.gate.asked_again(record, carried.terms, "it was approved, and decided on once more before it ran")

    def look(self, record: CallRecord | None) -> Callable[[], Coroutine[Any, Any, str | None]] | None:
        """For a call let ahead by permits: a check to await before it runs, as they may have ended; None for others."""
        if record is None or not permitted(record):
            return None

        async def why() -> str | None:
            hindrance = await self.gate.hindrance(record)
            return None if hindrance is None else f"Not executed: a permit let it through, but {hindrance}."

        return why

    def refusal(self, carried: Carried, record: CallRecord | None, call: ToolCall) -> str | None:
        """The answer in a call's place when it may not run now."""
        if record is None or not self.clears(carried, record, call):
            return NOT_CLEARED
        return RAN_BEFORE if not by_itself(record) and self.gate.starts.spent(record, carried.terms.run_id) else None


def _on(requests: Sequence[ApprovalRequest], arrived: Sequence[Arrived]) -> list[Arrived]:
    ids = {request.id for request in requests}
    return [entry for entry in arrived if entry[0].request_id in ids]
