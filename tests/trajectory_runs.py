"""The components of every step of a finished run, as a live session would compute them, and its exact scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Final

from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.records.protocols import Embedder
from grampus_uq.signals.components import ObservedStep, sense_steps
from grampus_uq.signals.trajectory import ComponentSettings, ComponentState, advance
from grampus_uq.signals.turn_events import RunEnd, TurnEvent
from grampus_uq.stats.trajectory_risk import Composite, StepComponents, TracerParameters, weighted_components

__all__ = ["exact_tail_mean", "run_components", "tracer_scores"]

_COMBINED: Final[dict[Composite, Callable[[Sequence[float]], float]]] = {
    Composite.MAX: max,
    Composite.ADDITIVE: math.fsum,
    Composite.MULTIPLICATIVE: lambda row: math.expm1(math.fsum(map(math.log1p, row))),
}


def run_components(
    events: Iterable[TurnEvent], embedder: Embedder, settings: ComponentSettings | None = None
) -> list[StepComponents]:
    """Compute the components of every step, embedding each text once; the run ends after the last event."""
    settings = TrajectoryRiskSettings() if settings is None else settings
    state = ComponentState()
    steps: list[ObservedStep] = []
    for event in (*events, RunEnd()):
        moved = advance(state, event, settings)
        state = moved.state
        steps.extend(moved.completed)
    return sense_steps(steps, embedder)


def exact_tail_mean(risks: Sequence[float], k: float) -> float:
    """TM_k by its definition (eq. 21, 22): K from the decimal k, the mean in rationals, rounded once."""
    count = max(1, math.floor(Fraction(k).limit_denominator(1_000_000) * len(risks)))
    return float(sum(map(Fraction, sorted(risks)[-count:])) / count)


def tracer_scores(steps: Sequence[StepComponents], parameters: TracerParameters) -> list[float]:
    """Score every prefix of a run by TRACER's definition (eq. 23, 29), which the stream approximates."""
    rows = [weighted_components(step, parameters) for step in steps]
    separate = parameters.composite is Composite.SEPARATE
    channels = [*zip(*rows, strict=True)] if separate else [[*map(_COMBINED[parameters.composite], rows)]]
    return [
        math.fsum(
            (1.0 - parameters.w) * exact_tail_mean(risks[:number], parameters.k) + parameters.w * max(risks[:number])
            for risks in channels
        )
        for number in range(1, len(steps) + 1)
    ]
