"""The pure step: what readings make of a state, what missing ones leave, which rule stops, what an answer covers."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import (
    Effect,
    MissingReason,
    Profile,
    Reading,
    SessionState,
    Step,
    StepUncertainty,
    ToolCall,
    UncertaintyAction,
    UncertaintyEstimator,
    UncertaintyLevel,
    UncertaintyPolicy,
    UncertaintySource,
    advance,
)
from grampus_uq.core.engine import judge_call
from grampus_uq.core.policy import UncertaintyPolicy as Policy
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import acknowledge, state_to_json, state_to_values
from grampus_uq.core.turn_evidence import TurnEvidence
from grampus_uq.records.events import TrajectoryReading
from grampus_uq.stats.trajectory_risk import StepComponents

Action, Level, Source = UncertaintyAction, UncertaintyLevel, UncertaintySource
START = SessionState(session_id="s")
UNBIASED = UncertaintyEstimator(verbalized_calibration_bias=0.0, p_true_calibration_bias=0.0)
PLAIN = Profile(estimator=UNBIASED)
IRREVERSIBLE = Profile(estimator=UNBIASED, policy=Policy(irreversible_tool_names=["send"]))
unit = st.floats(0.0, 1.0)

sources = st.sampled_from(["verbalized", "p_true", "token_probability", "token_entropy", "semantic_entropy", "mine"])
spent = {"calls": st.integers(0, 3), "input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9)}
readings = st.lists(
    st.builds(Reading, source=sources, value=unit, samples=st.integers(0, 5), **spent)
    | st.builds(
        Reading,
        source=sources,
        value=st.none(),
        reason=st.sampled_from(MissingReason),
        cost_usd=st.none() | st.just(0.5),
        **spent,
    ),
    max_size=6,
)
effects = st.none() | st.sampled_from(Effect)
calls = st.builds(ToolCall, name=st.sampled_from(["search", "send_email"]), arguments=st.just({"to": "Alice"}))
steps = st.builds(
    Step,
    step_id=st.text(max_size=5),
    kind=st.sampled_from(["llm_call", "tool_call", "decision", "memory_read", "plan"]),
    time_s=st.floats(0.0, 4e9),
    tool_calls=st.lists(calls, max_size=1).map(tuple),
    effect=effects,
    input_tokens=st.integers(0, 9),
    output_tokens=st.integers(0, 9),
)
profiles = st.builds(
    Profile,
    policy=st.builds(
        Policy,
        irreversible_tool_names=st.just(["send"]) | st.just([]),
        always_ask_tool_names=st.just([]) | st.just(["search"]),
        on_missing_evidence=st.sampled_from(Action),
        worst_so_far_floor=st.none() | unit,
        inject_reflection_on_high=st.booleans(),
    ),
    estimator=st.builds(UncertaintyEstimator, extra_weights=st.just({}) | st.just({"mine": 1.0})),
    advisory=st.booleans(),
)


def model(value, *, state=START, profile=PLAIN, **given):
    """A step of the model with one reading, or none."""
    found = [] if value is None else [Reading(source="p_true", value=value)]
    return advance(profile, state, Step(step_id="m", kind="llm_call", time_s=0.0, **given), found)


def tool(state, name="send_email", *, profile=IRREVERSIBLE, effect=None):
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(ToolCall(name=name),), effect=effect)
    return advance(profile, state, step, ())[1]


def believing(confidence, **given):
    """A state after a model's step that left this belief."""
    level = PLAIN.policy.classify(confidence)
    known = {"has_reading": True, "turn_read": True, "worst": confidence, "cumulative": confidence, "level": level}
    known |= given
    return SessionState(session_id="s", n_steps=1, turns=(TurnEvidence(read=known["turn_read"]),), **known)


# -- laws over any run --


