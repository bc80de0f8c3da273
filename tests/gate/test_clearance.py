"""Whatever a stored record says, only a call that somebody whose word counts let through may run."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import ApprovalError
from grampus_uq.gate.call import (
    FRAMEWORK,
    REPEATED,
    UNKNOWN_OUTCOME,
    UNVOUCHED,
    CallPhase,
    CallRecord,
    Doubt,
    Terms,
    asked,
    asked_again,
    cleared,
    decided,
    edit_note,
    expired,
    granted,
    guided,
    may_be_granted,
    settled,
)
from grampus_uq.gate.clearance import check_clearance
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.recovery import recovered, restored
from grampus_uq.gate.requests import ApprovalPolicy, ApprovalRequest
from grampus_uq.gate.schema import problem_of
from grampus_uq.gate.signatures import Ed25519Signer, PublicKeys
from grampus_uq.inbox.edit_form import edit_form
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.records.vocabulary import Effect, UncertaintyLevel

NOW = 1_000.0
ANN, EVE = Ed25519Signer.generate(), Ed25519Signer.generate()
SIGNED = ApprovalPolicy(signer=PublicKeys({"ann": ANN.public_key}))
UNSIGNED = ApprovalPolicy()
TERMS = Terms(agent_id="clerk", session_id="s", run_id="r", rules="rules")
PAY = ToolCall(id="c1", name="pay", arguments={"to": "A", "amount": 5})
GUARDED = UncertaintyPolicy(irreversible_tool_names=["pay"])
DOUBT = Doubt(level=UncertaintyLevel.MEDIUM, rule="irreversible_override", reason="why")


def waiting(call: ToolCall = PAY, *, step_id: str = "llm_1", terms: Terms = TERMS) -> CallRecord:
    return asked(CallRecord(proposed=call, step_id=step_id), terms, SIGNED, DOUBT, NOW)


def approved(record: CallRecord | None = None, kind: str = "approve", **given: Any) -> CallRecord:
    record = record or waiting()
    return decided(record, [ANN.sign(record.requests[0].decide(kind, principal="ann", **given))])


def stored(record: CallRecord) -> CallRecord:
    """Through a store: nothing that only this process knew is left."""
    return CallRecord.model_validate_json(record.model_dump_json())


def runs(record: CallRecord, call: ToolCall | None = None, **given: Any) -> bool:
    given = {"terms": TERMS, "approvals": SIGNED, "effect": Effect.IRREVERSIBLE, "now_s": NOW} | given
    try:
        check_clearance(record, call or record.call, given.pop("terms"), given.pop("approvals"), **given)
    except ApprovalError:
        return False
    return True


# -- whose word counts ------------------------------------------------------------------------------------------------


def test_a_signed_approval_lets_its_call_run_also_after_it_was_stored() -> None:
    assert runs(stored(approved()))
    edited = stored(approved(kind="edit", arguments={"to": "A", "amount": 1}))
    assert runs(edited)
    assert not runs(edited, PAY), "the proposed arguments are not those that were approved"


def test_the_monitors_clearance_is_good_only_in_the_process_that_gave_it() -> None:
    record = cleared(CallRecord(proposed=PAY, step_id="llm_1"), effect=Effect.IRREVERSIBLE)
    assert runs(record)
    assert not runs(stored(record))
    assert not runs(stored(record), approvals=UNSIGNED), "the host restores it, or it does not run"
    assert runs(restored(stored(record), TERMS, SIGNED, NOW, believed=True))


@pytest.mark.parametrize("believed", [True, False])
def test_a_clearance_that_keeps_its_request_waits_under_it_in_the_next_process(believed: bool) -> None:
    """As another look clears a call: the humans who were asked are heard there."""
    held = waiting().change(effect=Effect.IRREVERSIBLE)
    let_go = cleared(held, "chain big", requests=held.requests)
    assert runs(let_go)
    back = restored(stored(let_go), TERMS, SIGNED, NOW, believed=believed)
    assert (back.phase, back.requests, back.cleared_by) == (CallPhase.WAITING, held.requests, None)
    started = stored(let_go.change(phase=CallPhase.STARTED))
    (asked_about,) = recovered(
        restored(started, TERMS, SIGNED, NOW, believed=believed), TERMS, SIGNED, Effect.IRREVERSIBLE, NOW
    ).requests
    assert asked_about.unknown_outcome


@pytest.mark.parametrize("effect", list(Effect))
def test_a_belief_that_nobody_vouches_for_releases_only_what_is_known_to_be_harmless(effect: Effect) -> None:
    record = cleared(CallRecord(proposed=PAY, step_id="llm_1"))
    unvouched = Terms(agent_id="clerk", session_id="s", run_id="r", rules="rules", vouched=False)
    assert runs(record, terms=unvouched, effect=effect) is (effect in (Effect.READ, Effect.REVERSIBLE))


def test_a_clearance_of_this_process_goes_once_the_call_is_no_more_cleared() -> None:
    record = cleared(CallRecord(proposed=PAY, step_id="llm_1"))
    assert not runs(record.change(phase=CallPhase.WAITING).change(phase=CallPhase.CLEARED))
    assert not runs(record.change(step_id="llm_2"))


def test_a_request_on_something_else_is_replaced_when_the_state_is_not_believed() -> None:
    foreign = waiting().change(requests=waiting(PAY.model_copy(update={"id": "c7"})).requests)
    after = restored(foreign, TERMS, SIGNED, NOW, believed=False)
    assert [request.call for request in after.requests] == [PAY]
    assert restored(waiting(), TERMS, SIGNED, NOW, believed=False).waiting


@pytest.mark.parametrize(
    "changed",
    [
        PAY.model_copy(update={"arguments": {"to": "B", "amount": 5}}),
        PAY.model_copy(update={"arguments": {"to": "A", "amount": 5.0}}),
        PAY.model_copy(update={"arguments": {"to": "A", "amount": True}}),
        PAY.model_copy(update={"name": "refund"}),
        PAY.model_copy(update={"id": "c2"}),
    ],
    ids=str,
)
def test_whoever_let_it_through_another_call_does_not_run_on_it(changed: ToolCall) -> None:
    grant = ANN.sign(Grant(tool="pay", principal="ann", expires_s=NOW + 1))
    new = CallRecord(proposed=PAY, step_id="llm_1")
    for record in (approved(), cleared(new, effect=Effect.IRREVERSIBLE), granted(waiting(), grant)):
        assert runs(record)
        assert not runs(record, changed)
        assert not runs(record.change(call=changed))
    assert not runs(approved().change(call=changed, proposed=changed), changed)


SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, 2.0]) | st.text("a1é", max_size=2)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner), max_leaves=4
)


@given(VALUES, VALUES)
@example([1], [1.0])
@example({"a": True}, {"a": 1})
@example(0.0, -0.0)
def test_two_calls_are_equal_just_when_they_are_signed_alike(one: Any, other: Any) -> None:
    calls = [PAY.model_copy(update={"arguments": {"x": value}}) for value in (one, other)]
    assert (calls[0] == calls[1]) is (calls[0].digest() == calls[1].digest())
    assert calls[0] != calls[1] or hash(calls[0]) == hash(calls[1])
    record = waiting(calls[0])
    decision = ANN.sign(record.requests[0].decide("approve", principal="ann"))
    forged = decided(record, [decision]).change(proposed=calls[1], call=calls[1])
    assert runs(forged, calls[1]) is (calls[0] == calls[1])


def test_decisions_count_on_the_one_request_of_their_call_and_a_refusal_says_what_is_wrong() -> None:
    record = approved()
    for requests in ((), (record.requests[0], waiting().requests[0]), (waiting().requests[0], record.requests[0])):
        assert not runs(record.change(requests=requests))
    free = cleared(CallRecord(proposed=PAY, step_id="llm_1"))
    for written, call, why in (
        (free, CALLS[1], "another call is about to run"),
        (stored(free), PAY, "nobody with authority"),
    ):
        with pytest.raises(ApprovalError, match=why):
            check_clearance(written, call, TERMS, SIGNED, effect=Effect.READ, now_s=NOW)


@given(
    st.sampled_from(
        ["new", "waiting", "cleared", "irreversible", "stored", "granted", "approved", "edited", "started"]
    ),
    st.sampled_from(
        [PAY, PAY.model_copy(update={"name": "refund"}), PAY.model_copy(update={"arguments": {"to": "A", "amount": 1}})]
    ),
    st.booleans(),
    st.sampled_from(list(Effect)),
    st.sampled_from([NOW, NOW + 2]),
    st.sampled_from([None, GUARDED]),
)
@example("cleared", PAY, False, Effect.READ, NOW, None)
@example("cleared", PAY, False, Effect.READ, NOW, GUARDED)
@example("irreversible", PAY, False, Effect.IRREVERSIBLE, NOW, None)
def test_a_host_that_keeps_no_record_is_told_what_the_check_says(
    life: str, call: ToolCall, vouched: bool, effect: Effect, now_s: float, policy: UncertaintyPolicy | None
) -> None:
    terms = replace(TERMS, vouched=vouched)
    grant = ANN.sign(Grant(tool="pay", principal="ann", expires_s=NOW + 1))
    new = CallRecord.new(PAY, "llm_1")
    record = {
        "new": new,
        "waiting": waiting(),
        "cleared": cleared(new),
        "irreversible": cleared(new, effect=Effect.IRREVERSIBLE),
        "stored": stored(cleared(new)),
        "granted": granted(waiting(), grant),
        "approved": approved(),
        "edited": approved(kind="edit", arguments={"to": "A", "amount": 1}),
        "started": cleared(new).change(phase=CallPhase.STARTED),
    }[life]
    gate = Gate(approvals=SIGNED, effects=ToolEffects({"pay": effect, "refund": effect}), clock=lambda: now_s)
    try:
        gate.check(record, call, terms, None, policy)
    except ApprovalError:
        assert not gate.allows(record, call, terms, policy)
    else:
        assert gate.allows(record, call, terms, policy)


@pytest.mark.parametrize(("starter", "clears"), [("ann", False), ("bob", True), (None, False)])
def test_where_others_decide_a_grant_clears_no_call_of_a_run_that_its_giver_started(
    starter: str | None, clears: bool
) -> None:
    record = granted(waiting(), ANN.sign(Grant(tool="pay", principal="ann", expires_s=NOW + 1)))
    others = ApprovalPolicy(signer=PublicKeys({"ann": ANN.public_key}), others_decide=True)
    assert runs(record, terms=replace(TERMS, started_by=starter), approvals=others) == clears


@pytest.mark.parametrize(("judged", "now"), list(product(Effect, Effect)))
def test_the_monitors_clearance_of_a_call_does_not_count_once_its_tool_is_graver_than_it_was_judged(
    judged: Effect, now: Effect
) -> None:
    """Another release says what the tool does, or a server's hints changed; a human's word is on the call itself."""
    gate = Gate(approvals=SIGNED, effects=ToolEffects({"pay": now}), clock=lambda: NOW)
    record = cleared(CallRecord.new(PAY, "llm_1"), effect=judged)
    runs_now = now in {Effect.READ, Effect.REVERSIBLE, judged} or judged is Effect.IRREVERSIBLE
    assert gate.allows(record, PAY, TERMS, None) == runs_now
    assert gate.allows(approved().change(effect=judged), PAY, TERMS, None)
    assert gate.check(record, PAY, TERMS, None, None, any_effect=True).effect is now

    async def start() -> CallRecord:
        return await gate.start(record, PAY, TERMS, None, None, lambda _: None)

    assert anyio.run(start).phase is (CallPhase.STARTED if runs_now else CallPhase.WAITING)


@pytest.mark.parametrize("by", ["monitor", "permit abc", "grant", "approve"])
def test_only_a_human_lets_a_call_run_of_which_the_policy_always_asks_by_now(by: str) -> None:
    """A later release may say so of a call that was let through before it, and has not run."""
    gate, policy = Gate(approvals=SIGNED, clock=lambda: NOW), UncertaintyPolicy(always_ask_tool_names=["pay"])
    grant = ANN.sign(Grant(tool="pay", principal="ann", expires_s=NOW + 1))
    other = {"grant": granted(waiting(), grant), "approve": approved()}
    record = other.get(by) or cleared(CallRecord.new(PAY, "llm_1"), by, effect=Effect.IRREVERSIBLE)
    assert gate.allows(record, PAY, TERMS, None)
    assert gate.allows(record, PAY, TERMS, policy) is (by == "approve")
    after = anyio.run(partial(gate.start, record, PAY, TERMS, None, policy, lambda _: None))
    assert after.phase is (CallPhase.STARTED if by == "approve" else CallPhase.WAITING)
    assert gate.check(record, PAY, TERMS, None, policy, any_effect=True), "a sub-agent's own calls are judged"
    began = record.change(phase=CallPhase.STARTED, child_session="c")
    goes_on = recovered(began, TERMS, SIGNED, Effect.IRREVERSIBLE, NOW)
    assert gate.allows(goes_on, PAY, TERMS, policy) is (by == "approve")


@pytest.mark.parametrize("odd", [object(), float("nan"), {1}])
def test_arguments_that_are_no_json_are_allowed_nowhere(odd: Any) -> None:
    call = PAY.model_copy(update={"arguments": {"to": odd}})
    assert not Gate().allows(cleared(CallRecord.new(PAY, "llm_1")), call, TERMS, None)


def test_a_clearance_of_this_process_ends_where_the_call_waits_again_or_has_its_result() -> None:
    """Whatever takes the record back to cleared: only a clearance of its own lets the call run."""
    record = cleared(CallRecord.new(PAY, "llm_1"), effect=Effect.IRREVERSIBLE)
    assert runs(record.change(text="x"))
    for after in (asked(record, TERMS, SIGNED, DOUBT, NOW), settled(record, "done")):
        assert not after.cleared_here
        again = after.change(phase=CallPhase.CLEARED)
        assert not runs(again)
        assert runs(cleared(again))


def test_a_record_that_is_built_or_changed_quickly_is_the_one_that_pydantic_builds() -> None:
    new, plain = CallRecord.new(PAY, "llm_1"), CallRecord(proposed=PAY, call=PAY, step_id="llm_1")
    for quick, slow in (
        (new, plain),
        (cleared(new), cleared(plain)),
        (cleared(new).change(text="x"), cleared(plain).model_copy(update={"text": "x"})),
    ):
        assert quick == slow
        assert (quick.model_fields_set, quick.cleared_here) == (slow.model_fields_set, slow.cleared_here)
        assert quick.model_dump_json() == slow.model_dump_json()
    assert set(vars(new)) == set(CallRecord.model_fields)
    with pytest.raises(ValidationError):
        new.text = "x"  # type: ignore[misc]
    assert new.change(phase=CallPhase.WAITING).model_fields_set == {"proposed", "call", "step_id", "phase"}
    assert new.model_fields_set == {"proposed", "call", "step_id"}


def test_a_call_runs_once() -> None:
    record = approved().change(phase=CallPhase.STARTED)
    assert record.phase is CallPhase.STARTED
    assert not runs(record)
    assert not runs(settled(record, "done"))


def test_a_grant_is_checked_again_when_the_call_runs() -> None:
    good = Grant(tool="pay", limits={"amount": {"max": 5}}, principal="ann", expires_s=NOW + 1)
    assert runs(stored(granted(waiting(), ANN.sign(good))))
    for bad in (good, EVE.sign(good), ANN.sign(good).model_copy(update={"limits": {}})):
        assert not runs(granted(waiting(), bad))
    for scope in (
        {"expires_s": NOW},
        {"tool": "refund"},
        {"agent_id": "s"},
        {"session_id": "clerk"},
        {"limits": {"amount": {"max": 4}}},
    ):
        assert not runs(granted(waiting(), ANN.sign(good.model_copy(update=scope))))
    for scope in ({"agent_id": "clerk"}, {"session_id": "s"}, {"agent_id": "clerk", "session_id": "s"}):
        assert runs(granted(waiting(), ANN.sign(good.model_copy(update=scope))))


def test_a_decision_under_rules_that_hold_no_more_is_asked_again() -> None:
    other = Terms(agent_id="clerk", session_id="s", run_id="r", rules="stricter")
    assert not runs(approved(), terms=other)
    record, refused = Gate(approvals=SIGNED).decide(waiting(), other, [])
    assert record.waiting
    assert record.requests[0].rules == "stricter"
    assert refused == []


# -- what an attacker may write ---------------------------------------------------------------------------------------

CALLS = [PAY, ToolCall(id="c1", name="pay", arguments={"to": "M", "amount": 99_999}), ToolCall(id="c9", name="refund")]
_else_waits = waiting(step_id="llm_0")
_else_terms = Terms(agent_id="clerk", session_id="t", run_id="r", rules="rules")
_else_session = waiting(terms=_else_terms)
PARTS: dict[str, list[Any]] = {
    "phase": list(CallPhase),
    "effect": list(Effect),
    "cleared_by": [None, "monitor", "approve of ann", "grant g of ann"],
    "call": [call.model_dump(mode="json") for call in CALLS],
    "proposed": [call.model_dump(mode="json") for call in CALLS],
    "step_id": ["llm_0", "llm_1", "llm_2"],
    "child_session": [None, "x"],
    "text": [None, "paid"],
    "grant": [
        None,
        Grant(tool="pay", principal="ann", expires_s=9e9).model_dump(mode="json"),
        EVE.sign(Grant(tool="pay", principal="ann", expires_s=9e9)).model_dump(mode="json"),
    ],
    "requests": [
        [],
        *([r.requests[0].model_dump(mode="json")] for r in (_else_waits, _else_session)),
        [_else_waits.requests[0].model_copy(update={"call": CALLS[1]}).model_dump(mode="json")],
    ],
    "decisions": [
        [],
        *([d.model_dump(mode="json") for d in approved(r).decisions] for r in (_else_waits, _else_session)),
        [d.model_dump(mode="json") for d in approved(_else_waits, "reject").decisions],
        [EVE.sign(_else_waits.requests[0].decide("approve", principal="ann")).model_dump(mode="json")],
        [_else_waits.requests[0].decide("approve", principal="ann").model_dump(mode="json")],
    ],
}


@st.composite
def forged(draw: st.DrawFn) -> CallRecord:
    """A record that nobody signed anything of, or somebody signed an approval of another call of, written anew."""
    record = draw(
        st.sampled_from([waiting(), cleared(CallRecord(proposed=PAY, step_id="llm_1")), approved(_else_waits)])
    )
    values = copy.deepcopy(json.loads(record.model_dump_json()))
    for field in draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=5, unique=True)):
        values[field] = draw(st.sampled_from(PARTS[field]))
    return CallRecord.model_validate(values)


def really_approved(record: CallRecord) -> bool:
    """Ann did approve this one call at this one step of this session: that it runs is right."""
    return record.step_id == "llm_0" and record.call == PAY and record.proposed == PAY


@given(forged(), st.sampled_from(list(CallPhase)))
def test_no_forged_record_gets_a_call_past_the_check(record: CallRecord, phase: CallPhase) -> None:
    record = record.change(phase=phase)
    for written in (record, restored(record, TERMS, SIGNED, NOW, believed=False)):
        if runs(written):
            assert really_approved(written)


@given(forged())
def test_of_a_state_that_is_not_believed_every_open_call_waits(record: CallRecord) -> None:
    """Its decisions are heard again, by whoever knows when they came and what voided them."""
    after = restored(record, TERMS, SIGNED, NOW, believed=False)
    assert after.phase in (CallPhase.WAITING, CallPhase.SETTLED)
    assert after.waiting or after.phase is record.phase
    assert (after.decisions, after.grant, after.cleared_by) == ((), None, None), "what nobody checked is not passed on"
    again = recovered(after, TERMS, SIGNED, Effect.READ, NOW)
    assert not runs(again, effect=Effect.READ) or really_approved(again)


@given(VALUES, VALUES)
def test_a_call_of_unknown_outcome_that_a_human_changed_says_what_was_started(proposed: Any, edited: Any) -> None:
    """It is asked about as it was proposed: approving that must not read as running the started one again."""
    record = approved(
        waiting(PAY.model_copy(update={"arguments": {"a": proposed}})), "edit", arguments={"a": edited}
    ).change(phase=CallPhase.STARTED)
    (request,) = recovered(record, TERMS, SIGNED, Effect.IRREVERSIBLE, NOW).requests
    assert request.unknown_outcome
    assert request.call == record.proposed
    changed = canonical_json({"a": edited}) != canonical_json({"a": proposed})
    assert ("as it was proposed" in request.reason) == changed
    assert ("again" in request.reason) != changed
    assert not changed or request.reason.endswith(f": {canonical_json({'a': edited})}")


@pytest.mark.parametrize(("more", "end"), [(0, 'x"}'), (1, 'x"…(+1 characters)'), (9, "x…(+9 characters)")])
def test_of_long_arguments_that_were_started_the_beginning_is_said_and_how_much_is_left_out(
    more: int, end: str
) -> None:
    edited = {"a": "x" * (2_000 - len('{"a":""}') + more)}
    record = approved(waiting(), "edit", arguments=edited).change(phase=CallPhase.STARTED)
    (request,) = recovered(record, TERMS, SIGNED, Effect.IRREVERSIBLE, NOW).requests
    assert request.reason.endswith(f"xx{end}")


def test_the_check_is_what_stops_the_forged_record() -> None:
    """Sabotage: a gate that believes the phase, as the code before this one did, runs it."""

    class Believing(Gate):
        def check(self, record: CallRecord, *given: Any, **more: Any) -> CallRecord:
            if record.phase is not CallPhase.CLEARED:
                raise ApprovalError("not cleared")
            return record

    swapped = stored(approved()).change(call=CALLS[1])

    async def start(gate: Gate) -> CallPhase:
        record = await gate.start(swapped, swapped.call, TERMS, Effect.IRREVERSIBLE, None, lambda _: None)
        return record.phase

    assert anyio.run(start, Gate(approvals=SIGNED)) is CallPhase.WAITING
    assert anyio.run(start, Believing(approvals=SIGNED)) is CallPhase.STARTED


# -- the life of a call -----------------------------------------------------------------------------------------------


LIFTED = ["irreversible_override", "tier"]
NEVER_LIFTED = ["missing_evidence", "call_evidence", "worst_so_far", "always_ask", "release", "detector"]


@pytest.mark.parametrize("level", list(UncertaintyLevel))
@pytest.mark.parametrize("rule", [*LIFTED, *NEVER_LIFTED, FRAMEWORK, REPEATED.rule])
def test_a_grant_lifts_what_the_tool_asks_for_and_never_doubt_about_the_run(level: UncertaintyLevel, rule: str) -> None:
    record = asked(
        CallRecord(proposed=PAY, step_id="llm_1"), TERMS, SIGNED, Doubt(level=level, rule=rule, reason=""), NOW
    )
    mild = level in (UncertaintyLevel.LOW, UncertaintyLevel.MEDIUM)
    assert may_be_granted(record, TERMS) is (mild and rule in LIFTED)
    outside = replace(TERMS, vouched=False)
    assert not may_be_granted(record, outside)  # whether the run is in doubt is not known
    grant = ANN.sign(Grant(tool="pay", principal="ann", expires_s=NOW + 1))
    assert not runs(granted(record, grant), terms=outside)
    assert runs(granted(record, grant), terms=outside, effect=Effect.READ)


@pytest.mark.parametrize("doubt", [UNKNOWN_OUTCOME, UNVOUCHED, REPEATED])
def test_no_grant_answers_what_is_asked_about_one_call(doubt: Doubt) -> None:
    assert not may_be_granted(asked(CallRecord(proposed=PAY, step_id="llm_1"), TERMS, SIGNED, doubt, NOW), TERMS)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("by", ["decision", "grant"])
async def test_of_two_tasks_that_start_one_approved_call_only_one_does_while_its_precondition_is_asked(
    anyio_backend: str, by: str
) -> None:
    asking = anyio.Event()

    async def holds(call: ToolCall) -> None:
        asking.set()
        await anyio.sleep(0.01)

    gate = Gate(approvals=SIGNED, precondition=holds)
    grant = ANN.sign(Grant(tool="pay", principal="ann", expires_s=NOW + 9e9))
    kept = {"c1": approved() if by == "decision" else granted(waiting(), grant)}
    seen: list[CallPhase] = []

    async def start() -> None:
        mine = kept["c1"].phase is CallPhase.CLEARED
        record = await gate.start(kept["c1"], PAY, TERMS, None, None, lambda new: kept.update(c1=new))
        if mine and record.phase is CallPhase.STARTED:
            seen.append(record.phase)

    async def second() -> None:
        await asking.wait()
        await start()

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        group.start_soon(second)
    assert seen == [CallPhase.STARTED]
    assert kept["c1"].phase is CallPhase.STARTED


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_precondition_that_fails_voids_the_approval_for_good(anyio_backend: str) -> None:
    gate = Gate(approvals=SIGNED, precondition=lambda call: "the account is closed")
    record = approved()
    after = await gate.start(record, PAY, TERMS, None, None, lambda _: None)
    assert after.waiting
    assert "the account is closed" in after.requests[0].reason
    assert after.requests[0].id != record.requests[0].id
    assert not runs(decided(after, record.decisions)), "the old approval does not answer the new request"


@given(st.lists(st.text(alphabet="ab.: ", max_size=3).map(lambda s: f"x{s}. Before: {s}y"), min_size=1, max_size=4))
def test_a_request_that_is_asked_again_keeps_its_first_reason_and_the_last_whatever_both_say(whys: list[str]) -> None:
    """A tool's own words are in a reason: they must not cut off what stands before them."""
    first = "asked about. Before: nothing changed. Before: really"
    record = asked(CallRecord(proposed=PAY, step_id="llm_1"), TERMS, SIGNED, replace(UNVOUCHED, reason=first), NOW)
    for why in whys:
        record = asked_again(record, TERMS, SIGNED, NOW, why)
    last = whys[-1].replace(". Before: ", ". before: ")
    assert record.requests[0].reason == f"asked again, because {last}. Before: {first}"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_decisions_start_a_call_once_and_once_more_only_where_they_are_given_back(anyio_backend: str) -> None:
    gate, record, kept = Gate(approvals=SIGNED), approved(), list[CallRecord]()

    async def starts() -> bool:
        after = await gate.start(record, PAY, TERMS, None, None, kept.append)
        return after.phase is CallPhase.STARTED

    assert [await starts(), await starts()] == [True, False]
    assert kept[-1].requests[0].rule == UNKNOWN_OUTCOME.rule
    gate.starts.give_back(record, TERMS.run_id)
    gate.starts.give_back(
        cleared(CallRecord(proposed=PAY, step_id="llm_1")), TERMS.run_id
    )  # nobody decided on that one
    assert [await starts(), await starts()] == [True, False]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("by", ["permit abc", "chain second"])
