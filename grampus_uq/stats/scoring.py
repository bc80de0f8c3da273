"""Strictly proper scores of one probability against one binary outcome: log, Brier, and the beta family.

All scores are rewards: higher is better, 0 is the best (log: up to its clipping). A score is a frozen value with two
branches, `success(p) = s(p, 1)` and `failure(p) = s(p, 0)`; the expected score under a success probability q is
`q s(p, 1) + (1 - q) s(p, 0)` (`expected_score`), which is all that censoring needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import FloatArray, numbers

EPSILON = 1e-6
"""Clip bound of probabilities before a logarithm: a stated 1 is sometimes wrong, and -inf would end a mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProperScore:
    """A strictly proper binary score, a reward. Forecasts p are arrays in [0, 1]; NaN stays NaN.

    name: what reports print. success: s(p, 1), not decreasing in p, at most 0. failure: s(p, 0), not increasing in p,
    at most 0.
    """

    name: str
    success: Callable[[FloatArray], FloatArray]
    failure: Callable[[FloatArray], FloatArray]


LOG = ProperScore(
    name="log",
    success=lambda p: np.log(_clipped(p)),
    failure=lambda p: np.log1p(-_clipped(p)),
)
"""The logarithmic score: `s(p, 1) = ln p`, `s(p, 0) = ln(1 - p)`, in nats, p clipped to [EPSILON, 1 - EPSILON].

One certain and wrong forecast costs -ln(EPSILON), 13.8 nats. The bound is part of the score: results under different
ones do not compare. Source: Trajectory Proper Score paper, App. J.1 and J.2.
"""

BRIER = ProperScore(
    name="brier",
    success=lambda p: -np.square(1.0 - p),
    failure=lambda p: -np.square(p),
)
"""The Brier score `s(p, y) = -(p - y)^2`, in [-1, 0]: bounded and symmetric. Beta(1, 1) is half of it."""


def beta_score(*, a: int, b: int) -> ProperScore:
    """The beta family: cost thresholds c weigh `c^(a-1) (1-c)^(b-1)`, which sets the kind of mistake that costs most.

    `s(p, 1) = -int_p^1 c^(a-1) (1-c)^b dc` and `s(p, 0) = -int_0^p c^a (1-c)^(b-1) dc`, for whole numbers a, b from 1
    to 30, where both are polynomials. Bounded: `s(0, 1) = -B(a, b+1)`, `s(1, 0) = -B(a+1, b)`. a < b punishes
    confident failures more (deferral comes too late), a > b doubted successes (needless interruptions). Sizes differ
    between members: compare only within one.

    Source: Trajectory Proper Score paper, App. J; Schervish (1989); Buja, Stuetzle and Shen (2005).
    """
    for parameter, value in (("a", a), ("b", b)):
        if value not in range(1, 31):
            raise ConfigurationError.of(parameter, "beta_score", "a whole number from 1 to 30", value)
    return ProperScore(
        name=f"beta({a:g},{b:g})",
        success=lambda p: -_incomplete_beta(b + 1, a, 1.0 - p),
        failure=lambda p: -_incomplete_beta(a + 1, b, p),
    )


def expected_score(score: ProperScore, p: npt.ArrayLike, q: npt.ArrayLike) -> FloatArray:
    """Score forecasts whose outcome is a success with probability q: `q s(p, 1) + (1 - q) s(p, 0)`.

    Strictly proper: for every q it is largest at p = q and nowhere else (log: for q inside the clipping). With q in
    {0, 1} it is the score of an observed outcome.

    `p` in [0, 1], NaN (missing) gives NaN; `q` in [0, 1], broadcast against p. At most 0, higher is better.

    >>> expected_score(BRIER, [0.25, 0.5], [1, 0]).tolist()
    [-0.5625, -0.25]
    """
    forecasts, chances = numbers("p", "expected_score", p), numbers("q", "expected_score", q)
    for parameter, values in (("p", forecasts), ("q", chances)):
        outside = (values < 0.0) | (values > 1.0)
        if outside.any():
            first = float(values[outside].flat[0])
            raise ConfigurationError.of(parameter, "expected_score", "in [0, 1]", first, "percentages? divide by 100")
    return chances * score.success(forecasts) + (1.0 - chances) * score.failure(forecasts)


def log_odds(p: npt.ArrayLike, epsilon: float = EPSILON) -> FloatArray:
    """Return `ln(p / (1 - p))` after clipping p to [epsilon, 1 - epsilon]; NaN stays NaN.

    >>> float(log_odds(0.5))
    0.0
    """
    clipped = _clipped(numbers("p", "log_odds", p), epsilon)
    return np.log(clipped) - np.log1p(-clipped)


def _clipped(p: FloatArray, epsilon: float = EPSILON) -> FloatArray:
    return np.clip(p, epsilon, 1.0 - epsilon)


def _incomplete_beta(a: int, b: int, x: FloatArray) -> FloatArray:
    """Return `B(x; a, b) = int_0^x c^(a-1) (1-c)^(b-1) dc` for whole a, b: DLMF 8.17.20 in powers of 1 - x.

    All terms are positive, so that no digits cancel in the small tail.
    """
    whole = math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))  # B(a, b)
    coefficients = [math.comb(a + j - 1, j) for j in range(b)]
    total = np.polynomial.polynomial.polyval(1.0 - x, coefficients)
    return np.asarray(whole * np.minimum(x**a * total, 1.0), dtype=np.float64)
