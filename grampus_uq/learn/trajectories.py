"""A recorded run as TRACER reads it: the components of each step, as recorded, and its label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grampus_uq.learn.columns import task_of
from grampus_uq.learn.eligibility import eligibility
from grampus_uq.recording.runs import Run
from grampus_uq.records.events import OutcomeEvent, StepEvent
from grampus_uq.records.vocabulary import TASK, MissingReason
from grampus_uq.stats.trajectory_risk import StepComponents


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerTrajectory:
    """The steps of one run, of agent and user, in order."""

    run_id: str
    task: str
    failed: bool
    steps: tuple[StepComponents, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectories:
    """Labelled trajectories, and how many runs were left out, by reason."""

    runs: tuple[TracerTrajectory, ...]
    excluded: Mapping[str, int] = field(default_factory=dict)


def labelled_trajectories(recorded: Iterable[Run], *, task_key: str = TASK) -> Trajectories:
    """Gather the runs whose outcome is known and was not selected, and whose components were all read.

    Left out and counted by reason: runs that may not be learned from (`eligibility`), those in which some text could
    not be read (`unread_texts`), and those that were not watched with TRACER (`no_components`). `task_key` names the
    metadata that says which task a run belongs to; without it every run is its own task.
    """
    runs: list[TracerTrajectory] = []
    excluded: Counter[str] = Counter()
    for run in recorded:
        reason = eligibility(run).reason or _unread(run)
        trajectory = None if reason else trajectory_of(run, task_key=task_key)
        if trajectory is None:
            excluded[reason or "no_components"] += 1
        else:
            runs.append(trajectory)
    return Trajectories(runs=tuple(runs), excluded=dict(sorted(excluded.items())))


def _unread(run: Run) -> str:
    read = [event.trajectory for event in run.steps if event.trajectory is not None]
    return "unread_texts" if any(one.reason is not None for one in read) else ""


def trajectory_of(run: Run, *, task_key: str = TASK) -> TracerTrajectory | None:
    """Read one run, complete to its last step; None when it was not watched with TRACER. Failed unless a success."""
    steps: list[StepComponents] = []
    last: Sequence[StepComponents] = ()  # what the latest event says of the steps that are not complete
    kept = {id(event) for event in run.steps}
    for event in run.events:
        if isinstance(event, StepEvent) and id(event) in kept and event.trajectory is not None:
            steps += event.trajectory.completed
            last = () if event.trajectory.pending is None else (event.trajectory.pending,)
        elif (
            isinstance(event, OutcomeEvent)
            and event.trajectory is not None
            and event.trajectory.reason in (None, MissingReason.NOT_SENSED)
        ):  # it replaces what was open, and a step after it, of a run that was taken up again, replaces it
            last = event.trajectory.completed
    if not steps and not last:
        return None
    return TracerTrajectory(
        run_id=run.session_id,
        task=task_of(run, task_key) or run.session_id,
        failed=run.outcome is None or run.outcome.success is not True,
        steps=(*steps, *last),
    )
