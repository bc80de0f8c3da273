"""The steps of a call's life that ask somebody: what is judged, what humans decide, what a request says."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from grampus_uq import UncertaintyMonitor
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import ApprovalError
from grampus_uq.gate.call import (
    EXPIRED,
    FRAMEWORK,
    NOT_EXECUTED,
    REJECTED_BEFORE,
    REJECTED_IN_THREAD,
    REPEATED,
    UNKNOWN_OUTCOME,
    UNREADABLE,
    UNVOUCHED,
    VOID,
    CallPhase,
    CallRecord,
    Doubt,
    Terms,
    answer_text,
    asked,
    asked_again,
    authority,
    bound,
    cleared,
    decided,
    doubt_of,
    expired,
    granted,
    guided,
    remembered,
    request_for,
    review,
    settled,
)
from grampus_uq.gate.clearance import refusal_of
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.gate.gate import HOST_ARRIVED, HOST_NOW_S, Gate, record_answer
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.recovery import recovered, restored
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy
from grampus_uq.monitor.session import Session
from grampus_uq.records.events import DecisionEvent
from grampus_uq.records.values import Reading, Step, StepUncertainty, ToolCall, Verdict
from grampus_uq.records.vocabulary import Effect, UncertaintyAction, UncertaintyLevel
from tests.scripted_runs import Captured

NOW = 1_000.0
TERMS = Terms(agent_id="clerk", session_id="s", run_id="r", rules="rules")
OPEN = ApprovalPolicy(expires_s=60.0)
GATE = Gate(approvals=OPEN)
PAY = ToolCall(id="c1", name="pay", arguments={"to": "A", "amount": 5})
DOUBT = Doubt(
    level=UncertaintyLevel.MEDIUM, rule="irreversible_override", reason="why", guarantee="promise", confidence=0.7
)
NEW = CallRecord(proposed=PAY, step_id="llm_1")
PAUSE, PROCEED, ABORT = UncertaintyAction.PAUSE_FOR_HUMAN, UncertaintyAction.PROCEED, UncertaintyAction.ABORT


def at(now_s: float, gate: Gate = GATE) -> Gate:
    """The same gate, with approvals that are used up and all, of a host with this clock."""
    clocked = copy.copy(gate)
    clocked.now_s = lambda: now_s
    return clocked


def waiting(**given: Any) -> CallRecord:
    return asked(NEW.change(**given), TERMS, OPEN, DOUBT, NOW)


def says(record: CallRecord, kind: str, **given: Any) -> ApprovalDecision:
    return record.requests[0].decide(kind, principal="ann", **given)


# -- judging ----------------------------------------------------------------------------------------------------------


def judged(
    call: ToolCall = PAY,
    policy: UncertaintyPolicy | None = None,
    *,
    gate: Gate = GATE,
    terms: Terms = TERMS,
    advisory: bool = False,
    watched: bool = True,
    **given: Any,
) -> tuple[CallRecord, UncertaintyAction]:
    session = UncertaintyMonitor(policy=policy).session("s", advisory=advisory) if watched else None
    record = CallRecord(proposed=call, step_id="llm_1")

    async def judge() -> tuple[CallRecord, UncertaintyAction]:
        return await at(NOW, gate).judge(record, session, terms, **given)

    return anyio.run(judge)


GUARDS_PAY = UncertaintyPolicy(irreversible_tool_names=["pay"])
UNVOUCHED_TERMS = Terms(agent_id="clerk", session_id="s", run_id="r", rules="rules", vouched=False)


def test_a_request_shows_what_the_monitor_said_of_the_call() -> None:
    reason = {"rule": "detector", "reason": "why", "guarantee": "promise"}
    said: dict[str, Any] = {"level": UncertaintyLevel.HIGH, "confidence": 0.7, **reason}
    assert doubt_of(Verdict(action=PAUSE, **said)) == Doubt(**said)
    step = StepUncertainty(
        index=0, step_id="t", step_type="tool_call", fused_confidence=0.6, propagated_confidence=0.7,
        level=UncertaintyLevel.MEDIUM, action=PAUSE, rule="irreversible_override", reasoning="why", guarantee="promise",
        timestamp=datetime.now(UTC),
    )  # fmt: skip
    assert doubt_of(step) == DOUBT


def rule_of(record: CallRecord) -> str | None:
    return record.requests[0].rule if record.requests else None


def test_the_monitor_lets_through_what_it_lets_through_and_asks_the_rest_with_its_reason() -> None:
    free, action = judged()
    assert (free.phase, free.cleared_by, free.effect, action) == (CallPhase.CLEARED, "monitor", Effect.UNKNOWN, PROCEED)
    asks, action = judged(policy=GUARDS_PAY)
    assert (asks.phase, asks.effect, action) == (CallPhase.WAITING, Effect.IRREVERSIBLE, PAUSE)
    request = asks.requests[0]
    assert (request.rule, request.reason) == ("missing_evidence", "irreversible call: no reading yet")
    assert (request.level, request.confidence, request.guarantee) == (UncertaintyLevel.MEDIUM, None, None)
    assert (request.created_s, request.expires_s) == (NOW, NOW + 60.0)
    declared, _ = judged(declared=Effect.IRREVERSIBLE)
    assert (rule_of(declared), declared.effect) == ("missing_evidence", Effect.IRREVERSIBLE)


def unsure(agent: str = "clerk", *processors: Captured, confidence: float = 0.1) -> Session:
    """A session in which the model proposed PAY, with a P(True) as given."""
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"], high_threshold=0.0)
    session = UncertaintyMonitor(policy=policy, processors=processors).session("s", agent)
    step = Step(step_id="llm_1", kind="llm_call", time_s=0.0, tool_calls=(PAY,))
    session.commit(step, [Reading(source="p_true", value=confidence)])
    return session


def test_a_call_without_arguments_is_not_the_proposed_one_that_has_some() -> None:
    async def judge(call: ToolCall) -> tuple[CallRecord, UncertaintyAction]:
        return await at(NOW).judge(CallRecord(proposed=call, step_id="llm_1"), unsure(confidence=0.99), TERMS)

    assert anyio.run(judge, PAY)[1] is PROCEED
    bare, action = anyio.run(judge, ToolCall(id="c1", name="pay"))
    assert action is PAUSE
    assert bare.requests[0].reason.startswith("irreversible call with arguments that the model did not propose")


def test_what_aborts_is_neither_cleared_nor_asked() -> None:
    aborting = UncertaintyPolicy(irreversible_tool_names=["pay"], on_missing_evidence=ABORT)
    assert judged(policy=aborting) == (NEW, ABORT)


def test_without_a_monitor_only_what_is_always_asked_for_waits() -> None:
    free, action = judged(watched=False, declared=Effect.IRREVERSIBLE)
    assert (free.cleared_by, action) == ("unmonitored", PROCEED)
    asking = UncertaintyPolicy(always_ask_tool_names=["pay"])
    asks, action = judged(watched=False, unwatched=asking)
    assert (rule_of(asks), asks.requests[0].level, action) == ("always_ask", UncertaintyLevel.MEDIUM, PAUSE)
    assert judged(watched=False, unwatched=asking, call=ToolCall(id="c", name="look"))[1] is PROCEED
    guarded, _ = judged(watched=False, unwatched=GUARDS_PAY)
    assert guarded.effect is Effect.IRREVERSIBLE


def test_a_call_that_was_rejected_in_this_run_is_settled_and_not_asked_again() -> None:
    again, action = judged(rejected={PAY.digest()}, repeated=True)
    assert (again.phase, again.text, again.is_error, action) == (CallPhase.SETTLED, REJECTED_BEFORE, True, PROCEED)
    for written in ({"to": "A", "amount": 5.0}, {"amount": 5, "to": "A"}):
        same = PAY.model_copy(update={"arguments": written})
        assert judged(same, rejected={PAY.likeness()})[0].phase is CallPhase.SETTLED
        assert judged(same, rejected={same.digest()})[0].phase is CallPhase.SETTLED  # as earlier releases stored it
    other = PAY.model_copy(update={"arguments": {"to": "B", "amount": 5}})
    assert judged(other, rejected={PAY.likeness()})[0].phase is CallPhase.CLEARED
    advised, _ = judged(rejected={PAY.likeness()}, watched=True, advisory=True)
    assert advised.phase is CallPhase.CLEARED  # the thread was one of a guard that acts; this one changes nothing


@pytest.mark.parametrize("kind", ["approve", "edit", "same", "reject", "respond"])
def test_what_a_human_rejected_is_refused_in_the_run_what_one_changed_waits_and_either_waits_in_later_runs(
    kind: str,
) -> None:
    arguments = {"edit": {"to": "B", "amount": 5}, "same": {"to": "A", "amount": 5}}.get(kind)
    given = {"arguments": arguments} if arguments else {"message": "So."}
    record = waiting()
    known = remembered([], decided(record, [says(record, "edit" if kind == "same" else kind, **given)]))
    for written in (PAY, PAY.model_copy(update={"arguments": {"amount": 5.0, "to": "A"}})):
        again, _ = judged(written, rejected=known)
        assert (again.phase is CallPhase.SETTLED) is (kind == "reject")
        assert rule_of(again) == ("rejected_in_thread" if kind == "edit" else None)
        later, _ = judged(written, before=known)
        assert rule_of(later) == ("rejected_in_thread" if kind in ("edit", "reject") else None)
        assert judged(written, rejected=known, before=known, advisory=True)[0].phase is CallPhase.CLEARED
    other = PAY.model_copy(update={"arguments": {"to": "B", "amount": 5}})
    assert judged(other, rejected=known, before=known)[0].phase is CallPhase.CLEARED


def test_where_too_many_calls_were_answered_against_to_remember_all_of_them_whatever_may_do_harm_waits() -> None:
    answers = [str(number) for number in range(300)]
    known = remembered([*answers[:200], *answers[100:]])
    assert known == answers[-256:]
    for effect in Effect:
        holds = effect not in (Effect.READ, Effect.REVERSIBLE)
        for kept in (known, known[:255]):
            full = holds and len(kept) == 256
            record, _ = judged(declared=effect, watched=False, rejected=kept[:100], before=kept)
            assert rule_of(record) == ("rejected_in_thread" if full else None)
            assert not full or "whether one of them was exactly this call is not known" in record.requests[0].reason


def test_where_nobody_can_read_what_was_answered_whatever_may_do_harm_waits() -> None:
    for effect in Effect:
        record, _ = judged(declared=effect, watched=False, before=[UNREADABLE])
        held = effect not in (Effect.READ, Effect.REVERSIBLE)
        assert rule_of(record) == ("rejected_in_thread" if held else None)
        assert not held or "exactly this call was rejected or changed is not known" in record.requests[0].reason


def test_who_approves_what_was_rejected_before_reads_why_it_waits_besides() -> None:
    record, _ = judged(before=[PAY.likeness()], doubt=STEP_PAUSES, repeated=False)
    assert (rule_of(record), record.requests[0].reason) == (
        "rejected_in_thread",
        f"the step itself pauses; {REJECTED_IN_THREAD.reason}",
    )


STEP_PAUSES = Doubt(level=UncertaintyLevel.HIGH, rule="tier", reason="the step itself pauses")


@pytest.mark.parametrize("effect", list(Effect))
def test_the_gravest_reason_to_ask_is_the_one_that_is_asked(effect: Effect) -> None:
    """A repeat, then what the monitor says of the call, then no seal, then the step's own pause, then the framework."""
    harmless = effect in (Effect.READ, Effect.REVERSIBLE)
    for watched, advisory, vouched, asks, pauses, repeated, delegates in product([True, False], repeat=7):
        if advisory and not watched:
            continue
        record, action = judged(
            terms=TERMS if vouched else UNVOUCHED_TERMS,
            advisory=advisory,
            watched=watched,
            declared=effect,
            framework_asks=asks,
            doubt=STEP_PAUSES if pauses else None,
            repeated=repeated,
            **({"delegates": True} if delegates else {}),
        )
        reasons = [
            (REPEATED.rule, repeated and not advisory),
            ("missing_evidence", watched and not advisory and effect is Effect.IRREVERSIBLE),
            (UNVOUCHED.rule, not vouched and not advisory and not delegates and not harmless),
            (STEP_PAUSES.rule, pauses),
            (FRAMEWORK, asks),
        ]
        wanted = next((rule for rule, holds in reasons if holds), None)
        assert rule_of(record) == wanted
        assert action is (PROCEED if wanted is None else PAUSE)
        assert record.phase is (CallPhase.CLEARED if wanted is None else CallPhase.WAITING)