@given(profiles, st.lists(st.tuples(steps, readings, st.booleans()), max_size=8))
def test_what_is_built_without_checks_equals_what_validation_builds_and_survives_json(profile, run):
    state = START
    for step, found, answered in run:
        state, assessment = advance(profile, state, step, found)
        validated = StepUncertainty.model_validate(assessment.model_dump())
        assert validated == assessment
        assert validated.model_fields_set == assessment.model_fields_set
        assert StepUncertainty.model_validate_json(assessment.model_dump_json()) == assessment
        assert repr(validated) == repr(assessment)
        assert copy.deepcopy(assessment) == assessment.model_copy() == assessment
        for name in StepUncertainty.model_fields:
            assert type(getattr(validated, name)) is type(getattr(assessment, name)), name
        if answered:
            state = acknowledge(state, state.level)


def test_a_changed_copy_leaves_the_fields_that_all_assessments_share_alone():
    model(0.5)[1].model_copy(update={"step_id": "other"}).model_fields_set.clear()
    assert model(0.5)[1].model_fields_set == set(StepUncertainty.model_fields)


@given(profiles, st.lists(st.tuples(steps, readings), min_size=1, max_size=8))
def test_every_number_stays_in_its_range_and_the_inputs_stay_as_they_were(profile, run):
    state = START
    for n, (step, found) in enumerate(run):
        before, given = copy.deepcopy(state), list(found)
        after, assessment = advance(profile, state, step, found)
        assert (state, found) == (before, given)
        assert assessment.index == n == state.n_steps
        for value in (assessment.fused_confidence, assessment.propagated_confidence, after.cumulative):
            assert 0.0 <= value <= 1.0
        assert after.n_steps == n + 1
        assert after.n_high - state.n_high == (after.level in {Level.HIGH, Level.CRITICAL})
        assert assessment.level.severity >= after.level.severity, "a call's may leave the model's own word out"
        assert after.has_reading or assessment.level is not Level.LOW
        asked = [reading for reading in found if reading.calls]
        assert after.monitor_calls - state.monitor_calls == sum(reading.calls for reading in asked)
        tokens = sum(reading.input_tokens + reading.output_tokens for reading in asked)
        assert after.monitor_tokens - state.monitor_tokens == tokens
        assert after.monitor_cost_usd - state.monitor_cost_usd == sum(reading.cost_usd or 0.0 for reading in asked)
        assert after.agent_tokens - state.agent_tokens == step.input_tokens + step.output_tokens
        assert after.last_step_id == step.step_id
        assert assessment.timestamp == datetime.fromtimestamp(step.time_s, UTC)
        assert (assessment.guarantee, assessment.p_success, assessment.log_e_value) == (None, None, None)
        state = after


@given(profiles, st.booleans(), st.lists(st.tuples(steps, readings), max_size=6), calls, effects)
def test_what_is_said_of_a_call_beforehand_is_what_is_decided_when_it_comes(profile, explores, run, call, effect):
    state = replace(START, let_through=explores)
    for step, found in run:
        state, _ = advance(profile, state, step, found)
    verdict = judge_call(profile, state, call.name, effect, step_id="t")  # some turns of the model have it, too
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(call,), effect=effect)
    _, decided = advance(profile, state, step, ())
    assert (verdict.action, verdict.level, verdict.rule) == (decided.action, decided.level, decided.rule)
    wanted, why = decided.advisory_action, "advisory only" if profile.advisory else "let through at random"
    assert verdict.advisory_action is wanted
    told = "" if wanted is None or not wanted.stops else f"{why}; would be {wanted.value}: "
    assert verdict.reason == told + decided.reasoning


@pytest.mark.parametrize(("effect", "action"), [(Effect.READ, Action.PROCEED_WITH_LOG), (None, Action.PAUSE_FOR_HUMAN)])
def test_exploration_lets_a_call_go_on_that_is_known_to_be_reversible_and_says_so_beforehand(effect, action):
    state = believing(0.45, let_through=True)
    said, decided = judge_call(PLAIN, state, "look", effect), tool(state, "look", profile=PLAIN, effect=effect)
    assert said.action is decided.action is action
    assert said.reason.startswith("let through at random; would be pause_for_human: ") == (effect is Effect.READ)


