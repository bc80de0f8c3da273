"""A failed run for attribution: steps with a speaker and a text, and, once labelled, its errors.

There is deliberately no field for a reference answer, so that no scorer can use one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryStep:
    """One step: who spoke and what.

    observation: the step is the environment's (a tool's output, a terminal), not an agent's. tool_failed: the step
    reports a tool that failed; None when it reports none or nobody knows.
    """

    step_id: str
    speaker: str
    text: str
    observation: bool = False
    tool_failed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The steps of one run in order, at least one, with unique ids; `task` is what the run was asked to do."""

    trajectory_id: str
    steps: tuple[TrajectoryStep, ...]
    task: str = ""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ConfigurationError.of("steps", "Trajectory", "at least one step", self.trajectory_id)
        if len({step.step_id for step in self.steps}) != len(self.steps):
            raise ConfigurationError.of("steps", "Trajectory", "steps with unique ids", self.trajectory_id)

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTrajectory:
    """A failed run and the 0-based indices of its errors: one, the decisive error, or several.

    trial_of: the task, by a name that all its trials share; "" for a run that is the only one of its task.
    """

    trajectory: Trajectory
    error_steps: tuple[int, ...]
    trial_of: str = ""

    def __post_init__(self) -> None:
        length = len(self.trajectory)
        ascending = all(a < b for a, b in zip(self.error_steps, self.error_steps[1:], strict=False))
        if not self.error_steps or not ascending or not 0 <= self.error_steps[0] <= self.error_steps[-1] < length:
            rule = f"ascending indices in 0..{length - 1}, at least one"
            hint = f"trajectory {self.trajectory.trajectory_id!r}; leave out a label that points beyond the end"
            raise ConfigurationError.of("error_steps", "LabelledTrajectory", rule, self.error_steps, hint)


def by_task(labelled: Iterable[LabelledTrajectory]) -> list[tuple[str, list[LabelledTrajectory]]]:
    """Each task with its failures; one that names none is a task of its own, by its id."""
    tasks: dict[tuple[bool, str], list[LabelledTrajectory]] = {}
    for item in labelled:
        tasks.setdefault((bool(item.trial_of), item.trial_of or item.trajectory.trajectory_id), []).append(item)
    return [(name, items) for (_, name), items in tasks.items()]


def one_of_each_task(labelled: Iterable[LabelledTrajectory], seed: int) -> list[LabelledTrajectory]:
    """One failure of each task, drawn by seed: its trials resemble each other, and do not count as independent."""
    return [
        items[int(uniform_draws([item.trajectory.trajectory_id for item in items], seed, "trials").argmin())]
        for _, items in by_task(labelled)
    ]


def uniform_draws(ids: Iterable[str], seed: int, stream: str) -> FloatArray:
    """Draw one uniform number in [0, 1) for each id: the same id, seed and stream give the same number.

    Made by hashing, so that a trajectory keeps its tie draw whatever the order of the rows and in every process.

    >>> a, b, c = uniform_draws(["run-1", "run-1", "run-2"], 0, "ties").tolist()
    >>> a == b, a == c
    (True, False)
    """
    keys = (f"{stream}\x00{seed}\x00{name}".encode("utf-8", "surrogatepass") for name in ids)
    heads = [int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> 11 for key in keys]
    return np.array(heads, dtype=np.float64) / 2.0**53


def refuse_duplicates(trajectories: Sequence[Trajectory], owner: str) -> None:
    """Raise ConfigurationError when a trajectory id occurs twice: a repeated run is not a second observation."""
    seen: set[str] = set()
    for trajectory in trajectories:
        if trajectory.trajectory_id in seen:
            raise ConfigurationError.of("trajectories", owner, "free of repeated ids", trajectory.trajectory_id)
        seen.add(trajectory.trajectory_id)
