"""One step, pure: readings in, a new state and an assessment out. Live monitoring and offline replay share `advance`.

fuse -> propagate -> classify -> decide. Nothing here waits, asks, logs or remembers: everything a session knows is in
its `SessionState`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grampus_uq.alarm import AlarmState, alarm_step, guarantee_of, has_rung
from grampus_uq.decision import Decision, Situation, decide, is_irreversible, level_of, may_be_let_through
from grampus_uq.events import TrajectoryReading
from grampus_uq.propagator import propagated_by
from grampus_uq.records import Reading, Step, StepUncertainty, ToolCall, Verdict, builder, utc
from grampus_uq.risk import confidence_of_risk, risk_step
from grampus_uq.state import Profile, SessionState, WorstCase, has_rung_in_run
from grampus_uq.stats.eprocess import Detector
from grampus_uq.turns import TurnEvidence, placed, with_proposals
from grampus_uq.vocabulary import (
    GRAVE,
    NOT_DUE,
    Effect,
    MissingReason,
    UncertaintyAction,
    UncertaintyLevel,
    UncertaintySource,
)
from grampus_uq.worst_case import Streams, lacks, streams_of, worst_case_step

__all__ = ["advance", "judge_call"]

_new_state = builder(SessionState)
_new_situation = builder(Situation)


def advance(
    profile: Profile,
    state: SessionState,
    step: Step,
    readings: Sequence[Reading],
    trajectory: TrajectoryReading | None = None,
) -> tuple[SessionState, StepUncertainty]:
    """Take one step with its readings: the new state, and what is concluded.

    A step without any usable reading leaves the propagated confidence where it was. Until the first reading of a
    session the level is at least MEDIUM. Missing readings (`value` None) are no evidence, for or against. `trajectory`
    is what was sensed for the profile's TRACER, where it has one.
    """
    seen = _tally(readings)
    kind, policy = step.kind, profile.policy
    fused = profile.estimator.fuse_readings(seen.values)
    if seen.semantic is not None:
        fused = profile.estimator.pessimistic(fused, seen.semantic)
    propagated, cumulative, memory = propagated_by(profile.propagator, fused, kind, state.cumulative, state.memory)
    has_reading = state.has_reading or fused is not None
    level = level_of(policy, propagated, has_reading)
    is_call = kind == "tool_call"
    worst = state.worst if fused is None or (state.worst is not None and state.worst <= fused) else fused
    high = level in GRAVE
    acknowledged = state.acknowledged if high else None  # the belief recovered: the alarm is armed again
    tool_name = step.tool_name if is_call else None
    alarm, log_m, chance = state.alarm, None, None
    risk_state, risk, no_risk = state.risk, None, None
    if profile.tracer is not None:
        risk_state, risk, no_risk = risk_step(profile.tracer, risk_state, trajectory)
    streams: Streams = {}
    if profile.calibration is not None or profile.detector is not None:
        streams = streams_of(seen.values, seen.semantic, fused, propagated, confidence_of_risk(risk))
    if profile.calibration is not None:
        chance = profile.calibration(streams)
    worst_case, risk_due = state.worst_case, no_risk in _UNREADABLE
    if profile.detector is not None and not is_call:
        streams["p_success"] = chance
        alarm, log_m = alarm_step(profile.detector, alarm, state.session_id, streams)
        seen.due = seen.due or bool(lacks(profile.detector, streams))
    if worst_case is not None or seen.due or risk_due or profile.calibration is not None:
        worst_case = worst_case_step(profile, state, kind, readings, fused, streams, risk_due=risk_due)
    turns, turn = _turns_after(state, step, seen, fused, chance, propagated, worst_case)
    rang = state.rang or (profile.detector is not None and has_rung(profile.detector, alarm))
    decision = decide(
        _new_situation(
            policy=policy,
            kind=kind,
            tool_name=tool_name,
            irreversible=is_call and is_irreversible(policy, tool_name, step.effect),
            level=level,
            confidence=propagated,
            has_reading=has_reading,
            turn=turn,
            worst=worst,
            acknowledged=acknowledged,
            detector=profile.detector,
            release=profile.release,
            alarm=alarm,
            rang=rang,
            worst_case=worst_case,
            fallback=profile.fallback,
            by_counts=profile.release is not None and profile.released_by_counts,
        )
    )
    advisory = profile.advisory or (
        state.let_through and may_be_let_through(policy, kind, tool_name, step.effect) and decision[0].stops
    )
    assessment = _assess(
        profile, state.n_steps, step, tool_name, seen, fused, propagated, level, decision, alarm, log_m, advisory
    )
    if chance is not None:
        assessment = _with_chance(assessment, chance)
    if profile.tracer is not None:
        assessment = _with_risk(assessment, risk, no_risk, trajectory)
    new_state = _new_state(
        session_id=state.session_id,
        agent_id=state.agent_id,
        n_steps=state.n_steps + 1,
        n_high=state.n_high + high,
        cumulative=cumulative,
        level=level,
        has_reading=has_reading,
        turn_read=state.turn_read if is_call else turn.read,
        worst=worst,
        acknowledged=acknowledged,
        last_step_id=step.step_id,
        monitor_calls=state.monitor_calls + seen.calls,
        monitor_tokens=state.monitor_tokens + seen.tokens,
        monitor_cost_usd=state.monitor_cost_usd + seen.cost_usd,
        agent_tokens=state.agent_tokens + step.input_tokens + step.output_tokens,
        alarm=alarm,
        memory=memory,
        risk=risk_state,
        p_success=state.p_success if is_call else chance,
        let_through=state.let_through,
        worst_case=worst_case,
        turns=turns,
        rang=rang,
    )
    return new_state, assessment


def _turns_after(
    state: SessionState,
    step: Step,
    seen: _Tally,
    fused: float | None,
    chance: float | None,
    propagated: float,
    worst_case: WorstCase | None,
) -> tuple[tuple[TurnEvidence, ...], TurnEvidence]:
    """The turns of the model after a step, and what was read of its own; for a call of the turn that proposed it."""
    lowest = None if fused is None else seen.lowest
    if step.kind != "tool_call":
        turns = with_proposals(
            state.turns,
            step,
            read=fused is not None,
            lowest=lowest,
            stated="verbalized" in seen.values,
            p_success=chance,
            worst_chance=None if worst_case is None else worst_case.p_success,
            belief=propagated,
            worst_belief=None if worst_case is None else worst_case.cumulative,
        )
        return turns, turns[-1]
    call = step.tool_calls[0] if step.tool_calls else None
    turns, turn = _placed(state, call, step.step_id)
    if lowest is not None:  # of the call itself: it speaks for no other call of the turn
        lowest = min(turn.lowest or lowest, lowest, key=_value)
        turn = replace(turn, read=True, lowest=lowest, belief=None, worst_belief=None)  # the belief has it already
    return turns, turn


def _placed(
    state: SessionState, call: ToolCall | None, step_id: str | None
) -> tuple[tuple[TurnEvidence, ...], TurnEvidence]:
    """See `placed`; in a state of an older version the latest turn is all that is known."""
    if state.turns:
        return placed(state.turns, call, step_id)
    worst_chance = None if state.worst_case is None else state.worst_case.p_success
    return (), TurnEvidence(read=state.turn_read, p_success=state.p_success, worst_chance=worst_chance)


# A member of an enum takes a while to look up by its name, and these are looked up at every step.
_HIGH = UncertaintyLevel.HIGH
_LOG, _PAUSE = UncertaintyAction.PROCEED_WITH_LOG, UncertaintyAction.PAUSE_FOR_HUMAN
_PROPAGATED = UncertaintySource.PROPAGATED
_TRAJECTORY_RISK = UncertaintySource.TRAJECTORY_RISK
_UNREADABLE = frozenset({MissingReason.TIMEOUT, MissingReason.SIGNAL_ERROR})


_value = operator.itemgetter(1)


class _Tally:
    """One pass over a step's readings: what they say, why some say nothing, and what they cost."""

    semantic: float | None = None
    p_true_failed = False
    calls = tokens = samples = 0
    cost_usd = 0.0

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.sources: list[UncertaintySource] = []
        self.missing: list[str] = []
        self.due = False

    @property
    def lowest(self) -> tuple[str, float]:
        """The lowest reading, as source and value; there is one."""
        if len(self.values) == 1 and self.semantic is None:
            return next(iter(self.values.items()))
        values = self.values if self.semantic is None else {**self.values, "semantic_entropy": self.semantic}
        return min(values.items(), key=_value)


