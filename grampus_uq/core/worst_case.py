"""The worst case: the belief with 0 in place of every missing reading that was due.

A signal that fails must never look better than one that answers. So, from the first such failure on, a session keeps
beside its belief the least that this belief might be: the same arithmetic, with 0 in the place of each reading that was
due. Records, levels and reversible steps go by the belief; an irreversible call goes ahead only where both let it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from grampus_uq.core.alarm import alarm_raised, alarm_step
from grampus_uq.core.estimator import Fusion, fuse_step, worst_values
from grampus_uq.core.propagator import Propagator, UncertaintyPropagator, propagated_by
from grampus_uq.core.state import Profile, SessionState, Unaided, WorstCase
from grampus_uq.core.turn_evidence import TurnEvidence, least_of
from grampus_uq.records.values import Reading
from grampus_uq.stats.eprocess import Detector

Streams = dict[str, float | None]

UNAIDED: Final = "unaided"
"""A stream: the fused confidence, or less where it would be less without what the model states; None without more."""
_SHOWN = 200


def unaided_of(fusion: Fusion) -> float | None:
    """The value of `UNAIDED`."""
    return None if fusion[1] is None else least_of(*fusion)


def streams_of(
    values: dict[str, float], semantic: float | None, fusion: Fusion, propagated: float, risk_confidence: float | None
) -> Streams:
    """The streams for detector and calibration, by name: in [0, 1], higher is better, the risk as 1/(1 + risk)."""
    fused = fusion[0]
    streams: Streams = {**values, "semantic_entropy": semantic, "fused": fused, UNAIDED: unaided_of(fusion)}
    streams["propagated"] = None if fused is None else propagated
    streams["trajectory_risk"] = risk_confidence
    return streams


def lacks(detector: Detector, streams: Streams) -> list[str]:
    """The detector's streams that a step of the model lacks, and that no step lacked when it was fitted."""
    return [name for name in detector.always_there if streams.get(name) is None]


def unaided_step(
    propagator: Propagator, known: SessionState | WorstCase, kind: str, fusion: Fusion, believed: float
) -> Unaided | None:
    """The belief without what the model states, after a step; None while it is the belief itself (`believed`).

    Under the default propagator also while it is no less: it is not from then on, whatever comes.
    """
    (fused, unaided), plain = fusion, type(propagator) is UncertaintyPropagator
    # Lowered by the statement alone, as on most steps: the arithmetic below comes to the same.
    lowered = plain and unaided is None and believed <= known.cumulative
    if known.unaided is None and (lowered or fused == unaided):
        return None
    before = known.unaided or known
    _, cumulative, memory = propagated_by(propagator, unaided, kind, before.cumulative, before.memory)
    worst = least_of(before.worst, unaided)
    spoken = least_of(known.worst, fused)
    if plain and cumulative >= believed and least_of(spoken, worst) == spoken:
        return None
    return Unaided(cumulative=cumulative, memory=memory, worst=worst)


def worst_case_step(
    profile: Profile,
    state: SessionState,
    kind: str,
    readings: Sequence[Reading],
    fusion: Fusion,
    streams: Streams,
    *,
    risk_due: bool,
) -> WorstCase | None:
    """The worst case after a step, of which `fusion` and `streams` are known; None while it is the belief itself.

    Due is every reading that is missing for a reason beside those of `NOT_DUE`; the risk where its texts could not be
    read (`risk_due`); and, on a step of the model, every stream that no step lacked in the fit.
    """
    known: SessionState | WorstCase = state if state.worst_case is None else state.worst_case
    senses = bool(streams) and kind != "tool_call"
    always = profile.always_there if senses else ()
    values, unread = worst_values(readings, always)
    semantic = values.pop("semantic_entropy", None)
    least = (at_worst := fuse_step(profile.estimator, profile.propagator, values, semantic))[0]
    propagated, believed, memory = propagated_by(profile.propagator, least, kind, known.cumulative, known.memory)
    alarm, chance = known.alarm, known.p_success
    scores: tuple[float | None, ...] = ()
    if senses:
        risk = 0.0 if risk_due else streams["trajectory_risk"]
        found = streams_of(values, semantic, at_worst, propagated, risk)
        if profile.calibration is not None:
            for name in profile.calibration.without_gaps:
                if found.get(name) is None:
                    found[name] = profile.calibration.worst_of(name)
                    unread.append(f"{name}: not read")
            chance = profile.calibration(found)
        if profile.detector is not None:
            found["p_success"] = chance
            lacking = lacks(profile.detector, found)
            unread += [f"{name}: not read" for name in lacking]
            found |= dict.fromkeys(lacking, 0.0)
            if profile.detector.at_calls:
                scores = tuple([found.get(name) for name in profile.detector.streams])
            else:
                alarm, _ = alarm_step(profile.detector, alarm, state.session_id, found)
        unread += ["trajectory_risk: not read"] if risk_due else []
    if state.worst_case is None and (not unread or (at_worst == fusion and not streams)):
        return None
    worst = least_of(known.worst, least)
    unread_text = "; ".join(unread)[:_SHOWN] or (known.unread if isinstance(known, WorstCase) else "")
    return WorstCase(
        cumulative=believed,
        memory=memory,
        worst=worst,
        unaided=unaided_step(profile.propagator, known, kind, at_worst, believed),
        alarm=alarm,
        p_success=chance,
        unread=unread_text,
        scores=scores,
    )


def alarm_at_call(profile: Profile, state: SessionState, turn: TurnEvidence) -> tuple[SessionState, float | None]:
    """The alarm of a detector of calls on an irreversible one, by the turn that proposes it; at its worst too.

    Returns the new state, and log M.
    """
    detector = profile.detector
    if detector is None or not detector.at_calls:
        return state, None
    alarm, log_m = alarm_step(
        detector, state.alarm, state.session_id, dict(zip(detector.streams, turn.scores, strict=False))
    )
    case = state.worst_case
    if case is not None:
        least = dict(zip(detector.streams, turn.worst_scores or turn.scores, strict=False))
        case = replace(case, alarm=alarm_step(detector, case.alarm, state.session_id, least)[0])
    alarmed = state.alarmed or alarm_raised(detector, alarm)
    return replace(state, alarm=alarm, worst_case=case, alarmed=alarmed), log_m
