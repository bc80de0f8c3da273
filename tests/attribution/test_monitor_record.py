"""The monitor's own record scores steps: drops, risks, tool errors; what is missing neither accuses nor clears."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution import MonitorRecord, MonitorRecordScorer, record_features, trajectory_from_events
from grampus_uq.records.events import Event, ObservationEvent, OutcomeEvent, StepEvent
from grampus_uq.records.values import Outcome, Reading, Step, StepUncertainty, ToolCall
from grampus_uq.records.vocabulary import UncertaintyAction, UncertaintyLevel
from tests.attribution.runs import trajectory

NAN = float("nan")


def record(**changes: object) -> MonitorRecord:
    values: dict[str, object] = {
        "confidence": np.array([0.9, NAN, 0.4, 0.8]),
        "tool_error": np.array([NAN, 1.0, NAN, 0.0]),
        "risk": {"trajectory_risk": np.array([0.0, 2.0, NAN, 1.0])},
    }
    return MonitorRecord(**(values | changes))  # type: ignore[arg-type]  # by name


def test_the_columns_are_what_they_are_called() -> None:
    names, values = record_features(record())
    column = dict(zip(names, values.T.tolist(), strict=True))
    assert column["confidence_drop"] == pytest.approx([0.25, 0.25, 0.5, 0.0]), "0.9 to 0.4, over the gap"
    assert column["low_confidence"] == pytest.approx([0.1, 0.3, 0.6, 0.2]), "the gap takes the mean of the others"
    assert column["tool_error"] == [0.5, 1.0, 0.5, 0.0]
    assert column["next_tool_error"] == [1.0, 0.5, 0.0, 0.5], "the call was made in the step before"
    assert column["trajectory_risk"] == [0.0, 2.0, 1.0, 1.0]


def test_a_column_without_any_reading_counts_nothing() -> None:
    nothing = record(confidence=np.full(4, NAN), tool_error=np.full(4, NAN), risk={})
    assert record_features(nothing)[1].tolist() == [[0.0] * 4] * 4


def test_scores_are_weighted_sums_and_say_what_they_are_made_of() -> None:
    run = trajectory("r", ["a", "b", "c", "d"])
    scorer = MonitorRecordScorer(
        records={"r": record()}, weights={"trajectory_risk": 2.0, "confidence_drop": 1.0}, other_weight=0.0
    )
    scores = scorer.score(run)
    assert scores.values == pytest.approx([0.25, 4.25, 2.5, 2.0])
    assert scores.steps[1].why == "trajectory risk 4.00, confidence drop 0.25"


@pytest.mark.parametrize(
    "changes",
    [
        {"confidence": np.array([1.2, 0.0, 0.0, 0.0])},
        {"confidence": np.array([0.5])},
        {"tool_error": np.array([NAN, -1.0, NAN, NAN])},
        {"risk": {"r": np.array([np.inf, 0.0, 0.0, 0.0])}},
        {"risk": {"r": np.array([-1.0, 0.0, 0.0, 0.0])}},
    ],
)
def test_readings_outside_their_domain_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        record(**changes)


def test_a_run_without_a_record_or_with_another_length_is_refused() -> None:
    scorer = MonitorRecordScorer(records={"r": record()})
    with pytest.raises(ConfigurationError, match="a record of 2 steps"):
        scorer.score(trajectory("r", ["a", "b"]))
    with pytest.raises(ConfigurationError, match="None"):
        scorer.score(trajectory("other", ["a"]))
    with pytest.raises(ConfigurationError, match="weight"):
        MonitorRecordScorer(records={}, other_weight=-1.0)


def step_event(step_id: str, fused: float | None, *, session: str = "s", risk: float | None = None) -> StepEvent:
    reading = Reading(source="verbalized", value=fused, reason=None if fused is not None else "not_stated")
    return StepEvent(
        session_id=session,
        agent_id="clerk",
        step=Step(step_id=step_id, kind="llm_call", time_s=0.0, text="hm", tool_calls=(ToolCall(name="pay"),)),
        readings=(reading,),
        assessment=StepUncertainty(
            step_id=step_id,
            step_type="llm_call",
            index=0,
            fused_confidence=0.5 if fused is None else fused,
            propagated_confidence=0.7,
            p_success=None if fused is None else fused / 2,
            trajectory_risk=risk,
            level=UncertaintyLevel.LOW,
            action=UncertaintyAction.PROCEED,
            timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        ),
        started_ns=0,
        ended_ns=0,
    )


def test_a_recorded_session_becomes_a_run_with_its_record() -> None:
    events: list[Event] = [
        step_event("a", 0.9, risk=0.1),
        ObservationEvent(session_id="s", agent_id="clerk", kind="tool_result", text="no funds", is_error=True),
        step_event("b", None),
        ObservationEvent(session_id="s", agent_id="clerk", kind="user", text="why?"),
        step_event("a", 0.2),
        OutcomeEvent(session_id="s", agent_id="clerk", outcome=Outcome(success=False)),
    ]
    recorded = trajectory_from_events(events, task="pay it")
    run = recorded.trajectory
    assert (run.trajectory_id, run.task) == ("s", "pay it")
    assert [s.step_id for s in run.steps] == ["a", "a/observation-1", "b", "b/observation-1", "a#2"]
    assert [s.speaker for s in run.steps] == ["clerk", "tool", "clerk", "user", "clerk"]
    assert [s.tool_failed for s in run.steps] == [None, True, None, None, None]
    assert [s.observation for s in run.steps] == [False, True, False, False, False]
    assert run.steps[0].text == "hm\npay({})"
    confidence = recorded.record.confidence
    assert confidence[[0, 4]].tolist() == [0.9, 0.2]
    assert np.isnan(confidence[[1, 2, 3]]).all(), "a float of 0.5 without a reading is no confidence"
    assert recorded.record.tool_error[1] == 1.0
    assert recorded.record.risk["failure_probability"][0] == pytest.approx(0.55)
    scorer = MonitorRecordScorer(records={"s": recorded.record})
    assert len(scorer.score(run).values) == 5


def test_events_of_two_sessions_or_of_none_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="of one session"):
        trajectory_from_events([step_event("a", 0.5), step_event("b", 0.5, session="t")])
    with pytest.raises(ConfigurationError, match="of one session"):
        trajectory_from_events([])
