"""The Trajectory Proper Score: a strictly proper score of every step's forecast, weighted and summed.

`TPS = sum_t w_t s(p_t, Y)`, where p_t is the reported probability at step t that the task will *eventually* succeed,
Y the outcome, s a strictly proper score (`scoring`) and w positive weights with sum 1 (`WeightSchedule`). A reward:
higher is better. Batches are ragged: one flat array of forecasts and the number of steps of each trajectory.

Missing forecasts: nothing is imputed. A trajectory with a missing (NaN) forecast at any step gets the score NaN;
leave it out and report how many there were (`ForecastTraces.missing`).

Source: "Proper Scoring Rules for Agentic Uncertainty Quantification"; equation numbers are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray, IntArray, numbers
from grampus_uq.stats.scoring import LOG, ProperScore, expected_score

WeightSchedule = Callable[[FloatArray, FloatArray], FloatArray]
"""Positive weights w_t of steps t = 1..T, with sum 1: from t and T, arrays that broadcast.

The evaluator chooses the weights before scoring; any positive ones keep the trajectory score strictly proper. Results
under different schedules do not compare. Source: Trajectory Proper Score paper, section 4.1 and App. I.
"""


def linear_front(step: FloatArray, length: FloatArray) -> FloatArray:
    """Return `w_t = (T - t + 1) / (T (T + 1) / 2)`: the paper's default, for early warning and deferral."""
    return np.asarray((length - step + 1.0) * (2.0 / (length * (length + 1.0))), dtype=np.float64)


