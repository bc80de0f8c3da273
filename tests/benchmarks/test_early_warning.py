"""An early warning is set on other tasks, strictly above their successes, and comes with the false alarms it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grampus_uq.errors import ConfigurationError
from tests.benchmarks.early_warning import ScoredPaths, conformal_stops, early_warning
from tests.binomial import binomial_ceiling

Run = tuple[str, bool, list[float]]


def scored(runs: list[Run]) -> ScoredPaths:
    return ScoredPaths(
        paths=[np.array(path) for _, _, path in runs],
        failed=[failed for _, failed, _ in runs],
        tasks=[task for task, _, _ in runs],
    )


def test_an_alarm_is_raised_by_successes_of_other_tasks_only_and_strictly_above_them() -> None:
    # 9 tasks with one success each at .1 to .9: the 90 % quantile of the 8 or 9 others is their largest.
    runs: list[Run] = [(str(i), False, [0.0, i / 10]) for i in range(1, 10)]
    runs += [("failing", True, [0.2, 0.9, 0.95, 0.1]), ("failing", True, [0.9, 0.9]), ("1", True, [0.3, 0.91])]
    stops = conformal_stops(scored(runs), 0.1)
    assert stops[-3] == 3  # .9 is not above .9
    assert stops[-2] is None
    assert stops[-1] is None  # with its own task left out 8 successes are too few for a promise of 10 %
    assert stops[:9] == [None] * 9


def drawn(rng: np.random.Generator, count: int, *, shift: float = 0.0) -> list[Run]:
    """Random walks; failures drift by `shift`."""
    runs: list[Run] = []
    for number in range(count):
        failed = bool(number % 2)
        steps = rng.normal(shift * failed, 1.0, int(rng.integers(3, 20)))
        runs.append((f"task {number % 40}", failed, list(np.cumsum(steps))))
    return runs


def test_successes_are_stopped_at_the_stated_rate_failures_more_often() -> None:
    """Violations, power, sabotage: the first bound has to fail at four times the level."""
    rng, stopped, successes, found = np.random.default_rng(5), 0, 0, []
    for _ in range(12):
        runs = drawn(rng, 160, shift=0.8)
        stops = conformal_stops(scored(runs), 0.1)
        flags = [stop is not None for stop in stops]
        stopped += sum(flag for flag, run in zip(flags, runs, strict=True) if not run[1])
        successes += sum(not run[1] for run in runs)
        found.append(np.mean([flag for flag, run in zip(flags, runs, strict=True) if run[1]]))
    assert stopped <= binomial_ceiling(successes, 0.1)
    assert float(np.mean(found)) > 0.3
    loose = drawn(np.random.default_rng(6), 1200)
    false = sum(
        stop is not None for stop, run in zip(conformal_stops(scored(loose), 0.4), loose, strict=True) if not run[1]
    )
    assert false > binomial_ceiling(600, 0.1)


def test_the_figures_are_those_of_a_run_counted_by_hand() -> None:
    runs: list[Run] = [(f"good {i}", False, [0.1 * i, 0.05 * i]) for i in range(1, 20)]
    runs += [("bad 1", True, [0.0, 5.0, 0.0, 9.0]), ("bad 2", True, [0.0, 0.0]), ("bad 3", True, [math.nan, math.nan])]
    got = early_warning(scored(runs), draws=50, fixed_steps=(2, 4))
    assert (got["runs"], got["failures"]) == (21, 2)  # bad 3 has no value at all
    assert got["auroc"] == pytest.approx(0.5)  # 9.0 above all, 0.0 below all
    assert got["early_detection"] == 0.5
    assert got["early_before_half"] == 0.5
    assert got["early_median_time"] == 0.5  # step 2 of 4
    # 19 successes, the rank among the 18 others is the 18th: only the highest of all is above its others' threshold.
    assert got["early_false_alarm_rate"] == pytest.approx(1 / 19)
    assert got["early_false_before_half"] == pytest.approx(1 / 19)
    assert (got["prefix_runs_2"], got["prefix_runs_4"]) == (21, 1)
    assert got["prefix_auroc_4"] is None  # only one run gets that far


def test_what_has_no_value_anywhere_has_no_figures_and_what_does_not_fit_together_is_refused() -> None:
    nothing = early_warning(scored([("a", True, [math.nan]), ("b", False, [math.nan])]), draws=10)
    assert (nothing["runs"], nothing["auroc"], nothing["early_detection"]) == (0, None, None)
    with pytest.raises(ConfigurationError, match="failed"):
        ScoredPaths(paths=[np.ones(2)], failed=[True, False], tasks=["a"])
    with pytest.raises(ConfigurationError, match="at least one step"):
        ScoredPaths(paths=[np.ones(0)], failed=[True], tasks=["a"])
