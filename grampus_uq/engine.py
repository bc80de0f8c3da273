"""One step, pure: readings in, a new state and an assessment out. Live monitoring and offline replay share `advance`.

fuse -> propagate -> classify -> decide. Nothing here waits, asks, logs or remembers: everything a session knows is in
`SessionState`, a small value that goes through JSON unchanged, however long the run is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from grampus_uq.errors import DataError
from grampus_uq.estimator import UncertaintyEstimator
from grampus_uq.policy import UncertaintyPolicy
from grampus_uq.propagator import UncertaintyPropagator
from grampus_uq.records import Reading, Step, StepUncertainty, Verdict, utc
from grampus_uq.vocabulary import Effect, UncertaintyAction, UncertaintyLevel, UncertaintySource

__all__ = ["Profile", "SessionState", "acknowledge", "advance", "judge_call", "state_from_json", "state_to_json"]


Count = Annotated[int, Field(ge=0)]  # checked when a stored state is read, not when `advance` builds one
Unit = Annotated[float, Field(ge=0.0, le=1.0)]


class Profile(BaseModel):
    """Everything `advance` is parametrised by: frozen, JSON-able, shared by every session.

    With `advisory` set nothing is stopped: the action that would have stopped the run is recorded beside the one taken.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    policy: UncertaintyPolicy = Field(default_factory=UncertaintyPolicy)
    estimator: UncertaintyEstimator = Field(default_factory=UncertaintyEstimator)
    propagator: UncertaintyPropagator = Field(default_factory=UncertaintyPropagator)
    advisory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """What one session knows after its last committed step; bounded, JSON-able, immutable.

    `turn_read` is False while the latest step of the model had no reading; `worst` is the least fused confidence so
    far; `acknowledged` is the gravest level that a human already answered for; both token counts are sums.
    """

    session_id: str
    agent_id: str = ""
    n_steps: Count = 0
    n_high: Count = 0
    cumulative: Unit = 1.0
    level: UncertaintyLevel = UncertaintyLevel.MEDIUM
    has_reading: bool = False
    turn_read: bool = False
    worst: Unit | None = None
    acknowledged: UncertaintyLevel | None = None
    last_step_id: str | None = None
    monitor_calls: Count = 0
    monitor_tokens: Count = 0
    monitor_cost_usd: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    agent_tokens: Count = 0

    __pydantic_config__ = ConfigDict(extra="forbid")  # an unknown field is a newer version's: not ours to drop


_STATE = TypeAdapter(SessionState)


def state_to_json(state: SessionState) -> str:
    """The state as one JSON object; `state_from_json` gives back an equal state."""
    return _STATE.dump_json(state).decode()


def state_from_json(text: str | bytes) -> SessionState:
    """Parse and validate a stored state; raises DataError naming the field."""
    try:
        return _STATE.validate_json(text)
    except ValueError as error:
        first = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": str(error)}
        field = ".".join(str(part) for part in first["loc"])
        raise DataError(f"not a session state: {first['msg']}", field=field) from error


def acknowledge(state: SessionState, level: UncertaintyLevel) -> SessionState:
    """A human answered for this level: it, and lesser ones, ask no more until the belief has been MEDIUM or better."""
    return replace(state, acknowledged=level)


