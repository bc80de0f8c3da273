"""What a model states of its own confidence may hold an irreversible call and never lets one go ahead."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    AuqPropagator,
    Effect,
    Reading,
    SaupPropagator,
    SessionState,
    Step,
    ToolCall,
    UncertaintyEstimator,
    UncertaintyLevel,
    UncertaintyPropagator,
    advance,
)
from grampus_uq import UncertaintyAction as Action
from grampus_uq import UncertaintyPolicy as Policy
from grampus_uq.core.decision import GRANTABLE
from grampus_uq.core.engine import judge_call
from grampus_uq.core.release import ReleaseRule
from grampus_uq.core.state import (
    Profile,
    StateWriter,
    change_profile,
    state_from_json,
    state_to_json,
    state_to_values,
)
from grampus_uq.gate.call import doubt_of, of_the_tool
from grampus_uq.monitor.history import unaided_part
from grampus_uq.monitor.permit_basis import score_of
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_scorers import running_minimum
from grampus_uq.stats.eprocess_thresholds import ville_threshold
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from tests.sampling import examples

UNBIASED = UncertaintyEstimator(verbalized_calibration_bias=0.0, p_true_calibration_bias=0.0)


class Greatest(UncertaintyEstimator):
    """A fusion of one's own."""

    def fuse_readings(self, values):
        return max(values.values(), default=None)


START = SessionState(session_id="s")
PAY = ToolCall(id="1", name="pay", arguments={"amount": 5})
SURE = {"verbalized": 1.0}
TRUSTING = Policy(on_missing_evidence="proceed")


def read(values):
    return [Reading(source=source, value=value) for source, value in values.items() if value is not None]


def proposing(profile, readings, state=START):
    """The state after a turn that has these readings and proposes the payment."""
    return advance(profile, state, Step(step_id="t", kind="llm_call", time_s=0.0, tool_calls=(PAY,)), readings)[0]


def judged(profile, readings, state=START):
    return judge_call(profile, proposing(profile, readings, state), PAY, Effect.IRREVERSIBLE)


@pytest.mark.parametrize("estimator", [UncertaintyEstimator(), UNBIASED], ids=["default", "unbiased"])
def test_a_call_for_which_nothing_but_the_models_word_speaks_waits_and_says_so(estimator):
    verdict = judged(Profile(estimator=estimator), read(SURE))
    assert (verdict.action, verdict.rule) == (Action.PAUSE_FOR_HUMAN, "irreversible_override")
    assert "nothing but the model's own word speaks for it" in verdict.reason


def test_grants_and_permits_may_lift_that_pause_as_they_lift_a_tiers():
    assert judged(Profile(), read(SURE)).rule in GRANTABLE


@pytest.mark.parametrize("other", ["p_true", "token_probability", "sub_agent", "semantic_entropy"])
def test_beside_any_other_reading_that_counts_it_is_not_alone(other):
    assert judged(Profile(estimator=UNBIASED), read({**SURE, other: 1.0})).action is Action.PROCEED


def test_a_reading_without_a_weight_does_not_count():
    assert judged(Profile(estimator=UNBIASED), read({**SURE, "own": 1.0})).action.stops


def test_a_doubtful_reading_holds_the_call_that_the_models_word_would_have_lifted():
    values = {**SURE, "p_true": 0.65}
    assert judged(Profile(), read(values)).action.stops
    assert not judged(Profile(policy=TRUSTING), read(values)).action.stops


def test_the_models_word_does_not_lift_a_step_above_the_floor_of_the_worst_so_far():
    profile = Profile(policy=Policy(worst_so_far_floor=0.5))
    state = proposing(profile, read({**SURE, "p_true": 0.5}))
    sure = read({"p_true": 1.0})
    for _ in range(8):
        state = proposing(profile, sure, state)
    assert judge_call(profile, state, PAY, Effect.IRREVERSIBLE).rule == "worst_so_far"


