"""Step scorers: the protocol, the scores with their reasons, and any function as a scorer.

A score says how suspect a step is: higher = more likely the decisive error. The guarantee of attribution holds for any
scorer that was not fitted on the calibration trajectories; a good one makes the sets small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.failed_trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScore:
    """The score of one step.

    value: finite. why: what speaks against the step. missing: why the scorer has no judgement, when `value` is its
    stand-in; None otherwise.
    """

    value: float
    why: str = ""
    missing: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ConfigurationError.of("value", "StepScore", "finite", self.value)


class StepScorer(Protocol):
    """Scores the steps of a trajectory. May block, must not read labels."""

    @property
    def name(self) -> str:
        """Name of the scorer in results."""
        ...

    def score(self, trajectory: Trajectory, /) -> Sequence[StepScore]:
        """Return one score a step, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionScorer:
    """Any function from a trajectory to one number a step."""

    name: str
    function: Callable[[Trajectory], Sequence[float]]

    def score(self, trajectory: Trajectory, /) -> Sequence[StepScore]:
        return [StepScore(value=float(value)) for value in self.function(trajectory)]
