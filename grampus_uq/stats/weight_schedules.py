"""How much each step of a trajectory counts in its score: four schedules, each summing to 1 over the evaluated length.

Weights are the evaluator's choice and are fixed before scoring: any positive schedule keeps the trajectory score
strictly proper. Front-loaded ones suit early warning and deferral, the uniform one when every prefix matters alike,
the back-loaded one when the late confidence is what is used. Results under different schedules do not compare.

Source: Trajectory Proper Score paper, section 4.1 and App. I.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "EXPONENTIAL_FRONT",
    "LINEAR_BACK",
    "LINEAR_FRONT",
    "SCHEDULES",
    "UNIFORM",
    "ExponentialFront",
    "LinearBack",
    "LinearFront",
    "StepSums",
    "Uniform",
    "WeightSchedule",
]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """Four running sums over steps x_1..x_C from which any schedule's weighted sum follows, whatever the final length.

    `plain = sum x_t`, `by_step = sum t x_t`, `halved = sum 2^(1-t) x_t`, and `of_prefixes = sum_k sum_{t<=k} x_t`,
    which is `sum (C - t + 1) x_t` without the cancellation of computing it from the first two.
    """

    plain: float = 0.0
    of_prefixes: float = 0.0
    by_step: float = 0.0
    halved: float = 0.0

    def with_step(self, x: float, step: int) -> StepSums:
        """Take in x at this step (from 1)."""
        plain = self.plain + x
        return StepSums(
            plain=plain,
            of_prefixes=self.of_prefixes + plain,
            by_step=self.by_step + step * x,
            halved=self.halved + 2.0 ** (1 - step) * x,
        )


class WeightSchedule(Protocol):
    """Positive weights w_t, t = 1..T, with sum 1."""

    @property
    def name(self) -> str:
        """What reports print."""
        ...

    def weights(self, step: FloatArray, length: FloatArray) -> FloatArray:
        """Return w_t for steps t (from 1) of trajectories of evaluated length T >= t; the arrays broadcast."""
        ...

    def weighted_sum(self, sums: StepSums, steps: int, length: int) -> float:
        """Return `sum_{t <= steps} w_t x_t` under evaluated length T = `length` >= steps."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFront:
    """`w_t = (T - t + 1) / (T (T + 1) / 2)`: the paper's default."""

    @property
    def name(self) -> str:
        """Return "linear-front"."""
        return "linear-front"

    def weights(self, step: FloatArray, length: FloatArray) -> FloatArray:
        """Return 2 (T - t + 1) / (T (T + 1))."""
        return np.asarray((length - step + 1.0) * (2.0 / (length * (length + 1.0))), dtype=np.float64)

    def weighted_sum(self, sums: StepSums, steps: int, length: int) -> float:
        """Fall from T - steps + 1 at the last step seen."""
        return (sums.of_prefixes + (length - steps) * sums.plain) * 2.0 / (length * (length + 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """`w_t = 1 / T`."""

    @property
    def name(self) -> str:
        """Return "uniform"."""
        return "uniform"

    def weights(self, step: FloatArray, length: FloatArray) -> FloatArray:
        """Return 1 / T."""
        return np.broadcast_to(1.0 / length, np.broadcast_shapes(step.shape, length.shape))

    def weighted_sum(self, sums: StepSums, steps: int, length: int) -> float:
        """Average over the evaluated length."""
        return sums.plain / length


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialFront:
    """`w_t = 2^-(t-1) / (2 - 2^-(T-1))`: each step counts half of the one before.

    Beyond step 1,075 a weight is below the smallest double and becomes 0: such steps are not scored.
    """

    @property
    def name(self) -> str:
        """Return "exponential-front"."""
        return "exponential-front"

    def weights(self, step: FloatArray, length: FloatArray) -> FloatArray:
        """Return 2^(1-t) / (2 - 2^(1-T))."""
        return np.asarray(np.exp2(1.0 - step) / (2.0 - np.exp2(1.0 - length)), dtype=np.float64)

    def weighted_sum(self, sums: StepSums, steps: int, length: int) -> float:
        """Divide the halving sum by its total."""
        return sums.halved / (2.0 - 2.0 ** (1 - length))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearBack:
    """`w_t = t / (T (T + 1) / 2)`: the mirror of linear-front."""

    @property
    def name(self) -> str:
        """Return "linear-back"."""
        return "linear-back"

    def weights(self, step: FloatArray, length: FloatArray) -> FloatArray:
        """Return 2 t / (T (T + 1))."""
        return np.asarray(step * (2.0 / (length * (length + 1.0))), dtype=np.float64)

    def weighted_sum(self, sums: StepSums, steps: int, length: int) -> float:
        """Divide the step-weighted sum by its total."""
        return sums.by_step * 2.0 / (length * (length + 1.0))


LINEAR_FRONT = LinearFront()
UNIFORM = Uniform()
EXPONENTIAL_FRONT = ExponentialFront()
LINEAR_BACK = LinearBack()

SCHEDULES: Mapping[str, WeightSchedule] = MappingProxyType(
    {schedule.name: schedule for schedule in (LINEAR_FRONT, UNIFORM, EXPONENTIAL_FRONT, LINEAR_BACK)}
)
"""The paper's schedules by name, for command lines and reports."""