@pytest.mark.parametrize("values", [{"verbalized": 0.3}, {"verbalized": 0.0, "p_true": 1.0}])
def test_a_low_statement_is_below_that_floor_whatever_else_was_read(values):
    profile = Profile(estimator=UNBIASED, policy=Policy(worst_so_far_floor=0.7))
    state = proposing(profile, read(values))
    for _ in range(8):
        state = proposing(profile, read({"p_true": 1.0}), state)
    assert judge_call(profile, state, PAY, Effect.IRREVERSIBLE).rule == "worst_so_far"


def test_a_fitted_profile_counts_the_models_word_as_it_measured_it():
    chance = LogisticFusion(readings={"fused": FusedReading(mean=0.0, sd=1.0, slope=10.0)}, intercept=3.0)
    release = ReleaseRule(at_least=0.9, guarantee="at most 1 in 20")
    policy = Policy(worst_so_far_floor=0.5)
    profile = Profile(estimator=UNBIASED, policy=policy, calibration=chance, release=release)
    verdict = judged(profile, read({**SURE, "p_true": 0.3}))
    assert (verdict.action.stops, verdict.rule) == (False, "release")


def test_the_reason_says_that_the_confidence_leaves_the_models_word_out():
    profile = Profile(estimator=UNBIASED)
    reason = judged(profile, read({**SURE, "p_true": 0.6})).reason
    assert reason.startswith("irreversible call: confidence 0.78 without the model's own word, needs 0.80; ")
    assert "word" not in judged(profile, read({"verbalized": 0.5, "p_true": 0.6})).reason


def test_the_level_by_which_a_grant_lifts_a_pause_leaves_the_models_word_out():
    profile = Profile(estimator=UNBIASED)
    state = proposing(profile, read(SURE), proposing(profile, read({"p_true": 0.2})))
    verdict = judged(profile, read({"p_true": 0.62}), state)
    assert (verdict.level, verdict.rule, of_the_tool(doubt_of(verdict))) == ("high", "tier", False)
    assert judged(profile, read(SURE)).level == "medium"
    state = proposing(profile, read({"p_true": 0.2}))
    state = advance(profile, state, Step(step_id="l", kind="llm_call", time_s=0.0), read({**SURE, "own": 0.9}))[0]
    assert state.level == "low"
    assert judge_call(profile, state, PAY, Effect.IRREVERSIBLE).level == "high", "the turn's own belief is no less"


def test_where_the_policy_lets_calls_go_ahead_without_evidence_the_models_word_counts():
    assert judged(Profile(policy=TRUSTING), read(SURE)).action is Action.PROCEED


def test_what_was_stated_under_a_policy_that_trusts_it_counts_under_no_stricter_one():
    for readings in (SURE, {**SURE, "p_true": 0.6}):
        state = proposing(Profile(policy=TRUSTING, estimator=UNBIASED), read(readings))
        assert judge_call(Profile(estimator=UNBIASED), state, PAY, Effect.IRREVERSIBLE).action.stops


def test_calls_that_can_be_undone_go_ahead_on_it():
    state = proposing(Profile(), read(SURE))
    assert judge_call(Profile(), state, PAY, Effect.REVERSIBLE).action is Action.PROCEED


def test_a_reading_of_the_calls_own_step_counts_unless_the_model_states_that_too():
    step = Step(step_id="c", kind="tool_call", time_s=0.0, tool_calls=(PAY,), effect=Effect.IRREVERSIBLE)
    profile = Profile(estimator=UNBIASED)
    for before in (SURE, {}):
        state = proposing(profile, read(before))
        assert advance(profile, state, step, read(SURE))[1].action.stops
        assert not advance(profile, state, step, read({"sub_agent": 1.0}))[1].action.stops


