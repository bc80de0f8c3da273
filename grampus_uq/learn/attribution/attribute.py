"""From a failed run and labelled failures to its prediction set in one call: part, fit, calibrate, locate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.conditional_logit import fit_step_scorer
from grampus_uq.learn.attribution.failed_trajectory import (
    LabelledTrajectory,
    Trajectory,
    by_task,
    refuse_duplicates,
    uniform_draws,
)
from grampus_uq.learn.attribution.result import Attribution
from grampus_uq.learn.attribution.scorers import StepScorer
from grampus_uq.learn.attribution.set_calibration import CalibratedAttribution, Plan, calibrate, locate
from grampus_uq.stats.conformal import whole_rank_size
from grampus_uq.stats.eprocess_thresholds import successes_needed

FIT_SHARE = 0.5
"""Share of the labelled failures that fits the step scorer; less where the level needs more of them to calibrate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Labelled failures in two parts without overlap: one fits the scorer, one calibrates."""

    fitting: tuple[LabelledTrajectory, ...]
    calibration: tuple[LabelledTrajectory, ...]


def part_labelled(labelled: Sequence[LabelledTrajectory], level: float, *, seed: int = 0) -> Parts:
    """Split labelled failures by their ids, independently of the order of the rows.

    Trials of one task stay together, and sizes count tasks.

    `labelled`: at least two failures with unique ids, of two tasks. `level`: wanted coverage; the calibration part is
    shrunk to a size at which the rank is whole (`whole_rank_size`), and what is left over goes to the fit. `seed`: of
    the order. Each part has at least one failure. Raises ConfigurationError for fewer failures or tasks than two, a
    repeated id, and a level outside (0, 1).
    """
    if len(labelled) < 2:
        hint = 'One fits, one calibrates. `grampus-uq runs label` names an error: --note "error at STEP".'
        raise ConfigurationError.of("labelled", "part_labelled", "at least two failures", len(labelled), hint)
    refuse_duplicates([item.trajectory for item in labelled], "part_labelled")
    tasks = by_task(labelled)
    if len(tasks) < 2:
        raise ConfigurationError.of("labelled", "part_labelled", "failures of at least two tasks", len(tasks))
    draws = uniform_draws([name for name, _ in tasks], seed, "parts")
    ordered = [tasks[i][1] for i in draws.argsort(kind="stable")]
    spare = max(1, len(ordered) - successes_needed(1.0 - level))
    fitting = min(max(1, math.ceil(FIT_SHARE * len(ordered) - 1e-9)), spare)
    calibration = max(1, whole_rank_size(len(ordered) - fitting, level))
    return Parts(fitting=tuple(chain(*ordered[:-calibration])), calibration=tuple(chain(*ordered[-calibration:])))


def fit_and_calibrate(labelled: Sequence[LabelledTrajectory], plan: Plan | None = None) -> CalibratedAttribution:
    """Fit the conditional logit on one part of the labelled failures (`part_labelled`) and calibrate on the other.

    `plan`: default VCP at 80 %. Returns the input of `locate`, with a `ConditionalLogitScorer`. Raises
    ConfigurationError as `part_labelled`, `fit_step_scorer` and `calibrate`.
    """
    plan = plan or Plan()
    parts = part_labelled(labelled, plan.level, seed=plan.seed)
    return calibrate(parts.calibration, fit_step_scorer(parts.fitting), plan)


def attribute(
    failed: Trajectory,
    labelled: Sequence[LabelledTrajectory],
    *,
    scorer: StepScorer | None = None,
    plan: Plan | None = None,
) -> Attribution:
    """Find the set of steps that holds the decisive error of a failed run with a stated probability.

    Guarantee: with probability at least `plan.level` over failures and calibration sets, the set holds the decisive
    error, provided that the failed run is exchangeable with the labelled ones (`grampus_uq.stats.conformal`).

    `failed` is not among the `labelled` failures, whose errors are known. With a `scorer` of your own, fitted on none
    of them, all of these calibrate; without, part of them fits the conditional logit. `plan`: default VCP at 80 %. For
    many runs call `calibrate` once and `locate` for each. Raises ConfigurationError as `calibrate`, `locate` and
    `part_labelled`.
    """
    calibrated = fit_and_calibrate(labelled, plan) if scorer is None else calibrate(labelled, scorer, plan)
    return locate(failed, calibrated)
