"""The Trajectory Proper Score step by step: bounded state while a run goes on, the score once its end is known.

Neither the outcome nor the final length is known while a trajectory runs, and both enter every step's weighted score.
Four running sums for either outcome (`weight_schedules.StepSums`) hold all that is needed, for every schedule and
length.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.scoring import LOG, ProperScore
from grampus_uq.stats.weight_schedules import LINEAR_FRONT, StepSums, WeightSchedule

__all__ = ["TpsState", "tps_update", "tps_value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TpsState:
    """What has been seen of one trajectory: nine numbers, however long it runs; plain and JSON-able.

    steps: steps seen, missing ones included. missing: steps without a forecast. success, failure: sums of s(p_t, 1)
    and of s(p_t, 0). One state serves one score; mixing scores in one state has no meaning.
    """

    steps: int = 0
    missing: int = 0
    success: StepSums = field(default_factory=StepSums)
    failure: StepSums = field(default_factory=StepSums)


def tps_update(state: TpsState, p: float | None, score: ProperScore = LOG) -> TpsState:
    """Take in the next step's forecast; None counts as missing.

    Args:
        state: what was seen before.
        p: probability of eventual success in [0, 1], or None.
        score: the same in every call for one trajectory.

    Returns:
        The new state.

    Raises:
        ConfigurationError: p outside [0, 1] or NaN.
    """
    step = state.steps + 1
    if p is None:
        return replace(state, steps=step, missing=state.missing + 1)
    if not 0.0 <= p <= 1.0:
        raise ConfigurationError.of("p", "tps_update", "in [0, 1]", p)
    forecast = np.array([p], dtype=np.float64)
    return TpsState(
        steps=step,
        missing=state.missing,
        success=state.success.with_step(float(score.success(forecast)[0]), step),
        failure=state.failure.with_step(float(score.failure(forecast)[0]), step),
    )


def tps_value(
    state: TpsState, outcome: float, *, schedule: WeightSchedule = LINEAR_FRONT, full_length: int | None = None
) -> float | None:
    """Score the trajectory seen so far; equal to the batch form to rounding (1e-12 relative).

    Args:
        state: what was seen.
        outcome: 1 = success, 0 = failure; in between the continuation success q of a censored prefix (eq. 4), 0 for
            the simple score (eq. 5).
        schedule: how steps count.
        full_length: evaluated length T, at least the steps seen; None = the steps seen.

    Returns:
        The score, at most 0, higher is better; None before the first step, or when a forecast was missing.

    Raises:
        ConfigurationError: an outcome outside [0, 1], a full length below the steps seen.
    """
    if not 0.0 <= outcome <= 1.0:
        raise ConfigurationError.of("outcome", "tps_value", "in [0, 1]", outcome)
    length = state.steps if full_length is None else full_length
    if length < state.steps:
        raise ConfigurationError.of("full_length", "tps_value", f"at least the {state.steps} steps seen", full_length)
    if state.steps == 0 or state.missing:
        return None
    success = schedule.weighted_sum(state.success, state.steps, length)
    failure = schedule.weighted_sum(state.failure, state.steps, length)
    return outcome * success + (1.0 - outcome) * failure
