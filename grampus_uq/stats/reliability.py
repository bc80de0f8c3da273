"""Calibration and resolution of forecasts: binned calibration error, Brier loss, decompositions of a proper score.

T-ECE and T-Brier read one scalar per trajectory (`trajectory_scores.weighted_forecast`, `last_forecast`, ...). T-ECE
sees reliability and is blind to resolution (theorem A of the Trajectory Proper Score paper); T-Brier elicits the
scalar and not the trace (theorem B). They stand beside a proper score, never instead of it. The parts of a
decomposition sum to the score exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import FloatArray, IntArray, numbers
from grampus_uq.stats.scoring import ProperScore, expected_score


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """One point of a reliability diagram: the forecasts from `low` to `high` (inclusive) and their success rate."""

    low: float
    high: float
    mean_forecast: float
    success_rate: float
    count: int


def quantile_bins(forecasts: npt.ArrayLike, bins: int = 10) -> IntArray:
    """Assign forecasts to quantile bins without ever splitting a tie.

    The j-th inner edge is the order statistic of rank ceil(j n / bins), and a forecast on an edge belongs to the bin
    below it. Equal forecasts share a bin, so bins may be larger than n / bins, and fewer: models say round numbers.
    Without ties the bins hold equal counts (to one), and the same members as scikit-learn's quantile strategy when
    `bins` divides n.

    `forecasts`: shape (n,), free of NaN; `bins` >= 1: the number aimed at. Returns bin numbers 0, 1, ... without gaps,
    shape (n,), not decreasing in the forecast; independent of row order.

    >>> quantile_bins([0.1, 0.9, 0.9, 0.9, 1.0], bins=3).tolist()
    [0, 0, 0, 0, 1]
    """
    p = _finite("quantile_bins", forecasts)
    if not isinstance(bins, int | np.integer) or bins < 1:
        raise ConfigurationError.of("bins", "quantile_bins", "a whole number of at least 1", bins)
    if len(p) == 0:
        return np.empty(0, dtype=np.intp)
    bins = min(bins, len(p))
    ranks = -(-np.arange(1, bins) * len(p) // bins)  # ceil in whole numbers: no quantile lands an ulp off a tie
    edges = np.unique(np.sort(p)[np.maximum(ranks, 1) - 1])
    return np.unique(np.searchsorted(edges, p, side="left"), return_inverse=True)[1]


def reliability_bins(forecasts: npt.ArrayLike, outcomes: npt.ArrayLike, bins: int = 10) -> list[ReliabilityBin]:
    """Summarise each quantile bin, from the lowest forecasts to the highest; empty for no forecast.

    `forecasts`: shape (n,), probabilities of success in [0, 1], one a trajectory; `outcomes`: shape (n,), 1 = success,
    0 = failure; `bins`: as `quantile_bins`.
    """
    p, y = _pairs("reliability_bins", forecasts, outcomes)
    member = quantile_bins(p, bins)
    return [
        ReliabilityBin(
            low=float(p[inside].min()),
            high=float(p[inside].max()),
            mean_forecast=float(p[inside].mean()),
            success_rate=float(y[inside].mean()),
            count=int(inside.sum()),
        )
        for inside in (member == b for b in range(member.max(initial=-1) + 1))
    ]


def trajectory_ece(forecasts: npt.ArrayLike, outcomes: npt.ArrayLike, bins: int = 10) -> float | None:
    """Trajectory ECE: `sum_b (n_b / n) |mean forecast - success rate|` over tie-aware quantile bins (eq. 10).

    Args as `reliability_bins`. Returns a number in [0, 1], lower is better calibrated; None for no trajectory. 0 does
    not mean informative: the base rate reaches it. Biased upwards on small samples.
    """
    groups = reliability_bins(forecasts, outcomes, bins)
    total = sum(group.count for group in groups)
    gaps = sum(group.count * abs(group.mean_forecast - group.success_rate) for group in groups)
    return gaps / total if total else None


def trajectory_brier(forecasts: npt.ArrayLike, outcomes: npt.ArrayLike) -> float | None:
    """Trajectory Brier loss of one scalar per trajectory: the mean of `(forecast - outcome)^2`.

    Args as `reliability_bins`. Returns a *loss* in [0, 1], lower is better (the opposite of the scores' orientation, as
    the papers print it); None for no trajectory.
    """
    p, y = _pairs("trajectory_brier", forecasts, outcomes)
    return float(np.square(p - y).mean()) if len(p) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """A mean score in parts: `score = resolution - reliability - uncertainty - spread + covariance`, exactly.

    With G(q) the expected score of forecasting q truthfully, and groups of equal forecasts (or the means of bins):
    uncertainty = -G(base rate); resolution = mean of G(success rate of the group) - G(base rate), >= 0, higher is
    better; reliability = mean of G(rate) - S(forecast; rate), >= 0, lower is better. Within bins, both 0 without them:
    spread is what forecasts lose by differing from their mean (for Brier the variance within bins), covariance what
    they gain by differing in the right direction (for Brier twice the covariance within bins).
    """

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    spread: float
    covariance: float


def decompose(
    forecasts: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    score: ProperScore,
    *,
    bins: int | None = None,
    weights: npt.ArrayLike | None = None,
) -> Decomposition | None:
    """Split a mean score over the distinct forecast values, or over quantile bins.

    `forecasts` and `outcomes`, shape (n,), are in [0, 1]: outcomes, or success probabilities of censored prefixes.
    `score` is strictly proper. `bins` is as in `quantile_bins` (of the forecasts, each counted once); None groups equal
    forecasts: where few are equal, reliability and resolution are then both near their largest. `weights`: shape (n,),
    non-negative, not all 0; for the mean TPS give every step its forecast, its trajectory's outcome and its weight w_t.
    None for no forecast.

    Source: Murphy (1973), Broecker (2009); bins: Stephenson, Coelho and Jolliffe (2008), for every proper score because
    a score is linear in the outcome.
    """
    p, q = _pairs("decompose", forecasts, outcomes)
    w = np.ones(len(p)) if weights is None else numbers("weights", "decompose", weights)
    if w.shape != p.shape or not (np.isfinite(w) & (w >= 0.0)).all() or (len(w) and not w.sum() > 0.0):
        raise ConfigurationError.of("weights", "decompose", "finite, not negative, not all 0, one a forecast", weights)
    if len(p) == 0:
        return None
    w = w / w.sum()
    if bins is None:
        values, member = np.unique(p, return_inverse=True)
    else:
        member = quantile_bins(p, bins)
        values = _group_means(member, w, p)[1]
    mass, rates = _group_means(member, w, q)
    base = np.clip(np.array([w @ q]), 0.0, 1.0)
    truthful, base_truthful = expected_score(score, rates, rates), float(expected_score(score, base, base)[0])
    spread = expected_score(score, values[member], rates[member]) - expected_score(score, p, rates[member])
    contrast = score.success(p) - score.failure(p)
    return Decomposition(
        score=float(w @ expected_score(score, p, q)),
        reliability=float(mass @ (truthful - expected_score(score, values, rates))),
        resolution=float(mass @ truthful) - base_truthful,
        uncertainty=-base_truthful,
        spread=float(w @ spread),
        covariance=0.0 if bins is None else float(w @ ((q - rates[member]) * contrast)),
    )


def _group_means(member: IntArray, w: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weight of each group and weighted mean of x in it (0 in a group without weight), clipped against rounding."""
    mass = np.bincount(member, weights=w).astype(np.float64)
    total = np.bincount(member, weights=w * x).astype(np.float64)
    return mass, np.clip(np.divide(total, mass, out=np.zeros_like(total), where=mass > 0), 0.0, 1.0)


def _finite(owner: str, forecasts: npt.ArrayLike) -> FloatArray:
    p = numbers("forecasts", owner, forecasts)
    if p.ndim != 1 or np.isnan(p).any():
        hint = "leave trajectories with a missing forecast out, and count them"
        raise ConfigurationError.of("forecasts", owner, "one-dimensional and free of NaN", forecasts, hint)
    return p


def _pairs(owner: str, forecasts: npt.ArrayLike, outcomes: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    p, y = _finite(owner, forecasts), numbers("outcomes", owner, outcomes)
    if y.shape != p.shape:
        raise ConfigurationError.of("outcomes", owner, f"of shape {p.shape}", y.shape)
    for parameter, values in (("forecasts", p), ("outcomes", y)):
        if not ((values >= 0.0) & (values <= 1.0)).all():
            raise ConfigurationError.of(parameter, owner, "in [0, 1]", values[~((values >= 0.0) & (values <= 1.0))][0])
    return p, y