def test_a_statement_on_the_calls_own_step_leaves_the_belief_of_its_turn_without_one_as_it_was():
    heard = UncertaintyEstimator(verbalized_weight=9.0, verbalized_calibration_bias=0.0, p_true_calibration_bias=0.0)
    profile = Profile(estimator=heard)
    state = proposing(profile, read({"verbalized": 1.0, "p_true": 0.3}))
    for n in range(9):
        step = Step(step_id=f"{n}", kind="llm_call", time_s=0.0)
        state, _ = advance(profile, state, step, read({"verbalized": 1.0, "p_true": 0.99}))
    for said in ({}, {"verbalized": 1.0}):
        made = Step(step_id="made", kind="tool_call", time_s=0.0, tool_calls=(PAY,), effect=Effect.IRREVERSIBLE)
        assert advance(profile, state, made, read(said))[1].rule == "irreversible_override"


def test_of_two_turns_that_may_have_proposed_a_call_one_with_nothing_else_holds_it():
    profile = Profile(estimator=UNBIASED)
    state = proposing(profile, read({"p_true": 1.0}))
    assert judge_call(profile, state, PAY, Effect.IRREVERSIBLE).action is Action.PROCEED
    state = proposing(profile, read(SURE), state)
    assert judge_call(profile, state, PAY, Effect.IRREVERSIBLE).action.stops


def test_of_two_turns_that_may_have_proposed_a_call_the_later_is_not_lifted_either():
    profile, call = Profile(estimator=UNBIASED), ToolCall(name="pay")
    state = proposing(profile, read({"p_true": 0.9}))
    lifted = proposing(profile, read({**SURE, "p_true": 0.65}), state)
    assert lifted.cumulative >= 0.8
    assert judge_call(profile, lifted, call, Effect.IRREVERSIBLE).action.stops
    assert judge_call(profile, proposing(profile, read({"p_true": 0.82}), state), call, Effect.IRREVERSIBLE).allowed


def test_a_snapshot_keeps_that_nothing_else_was_read():
    state = state_from_json(state_to_json(proposing(Profile(), read(SURE))))
    assert judge_call(Profile(), state, PAY, Effect.IRREVERSIBLE).rule == "irreversible_override"


def test_a_call_for_which_nothing_else_speaks_is_not_aborted_for_an_earlier_low_statement():
    low = proposing(Profile(estimator=UNBIASED), read({"verbalized": 0.0}))
    low = proposing(Profile(estimator=UNBIASED), read({"verbalized": 0.0}), low)
    for stated, now in ((0.7, UncertaintyLevel.MEDIUM), (1.0, UncertaintyLevel.LOW)):
        state = low
        for _ in range(8):
            state = proposing(Profile(estimator=UNBIASED), read({"verbalized": stated}), state)
        verdict = judge_call(Profile(estimator=UNBIASED), state, PAY, Effect.IRREVERSIBLE)
        assert (state.level, verdict.level, verdict.action) == (now, UncertaintyLevel.HIGH, Action.PAUSE_FOR_HUMAN)
    assert judge_call(Profile(estimator=UNBIASED), low, PAY, Effect.IRREVERSIBLE).action is Action.ABORT


def heard(profile, *turns):
    state = START
    for values in turns:
        state = proposing(profile, read(values), state)
    return state


def test_the_belief_without_the_word_is_kept_while_it_is_less_and_its_lowest_step_counts():
    profile = Profile(estimator=UNBIASED)
    lifted = {**SURE, "p_true": 0.7}
    assert heard(profile, lifted).unaided is not None
    assert heard(profile, lifted, {"verbalized": 0.0}).unaided is None
    assert (
        heard(profile, {"verbalized": 0.0, "p_true": 0.5}, {**SURE, "p_true": 0.9}, {"verbalized": 0.5}).unaided is None
    )
    kept = heard(profile, {**SURE, "p_true": 0.3}, {"verbalized": 0.4})
    assert kept.unaided is not None
    assert kept.unaided.cumulative > kept.cumulative
    assert kept.unaided.worst == 0.3 < kept.worst