@given(profiles, st.lists(st.tuples(steps, readings), max_size=6))
def test_advisory_stops_nothing_and_records_what_would_have_been_done(profile, run):
    acting = profile.model_copy(update={"advisory": False})
    silent = profile.model_copy(update={"advisory": True})
    one = other = START
    for step, found in run:
        one, real = advance(acting, one, step, found)
        other, advised = advance(silent, other, step, found)
        assert one == other
        assert advised.advisory_action is real.action
        assert advised.action is (Action.PROCEED_WITH_LOG if real.action.stops else real.action)
        assert not advised.action.stops
        assert not (advised.reflection_injected and real.action.stops)
        assert advised.rule == real.rule


# -- missing readings --


@given(unit.filter(lambda p: p > 0.0))
def test_a_step_without_a_reading_leaves_the_belief_where_it_was_and_is_marked(confidence):
    state = believing(confidence)
    after, assessment = model(None, state=state)
    assert after.cumulative == confidence == assessment.propagated_confidence
    assert assessment.missing_reason == "no reading on this step"
    assert not after.turn_read
    assert after.has_reading


def test_a_missing_reading_is_no_evidence_for_or_against():
    missing = [Reading(source="p_true", value=None, reason=MissingReason.TIMEOUT, calls=1)]
    step = Step(step_id="m", kind="llm_call", time_s=0.0)
    stated = [Reading(source="verbalized", value=0.7)]
    with_it, without_it = advance(PLAIN, START, step, stated + missing)[1], advance(PLAIN, START, step, stated)[1]
    assert with_it.fused_confidence == without_it.fused_confidence == 0.7
    assert with_it.missing_reason == "p_true: timeout"
    assert Source.P_TRUE not in with_it.sources


@pytest.mark.parametrize(("calls_made", "shown"), [(0, -1.0), (1, 0.5)])
def test_a_p_true_that_asked_nothing_was_not_run_and_one_that_failed_shows_the_guides_half(calls_made, shown):
    reading = Reading(source="p_true", value=None, reason=MissingReason.OVERHEAD_CAP, calls=calls_made)
    step = Step(step_id="m", kind="llm_call", time_s=0.0)
    assert advance(PLAIN, START, step, [reading])[1].p_true_confidence == shown
    assert advance(PLAIN, START, step, [Reading(source="verbalized", value=0.5)])[1].p_true_confidence == -1.0


def test_until_the_first_reading_the_level_is_medium_and_irreversible_calls_pause():
    state, assessment = model(None)
    assert (assessment.level, assessment.action) == (Level.MEDIUM, Action.PROCEED_WITH_LOG)
    assert tool(START).action is tool(state).action is Action.PAUSE_FOR_HUMAN
    assert tool(START, "search").action is Action.PROCEED_WITH_LOG
    assert tool(model(1.0)[0]).action is Action.PROCEED


@pytest.mark.parametrize(
    ("option", "action"),
    [
        (Action.PAUSE_FOR_HUMAN, Action.PAUSE_FOR_HUMAN),
        (Action.ABORT, Action.ABORT),
        (Action.PROCEED_WITH_LOG, Action.PROCEED_WITH_LOG),
        (Action.PROCEED, Action.PROCEED),
    ],
)
def test_missing_evidence_on_the_proposing_turn_does_what_the_policy_names_to_irreversible_calls(option, action):
    policy = Policy(irreversible_tool_names=["send"], on_missing_evidence=option)
    profile = Profile(estimator=UNBIASED, policy=policy)
    state, _ = model(1.0)
    blind, _ = model(None, state=state)
    decided = tool(blind, profile=profile)
    assert decided.action is action
    assert (decided.rule == "missing_evidence") is (action is not Action.PROCEED)
    assert tool(blind, "search", profile=profile).action is Action.PROCEED
    read_again, _ = model(1.0, state=blind)
    assert tool(read_again, profile=profile).action is Action.PROCEED


def test_a_tool_step_without_a_reading_does_not_take_the_evidence_of_its_turn_away():
    state, _ = model(1.0)
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(ToolCall(name="search"),))
    after, _ = advance(IRREVERSIBLE, state, step, ())
    assert tool(after).action is Action.PROCEED


def test_missing_evidence_never_softens_what_the_tier_decided():
    profile = Profile(policy=Policy(irreversible_tool_names=["send"], on_missing_evidence=Action.PROCEED))
    blind = believing(0.5, turn_read=False)
    assert tool(blind, profile=profile).action is Action.PAUSE_FOR_HUMAN
    assert tool(believing(0.1, turn_read=False), profile=profile).action is Action.ABORT