def _tally(readings: Sequence[Reading]) -> _Tally:
    tally = _Tally()
    for reading in readings:
        source, value = reading.source, reading.value
        if value is None:
            tally.missing.append(_missing(source, reading.reason))
            if reading.reason not in NOT_DUE:
                tally.due = True
            if source == "p_true" and reading.calls:
                tally.p_true_failed = True
        else:
            if source == "semantic_entropy":
                tally.semantic = value
            else:
                tally.values[source] = value
            known = _SOURCES.get(source)
            if known is not None:
                tally.sources.append(known)
        if reading.calls:
            tally.calls += reading.calls
            tally.tokens += reading.input_tokens + reading.output_tokens
            tally.cost_usd += reading.cost_usd or 0.0
            tally.samples += reading.samples
    return tally


@functools.lru_cache(maxsize=256)
def _missing(source: str, reason: str | None) -> str:
    return f"{source}: {reason}"


def judge_call(
    profile: Profile,
    state: SessionState,
    call: ToolCall | str,
    effect: Effect | None = None,
    *,
    step_id: str | None = None,
) -> Verdict:
    """What a step that proposes this call would be told now; changes nothing. Equal to what `advance` then decides."""
    call = ToolCall(name=call) if isinstance(call, str) else call
    tool_name = call.name
    policy, confidence = profile.policy, state.cumulative
    level = level_of(policy, confidence, state.has_reading)
    action, rule, reason = decide(
        _new_situation(
            policy=policy,
            kind="tool_call",
            tool_name=tool_name,
            irreversible=is_irreversible(policy, tool_name, effect),
            level=level,
            confidence=confidence,
            has_reading=state.has_reading,
            turn=_placed(state, call, step_id)[1],
            worst=state.worst,
            acknowledged=state.acknowledged if level in GRAVE else None,
            detector=profile.detector,
            release=profile.release,
            alarm=state.alarm,
            rang=has_rung_in_run(profile, state),
            worst_case=state.worst_case,
            fallback=profile.fallback,
            by_counts=profile.released_by_counts,
        )
    )
    guarantee = _promise(profile, state.alarm, rule, action)
    if action.stops and profile.advisory:
        action, reason = _LOG, f"advisory only; would be {action.value}: {reason}"
    elif action.stops and state.let_through and may_be_let_through(policy, "tool_call", tool_name, effect):
        action, reason = _LOG, f"let through at random; would be {action.value}: {reason}"
    return Verdict(action=action, level=level, rule=rule, reason=reason, guarantee=guarantee)


