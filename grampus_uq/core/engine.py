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

from grampus_uq.core.alarm import AlarmState, alarm_step, guarantee_of, has_rung
from grampus_uq.core.decision import Decision, Situation, decide, is_irreversible, level_of, may_be_let_through
from grampus_uq.core.propagator import propagated_by
from grampus_uq.core.risk import confidence_of_risk, risk_step
from grampus_uq.core.state import Profile, SessionState, WorstCase, has_rung_in_run
from grampus_uq.core.turn_evidence import (
    MAX_CALLS,
    TurnEvidence,
    is_proposed,
    listed,
    new_turn,
    placed,
    proposed,
    text_key,
    with_turn,
)
from grampus_uq.core.worst_case import Streams, lacks, streams_of, worst_case_step
from grampus_uq.records.building import builder, drafter
from grampus_uq.records.events import TrajectoryReading
from grampus_uq.records.values import NO_READING, Reading, Step, StepUncertainty, ToolCall, Verdict, utc
from grampus_uq.records.vocabulary import (
    GRAVE,
    NOT_DUE,
    Effect,
    MissingReason,
    UncertaintyAction,
    UncertaintyLevel,
    UncertaintySource,
)
from grampus_uq.stats.eprocess import Detector

__all__ = ["advance", "judge_call"]