async def test_what_a_permit_or_another_look_let_through_waits_where_its_precondition_fails(
    by: str, anyio_backend: str
) -> None:
    gate, kept = Gate(approvals=SIGNED, precondition=lambda call: f"{call.name} is closed"), list[CallRecord]()
    record = cleared(CallRecord(proposed=PAY, step_id="llm_1"), by)
    assert (await gate.start(record, PAY, TERMS, None, None, kept.append)).waiting
    assert "pay is closed" in kept[-1].requests[0].reason


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_nobody_decided_on_asks_no_precondition(anyio_backend: str) -> None:
    asked_of: list[ToolCall] = []
    gate = Gate(approvals=SIGNED, precondition=lambda call: asked_of.append(call))
    record = cleared(CallRecord(proposed=PAY, step_id="llm_1"))
    assert (await gate.start(record, PAY, TERMS, None, None, lambda _: None)).phase is CallPhase.STARTED
    assert asked_of == []


def test_what_a_dead_process_left_started_is_asked_about_unless_it_only_reads() -> None:
    started = cleared(CallRecord(proposed=PAY, step_id="llm_1"), effect=Effect.READ).change(phase=CallPhase.STARTED)
    back = restored(stored(started), TERMS, UNSIGNED, NOW, believed=True)
    assert recovered(back, TERMS, UNSIGNED, Effect.READ, NOW).phase is CallPhase.CLEARED
    for effect in (Effect.REVERSIBLE, Effect.UNKNOWN, Effect.IRREVERSIBLE):
        (request,) = recovered(back, TERMS, UNSIGNED, effect, NOW).requests
        assert request.unknown_outcome


