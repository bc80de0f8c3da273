"""The one detector of a session: its evidence, its alarm, and the effect of a human's answer.

The alarm latches: once the evidence has passed the threshold it stays raised until a human answers. The answer
acknowledges it: steps that can be undone are not asked for any more, each irreversible call is, until the run ends. The
promise of the threshold covers the *first* alarm of a run that goes from its beginning to its end; re-arming starts the
evidence anew, and alarms after it or after a rollback carry no guarantee, because alpha was spent before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from grampus_uq.stats import eprocess
from grampus_uq.stats.eprocess import Detector, DetectorState, detector_from_json, detector_to_json
from grampus_uq.stats.stored_values import STORED

MIDWAY = "no guarantee: this run came under this detector when it was under way"
AFTER_REARMING = "no guarantee: alpha was spent on this run's first alarm, before it was re-armed"
ROLLED_BACK = "no guarantee: this run was rolled back, or re-armed, when it was under way"


def _read(value: Any) -> Any:
    return value if isinstance(value, Detector) else detector_from_json(value)


DetectorField = Annotated[Detector, BeforeValidator(_read), PlainSerializer(detector_to_json, when_used="always")]
"""A detector as a field of a pydantic model: JSON values outside, a checked `Detector` inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmState:
    """State of a session's detector: its evidence, whether a human answered, and how often it was re-armed.

    `midway` is True when the run began under another profile (the detector has not seen its first steps), and after a
    rollback, which counts as one re-arming.
    """

    evidence: DetectorState
    answered: bool = False
    rearmed: int = 0
    midway: bool = False

    __pydantic_config__ = STORED


def alarm_step(
    detector: Detector, state: AlarmState | None, session_id: str, scores: Mapping[str, float | None]
) -> tuple[AlarmState, float | None]:
    """Take one step of the model: the new state and log M_t.

    log M_t: higher is more evidence of failure; None before any score. `scores` holds the streams by name, each in
    [0, 1]; one that is absent or None is missing. Steps count whether or not they have a score; tool steps are not
    steps of the model and are not passed.
    """
    if state is None:
        state = AlarmState(evidence=eprocess.start(detector, session_id))
    evidence, log_m = eprocess.update(detector, state.evidence, [scores.get(name) for name in detector.streams])
    kept = AlarmState(evidence=evidence, answered=state.answered, rearmed=state.rearmed, midway=state.midway)
    return kept, log_m


def alarm_pending(detector: Detector, state: AlarmState | None) -> bool:
    """True while the alarm is raised and unanswered."""
    return state is not None and not state.answered and alarm_raised(detector, state)


def alarm_raised(detector: Detector, state: AlarmState | None) -> bool:
    """True once the alarm has been raised, answered or not, since the evidence began."""
    return state is not None and eprocess.alarms(state.evidence, detector.threshold)


def guarantee_of(detector: Detector, state: AlarmState) -> str:
    """The sentence of the promise that an alarm carries now."""
    if state.midway:
        return MIDWAY if state.rearmed == 0 else ROLLED_BACK
    return detector.threshold.guarantee if state.rearmed == 0 else AFTER_REARMING


def acknowledge_alarm(state: AlarmState) -> AlarmState:
    """A human answered: the alarm asks no more for reversible steps until it is re-armed."""
    return replace(state, answered=True)


def rearm(detector: Detector, state: AlarmState, session_id: str) -> AlarmState:
    """Start the evidence anew; alarms from here on carry no guarantee."""
    evidence = eprocess.start(detector, session_id)
    return AlarmState(evidence=evidence, rearmed=state.rearmed + 1, midway=state.midway)


def midway(detector: Detector, session_id: str) -> AlarmState:
    """Begin with a detector in the middle of a run; its alarms carry no guarantee."""
    return AlarmState(evidence=eprocess.start(detector, session_id), midway=True)


def rolled_back(detector: Detector, state: AlarmState | None, session_id: str) -> AlarmState:
    """Go on from an earlier step of the run; alarms from here on carry no guarantee."""
    kept = AlarmState(evidence=eprocess.start(detector, session_id)) if state is None else state
    return replace(kept, rearmed=max(kept.rearmed, 1), midway=True)
