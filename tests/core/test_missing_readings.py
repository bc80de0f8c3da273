"""A missing reading never reads safer than one that is there: the law over any run, profile and propagator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grampus_uq import (
    AuqPropagator,
    Budget,
    Message,
    MissingReason,
    Profile,
    Reading,
    Role,
    SaupPropagator,
    Sensing,
    SessionState,
    Step,
    ToolCall,
    UncertaintyAction,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
    UncertaintyPropagator,
)
from grampus_uq.core.engine import advance, judge_call
from grampus_uq.core.release import ReleaseRule
from grampus_uq.core.state import state_from_json, state_to_json
from grampus_uq.errors import ModelError, RateLimitedError
from grampus_uq.records.vocabulary import NOT_DUE
from grampus_uq.stats.eprocess import Detector, detector_from_json, detector_to_json
from grampus_uq.stats.eprocess_scorers import running_minimum
from grampus_uq.stats.eprocess_thresholds import ville_threshold
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from grampus_uq.testing import HANG, ScriptedModel
from tests.sampling import examples

Action = UncertaintyAction
PAY = ToolCall(name="pay", arguments={"to": "Mallory"})
POLICY = UncertaintyPolicy(irreversible_tool_names=["pay"])
SOURCES = ["verbalized", "p_true", "token_probability", "semantic_entropy", "mine", "recorded"]
FEW = ["verbalized", "p_true", "semantic_entropy", "mine"]
DUE = sorted(set(MissingReason) - NOT_DUE)
Run = list[tuple[str, dict[str, float | str]]]
"""A kind of step, and by source a value or the reason why there is none."""

unit = st.floats(0.0, 1.0) | st.sampled_from([0.0, 0.4, 0.5, 0.6, 0.72, 0.8, 1.0])
kinds = st.sampled_from(["llm_call", "llm_call", "llm_call", "decision", "memory_read", "plan", "tool_call"])
good = st.floats(0.7, 1.0)
found = st.one_of(good, good, good, unit, unit, st.sampled_from(DUE))
readings = st.fixed_dictionaries(
    {"verbalized": found, "p_true": found}, optional={source: found for source in SOURCES if source not in FEW[:2]}
)
runs = st.lists(st.tuples(kinds, readings), min_size=1, max_size=3)
estimators = st.builds(
    UncertaintyEstimator,
    verbalized_weight=st.floats(0.1, 2.0),
    verbalized_calibration_bias=st.sampled_from([0.0, 0.25]),
    p_true_calibration_bias=st.sampled_from([0.0, 0.1]),
    token_probability_weight=st.sampled_from([0.0, 0.3, 3.0]),
    extra_weights=st.just({"mine": 1.0}) | st.just({}),
)
propagators = {
    "guide": st.builds(UncertaintyPropagator, default_weight=unit),
    "saup": st.builds(SaupPropagator, default_weight=unit),
    "auq": st.builds(AuqPropagator, aggregate=st.sampled_from(["last", "mean", "min", "product"])),
}
policies = st.builds(
    UncertaintyPolicy,
    low_threshold=st.floats(0.5, 0.9),
    medium_threshold=st.floats(0.3, 0.5),
    high_threshold=st.floats(0.0, 0.3),
    irreversible_tool_names=st.just(["pay"]),
    on_missing_evidence=st.sampled_from([Action.PAUSE_FOR_HUMAN, Action.ABORT]),
    worst_so_far_floor=st.sampled_from([None, None, None, 0.2, 0.5]),
    on_alarm=st.sampled_from([Action.PAUSE_FOR_HUMAN, Action.ABORT]),
)


@st.composite
def fusions(draw: Any) -> LogisticFusion:
    names = draw(st.lists(st.sampled_from([*FEW, "fused", "propagated"]), min_size=1, max_size=2, unique=True))
    offset = st.just(0.0) | st.floats(-1.0, 1.0)
    readings = {
        name: FusedReading(mean=0.0, sd=1.0, slope=draw(st.floats(0.3, 3.0)), offset=draw(offset)) for name in names
    }
    return LogisticFusion(readings=readings, intercept=draw(st.floats(0.0, 2.0)))


@st.composite
def detectors(
    draw: Any, others: tuple[str, ...] = (), sources: Sequence[str] = (*FEW, "fused", "propagated")
) -> Detector:
    streams = draw(st.lists(st.sampled_from([*sources, *others]), min_size=1, max_size=2, unique=True))
    stream = draw(st.integers(0, len(streams) - 1))
    neutral = tuple(draw(st.floats(0.3, 0.95)) for _ in streams)
    scorer = running_minimum(bounded=(True,) * len(streams), neutral=neutral, stream=stream)
    threshold = ville_threshold(draw(st.floats(0.1, 0.8)))
    return Detector(
        streams=tuple(streams),
        scorer=scorer,
        thresholds=(threshold,),
        deployed=0,
        salt="s",
        without_gaps=draw(st.none() | st.just(())),
    )


@st.composite
def profiles(draw: Any, family: str) -> Profile:
    """With no fitted part and any propagator; or with a release, a detector, or both."""
    fitted = draw(fusions()) if family in ("release", "both") else None
    alarm = {"detector": detectors(), "both": detectors(("p_success",))}.get(family)
    return Profile(
        policy=draw(policies),
        estimator=draw(estimators),
        propagator=draw(propagators[family] if family in propagators else propagators["guide"]),
        calibration=fitted,
        release=None if fitted is None else ReleaseRule(at_least=draw(st.floats(0.1, 0.8))),
        detector=None if alarm is None else draw(alarm),
    )


FAMILIES = ["guide", "saup", "auq", "release", "detector", "both"]


def weaker(draw: Any, run: Run) -> Run:
    """The same run with some readings lowered and some missing."""
    result: Run = []
    for kind, found in run:
        changed: dict[str, float | str] = {}
        for source, value in found.items():
            how = draw(st.sampled_from(["same", "same", "lower", "missing"]))
            if isinstance(value, str) or how == "same":
                changed[source] = value
            elif how == "lower":
                changed[source] = value * draw(st.sampled_from([0.0, 0.5, 0.9]))
            else:
                changed[source] = draw(st.sampled_from(DUE))
        result.append((kind, changed))
    return result


@st.composite
def pairs(draw: Any, family: str) -> tuple[Profile, Run, Run]:
    profile, run = draw(profiles(family)), draw(runs)
    return profile, run, weaker(draw, run)


def as_readings(found: dict[str, float | str]) -> list[Reading]:
    return [
        Reading(source=source, value=None, reason=value, calls=1)
        if isinstance(value, str)
        else Reading(source=source, value=value)
        for source, value in found.items()
    ]


def told(profile: Profile, run: Run) -> tuple[SessionState, list[Any]]:
    state, seen = SessionState(session_id="s"), []
    for index, (kind, found) in enumerate(run):
        calls = (ToolCall(name="look"),) if kind == "tool_call" else ()
        step = Step(step_id=str(index), kind=kind, time_s=0.0, tool_calls=calls)
        state, assessment = advance(profile, state, step, as_readings(found))
        seen.append(assessment)
    return state, seen


def paid(profile: Profile, state: SessionState) -> Any:
    step = Step(step_id="pay", kind="tool_call", time_s=0.0, tool_calls=(PAY,))
    _, decided = advance(profile, state, step, ())
    verdict = judge_call(profile, state, "pay")
    assert (verdict.action, verdict.rule, verdict.reason) == (decided.action, decided.rule, decided.reasoning)
    return decided


@pytest.mark.sampled
@pytest.mark.parametrize("family", FAMILIES)
def test_no_missing_and_no_lower_reading_turns_a_pause_of_an_irreversible_call_into_a_go(family):
    @settings(max_examples=2 * settings().max_examples)
    @given(pairs(family))
    def law(pair):
        profile, run, less = pair
        before, after = paid(profile, told(profile, run)[0]), paid(profile, told(profile, less)[0])
        assert after.action.stops or not before.action.stops, (before.reasoning, after.reasoning)

    law()


SURE = {"verbalized": 1.0, "token_probability": 0.99, "p_true": 0.99}
FITTED = LogisticFusion(
    readings={name: FusedReading(mean=0.0, sd=1.0, slope=1.0) for name in ("token_probability", "p_true")},
    intercept=0.0,
)
HEARD = UncertaintyEstimator(verbalized_weight=9.0, verbalized_calibration_bias=0.0)
JUDGED = {
    "tiers": Profile(policy=POLICY),
    "tiers that weigh the word": Profile(policy=POLICY, estimator=HEARD),
    "release": Profile(
        policy=POLICY,
        calibration=FITTED,
        release=ReleaseRule(at_least=0.6, mode="estimated", target=0.9, runs=50),
    ),
}


@pytest.mark.parametrize("stated", [{}, {"verbalized": 1.0}], ids=["nothing stated", "stated"])
@pytest.mark.parametrize("listed", [(PAY,), ()], ids=["listed", "its step says whose call it is"])
@pytest.mark.parametrize("profile", JUDGED.values(), ids=JUDGED)
def test_a_call_waits_for_what_failed_on_its_turn_however_sure_later_turns_are(profile, listed, stated):
    for failed in (None, "timeout"):
        first = {**stated, "token_probability": 0.99, "p_true": failed or 0.99}
        state = SessionState(session_id="s")
        for n, found in enumerate([first, *[SURE] * 9]):
            step = Step(step_id=f"{n}", kind="llm_call", time_s=0.0, tool_calls=() if n else listed)
            state, _ = advance(profile, state, step, as_readings(found))
        assert (state.worst_case is None) == (failed is None)
        verdict = judge_call(profile, state, PAY, step_id="0")
        assert verdict.allowed == (failed is None), verdict.reason
        assert failed is None or verdict.rule == "missing_evidence"


def test_a_call_waits_for_a_reading_of_the_fit_that_nobody_gave_nor_said_was_missing():
    step = Step(step_id="1", kind="llm_call", time_s=0.0, tool_calls=(PAY,))
    state, _ = advance(JUDGED["release"], SessionState(session_id="s"), step, as_readings({"token_probability": 0.99}))
    verdict = judge_call(JUDGED["release"], state, PAY)
    assert (verdict.rule, verdict.allowed) == ("missing_evidence", False)
    assert "(p_true: not read)" in verdict.reason


@given(
    st.sampled_from(sorted(propagators)).flatmap(propagators.get),
    st.dictionaries(st.sampled_from(FEW[:3]), unit),
    st.sampled_from(DUE),
)
def test_no_worst_case_begins_where_what_failed_has_no_weight(propagator, values, why):
    step, profile = Step(step_id="1", kind="llm_call", time_s=0.0), Profile(propagator=propagator)
    found = as_readings({**values, "recorded": why})
    assert advance(profile, SessionState(session_id="s"), step, found)[0].worst_case is None


@st.composite
def detectors_and_gaps(draw: Any) -> tuple[Detector, Run, Run]:
    """A detector, a run without gaps, and the same with gaps of every reason in what the detector never lacked."""
    detector = draw(detectors(sources=FEW[1:]))
    always = draw(st.none() | st.lists(st.sampled_from(detector.streams), unique=True).map(tuple))
    detector = replace(detector, without_gaps=always)
    values = st.fixed_dictionaries(dict.fromkeys(FEW, good | unit))
    run: Run = draw(st.lists(st.tuples(kinds.filter(lambda kind: kind != "tool_call"), values), min_size=1, max_size=3))
    gap = st.none() | st.sampled_from(sorted(MissingReason))
    gaps = [{name: draw(gap) for name in (detector.streams if always is None else always)} for _ in run]
    less: Run = [
        (kind, {name: missing.get(name) or value for name, value in found.items()})
        for (kind, found), missing in zip(run, gaps, strict=True)
    ]
    return detector, run, less


@settings(max_examples=examples(300))
@given(policies, detectors_and_gaps())
def test_a_stream_that_the_detector_never_lacked_counts_as_the_worst_when_it_is_missing_whatever_the_reason(
    policy, drawn
):
    detector, run, less = drawn
    profile = Profile(policy=policy, detector=detector, estimator=UncertaintyEstimator(extra_weights={"mine": 1.0}))
    before, after = paid(profile, told(profile, run)[0]), paid(profile, told(profile, less)[0])
    assert after.action.stops or not before.action.stops, (before.reasoning, after.reasoning)


@pytest.mark.parametrize("always", [None, ("p_true",), ()])
@pytest.mark.parametrize("reason", sorted(MissingReason))
def test_with_a_detector_alone_a_call_waits_whose_turn_lacks_a_stream_that_no_fitted_step_lacked(always, reason):
    scorer = running_minimum(bounded=(True,), neutral=(0.8,))
    detector = Detector(
        streams=("p_true",),
        scorer=scorer,
        thresholds=(ville_threshold(0.1),),
        deployed=0,
        salt="s",
        without_gaps=always,
    )
    profile = Profile(policy=POLICY, detector=detector_from_json(json.loads(json.dumps(detector_to_json(detector)))))
    good_turn = ("llm_call", {"semantic_entropy": 1.0, "p_true": 0.99})
    whole, _ = told(profile, [good_turn, good_turn])
    assert paid(profile, whole).action is Action.PROCEED
    state, _ = told(profile, [good_turn, ("llm_call", {"semantic_entropy": 1.0, "p_true": reason})])
    decided = paid(profile, state)
    if always == () and reason in NOT_DUE:  # its absence was calibrated
        assert decided.action is Action.PROCEED
        return
    assert (decided.action, decided.rule) == (Action.PAUSE_FOR_HUMAN, "missing_evidence")
    assert "p_true: " in decided.reasoning
    assert not judge_call(profile, state, "look").action.stops


@given(estimators, st.sampled_from(["guide", "saup", "auq"]), st.data())
def test_no_lower_reading_raises_the_fused_or_the_propagated_confidence(estimator, family, data):
    profile = Profile(estimator=estimator, propagator=data.draw(propagators[family]))
    run = data.draw(runs)
    share = st.sampled_from([0.0, 0.9, 1.0])
    less: Run = [
        (kind, {name: v if isinstance(v, str) else v * data.draw(share) for name, v in found.items()})
        for kind, found in run
    ]
    for high, low in zip(told(profile, run)[1], told(profile, less)[1], strict=True):
        assert low.fused_confidence <= high.fused_confidence
        assert low.propagated_confidence <= high.propagated_confidence


@given(profiles("both") | profiles("saup"), runs)
def test_a_session_that_is_taken_up_again_remembers_what_it_could_not_read(profile, run):
    state, _ = told(profile, run)
    back = state_from_json(state_to_json(state))
    assert back == state
    assert paid(profile, back) == paid(profile, state)


def test_a_state_that_was_stored_before_there_was_a_worst_case_is_read():
    old = json.loads(state_to_json(SessionState(session_id="s")))
    del old["worst_case"]
    assert state_from_json(json.dumps(old)) == SessionState(session_id="s")


# -- what failed in a live session --

PROMPT = (Message(role=Role.USER, content="Pay Alice."),)


async def seen_live(reply: object, text: str = "Confidence: 100%", **options: Any) -> Any:
    estimator = UncertaintyEstimator(verbalized_calibration_bias=0.0, p_true_calibration_bias=0.0)
    monitor = UncertaintyMonitor(policy=POLICY, estimator=estimator, **options)
    session = monitor.session("s")
    client = None if reply is None else ScriptedModel(reply)
    await session.observe_llm_response(text, "a", prompt_messages=PROMPT, model_client=client, tool_calls=[PAY])
    return session


FAILURES = [HANG, "perhaps", RuntimeError("down"), RateLimitedError("slow down"), ModelError("500")]


@pytest.mark.anyio
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_a_judgement_that_fails_holds_the_call_that_a_good_one_releases(failure):
    assert (await seen_live("0.99")).would_allow(PAY).allowed
    held = (await seen_live(failure, sensing=Sensing(budget=Budget(timeout_s=0.05)))).would_allow(PAY)
    assert (held.action, held.rule) == (Action.PAUSE_FOR_HUMAN, "missing_evidence")
    assert "p_true: " in held.reason
    assert "in the worst case: " in held.reason


@pytest.mark.anyio
async def test_a_judgement_that_failed_weighs_on_later_calls_as_a_bad_one_would_and_fades_as_one():
    async def turns_until_a_call_goes_ahead(first: str) -> int:
        session, call = await seen_live(first), PAY
        for count in range(20):
            if session.would_allow(call).allowed:
                return count
            call = ToolCall(id=f"{count}", name="pay", arguments=PAY.arguments)
            await session.observe_llm_response(
                "Confidence: 100%", "b", prompt_messages=PROMPT, model_client=ScriptedModel("0.99"), tool_calls=[call]
            )
        pytest.fail("no call goes ahead")

    failed = await turns_until_a_call_goes_ahead("perhaps")
    assert failed == await turns_until_a_call_goes_ahead("0.0") > 0


@pytest.mark.anyio
async def test_a_judgement_that_fails_stops_no_reversible_step_and_no_number_shows_it_but_the_reason():
    session = await seen_live("perhaps")
    shown = session.belief().step_uncertainties[-1]
    assert (shown.fused_confidence, shown.action) == (1.0, Action.PROCEED)
    assert shown.missing_reason.endswith("p_true: parse_error")
    assert session.would_allow("look").allowed


@pytest.mark.anyio
@pytest.mark.parametrize("sensing", [Sensing(max_overhead=0.0), Sensing(budget=Budget(max_calls=0))])
async def test_a_judgement_that_the_monitor_may_not_afford_holds_the_call_too(sensing):
    assert not (await seen_live("0.99", sensing=sensing)).would_allow(PAY).allowed


@pytest.mark.anyio
async def test_an_agent_without_log_probabilities_samples_or_a_stated_confidence_is_not_held_for_lack_of_them():
    assert (await seen_live("0.99", text="I pay now.")).would_allow(PAY).allowed
    assert (await seen_live(None)).would_allow(PAY).rule == "irreversible_override", "its own word is no evidence"


def test_whoever_wants_calls_to_go_ahead_without_evidence_says_so_in_the_policy():
    policy = POLICY.model_copy(update={"on_missing_evidence": Action.PROCEED_WITH_LOG})
    run: Run = [("llm_call", {"verbalized": 1.0, "p_true": "timeout"})]
    assert paid(Profile(policy=POLICY), told(Profile(policy=POLICY), run)[0]).action is not Action.PROCEED
    assert not paid(Profile(policy=policy), told(Profile(policy=policy), run)[0]).action.stops


@given(st.lists(unit, min_size=1, max_size=4), unit)
@example([0.56], 0.54 / 0.56)
def test_a_worse_judgement_never_raises_the_level_by_leaving_the_trigger_zone(sampled, lower):
    """Below the zone the guide draws no samples: P(True) .54 gave .717 where .56 gave .450."""
    estimator = UncertaintyEstimator()
    high = [Reading(source="verbalized", value=0.5), Reading(source="p_true", value=sampled[0])]
    low = [high[0], Reading(source="p_true", value=lower * sampled[0])]
    assert estimator.needs_sampling(low) or not estimator.needs_sampling(high)
    assert estimator.needs_sampling([high[0], Reading(source="p_true", value=None, reason="timeout", calls=1)])
