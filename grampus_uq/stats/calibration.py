"""Platt scaling: fitted to step records by the log score, and cross-fitted.

With one record for each step, its trajectory's outcome and its schedule weight (`step_records`), the loss is minus the
Trajectory Proper Score, so a map is fitted to what will judge it (App. J.4). A score is a loss under a fixed policy,
never a reward to train the policy with: that would change the histories.

A map looks better than it is on the runs that it was fitted on: `cross_fit` calibrates each half by a map of the other.

Source: "Proper Scoring Rules for Agentic Uncertainty Quantification", App. D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.logistic_fit import fit_logistic, logistic
from grampus_uq.stats.scoring import EPSILON, log_odds
from grampus_uq.stats.trajectory_scores import ForecastTraces, step_weights
from grampus_uq.stats.weight_schedules import LINEAR_FRONT, WeightSchedule

__all__ = ["CrossFit", "PlattMap", "cross_fit", "fit_platt", "split_halves", "step_records"]

SD_FLOOR = 1e-6
"""Least standard deviation of the log-odds: a saturated stream with one value would otherwise divide by 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlattMap:
    """`sigma(intercept + slope (logit(p) - mean) / sd)`, clipped to [epsilon, 1 - epsilon]; not decreasing in p.

    slope 0 is the monotone fallback: the map then returns the success rate of its training half.
    """

    mean: float
    sd: float
    intercept: float
    slope: float
    epsilon: float = EPSILON

    @property
    def flat(self) -> bool:
        """True when the slope is 0: no usable signal was found."""
        return self.slope == 0.0

    def __call__(self, forecasts: npt.ArrayLike) -> FloatArray:
        """Calibrate forecasts in [0, 1], element by element; NaN (missing) stays NaN."""
        p = np.asarray(forecasts, dtype=np.float64)
        if (p < 0.0).any() or (p > 1.0).any():
            raise ConfigurationError.of("forecasts", "PlattMap", "in [0, 1]", forecasts)
        z = self.intercept + self.slope * ((log_odds(p, self.epsilon) - self.mean) / self.sd)
        return np.clip(logistic(z), self.epsilon, 1.0 - self.epsilon)


def fit_platt(
    forecasts: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    l2: float = 1.0,
    epsilon: float = EPSILON,
) -> PlattMap:
    """Platt scaling on standardised log-odds: maximise `sum w ln P(y | sigma(a + b z)) - l2 b^2 / 2`, b >= 0.

    Forecasts are clipped, turned into log-odds and standardised by their weighted mean and standard deviation (at
    least 1e-6). A slope <= 0, or outcomes of one class, gives the flat map at the weighted success rate: a signal that
    points the wrong way is not turned around.

    Args:
        forecasts: shape (n,), raw forecasts in [0, 1], higher = more likely to succeed; no NaN.
        outcomes: shape (n,), 1 = success, 0 = failure; in between for censored prefixes (their q).
        weights: shape (n,), not negative, not all 0; None = 1 each. Their total against l2 sets the shrinkage:
            schedule weights count each trajectory once.
        l2: penalty on the slope alone, >= 0. With 0, separable data stop at the iteration limit, steep but finite.
        epsilon: clipping of forecasts and results.

    Raises:
        ConfigurationError: an argument outside its domain, or no record.
    """
    p, y, w = _records("fit_platt", forecasts, outcomes, weights, l2)
    x = log_odds(p, epsilon)
    mean = float(w @ x / w.sum())
    sd = max(float(np.sqrt(w @ np.square(x - mean) / w.sum())), SD_FLOOR)
    rate = float(w @ y / w.sum())
    base = float(log_odds(rate, epsilon))
    intercept, slope = base, 0.0
    if 0.0 < rate < 1.0:
        design = np.column_stack([np.ones_like(x), (x - mean) / sd])
        beta = fit_logistic(design, y, w, l2=np.array([0.0, l2]), start=np.array([base, 0.0]))
        intercept, slope = beta.tolist()
    if slope <= 0.0:
        intercept, slope = base, 0.0
    return PlattMap(mean=mean, sd=sd, intercept=intercept, slope=slope, epsilon=epsilon)


