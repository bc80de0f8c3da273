"""The worst case is what would be believed had each reading that was due and did not come been 0, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import MissingReason, Profile, Reading, SaupPropagator, SessionState, Step, UncertaintyEstimator
from grampus_uq.core.alarm import alarm_step
from grampus_uq.core.engine import advance
from grampus_uq.core.propagator import propagated_by
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import WorstCase
from grampus_uq.core.worst_case import lacks, streams_of, worst_case_step
from grampus_uq.records.events import TrajectoryReading
from grampus_uq.records.vocabulary import NOT_DUE
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_scorers import running_minimum
from grampus_uq.stats.eprocess_thresholds import ville_threshold
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from grampus_uq.stats.trajectory_risk import StepComponents

SOURCES = ("verbalized", "p_true", "semantic_entropy", "mine")
PLAIN = UncertaintyEstimator(verbalized_calibration_bias=0.0, p_true_calibration_bias=0.0, extra_weights={"mine": 0.5})
START = SessionState(session_id="s")

unit = st.floats(0.0, 1.0)
readings = st.fixed_dictionaries(dict.fromkeys(SOURCES, unit | unit | st.sampled_from(sorted(MissingReason))))
runs = st.lists(st.tuples(st.sampled_from(["llm_call", "llm_call", "plan", "tool_call"]), readings), max_size=5)


def detector_of(*streams: str, without_gaps: tuple[str, ...] | None = None, watched: int = 0) -> Detector:
    """Evidence is the least of one stream so far; the others are there to be missed."""
    n = len(streams)
    scorer = running_minimum(bounded=(True,) * n, neutral=(0.5,) * n, stream=watched)
    thresholds = (ville_threshold(0.5),)
    return Detector(
        streams=streams, scorer=scorer, thresholds=thresholds, deployed=0, salt="s", without_gaps=without_gaps
    )


def fusion_of(*streams: str, offset: float = 0.0) -> LogisticFusion:
    one = FusedReading(mean=0.0, sd=1.0, slope=1.0, offset=offset)
    return LogisticFusion(readings=dict.fromkeys(streams, one), intercept=0.25)


@st.composite
def profiles(draw: Any) -> Profile:
    some = st.lists(st.sampled_from(SOURCES), min_size=1, max_size=2, unique=True)
    detector = None
    if draw(st.booleans()):
        streams = tuple(draw(some | st.just(["fused"]) | st.just(["propagated"])))
        without_gaps = draw(st.sampled_from([None, (), streams[:1]]))
        detector = detector_of(*streams, without_gaps=without_gaps, watched=draw(st.integers(0, len(streams) - 1)))
    return Profile(
        estimator=PLAIN,
        propagator=draw(st.sampled_from([Profile().propagator, SaupPropagator()])),
        calibration=fusion_of(*draw(some), offset=draw(st.sampled_from([0.0, 0.5]))) if draw(st.booleans()) else None,
        detector=detector,
    )


def as_readings(found: dict[str, Any]) -> list[Reading]:
    missing = [isinstance(value, str) for value in found.values()]
    return [
        Reading(source=source, value=None, reason=value) if gone else Reading(source=source, value=value)
        for gone, (source, value) in zip(missing, found.items(), strict=True)
    ]


def told(profile: Profile, run: list[tuple[str, dict[str, Any]]]) -> SessionState:
    state = START
    for index, (kind, found) in enumerate(run):
        state, _ = advance(profile, state, Step(step_id=str(index), kind=kind, time_s=0.0), as_readings(found))
    return state


@settings(max_examples=3 * settings().max_examples)
@given(profiles(), runs)
def test_it_is_bit_for_bit_the_belief_of_a_run_in_which_what_was_due_and_missing_read_0(profile, run):
    due, read = False, []
    for kind, found in run:
        always = () if kind == "tool_call" else profile.always_there
        gone = {s for s, v in found.items() if isinstance(v, str) and (v not in NOT_DUE or s in always)}
        there = {source: value for source, value in found.items() if source in gone or not isinstance(value, str)}
        read.append((kind, {source: 0.0 if source in gone else value for source, value in there.items()}))
        due = due or bool(gone) or (not there and bool({"fused", "propagated"} & {*always}))  # nothing to fuse
    state, lower = told(profile, run), told(profile, read)
    worst, lower = state.worst_case or state, lower.worst_case or lower
    assert state.worst_case is None or due
    for part in ("cumulative", "memory", "worst", "alarm", "p_success"):
        assert getattr(worst, part) == getattr(lower, part), part


# -- one step, by hand --


def step_of(profile: Profile, found: dict[str, Any], state: SessionState = START, **given_values: Any) -> Any:
    """The worst case after one step of the model of which the readings are these, and no stream but what is given."""
    arguments = {"kind": "llm_call", "fused": None, "streams": {"trajectory_risk": None}, "risk_due": False}
    arguments |= given_values
    fused = arguments.pop("fused")
    return worst_case_step(profile, state, readings=as_readings(found), fusion=(fused, fused), **arguments)


def test_streams_have_their_names_and_an_unread_step_has_neither_fused_nor_propagated_confidence():
    assert streams_of({"mine": 0.1}, 0.2, (0.3, 0.25), 0.4, 0.5) == {
        "mine": 0.1,
        "semantic_entropy": 0.2,
        "fused": 0.3,
        "unaided": 0.25,
        "propagated": 0.4,
        "trajectory_risk": 0.5,
    }
    assert streams_of({}, None, (None, None), 0.4, None) == dict.fromkeys(
        ("semantic_entropy", "fused", "unaided", "propagated", "trajectory_risk")
    )


@given(st.none() | st.floats(0.0, 1.0), st.none() | st.floats(0.0, 1.0))
def test_the_unaided_confidence_is_no_more_than_the_fused_one_and_there_where_more_than_the_word_was_read(fused, alone):
    streams = streams_of({}, None, (fused, alone), 0.4, None)
    assert (streams["unaided"] is None) is (alone is None)
    assert alone is None or streams["unaided"] == min(alone, 1.0 if fused is None else fused)


def test_a_detector_lacks_what_it_always_had_and_has_not_now():
    detector = detector_of("a", "b", "c", without_gaps=("a", "b"))
    assert lacks(detector, {"a": 0.0, "c": None}) == ["b"]
    assert lacks(detector, {"a": None, "b": 1.0}) == ["a"]


def test_a_detectors_stream_that_is_derived_counts_as_0_where_nothing_gave_it():
    detector = detector_of("mine", "fused", without_gaps=("fused",), watched=1)
    found = step_of(Profile(estimator=PLAIN, detector=detector), {})
    assert found.alarm == alarm_step(detector, None, "s", {"fused": 0.0})[0]
    assert found.unread == "fused: not read"
    assert (found.cumulative, found.worst, found.p_success) == (1.0, None, None)


@pytest.mark.parametrize("reason", sorted(NOT_DUE))
def test_a_detectors_stream_without_gaps_reads_0_in_the_belief_too_whatever_the_reason_that_it_is_missing(reason):
    detector = detector_of("mine", without_gaps=("mine",))
    found = {"verbalized": 0.9, "mine": reason}
    low = step_of(Profile(estimator=PLAIN, detector=detector), found, fused=0.9)
    assert low.cumulative == told(Profile(estimator=PLAIN), [("llm_call", {"verbalized": 0.9, "mine": 0.0})]).cumulative
    never_there = detector_of("mine", without_gaps=())
    assert step_of(Profile(estimator=PLAIN, detector=never_there), found, fused=0.9) is None


@pytest.mark.parametrize("reason", sorted(NOT_DUE))
@pytest.mark.parametrize("before", [[], [("llm_call", {"mine": MissingReason.TIMEOUT})]], ids=["first", "at its worst"])
def test_a_tools_step_owes_no_reading_that_the_models_steps_always_had(reason, before):
    detector = detector_of("mine", without_gaps=("mine",))
    profile = Profile(estimator=PLAIN, detector=detector, calibration=fusion_of("mine"))
    without, missing = ([*before, ("tool_call", {"p_true": 0.9, **more})] for more in ({}, {"mine": reason}))
    assert told(profile, missing) == told(profile, without)


@pytest.mark.parametrize(("stream", "at_worst"), [("propagated", 0.0), ("mine", 0.0), ("count_turns", 1.0)])
def test_a_calibrations_stream_without_gaps_counts_as_its_worst_where_it_is_missing(stream, at_worst):
    slope = -1.0 if at_worst else 1.0
    counted = FusedReading(mean=0.0, sd=1.0, slope=slope)
    fusion = LogisticFusion(readings={stream: counted}, intercept=0.25)
    found = step_of(Profile(estimator=PLAIN, calibration=fusion), {})
    assert found.p_success == fusion({stream: at_worst})
    assert found.unread == f"{stream}: not read"
    gaps = LogisticFusion(readings={stream: counted.model_copy(update={"offset": 0.5})}, intercept=0.25)
    assert step_of(Profile(estimator=PLAIN, calibration=gaps), {}) is None


def test_a_calibration_on_the_propagated_confidence_reads_what_the_zeros_leave_of_it():
    profile = Profile(estimator=PLAIN, calibration=fusion_of("propagated"))
    found = step_of(profile, {"p_true": 0.9, "mine": MissingReason.TIMEOUT})
    least = PLAIN.fuse_readings({"p_true": 0.9, "mine": 0.0})
    propagated, cumulative, _ = propagated_by(profile.propagator, least, "llm_call", START.cumulative, None)
    assert 0.0 < propagated < 0.9
    assert found.p_success == fusion_of("propagated")({"propagated": propagated})
    assert (found.cumulative, found.worst) == (cumulative, least)


def test_a_detector_reads_the_chance_at_its_worst():
    fusion, detector = fusion_of("mine"), detector_of("p_success")
    found = step_of(Profile(estimator=PLAIN, calibration=fusion, detector=detector), {"mine": MissingReason.TIMEOUT})
    assert found.p_success == fusion({"mine": 0.0})
    assert found.alarm == alarm_step(detector, None, "s", {"p_success": found.p_success})[0]
    assert found.unread == "mine: timeout"


@pytest.mark.parametrize("due", [True, False])
def test_a_risk_that_could_not_be_read_counts_as_0_and_one_that_was_read_as_it_is(due):
    detector = detector_of("trajectory_risk")
    profile = Profile(estimator=PLAIN, detector=detector)
    streams = {"trajectory_risk": 0.75}
    before = step_of(profile, {"mine": MissingReason.TIMEOUT}, streams=streams, risk_due=due)
    assert before.alarm == alarm_step(detector, None, "s", {"trajectory_risk": 0.0 if due else 0.75})[0]
    assert before.unread == "mine: timeout" + ("; trajectory_risk: not read" if due else "")


@pytest.mark.parametrize("stream", ["mine", "fused", "propagated", "semantic_entropy", "trajectory_risk", "p_success"])
def test_a_step_gives_a_detector_its_stream_as_the_record_says_it(stream):
    profile = Profile(
        estimator=PLAIN,
        detector=detector_of(stream),
        calibration=fusion_of("fused"),
        trajectory_risk=TrajectoryRiskSettings(),
    )
    step = Step(step_id="m", kind="llm_call", time_s=0.0)
    found = [Reading(source="mine", value=0.875), Reading(source="semantic_entropy", value=0.5)]
    risk = TrajectoryReading(pending=StepComponents(is_agent=True, surprisal=2.0))
    state, told = advance(profile, replace(START, cumulative=0.25), step, found, risk)
    said = {
        "mine": 0.875,
        "fused": told.fused_confidence,
        "propagated": told.propagated_confidence,
        "semantic_entropy": told.semantic_confidence,
        "trajectory_risk": 1.0 / (1.0 + told.trajectory_risk),
        "p_success": told.p_success,
    }
    assert state.alarm == alarm_step(detector_of(stream), None, "s", said)[0]


@pytest.mark.parametrize("why", [None, *MissingReason])
def test_a_risk_is_due_where_its_texts_could_not_be_read(why):
    detector = detector_of("trajectory_risk", without_gaps=())
    profile = Profile(detector=detector, trajectory_risk=TrajectoryRiskSettings())
    step = Step(step_id="m", kind="llm_call", time_s=0.0)
    found = advance(profile, START, step, [], TrajectoryReading(reason=why))[0].worst_case
    due = why in {MissingReason.TIMEOUT, MissingReason.SIGNAL_ERROR}
    assert (found and found.unread) == ("trajectory_risk: not read" if due else None)


def test_it_begins_with_the_first_reading_that_was_due_or_the_first_risk():
    profile = Profile(estimator=PLAIN, detector=detector_of("mine"))
    assert step_of(profile, {"mine": 0.5}, fused=0.5) is None
    assert step_of(profile, {"mine": 0.5}, fused=0.5, risk_due=True).unread == "trajectory_risk: not read"
    bare = Profile(estimator=PLAIN)
    missing = {"mine": 0.5, "other": MissingReason.TIMEOUT}
    assert step_of(bare, missing, fused=0.5, streams={}) is None  # a reading without weight changes nothing
    assert step_of(bare, {"mine": MissingReason.TIMEOUT}, streams={}).worst == 0.0
    weightless = Profile(estimator=PLAIN, detector=detector_of("other"))
    assert step_of(weightless, missing, fused=0.5).unread == "other: timeout"


def test_a_step_with_everything_read_and_a_tools_step_leave_what_was_said_and_the_least_so_far():
    profile = Profile(estimator=PLAIN, detector=detector_of("mine"), calibration=fusion_of("mine"))
    first = step_of(profile, {"mine": MissingReason.TIMEOUT})
    state = SessionState(session_id="s", worst_case=first)
    after = step_of(profile, {"mine": 0.75}, state, fused=0.75)
    assert (after.unread, after.worst) == ("mine: timeout", 0.0)
    assert after.p_success == fusion_of("mine")({"mine": 0.75})
    tool = step_of(profile, {}, state, kind="tool_call", streams={"trajectory_risk": None})
    assert tool == first
    again = step_of(profile, {"p_true": MissingReason.PARSE_ERROR, "mine": 0.25}, state, fused=0.25)
    assert again.unread == "p_true: parse_error"
    lower = SessionState(session_id="s", worst_case=WorstCase(cumulative=0.5, worst=0.5, unread="x"))
    assert step_of(profile, {"mine": 0.75}, lower, fused=0.75).worst == 0.5
    assert step_of(profile, {"mine": 0.25}, lower, fused=0.25).worst == 0.25
    assert step_of(profile, {}, lower, streams={}).worst == 0.5


def test_what_it_says_of_many_missing_readings_is_cut_at_200_characters():
    found = step_of(Profile(estimator=PLAIN), {f"source_{n}": MissingReason.TIMEOUT for n in range(40)}, fused=0.5)
    assert len(found.unread) == 200
    assert found.unread.startswith("source_0: timeout; source_1: timeout; ")