# -- irreversible calls --


@pytest.mark.parametrize(
    ("confidence", "action", "rule"),
    [
        (0.9, Action.PROCEED, "tier"),
        (0.72, Action.PAUSE_FOR_HUMAN, "irreversible_override"),
        (0.5, Action.PAUSE_FOR_HUMAN, "tier"),
        (0.1, Action.ABORT, "tier"),
    ],
)
def test_an_irreversible_call_proceeds_at_low_only(confidence, action, rule):
    decided = tool(believing(confidence), "send_email_to_client")
    assert (decided.action, decided.rule) == (action, rule)
    assert (Source.IRREVERSIBLE_TOOL in decided.sources) is (rule == "irreversible_override")


@pytest.mark.parametrize(
    ("effect", "action"),
    [
        (Effect.IRREVERSIBLE, Action.PAUSE_FOR_HUMAN),
        (Effect.READ, Action.PROCEED_WITH_LOG),
        (Effect.UNKNOWN, Action.PROCEED_WITH_LOG),
        (None, Action.PROCEED_WITH_LOG),
    ],
)
def test_an_effect_raises_the_danger_of_a_harmless_name(effect, action):
    assert tool(believing(0.7), "search", effect=effect).action is action


@pytest.mark.parametrize("names", [("send", "search"), ("search", "send"), ("search", "find", "send")])
def test_a_tool_step_of_several_calls_is_as_dangerous_as_the_most_dangerous_of_them(names):
    calls = tuple(ToolCall(name=name) for name in names)
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=calls)
    assert advance(IRREVERSIBLE, believing(0.7), step, ())[1].action is Action.PAUSE_FOR_HUMAN
    asks = Profile(estimator=UNBIASED, policy=Policy(always_ask_tool_names=["send"]))
    said = advance(asks, believing(1.0), step, ())[1]
    assert (said.action, said.rule, said.tool_name) == (Action.PAUSE_FOR_HUMAN, "always_ask", "send")


def test_an_assessment_has_each_reading_in_its_own_field():
    values = {"verbalized": 0.9, "p_true": 0.8, "token_probability": 0.7, "token_entropy": 0.6, "semantic_entropy": 0.5}
    found = [Reading(source=source, value=value, samples=1, calls=1) for source, value in values.items()]
    seen = advance(PLAIN, START, Step(step_id="m", kind="llm_call", time_s=0.0), found)[1]
    assert seen.samples_used == 5
    assert (seen.verbalized_confidence, seen.p_true_confidence) == (0.9, 0.8)
    assert (seen.token_probability, seen.token_entropy, seen.semantic_confidence) == (0.7, 0.6, 0.5)
    assert (seen.effect, tool(believing(1.0), "look", effect=Effect.READ).effect) == (None, Effect.READ)


@pytest.mark.parametrize(
    ("of_turn", "of_call", "lowest"), [(0.9, 0.2, "token probability 0.20"), (0.4, 0.5, "P(True) 0.40")]
)
def test_the_lowest_reading_that_a_verdict_names_is_that_of_the_turn_or_of_the_call_itself(of_turn, of_call, lowest):
    call = ToolCall(id="a", name="send_email")
    state = model(of_turn, tool_calls=(call,))[0]
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(call,))
    seen = advance(IRREVERSIBLE, state, step, [Reading(source="token_probability", value=of_call)])[1]
    assert f"; lowest: {lowest}" in seen.reasoning


def test_several_irreversible_calls_that_a_step_of_the_model_proposes_do_not_hold_that_step():
    """At a belief that is MEDIUM, which holds each of them when it comes."""
    proposing = model(0.3, profile=IRREVERSIBLE, tool_calls=(ToolCall(name="send_email"), ToolCall(name="send_money")))
    assert (proposing[1].level, proposing[1].action) == (Level.MEDIUM, Action.PROCEED_WITH_LOG)
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(ToolCall(name="look"), ToolCall(name="send_it")))
    held = advance(IRREVERSIBLE, proposing[0], step, ())[1]
    assert (held.tool_name, held.action) == ("look", Action.PAUSE_FOR_HUMAN)