@pytest.mark.parametrize("rule", [SaupPropagator(), *(AuqPropagator(aggregate=how) for how in ("mean", "last"))])
def test_under_another_propagator_it_is_that_of_a_run_in_which_nothing_is_stated(rule):
    profile = Profile(estimator=UNBIASED, propagator=rule)
    turns = [
        {**SURE, "p_true": 0.3},
        SURE,
        {"verbalized": 0.1, "p_true": 0.9},
        {"p_true": 0.5},
        {**SURE, "p_true": 0.6},
    ]
    for length in range(1, 1 + len(turns)):
        alone = heard(profile, *turns[:length]).unaided
        silent = heard(profile, *({**values, "verbalized": None} for values in turns[:length]))
        assert (alone.cumulative, alone.memory, alone.worst) == (silent.cumulative, silent.memory, silent.worst)


def test_a_low_statement_counts_for_the_floor_beside_the_belief_without_it():
    profile = Profile(
        estimator=UNBIASED, propagator=AuqPropagator(aggregate="last"), policy=Policy(worst_so_far_floor=0.5)
    )
    state = heard(profile, {"verbalized": 0.2}, {"p_true": 1.0})
    assert judge_call(profile, state, PAY, Effect.IRREVERSIBLE).rule == "worst_so_far"


def test_in_the_worst_case_the_word_lifts_nothing_either():
    readings = [*read({**SURE, "p_true": 0.5}), Reading(source="token_probability", value=None, reason="timeout")]
    case = proposing(Profile(estimator=UNBIASED), readings).worst_case
    assert case.unaided.cumulative == pytest.approx(0.55 * 0.3 / 0.9 + 0.45)


def test_the_last_release_reads_the_state_of_a_run_that_a_stated_confidence_did_not_lift():
    for readings in (SURE, {"verbalized": 0.9, "p_true": 0.95}, {"verbalized": 0.2, "p_true": 0.95}):
        state = proposing(
            Profile(estimator=UNBIASED), [*read(readings), Reading(source="own", value=None, reason="timeout")]
        )
        assert state.turns
        for written in (StateWriter().write(state), state_to_json(state), json.dumps(state_to_values(state))):
            assert "unaided" not in written
            assert "read_before" not in written
            assert state_from_json(written) == state


def turn(*calls, kind="llm_call", **values):
    return kind, calls, read(values)


DOUBTFUL = turn(p_true=0.2)
UNJUDGED = "llm_call", (), [Reading(source="p_true", value=None, reason="timeout")]
UNJUDGED_AND_SURE = "llm_call", (), [*UNJUDGED[2], *read(SURE)]
HEARD = {
    "before": [DOUBTFUL, turn(**SURE), turn(PAY, p_true=0.9)],
    "after": [turn(PAY, p_true=1.0), DOUBTFUL, turn(**SURE)],
    "as the call is made": [turn(PAY, p_true=0.6), turn(p_true=1.0), turn(PAY, kind="tool_call", **SURE)],
    "beside the call's own": [turn(PAY, call_probability=0.9, **SURE)],
    "at worst": [DOUBTFUL, UNJUDGED, turn(**SURE), turn(PAY, p_true=1.0)],
    "at worst, after": [turn(PAY, p_true=1.0), UNJUDGED_AND_SURE, turn(**SURE)],
}


@pytest.mark.parametrize("steps", HEARD.values(), ids=HEARD)
def test_nothing_is_released_that_waits_without_the_models_word(steps):
    profile = Profile(estimator=UNBIASED)
    silent, heard = verdicts(profile, steps, stated=False), verdicts(profile, steps)
    assert [action.stops for action, _ in silent[-2:]] == [True, True]
    assert [action.stops for action, _ in silent] == [action.stops for action, _ in heard]