OTHERS = replace(TERMS, rules="others")


@pytest.mark.parametrize("left_s", [60.0, 0.001, 0.0, -1.0])
@pytest.mark.parametrize("terms", [TERMS, OTHERS])
def test_a_call_whose_request_nobody_can_answer_any_more_is_asked_about_anew(left_s: float, terms: Terms) -> None:
    gate, record = at(NOW + 60.0 - left_s), asked(NEW, TERMS, OPEN, DOUBT, NOW)
    again, renewed = gate.rebound(record, terms), gate.renewed(record, terms)
    assert (again is record, renewed is record) == (terms is TERMS, terms is TERMS and left_s > 0.0)
    for new in (one for one in (again, renewed) if one is not record):
        why = "the request before it expired" if terms is TERMS else "it was asked under other rules"
        assert new.requests[0].reason == f"asked again, because {why}. Before: why"
        assert (new.requests[0].created_s, new.requests[0].rules) == (gate.now_s(), terms.rules)
    for over in (settled(record, "over"), decided(record, [says(record, "approve")])):
        assert gate.rebound(over, terms) is gate.renewed(over, terms) is over


def test_the_clock_of_a_host_counts_that_wakes_a_run_and_the_arrival_that_it_knows() -> None:
    def woken() -> None:
        HOST_NOW_S.set(9e9)
        HOST_ARRIVED.set([(no, 1.0), (yes, 2.0)])
        assert (GATE.now_s(), GATE.arrived(yes, 3.0), GATE.arrived(other, 3.0)) == (9e9, (yes, 2.0), (other, 3.0))
        HOST_NOW_S.set(0.5)
        assert GATE.now_s() > 1e9

    record = asked(NEW, TERMS, OPEN, DOUBT, NOW)
    no, yes, other = says(record, "reject"), says(record, "approve"), says(record, "edit", arguments={"to": "B"})
    contextvars.copy_context().run(woken)
    assert GATE.arrived(yes, 3.0) == (yes, 3.0)


