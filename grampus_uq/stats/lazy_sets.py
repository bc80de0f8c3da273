"""Left and right filtration that ask for a step's score only when they need it.

A right filtration grows a prefix until its g exceeds the threshold: the set is what came before, and the steps behind
were never scored. Same set as the eager form, with `min(|C| + 1, L)` evaluations. This needs two things: each step can
be scored without the scores of the others, and g is monotone (else a later prefix might fall below the threshold
again); a score that would break the second is refused when it turns up.

The walk is written once, as a generator that yields the index it wants scored and is sent the score; `lazy_set` and
`lazy_set_async` drive it with a plain or an awaited scorer. Cancellation passes straight through.

Source: Feng et al., "Conformal Agent Error Attribution" (2026), section 3.1.3 and table 4.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.aggregation import Aggregation, FloatArray
from grampus_uq.stats.conformal import TieBrokenThreshold

__all__ = [
    "Filtration",
    "LazySet",
    "drive",
    "drive_async",
    "lazy_conformity_walk",
    "lazy_set",
    "lazy_set_async",
    "lazy_set_walk",
]


T = TypeVar("T")


class Filtration(StrEnum):
    """From which end steps are filtered out: `right` leaves prefixes, `left` leaves suffixes."""

    RIGHT = "right"
    LEFT = "left"

    def step_at(self, position: int, length: int) -> int:
        """Index of the step that enters as number `position` (from 0); its own inverse."""
        return position if self is Filtration.RIGHT else length - 1 - position


@dataclass(frozen=True, slots=True, kw_only=True)
class LazySet:
    """A prediction set found lazily: steps `start..stop-1` (empty when equal), and the scores that it took.

    scores: shape (L,), NaN where a step was never scored. evaluations: how many were.
    """

    start: int
    stop: int
    evaluations: int
    scores: FloatArray


def lazy_set_walk(
    filtration: Filtration,
    length: int,
    threshold: TieBrokenThreshold,
    draw: float | None,
    aggregation: Aggregation,
    *,
    infinite_boundary: bool = False,
) -> Generator[int, float, LazySet]:
    """Walk to the prediction set of one trajectory; yields step indices, is sent their scores, returns the `LazySet`.

    Args:
        filtration: which end is filtered.
        length: L >= 1, the number of steps.
        threshold: from calibration with the same filtration, aggregation and boundary.
        draw: tie draw of this trajectory, None lets a tie enter.
        aggregation: how a stretch is scored.
        infinite_boundary: g of the whole trajectory is +inf without looking (see `right_filtration_entry`); the last
            step is then never scored.

    Raises:
        ConfigurationError: length < 1; a score that is not finite or below `aggregation.least_score` (g would not be
            monotone, and stopping early would be wrong).
    """
    _check_length(length)
    scores = np.full(length, np.nan)
    running: float | None = None
    for position in range(length):
        whole = position == length - 1
        if infinite_boundary and whole:
            g = math.inf
        else:
            step = filtration.step_at(position, length)
            scores[step] = _checked_score((yield step), step, aggregation)
            running, g = _grow(running, float(scores[step]), position + 1, length, aggregation)
        tie = g == threshold.value and (draw is None or draw <= threshold.draw)
        if not (g < threshold.value or tie):
            return _found(filtration, position, length, scores)
    return _found(filtration, length, length, scores)


def lazy_conformity_walk(
    filtration: Filtration, length: int, true_step: int, aggregation: Aggregation, *, infinite_boundary: bool = False
) -> Generator[int, float, float]:
    """Walk to the conformity score of a labelled trajectory: g of the stretch that ends at the true step.

    By proposition 1 of the source only the steps up to the true one (from the end where the filtration grows) matter,
    so calibration is as lazy as prediction. Arguments, yields and refusals as `lazy_set_walk`; returns the score.
    """
    _check_length(length)
    if not 0 <= true_step < length:
        raise ConfigurationError.of("true_step", "lazy_conformity_walk", f"in 0..{length - 1}", true_step)
    count = filtration.step_at(true_step, length) + 1
    if infinite_boundary and count == length:
        return math.inf
    running: float | None = None
    g = math.nan
    for position in range(count):
        step = filtration.step_at(position, length)
        score = _checked_score((yield step), step, aggregation)
        running, g = _grow(running, score, position + 1, length, aggregation)
    return g


def lazy_set(
    score_step: Callable[[int], float],
    filtration: Filtration,
    length: int,
    threshold: TieBrokenThreshold,
    aggregation: Aggregation,
    *,
    draw: float | None = None,
    infinite_boundary: bool = False,
) -> LazySet:
    """Predict with a plain scorer, called once a step and only as far as needed; arguments as `lazy_set_walk`."""
    walk = lazy_set_walk(filtration, length, threshold, draw, aggregation, infinite_boundary=infinite_boundary)
    return drive(walk, score_step)


async def lazy_set_async(
    score_step: Callable[[int], Awaitable[float]],
    filtration: Filtration,
    length: int,
    threshold: TieBrokenThreshold,
    aggregation: Aggregation,
    *,
    draw: float | None = None,
    infinite_boundary: bool = False,
) -> LazySet:
    """Predict with an awaited scorer, one step after the other; arguments as `lazy_set_walk`."""
    walk = lazy_set_walk(filtration, length, threshold, draw, aggregation, infinite_boundary=infinite_boundary)
    return await drive_async(walk, score_step)


def drive(walk: Generator[int, float, T], score_step: Callable[[int], float]) -> T:
    """Answer a walk's questions with a plain function; return what the walk returns."""
    answer: float | None = None
    while True:
        try:
            wanted = next(walk) if answer is None else walk.send(answer)
        except StopIteration as finished:
            result: T = finished.value
            return result
        answer = score_step(wanted)  # outside the try: a StopIteration of the scorer is the scorer's


async def drive_async(walk: Generator[int, float, T], score_step: Callable[[int], Awaitable[float]]) -> T:
    """Answer a walk's questions with an awaited function; return what the walk returns."""
    answer: float | None = None
    while True:
        try:
            wanted = next(walk) if answer is None else walk.send(answer)
        except StopIteration as finished:
            result: T = finished.value
            return result
        answer = await score_step(wanted)


def _grow(
    running: float | None, score: float, count: int, length: int, aggregation: Aggregation
) -> tuple[float, float]:
    """Take one more step into the fold; the same operations in the same order as the batch form, to the last bit."""
    lifted = float(aggregation.lift(score, length))
    running = lifted if running is None else float(aggregation.fold(running, lifted))
    return running, float(aggregation.finish(running, count, length))


def _found(filtration: Filtration, size: int, length: int, scores: FloatArray) -> LazySet:
    start, stop = (0, size) if filtration is Filtration.RIGHT else (length - size, length)
    return LazySet(start=start, stop=stop, evaluations=int(np.isfinite(scores).sum()), scores=scores)


def _checked_score(score: float, step: int, aggregation: Aggregation) -> float:
    if not (math.isfinite(score) and score >= aggregation.least_score):
        rule = f"finite and at least {aggregation.least_score:g} for lazy evaluation"
        hint = "score every step and use the eager form"
        raise ConfigurationError.of("score", f"{aggregation.name} aggregation", rule, f"step {step}: {score}", hint)
    return float(score)


def _check_length(length: int) -> None:
    if length < 1:
        raise ConfigurationError.of("length", "lazy_set_walk", "at least 1", length)
