"""A recorded session becomes a trajectory: one step for each step of the agent and each observation."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution import trajectory_from_events
from grampus_uq.records.events import Event, ObservationEvent, OutcomeEvent, StepEvent
from grampus_uq.records.values import Outcome, Step, StepUncertainty, ToolCall
from grampus_uq.records.vocabulary import UncertaintyAction, UncertaintyLevel


def step_event(step_id: str, *, session: str = "s") -> StepEvent:
    return StepEvent(
        session_id=session,
        agent_id="clerk",
        step=Step(step_id=step_id, kind="llm_call", time_s=0.0, text="hm", tool_calls=(ToolCall(name="pay"),)),
        readings=(),
        assessment=StepUncertainty(
            step_id=step_id,
            step_type="llm_call",
            index=0,
            fused_confidence=0.5,
            propagated_confidence=0.7,
            level=UncertaintyLevel.LOW,
            action=UncertaintyAction.PROCEED,
            timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        ),
        started_ns=0,
        ended_ns=0,
    )


def test_a_recorded_session_becomes_a_trajectory() -> None:
    events: list[Event] = [
        step_event("a"),
        ObservationEvent(session_id="s", agent_id="clerk", kind="tool_result", text="no funds", is_error=True),
        step_event("b"),
        ObservationEvent(session_id="s", agent_id="clerk", kind="user", text="why?"),
        step_event("a"),
        OutcomeEvent(session_id="s", agent_id="clerk", outcome=Outcome(success=False)),
    ]
    run = trajectory_from_events(events, task="pay it")
    assert (run.trajectory_id, run.task) == ("s", "pay it")
    assert [s.step_id for s in run.steps] == ["a", "a/observation-1", "b", "b/observation-1", "a#2"]
    assert [s.speaker for s in run.steps] == ["clerk", "tool", "clerk", "user", "clerk"]
    assert [s.tool_failed for s in run.steps] == [None, True, None, None, None]
    assert [s.observation for s in run.steps] == [False, True, False, False, False]
    assert run.steps[0].text == "hm\npay({})"


def test_events_of_two_sessions_or_of_none_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="of one session"):
        trajectory_from_events([step_event("a"), step_event("b", session="t")])
    with pytest.raises(ConfigurationError, match="of one session"):
        trajectory_from_events([])
