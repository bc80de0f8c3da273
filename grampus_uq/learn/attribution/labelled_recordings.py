"""Recorded failures whose decisive step somebody labelled, as trajectories to calibrate on.

A recording is labelled by `grampus-uq runs label SESSION failure --note "error at STEP"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from grampus_uq.errors import DataError
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory, Trajectory
from grampus_uq.learn.attribution.from_recording import trajectory_from_events
from grampus_uq.learn.columns import TASK, task_of
from grampus_uq.recording.runs import Run
from grampus_uq.records.events import ObservationEvent, StepEvent
from grampus_uq.records.values import Outcome

__all__ = ["labelled_recordings", "names_a_step", "recorded_trajectory"]

_NOTE: Final = re.compile(r"\berror at (\S+)", re.IGNORECASE)
_HASHED: Final = re.compile(r"hmac:[0-9a-f]{8,64}:\d+")


def labelled_recordings(
    recorded: Iterable[Run], on_left_out: Callable[[DataError], None], task_key: str = TASK
) -> list[LabelledTrajectory]:
    """Read the labelled failures; each run that is none is left out, and `on_left_out` is told why.

    `task_key` names the metadata that says which task a run is a trial of.
    """
    labelled = []
    for run in recorded:
        if run.superseded:
            continue
        try:
            labelled.append(_labelled(run, task_of(run, task_key) or ""))
        except DataError as error:
            on_left_out(error)
    return labelled


def names_a_step(outcome: Outcome | None) -> bool:
    """True for the label of a failure that names the step of the error."""
    return outcome is not None and outcome.success is False and _NOTE.search(outcome.note or "") is not None


def _labelled(run: Run, task: str) -> LabelledTrajectory:
    outcome = run.outcome
    if outcome is None or outcome.success is not False:
        raise DataError(f"run {run.session_id!r:.80} is not labelled a failure.", path=run.path, line=run.line)
    note = _NOTE.search(outcome.note or "")
    if note is None:
        hint = 'has no step in its label; say --note "error at STEP".'
        raise DataError(f"run {run.session_id!r:.80} {hint}", path=run.path, line=run.line, field="outcome.note")
    trajectory = recorded_trajectory(run)
    places = [step.step_id for step in trajectory.steps]
    if note[1] not in places:
        raise DataError(
            f"run {run.session_id!r:.80} has no step {note[1]!r:.80}; its steps are {', '.join(places)[:300]}.",
            path=run.path,
            line=run.line,
            field="outcome.note",
        )
    return LabelledTrajectory(trajectory=trajectory, error_steps=(places.index(note[1]),), trial_of=task)


def recorded_trajectory(run: Run) -> Trajectory:
    """A recorded run, if its text was kept: without it every text feature would be the hash's."""
    told = [event for event in run.events if isinstance(event, StepEvent | ObservationEvent)]
    if not told:
        raise DataError(f"run {run.session_id!r:.80} has no step.", path=run.path, line=run.line)
    texts = [event.step.judged_text() if isinstance(event, StepEvent) else event.text for event in told]
    if all(not text.strip() or _HASHED.search(text) for text in texts):
        reason = f'run {run.session_id!r:.80} was recorded without its text; attribution needs content="full".'
        raise DataError(reason, path=run.path, line=run.line, field="step.text")
    return trajectory_from_events(run.events).trajectory