@given(forged(), st.booleans(), st.sampled_from(list(CallPhase)), st.sampled_from(["rules", "other rules"]))
def test_that_a_call_may_have_run_is_known_however_little_of_its_state_is_believed(
    record: CallRecord, began: bool, phase: CallPhase, rules: str
) -> None:
    asks = tuple(request.model_copy(update={"unknown_outcome": began}) for request in record.requests)
    after = restored(
        record.change(phase=phase, requests=asks), replace(TERMS, rules=rules), SIGNED, NOW, believed=False
    )
    may_have_run = phase is CallPhase.STARTED or (began and bool(asks))
    assert after.began_before == may_have_run or phase is CallPhase.SETTLED


def test_guidance_expiry_and_asking_again_never_clear_a_call() -> None:
    record = waiting().change(requests=(waiting().requests[0].model_copy(update={"expires_s": NOW + 1}),))
    assert expired(record, NOW) == record
    assert expired(record, NOW + 1).phase is CallPhase.SETTLED
    assert guided(record, "use the other account").phase is CallPhase.SETTLED
    unknown = asked(record, TERMS, SIGNED, UNKNOWN_OUTCOME, NOW)
    assert guided(unknown, "x") == unknown == expired(unknown, 9e9)
    again = asked_again(asked_again(record, TERMS, SIGNED, NOW, "one"), TERMS, SIGNED, NOW, "two")
    assert again.requests[0].reason == "asked again, because two. Before: why"