def test_an_effect_never_lowers_the_danger_of_an_irreversible_name():
    assert tool(believing(0.7), "send_email", effect=Effect.READ).action is Action.PAUSE_FOR_HUMAN


def test_the_worst_step_so_far_holds_irreversible_calls_after_the_belief_recovered():
    policy = Policy(irreversible_tool_names=["send"], worst_so_far_floor=0.3)
    profile = Profile(estimator=UNBIASED, policy=policy)
    state = START
    for value in (0.2, 1.0, 1.0, 1.0, 1.0):
        state, _ = model(value, state=state, profile=profile)
    assert profile.policy.classify(state.cumulative) is Level.LOW
    held = tool(state, profile=profile)
    assert (held.action, held.rule) == (Action.PAUSE_FOR_HUMAN, "worst_so_far")
    assert "0.20" in held.reasoning
    assert Source.WORST_SO_FAR in held.sources
    assert tool(state, "search", profile=profile).action is Action.PROCEED
    assert tool(state).action is Action.PROCEED  # without the floor


# -- acknowledgement --


def low(state, value=0.1):
    return model(value, state=state)


def test_an_answered_alarm_does_not_ask_again_until_the_belief_recovered():
    state, first = low(believing(0.6))
    assert (first.level, first.action) == (Level.CRITICAL, Action.ABORT)
    state = acknowledge(state, state.level)
    state, again = low(state)
    assert (again.action, again.rule) == (Action.PROCEED_WITH_LOG, "acknowledged")
    while state.level in {Level.HIGH, Level.CRITICAL}:
        state, recovering = model(1.0, state=state)
        assert not recovering.action.stops
    assert state.acknowledged is None
    state, fresh = low(state, 0.0)
    assert fresh.action.stops


def test_an_answer_to_high_does_not_cover_critical():
    state = acknowledge(believing(0.5), Level.HIGH)
    state, still = low(state, 0.5)
    assert (still.level, still.action) == (Level.HIGH, Action.PROCEED_WITH_LOG)
    _, worse = low(state, 0.0)
    assert (worse.level, worse.action) == (Level.CRITICAL, Action.ABORT)


def test_an_answer_to_critical_covers_high():
    state = acknowledge(believing(0.3), Level.CRITICAL)
    _, better = low(state, 0.5)
    assert (better.level, better.action) == (Level.HIGH, Action.PROCEED_WITH_LOG)


def test_an_answer_never_covers_an_irreversible_call():
    state = acknowledge(believing(0.5), Level.HIGH)
    assert tool(state).action is Action.PAUSE_FOR_HUMAN
    assert tool(state, "search").action is Action.PROCEED_WITH_LOG


# -- fusion, reflection, sources --


def test_the_semantic_confidence_only_ever_lowers_the_fused_one():
    step = Step(step_id="m", kind="llm_call", time_s=0.0)

    def fused(semantic):
        found = [Reading(source="verbalized", value=0.6), Reading(source="semantic_entropy", value=semantic)]
        return advance(PLAIN, START, step, found)[1].fused_confidence

    assert (fused(0.2), fused(0.9)) == (0.2, 0.6)
    alone = advance(PLAIN, START, step, [Reading(source="semantic_entropy", value=0.3)])[1]
    assert (alone.fused_confidence, alone.semantic_confidence) == (0.3, 0.3)


@pytest.mark.parametrize(
    ("confidence", "inject", "reflects"),
    [(0.5, True, True), (0.5, False, False), (0.1, True, False), (0.7, True, False)],
)
def test_a_reflection_is_injected_on_a_high_step_of_the_model_alone(confidence, inject, reflects):
    profile = Profile(estimator=UNBIASED, policy=UncertaintyPolicy(inject_reflection_on_high=inject))
    assert model(confidence, state=believing(confidence), profile=profile)[1].reflection_injected is reflects
    assert not tool(believing(confidence), "search", profile=profile).reflection_injected