CHANCE = st.sampled_from([0.0, 0.3, 0.5, 0.62, 0.75, 0.8, 0.88, 0.9, 0.95, 1.0]) | st.floats(0.0, 1.0)
SOURCES = ["verbalized", "p_true", "token_probability", "semantic_entropy", "sub_agent", "call_probability", "own"]
FAILED = st.sampled_from(["p_true", "token_probability", "semantic_entropy", "verbalized"])
VALUES = st.fixed_dictionaries({}, optional={"verbalized": CHANCE, "p_true": CHANCE}) | st.dictionaries(
    st.sampled_from(SOURCES), CHANCE, max_size=4
)
READINGS = st.builds(
    lambda values, failed: [
        *read(values),
        *(Reading(source=source, value=None, reason="timeout") for source in failed if source not in values),
    ],
    VALUES,
    st.sets(FAILED, max_size=2) | st.just(set()),
)
CALLS = st.sampled_from([(), (PAY,), (PAY,), (PAY, ToolCall(id="2", name="pay")), (ToolCall(name="pay"),)])
STEPS = st.lists(
    st.tuples(st.sampled_from(["llm_call", "llm_call", "tool_call", "sub_agent"]), CALLS, READINGS), max_size=7
)
PROFILES = st.builds(
    Profile,
    estimator=st.sampled_from([UncertaintyEstimator(), UNBIASED, Greatest()]),
    propagator=st.sampled_from([UncertaintyPropagator(), SaupPropagator()])
    | st.sampled_from(["min", "mean", "last", "product"]).map(lambda how: AuqPropagator(aggregate=how)),
    policy=st.builds(Policy, worst_so_far_floor=st.none() | CHANCE, low_threshold=st.sampled_from([0.8, 0.65])),
)


def verdicts(profile, steps, *, stated=True):
    """Each call step's action and reason, and after each step those on a call asked about with its id and without."""
    state, found = START, []
    for number, (kind, calls, readings) in enumerate(steps):
        readings = [one for one in readings if stated or one.source != "verbalized"]
        step = Step(
            step_id=str(number), kind=kind, time_s=0.0, effect=Effect.IRREVERSIBLE,
            tool_calls=calls if kind != "tool_call" else calls[:1] or (PAY,),
        )  # fmt: skip
        state, assessment = advance(profile, state, step, readings)
        if kind == "tool_call":
            found.append((assessment.action, doubt_of(assessment)))
        if number % 2:
            state = state_from_json(state_to_json(state))
        asked = [judge_call(profile, state, call, Effect.IRREVERSIBLE) for call in (PAY, "pay")]
        found += [(verdict.action, doubt_of(verdict)) for verdict in asked]
    return found


@settings(max_examples=examples(2_000))
@given(profile=PROFILES, steps=STEPS)
def test_a_call_that_waits_where_the_model_states_nothing_waits_whatever_it_states(profile, steps):
    silent = verdicts(profile, steps, stated=False)
    for (without, why), (heard, reason) in zip(silent, verdicts(profile, steps), strict=True):
        assert heard.stops or not without.stops
        alone = "nothing but the model's own word" in reason.reason
        assert alone or not without.stops or of_the_tool(why) or not of_the_tool(reason), "no grant lifts more"


@settings(max_examples=examples(1_000))
@given(profile=PROFILES, steps=STEPS)
def test_no_statement_lifts_the_score_that_a_permit_goes_by_above_what_was_read_beside_it(profile, steps):
    """Where nothing else was read it is the word, and says so."""
    heard, silent = (state_after(profile, steps, stated=stated) for stated in (True, False))
    if silent.has_reading:
        assert score_of(heard, "confidence", PAY, "") <= score_of(silent, "confidence", PAY, "")


def test_a_turns_statement_lifts_no_score_after_the_belief_without_it_has_recovered():
    profile = Profile(estimator=UNBIASED)
    doubtful = turn(PAY, **SURE, p_true=0.6), turn(verbalized=0.0), *[turn(p_true=1.0)] * 6
    heard, silent = (state_after(profile, doubtful, stated=stated) for stated in (True, False))
    assert heard.unaided is None
    assert score_of(silent, "confidence", PAY, "") == pytest.approx(0.55 * 0.6 + 0.45)
    assert score_of(heard, "confidence", PAY, "") <= score_of(silent, "confidence", PAY, "")


