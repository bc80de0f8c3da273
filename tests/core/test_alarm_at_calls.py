"""A detector that looks at irreversible calls alone: each by the turn that proposes it, and nothing else moves it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Profile, Reading, SessionState, Step, ToolCall, UncertaintyAction, UncertaintyPolicy
from grampus_uq.core.engine import advance, judge_call
from grampus_uq.core.state import answer_alarm, change_profile, state_from_json, state_to_json
from grampus_uq.learn.fit.detector import fit_budget
from grampus_uq.records.vocabulary import Effect, MissingReason
from grampus_uq.stats.eprocess import Detector, detector_from_json, detector_to_json, log_peaks
from grampus_uq.stats.step_blocks import step_blocks
from tests.detector_rows import detector_runs

IRREVERSIBLE, READ = Effect.IRREVERSIBLE, Effect.READ
PAUSE = UncertaintyAction.PAUSE_FOR_HUMAN


def detector_on(stream: str = "fused") -> Detector:
    """It alarms at a call whose turn is among the worst fifth of 99 runs with one call each: about .2 and below."""
    rows = detector_runs(
        run_ids=[f"r{i}" for i in range(99)], steps=[1] * 99, scores=(np.arange(99) + 1) / 100, streams=(stream,)
    )
    return fit_budget(replace(rows, at_calls=True), rng=np.random.default_rng(0), share=0.2).detector


def profile_on(detector: Detector, **policy: Any) -> Profile:
    estimator = Profile().estimator.model_copy(update={"verbalized_calibration_bias": 0.0})
    return Profile(detector=detector, estimator=estimator, policy=UncertaintyPolicy(**policy))


PROFILE = profile_on(detector_on())


def turn(profile: Profile, state: SessionState, name: str, value: float | None, *calls: ToolCall) -> SessionState:
    reading = Reading(
        source="verbalized", value=value, reason=None if value is not None else MissingReason.SIGNAL_ERROR
    )
    step = Step(step_id=name, kind="llm_call", time_s=0.0, tool_calls=calls)
    return advance(profile, state, step, [reading])[0]


def call(profile: Profile, state: SessionState, made: ToolCall, effect: Effect) -> tuple[SessionState, Any]:
    """Commit a call; what is decided is what was told when it was only asked about."""
    told = judge_call(profile, state, made, effect)
    step = Step(step_id=f"t{state.n_steps}", kind="tool_call", time_s=0.0, tool_calls=(made,), effect=effect)
    state, found = advance(profile, state, step, ())
    assert (told.action, told.rule, told.guarantee) == (found.action, found.rule, found.guarantee)
    assert told.reason == found.reasoning
    return state, found


unit = st.floats(0.0, 1.0)
turns = st.lists(st.tuples(unit, st.sampled_from([None, READ, IRREVERSIBLE])), min_size=1, max_size=12)


@given(turns)
def test_the_evidence_is_that_of_the_turns_that_propose_irreversible_calls_as_it_is_fitted(
    acts: list[tuple[float, Effect | None]],
) -> None:
    """Live against batch; what is told is what is decided; model steps and calls that can be undone move nothing."""
    state, asked = SessionState(session_id="s"), []
    for index, (value, effect) in enumerate(acts):
        made = ToolCall(id=f"c{index}", name="act", arguments={"n": index})
        state, before = turn(PROFILE, state, f"s{index}", value, *([made] if effect else [])), state.alarm
        assert state.alarm == before
        if effect is not None:
            state, found = call(PROFILE, state, made, effect)
            if effect is IRREVERSIBLE:
                asked.append(PROFILE.estimator.fuse_readings({"verbalized": value}))
                assert found.action.stops == state.alarmed
            else:
                assert state.alarm == before
                assert not found.action.stops
    detector = PROFILE.detector
    assert detector is not None
    if not asked:
        assert state.alarm is None
        return
    assert state.alarm is not None
    blocks = step_blocks(np.array(asked, dtype=np.float64)[:, None], np.array([len(asked)]))
    assert state.alarm.evidence.log_peak == log_peaks(detector, blocks)[0]
    assert state.alarm.evidence.step == len(asked)
    assert state_from_json(state_to_json(state)) == state


def test_it_pauses_the_doubtful_call_with_its_promise_and_no_step_that_can_be_undone() -> None:
    made, look = ToolCall(id="1", name="pay"), ToolCall(id="2", name="look")
    state = turn(PROFILE, SessionState(session_id="s"), "s0", 0.05)  # says nothing of a call
    state = turn(PROFILE, state, "s1", 0.9, made)
    state, found = call(PROFILE, state, made, IRREVERSIBLE)
    assert not found.action.stops
    state = turn(PROFILE, state, "s2", 0.05, made)
    state, found = call(PROFILE, state, made, IRREVERSIBLE)
    assert (found.action, found.rule) == (PAUSE, "detector")
    assert "of runs without one it says nothing" in found.guarantee
    assert "log evidence of failure" in found.reasoning
    assert found.log_e_value == state.alarm.evidence.log_m
    state = turn(PROFILE, state, "s3", 0.95, look)
    assert not advance(PROFILE, state, Step(step_id="s4", kind="llm_call", time_s=0.0), ())[1].action.stops
    state, found = call(PROFILE, state, look, READ)
    assert not found.action.stops
    state = answer_alarm(PROFILE, state)
    state = turn(PROFILE, state, "s5", 0.95, made)
    assert call(PROFILE, state, made, IRREVERSIBLE)[1].rule == "detector"  # each one asks for itself from here on


def test_of_turns_side_by_side_the_one_that_proposes_the_call_counts() -> None:
    mine, other = ToolCall(id="1", name="pay"), ToolCall(id="2", name="refund")
    for value, beside, stops in ((0.05, 0.95, True), (0.95, 0.05, False)):
        state = turn(PROFILE, SessionState(session_id="s"), "s0", value, mine)
        state = turn(PROFILE, state, "s1", beside, other)
        assert call(PROFILE, state, mine, IRREVERSIBLE)[1].action.stops is stops
        unknown = judge_call(PROFILE, state, ToolCall(name="delete"), IRREVERSIBLE)
        assert unknown.action.stops  # nobody knows which turn proposed it: the least counts


@pytest.mark.parametrize("value", [0.25, 0.3])
def test_a_reading_that_was_due_and_did_not_come_reads_as_0_at_the_call(value: float) -> None:
    made = ToolCall(id="1", name="pay")
    state = turn(PROFILE, SessionState(session_id="s"), "s0", value, made)
    step = Step(step_id="s1", kind="llm_call", time_s=0.0, tool_calls=(made,))
    readings = [
        Reading(source="verbalized", value=value),
        Reading(source="p_true", value=None, reason=MissingReason.TIMEOUT),
    ]
    state, _ = advance(PROFILE, state, step, readings)
    state, found = call(PROFILE, state, made, IRREVERSIBLE)
    assert (found.action, found.rule) == (PAUSE, "missing_evidence")
    assert not state.alarmed
    for calls in (1, 2):
        assert state.alarm is not None
        assert state.worst_case is not None
        assert state.worst_case.alarm is not None
        assert state.worst_case.alarm.evidence.step == state.alarm.evidence.step == calls
        assert state.worst_case.alarm.evidence.log_peak > state.alarm.evidence.log_peak
        state, _ = call(PROFILE, state, made, IRREVERSIBLE)
    assert call(PROFILE, replace(state, turns=()), made, IRREVERSIBLE)[1].action is PAUSE


def test_a_call_without_a_turn_or_under_another_profile_has_no_evidence() -> None:
    made = ToolCall(id="1", name="pay")
    _, found = call(PROFILE, SessionState(session_id="s"), made, IRREVERSIBLE)
    assert (found.action, found.rule) == (PAUSE, "missing_evidence")
    state = turn(PROFILE, SessionState(session_id="s"), "s0", 0.95, made)
    other = profile_on(detector_on("p_true"))
    assert call(other, change_profile(other, state), made, IRREVERSIBLE)[1].rule == "missing_evidence"


def test_where_it_looks_is_stored_only_where_it_is_at_calls() -> None:
    detector = detector_on()
    assert detector_from_json(detector_to_json(detector)) == detector
    assert detector_to_json(detector)["at_calls"] is True
    assert "at_calls" not in detector_to_json(replace(detector, at_calls=False))
