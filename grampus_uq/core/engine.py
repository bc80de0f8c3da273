"""One step, pure: readings in, a new state and an assessment out. Live monitoring and offline replay share `advance`.

fuse -> propagate -> classify -> decide. Nothing here waits, asks, logs or remembers: everything a session knows is in
its `SessionState`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grampus_uq.core.alarm import alarm_raised, alarm_step
from grampus_uq.core.decision import Situation, decide, is_irreversible, level_of
from grampus_uq.core.estimator import Fusion, UncertaintyEstimator, fuse_step
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.propagator import Propagator, propagated_by
from grampus_uq.core.risk import confidence_of_risk, risk_step
from grampus_uq.core.state import Profile, SessionState, Unaided, WorstCase, has_alarmed
from grampus_uq.core.tally import Tally, missing_text, tally_of
from grampus_uq.core.turn_evidence import (
    MAX_CALLS,
    TurnEvidence,
    Turns,
    doubt_about,
    doubt_after,
    doubts,
    draft_of_turn,
    is_proposed,
    listed,
    new_turn,
    placed,
    proposed,
    text_key,
    were_read,
    with_turn,
)
from grampus_uq.core.worst_case import alarm_at_call, lacks, streams_of, unaided_step, worst_case_step
from grampus_uq.records.building import builder, drafter
from grampus_uq.records.events import TrajectoryReading
from grampus_uq.records.values import NO_READING, Reading, Step, StepUncertainty, ToolCall, Verdict, utc
from grampus_uq.records.vocabulary import (
    STOPPING_LEVELS,
    Effect,
    MissingReason,
    UncertaintyAction,
    UncertaintyLevel,
    UncertaintySource,
)
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.fusion import LogisticFusion, is_count

_EVERY_STEP = ("n_steps", "n_high", "cumulative", "level", "has_reading", "last_step_id", "agent_tokens")
_draft_of = drafter(SessionState, but=(*_EVERY_STEP, "memory", "worst_case", "turns"))
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
    session the level is at least MEDIUM. Missing readings (`value` None) are not evidence, for or against. `trajectory`
    is what was sensed for the profile's trajectory risk, where it has one.
    """
    seen = tally_of(readings)
    kind, parts = step.kind, profile.__dict__  # an attribute of a pydantic model takes several times as long
    policy: UncertaintyPolicy = parts["policy"]
    estimator: UncertaintyEstimator = parts["estimator"]
    detector: Detector | None = parts["detector"]
    calibration: LogisticFusion | None = parts["calibration"]
    propagator: Propagator = parts["propagator"]
    fusion = _NOTHING_READ
    if seen.values or seen.semantic is not None:
        fusion = fuse_step(estimator, propagator, seen.values, seen.semantic)
    fused, seen.unaided = fusion
    propagated, cumulative, memory = propagated_by(propagator, fused, kind, state.cumulative, state.memory)
    seen.fused, seen.propagated = fused, propagated
    unaided = unaided_step(propagator, state, kind, fusion, cumulative)
    has_reading = state.has_reading or fused is not None
    level = level_of(policy, propagated, has_reading)
    high = level in STOPPING_LEVELS
    is_call = kind == "tool_call"
    tool_name = step.tool_name
    alarm, risk_state, risk_due = state.alarm, state.risk, False
    if parts["trajectory_risk"] is not None:
        risk_state, seen.risk, seen.no_risk = risk_step(parts["trajectory_risk"], risk_state, trajectory)
        risk_due = seen.no_risk in _UNREADABLE
    fitted = calibration is not None or detector is not None
    risk = confidence_of_risk(seen.risk)
    streams = streams_of(seen.values, seen.semantic, fusion, propagated, risk) if fitted else {}
    if calibration is not None:
        seen.p_success = calibration(streams)
    if detector is not None and not is_call:
        streams["p_success"] = seen.p_success
        if detector.at_calls:
            seen.scores = tuple([streams.get(name) for name in detector.streams])
        else:
            alarm, seen.log_m = alarm_step(detector, alarm, state.session_id, streams)
        seen.due = seen.due or bool(lacks(detector, streams))
    worst_case = state.worst_case
    if worst_case is not None or seen.due or risk_due or calibration is not None:
        worst_case = worst_case_step(profile, state, kind, readings, fusion, streams, risk_due=risk_due)
    measured = seen.unaided is None and fitted and _measured(profile, seen)
    turns, turn = _turns_after(state, step, readings, seen, unaided, worst_case, measured=measured)
    if is_call:
        turns, doubt = doubt_after(state.turns, turns, turn, step, readings)
    draft = _draft_of(state)
    draft.n_steps = state.n_steps + 1
    draft.n_high = state.n_high + high
    draft.cumulative = cumulative
    draft.level = level
    draft.has_reading = has_reading
    if not is_call:
        draft.turn_read, draft.p_success = fused is not None, seen.p_success
    if fused is not None:
        draft.worst = fused if state.worst is None else min(state.worst, fused)
    if not high:
        draft.acknowledged = None  # the belief recovered: the next pause is asked for again
    draft.last_step_id = step.step_id
    if seen.calls:
        draft.monitor_calls += seen.calls
        draft.monitor_tokens += seen.tokens
        draft.monitor_cost_usd += seen.cost_usd
    draft.agent_tokens = state.agent_tokens + step.input_tokens + step.output_tokens
    draft.memory = memory
    draft.unaided = unaided
    draft.worst_case = worst_case
    draft.turns = turns
    if (seen.unaided is not None or were_read(state.turns)) and not were_read(turns):
        draft.read_before = True
    if risk_state is not None:
        draft.risk = risk_state
    if detector is not None:
        draft.alarm = alarm
        draft.alarmed = state.alarmed or alarm_raised(detector, alarm)
    draft.__class__ = SessionState
    new_state: SessionState = draft
    irreversible = is_call and is_irreversible(policy, tool_name, step.effect)
    if is_call and step.tool_calls[1:]:
        names = [call.name for call in step.tool_calls]
        irreversible = irreversible or any(policy.is_irreversible(name) for name in names)
        tool_name = next((name for name in names if policy.asks_always(name)), tool_name)
    if irreversible:
        new_state, seen.log_m = alarm_at_call(profile, new_state, turn)
    verdict = decide(
        _new_situation(
            profile=profile,
            state=new_state,
            turn=turn,
            kind=kind,
            tool_name=tool_name,
            irreversible=irreversible,
            level=level,
            confidence=propagated,
            effect=step.effect,
            proposed=seen.proposed,
            doubt=doubt if is_call else None,
        )
    )
    return new_state, _assess(parts, state.n_steps, step, tool_name, seen, verdict, trajectory)