def test_the_note_of_an_edit_says_what_ran() -> None:
    assert edit_note(approved()) is None
    edited = approved(kind="edit", arguments={"amount": 1, "to": "A"})
    assert edit_note(edited) == 'A human changed the arguments of pay to {"amount":1,"to":"A"}.'


def test_a_record_of_the_first_format_is_read() -> None:
    """As bd89b0b wrote it: `requests` a list, no decisions."""
    values = json.loads(waiting().model_dump_json(include={"proposed", "call", "step_id", "effect", "phase"}))
    assert CallRecord.model_validate({**values, "requests": [], "cleared_by": None, "guidance": None}).proposed == PAY
    old = {k: v for k, v in json.loads(waiting().requests[0].model_dump_json()).items() if k not in ("rules", "run_id")}
    assert ApprovalRequest.model_validate(old).rules == ""


# -- a human's arguments ----------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string"},
        "amount": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
        "currency": {"enum": ["EUR", "USD"]},
    },
    "required": ["to"],
    "$defs": {"Line": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}},
}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"to": "A"}, None),
        ({"to": "A", "amount": None, "lines": [{"n": 1.5}], "currency": "EUR"}, None),
        ({}, "'to' is missing"),
        ({"to": 5}, "'to' must be string, not int"),
        ({"to": "A", "amount": "7"}, "'amount' must be integer, not str"),
        ({"to": "A", "amount": True}, "'amount' must be integer, not bool"),
        ({"to": "A", "amonut": 7}, "there is no argument 'amonut'"),
        ({"to": "A", "lines": [{"n": 1}, {"n": "1"}]}, "'lines[1].n' must be number, not str"),
        ({"to": "A", "lines": [{"n": 1, "m": 2}]}, "there is no argument 'lines[0].m'"),
        ({"to": "A", "currency": "EURO"}, "'currency' must be one of ['EUR', 'USD']"),
    ],
    ids=str,
)
def test_edited_arguments_are_held_against_the_tools_schema(arguments: dict[str, Any], problem: str | None) -> None:
    assert problem_of(arguments, SCHEMA) == problem


