"""Failures told from successes by a score that grows along a run: at its end, at a fixed step, and as an alarm.

A *path* is a score's value after every step of a run; higher is worse, NaN is "no value yet". An early warning is given
with the false alarms that it costs at the same point, and its threshold is set on runs of other tasks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.bootstrap import RowStatistic, bootstrap
from grampus_uq.stats.ranking import aurc, auroc, auroc_rows
from grampus_uq.stats.ranks import conformal_rank

FloatArray = npt.NDArray[np.float64]

_FIXED_STEPS = (5, 10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPaths:
    """Runs with one score: `paths` one array a run, a value a step; `failed` and `task` one a run."""

    paths: Sequence[FloatArray]
    failed: Sequence[bool]
    tasks: Sequence[Hashable]

    def __post_init__(self) -> None:
        if not len(self.paths) == len(self.failed) == len(self.tasks):
            rule = f"as many as paths ({len(self.paths)})"
            raise ConfigurationError.of("failed", "ScoredPaths", rule, (len(self.failed), len(self.tasks)))
        if any(len(path) == 0 for path in self.paths):
            raise ConfigurationError.of("paths", "ScoredPaths", "runs with at least one step", 0)


def conformal_stops(scored: ScoredPaths, alpha: float) -> list[int | None]:
    """Give the step (from 1) at which each run would be stopped; None: at none.

    A run is stopped when its score passes the conformal quantile, level `alpha` in (0, 1), of the highest scores of the
    successes of all *other* tasks. If tasks are exchangeable, that stops a success with a probability of at most about
    alpha at any step at all; with few successes the threshold is infinite and nothing is stopped.
    """
    highest = np.array([np.nanmax(path, initial=-np.inf) for path in scored.paths])
    succeeded = ~np.asarray(scored.failed, bool)
    _, task = np.unique(np.array([repr(task) for task in scored.tasks]), return_inverse=True)
    stops: list[int | None] = []
    thresholds: dict[int, float] = {}
    for number, path in enumerate(scored.paths):
        own = int(task[number])
        if own not in thresholds:
            others = np.sort(highest[succeeded & (task != own)])
            rank = conformal_rank(len(others), alpha)
            thresholds[own] = np.inf if rank is None else float(others[rank - 1])
        beyond = np.flatnonzero(path > thresholds[own])
        stops.append(int(beyond[0]) + 1 if len(beyond) else None)
    return stops


def early_warning(
    scored: ScoredPaths,
    *,
    seed: int = 0,
    alpha: float = 0.1,
    draws: int = 2000,
    fixed_steps: Sequence[int] = _FIXED_STEPS,
) -> dict[str, Any]:
    """Measure one score; a figure that is not defined is None.

    `auroc`: probability that a failure ends with the higher score than a success, ties one half, with its interval
    bootstrapped over tasks; `auarc`. `early_false_alarm_rate`, `early_detection`: shares of successes and failures
    that `conformal_stops` stops at any step, with intervals; `early_before_half`, `early_false_before_half`: in the
    first half of the run; `early_median_time`: median over the failures it stops of step / length, None when it stops
    none.
    `prefix_auroc_T`: AUROC after step T among the `prefix_runs_T` runs that get so far. Runs without any value are left
    out: `runs` and `failures` count those that are in.
    """
    kept = [number for number, path in enumerate(scored.paths) if np.isfinite(path).any()]
    inside = ScoredPaths(
        paths=[scored.paths[number] for number in kept],
        failed=[scored.failed[number] for number in kept],
        tasks=[scored.tasks[number] for number in kept],
    )
    failed = np.array(inside.failed, dtype=np.float64)
    measured: dict[str, Any] = {"runs": len(kept), "failures": int(failed.sum())}
    last = np.array([_last(path) for path in inside.paths])
    measured |= _ranked(last, failed, inside.tasks, seed, draws)
    measured |= _alarmed(inside, failed, seed, alpha, draws)
    lengths = np.array([len(path) for path in inside.paths])
    for step in fixed_steps:
        still = np.flatnonzero(lengths >= step)
        at = np.array([_last(inside.paths[int(number)][:step]) for number in still])
        known = np.isfinite(at)
        measured[f"prefix_auroc_{step}"] = auroc(at[known], failed[still][known]) if known.any() else None
        measured[f"prefix_runs_{step}"] = int(known.sum())
    return measured


def _last(path: FloatArray) -> float:
    """The latest value of a path; NaN before there is one."""
    known = path[np.isfinite(path)]
    return float(known[-1]) if len(known) else float("nan")


def _ranked(last: FloatArray, failed: FloatArray, tasks: Sequence[Hashable], seed: int, draws: int) -> dict[str, Any]:
    if not len(last):
        return dict.fromkeys(("auroc", "auroc_low", "auroc_high", "auarc"))
    low, high = _interval(lambda counts: auroc_rows(last, failed, counts), tasks, seed, draws)
    return {
        "auroc": auroc(last, failed),
        "auroc_low": low,
        "auroc_high": high,
        "auarc": 1.0 - (aurc(-last, 1.0 - failed) or 0.0),
    }


def _alarmed(scored: ScoredPaths, failed: FloatArray, seed: int, alpha: float, draws: int) -> dict[str, Any]:
    stops = conformal_stops(scored, alpha)
    stopped = np.array([float(stop is not None) for stop in stops])
    when = np.array([np.nan if s is None else s / len(path) for s, path in zip(stops, scored.paths, strict=True)])
    detected = when[(failed == 1.0) & (stopped == 1.0)]
    false_low, false_high = _interval(_share(stopped, 1.0 - failed), scored.tasks, seed, draws)
    found_low, found_high = _interval(_share(stopped, failed), scored.tasks, seed, draws)
    return {
        "early_false_alarm_rate": _mean(stopped[failed == 0.0]),
        "early_false_alarm_low": false_low,
        "early_false_alarm_high": false_high,
        "early_detection": _mean(stopped[failed == 1.0]),
        "early_detection_low": found_low,
        "early_detection_high": found_high,
        "early_before_half": _mean(when[failed == 1.0] <= 0.5),
        "early_false_before_half": _mean(when[failed == 0.0] <= 0.5),
        "early_median_time": float(np.median(detected)) if len(detected) else None,
    }


def _mean(values: npt.NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _interval(
    statistic: RowStatistic, tasks: Sequence[Hashable], seed: int, draws: int
) -> tuple[float | None, float | None]:
    if not len(tasks):
        return None, None
    names, member = np.unique([repr(task) for task in tasks], return_inverse=True)  # tasks are drawn, not runs
    got = bootstrap(
        lambda counts: statistic(counts[:, member]), len(names), rng=np.random.default_rng(seed), draws=draws
    )
    return got.low, got.high


def _share(flags: FloatArray, among: FloatArray) -> RowStatistic:
    """Make the row statistic: the share of flagged runs among those of one kind."""

    def statistic(counts: FloatArray) -> FloatArray:
        weight = counts @ among
        flagged: FloatArray = counts @ (flags * among)
        shares: FloatArray = np.divide(flagged, weight, out=np.full(len(counts), np.nan), where=weight > 0)
        return shares

    return statistic
