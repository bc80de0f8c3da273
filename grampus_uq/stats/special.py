"""The incomplete beta function, which the beta family of proper scores is made of."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError

__all__ = ["beta_function", "incomplete_beta", "regularized_incomplete_beta"]

FloatArray = npt.NDArray[np.float64]

_LONGEST_SUM = 64  # beyond this many terms the continued fraction is the shorter way
_MOST_ROUNDS = 10_000  # the fraction needs about sqrt(max(a, b)) rounds; 10,000 are enough for parameters of 1e7
_TINY = 1e-300


def beta_function(a: float, b: float) -> float:
    """Return `B(a, b) = int_0^1 c^(a-1) (1-c)^(b-1) dc` for a, b > 0.

    >>> round(beta_function(2, 3) * 12, 12)
    1.0
    """
    _check_parameters("beta_function", a, b)
    return math.exp(_log_beta(a, b))


def incomplete_beta(a: float, b: float, x: npt.ArrayLike) -> FloatArray:
    """Return `B(x; a, b) = int_0^x c^(a-1) (1-c)^(b-1) dc`, element by element.

    Args:
        a, b: parameters, > 0 and finite.
        x: any shape, in [0, 1]; NaN stays NaN.

    Returns:
        The shape of x, in [0, B(a, b)], not decreasing in x.

    Raises:
        ConfigurationError: a or b not positive and finite, an x outside [0, 1].

    Source: DLMF 8.17.1.
    """
    return np.asarray(regularized_incomplete_beta(a, b, x) * beta_function(a, b), dtype=np.float64)


def regularized_incomplete_beta(a: float, b: float, x: npt.ArrayLike) -> FloatArray:
    """Return `I_x(a, b) = B(x; a, b) / B(a, b)`, element by element.

    For whole b and both parameters up to 64 it is the finite sum `x^a sum_{j<b} (a)_j / j! (1-x)^j`, all terms
    positive; otherwise the continued fraction, taken on the side of the mean where it converges fast. Relative error
    below 1e-11 for parameters from 0.02 to 400, 1e-13 for those of common scores; values below 1e-270 may lose digits.

    Args:
        a, b: parameters, > 0 and finite.
        x: any shape, in [0, 1]; NaN stays NaN.

    Returns:
        The shape of x, in [0, 1], not decreasing in x.

    Raises:
        ConfigurationError: a or b not positive and finite, an x outside [0, 1].

    Source: DLMF 8.17.20 (summed b times), 8.17.22 and 8.17.4.

    >>> float(regularized_incomplete_beta(2, 1, 0.5))
    0.25
    """
    _check_parameters("regularized_incomplete_beta", a, b)
    points = np.asarray(x, dtype=np.float64)
    if (points < 0.0).any() or (points > 1.0).any():
        raise ConfigurationError.of("x", "regularized_incomplete_beta", "in [0, 1]", x)
    if b == int(b) and max(a, b) <= _LONGEST_SUM:
        return _finite_sum(a, int(b), points)
    flat = points.ravel()
    left = flat < (a + 1.0) / (a + b + 2.0)
    out = np.full(flat.shape, np.nan)
    out[left] = _continued_fraction(a, b, flat[left])
    right = flat >= (a + 1.0) / (a + b + 2.0)
    out[right] = 1.0 - _continued_fraction(b, a, 1.0 - flat[right])
    return out.reshape(points.shape)


def _finite_sum(a: float, b: int, x: FloatArray) -> FloatArray:
    """Horner's rule in 1 - x over the coefficients (a)_j / j!, j < b."""
    coefficients = [1.0]
    for j in range(1, b):
        coefficients.append(coefficients[-1] * (a + j - 1.0) / j)
    rest = 1.0 - x
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * rest + coefficient
    return np.asarray(np.minimum(x**a * total, 1.0), dtype=np.float64)


def _continued_fraction(a: float, b: float, x: FloatArray) -> FloatArray:
    """Evaluate DLMF 8.17.22 by Lentz's method, every element until it stands still."""
    out = np.zeros_like(x)
    inside = np.flatnonzero(x > 0.0)
    z = x[inside]
    c = np.ones_like(z)
    d = 1.0 / _away_from_zero(1.0 - (a + b) * z / (a + 1.0))
    fraction = d.copy()
    for m in range(1, _MOST_ROUNDS):
        even = m * (b - m) / ((a + 2 * m - 1.0) * (a + 2 * m)) * z
        odd = -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1.0)) * z
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            fraction = fraction * c * d
        if (np.abs(c * d - 1.0) < 1e-15).all():
            break
    out[inside] = np.exp(a * np.log(z) + b * np.log1p(-z) - _log_beta(a, b)) * fraction / a
    return out


def _away_from_zero(values: FloatArray) -> FloatArray:
    return np.where(np.abs(values) < _TINY, _TINY, values)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _check_parameters(owner: str, a: float, b: float) -> None:
    for name, value in (("a", a), ("b", b)):
        if not 0.0 < value < math.inf:
            raise ConfigurationError.of(name, owner, "positive and finite", value)