def test_a_reason_of_both_the_step_and_the_call_is_said_once() -> None:
    (alone,) = judged(declared=Effect.IRREVERSIBLE)[0].requests
    for reason, said in ((alone.reason, alone.reason), ("other", f"other; {alone.reason}")):
        doubt = replace(STEP_PAUSES, reason=reason)
        (request,) = judged(declared=Effect.IRREVERSIBLE, doubt=doubt)[0].requests
        assert (request.reason, request.level) == (said, UncertaintyLevel.HIGH)


def test_the_clock_of_the_request_is_the_hosts_or_else_this_machines() -> None:
    async def judge() -> CallRecord:
        return (await GATE.judge(NEW, None, TERMS, framework_asks=True))[0]

    before = time.time()
    created_s = anyio.run(judge).requests[0].created_s
    assert before <= created_s <= time.time()


def test_an_effect_is_what_declarations_or_the_policy_say_now_whichever_is_graver() -> None:
    gate = Gate(effects=ToolEffects({"pay": "read", "drop": "irreversible"}))
    assert gate.effect(PAY, None, None) is Effect.READ
    assert gate.effect(PAY, None, UncertaintyPolicy()) is Effect.READ
    assert gate.effect(PAY, None, GUARDS_PAY) is Effect.IRREVERSIBLE
    assert gate.effect(ToolCall(id="c", name="drop"), Effect.READ, GUARDS_PAY) is Effect.IRREVERSIBLE
    assert gate.effect(ToolCall(id="c", name="look"), Effect.READ, GUARDS_PAY) is Effect.READ


def test_carried_state_is_believed_under_its_seal_or_where_nobody_signs() -> None:
    assert GATE.believes(False)
    signing = Gate(approvals=ApprovalPolicy(signer=_Anybody()))
    assert signing.believes(True)
    assert not signing.believes(False)


class _Anybody:
    def verifies(self, principal: str, text: bytes, signature: str) -> bool:
        return True


def test_what_others_carry_is_believed_as_it_was_sealed_and_where_it_belongs() -> None:
    signing, values = Gate(approvals=ApprovalPolicy(signer=_Anybody())), {"a": 1}
    sealed = signing.sealed("here", values)
    assert signing.authentic("here", sealed)
    for place, forged in (("there", sealed), ("here", {**sealed, "a": 2}), ("here", values)):
        assert not signing.authentic(place, forged)
    assert GATE.sealed("here", values) == values
    assert GATE.sealed("here", values) is not values
    assert GATE.authentic("here", {"a": 2})


def test_a_gate_asks_takes_up_and_recovers_by_its_own_rules_and_clock() -> None:
    gate, child = at(NOW), waiting(child_session="below")
    pairs = [
        (gate.asked(NEW, TERMS, DOUBT), asked(NEW, TERMS, OPEN, DOUBT, NOW)),
        (gate.asked_again(child, TERMS), asked_again(child, TERMS, OPEN, NOW)),
        (gate.asked_again(child, TERMS, "it changed"), asked_again(child, TERMS, OPEN, NOW, "it changed")),
        (gate.restored(child, TERMS, believed=False), restored(child, TERMS, OPEN, NOW, believed=False)),
    ]
    for stored, believed, delegates in product((NEW, child, cleared(NEW)), (True, False), (True, False)):
        given: dict[str, bool] = {"believed": believed, "delegates": delegates}
        pairs.append((gate.restored(stored, TERMS, **given), restored(stored, TERMS, OPEN, NOW, **given)))
    began = cleared(NEW, effect=Effect.READ).change(phase=CallPhase.STARTED)
    effects = Effect.READ, Effect.IRREVERSIBLE
    pairs += [(gate.recovered(began, TERMS, one), recovered(began, TERMS, OPEN, one, NOW)) for one in effects]
    on_run, purely = gate.review(TERMS, DOUBT, "llm_3"), review(TERMS, OPEN, DOUBT, "llm_3", NOW)
    pairs.append((child.change(requests=(on_run,)), child.change(requests=(purely,))))
    for ours, theirs in pairs:
        requests = [one.model_copy(update={"id": ""}) for one in theirs.requests]
        assert [one.model_copy(update={"id": ""}) for one in ours.requests] == requests
        assert ours.change(requests=()) == theirs.change(requests=())
        assert ours.cleared_here == theirs.cleared_here


