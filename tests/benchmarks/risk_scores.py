"""TRACER, what it has to beat, and its parts, each as a score after every step of a run; higher is worse.

The trivial counts are there because, on the published runs that we measured, most of them do better than TRACER.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from grampus_uq.learn.trajectories import TracerTrajectory
from grampus_uq.stats.trajectory_risk import (
    Composite,
    StepComponents,
    TracerParameters,
)
from tests.trajectory_runs import tracer_scores

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTrajectory(TracerTrajectory):
    """A trajectory with the characters that agent, tools and user wrote at each step."""

    characters: tuple[float, ...]


_PathScore = Callable[[CountedTrajectory], FloatArray]


def tracer_path(parameters: TracerParameters, keep: Callable[[StepComponents], bool] | None = None) -> _PathScore:
    """Make the function that scores every prefix of a run; steps that `keep` refuses stay in it with risk 0."""

    def path(run: CountedTrajectory) -> FloatArray:
        seen = [step if keep is None or keep(step) else StepComponents(is_agent=step.is_agent) for step in run.steps]
        return np.array(tracer_scores(seen, parameters))

    return path


def extended_step_risk(step: StepComponents) -> float:
    """Return max(wording repetition, tool error, duplicate call, duplicate observation), events counting 1.

    Not the paper's. The repetition in it reads a call word by word, so that a call repeated with one argument changed
    counts in part; D_rep itself compares calls as wholes. Its sum over the steps of a run is the baseline that TRACER
    has to beat and, on the published runs that we measured, mostly does not. 0 on user steps.
    """
    event = step.tool_error or step.duplicate_call or step.duplicate_observation
    return 1.0 if event else (step.wording_repetition or 0.0)


def _counted(what: Callable[[StepComponents], float]) -> _PathScore:
    """Make the function that sums a number of each step over every prefix of a run."""
    return lambda run: np.cumsum([what(step) for step in run.steps], dtype=np.float64)


DEFAULTS: Final = TracerParameters()
SCORES: Final[Mapping[str, _PathScore]] = {
    "tracer_default": tracer_path(DEFAULTS),
    "extended_sum": _counted(extended_step_risk),
    "n_steps": _counted(lambda step: 1.0),
    "n_chars": lambda run: np.cumsum(run.characters, dtype=np.float64),
    "tool_errors": _counted(lambda step: float(bool(step.tool_error))),
    "duplicate_calls": _counted(lambda step: float(bool(step.duplicate_call))),
}
"""TRACER unfitted, its extension, and counts."""

ABLATIONS: Final[Mapping[str, _PathScore]] = {
    "tracer_agent_only": tracer_path(DEFAULTS, keep=lambda step: step.is_agent),
    "tracer_user_only": tracer_path(DEFAULTS, keep=lambda step: not step.is_agent),
    "tracer_additive": tracer_path(TracerParameters(composite=Composite.ADDITIVE)),
    "tracer_multiplicative": tracer_path(TracerParameters(composite=Composite.MULTIPLICATIVE)),
    "tracer_separate": tracer_path(TracerParameters(composite=Composite.SEPARATE)),
    "tracer_with_events": tracer_path(TracerParameters(event=1.0)),
    "duplicate_observations": _counted(lambda step: float(bool(step.duplicate_observation))),
}
"""Table III (one actor alone), Table IV (other composites), TRACER with events."""


def fitted_paths(
    runs: Sequence[CountedTrajectory], fold_of: Sequence[int], parameters: Sequence[TracerParameters]
) -> list[FloatArray]:
    """Score every prefix by parameters that were fitted on other folds, as a rank among the runs of those folds.

    `fold_of`: each run's fold; `parameters`: those fitted without each fold. The scores of two folds have different
    scales; ranks among the highest scores of the fitting runs have one, in [0, 1].
    """
    paths: list[FloatArray] = [np.empty(0)] * len(runs)
    for fold, fitted in enumerate(parameters):
        score = tracer_path(fitted)
        inside = np.sort([score(run).max() for run, its in zip(runs, fold_of, strict=True) if its != fold])
        for index in (index for index, its in enumerate(fold_of) if its == fold):
            path = score(runs[index])
            below = np.searchsorted(inside, path, "left") + np.searchsorted(inside, path, "right")
            paths[index] = below / (2.0 * len(inside))
    return paths
