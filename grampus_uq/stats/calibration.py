"""Fitting calibration maps: Platt, temperature, beta and isotonic, by maximising a proper score, and cross-fitted.

The loss is minus the weighted proper score. With one forecast a step, its trajectory's outcome and its schedule weight
(`step_records`), that is minus the Trajectory Proper Score itself, so a map is fitted to what it will be judged by
(App. J.4). The log score gives logistic regression; Brier and the beta family go through the same few steps of Fisher
scoring. A score is a loss under a fixed policy, never a reward to train the policy with: it would change the
histories.

A map that is judged on the runs it was fitted on flatters itself: `cross_fit` calibrates each half by a map of the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.calibration_maps import (
    BetaMap,
    CalibrationMap,
    IsotonicMap,
    PlattMap,
    TemperatureMap,
)
from grampus_uq.stats.logistic_fit import LogisticProblem, maximise
from grampus_uq.stats.scoring import EPSILON, LOG, ProperScore, log_odds
from grampus_uq.stats.trajectory_scores import ForecastTraces, step_weights
from grampus_uq.stats.weight_schedules import LINEAR_FRONT, WeightSchedule

__all__ = [
    "CalibrationFit",
    "CrossFit",
    "cross_fit",
    "fit_beta",
    "fit_isotonic",
    "fit_platt",
    "fit_temperature",
    "split_halves",
    "step_records",
]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

SD_FLOOR = 1e-6
"""Least standard deviation of the log-odds: a saturated stream with one value would otherwise divide by 0."""

FINITE_RIDGE = 1e-6
"""Penalty of the fits that their papers leave unpenalised: separable data have no finite optimum without one."""


class CalibrationFit(Protocol):
    """Something that fits a map to records; `functools.partial` of the functions below sets their other arguments."""

    def __call__(
        self, forecasts: npt.ArrayLike, outcomes: npt.ArrayLike, *, weights: npt.ArrayLike | None = None
    ) -> CalibrationMap:
        """Fit."""
        ...


def fit_platt(
    forecasts: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    score: ProperScore = LOG,
    l2: float = 1.0,
    epsilon: float = EPSILON,
) -> PlattMap:
    """Platt scaling on standardised log-odds: maximise `sum w s(sigma(a + b z), y) - l2 b^2 / 2`, b >= 0.

    Forecasts are clipped, turned into log-odds and standardised by their weighted mean and standard deviation (at
    least 1e-6). The penalty is on the slope alone. A slope <= 0, or outcomes of one class, gives the flat map at the
    weighted success rate: a signal that points the wrong way is not turned around.

    Args:
        forecasts: shape (n,), raw forecasts in [0, 1], higher = more likely to succeed; no NaN.
        outcomes: shape (n,), 1 = success, 0 = failure; in between for censored prefixes (their q).
        weights: shape (n,), not negative, not all 0; None = 1 each. Their total against l2 sets the shrinkage:
            schedule weights count each trajectory once.
        score: what is maximised. For other scores than log the penalty is scaled by the score's own density at the
            base rate, so that l2 shrinks alike.
        l2: penalty on the slope, >= 0. With 0, separable data stop at the iteration limit, steep but finite.
        epsilon: clipping of forecasts and results.

    Returns:
        The fitted map.

    Raises:
        ConfigurationError: an argument outside its domain, or no record.

    Source: Trajectory Proper Score paper, App. D.
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
        problem = LogisticProblem(
            design=design, outcomes=y, weights=w, l2=np.array([0.0, l2]), centre=np.zeros(2), score=score
        )
        intercept, slope = maximise(problem, np.array([base, 0.0])).tolist()
    if slope <= 0.0:
        intercept, slope = base, 0.0
    return PlattMap(mean=mean, sd=sd, intercept=intercept, slope=slope, epsilon=epsilon)


def fit_temperature(
    forecasts: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    score: ProperScore = LOG,
    l2: float = FINITE_RIDGE,
    epsilon: float = EPSILON,
) -> TemperatureMap:
    """Temperature scaling: maximise `sum w s(sigma(logit(p) / T), y) - l2 (1/T - 1)^2 / 2` over 1/T >= 0.

    It cannot move forecasts across 1/2: where the base rate is far from it, Platt or beta calibration serves better.

    Args, raises: as `fit_platt`; l2 pulls towards T = 1 and is there for separable data.

    Returns:
        The fitted map; 1/T = 0 when the log-odds point the wrong way.

    Source: Guo et al. (2017).
    """
    p, y, w = _records("fit_temperature", forecasts, outcomes, weights, l2)
    identity = np.ones(1)
    problem = LogisticProblem(
        design=log_odds(p, epsilon)[:, None], outcomes=y, weights=w, l2=np.array([l2]), centre=identity, score=score
    )
    return TemperatureMap(inverse_temperature=max(0.0, float(maximise(problem, identity)[0])), epsilon=epsilon)


