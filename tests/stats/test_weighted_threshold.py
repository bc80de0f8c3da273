"""The threshold from runs that were seen with known probabilities: its definition, its promise, and what breaks it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.eprocess_thresholds import conformal_threshold, exceeds_many, weighted_threshold
from tests.binomial import binomial_ceiling

FloatArray = npt.NDArray[np.float64]

LEVEL = st.floats(0.005, 0.9)
SEEN = st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 1), st.sampled_from([1.0, 2.0, 5.0])), max_size=60)
ALPHA, SHOWN = 0.1, 0.2


@given(SEEN, LEVEL)
def test_with_equal_weights_it_is_the_conformal_threshold(seen: list[tuple[int, float, float]], alpha: float) -> None:
    peaks, ties = [float(peak) for peak, _, _ in seen], [tie for _, tie, _ in seen]
    weighted = weighted_threshold(peaks, ties, np.full(len(seen), 4.0), alpha)
    plain = conformal_threshold(peaks, ties, alpha)
    assert (weighted.log_value, weighted.tie, weighted.rank) == (plain.log_value, plain.tie, plain.rank)


@given(SEEN, LEVEL)
def test_it_is_the_smallest_pair_that_has_the_wanted_share_of_the_weight_with_the_largest_added(
    seen: list[tuple[int, float, float]], alpha: float
) -> None:
    threshold = weighted_threshold([float(s[0]) for s in seen], [s[1] for s in seen], [s[2] for s in seen], alpha)
    wanted = (1.0 - alpha) * (math.fsum(s[2] for s in seen) + max((s[2] for s in seen), default=0.0))
    reached, smallest = 0.0, None
    for peak, tie, weight in sorted(seen):
        reached += weight
        if abs(reached - wanted) < 1e-6:
            return  # on the edge either answer is right
        if reached > wanted:
            smallest = (float(peak), tie)
            break
    assert (threshold.log_value, threshold.tie) == (smallest or (math.inf, 1.0))


def test_weights_of_a_narrow_type_are_summed_in_double_precision() -> None:
    """Counted in halves the sum of ones stops at 2,048."""
    peaks, ties = np.arange(4096.0), np.full(4096, 0.5)
    assert weighted_threshold(peaks, ties, np.ones(4096, dtype=np.float16), ALPHA) == weighted_threshold(
        peaks, ties, [1.0] * 4096, ALPHA
    )


@pytest.mark.parametrize("weights", [[0.5, 1.0], [1.0], [math.inf, 1.0], [math.nan, 1.0]])
def test_a_weight_that_is_no_inverse_probability_is_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="weights"):
        weighted_threshold([1.0, 2.0], [0.5, 0.5], weights, 0.1)
    if len(weights) > 1:
        with pytest.raises(ConfigurationError, match="most"):
            weighted_threshold([1.0, 2.0], [0.5, 0.5], [1.0, 1.0], 0.1, most=weights[0])


def _selected(rng: np.random.Generator, runs: int, show: float = SHOWN) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Successes as an acting profile leaves them: risky ones were let through with probability `show` only."""
    peaks = rng.normal(size=runs)
    chance = np.where(peaks > 0.5, show, 1.0)
    shown = rng.random(runs) < chance
    return peaks[shown], rng.random(int(shown.sum())), 1.0 / chance[shown]


def _false_alarms(threshold_of: str, calibrations: int = 4000) -> int:
    """How many of so many calibrations, with one new success each, raise a false alarm."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(calibrations):
        peaks, ties, weights = _selected(rng, 20)
        if threshold_of == "without the largest weight":
            order = np.argsort(peaks)
            reached = np.cumsum(weights[order]) >= (1.0 - ALPHA) * weights.sum() - 1e-9
            alarms += bool(rng.normal() > peaks[order][int(np.argmax(reached))])
            continue
        used = weights if threshold_of == "weighted" else np.ones_like(weights)
        threshold = weighted_threshold(peaks, ties, used, ALPHA)
        alarms += int(exceeds_many(threshold, rng.normal(size=1), rng.random(1)).sum())
    return alarms


def test_a_new_success_raises_a_false_alarm_with_probability_at_most_alpha() -> None:
    assert _false_alarms("weighted") <= binomial_ceiling(4000, ALPHA)


@pytest.mark.parametrize("sabotage", ["without the largest weight", "unweighted"])
def test_sabotage_leaving_a_weight_out_breaks_the_promise(sabotage: str) -> None:
    assert _false_alarms(sabotage) > binomial_ceiling(4000, ALPHA)


@pytest.mark.parametrize(("most", "kept"), [(20.0, True), (1.0, False)])
def test_a_rare_draw_that_showed_nothing_still_counts_by_the_weight_that_it_would_have(most: float, kept: bool) -> None:
    """The 31 % that would have been stopped were let through in one of twenty cases; of 20 successes mostly none."""
    rng, alarms = np.random.default_rng(8), 0
    for _ in range(1000):
        peaks, ties, weights = _selected(rng, 20 if most == 1.0 else 150, 0.05)
        threshold = weighted_threshold(peaks, ties, weights, ALPHA, most=most)
        alarms += int(exceeds_many(threshold, rng.normal(size=1), rng.random(1)).sum())
    assert (alarms <= binomial_ceiling(1000, ALPHA)) is kept


def test_it_can_ring_at_all_once_there_are_enough_runs() -> None:
    peaks, ties, weights = _selected(np.random.default_rng(3), 400)
    threshold = weighted_threshold(peaks, ties, weights, ALPHA)
    assert 1.0 < threshold.log_value < 2.0  # the 90 % quantile of the standard normal is 1.28
