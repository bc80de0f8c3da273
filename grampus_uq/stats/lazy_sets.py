"""Left and right filtration that ask for a step's score only when they need it.

A right filtration grows a prefix until its g exceeds the threshold; the steps behind it are never scored. The set is
that of the eager form, with `min(|C| + 1, L)` evaluations. Each step must be scorable without the scores of the others,
and g must be monotone, or a later prefix might fall below the threshold again: a negative score is refused.

A walk is a generator that yields the index it wants scored and is sent the score, for plain and awaited scorers alike.

Source: Feng et al., "Conformal Agent Error Attribution" (2026), section 3.1.3 and table 4.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from enum import StrEnum

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.conformal import TieBrokenThreshold

__all__ = ["Filtration", "lazy_conformity_walk", "lazy_set_walk"]


class Filtration(StrEnum):
    """From which end steps are filtered out: `right` leaves prefixes, `left` leaves suffixes."""

    RIGHT = "right"
    LEFT = "left"

    def step_at(self, position: int, length: int) -> int:
        """Index of the step that enters as number `position` (from 0); its own inverse."""
        return position if self is Filtration.RIGHT else length - 1 - position


def lazy_set_walk(
    filtration: Filtration, length: int, threshold: TieBrokenThreshold, draw: float | None
) -> Generator[int, float, range]:
    """Walk to the prediction set of one trajectory; yields step indices, is sent their scores, returns the steps.

    Args:
        filtration: which end is filtered.
        length: L >= 1, the number of steps.
        threshold: from calibration with the same filtration.
        draw: tie draw of this trajectory; None lets a tie enter.

    Raises:
        ConfigurationError: length < 1; a score that is negative or not finite.
    """
    _check_length(length)
    total, size = 0.0, length
    for position in range(length):
        step = filtration.step_at(position, length)
        total += _checked_score((yield step), step)
        g = total / length  # as the batch form, to the last bit
        tie = g == threshold.value and (draw is None or draw <= threshold.draw)
        if not (g < threshold.value or tie):
            size = position
            break
    return range(size) if filtration is Filtration.RIGHT else range(length - size, length)


def lazy_conformity_walk(filtration: Filtration, length: int, true_step: int) -> Generator[int, float, float]:
    """Walk to the conformity score of a labelled trajectory: g of the stretch that ends at the true step.

    Only the steps up to the true one, from the end where the filtration grows, matter (proposition 1). Arguments,
    yields and refusals as `lazy_set_walk`.
    """
    _check_length(length)
    if not 0 <= true_step < length:
        raise ConfigurationError.of("true_step", "lazy_conformity_walk", f"in 0..{length - 1}", true_step)
    total = 0.0
    for position in range(filtration.step_at(true_step, length) + 1):
        step = filtration.step_at(position, length)
        total += _checked_score((yield step), step)
    return total / length


def _checked_score(score: float, step: int) -> float:
    if not 0.0 <= score < math.inf:
        hint = "score every step and use the eager form"
        rule = "finite and at least 0 for lazy evaluation"
        raise ConfigurationError.of("score", "lazy filtration", rule, f"step {step}: {score}", hint)
    return float(score)


def _check_length(length: int) -> None:
    if length < 1:
        raise ConfigurationError.of("length", "lazy_set_walk", "at least 1", length)
