"""The paper's four weight schedules, by name: the product scores with the first."""

from __future__ import annotations

import numpy as np

from grampus_uq.stats.arrays import FloatArray
from grampus_uq.stats.trajectory_scores import WeightSchedule, linear_front, uniform


def exponential_front(step: FloatArray, length: FloatArray) -> FloatArray:
    """`w_t = 2^-(t-1) / (2 - 2^-(T-1))`: each step counts half of the one before; steps beyond 1,075 weigh 0."""
    return np.asarray(np.exp2(1.0 - step) / (2.0 - np.exp2(1.0 - length)), dtype=np.float64)


def linear_back(step: FloatArray, length: FloatArray) -> FloatArray:
    """`w_t = t / (T (T + 1) / 2)`: the mirror of linear-front."""
    return np.asarray(step * (2.0 / (length * (length + 1.0))), dtype=np.float64)


SCHEDULES: dict[str, WeightSchedule] = {
    "linear-front": linear_front,
    "uniform": uniform,
    "exponential-front": exponential_front,
    "linear-back": linear_back,
}