def advance(
    profile: Profile, state: SessionState, step: Step, readings: Sequence[Reading]
) -> tuple[SessionState, StepUncertainty]:
    """Take one step with its readings: the new state, and what is concluded.

    A step without any usable reading leaves the propagated confidence where it was. Until the first reading of a
    session the level is at least MEDIUM. Missing readings (`value` None) are no evidence, for or against.
    """
    seen = _tally(readings)
    values = seen.values
    fused = profile.estimator.pessimistic(profile.estimator.fuse_readings(values), seen.semantic)
    before = state.cumulative
    propagated = before if fused is None else profile.propagator.propagate(fused, step.kind, before)
    has_reading = state.has_reading or fused is not None
    level = _level(profile.policy, propagated, has_reading)
    is_call = step.kind == "tool_call"
    turn_read = state.turn_read if is_call and fused is None else fused is not None
    worst = state.worst if fused is None or (state.worst is not None and state.worst <= fused) else fused
    high = level in _HIGH
    acknowledged = state.acknowledged if high else None  # the belief recovered: the alarm is armed again
    decision = _decide(
        profile.policy,
        level,
        propagated,
        step.kind,
        irreversible=is_call and _is_irreversible(profile.policy, step.tool_name, step.effect),
        evidence=has_reading and turn_read,
        worst=worst,
        acknowledged=acknowledged,
    )
    assessment = _assess(profile, state.n_steps, step, seen, fused, propagated, level, decision)
    new_state = SessionState(
        session_id=state.session_id,
        agent_id=state.agent_id,
        n_steps=state.n_steps + 1,
        n_high=state.n_high + high,
        cumulative=profile.propagator.update_cumulative(propagated, before, step.kind),
        level=level,
        has_reading=has_reading,
        turn_read=turn_read,
        worst=worst,
        acknowledged=acknowledged,
        last_step_id=step.step_id,
        monitor_calls=state.monitor_calls + seen.calls,
        monitor_tokens=state.monitor_tokens + seen.tokens,
        monitor_cost_usd=state.monitor_cost_usd + seen.cost_usd,
        agent_tokens=state.agent_tokens + step.input_tokens + step.output_tokens,
    )
    return new_state, assessment


_HIGH = frozenset({UncertaintyLevel.HIGH, UncertaintyLevel.CRITICAL})


class _Tally:
    """One pass over a step's readings: what they say, why some say nothing, and what they cost."""

    __slots__ = ("calls", "cost_usd", "missing", "p_true_failed", "samples", "semantic", "sources", "tokens", "values")

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.sources: list[UncertaintySource] = []
        self.missing: list[str] = []
        self.semantic: float | None = None
        self.p_true_failed = False
        self.calls = self.tokens = self.samples = 0
        self.cost_usd = 0.0


def _tally(readings: Sequence[Reading]) -> _Tally:
    tally = _Tally()
    for reading in readings:
        source, value = reading.source, reading.value
        if value is None:
            tally.missing.append(f"{source}: {reading.reason}")
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


def judge_call(profile: Profile, state: SessionState, tool_name: str, effect: Effect | None = None) -> Verdict:
    """What a step that proposes this call would be told now; changes nothing. Equal to what `advance` then decides."""
    level = _level(profile.policy, state.cumulative, state.has_reading)
    action, rule, reason = _decide(
        profile.policy,
        level,
        state.cumulative,
        "tool_call",
        irreversible=_is_irreversible(profile.policy, tool_name, effect),
        evidence=state.has_reading and state.turn_read,
        worst=state.worst,
        acknowledged=state.acknowledged if level in _HIGH else None,
    )
    if profile.advisory and action.stops:
        action, reason = UncertaintyAction.PROCEED_WITH_LOG, f"advisory only; would be {action.value}: {reason}"
    return Verdict(action=action, level=level, rule=rule, reason=reason)


def _level(policy: UncertaintyPolicy, propagated: float, has_reading: bool) -> UncertaintyLevel:
    level = policy.classify(propagated)
    return UncertaintyLevel.MEDIUM if level is UncertaintyLevel.LOW and not has_reading else level


def _is_irreversible(policy: UncertaintyPolicy, tool_name: str | None, effect: Effect | None) -> bool:
    """The effect says so, or the guide's substring rule does: either may raise the danger, neither lowers it."""
    return effect is Effect.IRREVERSIBLE or (tool_name is not None and policy.is_irreversible(tool_name))


