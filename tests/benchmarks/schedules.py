"""The paper's four weight schedules, by name: the product scores with the first."""

from __future__ import annotations

import numpy as np

from grampus_uq.stats.arrays import FloatArray
from grampus_uq.stats.weight_schedules import LINEAR_FRONT, UNIFORM, WeightSchedule


def _exponential_front(step: FloatArray, length: FloatArray) -> FloatArray:
    return np.asarray(np.exp2(1.0 - step) / (2.0 - np.exp2(1.0 - length)), dtype=np.float64)


def _linear_back(step: FloatArray, length: FloatArray) -> FloatArray:
    return np.asarray(step * (2.0 / (length * (length + 1.0))), dtype=np.float64)


EXPONENTIAL_FRONT = WeightSchedule("exponential-front", _exponential_front)
"""`w_t = 2^-(t-1) / (2 - 2^-(T-1))`: each step counts half of the one before; steps beyond 1,075 weigh 0."""

LINEAR_BACK = WeightSchedule("linear-back", _linear_back)
"""`w_t = t / (T (T + 1) / 2)`: the mirror of linear-front."""

SCHEDULES = {schedule.name: schedule for schedule in (LINEAR_FRONT, UNIFORM, EXPONENTIAL_FRONT, LINEAR_BACK)}
