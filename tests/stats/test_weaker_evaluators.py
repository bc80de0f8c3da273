"""Theorems A and B of the Trajectory Proper Score paper as counter-examples: what T-ECE and scalar Brier cannot see.

App. B.1 to B.3. The stripped constants are ours: .2/.8 for theorem A, p*_2 in {.3, .7} for B2 and B3. Every
expectation is exact: the finite populations below hold each branch as often as its probability says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from grampus_uq.stats.reliability import decompose, trajectory_brier, trajectory_ece
from grampus_uq.stats.scoring import BRIER, LOG, beta_score
from grampus_uq.stats.trajectory_scores import (
    ForecastTraces,
    last_forecast,
    mean_forecast,
    min_forecast,
    tps,
    weighted_forecast,
)
from tests.benchmarks.schedules import SCHEDULES

SCORES = [LOG, BRIER, beta_score(a=2, b=4)]

# Theorem A: ten one-step trajectories, five with p* = .2 of which one succeeds, five with p* = .8 of which four do.
ONE_STEP = np.repeat([0.2, 0.8], 5)
ONE_STEP_OUTCOMES = np.array([1, 0, 0, 0, 0, 1, 1, 1, 1, 0])

# B2 and B3: p*_1 = 1/2, then p*_2 = .3 or .7 with probability 1/2 each.
SECOND = np.repeat([0.3, 0.7], 10)
OUTCOMES = np.concatenate([np.arange(10) < 3, np.arange(10) < 7])
TRUTH = np.column_stack([np.full(20, 0.5), SECOND])


def traces(rows: np.ndarray) -> ForecastTraces:
    return ForecastTraces(forecasts=rows.ravel(), lengths=np.full(len(rows), rows.shape[1]))


def scalar_loss(scalar: Callable[[ForecastTraces], np.ndarray], rows: np.ndarray) -> float:
    loss = trajectory_brier(scalar(traces(rows)), OUTCOMES)
    assert loss is not None
    return loss


def every_tps_prefers_the_truth_to(rows: np.ndarray) -> bool:
    return all(
        tps(traces(TRUTH), OUTCOMES, score=score, schedule=schedule).mean()
        > tps(traces(rows), OUTCOMES, score=score, schedule=schedule).mean() + 1e-9
        for score in SCORES
        for schedule in SCHEDULES.values()
    )


def test_theorem_a_t_ece_ties_the_truth_with_a_constant_and_the_difference_is_resolution():
    """App. B.1: "the constant forecast has zero Resolution", the truthful one (.8 - .2)^2 / 4 = .09 under Brier."""
    constant = np.full(10, 0.5)
    assert trajectory_ece(ONE_STEP, ONE_STEP_OUTCOMES) == pytest.approx(0, abs=1e-15)
    assert trajectory_ece(constant, ONE_STEP_OUTCOMES) == pytest.approx(0, abs=1e-15)
    truthful, flat = decompose(ONE_STEP, ONE_STEP_OUTCOMES, BRIER), decompose(constant, ONE_STEP_OUTCOMES, BRIER)
    assert flat.resolution == pytest.approx(0, abs=1e-15)
    assert truthful.resolution == pytest.approx(0.09)
    assert truthful.reliability == pytest.approx(flat.reliability, abs=1e-15)
    assert truthful.score - flat.score == pytest.approx(0.09)
    for score in SCORES:
        honest = tps(ForecastTraces.of([[p] for p in ONE_STEP]), ONE_STEP_OUTCOMES, score=score).mean()
        dull = tps(ForecastTraces.of([[0.5]] * 10), ONE_STEP_OUTCOMES, score=score).mean()
        assert honest > dull


def test_theorem_a_averaging_within_bins_keeps_zero_error_and_loses_resolution():
    """App. B.1, last paragraph: replace p* by its average on the cells of a bin map."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0.1, 0.3, 0.6, 0.8], 10)
    outcomes = np.concatenate([np.arange(10) < round(10 * p) for p in (0.1, 0.3, 0.6, 0.8)])
    averaged = np.repeat([0.2, 0.7], 20)
    order = rng.permutation(40)
    for forecast in (truth, averaged):
        assert trajectory_ece(forecast[order], outcomes[order]) == pytest.approx(0, abs=1e-12)
    gap = decompose(truth, outcomes, BRIER).resolution - decompose(averaged, outcomes, BRIER).resolution
    assert gap == pytest.approx(0.01)


def test_b1_last_brier_cannot_see_the_prefix():
    """Corollary B1: any lie about step 1 ties; TPS under every score and schedule does not."""
    lie = TRUTH.copy()
    lie[:, 0] = 0.95
    assert scalar_loss(last_forecast, lie) == scalar_loss(last_forecast, TRUTH)
    assert every_tps_prefers_the_truth_to(lie)


def test_b2_average_brier_makes_the_truth_strictly_suboptimal():
    """Corollary B2: p~_2 = 2 p*_2 - 1/2 moves the average onto p*_2; the truth loses (p*_2 - 1/2)^2 / 4 = .01 more."""
    lie = np.column_stack([TRUTH[:, 0], 2 * SECOND - 0.5])
    assert scalar_loss(mean_forecast, TRUTH) - scalar_loss(mean_forecast, lie) == pytest.approx(0.01)
    assert mean_forecast(traces(lie)) == pytest.approx(SECOND)
    assert every_tps_prefers_the_truth_to(lie)


def test_b3_min_brier_rewards_inflating_what_is_not_the_minimum():
    """Corollary B3: p~_1 inflated, p~_2 = p*_2. Where p*_2 = .7 the truthful minimum is .5: half of .2^2 is lost."""
    lie = np.column_stack([np.full(20, 0.9), SECOND])
    assert scalar_loss(min_forecast, TRUTH) - scalar_loss(min_forecast, lie) == pytest.approx(0.02)
    assert every_tps_prefers_the_truth_to(lie)
    wilder = np.column_stack([np.full(20, 0.99), SECOND])
    assert scalar_loss(min_forecast, wilder) == scalar_loss(min_forecast, lie)  # the inflated step is invisible


def test_any_weighted_average_has_a_lie_that_ties():
    """App. B.3: p_1 + eta / w_1 and p_2 - eta / w_2 leave the weighted average where it was (w = 2/3, 1/3)."""
    lie = TRUTH + np.array([0.1 / 2, -0.1])
    assert weighted_forecast(traces(lie)) == pytest.approx(weighted_forecast(traces(TRUTH)))
    assert scalar_loss(weighted_forecast, lie) == pytest.approx(scalar_loss(weighted_forecast, TRUTH))
    assert every_tps_prefers_the_truth_to(lie)


def test_sabotage_the_preference_check_can_fail():
    """The truth is not preferred to itself, and a lie is not preferred by some score just because another likes it."""
    assert not every_tps_prefers_the_truth_to(TRUTH)