def test_terms_name_the_session_and_the_digest_of_the_rules_that_hold_now() -> None:
    gate = Gate(approvals=OPEN)
    terms = gate.terms("clerk", "s", GUARDS_PAY, run_id="r", vouched=False)
    assert (terms.agent_id, terms.session_id, terms.run_id, terms.vouched) == ("clerk", "s", "r", False)
    assert gate.terms("clerk", "s", GUARDS_PAY).vouched
    assert gate.terms("clerk", "s", GUARDS_PAY).run_id == ""
    same = Gate(approvals=OPEN).terms("clerk", "s", UncertaintyPolicy(irreversible_tool_names=["pay"]))
    assert terms.rules == same.rules == gate.terms("a", "t", GUARDS_PAY).rules
    others = {gate.terms("clerk", "s", policy).rules for policy in (None, UncertaintyPolicy(), GUARDS_PAY)}
    others.add(Gate(approvals=ApprovalPolicy(required=2)).terms("clerk", "s", GUARDS_PAY).rules)
    assert len(others) == 4


def test_who_started_a_run_counts_only_where_others_decide_and_what_is_stored_counts_before_what_is_told() -> None:
    asks, names = ApprovalPolicy(others_decide=True), {"s": "ann", "t": ""}
    gate = Gate(approvals=asks, started_by=names.get)
    assert gate.terms("clerk", "s", None).started_by == "ann"
    assert gate.terms("clerk", "s", None, started_by="bob").started_by == "bob"
    assert gate.terms("clerk", "s", None, started_by="").started_by == "ann"
    for nobody in ("t", "u"):
        assert gate.terms("clerk", nobody, None).started_by is None
    assert Gate(approvals=asks).terms("clerk", "s", None).started_by is None
    assert Gate(started_by=names.get).terms("clerk", "s", None, started_by="bob").started_by is None


# -- deciding ---------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}, "amount": {"type": "number"}}, "required": ["to"]}


def test_what_does_not_wait_is_not_decided_and_the_decision_is_given_back_with_the_reason() -> None:
    record = waiting()
    approve = says(record, "approve")
    two = record.change(requests=(record.requests[0], waiting().requests[0]))
    for idle in (record.change(phase=CallPhase.CLEARED), record.change(requests=()), two, settled(record, "done")):
        assert GATE.decide(idle, TERMS, [(approve, NOW)]) == (idle, [(approve, "this call has no pending request")])


def test_a_request_under_other_rules_is_asked_anew_and_what_was_said_to_it_is_given_back() -> None:
    record = waiting()
    approve = says(record, "approve")
    other = Terms(agent_id="clerk", session_id="s", run_id="r", rules="stricter")
    again, refused = GATE.decide(record, other, [(approve, NOW)])
    assert refused == [(approve, "the request was made under other rules")]
    assert again.waiting
    assert again.requests[0].reason == "asked again, because it was asked under other rules. Before: why"
    assert again.requests[0].id != record.requests[0].id


def test_a_decision_that_holds_is_carried_out_and_none_leaves_the_record_as_it_is() -> None:
    record = waiting()
    assert GATE.decide(record, TERMS, []) == (record, [])
    done, refused = GATE.decide(record, TERMS, [(says(record, "approve"), NOW)])
    assert (done.phase, done.cleared_by, refused) == (CallPhase.CLEARED, "approve of ann", [])
    late = GATE.decide(record, TERMS, [(says(record, "approve"), NOW + 60.0)])
    assert late[0] == record
    assert "expired" in late[1][0][1]


def test_an_edit_counts_once_its_arguments_fit_the_tools_own_schema_and_can_be_stored() -> None:
    schemas: Mapping[str, Any] = {"pay": SCHEMA}
    gate = Gate(approvals=OPEN, schema_of=schemas.get)
    record = waiting()
    for arguments, why in (
        ({"to": 5}, "'to' must be string, not int"),
        ({"to": "A", "amount": float("nan")}, "a number that JSON has no word for"),
        ({"to": "x" * 2_000_000}, "the arguments exceed"),
    ):
        edit = says(record, "edit").model_copy(update={"arguments": arguments})
        held, refused = gate.decide(record, TERMS, [(edit, NOW)])
        assert held == record
        assert why in refused[0][1]
    done, _ = gate.decide(record, TERMS, [(says(record, "edit", arguments={"to": "B"}), NOW)])
    assert (done.call.arguments, done.proposed.arguments) == ({"to": "B"}, PAY.arguments)
    assert gate.decide(record, TERMS, [(says(record, "approve"), NOW)])[0].phase is CallPhase.CLEARED
    assert gate.problem(ToolCall(id="c", name="look", arguments={"to": 5})) is None
    assert Gate().problem(ToolCall(id="c", name="pay", arguments={"to": 5})) is None


@pytest.mark.parametrize(
    ("kind", "message", "text", "is_error"),
    [
        ("reject", None, "Not executed: a human rejected this call. Do not propose it again.", True),
        ("reject", "Too dear.", "rejected this call. They said: Too dear. Do not propose it again.", True),
        ("reject", "too dear\n", "rejected this call. They said: too dear. Do not propose it again.", True),
        ("reject", "Why?", "rejected this call. They said: Why? Do not propose it again.", True),
        ("reject", "No!", "rejected this call. They said: No! Do not propose it again.", True),
        ("respond", "Paid by hand.", "Paid by hand.", False),
        ("respond", None, "", False),
    ],
)
def test_a_rejection_and_an_answer_settle_the_call_in_a_humans_words(
    kind: str, message: str | None, text: str, is_error: bool
) -> None:
    record = waiting()
    decision = says(record, kind, message=message)
    done = decided(record, [decision])
    assert answer_text(decision).endswith(text)
    assert bool(text) is bool(answer_text(decision))
    assert (done.phase, done.text, done.is_error) == (CallPhase.SETTLED, answer_text(decision), is_error)
    assert (done.decisions, done.requests) == ((decision,), ())