def uniform(step: FloatArray, length: FloatArray) -> FloatArray:
    """Return `w_t = 1 / T`: every prefix matters alike."""
    return np.broadcast_to(1.0 / length, np.broadcast_shapes(step.shape, length.shape))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastTraces:
    """The forecasts of n trajectories, end to end in one array.

    forecasts: shape (steps,), p_t in [0, 1], higher = more likely to succeed; NaN = missing. lengths: shape (n,),
    observed steps of each trajectory, at least 1, with sum `steps`. A trajectory without a step has no forecast:
    leave it out.
    """

    forecasts: FloatArray
    lengths: IntArray

    def __post_init__(self) -> None:
        forecasts = numbers("forecasts", "ForecastTraces", self.forecasts)
        given = numbers("lengths", "ForecastTraces", self.lengths)
        if given.ndim != 1 or not ((given >= 1) & (given == np.floor(given))).all():
            raise ConfigurationError.of("lengths", "ForecastTraces", "whole numbers of at least 1", self.lengths)
        lengths = given.astype(np.int64)
        if forecasts.shape != (lengths.sum(),):
            rule = f"one number a step, {lengths.sum()} in all"
            raise ConfigurationError.of("forecasts", "ForecastTraces", rule, forecasts.shape)
        if (forecasts < 0.0).any() or (forecasts > 1.0).any():
            outside = forecasts[(forecasts < 0.0) | (forecasts > 1.0)][0]
            raise ConfigurationError.of(
                "forecasts", "ForecastTraces", "in [0, 1]", outside, "percentages? divide by 100"
            )
        object.__setattr__(self, "forecasts", forecasts)
        object.__setattr__(self, "lengths", lengths)

    @classmethod
    def of(cls, traces: Iterable[Sequence[float | None]]) -> ForecastTraces:
        """Build from one sequence of forecasts per trajectory; None is a missing forecast."""
        rows = [list(trace) for trace in traces]
        return cls(
            forecasts=numbers("forecasts", "ForecastTraces", [p for row in rows for p in row]),
            lengths=np.array([len(row) for row in rows], dtype=np.int64),
        )

    def __len__(self) -> int:
        """Return the number of trajectories."""
        return len(self.lengths)

    @property
    def starts(self) -> IntArray:
        """Position of each trajectory's first step; shape (n,)."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def steps(self) -> IntArray:
        """Step number of each forecast, from 1; shape (steps,)."""
        return np.arange(1, len(self.forecasts) + 1) - np.repeat(self.starts, self.lengths)

    @property
    def missing(self) -> BoolArray:
        """Trajectories with a missing forecast; shape (n,)."""
        return self.sums(np.isnan(self.forecasts).astype(np.float64)) > 0.0

    def sums(self, values: FloatArray) -> FloatArray:
        """Sum one value per step within each trajectory; (steps,) in, (n,) out."""
        return np.add.reduceat(values, self.starts) if len(self) else np.empty(0)

    def spread(self, values: npt.ArrayLike) -> FloatArray:
        """Repeat one value per trajectory over its steps; (n,) in, (steps,) out."""
        return np.repeat(np.asarray(values, dtype=np.float64), self.lengths)

    def with_forecasts(self, forecasts: FloatArray) -> ForecastTraces:
        """Return the same trajectories with other forecasts, for example calibrated ones."""
        return ForecastTraces(forecasts=forecasts, lengths=self.lengths)

    def select(self, chosen: BoolArray) -> ForecastTraces:
        """Return the trajectories whose entry in a mask of shape (n,) is True."""
        return ForecastTraces(forecasts=self.forecasts[np.repeat(chosen, self.lengths)], lengths=self.lengths[chosen])


def step_weights(traces: ForecastTraces, schedule: WeightSchedule = linear_front) -> FloatArray:
    """Return w_t of every step, shape (steps,): positive, with sum 1 over each trajectory.

    A trajectory that stopped at an administrative budget is evaluated over the steps that it has.
    """
    weights = np.asarray(schedule(traces.steps.astype(np.float64), traces.spread(traces.lengths)), dtype=np.float64)
    fits = weights.shape == traces.forecasts.shape and bool((weights >= 0.0).all())
    if not fits or abs(traces.sums(weights) - 1.0).max(initial=0.0) > 1e-9:
        rule = "one that gives each step a weight, none negative, with sum 1 over each trajectory"
        raise ConfigurationError.of("schedule", "step_weights", rule, weights)
    return weights


def tps(
    traces: ForecastTraces,
    outcomes: npt.ArrayLike,
    *,
    score: ProperScore = LOG,
    schedule: WeightSchedule = linear_front,
) -> FloatArray:
    """Score complete trajectories: `TPS = sum_t w_t s(p_t, Y)` (eq. 2).

    Theorem 4.1: if s is strictly proper and all w_t > 0, the expected TPS is largest for the truthful process
    `p_t = P(Y = 1 | history at t)`, and only for it. Assumes that the law of the trajectories is fixed (no policy that
    is optimised against the score) and the weights are fixed beforehand. What breaks it: outcomes that were selected
    (runs stopped because they looked bad), forecasts that saw later steps.

    `outcomes`: shape (n,), 1 or True = success, 0 = failure. `score` is strictly proper. Returns shape (n,), at most 0,
    higher is better; NaN where a forecast is missing. Their mean is the reported number.

    >>> tps(ForecastTraces.of([[0.5, 0.5], [0.9, 1.0]]), [1, 1]).round(4).tolist()
    [-0.6931, -0.0702]
    """
    if not np.isin(numbers("outcomes", "tps", outcomes), (0.0, 1.0)).all():
        hint = "leave unobserved outcomes out, or score them with tps_exact"
        raise ConfigurationError.of("outcomes", "tps", "observed (0 or 1)", outcomes, hint)
    return _weighted_scores("tps", traces, outcomes, score, schedule)


def tps_exact(
    traces: ForecastTraces,
    outcomes: npt.ArrayLike,
    *,
    score: ProperScore = LOG,
    schedule: WeightSchedule = linear_front,
) -> FloatArray:
    """Score trajectories of which some were stopped by an administrative budget, so that nobody saw their outcome.

    Complete: as `tps`. Censored at step C: `sum_{t<=C} w_t [q s(p_t, 1) + (1 - q) s(p_t, 0)]` (eq. 4), which is the
    mean of the prefix's score over continuations that succeed with probability q.

    Theorem 4.3: strictly proper for the observed prefix, if stopping was not informative given the task (assumption
    1) and given the stopped prefix (assumption 2), and q is the true P(Y = 1 | stopped prefix). What breaks it: stops
    that the monitor, a parser or a tool error caused; a q estimated from the forecasts that are being scored.

    `outcomes`: shape (n,), 1, 0, or the q of a censored trajectory, in [0, 1]. All else and the result as in `tps`.
    """
    return _weighted_scores("tps_exact", traces, outcomes, score, schedule)


def _weighted_scores(
    owner: str, traces: ForecastTraces, outcomes: npt.ArrayLike, score: ProperScore, schedule: WeightSchedule
) -> FloatArray:
    chance = numbers("outcomes", owner, outcomes)
    if chance.shape != (len(traces),):
        raise ConfigurationError.of("outcomes", owner, f"of shape ({len(traces)},)", chance.shape)
    if not ((chance >= 0.0) & (chance <= 1.0)).all():
        raise ConfigurationError.of("outcomes", owner, "in [0, 1]", outcomes)
    scores = expected_score(score, traces.forecasts, traces.spread(chance))
    return traces.sums(step_weights(traces, schedule) * scores)


def weighted_forecast(traces: ForecastTraces, schedule: WeightSchedule = linear_front) -> FloatArray:
    """Collapse each trajectory to `sum_t w_t p_t`: the scalar that rank metrics, T-ECE and T-Brier are printed for.

    A scalar is not a trace: no score of it elicits the process (theorem B). Shape (n,), in [0, 1]; NaN where missing.
    Equal averages come out as equal numbers, so that they tie: see `_weighted_mean`.
    """
    return _weighted_mean(traces, step_weights(traces, schedule))


def last_forecast(traces: ForecastTraces) -> FloatArray:
    """AUQ's "last" scalar, the forecast at the final step; shape (n,), NaN where any step is missing."""
    return np.where(traces.missing, np.nan, traces.forecasts[traces.starts + traces.lengths - 1])


def mean_forecast(traces: ForecastTraces) -> FloatArray:
    """AUQ's "mean" scalar; shape (n,), NaN where any step is missing."""
    return _weighted_mean(traces, step_weights(traces, uniform))


def min_forecast(traces: ForecastTraces) -> FloatArray:
    """AUQ's "min" scalar, the least confident step; shape (n,), NaN where any step is missing."""
    return np.minimum.reduceat(traces.forecasts, traces.starts) if len(traces) else np.empty(0)


def _weighted_mean(traces: ForecastTraces, weights: FloatArray) -> FloatArray:
    """Average within trajectories so that equal averages are equal numbers.

    A constant 0.8 averaged over 3 and over 7 steps differs in the last bit, which rank metrics read: on one real set a
    constant stream had AUROC .44. So averages are offsets from the first step (exact for constants), rounded to 1e-12.
    """
    first = traces.forecasts[traces.starts]
    return np.round(first + traces.sums(weights * (traces.forecasts - traces.spread(first))), 12)