def _promise(profile: Profile, alarm: AlarmState | None, rule: str, action: UncertaintyAction) -> str | None:
    """The sentence of what is promised of a decision: by an alarm of its pause, by a release rule of a release."""
    if rule == "detector" and profile.detector is not None and alarm is not None:
        return guarantee_of(profile.detector, alarm)
    if rule == "release" and profile.release is not None:
        of_pauses = profile.release.mode == "share"
        return profile.release.guarantee if action.stops is of_pauses else None
    return None


_RULE_SOURCES = {
    "irreversible_override": UncertaintySource.IRREVERSIBLE_TOOL,
    "missing_evidence": UncertaintySource.MISSING_EVIDENCE,
    "worst_so_far": UncertaintySource.WORST_SO_FAR,
    "detector": UncertaintySource.DETECTOR,
    "release": UncertaintySource.RELEASE,
    "always_ask": UncertaintySource.ALWAYS_ASK,
}


def _assess(
    profile: Profile,
    index: int,
    step: Step,
    tool_name: str | None,
    seen: _Tally,
    fused: float | None,
    propagated: float,
    level: UncertaintyLevel,
    decision: Decision,
    alarm: AlarmState | None,
    log_m: float | None,
    advisory: bool,
) -> StepUncertainty:
    action, rule, reason = decision
    values, sources, missing = seen.values, seen.sources, seen.missing
    sources.append(_PROPAGATED)
    if rule in _RULE_SOURCES:
        sources.append(_RULE_SOURCES[rule])
    if fused is None:
        missing.append("no reading on this step")
    fields = _DEFAULTS.copy()  # cheaper than to write all of them down, and most stay what they are
    fields["step_id"] = step.step_id
    fields["step_type"] = step.kind
    fields["index"] = index
    fields["verbalized_confidence"] = values.get("verbalized", 0.5)
    fields["p_true_confidence"] = values.get("p_true", 0.5 if seen.p_true_failed else -1.0)
    fields["token_probability"] = values.get("token_probability")
    fields["token_entropy"] = values.get("token_entropy")
    fields["semantic_confidence"] = seen.semantic
    fields["fused_confidence"] = 0.5 if fused is None else fused
    fields["propagated_confidence"] = propagated
    fields["level"] = level
    fields["sources"] = tuple(sources)
    fields["action"] = action
    fields["rule"] = rule
    fields["reasoning"] = reason
    fields["samples_used"] = seen.samples
    fields["timestamp"] = utc(step.time_s)
    if missing:
        fields["missing_reason"] = "; ".join(missing)
    fields["tool_name"] = tool_name
    fields["effect"] = step.effect
    if action is _PAUSE and level is _HIGH and step.kind != "tool_call":
        fields["reflection_injected"] = profile.policy.inject_reflection_on_high and not advisory
    if profile.detector is not None:
        _describe_alarm(fields, profile.detector, log_m)
    if rule != "tier":
        fields["guarantee"] = _promise(profile, alarm, rule, action)
    if advisory:
        fields["advisory_action"] = action
        if action.stops:
            fields["action"] = _LOG
    return StepUncertainty.trusted(fields)