def test_by_whose_word_a_call_runs_is_read_from_its_decisions_then_its_grant_then_the_record() -> None:
    grant = Grant(id="g1", tool="pay", principal="bob", expires_s=NOW + 1)
    record = waiting()
    both = [says(record, "approve"), record.requests[0].decide("approve", principal="bob")]
    assert authority(decided(record.change(grant=grant), both)) == "approve of ann and bob"
    assert decided(record.change(grant=grant), both).grant is None
    by_grant = granted(record, grant)
    assert (by_grant.cleared_by, authority(by_grant)) == ("grant g1 of bob", "grant g1 of bob")
    assert (by_grant.phase, by_grant.grant, by_grant.requests) == (CallPhase.CLEARED, grant, ())
    assert authority(cleared(NEW)) == "monitor"
    assert authority(cleared(NEW, "unmonitored")) == "unmonitored"


def test_a_decision_reaches_the_sessions_belief_and_its_recording_word_for_word() -> None:
    captured = Captured()
    session = unsure("clerk", captured)
    decision = says(waiting(), "approve", message="The invoice is real.")
    record_answer(session, decision, step_id="llm_1", call=PAY, acknowledges=False)
    record_answer(session, says(waiting(), "reject"), step_id=None, call=None)
    record_answer(session, decision, step_id="llm_1", call=PAY)
    without, rejected, answered = [event for event in captured.events if isinstance(event, DecisionEvent)]
    assert (without.decision, without.principal, without.message) == ("approve", "ann", "The invoice is real.")
    assert (without.step_id, without.call_id, without.call_digest) == ("llm_1", "c1", PAY.digest())
    assert (rejected.decision, rejected.step_id, rejected.call_id, rejected.message) == ("reject", None, None, None)
    levels = (without.acknowledged, rejected.acknowledged, answered.acknowledged)
    assert levels == (None, None, UncertaintyLevel.HIGH)


# -- what a request says, and what becomes of one that nobody answers -------------------------------------------------


def test_a_request_carries_the_call_whose_it_is_and_why_it_is_asked() -> None:
    request = waiting().requests[0]
    assert (request.agent_id, request.session_id, request.run_id, request.rules) == ("clerk", "s", "r", "rules")
    assert (request.step_id, request.call, request.unknown_outcome) == ("llm_1", PAY, False)
    shown = (request.level, request.rule, request.reason, request.guarantee, request.confidence)
    assert shown == (UncertaintyLevel.MEDIUM, "irreversible_override", "why", "promise", 0.7)
    assert (request.created_s, request.expires_s) == (NOW, NOW + 60.0)
    (unknown,) = asked(NEW, TERMS, OPEN, UNKNOWN_OUTCOME, NOW).requests
    assert (unknown.unknown_outcome, unknown.expires_s) == (True, None)
    on_run = review(TERMS, OPEN, DOUBT, "llm_3", NOW)
    assert (on_run.call, on_run.step_id, on_run.run_id, on_run.reason) == (None, "llm_3", "r", "why")
    assert (on_run.created_s, on_run.expires_s) == (NOW, NOW + 60.0)
    assert request_for(None, TERMS, DOUBT, NOW).step_id == ""
    of_ann = replace(TERMS, started_by="ann")
    assert [request_for(whose, of_ann, DOUBT, NOW).started_by for whose in (None, NEW)] == ["ann", "ann"]
    assert request.started_by is None


def test_asking_takes_back_all_that_was_said_before() -> None:
    record = waiting()
    grant = Grant(tool="pay", principal="ann", expires_s=NOW + 1)
    edited = decided(record, [says(record, "edit", arguments={"to": "B"})]).change(grant=grant, text="x", is_error=True)
    again = asked(edited, TERMS, OPEN, DOUBT, NOW)
    assert again.change(requests=()) == NEW.change(phase=CallPhase.WAITING)
    assert len(again.requests) == 1
    by_hand = cleared(edited)
    assert (by_hand.requests, by_hand.decisions, by_hand.grant) == ((), (), None)


def test_what_is_asked_again_keeps_what_the_first_request_said() -> None:
    again = asked_again(waiting(), TERMS, OPEN, NOW)
    for field in ("level", "rule", "reason", "guarantee", "confidence", "call", "step_id"):
        assert getattr(again.requests[0], field) == getattr(waiting().requests[0], field)
    because = asked_again(waiting(), TERMS, OPEN, NOW, "one").requests[0]
    assert (because.guarantee, because.confidence, because.level) == ("promise", 0.7, UncertaintyLevel.MEDIUM)
    assert because.reason == "asked again, because one. Before: why"
    silent = asked(NEW, TERMS, OPEN, Doubt(level=UncertaintyLevel.HIGH, rule="tier", reason=""), NOW)
    assert asked_again(silent, TERMS, OPEN, NOW, "one").requests[0].reason == "asked again, because one"
    first = asked_again(silent, TERMS, OPEN, NOW, "one")
    assert asked_again(first, TERMS, OPEN, NOW, "two").requests[0].reason == "asked again, because two. Before: one"


def test_of_a_sub_agents_requests_nothing_is_asked_again_in_the_parents_name() -> None:
    its = waiting().requests[0].model_copy(update={"child_session": "child"})
    for requests in ((), (its,)):
        for terms, why in ((TERMS, VOID), (UNVOUCHED_TERMS, UNVOUCHED)):
            again = asked_again(waiting().change(requests=requests), terms, OPEN, NOW).requests[0]
            assert (again.rule, again.reason, again.child_session) == (why.rule, why.reason, None)


