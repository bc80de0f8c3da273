"""Propagation of step confidences through a run: the default rule, SAUP's root mean square, the AUQ aggregates.

Every rule is an update `(state, reading) -> state` in O(1), equal at every prefix to its batch definition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_STORED = {"extra": "forbid", "allow_inf_nan": False}  # both are read back as a part of a session's state


def propagate(fused: float, cumulative: float, weight: float) -> float:
    """The default rule: propagated_t = w fused_t + (1 - w) cumulative_(t-1); the result is the new cumulative.

    All in [0, 1], higher is better. An exponentially weighted mean: confident steps do pull the value back up (three
    steps at .84 after one at .2 give .814 with w = .55 and a start of 1), so it keeps no memory of the worst step.
    Rounding never carries the result out of the range between the two: models state round numbers, which fall on the
    thresholds of the tiers, and a run of equal values has to stay on its side.

    >>> round(propagate(0.2, 1.0, 0.55), 3)
    0.56
    """
    low, high = (fused, cumulative) if fused < cumulative else (cumulative, fused)
    mean = weight * fused + (1.0 - weight) * cumulative
    return low if mean < low else high if mean > high else mean


@dataclass(frozen=True, slots=True, kw_only=True)
class SaupState:
    """Number of steps and the running mean of (W_i U_i)^2; the mean keeps the state bounded and well scaled."""

    n: int = 0
    mean_square: float = 0.0

    __pydantic_config__ = _STORED


def saup_update(state: SaupState, uncertainty: float, weight: float) -> SaupState:
    """Add one step's uncertainty U_i (higher is worse) with its situational weight W_i."""
    n = state.n + 1
    square = (weight * uncertainty) ** 2
    return SaupState(n=n, mean_square=state.mean_square + (square - state.mean_square) / n)


def saup_uncertainty(state: SaupState) -> float | None:
    """SAUP's propagated uncertainty U = sqrt((1/N) sum_i (W_i U_i)^2); higher is worse; None before the first step.

    Source: Zhao et al., arXiv 2412.01033 (ACL 2025), the root-mean-square propagation with situational weights.

    >>> saup_uncertainty(saup_update(SaupState(), 0.3, 1.0))
    0.3
    """
    return math.sqrt(state.mean_square) if state.n else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuqState:
    """The trajectory aggregates of AUQ (arXiv 2601.15703): last, mean, min and (log) product of step confidences.

    `log_product` is None once a confidence was 0: every field is a finite number, so the state goes through JSON.
    """

    n: int = 0
    last: float | None = None
    mean: float | None = None
    minimum: float | None = None
    log_product: float | None = 0.0

    __pydantic_config__ = _STORED

    @property
    def product(self) -> float | None:
        """Product of the step confidences; None before the first step."""
        if not self.n:
            return None
        return 0.0 if self.log_product is None else math.exp(self.log_product)


def auq_update(state: AuqState, confidence: float) -> AuqState:
    """Add one step's confidence in [0, 1] (higher is better) to the four aggregates.

    >>> s = auq_update(auq_update(AuqState(), 0.5), 0.8)
    >>> s.last, s.minimum, round(s.mean, 3), round(s.product, 3)
    (0.8, 0.5, 0.65, 0.4)
    """
    n = state.n + 1
    mean = confidence if state.mean is None else state.mean + (confidence - state.mean) / n
    minimum = confidence if state.minimum is None else min(state.minimum, confidence)
    log_product = None
    if state.log_product is not None and confidence > 0.0:
        log_product = state.log_product + math.log(confidence)
    return AuqState(n=n, last=confidence, mean=mean, minimum=minimum, log_product=log_product)