def state_after(profile, steps, *, stated):
    state = START
    for number, (kind, calls, readings) in enumerate(steps):
        readings = [one for one in readings if stated or one.source != "verbalized"]
        step = Step(step_id=str(number), kind=kind, time_s=0.0, tool_calls=calls if kind != "tool_call" else (PAY,))
        state, _ = advance(profile, state_from_json(state_to_json(state)), step, readings)
    return state


def believed(profile, steps, *, stated):
    """What a run tells its parent: the confidence, and the same without what was stated (None: all was)."""
    state = state_after(profile, steps, stated=stated)
    return state.has_reading, state.cumulative, unaided_part(state).get("unaided_confidence", state.cumulative)


@settings(max_examples=examples(300))
@given(profile=PROFILES, steps=STEPS, more=st.integers(0, 20))
def test_a_run_says_that_all_was_stated_exactly_where_nothing_else_was_read_however_long_ago(profile, steps, more):
    """A parent takes what was stated for nothing: a doubt of 16 turns ago was forgotten with it."""
    steps = [*steps, *[turn(**SURE)] * more, turn(PAY, **SURE)]
    read_otherwise, confidence, _ = believed(profile, steps, stated=False)
    _, heard, alone = believed(profile, steps, stated=True)
    assert (alone is not None) is read_otherwise
    assert alone is None or min(heard, alone) <= confidence


BESIDE = st.lists(
    st.tuples(st.sampled_from(["llm_call", "tool_call", "plan"]), CHANCE | st.just("timeout"), st.none() | CHANCE),
    min_size=1,
    max_size=4,
)
WEIGHED = st.builds(UncertaintyPropagator, default_weight=st.sampled_from([0.0, 0.5, 1.0]))


def states(profile, run):
    """The states of a run of which each step has P(True), or lacks it for a reason, and may have a statement."""
    state = START
    for number, (kind, other, stated) in enumerate(run):
        lost = {"reason": other} if isinstance(other, str) else {}
        found = [Reading(source="p_true", value=None if lost else other, **lost), *read({"verbalized": stated})]
        state, _ = advance(profile, state, Step(step_id=str(number), kind=kind, time_s=0.0), found)
        yield state


def parts_of(state):
    """What an irreversible call is judged by: the belief and its worst case."""
    return [state] if state.worst_case is None else [state, state.worst_case]


@given(estimator=st.sampled_from([UncertaintyEstimator(), UNBIASED]), propagator=WEIGHED, run=BESIDE, data=st.data())
def test_beside_other_readings_no_statement_lifts_what_others_lowered(estimator, propagator, run, data):
    """Nor does it undo what the model states elsewhere: whoever has it write "100%" once lifts no later doubt."""
    silent = data.draw(st.integers(0, len(run) - 1))
    fewer = [(kind, other, None if number == silent else said) for number, (kind, other, said) in enumerate(run)]
    profile, least = Profile(estimator=estimator, propagator=propagator), []
    for known in (run, fewer):
        *_, state = states(profile, known)
        beliefs = [part.cumulative for part in parts_of(state)]
        least.append(min(beliefs + [part.unaided.cumulative for part in parts_of(state) if part.unaided]))
    assert least[0] <= least[1] + 1e-9


@given(estimator=st.sampled_from([UncertaintyEstimator(), UNBIASED, Greatest()]), propagator=WEIGHED, run=BESIDE)
def test_a_belief_without_the_word_is_kept_only_while_it_or_its_lowest_step_is_lower(estimator, propagator, run):
    for state in states(Profile(estimator=estimator, propagator=propagator), run):
        for known in parts_of(state):
            kept = known.unaided
            assert kept is None or kept.cumulative < known.cumulative or kept.worst < known.worst