@pytest.mark.parametrize("field", ["agent_id", "session_id", "run_id", "rules", "step_id", "call", "started_by"])
def test_a_request_is_bound_to_each_thing_that_it_names(field: str) -> None:
    record = waiting()
    assert bound(record.requests[0], record, TERMS)
    other = {"call": PAY.model_copy(update={"id": "c9"})}.get(field, "other")
    assert not bound(record.requests[0].model_copy(update={field: other}), record, TERMS)


def test_guidance_reaches_a_sub_agent_and_takes_every_other_waiting_call_off() -> None:
    began = waiting().change(child_session="child")
    assert guided(began, "no") is began  # a decision on the call itself is pending: it may have taken effect
    asks = tuple(request.model_copy(update={"child_session": "child"}) for request in began.requests)
    told_child = guided(began.change(requests=asks), "use the other account")
    assert (told_child.phase, told_child.cleared_by) == (CallPhase.CLEARED, "unmonitored")
    assert (told_child.guidance, told_child.requests) == ("use the other account", ())
    off = guided(waiting(), "no")
    assert (off.phase, off.text, off.is_error) == (CallPhase.SETTLED, NOT_EXECUTED, True)
    assert guided(cleared(NEW), "no").phase is CallPhase.CLEARED
    late = expired(waiting(), NOW + 60.0)
    assert (late.phase, late.text, late.is_error) == (CallPhase.SETTLED, EXPIRED, True)
    running = waiting().change(phase=CallPhase.STARTED)
    assert expired(running, NOW + 60.0) == running


# -- a stored record --------------------------------------------------------------------------------------------------


def stored(record: CallRecord) -> CallRecord:
    return CallRecord.model_validate_json(record.model_dump_json())


def test_a_believed_record_is_cleared_here_only_where_nobody_else_let_it_through() -> None:
    back = restored(stored(cleared(NEW)), TERMS, OPEN, NOW, believed=True)
    assert back.cleared_here
    grant = Grant(tool="pay", principal="ann", expires_s=NOW + 1)
    by_human = decided(waiting(), [says(waiting(), "approve")])
    for record in (by_human, granted(waiting(), grant), waiting(), NEW, settled(NEW, "done")):
        assert not restored(stored(record), TERMS, OPEN, NOW, believed=True).cleared_here
    running = restored(stored(cleared(NEW).change(phase=CallPhase.STARTED)), TERMS, OPEN, NOW, believed=True)
    assert running.cleared_here
    assert running.phase is CallPhase.STARTED


def test_of_a_record_that_is_not_believed_what_it_says_of_itself_is_dropped() -> None:
    lied = waiting().change(
        call=PAY.model_copy(update={"arguments": {"to": "M"}}), cleared_by="approve of ann", guidance="x",
        grant=Grant(tool="pay", principal="ann", expires_s=9e9), decisions=(says(waiting(), "approve"),),
    )  # fmt: skip
    back = restored(lied, TERMS, OPEN, NOW, believed=False)
    assert back == NEW.change(phase=CallPhase.WAITING, requests=lied.requests)
    started = restored(lied.change(phase=CallPhase.STARTED, child_session="x"), TERMS, OPEN, NOW, believed=False)
    assert (started.requests[0].rule, started.child_session) == (UNKNOWN_OUTCOME.rule, None)
    unasked = restored(lied.change(requests=()), TERMS, OPEN, NOW, believed=False)
    assert (unasked.requests[0].rule, unasked.requests[0].created_s) == (UNVOUCHED.rule, NOW)
    done = settled(lied, "done")
    assert (done.text, done.is_error) == ("done", False)
    over = restored(done, TERMS, OPEN, NOW, believed=False)
    assert over == done.change(decisions=(), grant=None, cleared_by=None)


def test_a_sub_agents_call_waits_on_only_where_the_host_knows_the_tool_as_one() -> None:
    its = waiting().change(child_session="child", guidance="x")
    assert restored(its, TERMS, OPEN, NOW, believed=False, delegates=True) == its.change(guidance=None)
    given: dict[str, Any]
    for record, given in ((its, {}), (its.change(phase=CallPhase.CLEARED), {"delegates": True})):
        back = restored(record, TERMS, OPEN, NOW, believed=False, **given)
        assert (back.waiting, back.child_session, back.guidance) == (True, None, None)


def test_a_dead_processes_call_runs_again_by_itself_only_where_it_reads_and_was_let_through() -> None:
    running = cleared(NEW, "unmonitored").change(phase=CallPhase.STARTED, effect=Effect.READ)
    again = recovered(running, TERMS, OPEN, Effect.READ, NOW)
    assert (again.phase, again.cleared_by, again.cleared_here) == (CallPhase.CLEARED, "unmonitored", True)
    grant = Grant(tool="pay", principal="ann", expires_s=NOW + 1)
    for record in (granted(waiting(), grant), decided(waiting(), [says(waiting(), "approve")])):
        record = record.change(effect=Effect.READ)
        by_human = recovered(stored(record.change(phase=CallPhase.STARTED)), TERMS, OPEN, Effect.READ, NOW)
        assert by_human == record
    for record, effect in ((stored(running), Effect.READ), (running, Effect.REVERSIBLE), (running, Effect.UNKNOWN)):
        back = recovered(record, TERMS, OPEN, effect, NOW)
        assert (back.requests[0].rule, back.requests[0].created_s) == (UNKNOWN_OUTCOME.rule, NOW)
    child = recovered(stored(running).change(child_session="child"), TERMS, OPEN, Effect.IRREVERSIBLE, NOW)
    assert (child.phase, child.cleared_by) == (CallPhase.CLEARED, "unmonitored")
    nameless = running.change(cleared_by=None, child_session="child")
    assert recovered(nameless, TERMS, OPEN, Effect.READ, NOW).cleared_by == "monitor"
    for record in (waiting(), cleared(NEW), NEW):
        assert recovered(record, TERMS, OPEN, Effect.READ, NOW) == record