def fit_beta(
    forecasts: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    score: ProperScore = LOG,
    l2: float = FINITE_RIDGE,
    epsilon: float = EPSILON,
) -> BetaMap:
    """Beta calibration: maximise `sum w s(sigma(c + a ln p - b ln(1-p)), y) - l2 (a^2 + b^2) / 2` over a, b >= 0.

    The sign constraints are met exactly: all four sets of free exponents are fitted, and the best admissible one is
    taken. Outcomes of one class, or forecasts that point the wrong way, give the flat map at the weighted success
    rate.

    Args, raises: as `fit_platt`; l2 is there for separable data.

    Returns:
        The fitted map.

    Source: Kull, Silva Filho and Flach (2017).
    """
    p, y, w = _records("fit_beta", forecasts, outcomes, weights, l2)
    clipped = np.clip(p, epsilon, 1.0 - epsilon)
    design = np.column_stack([np.ones_like(p), np.log(clipped), -np.log1p(-clipped)])
    rate = float(w @ y / w.sum())
    base = float(log_odds(rate, epsilon))
    best = np.array([base, 0.0, 0.0])
    if 0.0 < rate < 1.0:
        whole = LogisticProblem(
            design=design, outcomes=y, weights=w, l2=np.array([0.0, l2, l2]), centre=np.zeros(3), score=score
        )
        for free in ([0, 1], [0, 2], [0, 1, 2]):
            part = replace(whole, design=design[:, free], l2=whole.l2[free], centre=whole.centre[free])
            fitted = np.zeros(3)
            fitted[free] = maximise(part, np.array([base, 0.0, 0.0])[free])
            if (fitted[1:] >= 0.0).all() and whole.value(fitted) > whole.value(best):
                best = fitted
    return BetaMap(intercept=float(best[0]), a=float(best[1]), b=float(best[2]), epsilon=epsilon)


def fit_isotonic(
    forecasts: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    prior: float = 1.0,
    epsilon: float = EPSILON,
) -> IsotonicMap:
    """Isotonic regression by pooling adjacent violators, every block drawn a little towards the success rate.

    A block of weight w with successes s says `(s + prior rate)/(w + prior)`; blocks are pooled until these do not
    decrease. With prior 0 it is the best non-decreasing map for *every* proper score at once on the records themselves,
    and on few of them far too sure: of 50 records with chances between .1 and .9 it says below .01 or above .99 on 19 %
    of inputs, at a log loss of .97 where the truth has .58 (prior 1: 0 %, .63; Platt: .60). Below some 300 trajectories
    prefer Platt.

    Equal forecasts are pooled first. Between blocks the map interpolates linearly.

    Args, raises: as `fit_platt`; records without weight are left out. prior: weight of the success rate in every block,
        in records' weights (of schedule weights 1 is a trajectory), >= 0.

    Returns:
        The fitted map; its ends are clipped to [epsilon, 1 - epsilon], because a block of failures is no proof.

    Source: Zadrozny and Elkan (2002); Bruemmer and du Preez (2013) for every proper score.
    """
    p, y, w = _records("fit_isotonic", forecasts, outcomes, weights, 0.0)
    if not 0.0 <= prior < np.inf:
        raise ConfigurationError.of("prior", "fit_isotonic", "at least 0", prior)
    p, y, w = p[w > 0.0], y[w > 0.0], w[w > 0.0]
    more = prior * float(w @ y / w.sum())
    values, member = np.unique(p, return_inverse=True)
    mass = np.bincount(member, weights=w).tolist()
    hits = np.bincount(member, weights=w * y).tolist()
    blocks: list[tuple[int, float, float]] = []  # first value, weight, weight of successes; ratios do not decrease
    for first, (weight, success) in enumerate(zip(mass, hits, strict=True)):
        start = first
        while blocks and (blocks[-1][2] + more) * (weight + prior) >= (success + more) * (blocks[-1][1] + prior):
            start, earlier_weight, earlier_success = blocks.pop()
            weight, success = weight + earlier_weight, success + earlier_success
        blocks.append((start, weight, success))
    ends = [block[0] - 1 for block in blocks[1:]] + [len(values) - 1]
    knots: dict[float, float] = {}
    for (start, weight, success), end in zip(blocks, ends, strict=True):
        said = min((success + more) / (weight + prior), 1.0)
        knots[float(values[start])] = knots[float(values[end])] = said
    return IsotonicMap(forecasts=tuple(knots), probabilities=tuple(knots.values()), epsilon=epsilon)


def step_records(
    traces: ForecastTraces, outcomes: npt.ArrayLike, schedule: WeightSchedule = LINEAR_FRONT
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Flatten trajectories into (forecast, outcome, weight) a step, without trajectories that miss a forecast.

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
    maps: tuple[CalibrationMap, CalibrationMap]


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
    fit: CalibrationFit = fit_platt,
    *,
    schedule: WeightSchedule = LINEAR_FRONT,
) -> CrossFit:
    """Calibrate every trajectory by a map fitted on the other half (`split_halves`); all its steps share the half.

    Args:
        traces: n complete trajectories.
        outcomes: shape (n,), 0 or 1; censored trajectories have no place here.
        ids: n distinct, stable names.
        fit: how a map is fitted to step records.
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
        fitted.append(fit(forecasts, targets, weights=weights))
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