def test_a_schema_that_refers_to_itself_refuses_nothing_and_ends() -> None:
    assert problem_of({"a": 1}, {"$ref": "#"}) is None
    assert problem_of({"a": 1}, {"$ref": "#/nowhere"}) is None


class _Looked(dict[str, Any]):
    """A schema that may be looked at a million times."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        type(self).looks += 1
        assert type(self).looks < 1_000_000
        return super().get(key, default)


_FORK = {"anyOf": [_Looked({"$ref": "#/$defs/fork"})] * 5}
_CHAIN = {f"d{n}": _Looked({"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2}) for n in range(31)}


@pytest.mark.parametrize(
    ("rule", "definitions", "value"),
    [
        ({"$ref": "#/$defs/fork"}, {"fork": _Looked({**_FORK, "type": "integer"})}, "x"),
        ({"items": {"$ref": "#/$defs/fork"}, "type": "array"}, {"fork": _Looked(_FORK)}, ["x"]),
        ({"$ref": "#/$defs/d0"}, {**_CHAIN, "d31": {"type": "integer"}}, "x"),
    ],
    ids=["itself", "in a list", "a chain"],
)
def test_a_schema_whose_references_multiply_ends_in_little_time(rule: Any, definitions: Any, value: Any) -> None:
    _Looked.looks = 0
    schema = {"properties": {"a": rule}, "$defs": definitions}
    assert problem_of({"a": value}, schema) is None
    assert edit_form({"a": value}, schema) is not None  # a card has it
