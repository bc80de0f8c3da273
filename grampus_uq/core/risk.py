"""The trajectory risk (TRACER) as a part of `advance`: its settings, its state, one step of arithmetic.

The risk of a run so far is the trajectory score of its complete steps and of the one that is still open. It grows with
danger and has no upper end. Where streams are confidences (the detector's, a report's) it goes in as 1/(1 + risk).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from grampus_uq.records.configuration import Configuration
from grampus_uq.records.events import TrajectoryReading
from grampus_uq.records.vocabulary import MissingReason
from grampus_uq.signals.turn_events import SENTINELS
from grampus_uq.stats.stored_values import FROZEN, STORED
from grampus_uq.stats.trajectory_risk import (
    TracerParameters,
    TracerState,
    check_tracer,
    tracer_score,
    tracer_start,
    tracer_update,
)


class TrajectoryRiskSettings(Configuration):
    """The trajectory risk in a profile: fitted or default parameters, and the constants of its components.

    `parameters`: theta. `window`: earlier agent turns that repetition compares with. `sentinels`: what closes a run in
    a user's message. `pi_0`, `eps`: see `stats.surprisal.content_surprisal`. `accuracy`: relative error allowed to the
    bounded tail mean (`stats.tail_sketch.TailSketch`). Parameters hold for the embedder that their fit was made with.
    """

    model_config = FROZEN

    parameters: TracerParameters = TracerParameters()
    window: int = Field(default=3, ge=1, le=100)
    sentinels: tuple[Annotated[str, Field(min_length=1)], ...] = SENTINELS
    pi_0: float = Field(default=0.95, gt=0.0, lt=1.0)
    eps: float = Field(default=1e-4, ge=0.0, le=20.0)
    accuracy: float = Field(default=0.005, ge=1e-6, le=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskState:
    """State of a session's trajectory risk; bounded in size, without text.

    `parameters`: those that it was computed with. `stream`: the complete steps. `latest`: the latest trajectory risk,
    the open step included; None before the first.
    """

    parameters: TracerParameters
    stream: TracerState
    latest: float | None = None

    __pydantic_config__ = STORED


def _checked(state: RiskState) -> RiskState:
    """Refuse a stored state that no stream can reach, before a step trips over it."""
    check_tracer(state.parameters, state.stream)
    return state


RiskField = Annotated[RiskState, AfterValidator(_checked)]
"""A `RiskState` as a field that is read from JSON."""


def risk_step(
    settings: TrajectoryRiskSettings, state: RiskState | None, reading: TrajectoryReading | None
) -> tuple[RiskState | None, float | None, str | None]:
    """Take what was sensed at one step: the new state, the trajectory risk now, and why there is none.

    The risk is `tracer_score` over all complete steps and the open one, which the state leaves out; >= 0, higher is
    worse. A step whose texts could not be read is not counted as one without risk: it is left out, and the risk of this
    step is None with the reason. So it is without a reading, and after the parameters have changed in mid-run.
    """
    parameters = settings.parameters
    if reading is None:
        return state, None, MissingReason.NOT_SENSED
    if state is None:
        stream = tracer_start(parameters, accuracy=settings.accuracy)
    elif state.parameters != parameters:
        return state, None, MissingReason.PROFILE_CHANGED
    else:
        stream = state.stream
    before = None if state is None else state.latest
    if reading.reason is not None:
        return RiskState(parameters=parameters, stream=stream, latest=before), None, reading.reason
    for step in reading.completed:
        stream = tracer_update(parameters, stream, step)
    seen = stream if reading.pending is None else tracer_update(parameters, stream, reading.pending)
    score = tracer_score(parameters, seen)
    new = RiskState(parameters=parameters, stream=stream, latest=before if score is None else score)
    return new, score, None if score is not None else MissingReason.NOTHING_TO_JUDGE


def confidence_of_risk(risk: float | None) -> float | None:
    """Turn a risk into a stream's number, 1/(1 + risk): in [0, 1], higher is better; None stays None.

    It falls strictly as the risk grows, so it orders runs as the risk does. It is not a probability.

    >>> confidence_of_risk(0.0), confidence_of_risk(3.0), confidence_of_risk(None)
    (1.0, 0.25, None)
    """
    return None if risk is None or math.isnan(risk) else 1.0 / (1.0 + risk)
