"""The incomplete beta function against scipy and against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special as scipy_special

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.special import beta_function, incomplete_beta, regularized_incomplete_beta

# scipy loses digits below 1e-307: sqrt(5e-324) * 1.5 comes out as 2.9e-162 there.
points = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=20)


@settings(max_examples=50)
@given(st.floats(0.05, 60), st.floats(0.05, 60), points)
def test_it_equals_scipy_for_any_parameters(a, b, xs):
    expected = scipy_special.betainc(a, b, xs)
    got = regularized_incomplete_beta(a, b, xs)
    np.testing.assert_allclose(got, expected, rtol=2e-12, atol=1e-270)
    np.testing.assert_allclose(incomplete_beta(a, b, xs), expected * scipy_special.beta(a, b), rtol=2e-11, atol=1e-270)


@settings(max_examples=50)
@given(st.integers(1, 64), st.integers(1, 64), points)
def test_whole_parameters_take_the_finite_sum_and_equal_scipy(a, b, xs):
    """Relative accuracy in the small tail too, where 1 minus the other side would cancel."""
    expected = scipy_special.betainc(a, b, xs)
    np.testing.assert_allclose(regularized_incomplete_beta(a, b, xs), expected, rtol=1e-12, atol=1e-270)


@pytest.mark.parametrize(("a", "b"), [(3, 4), (1, 7), (40, 12)])
@pytest.mark.parametrize("x", ["0.001", "0.25", "0.5", "0.9"])
def test_whole_parameters_equal_the_binomial_tail_in_exact_fractions(a, b, x):
    """DLMF 8.17.5: I_x(a, b) = P(Bin(a + b - 1, x) >= a)."""
    share, n = Fraction(x), a + b - 1
    exact = sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(a, n + 1))
    assert float(regularized_incomplete_beta(a, b, float(x))) == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.parametrize(("a", "b"), [(400, 33), (400, 64), (400, 33.3), (100, 0.02)])
def test_large_parameters_do_not_underflow_on_the_way(a, b):
    """x**400 is below double range at x = .15 while the result is not; there the sum must give way to the fraction."""
    for x in (0.2, 0.3, 0.9, 0.99):
        expected = scipy_special.betainc(a, b, x)
        assert float(regularized_incomplete_beta(a, b, x)) == pytest.approx(expected, rel=1e-11)
    assert 1e-285 < float(regularized_incomplete_beta(400, 33, 0.15)) < 1e-282  # exact: 3.87e-284


@settings(max_examples=50)
@given(st.floats(0.1, 20), st.floats(0.1, 20), st.integers(0, 1024))
def test_the_two_sides_add_up_and_the_ends_are_exact(a, b, k):
    x = k / 1024  # 1 - x is exact
    left, right = regularized_incomplete_beta(a, b, x), regularized_incomplete_beta(b, a, 1 - x)
    assert float(left + right) == pytest.approx(1, abs=1e-12)
    assert regularized_incomplete_beta(a, b, [0.0, 1.0]).tolist() == [0.0, 1.0]


@settings(max_examples=50)
@given(st.floats(0.1, 20), st.floats(0.1, 20))
def test_it_does_not_decrease(a, b):
    grid = regularized_incomplete_beta(a, b, np.linspace(0, 1, 400))
    assert (np.diff(grid) >= -1e-14).all()


def test_rounding_never_carries_it_above_one():
    """Unclamped, the finite sum reaches 1 + 1.3e-15 for these."""
    grid = np.linspace(0.5, 1, 200)
    for a in np.linspace(0.5, 60, 50):
        for b in range(1, 60, 3):
            assert regularized_incomplete_beta(a, b, grid).max() <= 1.0


def test_shapes_are_kept_and_missing_stays_missing():
    got = regularized_incomplete_beta(2.5, 1.5, [[0.1, np.nan], [0.5, 1.0]])
    assert got.shape == (2, 2)
    assert np.isnan(got).tolist() == [[False, True], [False, False]]
    assert np.isnan(regularized_incomplete_beta(2, 3, np.nan))
    assert regularized_incomplete_beta(2.5, 1.5, []).shape == (0,)


@settings(max_examples=50)
@given(st.floats(0.1, 60), st.floats(0.1, 60))
def test_the_beta_function_equals_scipys(a, b):
    assert beta_function(a, b) == pytest.approx(scipy_special.beta(a, b), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: regularized_incomplete_beta(0, 1, 0.5), "'a'"),
        (lambda: regularized_incomplete_beta(1, math.inf, 0.5), "'b'"),
        (lambda: beta_function(1, math.nan), "'b'"),
        (lambda: incomplete_beta(1, 1, [0.5, 1.1]), "'x'"),
        (lambda: incomplete_beta(1, 1, -1e-9), "'x'"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, says):
    with pytest.raises(ConfigurationError, match=says):
        call()
