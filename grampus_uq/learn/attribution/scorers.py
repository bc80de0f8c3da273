"""How a step gets its score: the protocol, the scores with their reasons and costs, and any callable as a scorer.

A score says how suspect a step is: higher = more likely the decisive error. The guarantee of attribution holds for any
scorer that was not fitted on the calibration trajectories; a good one makes the sets small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.failed_trajectory import Trajectory
from grampus_uq.records.values import TokenUsage

__all__ = [
    "AsyncLazyStepScorer",
    "AsyncStepScorer",
    "ConstantScorer",
    "FunctionScorer",
    "LazyStepScorer",
    "StepFunctionScorer",
    "StepScore",
    "StepScorer",
    "StepScores",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScore:
    """The score of one step, why, and what it cost.

    value: finite. missing: why no judgement came, when `value` is the scorer's stated stand-in; None otherwise.
    """

    value: float
    why: str = ""
    missing: str | None = None
    calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ConfigurationError.of("value", "StepScore", "finite", self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScores:
    """The scores of all steps of a trajectory, and what was spent on no step in particular (a summary of the run)."""

    steps: tuple[StepScore, ...]
    shared_calls: int = 0
    shared_usage: TokenUsage = field(default_factory=TokenUsage)

    @property
    def values(self) -> list[float]:
        """The bare numbers, in step order."""
        return [step.value for step in self.steps]

    @property
    def calls(self) -> int:
        """Model calls in all."""
        return self.shared_calls + sum(step.calls for step in self.steps)

    @property
    def usage(self) -> TokenUsage:
        """Tokens and money in all."""
        return sum((step.usage for step in self.steps), start=self.shared_usage)


@runtime_checkable
class StepScorer(Protocol):
    """Scores all steps of a trajectory at once; one score a step, in order. May block, must not touch labels."""

    @property
    def name(self) -> str:
        """What the scorer is called in results."""
        ...

    def score(self, trajectory: Trajectory, /) -> StepScores:
        """Score every step."""
        ...


@runtime_checkable
class AsyncStepScorer(Protocol):
    """A `StepScorer` that is awaited."""

    @property
    def name(self) -> str:
        """What the scorer is called in results."""
        ...

    async def score(self, trajectory: Trajectory, /) -> StepScores:
        """Score every step."""
        ...


@runtime_checkable
class LazyStepScorer(StepScorer, Protocol):
    """A scorer that can also score a single step without the scores of the others; `score` gives the same values."""

    def score_step(self, trajectory: Trajectory, index: int, /) -> StepScore:
        """Score one step."""
        ...


@runtime_checkable
class AsyncLazyStepScorer(AsyncStepScorer, Protocol):
    """A `LazyStepScorer` that is awaited."""

    async def score_step(self, trajectory: Trajectory, index: int, /) -> StepScore:
        """Score one step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantScorer:
    """Gives every step the same score: what a method is worth without any judgement, from the position alone."""

    value: float = 1.0

    @property
    def name(self) -> str:
        return "constant"

    def score(self, trajectory: Trajectory, /) -> StepScores:
        return StepScores(steps=(self.score_step(trajectory, 0),) * len(trajectory))

    def score_step(self, trajectory: Trajectory, index: int, /) -> StepScore:
        return StepScore(value=self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionScorer:
    """Any function from a trajectory to one number a step. It sees the whole trajectory, so it is never lazy."""

    name: str
    function: Callable[[Trajectory], Sequence[float]]

    def score(self, trajectory: Trajectory, /) -> StepScores:
        values = [float(value) for value in self.function(trajectory)]
        if len(values) != len(trajectory):
            rule = f"one score a step ({len(trajectory)})"
            raise ConfigurationError.of("function", f"FunctionScorer {self.name}", rule, len(values))
        return StepScores(steps=tuple(StepScore(value=value) for value in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunctionScorer:
    """Any function from a trajectory and an index to a number: each step on its own, so left and right filtration
    call it only as far as they need.
    """

    name: str
    function: Callable[[Trajectory, int], float]

    def score(self, trajectory: Trajectory, /) -> StepScores:
        return StepScores(steps=tuple(self.score_step(trajectory, index) for index in range(len(trajectory))))

    def score_step(self, trajectory: Trajectory, index: int, /) -> StepScore:
        return StepScore(value=float(self.function(trajectory, index)))