@pytest.mark.parametrize("rule", [SaupPropagator(), AuqPropagator(aggregate="mean")])
def test_what_was_only_stated_is_no_step_of_a_propagator_that_the_run_is_handed_to(rule):
    other, step = Profile(estimator=UNBIASED, propagator=rule), Step(step_id="0", kind="llm_call", time_s=0.0)
    for stated in (None, 0.95):
        state, _ = advance(Profile(estimator=UNBIASED), START, step, read({"verbalized": stated}))
        assert judged(other, read({"p_true": 0.75}), change_profile(other, state)).action.stops


FITTED_ON = ["p_true", "token_probability", "semantic_entropy", "call_probability", "own", "unaided", "count_calls"]


@st.composite
def fitted_profiles(draw):
    """A release, a detector of steps or of calls, or both, fitted on anything but what the model states."""
    part, names = draw(st.sampled_from(["release", "detector", "both"])), None
    if part != "detector":
        names = draw(st.lists(st.sampled_from(FITTED_ON), min_size=1, max_size=3, unique=True))
        offset = st.just(0.0) | st.floats(-1.0, 1.0)
        names = {n: FusedReading(mean=0.0, sd=1.0, slope=draw(st.floats(0.3, 3.0)), offset=draw(offset)) for n in names}
    detector = None
    if part != "release":
        sources = FITTED_ON[:-1] + ["p_success"] * (part == "both")
        streams = tuple(draw(st.lists(st.sampled_from(sources), min_size=1, max_size=2, unique=True)))
        detector = Detector(
            streams=streams,
            scorer=running_minimum(bounded=(True,) * len(streams), neutral=(0.7,) * len(streams)),
            thresholds=(ville_threshold(draw(st.floats(0.1, 0.8))),),
            deployed=0,
            salt="s",
            without_gaps=draw(st.none() | st.just(())),
            at_calls=draw(st.booleans()),
        )
    return draw(PROFILES).model_copy(
        update={
            "calibration": names and LogisticFusion(readings=names, intercept=draw(st.floats(0.0, 2.0))),
            "release": names and ReleaseRule(at_least=draw(st.floats(0.1, 0.8))),
            "detector": detector,
        }
    )


@settings(max_examples=examples(2_000))
@given(profile=fitted_profiles(), steps=STEPS)
def test_under_a_profile_that_was_fitted_on_other_readings_a_call_waits_whatever_the_model_states(profile, steps):
    silent = verdicts(profile, steps, stated=False)
    for (without, why), (heard, reason) in zip(silent, verdicts(profile, steps), strict=True):
        assert heard.stops or not without.stops, (why, reason)
        assert not without.stops or of_the_tool(why) or not of_the_tool(reason), "no grant lifts more"


OWN = {"own": FusedReading(mean=0.0, sd=1.0, slope=1.0), "count_calls": FusedReading(mean=0.0, sd=1.0, slope=0.1)}
ON_OWN = {
    "detector": Profile(
        detector=Detector(
            streams=("own", "count_calls"),
            scorer=running_minimum(bounded=(True, True), neutral=(0.7, 0.7)),
            thresholds=(ville_threshold(0.1),),
            deployed=0,
            salt="s",
            without_gaps=(),
        )
    ),
    "release": Profile(
        calibration=LogisticFusion(readings=OWN, intercept=1.0),
        release=ReleaseRule(at_least=0.6),
    ),
}


@pytest.mark.parametrize(
    ("values", "goes"),
    [({"own": 0.99}, True), ({}, False), ({"verbalized": 1.0}, False), ({"count_calls": 0.5}, False)],
)
@pytest.mark.parametrize("profile", ON_OWN.values(), ids=ON_OWN)
def test_a_reading_without_a_weight_speaks_for_a_call_where_the_profile_was_fitted_on_it(profile, values, goes):
    """Counts do not, nor what the model states, nor an earlier turn."""
    state = proposing(profile, read({"own": 0.99, "p_true": 0.99}))
    verdict = judge_call(profile, proposing(profile, read(values), state), PAY, Effect.IRREVERSIBLE)
    assert verdict.allowed is goes, verdict.reason
    assert goes or verdict.rule == "missing_evidence"