def _decide(
    policy: UncertaintyPolicy,
    level: UncertaintyLevel,
    propagated: float,
    kind: str,
    *,
    irreversible: bool,
    evidence: bool,
    worst: float | None,
    acknowledged: UncertaintyLevel | None,
) -> tuple[UncertaintyAction, str, str]:
    """Action, rule and reason: the gravest of what the rules say. No rule here carries a statistical guarantee."""
    action = policy.decide(level, kind, irreversible=irreversible)
    rule = "tier"
    reason = ""
    if irreversible:
        if level is UncertaintyLevel.MEDIUM:
            rule, reason = "irreversible_override", f"irreversible call at confidence {propagated:.2f}"
        if not evidence and _graver(policy.on_missing_evidence, action):
            action, rule, reason = (
                policy.on_missing_evidence,
                "missing_evidence",
                "irreversible call without any reading",
            )
        floor = policy.worst_so_far_floor
        if floor is not None and worst is not None and worst < floor and not action.stops:
            action, rule = UncertaintyAction.PAUSE_FOR_HUMAN, "worst_so_far"
            reason = f"irreversible call after a step at confidence {worst:.2f}"
    elif action.stops and acknowledged is not None and acknowledged.severity >= level.severity:
        action, rule = UncertaintyAction.PROCEED_WITH_LOG, "acknowledged"
    if not reason and action is not UncertaintyAction.PROCEED:
        reason = f"confidence {propagated:.2f} is {level.value.upper()}"
    return action, rule, reason


_GRAVITY = {action: rank for rank, action in enumerate(UncertaintyAction)}


def _graver(first: UncertaintyAction, second: UncertaintyAction) -> bool:
    return _GRAVITY[first] > _GRAVITY[second]


_RULE_SOURCES = {
    "irreversible_override": UncertaintySource.IRREVERSIBLE_TOOL,
    "missing_evidence": UncertaintySource.MISSING_EVIDENCE,
    "worst_so_far": UncertaintySource.WORST_SO_FAR,
}


def _assess(
    profile: Profile,
    index: int,
    step: Step,
    seen: _Tally,
    fused: float | None,
    propagated: float,
    level: UncertaintyLevel,
    decision: tuple[UncertaintyAction, str, str],
) -> StepUncertainty:
    action, rule, reason = decision
    seen.sources.append(UncertaintySource.PROPAGATED)
    if rule in _RULE_SOURCES:
        seen.sources.append(_RULE_SOURCES[rule])
    if fused is None:
        seen.missing.append("no reading on this step")
    held = profile.advisory and action.stops
    reflects = (
        action is UncertaintyAction.PAUSE_FOR_HUMAN
        and level is UncertaintyLevel.HIGH
        and step.kind != "tool_call"
        and profile.policy.inject_reflection_on_high
    )
    values = seen.values
    fields = {
        "step_id": step.step_id,
        "step_type": step.kind,
        "index": index,
        "verbalized_confidence": values.get("verbalized", 0.5),
        "p_true_confidence": values.get("p_true", 0.5 if seen.p_true_failed else -1.0),
        "token_probability": values.get("token_probability"),
        "token_entropy": values.get("token_entropy"),
        "semantic_confidence": seen.semantic,
        "fused_confidence": 0.5 if fused is None else fused,
        "propagated_confidence": propagated,
        "p_success": None,
        "trajectory_risk": None,
        "level": level,
        "sources": tuple(seen.sources),
        "action": UncertaintyAction.PROCEED_WITH_LOG if held else action,
        "rule": rule,
        "guarantee": None,
        "reflection_injected": reflects and not held,
        "reasoning": reason,
        "samples_used": seen.samples,
        "missing_reason": "; ".join(seen.missing) if seen.missing else None,
        "tool_name": step.tool_name,
        "effect": step.effect,
        "log_e_value": None,
        "advisory_action": action if profile.advisory else None,
        "timestamp": utc(step.time_s),
    }
    return StepUncertainty.trusted(fields)


_SOURCES = {source.value: source for source in UncertaintySource}