def judge_call(
    profile: Profile,
    state: SessionState,
    call: ToolCall | str,
    effect: Effect | None = None,
    *,
    step_id: str | None = None,
    exactly: bool = False,
) -> Verdict:
    """The verdict on a step that proposes this call now; changes nothing. Equal to what `advance` then decides.

    `exactly`: as in `is_proposed`.
    """
    call = ToolCall(name=call) if isinstance(call, str) else call
    if not state.alarmed and has_alarmed(profile, state):  # a state of an older version
        state = replace(state, alarmed=True)
    turn = placed(state.turns, call, step_id)[1]
    irreversible = is_irreversible(profile.policy, call.name, effect)
    if irreversible:
        state, _ = alarm_at_call(profile, state, turn)
    verdict = decide(
        _new_situation(
            profile=profile,
            state=state,
            turn=turn,
            kind="tool_call",
            tool_name=call.name,
            irreversible=irreversible,
            level=level_of(profile.policy, state.cumulative, state.has_reading),
            confidence=state.cumulative,
            effect=effect,
            proposed=is_proposed(state.turns, call, step_id, exactly=exactly),
            doubt=doubt_about(state.turns, turn, call),
        )
    )
    wanted = verdict.advisory_action
    if wanted is None or not wanted.stops:
        return verdict
    why = "advisory only" if profile.advisory else "let through at random"
    return replace(verdict, reason=f"{why}; would be {wanted.value}: {verdict.reason}")


def _turns_after(
    state: SessionState,
    step: Step,
    readings: Sequence[Reading],
    seen: Tally,
    unaided: Unaided | None,
    worst_case: WorstCase | None,
    *,
    measured: bool,
) -> tuple[tuple[TurnEvidence, ...], TurnEvidence]:
    """The turns of the model after a step, and the evidence of its own; for a call, of the turn that proposed it."""
    lowest, calls = None if seen.fused is None else seen.lowest(), step.tool_calls
    if step.kind != "tool_call":
        turn = new_turn(
            step=text_key(step.step_id),
            read=seen.unaided is not None,
            measured=measured,
            p_success=seen.p_success,
            lowest=lowest,
            stated="verbalized" in seen.values,
            belief=seen.propagated,
            unaided=None if unaided is None else unaided.cumulative,
            scores=seen.scores,
        )
        if calls or seen.unasked or worst_case is not None:
            turn = _told_more(turn, state.turns, step, readings, seen, worst_case)
        return with_turn(state.turns, turn), turn
    turns, turn = placed(state.turns, calls[0] if calls else None, step.step_id)
    if lowest is not None:  # of the call itself: it speaks for no other call of the turn
        lowest = min(turn.lowest or lowest, lowest, key=_value)
        read = turn.read or seen.unaided is not None
        if seen.unaided is None:
            turn = replace(turn, unaided=turn.belief if turn.unaided is None else turn.unaided)
        else:
            turn = replace(turn, unaided=None, worst_belief=None)
        turn = replace(turn, read=read, lowest=lowest, belief=None)  # the belief has it already
    return turns, turn


