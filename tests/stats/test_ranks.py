"""Conformal and PAC ranks against brute force in fractions, binomial tails against scipy, guarantees by simulation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.ranks import (
    binomial_interval,
    binomial_log_pmf,
    binomial_log_sf,
    check_level,
    conformal_rank,
    pac_rank,
    smallest_n_for_pac,
)
from tests.binomial import binomial_ceiling
from tests.sampling import examples, sampled

LEVELS = ["0.001", "0.01", "0.05", "0.1", "0.2", "0.25", "0.3", "0.5", "0.7", "0.9", "0.95", "0.99"]


@pytest.mark.parametrize("alpha", LEVELS)
def test_the_conformal_rank_is_the_smallest_that_holds_in_exact_fractions_for_all_n_up_to_500(alpha):
    """P(new above the k-th of n) is exactly (n + 1 - k)/(n + 1) without ties."""
    exact = Fraction(alpha)
    for n in range(501):
        valid = (k for k in range(1, n + 1) if Fraction(n + 1 - k, n + 1) <= exact)
        assert conformal_rank(n, float(alpha)) == next(valid, None), n


def exact_upper_tails(n: int, p: Fraction) -> list[int]:
    """P(Bin(n, p) >= k) for k = 0..n as whole numbers over a common denominator d**n."""
    c, d = p.numerator, p.denominator
    terms = [math.comb(n, k) * c**k * (d - c) ** (n - k) for k in range(n + 1)]
    tails, total = [], 0
    for term in reversed(terms):
        total += term
        tails.append(total)
    return tails[::-1]


def brute_force_pac_rank(n: int, alpha: str, delta: str) -> int | None:
    level = Fraction(delta)
    whole = Fraction(alpha).denominator ** n
    tails = exact_upper_tails(n, 1 - Fraction(alpha))
    valid = (k for k in range(1, n + 1) if tails[k] * level.denominator <= level.numerator * whole)
    return next(valid, None)


@pytest.mark.parametrize(("alpha", "delta"), [("0.05", "0.1"), ("0.1", "0.01"), ("0.5", "0.5"), ("0.2", "0.64")])
@sampled("most", [150], full=[500])
def test_the_pac_rank_equals_the_brute_force_binomial_for_all_n_up_to_500(alpha, delta, most):
    """Whole-number arithmetic; (.5, .5) and (.2, .64) meet delta exactly at n = 1 and n = 2, where floats slip."""
    for n in range(most + 1):
        assert pac_rank(n, float(alpha), float(delta)) == brute_force_pac_rank(n, alpha, delta), n


@pytest.mark.slow
@pytest.mark.parametrize("alpha", LEVELS)
@pytest.mark.parametrize("delta", ["0.001", "0.05", "0.1", "0.25", "0.5", "0.9"])
def test_the_pac_rank_equals_brute_force_on_the_whole_grid(alpha, delta):
    for n in range(501):
        assert pac_rank(n, float(alpha), float(delta)) == brute_force_pac_rank(n, alpha, delta), n


@settings(max_examples=examples(50))
@given(st.floats(1e-4, 0.9999), st.floats(1e-6, 0.9999))
def test_a_pac_rank_exists_exactly_from_the_smallest_n_on(alpha, delta):
    least = smallest_n_for_pac(alpha, delta)
    if least <= 20_000:
        assert pac_rank(least, alpha, delta) == least
        assert pac_rank(least - 1, alpha, delta) is None
        assert (1 - alpha) ** least <= delta * (1 + 1e-9)
        assert least == 1 or (1 - alpha) ** (least - 1) > delta * (1 - 1e-9)


@pytest.mark.parametrize("alpha", LEVELS)
def test_a_delta_that_is_met_exactly_needs_no_further_value(alpha):
    """delta = (1 - alpha)^m holds at m, however the logarithms round."""
    for m in range(1, 60):
        delta = float((1 - Fraction(alpha)) ** m)
        if 0 < delta < 1:
            assert smallest_n_for_pac(float(alpha), delta) == m
            assert pac_rank(m, float(alpha), delta) == m


def test_the_smallest_n_that_the_methods_page_states():
    """METHODS, section 5: "45 at .05/.1"."""
    assert smallest_n_for_pac(0.05, 0.1) == 45
    assert smallest_n_for_pac(0.9, 0.99) == 1


@settings(max_examples=examples(50))
@given(st.integers(1, 3000), st.floats(0.01, 0.6), st.floats(0.01, 0.5))
def test_the_pac_rank_is_never_below_the_quantile_and_grows_with_caution(n, alpha, delta):
    rank = pac_rank(n, alpha, delta)
    cautious = pac_rank(n, alpha, delta / 10)
    if cautious is not None:
        assert rank is not None
        assert rank <= cautious
    if rank is not None:
        assert rank >= math.floor(n * (1 - alpha))


@settings(max_examples=examples(50))
@given(
    st.integers(0, 4000),
    st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(1e-6, 1 - 1e-6)),
    st.floats(0.5, 0.99999),
)
def test_binomial_tails_and_quantiles_equal_scipy(n, p, level):
    k = np.arange(n + 1)
    with np.errstate(divide="ignore"):
        pmf, sf = scipy.stats.binom.logpmf(k, n, p), scipy.stats.binom.logsf(k - 1, n, p)
    inside = pmf > -300  # further out scipy flushes its own tails to zero (at 1e-257 for n = 1075)
    np.testing.assert_allclose(binomial_log_pmf(n, p)[inside], pmf[inside], rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(binomial_log_sf(n, p)[:-1][inside], sf[inside], rtol=1e-11, atol=1e-11)
    assert binomial_log_sf(n, p)[n + 1] == -np.inf


def test_tails_far_below_double_range_stay_exact_in_logs():
    """P(Bin(5000, .01) = 5000) is 1e-10000: gone in doubles, exact in logs."""
    assert binomial_log_sf(5000, 0.01)[5000] == pytest.approx(5000 * math.log(0.01), rel=1e-13)


def test_a_hundred_thousand_trials_keep_thirteen_digits():
    tails = exact_upper_tails(2000, Fraction(1, 20))
    whole = 20**2000
    for k in (60, 100, 140, 200):
        assert math.exp(binomial_log_sf(2000, 0.05)[k]) == pytest.approx(float(Fraction(tails[k], whole)), rel=1e-12)
    assert np.exp(binomial_log_pmf(100_000, 0.05)).sum() == pytest.approx(1.0, abs=1e-12)


@settings(max_examples=examples(50))
@given(st.integers(1, 2000) | st.just(100_000), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_the_clopper_pearson_interval_equals_scipys(n, share, level):
    k = round(share * n)
    expected = scipy.stats.binomtest(k, n).proportion_ci(level, "exact")
    assert binomial_interval(k, n, level) == pytest.approx((expected.low, expected.high), abs=1e-10)


@pytest.mark.parametrize("p", [0.03, 0.2, 0.5])
def test_the_clopper_pearson_interval_covers_every_p_by_exact_enumeration(p):
    n = 40
    covered = sum(
        math.exp(mass)
        for k, mass in enumerate(binomial_log_pmf(n, p))
        if binomial_interval(k, n, 0.9)[0] <= p <= binomial_interval(k, n, 0.9)[1]
    )
    assert 0.9 <= covered < 0.99


RUNS, CALIBRATION = 4000, 40


def false_alarms(alpha: float, rank: int | None, *, decimals: int, inclusive: bool = False) -> int:
    rng = np.random.default_rng(20260101)
    values = np.sort(rng.normal(size=(RUNS, CALIBRATION)).round(decimals), axis=1)
    new = rng.normal(size=RUNS).round(decimals)
    threshold = np.full(RUNS, math.inf) if rank is None else values[:, rank - 1]
    return int((new >= threshold if inclusive else new > threshold).sum())


@pytest.mark.parametrize("decimals", [15, 1, 0])
@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.3])
def test_conformal_violations_stay_within_the_binomial_ceiling_with_and_without_ties(alpha, decimals):
    assert false_alarms(alpha, conformal_rank(CALIBRATION, alpha), decimals=decimals) <= binomial_ceiling(RUNS, alpha)


@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_the_conformal_rank_is_not_wastefully_high(alpha):
    """Power: violations are at least alpha - 1/(n + 1), so a rank of n could not pass."""
    seen = false_alarms(alpha, conformal_rank(CALIBRATION, alpha), decimals=15)
    assert seen > RUNS - binomial_ceiling(RUNS, 1 - (alpha - 1 / (CALIBRATION + 1)))
    assert false_alarms(alpha, CALIBRATION, decimals=15) < RUNS * (alpha - 1 / (CALIBRATION + 1)) * 0.9


def test_sabotage_the_ceiling_catches_a_rank_too_low_and_an_inclusive_comparison():
    """ceil(n (1 - alpha)) forgets the new value; >= forgets ties."""
    assert false_alarms(0.1, math.ceil(CALIBRATION * 0.9) - 1, decimals=15) > binomial_ceiling(RUNS, 0.1)
    rank = conformal_rank(CALIBRATION, 0.1)
    assert false_alarms(0.1, rank, decimals=0, inclusive=True) > binomial_ceiling(RUNS, 0.1)


def unlucky_calibrations(rank_shift: int, alpha: float = 0.1, delta: float = 0.1, n: int = 120) -> int:
    """Calibration draws whose true violation probability exceeds alpha; uniform values, so it is 1 - X_(k)."""
    rank = pac_rank(n, alpha, delta)
    assert rank is not None
    values = np.sort(np.random.default_rng(5).random((RUNS, n)), axis=1)
    return int((1 - values[:, rank - 1 + rank_shift] > alpha).sum())


def test_pac_calibrations_are_unlucky_at_most_delta_often_and_not_much_less():
    assert unlucky_calibrations(0) <= binomial_ceiling(RUNS, 0.1)
    assert unlucky_calibrations(0) > RUNS * 0.03


def test_sabotage_one_rank_lower_is_caught():
    assert unlucky_calibrations(-1) > binomial_ceiling(RUNS, 0.1)


@pytest.mark.parametrize(
    ("call", "parameter", "owner"),
    [
        *((lambda x=x: conformal_rank(10, x), "alpha", "conformal_rank") for x in (0.0, 1.0, 5, -0.1, math.nan)),
        *((lambda n=n: conformal_rank(n, 0.1), "n", "conformal_rank") for n in (-1, 2.5)),
        *((lambda n=n: pac_rank(n, 0.1, 0.1), "n", "pac_rank") for n in (-1, 2.5)),
        (lambda: pac_rank(10, 0.1, 0.0), "delta", "smallest_n_for_pac"),
        (lambda: pac_rank(10, 1.0, 0.1), "alpha", "smallest_n_for_pac"),
        (lambda: binomial_interval(0, 0), "n", "binomial_interval"),
        (lambda: binomial_interval(11, 10), "successes", "binomial_interval"),
        (lambda: binomial_interval(-1, 10), "successes", "binomial_interval"),
        (lambda: binomial_interval(1, 10, 1.0), "level", "binomial_interval"),
        *((lambda x=x: binomial_log_sf(10, x), "p", "binomial_log_pmf") for x in (-0.1, 1.5, math.nan)),
        (lambda: binomial_log_sf(-1, 0.5), "n", "binomial_log_pmf"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, parameter, owner):
    with pytest.raises(ConfigurationError, match=f"^The '{parameter}' parameter of `{owner}` must be"):
        call()


def test_the_rule_that_a_count_breaks_is_said():
    with pytest.raises(ConfigurationError, match="at least 0"):
        conformal_rank(-1, 0.1)
    with pytest.raises(ConfigurationError, match="at least 1"):
        binomial_interval(0, 0)


@pytest.mark.parametrize(
    ("percentage", "hint"),
    [
        (1.0, r"Use 0\.01\."),
        (5, r"Use 0\.05\."),
        (99.5, r"Use 0\.995\."),
        (100.0, r"Got 100\.0\.$"),
        (0.0, r"Got 0\.0\.$"),
    ],
)
def test_a_level_that_may_be_a_percentage_is_answered_with_the_share(percentage, hint):
    with pytest.raises(ConfigurationError, match=hint):
        check_level("alpha", "somebody", percentage)


def test_ends_and_exact_bounds():
    """Of no success the interval begins at 0 itself; .5 ** n is met exactly."""
    assert binomial_interval(0, 20)[0] == 0.0
    assert binomial_interval(20, 20)[1] == 1.0
    assert binomial_interval(1, 20) == pytest.approx((0.0013, 0.2487), abs=5e-5)
    assert [pac_rank(1, 0.5, 0.5), pac_rank(2, 0.5, 0.75), pac_rank(0, 0.5, 0.5)] == [1, 1, None]
    assert pac_rank(10, 0.5, 0.5 ** (10 + 5e-10)) == 10  # missed by less than the slack of the smallest n
    assert binomial_log_pmf(3, 0.0).tolist() == [0.0, -math.inf, -math.inf, -math.inf]
    assert binomial_log_pmf(3, 1.0).tolist() == [-math.inf, -math.inf, -math.inf, 0.0]
    assert binomial_log_pmf(0, 0.5).tolist() == [0.0]


def test_no_tail_is_more_than_certain():
    """Sums of many terms overshoot 1 by rounding."""
    assert all((binomial_log_sf(n, p) <= 0.0).all() for n in range(60) for p in (0.3, 0.9, 0.95))


def test_an_alpha_that_rounding_takes_for_one_still_has_a_rank():
    assert conformal_rank(5, 1 - 1e-12) == 1
    assert conformal_rank(0, 0.5) is None
