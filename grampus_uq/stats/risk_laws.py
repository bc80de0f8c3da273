"""What TRACER's theorems give once their conditions are written out: the breakdown bound and the split by actor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.tail_mean import tail_count, tail_mean
from grampus_uq.stats.trajectory_risk import StepComponents, TracerParameters, tracer_score


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorAttribution:
    """The score of a run, and of the run with one actor's risks alone; `total` <= `agent` + `user` (Theorem A.9)."""

    total: float
    agent: float
    user: float


def actor_attribution(steps: Sequence[StepComponents], parameters: TracerParameters) -> ActorAttribution | None:
    """Score a run as a whole, with the agent's step risks alone, and with the user's alone (eq. 32-33).

    The other actor's steps stay in the run with risk 0, so that N and K are the same in all three and r = r^A + r^U.

    Returns three numbers >= 0, higher is worse; None for a run without steps.

    Theorem A.9: TRACER(T) <= TRACER(T^A) + TRACER(T^U), by subadditivity on r >= 0. It bounds the total by the parts;
    it does not divide the total between them, and both parts can be as large as the total.
    """
    total = tracer_score(steps, parameters)
    if total is None:
        return None
    agent = tracer_score([step if step.is_agent else _silent(step) for step in steps], parameters)
    user = tracer_score([_silent(step) if step.is_agent else step for step in steps], parameters)
    return ActorAttribution(total=total, agent=agent or 0.0, user=user or 0.0)


def _silent(step: StepComponents) -> StepComponents:
    return StepComponents(is_agent=step.is_agent)


def expected_tail_sum(runs: Sequence[Sequence[float]], k: float) -> float:
    """Estimate E[K TM_k(r)], the expected sum of the K largest step risks, by the mean over observed runs.

    `runs`: the step risks of each run, at least one run, each with at least one step. `k` in (0, 1]. Returns a number
    >= 0. It is an estimate: what `breakdown_bound` makes of it is a bound only up to its sampling error.
    """
    if not runs:
        raise ConfigurationError.of("runs", "expected_tail_sum", "at least one run", 0)
    sums = []
    for run in runs:
        mean = tail_mean(run, k)
        if mean is None:
            raise ConfigurationError.of("runs", "expected_tail_sum", "runs with at least one step", 0)
        sums.append(tail_count(len(run), k) * mean)
    return math.fsum(sums) / len(sums)


def breakdown_bound(expected_tail_sum: float, *, c: float, eta: float) -> float:
    """Bound the probability that a run breaks down: P(B) <= min(1, c (E[K TM_k(r)] + eta)) (Theorem A.8, corrected).

    `expected_tail_sum` = E[K TM_k(r)] >= 0. `c` > 0 and `eta` >= 0 are the constants of the assumptions.

    Returns a probability; 1 says nothing.

    Assumptions: (A.6) at every step the conditional probability that it is critical is at most c r_t, almost surely;
    (A.7) the risks outside of the tail sum to at most eta, almost surely. Nothing in a run shows c; it has to be
    assumed, or estimated from labelled critical steps. The bound breaks when a critical step has a low risk.

    Correction: the paper writes K E[TM_k]. That is the same for a fixed length only. When lengths vary K is random, and
    where long runs are the risky ones E[K TM_k] exceeds E[K] E[TM_k], so the printed form can fall below P(B).

    >>> breakdown_bound(0.3, c=0.5, eta=0.1)
    0.2
    """
    _check(expected_tail_sum, c, eta, "breakdown_bound")
    return min(1.0, c * (expected_tail_sum + eta))


def breakdown_bound_from_score(expected_scaled_score: float, *, c: float, eta: float, w: float) -> float:
    """Bound P(B) <= min(1, c / (1 - w) E[K TRACER(T)] + c eta), the second form of Theorem A.8, corrected.

    `expected_scaled_score` = E[K TRACER(T)] >= 0, with the random K inside of the expectation. `w` in [0, 1).
    It follows from TRACER >= (1 - w) TM_k, and is never sharper than `breakdown_bound`; assumptions as there.
    """
    _check(expected_scaled_score, c, eta, "breakdown_bound_from_score")
    if not 0.0 <= w < 1.0:
        raise ConfigurationError.of("w", "breakdown_bound_from_score", "in [0, 1)", w)
    return min(1.0, c / (1.0 - w) * expected_scaled_score + c * eta)


def _check(expectation: float, c: float, eta: float, owner: str) -> None:
    if not 0.0 <= expectation < math.inf:
        raise ConfigurationError.of("expectation", owner, "a finite number >= 0", expectation)
    if not 0.0 < c < math.inf:
        raise ConfigurationError.of("c", owner, "a finite number > 0", c)
    if not 0.0 <= eta < math.inf:
        raise ConfigurationError.of("eta", owner, "a finite number >= 0", eta)