@pytest.mark.parametrize(("began", "now"), list(product(Effect, Effect)))
def test_a_release_that_classifies_a_started_call_anew_does_not_make_it_a_read(began: Effect, now: Effect) -> None:
    grant = Grant(tool="pay", principal="ann", expires_s=NOW + 1)
    for record in (cleared(NEW), granted(waiting(), grant), decided(waiting(), [says(waiting(), "approve")])):
        started = stored(record.change(phase=CallPhase.STARTED, effect=began))
        after = recovered(restored(started, TERMS, OPEN, NOW, believed=True), TERMS, OPEN, now, NOW)
        assert (after.phase is CallPhase.CLEARED) == (began is now is Effect.READ)
        assert after.waiting == after.began_before == (after.phase is not CallPhase.CLEARED)


def test_the_idempotency_key_is_of_this_call_at_this_step_of_this_run() -> None:
    key = NEW.key("r")
    assert key == CallRecord(proposed=PAY, step_id="llm_1").key("r")
    assert len(key) == 64
    others = [
        NEW.key("q"),
        NEW.change(step_id="llm_2").key("r"),
        *(NEW.change(call=PAY.model_copy(update={name: v})).key("r") for name, v in (("id", "x"), ("name", "x"))),
        *(NEW.change(call=PAY.model_copy(update={"arguments": {"to": to}})).key("r") for to in ("A", "\ud800")),
    ]
    assert len({key, *others}) == 7


# -- running ----------------------------------------------------------------------------------------------------------


def start(gate: Gate, record: CallRecord, **given: Any) -> tuple[CallRecord, list[CallRecord]]:
    kept: list[CallRecord] = []

    async def run() -> CallRecord:
        return await at(NOW, gate).start(record, record.call, TERMS, None, None, kept.append, **given)

    return anyio.run(run), kept


def approved() -> CallRecord:
    record = waiting()
    return decided(record, [says(record, "approve")])


def test_one_approval_starts_one_call_also_where_the_state_was_put_back() -> None:
    gate, record = Gate(approvals=OPEN), approved()
    first, kept = start(gate, record)
    assert first.phase is CallPhase.STARTED
    assert kept == [first]
    second, kept = start(gate, record)
    assert (second.waiting, second.requests[0].rule) == (True, UNKNOWN_OUTCOME.rule)
    assert (second.requests[0].created_s, kept) == (NOW, [second])
    assert start(gate, approved())[0].phase is CallPhase.STARTED


def test_of_very_many_approvals_that_were_used_up_the_latest_are_remembered() -> None:
    gate = Gate()
    assert all(gate.starts.spend(str(n)) for n in range(65_537))
    assert not gate.starts.spend("1")
    assert not gate.starts.spend("65536")
    assert gate.starts.spend("0"), "the oldest is forgotten, so that memory stays bounded"


def test_a_start_that_is_cancelled_is_known_as_cut_off_and_no_other_is() -> None:
    gate, record, ended, failed = Gate(approvals=OPEN), approved(), approved(), approved()
    with pytest.raises(KeyboardInterrupt), gate.starts.once(record):
        raise KeyboardInterrupt
    assert (gate.starts.cut_off(record, ""), gate.starts.spent(record)) == (True, True)
    with gate.starts.once(ended):
        assert not gate.starts.cut_off(ended, "")
    with pytest.raises(OSError, match="no route"), gate.starts.once(failed):
        raise OSError("no route")
    for other in (ended, failed, CallRecord.new(PAY, "llm_1")):
        assert not gate.starts.cut_off(other, "")


def test_for_a_host_that_stores_nothing_a_decided_call_runs_in_one_task_until_it_fails() -> None:
    gate, record = Gate(approvals=OPEN), approved()

    async def elsewhere(seen: list[bool]) -> None:
        with gate.starts.once(record) as first:
            seen += [first, gate.starts.spent(record)]

    async def fails(seen: list[bool]) -> None:
        with gate.starts.once(record) as first, gate.starts.once(record) as nested:
            assert (first, nested, gate.starts.spent(record)) == (True, True, False)
            await anyio.wait_all_tasks_blocked()
            assert seen == [False, True]
            raise OSError("no route")

    async def run() -> None:
        seen: list[bool] = []
        async with anyio.create_task_group() as group:
            group.start_soon(elsewhere, seen)  # its context is the one of before the call started
            with pytest.raises(OSError, match="no route"):
                await fails(seen)
        assert not gate.starts.spent(record)
        with gate.starts.once(record) as again:
            assert again, "the tool failed: the framework may try again"
        assert gate.starts.spent(record)
        with gate.starts.once(record) as twice:
            assert not twice

    anyio.run(run)


def test_a_call_within_another_leaves_that_one_running() -> None:
    gate, outer, inner = Gate(approvals=OPEN), approved(), approved()
    with gate.starts.once(outer) as first, gate.starts.once(inner) as second:
        assert (first, second) == (True, True)
        assert not gate.starts.spent(outer)
        assert not gate.starts.spent(inner)


def test_a_call_of_a_permit_that_failed_may_start_again_and_so_may_that_of_another_run() -> None:
    starts, record = Gate().starts, NEW.change(phase=CallPhase.CLEARED, cleared_by="permit abc")
    with pytest.raises(OSError, match="no route"), starts.once(record, "r"):
        raise OSError("no route")
    with starts.once(record, "r") as again, starts.once(record, "other") as elsewhere:
        assert (again, elsewhere) == (True, True)


def test_a_call_that_began_in_a_sub_agent_is_not_said_to_be_rejected_before_it_ran() -> None:
    its = waiting().change(child_session="child")
    rejection = says(its, "reject")
    assert (its.began_before, waiting().began_before) == (True, False)
    assert str(decided(its, [rejection]).text).startswith("Not executed again")
    assert str(decided(waiting(), [rejection]).text).startswith("Not executed: a human rejected")


@pytest.mark.parametrize("stored", [3, None, "call", {}, {"step_id": "llm_1"}], ids=str)
def test_what_is_no_record_is_refused(stored: object) -> None:
    with pytest.raises(ValidationError, match="CallRecord"):
        CallRecord.model_validate(stored)


def test_what_nobody_decided_on_uses_no_decision_up() -> None:
    gate, record = Gate(), cleared(NEW)
    for _ in range(2):
        with gate.starts.once(record) as runs:
            assert runs
        assert not gate.starts.spent(record)