def test_sources_name_what_the_belief_came_from():
    step = Step(step_id="m", kind="llm_call", time_s=0.0)
    found = [
        Reading(source="verbalized", value=0.9),
        Reading(source="token_entropy", value=0.9),
        Reading(source="mine", value=0.9),
        Reading(source="p_true", value=None, reason="timeout"),
    ]
    assert advance(PLAIN, START, step, found)[1].sources == (
        Source.VERBALIZED,
        Source.TOKEN_ENTROPY,
        Source.PROPAGATED,
    )


OPEN = StepComponents(is_agent=True, surprisal=2.0)
TRACED = Profile(trajectory_risk=TrajectoryRiskSettings())


@pytest.mark.parametrize(
    ("sensed", "risk", "lacks"),
    [
        (None, None, ["trajectory_risk: not_sensed"]),
        (TrajectoryReading(), None, ["trajectory_risk: nothing_to_judge"]),
        (TrajectoryReading(pending=OPEN), 2.0, []),
        (TrajectoryReading(pending=OPEN, no_surprisal="no_logprobs"), 2.0, ["surprisal: no_logprobs"]),
        (TrajectoryReading(reason="timeout"), None, ["trajectory_risk: timeout"]),
    ],
)
def test_the_record_says_the_risk_of_the_trajectory_or_why_there_is_none_and_then_what_the_readings_lack(
    sensed, risk, lacks
):
    missing = Reading(source="mine", value=None, reason="not_stated")
    step = Step(step_id="m", kind="llm_call", time_s=0.0)
    told = advance(TRACED, START, step, [missing], sensed)[1]
    assert told.trajectory_risk == risk
    assert told.sources == (Source.PROPAGATED, Source.TRAJECTORY_RISK)[: 1 if risk is None else 2]
    assert told.missing_reason == "; ".join([*lacks, "mine: not_stated", "no reading on this step"])


def test_the_risk_of_the_trajectory_is_that_of_all_steps_so_far():
    step = Step(step_id="m", kind="llm_call", time_s=0.0)
    state, _ = advance(TRACED, START, step, [], TrajectoryReading(completed=(OPEN,)))
    assert advance(TRACED, state, step, [], TrajectoryReading())[1].trajectory_risk == 2.0


def test_every_action_but_proceeding_has_a_reason():
    assert model(1.0)[1].reasoning == ""
    assert model(0.5)[1].reasoning == "confidence 0.72 is MEDIUM"
    assert tool(believing(0.72)).reasoning == "irreversible call: confidence 0.72, needs 0.80"
    assert tool(believing(0.9, turn_read=False)).reasoning == (
        "irreversible call: no reading of the turn that proposes it; confidence 0.90"
    )
    assert tool(START).reasoning == "irreversible call: no reading yet"
    assert tool(START, "search").reasoning == "no reading yet"


def test_a_round_confidence_on_a_threshold_stays_on_its_side():
    """0.4 * 0.6 / 0.4 is not 0.6 in floating point."""
    for threshold, level in ((0.8, Level.LOW), (0.6, Level.MEDIUM), (0.4, Level.HIGH)):
        state = believing(threshold)
        for _ in range(50):
            state, assessment = model(threshold, state=state)
            assert assessment.level is level


@given(st.lists(st.floats(0.0, 1.0), max_size=5))
def test_a_state_as_values_is_what_its_json_says(confidences: list[float]) -> None:
    state = SessionState(session_id="s")
    for number, confidence in enumerate(confidences):
        step = Step(step_id=str(number), kind="llm_call", time_s=0.0)
        state, _ = advance(Profile(), state, step, (Reading(source="verbalized", value=confidence),))
    assert state_to_values(state) == json.loads(state_to_json(state))


@given(profiles, st.lists(st.tuples(steps, readings), min_size=1, max_size=4))
def test_an_assessment_gives_its_verdict_as_one_value(profile, run):
    state = START
    for step, found in run:
        state, assessment = advance(profile, state, step, found)
        verdict = assessment.verdict
        assert (verdict.action, verdict.advisory_action) == (assessment.action, assessment.advisory_action)
        assert (verdict.level, verdict.rule) == (assessment.level, assessment.rule)
        assert verdict.reason == assessment.reasoning
        assert (verdict.guarantee, verdict.confidence) == (assessment.guarantee, assessment.believed)
        assert verdict.allowed is not assessment.action.stops