def step_records(
    traces: ForecastTraces, outcomes: npt.ArrayLike, schedule: WeightSchedule = LINEAR_FRONT
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Flatten complete trajectories into one (forecast, outcome, weight) per step.

    Fit under the schedule that will judge: otherwise a mismatch of weights passes for miscalibration.

    Args:
        traces: n trajectories.
        outcomes: shape (n,), in [0, 1].
        schedule: how steps count.

    Returns:
        Three arrays of one shape; the weights of each trajectory sum to 1.

    Raises:
        ConfigurationError: outcomes of another shape.
    """
    y = np.asarray(outcomes, dtype=np.float64)
    if y.shape != (len(traces),):
        raise ConfigurationError.of("outcomes", "step_records", f"of shape ({len(traces)},)", y.shape)
    usable = ~traces.missing
    kept = traces.select(usable)
    return kept.forecasts, kept.spread(y[usable]), step_weights(kept, schedule)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossFit:
    """Trajectories calibrated by maps that never saw them.

    traces: the calibrated forecasts, missing ones still missing. second_half: shape (n,), True for the half that the
    first map calibrated. maps: fitted on the first and on the second half. The two differ a little, so ranks may too.
    """

    traces: ForecastTraces
    second_half: BoolArray
    maps: tuple[PlattMap, PlattMap]


def split_halves(outcomes: npt.ArrayLike, ids: Sequence[str]) -> BoolArray:
    """Split trajectories into two halves, stratified by outcome, ordered by id and alternated.

    Args:
        outcomes: shape (n,), 0 or 1.
        ids: n distinct, stable names; their order as text decides, not the order of rows.

    Returns:
        Shape (n,), True for the second half. Within each outcome the halves differ by at most one.

    Raises:
        ConfigurationError: repeated ids, another number of ids, an outcome other than 0 or 1.
    """
    y, names = np.asarray(outcomes, dtype=np.float64), [str(name) for name in ids]
    if y.shape != (len(names),) or not np.isin(y, (0.0, 1.0)).all():
        raise ConfigurationError.of("outcomes", "split_halves", f"{len(names)} observed outcomes, 0 or 1", outcomes)
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError.of("ids", "split_halves", "distinct", repeated)
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.intp)
    second = np.zeros(len(names), dtype=np.bool_)
    for label in (0.0, 1.0):
        second[order[y[order] == label][1::2]] = True
    return second


def cross_fit(
    traces: ForecastTraces,
    outcomes: npt.ArrayLike,
    ids: Sequence[str],
    *,
    schedule: WeightSchedule = LINEAR_FRONT,
) -> CrossFit:
    """Calibrate every trajectory by a map fitted on the other half (`split_halves`); all its steps share the half.

    Args:
        traces: n complete trajectories.
        outcomes: shape (n,), 0 or 1; censored trajectories have no place here.
        ids: n distinct, stable names.
        schedule: the weights of the score that will judge.

    Returns:
        `CrossFit`. Deterministic, and independent of row order.

    Raises:
        ConfigurationError: as `split_halves`, or a half without a single complete forecast stream.

    Source: App. D, which prefers two halves to k folds: maps from many small folds may contradict each other.
    """
    y = np.asarray(outcomes, dtype=np.float64)
    second = split_halves(y, ids)
    fitted = []
    for half in (~second, second):
        if not (half & ~traces.missing).any():
            hint = "at least two trajectories with complete forecasts are needed"
            raise ConfigurationError.of("traces", "cross_fit", "usable in both halves", len(traces), hint)
        forecasts, targets, weights = step_records(traces.select(half), y[half], schedule)
        fitted.append(fit_platt(forecasts, targets, weights=weights))
    in_second = np.repeat(second, traces.lengths)
    calibrated = np.where(in_second, fitted[0](traces.forecasts), fitted[1](traces.forecasts))
    return CrossFit(traces=traces.with_forecasts(calibrated), second_half=second, maps=(fitted[0], fitted[1]))


def _records(
    owner: str, forecasts: npt.ArrayLike, outcomes: npt.ArrayLike, weights: npt.ArrayLike | None, l2: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    p, y = np.asarray(forecasts, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    w = np.ones(p.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if p.ndim != 1 or len(p) == 0 or not p.shape == y.shape == w.shape:
        raise ConfigurationError.of("forecasts", owner, "one or more, as many as outcomes and weights", p.shape)
    for parameter, values in (("forecasts", p), ("outcomes", y)):
        inside = (values >= 0.0) & (values <= 1.0)
        if not inside.all():
            raise ConfigurationError.of(parameter, owner, "in [0, 1], none missing", values[~inside][0])
    if not (np.isfinite(w) & (w >= 0.0)).all() or not w.sum() > 0.0:
        raise ConfigurationError.of("weights", owner, "finite, not negative, not all 0", weights)
    if not 0.0 <= l2 < np.inf:
        raise ConfigurationError.of("l2", owner, "at least 0", l2)
    return p, y, w
