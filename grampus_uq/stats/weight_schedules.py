"""How much each step of a trajectory counts in its score: four schedules, each summing to 1 over the evaluated length.

The evaluator chooses the weights before scoring; any positive schedule keeps the trajectory score strictly proper.
Front-loaded schedules suit early warning and deferral, the uniform one suits prefixes of equal interest, the
back-loaded one suits a late confidence. Results under different schedules do not compare.

Source: Trajectory Proper Score paper, section 4.1 and App. I.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from grampus_uq.stats.arrays import FloatArray

__all__ = ["EXPONENTIAL_FRONT", "LINEAR_BACK", "LINEAR_FRONT", "SCHEDULES", "UNIFORM", "WeightSchedule"]


@dataclass(frozen=True, slots=True)
class WeightSchedule:
    """Positive weights w_t, t = 1..T, with sum 1.

    name: what reports print. weights: w_t for steps t (from 1) of trajectories of evaluated length T >= t; the two
    arrays broadcast.
    """

    name: str
    weights: Callable[[FloatArray, FloatArray], FloatArray] = field(repr=False)


def _linear_front(step: FloatArray, length: FloatArray) -> FloatArray:
    return np.asarray((length - step + 1.0) * (2.0 / (length * (length + 1.0))), dtype=np.float64)


def _uniform(step: FloatArray, length: FloatArray) -> FloatArray:
    return np.broadcast_to(1.0 / length, np.broadcast_shapes(step.shape, length.shape))


def _exponential_front(step: FloatArray, length: FloatArray) -> FloatArray:
    return np.asarray(np.exp2(1.0 - step) / (2.0 - np.exp2(1.0 - length)), dtype=np.float64)


def _linear_back(step: FloatArray, length: FloatArray) -> FloatArray:
    return np.asarray(step * (2.0 / (length * (length + 1.0))), dtype=np.float64)


LINEAR_FRONT = WeightSchedule("linear-front", _linear_front)
"""`w_t = (T - t + 1) / (T (T + 1) / 2)`: the paper's default."""

UNIFORM = WeightSchedule("uniform", _uniform)
"""`w_t = 1 / T`."""

EXPONENTIAL_FRONT = WeightSchedule("exponential-front", _exponential_front)
"""`w_t = 2^-(t-1) / (2 - 2^-(T-1))`: each step counts half of the one before; steps beyond 1,075 weigh 0."""

LINEAR_BACK = WeightSchedule("linear-back", _linear_back)
"""`w_t = t / (T (T + 1) / 2)`: the mirror of linear-front."""

SCHEDULES: Mapping[str, WeightSchedule] = MappingProxyType(
    {schedule.name: schedule for schedule in (LINEAR_FRONT, UNIFORM, EXPONENTIAL_FRONT, LINEAR_BACK)}
)
"""The paper's schedules by name, for command lines and reports."""