def _with_chance(assessment: StepUncertainty, p_success: float | None) -> StepUncertainty:
    return StepUncertainty.trusted({**assessment.__dict__, "p_success": p_success})


def _with_risk(
    assessment: StepUncertainty, risk: float | None, no_risk: str | None, trajectory: TrajectoryReading | None
) -> StepUncertainty:
    missing = [] if no_risk is None else [_missing("trajectory_risk", no_risk)]
    if trajectory is not None and trajectory.no_surprisal is not None:
        missing.append(_missing("surprisal", trajectory.no_surprisal))
    if assessment.missing_reason is not None:
        missing.append(assessment.missing_reason)  # last, because its own end says whether anything was read
    sources = assessment.sources if risk is None else (*assessment.sources, _TRAJECTORY_RISK)
    told = {"trajectory_risk": risk, "sources": sources, "missing_reason": "; ".join(missing) or None}
    return StepUncertainty.trusted({**assessment.__dict__, **told})


def _describe_alarm(fields: dict[str, Any], detector: Detector, log_m: float | None) -> None:
    """What record and span say of the detector: evidence, threshold, level and mode."""
    threshold = detector.threshold
    fields["log_e_value"] = log_m
    fields["log_threshold"] = threshold.log_value if math.isfinite(threshold.log_value) else None
    fields["alpha"] = threshold.alpha
    fields["alarm_mode"] = threshold.mode.value


_DEFAULTS = {name: field.default for name, field in StepUncertainty.model_fields.items()}
_SOURCES = {source.value: source for source in UncertaintySource}
