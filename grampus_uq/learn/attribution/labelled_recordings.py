"""Recorded sessions as trajectories, and recorded failures with a labelled step for calibration.

A recording is labelled by `grampus-uq runs label FOLDER SESSION failure --note "error at STEP"`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory, Trajectory, TrajectoryStep
from grampus_uq.learn.columns import task_of
from grampus_uq.recording.runs import Run, each
from grampus_uq.records.events import Event, ObservationEvent, StepEvent
from grampus_uq.records.values import Outcome
from grampus_uq.records.vocabulary import TASK

_NOTE: Final = re.compile(r"\berror at (\S+)", re.IGNORECASE)
_HASHED: Final = re.compile(r"hmac:[0-9a-f]{8,64}:\d+")


def trajectory_from_events(events: Iterable[Event], *, task: str = "") -> Trajectory:
    """Turn the events of one session into a trajectory: a step for each agent step and each observation.

    Steps keep their `step_id` (repeated ones get a counter); the k-th observation after a step is called
    `<step_id>/observation-k`. A tool error counts on its observation.

    `events` are of one session, in commit order; `task`: what the run was asked to do (a recording does not say). The
    trajectory's id is the session's. Raises ConfigurationError for no step, or events of several sessions.
    """
    kept = [event for event in events if isinstance(event, StepEvent | ObservationEvent)]
    sessions = sorted({event.session_id for event in kept})
    if len(sessions) != 1:
        raise ConfigurationError.of("events", "trajectory_from_events", "of one session, with a step", sessions[:3])
    steps: list[TrajectoryStep] = []
    uses: Counter[str] = Counter()
    owner, observations = "start", 0
    for event in kept:
        if isinstance(event, StepEvent):
            step_id = event.step.step_id
            uses[step_id] += 1
            owner, observations = step_id if uses[step_id] == 1 else f"{step_id}#{uses[step_id]}", 0
            steps.append(
                TrajectoryStep(step_id=owner, speaker=event.agent_id or "agent", text=event.step.judged_text())
            )
            continue
        observations += 1
        is_tool = event.kind != "user"
        steps.append(
            TrajectoryStep(
                step_id=f"{owner}/observation-{observations}",
                speaker="tool" if is_tool else "user",
                text=event.text,
                observation=is_tool,
                tool_failed=event.is_error if is_tool else None,
            )
        )
    return Trajectory(trajectory_id=sessions[0], steps=tuple(steps), task=task)


def labelled_recordings(
    recorded: Iterable[Run], on_left_out: Callable[[DataError], None], task_key: str = TASK
) -> list[LabelledTrajectory]:
    """Read the labelled failures; the reason for each run left out goes to `on_left_out`.

    `task_key` names the metadata that says which task a run is a trial of.
    """
    last = (run for run in recorded if not run.superseded)
    return list(each(last, lambda run: _labelled(run, task_of(run, task_key) or ""), on_left_out))


def names_a_step(outcome: Outcome | None) -> bool:
    """Return True for the label of a failure that names the step of the error."""
    return outcome is not None and outcome.success is False and _NOTE.search(outcome.note or "") is not None


def _labelled(run: Run, task: str) -> LabelledTrajectory:
    outcome = run.outcome
    if outcome is None or outcome.success is not False:
        raise _error(run, "is not labelled a failure.")
    note = _NOTE.search(outcome.note or "")
    if note is None:
        raise _error(run, 'has no step in its label; say --note "error at STEP".', "outcome.note")
    trajectory = recorded_trajectory(run)
    places = [step.step_id for step in trajectory.steps]
    if note[1] not in places:
        steps = ", ".join(places)[:300]
        raise _error(run, f"has no step {note[1]!r:.80}; its steps are {steps}.", "outcome.note")
    return LabelledTrajectory(trajectory=trajectory, error_steps=(places.index(note[1]),), trial_of=task)


def recorded_trajectory(run: Run) -> Trajectory:
    """Return a recorded run as a trajectory; DataError when its text was not kept (hashes make no text features)."""
    if not any(isinstance(event, StepEvent | ObservationEvent) for event in run.events):
        raise _error(run, "has no step.")
    trajectory = trajectory_from_events(run.events)
    if all(not step.text.strip() or _HASHED.search(step.text) for step in trajectory.steps):
        raise _error(run, 'was recorded without its text; attribution needs content="full".', "step.text")
    return trajectory


def _error(run: Run, what: str, field: str = "") -> DataError:
    return DataError(f"run {run.session_id!r:.80} {what}", path=run.path, line=run.line, field=field)
