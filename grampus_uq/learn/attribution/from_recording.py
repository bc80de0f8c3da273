"""A recorded session as a trajectory, and what the monitor wrote down about its steps as a `MonitorRecord`.

Every step of the agent and every observation is one step of the trajectory, in the order in which they were committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.failed_trajectory import Trajectory, TrajectoryStep
from grampus_uq.learn.attribution.monitor_record import MonitorRecord
from grampus_uq.records.events import Event, ObservationEvent, StepEvent
from grampus_uq.records.values import StepUncertainty

__all__ = ["RecordedTrajectory", "trajectory_from_events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrajectory:
    """The trajectory of a session and the monitor's record of it, step for step."""

    trajectory: Trajectory
    record: MonitorRecord


def trajectory_from_events(events: Iterable[Event], *, task: str = "") -> RecordedTrajectory:
    """Turn the events of one session into a trajectory and its record.

    Steps keep their `step_id` (repeated ones get a counter); the k-th observation behind a step is called
    `<step_id>/observation-k`, so that a set tells where to restart: at the step whose observation it is. The record's
    confidence is the fused confidence of steps with a reading; risk components are `trajectory_risk` and, where it was
    calibrated, `failure_probability` (1 - p_success). A tool error counts on its observation.

    Args:
        events: of one session, in commit order.
        task: what the run was asked to do (a recording does not say).

    Returns:
        The trajectory, whose id is the session's, and the record.

    Raises:
        ConfigurationError: no step, or events of several sessions.
    """
    told = [event for event in events if isinstance(event, StepEvent | ObservationEvent)]
    sessions = sorted({event.session_id for event in told})
    if len(sessions) != 1:
        raise ConfigurationError.of("events", "trajectory_from_events", "of one session, with a step", sessions[:3])
    names = _step_names(told)
    steps = tuple(_step(event, name) for event, name in zip(told, names, strict=True))
    return RecordedTrajectory(
        trajectory=Trajectory(trajectory_id=sessions[0], steps=steps, task=task), record=_record(told)
    )


def _step(event: StepEvent | ObservationEvent, name: str) -> TrajectoryStep:
    if isinstance(event, StepEvent):
        return TrajectoryStep(step_id=name, speaker=event.agent_id or "agent", text=event.step.judged_text())
    is_tool = event.kind != "user"
    return TrajectoryStep(
        step_id=name,
        speaker="tool" if is_tool else "user",
        text=event.text,
        observation=is_tool,
        tool_failed=event.is_error if is_tool else None,
    )


def _step_names(told: Sequence[StepEvent | ObservationEvent]) -> list[str]:
    names: list[str] = []
    uses: dict[str, int] = {}
    owner, behind = "start", 0
    for event in told:
        if isinstance(event, StepEvent):
            step_id = event.step.step_id
            uses[step_id] = uses.get(step_id, 0) + 1
            owner = step_id if uses[step_id] == 1 else f"{step_id}#{uses[step_id]}"
            behind = 0
            names.append(owner)
        else:
            behind += 1
            names.append(f"{owner}/observation-{behind}")
    return names


def _record(told: Sequence[StepEvent | ObservationEvent]) -> MonitorRecord:
    assessed = [event.assessment if isinstance(event, StepEvent) else None for event in told]
    return MonitorRecord(
        confidence=_column([_confidence(event) for event in told]),
        tool_error=_column(
            [float(e.is_error) if isinstance(e, ObservationEvent) and e.kind != "user" else None for e in told]
        ),
        risk={
            "trajectory_risk": _column([None if a is None else _not_negative(a.trajectory_risk) for a in assessed]),
            "failure_probability": _column([_failure_probability(a) for a in assessed]),
        },
    )


def _confidence(event: StepEvent | ObservationEvent) -> float | None:
    """The fused confidence, but only where a reading had a value: without one the float field shows 0.5."""
    if isinstance(event, StepEvent) and any(reading.value is not None for reading in event.readings):
        return event.assessment.fused_confidence
    return None


def _failure_probability(assessment: StepUncertainty | None) -> float | None:
    return None if assessment is None or assessment.p_success is None else 1.0 - assessment.p_success


def _not_negative(risk: float | None) -> float | None:
    return None if risk is None else max(0.0, risk)


def _column(values: Sequence[float | None]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
