"""Binary scores and weight schedules: golden numbers of the paper, strict propriety on a grid, with sabotage."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.scoring import BRIER, EPSILON, LOG, beta_score, expected_score, log_odds
from grampus_uq.stats.trajectory_scores import linear_front
from tests.benchmarks.schedules import SCHEDULES
from tests.sampling import examples

SCORES = [LOG, BRIER, beta_score(a=2, b=4), beta_score(a=1, b=1), beta_score(a=4, b=2), beta_score(a=1, b=7)]
ids = [score.name for score in SCORES]
every_score = pytest.mark.parametrize("score", SCORES, ids=ids)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
GRID = np.linspace(0.001, 0.999, 999)


@pytest.mark.parametrize(
    ("p", "log", "brier", "beta24"),
    # Trajectory Proper Score paper, App. F.1, "Base-rate constant" rows: StrategyQA, Tau2-Bench, HotpotQA.
    [(0.842, -0.436, -0.133, -0.00263), (0.443, -0.687, -0.247, -0.00760), (0.583, -0.679, -0.243, -0.00649)],
)
def test_the_base_rate_scores_what_the_paper_prints(p, log, brier, beta24):
    """Nine golden numbers, to the last printed digit."""
    assert round(float(expected_score(LOG, p, p)), 3) == log
    assert round(float(expected_score(BRIER, p, p)), 3) == brier
    assert round(float(expected_score(beta_score(a=2, b=4), p, p)), 5) == beta24


def best_reports(score, truth: np.ndarray) -> np.ndarray:
    """The report on the grid with the highest expected score, for each truth; a tie counts as a miss (NaN)."""
    values = expected_score(score, GRID[None, :], truth[:, None])
    top = values.max(axis=1, keepdims=True)
    return np.where((values == top).sum(axis=1) == 1, GRID[values.argmax(axis=1)], np.nan)


@every_score
def test_the_truth_is_the_only_best_report_on_a_grid(score):
    truth = GRID[::37]
    assert best_reports(score, truth) == pytest.approx(truth, abs=1e-12)


class AbsoluteScore:
    """Not proper: -|p - y| is best answered by rounding to 0 or 1."""

    name = "absolute"

    def success(self, p):
        return -(1.0 - p)

    def failure(self, p):
        return -p


class HardThreshold:
    """Proper but not strictly: one cost threshold only."""

    name = "threshold"

    def success(self, p):
        return -0.5 * (p < 0.5)

    def failure(self, p):
        return -0.5 * (p >= 0.5)


@pytest.mark.parametrize("sabotage", [AbsoluteScore(), HardThreshold()], ids=["improper", "proper, not strictly"])
def test_sabotage_the_grid_catches_scores_that_are_not_strictly_proper(sabotage):
    truth = GRID[::37]
    assert not np.allclose(best_reports(sabotage, truth), truth, atol=0.05)


@every_score
@settings(max_examples=examples(50))
@given(st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_every_lie_costs_and_more_than_rounding(score, truth, report):
    regret = float(expected_score(score, truth, truth) - expected_score(score, report, truth))
    assert regret >= -1e-15
    if abs(truth - report) > 1e-3:
        assert regret > 0


@pytest.mark.parametrize(("a", "b"), [(2, 4), (1, 1), (1, 3), (5, 1), (30, 12)])
@pytest.mark.parametrize("p", [0.0, 0.03, 0.5, 0.91, 1.0])
def test_the_beta_branches_are_the_threshold_integrals(a, b, p):
    """App. J: s(p, 1) = -int_p^1 c^(a-1) (1-c)^b dc, s(p, 0) = -int_0^p c^a (1-c)^(b-1) dc; quadrature by scipy."""
    score = beta_score(a=a, b=b)
    success = scipy.integrate.quad(lambda c: c ** (a - 1) * (1 - c) ** b, p, 1, epsabs=1e-13)[0]
    failure = scipy.integrate.quad(lambda c: c**a * (1 - c) ** (b - 1), 0, p, epsabs=1e-13)[0]
    assert float(score.success(np.array(p))) == pytest.approx(-success, abs=1e-10)
    assert float(score.failure(np.array(p))) == pytest.approx(-failure, abs=1e-10)


@settings(max_examples=examples(50))
@given(st.integers(1, 30), st.integers(1, 30))
def test_the_floors_of_the_beta_family_are_beta_functions(a, b):
    """App. J.2: s(0, 1) = -B(a, b + 1), s(1, 0) = -B(a + 1, b); right answers at the ends cost nothing."""
    score = beta_score(a=a, b=b)
    ends = np.array([0.0, 1.0])
    assert score.success(ends) == pytest.approx([-scipy.special.beta(a, b + 1), 0.0], rel=1e-12, abs=1e-300)
    assert score.failure(ends) == pytest.approx([0.0, -scipy.special.beta(a + 1, b)], rel=1e-12, abs=1e-300)


@settings(max_examples=examples(50))
@given(st.floats(0, 1))
def test_beta_one_one_is_half_of_brier(p):
    point, half = np.array(p), beta_score(a=1, b=1)
    assert float(half.success(point)) == pytest.approx(float(BRIER.success(point)) / 2, abs=1e-15)
    assert float(half.failure(point)) == pytest.approx(float(BRIER.failure(point)) / 2, abs=1e-15)


@pytest.mark.parametrize(
    ("score", "density"),
    [
        (LOG, np.ones_like),
        (BRIER, lambda p: 2 * p * (1 - p)),
        (beta_score(a=2, b=4), lambda p: p**2 * (1 - p) ** 4),
        (beta_score(a=5, b=1), lambda p: p**5 * (1 - p)),
    ],
    ids=["log", "brier", "beta(2,4)", "beta(5,1)"],
)
def test_both_branches_follow_one_density_of_cost_thresholds(score, density):
    """Schervish: ds(p,1)/dz = (1-p) k(p), ds(p,0)/dz = -p k(p) with z = logit p."""
    p, h = np.linspace(0.05, 0.95, 19), 1e-5
    z = log_odds(p)
    up, down = 1 / (1 + np.exp(-z - h)), 1 / (1 + np.exp(-z + h))
    slope = (score.success(up) - score.success(down)) / (2 * h)
    assert slope == pytest.approx((1 - p) * density(p), rel=1e-6)
    slope = (score.failure(up) - score.failure(down)) / (2 * h)
    assert slope == pytest.approx(-p * density(p), rel=1e-6)


def test_beta24_punishes_the_confident_failure_more_than_the_doubted_success():
    """App. J.3: a < b weighs overconfident success."""
    cautious, bold = beta_score(a=2, b=4), beta_score(a=4, b=2)
    p = np.array(0.5)
    assert cautious.failure(p) < cautious.success(p)
    assert bold.failure(p) > bold.success(p)


def test_certain_and_wrong_is_finite_in_the_log_score():
    assert expected_score(LOG, [0.0, 1.0], [1, 0]) == pytest.approx([math.log(EPSILON)] * 2)
    assert expected_score(LOG, [1e-9, 1e-7], [1, 1]).tolist() == [math.log(EPSILON)] * 2


@every_score
def test_right_and_certain_is_the_best_and_missing_stays_missing(score):
    assert expected_score(score, [0.0, 1.0], [0, 1]) == pytest.approx([0, 0], abs=1.1e-6)
    assert np.isnan(expected_score(score, [np.nan, 0.5], [1, 1])).tolist() == [True, False]


@every_schedule
@settings(max_examples=examples(50))
@given(st.integers(1, 3000))
def test_weights_are_positive_and_sum_to_one(schedule, length):
    step = np.arange(1.0, length + 1)
    weights = schedule(step, np.full(length, float(length)))
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert (weights[:1000] > 0).all()


def test_the_schedules_are_those_of_the_paper():
    """METHODS, section 1, and App. I, written out for T = 4."""
    step, length = np.arange(1.0, 5), np.full(4, 4.0)
    written = {
        "linear-front": np.array([4, 3, 2, 1]) / 10,
        "uniform": np.array([1, 1, 1, 1]) / 4,
        "exponential-front": np.array([8, 4, 2, 1]) / 15,
        "linear-back": np.array([1, 2, 3, 4]) / 10,
    }
    assert written.keys() == SCHEDULES.keys()
    for name, expected in written.items():
        assert SCHEDULES[name](step, length) == pytest.approx(expected)
    assert SCHEDULES["linear-front"] is linear_front


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: beta_score(a=0, b=1), "'a'"),
        (lambda: beta_score(a=1, b=-2), "'b'"),
        (lambda: beta_score(a=math.inf, b=1), "'a'"),
        (lambda: beta_score(a=1, b=math.nan), "'b'"),
        (lambda: beta_score(a=1.5, b=1), "'a'"),
        (lambda: expected_score(LOG, 85, 1), "divide by 100"),
        (lambda: expected_score(LOG, 0.5, -0.1), "'q'"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, says):
    with pytest.raises(ConfigurationError, match=says):
        call()


@settings(max_examples=examples(50))
@given(st.integers(1, 30), st.integers(1, 30), st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1))
def test_the_beta_scores_equal_scipys_incomplete_beta_function_in_the_small_tails_too(a, b, points):
    p = np.array(points)
    score = beta_score(a=a, b=b)
    failure = scipy.special.betainc(a + 1, b, p) * scipy.special.beta(a + 1, b)
    np.testing.assert_allclose(-score.failure(p), failure, rtol=1e-11, atol=1e-270)
    success = scipy.special.betainc(b + 1, a, 1 - p) * scipy.special.beta(b + 1, a)
    np.testing.assert_allclose(-score.success(p), success, rtol=1e-11, atol=1e-270)