def _measured(profile: Profile, seen: Tally) -> bool:
    """True where a reading was that the profile was fitted on, but for counts and what the model states."""
    used = profile.fitted_streams.intersection(seen.values)
    return any(name != UncertaintySource.VERBALIZED and not is_count(name) for name in used)


def _told_more(
    turn: TurnEvidence,
    before: Turns,
    step: Step,
    readings: Sequence[Reading],
    seen: Tally,
    worst_case: WorstCase | None,
) -> TurnEvidence:
    """The evidence of a turn that proposes calls, or that comes after a reading that was due and did not come."""
    draft = draft_of_turn(turn)
    if step.tool_calls:
        draft.calls, draft.listed = proposed(step), listed(step)
        draft.more = len(step.tool_calls) > MAX_CALLS
    if step.tool_calls or seen.unasked:
        draft.doubts = doubts(step, readings, before)
    if worst_case is not None:
        alone = worst_case.unaided
        draft.worst_chance = worst_case.p_success
        draft.worst_belief = worst_case.cumulative if alone is None else min(worst_case.cumulative, alone.cumulative)
        draft.worst_scores = worst_case.scores
    draft.__class__ = TurnEvidence
    told: TurnEvidence = draft
    return told


_NOTHING_READ: Fusion = (None, None)
# A member of an enum takes a while to look up by its name, and these are looked up at every step.
_HIGH = UncertaintyLevel.HIGH
_PAUSE = UncertaintyAction.PAUSE_FOR_HUMAN
_PROPAGATED = UncertaintySource.PROPAGATED
_TRAJECTORY_RISK = UncertaintySource.TRAJECTORY_RISK
_UNREADABLE = frozenset({MissingReason.TIMEOUT, MissingReason.SIGNAL_ERROR})
_value = operator.itemgetter(1)


_RULE_SOURCES = {
    "irreversible_override": UncertaintySource.IRREVERSIBLE_TOOL,
    "missing_evidence": UncertaintySource.MISSING_EVIDENCE,
    "worst_so_far": UncertaintySource.WORST_SO_FAR,
    "call_evidence": UncertaintySource.CALL_EVIDENCE,
    "detector": UncertaintySource.DETECTOR,
    "release": UncertaintySource.RELEASE,
    "always_ask": UncertaintySource.ALWAYS_ASK,
}


def _assess(
    parts: Mapping[str, Any],
    index: int,
    step: Step,
    tool_name: str | None,
    seen: Tally,
    verdict: Verdict,
    trajectory: TrajectoryReading | None,
) -> StepUncertainty:
    sources, missing = seen.sources, seen.missing
    sources.append(_PROPAGATED)
    if seen.fused is None:
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
    if seen.fused is not None:
        fields["fused_confidence"] = seen.fused
    fields["propagated_confidence"] = seen.propagated
    fields["level"] = verdict.level
    fields["action"] = verdict.action
    fields["reasoning"] = verdict.reason
    fields["timestamp"] = utc(step.time_s)
    if seen.samples:
        fields["samples_used"] = seen.samples
    if tool_name is not None:
        fields["tool_name"] = tool_name
    if step.effect is not None:
        fields["effect"] = step.effect
    if seen.p_success is not None:
        fields["p_success"] = seen.p_success
    if verdict.advisory_action is not None:
        fields["advisory_action"] = verdict.advisory_action
    if verdict.action is _PAUSE and verdict.level is _HIGH and step.kind != "tool_call":
        fields["reflection_injected"] = parts["policy"].inject_reflection_on_high
    if parts["detector"] is not None:
        _describe_alarm(fields, parts["detector"], seen.log_m)
    if verdict.rule in _RULE_SOURCES:
        sources.append(_RULE_SOURCES[verdict.rule])
    fields["rule"], fields["guarantee"] = verdict.rule, verdict.guarantee
    if parts["trajectory_risk"] is not None:
        missing = _describe_risk(fields, seen, trajectory)
    if missing:
        fields["missing_reason"] = "; ".join(missing)
    fields["sources"] = tuple(sources)
    return _trusted(fields)


def _describe_risk(fields: dict[str, Any], seen: Tally, trajectory: TrajectoryReading | None) -> list[str]:
    """The trajectory risk in the record; returns the reasons of all that is missing, those of the readings last."""
    fields["trajectory_risk"] = seen.risk
    if seen.risk is not None:
        seen.sources.append(_TRAJECTORY_RISK)
    missing = [] if seen.no_risk is None else [missing_text("trajectory_risk", seen.no_risk)]
    if trajectory is not None and trajectory.no_surprisal is not None:
        missing.append(missing_text("surprisal", trajectory.no_surprisal))
    return missing + seen.missing


def _describe_alarm(fields: dict[str, Any], detector: Detector, log_m: float | None) -> None:
    """Add the detector's evidence, threshold, level and mode to the fields of a record."""
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