_draft_of = drafter(SessionState)
_new_situation = builder(Situation)
_trusted = StepUncertainty.trusted


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
    kind, policy, estimator = step.kind, profile.policy, profile.estimator
    detector, calibration, tracer = profile.detector, profile.calibration, profile.trajectory_risk
    fused = estimator.fuse_readings(seen.values)
    if seen.semantic is not None:
        fused = estimator.pessimistic(fused, seen.semantic)
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
    if tracer is not None:
        risk_state, risk, no_risk = risk_step(tracer, risk_state, trajectory)
    streams: Streams = {}
    if calibration is not None or detector is not None:
        streams = streams_of(seen.values, seen.semantic, fused, propagated, confidence_of_risk(risk))
    if calibration is not None:
        chance = calibration(streams)
    worst_case, risk_due = state.worst_case, no_risk in _UNREADABLE
    if detector is not None and not is_call:
        streams["p_success"] = chance
        alarm, log_m = alarm_step(detector, alarm, state.session_id, streams)
        seen.due = seen.due or bool(lacks(detector, streams))
    if worst_case is not None or seen.due or risk_due or calibration is not None:
        worst_case = worst_case_step(profile, state, kind, readings, fused, streams, risk_due=risk_due)
    turns, turn = _turns_after(state, step, seen, fused, chance, propagated, worst_case)
    draft = _draft_of(state)
    draft.n_steps += 1
    draft.n_high += high
    draft.cumulative = cumulative
    draft.level = level
    draft.has_reading = has_reading
    if not is_call:
        draft.turn_read, draft.p_success = turn.read, chance
    draft.worst = worst
    draft.acknowledged = acknowledged
    draft.last_step_id = step.step_id
    draft.monitor_calls += seen.calls
    draft.monitor_tokens += seen.tokens
    draft.monitor_cost_usd += seen.cost_usd
    draft.agent_tokens += step.input_tokens + step.output_tokens
    draft.alarm = alarm
    draft.memory = memory
    draft.risk = risk_state
    draft.worst_case = worst_case
    draft.turns = turns
    draft.rang = state.rang or (detector is not None and has_rung(detector, alarm))
    draft.__class__ = SessionState
    new_state: SessionState = draft
    decision = decide(
        _new_situation(
            profile=profile,
            state=new_state,
            turn=turn,
            kind=kind,
            tool_name=tool_name,
            irreversible=is_call and is_irreversible(policy, tool_name, step.effect),
            level=level,
            confidence=propagated,
            proposed=seen.proposed,
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
    if tracer is not None:
        assessment = _with_risk(assessment, risk, no_risk, trajectory)
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
        turn = new_turn(
            step=text_key(step.step_id),
            read=fused is not None,
            p_success=chance,
            worst_chance=None if worst_case is None else worst_case.p_success,
            lowest=lowest,
            stated="verbalized" in seen.values,
            belief=propagated,
            worst_belief=None if worst_case is None else worst_case.cumulative,
            calls=proposed(step) if step.tool_calls else (),
            more=len(step.tool_calls) > MAX_CALLS,
            listed=listed(step) if step.tool_calls else (),
        )
        return with_turn(state.turns, turn), turn
    call = step.tool_calls[0] if step.tool_calls else None
    turns, turn = placed(state.turns, call, step.step_id)
    if lowest is not None:  # of the call itself: it speaks for no other call of the turn
        lowest = min(turn.lowest or lowest, lowest, key=_value)
        turn = replace(turn, read=True, lowest=lowest, belief=None, worst_belief=None)  # the belief has it already
    return turns, turn


# A member of an enum takes a while to look up by its name, and these are looked up at every step.
_HIGH = UncertaintyLevel.HIGH
_LOG, _PAUSE = UncertaintyAction.PROCEED_WITH_LOG, UncertaintyAction.PAUSE_FOR_HUMAN
_PROPAGATED = UncertaintySource.PROPAGATED
_TRAJECTORY_RISK = UncertaintySource.TRAJECTORY_RISK
_NOT_PROPOSED = MissingReason.NOT_PROPOSED
_UNREADABLE = frozenset({MissingReason.TIMEOUT, MissingReason.SIGNAL_ERROR})


_value = operator.itemgetter(1)


class _Tally:
    """One pass over a step's readings: what they say, why some say nothing, and what they cost."""

    semantic: float | None = None
    p_true_failed = due = False
    proposed = True
    calls = tokens = samples = 0
    cost_usd = 0.0

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.sources: list[UncertaintySource] = []
        self.missing: list[str] = []

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
            if reading.reason == _NOT_PROPOSED:
                tally.proposed = False
            elif reading.reason not in NOT_DUE:
                tally.due = True
        else:
            if source == "semantic_entropy":
                tally.semantic = value
            else:
                tally.values[source] = value
            known = _SOURCES.get(source)
            if known is not None:
                tally.sources.append(known)
        if reading.calls:
            if value is None and source == "p_true":
                tally.p_true_failed = True
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
    if state.rang is not has_rung_in_run(profile, state):  # a state of an older version
        state = replace(state, rang=True)
    action, rule, reason = decide(
        _new_situation(
            profile=profile,
            state=state,
            turn=placed(state.turns, call, step_id)[1],
            kind="tool_call",
            tool_name=tool_name,
            irreversible=is_irreversible(policy, tool_name, effect),
            level=level,
            confidence=confidence,
            proposed=is_proposed(state.turns, call, step_id),
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
    sources, missing = seen.sources, seen.missing
    sources.append(_PROPAGATED)
    if fused is None:
        missing.append(NO_READING)
    fields = _DEFAULTS.copy()  # cheaper than to write all of them down, and most stay what they are
    fields["step_id"] = step.step_id
    fields["step_type"] = step.kind
    fields["index"] = index
    if seen.p_true_failed:
        fields["p_true_confidence"] = 0.5
    for source, value in seen.values.items():
        field = _FIELDS.get(source)
        if field is not None:
            fields[field] = value
    if seen.semantic is not None:
        fields["semantic_confidence"] = seen.semantic
    if fused is not None:
        fields["fused_confidence"] = fused
    fields["propagated_confidence"] = propagated
    fields["level"] = level
    fields["action"] = action
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
        if rule in _RULE_SOURCES:
            sources.append(_RULE_SOURCES[rule])
        fields["rule"] = rule
        fields["guarantee"] = _promise(profile, alarm, rule, action)
    fields["sources"] = tuple(sources)
    if advisory:
        fields["advisory_action"] = action
        if action.stops:
            fields["action"] = _LOG
    return _trusted(fields)


def _with_chance(assessment: StepUncertainty, p_success: float | None) -> StepUncertainty:
    return _trusted({**assessment.__dict__, "p_success": p_success})


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
    return _trusted({**assessment.__dict__, **told})


def _describe_alarm(fields: dict[str, Any], detector: Detector, log_m: float | None) -> None:
    """What record and span say of the detector: evidence, threshold, level and mode."""
    threshold = detector.threshold
    fields["log_e_value"] = log_m
    fields["log_threshold"] = threshold.log_value if math.isfinite(threshold.log_value) else None
    fields["alpha"] = threshold.alpha
    fields["alarm_mode"] = threshold.mode.value


_FIELDS = {
    "verbalized": "verbalized_confidence",
    "p_true": "p_true_confidence",
    "token_probability": "token_probability",
    "token_entropy": "token_entropy",
}
_DEFAULTS = {name: field.default for name, field in StepUncertainty.model_fields.items()}
_SOURCES = {source.value: source for source in UncertaintySource}