def test_what_must_not_run_after_all_is_asked_again_by_the_hosts_clock_and_kept() -> None:
    swapped = approved().change(call=PAY.model_copy(update={"arguments": {"to": "M"}}))
    back, kept = start(Gate(approvals=OPEN), swapped)
    assert kept == [back]
    assert back.requests[0].reason.startswith("asked again, because the approval is void: another call is about to run")
    assert (back.requests[0].created_s, back.requests[0].expires_s) == (NOW, NOW + 60.0)
    idle, kept = start(Gate(approvals=OPEN), waiting())
    assert idle.waiting
    assert kept == []
    closed, kept = start(Gate(approvals=OPEN, precondition=lambda call: f"{call.name} is closed"), approved())
    assert [record.phase for record in kept] == [CallPhase.STARTED, CallPhase.WAITING]
    assert "the approval is void: pay is closed" in closed.requests[0].reason
    assert closed.requests[0].created_s == NOW
    before = time.time()
    assert before <= GATE.void(approved(), TERMS, "x").requests[0].created_s <= time.time()


def test_the_check_writes_down_what_the_call_does_and_by_whose_word_it_runs_now() -> None:
    gate = Gate(approvals=OPEN, effects=ToolEffects({"pay": "irreversible"}))
    record = approved().change(cleared_by="somebody", effect=Effect.READ)
    checked = at(NOW, gate).check(record, PAY, TERMS, None, None)
    assert (checked.effect, checked.cleared_by) == (Effect.IRREVERSIBLE, "approve of ann")
    assert at(NOW, gate).check(checked, PAY, TERMS, None, None) is checked
    half = checked.change(effect=Effect.READ)
    assert at(NOW, gate).check(half, PAY, TERMS, None, None) == checked
    for declared, policy in ((None, GUARDS_PAY), (Effect.READ, GUARDS_PAY), (Effect.IRREVERSIBLE, None)):
        assert Gate(approvals=OPEN).check(approved(), PAY, TERMS, declared, policy).effect is Effect.IRREVERSIBLE


def test_a_grant_is_measured_by_the_hosts_clock_or_else_this_machines() -> None:
    record = granted(waiting(), Grant(tool="pay", principal="ann", expires_s=NOW + 1))
    assert at(NOW).check(record, PAY, TERMS, None, None).grant is not None
    with pytest.raises(ApprovalError, match="grant"):
        GATE.check(record, PAY, TERMS, None, None)


def test_an_unvouched_belief_starts_a_sub_agent_whose_own_calls_are_judged() -> None:
    record = cleared(NEW)
    given: tuple[Any, ...] = (record, PAY, UNVOUCHED_TERMS, Effect.IRREVERSIBLE, None)
    assert GATE.check(*given, any_effect=True).effect is Effect.IRREVERSIBLE
    with pytest.raises(ApprovalError, match="without a seal"):
        GATE.check(*given)


def started(
    record: CallRecord,
    declared: Effect | None,
    policy: UncertaintyPolicy | None,
    gate: Gate = GATE,
    **given: Any,
) -> CallRecord:
    async def run() -> CallRecord:
        return await gate.start(record, PAY, UNVOUCHED_TERMS, declared, policy, lambda _: None, **given)

    return anyio.run(run)


def test_an_unvouched_belief_starts_nothing_else_that_declaration_or_policy_call_irreversible() -> None:
    for declared, policy, starts in (
        (Effect.READ, None, True),
        (Effect.READ, UncertaintyPolicy(), True),
        (Effect.READ, GUARDS_PAY, False),
        (Effect.IRREVERSIBLE, None, False),
        (None, None, False),
    ):
        record = started(cleared(NEW), declared, policy)
        assert (record.phase is CallPhase.STARTED) is starts
    assert started(cleared(NEW), Effect.IRREVERSIBLE, None, any_effect=True).phase is CallPhase.STARTED


def test_a_grant_starts_its_call_by_the_hosts_clock_or_else_this_machines() -> None:
    record = granted(waiting(), Grant(tool="pay", principal="ann", expires_s=NOW + 1))
    assert started(record, Effect.READ, None, at(NOW, Gate(approvals=OPEN))).phase is CallPhase.STARTED
    assert started(record, Effect.READ, None).waiting
    spent, before = approved(), time.time()
    gate = Gate()
    start(gate, spent)

    async def again() -> CallRecord:
        return await gate.start(spent, PAY, TERMS, None, None, lambda _: None)

    assert before <= anyio.run(again).requests[0].created_s <= time.time()


def _broken(call: ToolCall) -> str:
    raise OSError(f"no connection for {call.name}")


class _UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _unreadable(call: ToolCall) -> str:
    raise _UnreadableError


async def _later(call: ToolCall) -> str:
    return f"{call.name} is closed"


def _exits(call: ToolCall) -> str | None:
    raise SystemExit(3)


async def _cancels(call: ToolCall) -> str | None:
    raise asyncio.CancelledError("its pool was closed")


@pytest.mark.parametrize(
    ("precondition", "refusal"),
    [
        (None, None),
        (lambda call: None, None),
        (lambda call: f"{call.name} is closed", "pay is closed"),
        (_later, "pay is closed"),
        (_broken, "its precondition could not be checked (OSError: no connection for pay)"),
        (_unreadable, "its precondition could not be checked (_UnreadableError: (its text cannot be read))"),
        (_exits, "its precondition could not be checked (SystemExit: 3)"),
        (_cancels, "its precondition could not be checked (CancelledError: its pool was closed)"),
    ],
)
def test_a_precondition_is_asked_of_this_call_and_one_that_fails_does_not_hold(
    precondition: Callable[..., Any] | None, refusal: str | None
) -> None:
    assert anyio.run(refusal_of, precondition, PAY) == refusal


@pytest.mark.anyio
async def test_a_run_that_is_cancelled_while_its_precondition_is_asked_ends() -> None:
    async def slow(call: ToolCall) -> str | None:
        await anyio.sleep(1.0)
        return None

    with anyio.CancelScope() as scope:
        scope.cancel()
        await refusal_of(slow, PAY)
    assert scope.cancelled_caught
