"""The simple score of censored trajectories, and what artificial censoring does to it: the paper's sections 5 and 6.2.

The product scores a censored trajectory by `tps_exact`; the simple score is not proper for the probability of success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.stats.arrays import FloatArray
from grampus_uq.stats.scoring import LOG, ProperScore, expected_score
from grampus_uq.stats.trajectory_scores import ForecastTraces, WeightSchedule, linear_front, step_weights, tps_exact


def truncated(traces: ForecastTraces, stops: npt.NDArray[np.int64]) -> ForecastTraces:
    """The first `stops` steps of each trajectory; shape (n,), each from 1 to its length."""
    kept = np.asarray(stops)
    return ForecastTraces(forecasts=traces.forecasts[traces.steps <= np.repeat(kept, traces.lengths)], lengths=kept)


def tps_censored(
    traces: ForecastTraces,
    outcomes: npt.ArrayLike,
    q: npt.ArrayLike,
    *,
    score: ProperScore = LOG,
    schedule: WeightSchedule = linear_front,
    full_lengths: npt.ArrayLike | None = None,
) -> FloatArray:
    """Score a censored trajectory (outcome NaN) by its `q`; one of `full_lengths` by the weights of that many steps.

    Weights of the full length are truncated and not renormalised (section 4.1): the steps behind the stop are missing.
    """
    y = np.asarray(outcomes, dtype=np.float64)
    chance = np.where(np.isnan(y), q, y)
    if full_lengths is None:
        return tps_exact(traces, chance, score=score, schedule=schedule)
    weights = schedule(traces.steps.astype(np.float64), traces.spread(full_lengths))
    return traces.sums(weights * expected_score(score, traces.forecasts, traces.spread(chance)))


def tps_simple(traces: ForecastTraces, outcomes: npt.ArrayLike, **options: Any) -> FloatArray:
    """Score a censored trajectory (outcome NaN) as if it had failed: `sum_{t<=C} w_t s(p_t, 0)` (eq. 5).

    It elicits the pseudo-label `P(observed success | history)` (proposition C.3), and is no lower bound of the
    complete score: the other branch gains where p_t < 1/2. Options as `tps_censored`.
    """
    return tps_censored(traces, outcomes, np.zeros(len(traces)), **options)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArtificialCensoring:
    """How hiding outcomes changes the simple score, trajectory by trajectory, split into its two causes.

    prefix_swap: shape (n,), `sum_{t<=C} w_t [s(p_t, 0) - s(p_t, Y)]`; 0 for failures; for the log score of a success
    its steps have the sign of 1/2 - p_t. tail_omission: shape (n,), `-sum_{t>C} w_t s(p_t, Y)`, never negative.
    """

    prefix_swap: FloatArray
    tail_omission: FloatArray

    @property
    def shift(self) -> FloatArray:
        """Simple score of the censored trajectory minus its complete score."""
        return self.prefix_swap + self.tail_omission


def artificial_censoring(
    traces: ForecastTraces,
    outcomes: npt.ArrayLike,
    stops: npt.ArrayLike,
    *,
    score: ProperScore = LOG,
    schedule: WeightSchedule = linear_front,
) -> ArtificialCensoring:
    """Decompose what `tps_simple` changes when complete trajectories are hidden after the steps `stops`.

    Weights are those of the full length, truncated at the stop. Source: section 6.2 and App. I.1.
    """
    stop = np.asarray(stops)
    weights = step_weights(traces, schedule)
    truth = expected_score(score, traces.forecasts, traces.spread(outcomes))
    failure = score.failure(traces.forecasts)
    before = traces.steps <= np.repeat(stop, traces.lengths)
    hidden = traces.spread(stop < traces.lengths)
    return ArtificialCensoring(
        prefix_swap=traces.sums(weights * before * hidden * (failure - truth)),
        tail_omission=traces.sums(np.where(before, 0.0, -weights * truth)),
    )
