"""The components of every step of a finished run, as a live session would compute them."""

from __future__ import annotations

from collections.abc import Iterable

from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.records.protocols import Embedder
from grampus_uq.signals.components import ObservedStep, sense_steps
from grampus_uq.signals.trajectory import ComponentSettings, ComponentState, advance
from grampus_uq.signals.turn_events import RunEnd, TurnEvent
from grampus_uq.stats.trajectory_risk import StepComponents

__all__ = ["run_components"]


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
