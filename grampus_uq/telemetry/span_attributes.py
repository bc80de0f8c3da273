"""The attributes of each span of a step: bare keys, the evidence, the alarm, the monitor's own calls and cost.

The keys of OpenTelemetry's GenAI conventions are written out: those conventions are still in development, and the
packages that hold them rename and move them. docs/telemetry.md lists every key.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from opentelemetry.util.types import AttributeValue

from grampus_uq.records.events import PERMIT, DecisionEvent, StepEvent
from grampus_uq.records.values import Reading, StepUncertainty
from grampus_uq.records.vocabulary import UncertaintySource
from grampus_uq.telemetry.conventions import ESCALATED
from grampus_uq.telemetry.evaluations import WORDS, escalates, fused_of
from grampus_uq.telemetry.span_content import plain_name

_CALL_PROBABILITY: Final = UncertaintySource.CALL_PROBABILITY
_IRREVERSIBLE: Final = ("irreversible_override", "missing_evidence", "worst_so_far", "call_evidence")
_ON_PARENT: Final = (
    "uncertainty.confidence.fused",
    "uncertainty.confidence.propagated",
    "uncertainty.p_success",
    "uncertainty.trajectory_risk",
    "uncertainty.level",
    "uncertainty.action",
    ESCALATED,
)
Attributes = dict[str, AttributeValue]


# What a span is to others: without these a backend takes every span with a tool's name for a call of the tool.
_EVALUATES: Attributes = {"gen_ai.operation.name": "evaluate", "openinference.span.kind": "EVALUATOR"}
_GUARDS: Attributes = {"gen_ai.operation.name": "evaluate", "openinference.span.kind": "GUARDRAIL"}


def _ids(event: StepEvent | DecisionEvent, step_id: str | None, what: Attributes) -> Attributes:
    ids: Attributes = {
        "session_id": event.session_id,
        "agent_id": event.agent_id,
        "gen_ai.conversation.id": event.session_id,
        **what,
    }
    if step_id is not None:
        ids["step_id"] = step_id
    if event.agent_id:
        ids["gen_ai.agent.name"] = event.agent_id
    return ids


def approval_attributes(event: DecisionEvent) -> Attributes:
    """The human decision on what was pending, without the name of the human."""
    attributes = _ids(event, event.step_id, _GUARDS)
    attributes |= {"gen_ai.operation.name": "await_approval", "decision": event.decision}
    if event.call_id:
        attributes["gen_ai.tool.call.id"] = plain_name(event.call_id, None)
    if event.decision == PERMIT and event.message is not None:
        attributes["uncertainty.permit"] = event.message
    return attributes


def estimate_attributes(event: StepEvent, *, tool_names: Collection[str] | None = None) -> Attributes:
    """The bare keys and the ids, `missing_reason` beside numbers that are not evidence, and the evidence alone."""
    step, session_id, agent_id = event.assessment, event.session_id, event.agent_id
    fields = step.__dict__  # an attribute of a pydantic model takes several times as long, and some twenty are read
    level, action, p_true = WORDS[fields["level"]], WORDS[fields["action"]], fields["p_true_confidence"]
    propagated, fused, p_success = fields["propagated_confidence"], fused_of(step), fields["p_success"]
    # One literal: every step of every agent passes here.
    attributes: Attributes = {
        "session_id": session_id,
        "agent_id": agent_id,
        "step_id": fields["step_id"],
        "gen_ai.conversation.id": session_id,
        "gen_ai.operation.name": "evaluate",
        "openinference.span.kind": "EVALUATOR",
        "step_type": fields["step_type"],
        "verbalized_confidence": fields["verbalized_confidence"],
        "p_true_confidence": p_true,
        "fused_confidence": fields["fused_confidence"],
        "propagated_confidence": propagated,
        "level": level,
        "action": action,
        "p_true_ran": p_true != -1.0,
        "samples_used": fields["samples_used"],
        "rule": fields["rule"],
        "uncertainty.level": level,
        "uncertainty.action": action,
        "uncertainty.confidence.propagated": propagated,
    }
    if agent_id:
        attributes["gen_ai.agent.name"] = agent_id
    if fused is not None:
        attributes["uncertainty.confidence.fused"] = fused
    if escalates(step):
        attributes[ESCALATED] = True
    if fields["missing_reason"] is not None:
        attributes["missing_reason"] = fields["missing_reason"]
    if fields["token_probability"] is not None:  # three tests in a row take a third of a loop's time
        attributes["token_probability"] = fields["token_probability"]
    if fields["token_entropy"] is not None:
        attributes["token_entropy"] = fields["token_entropy"]
    if fields["semantic_confidence"] is not None:
        attributes["semantic_confidence"] = fields["semantic_confidence"]
    if p_success is not None:
        attributes["p_success"] = attributes["uncertainty.p_success"] = p_success
    if fields["trajectory_risk"] is not None:
        attributes["uncertainty.trajectory_risk"] = fields["trajectory_risk"]
    if event.trajectory is not None and fields["step_type"] != "tool_call":
        opened = event.trajectory.pending
        if opened is not None and opened.surprisal is not None:
            attributes["uncertainty.surprisal"] = opened.surprisal
    if fields["alarm_mode"] is not None:
        _add_alarm(attributes, step)
    if fields["tool_name"] is not None:
        attributes["gen_ai.tool.name"] = plain_name(fields["tool_name"], tool_names)
        call_id = event.step.tool_calls[0].id if event.step.tool_calls else ""
        if call_id:
            attributes["gen_ai.tool.call.id"] = plain_name(call_id, None)
    elif event.step.tool_calls:
        odds = [reading.value for reading in event.readings if reading.source == _CALL_PROBABILITY]
        if odds and odds[0] is not None:
            attributes["uncertainty.call_probability"] = odds[0]
    return attributes


def parent_attributes(estimate: Attributes) -> Attributes:
    """The attributes of a recording parent span, from those of its latest step's estimate."""
    found: Attributes = {key: estimate[key] for key in _ON_PARENT if key in estimate}
    found["uncertainty.step_id"] = estimate["step_id"]
    return found


def _add_alarm(attributes: Attributes, step: StepUncertainty) -> None:
    for key, value in (
        ("uncertainty.alarm_mode", step.alarm_mode),
        ("uncertainty.log_e_value", step.log_e_value),
        ("uncertainty.log_threshold", step.log_threshold),
        ("uncertainty.alpha", step.alpha),
    ):
        if value is not None:
            attributes[key] = value


def spending_attributes(readings: Sequence[Reading]) -> Attributes:
    """The monitor's own calls, tokens and cost. Not `gen_ai.usage`, which backends add to the agent's tokens."""
    attributes: Attributes = {
        "uncertainty.monitor.calls": sum(reading.calls for reading in readings),
        "uncertainty.monitor.input_tokens": sum(reading.input_tokens for reading in readings),
        "uncertainty.monitor.output_tokens": sum(reading.output_tokens for reading in readings),
    }
    costs = [reading.cost_usd for reading in readings if reading.cost_usd is not None]
    if costs:
        attributes["uncertainty.monitor.cost_usd"] = sum(costs)
    return attributes


def semantic_attributes(event: StepEvent, reading: Reading) -> Attributes:
    """The result of sampling a step's answers again."""
    attributes = _ids(event, event.assessment.step_id, _EVALUATES)
    attributes["sample_count"] = reading.samples
    attributes["early_stopped"] = bool(reading.early_stopped)
    if reading.value is not None:
        attributes["semantic_confidence"] = reading.value
    else:
        attributes["missing_reason"] = str(reading.reason)
    return attributes


def escalate_attributes(event: StepEvent) -> Attributes:
    """The attributes of an escalation, with the promise behind it; `wanted`: the action if the monitor may act."""
    step = event.assessment
    attributes = _ids(event, event.assessment.step_id, _GUARDS)
    attributes |= {
        ESCALATED: True,
        "level": step.level.value,
        "cumulative_confidence": step.propagated_confidence,
        "irreversible": step.rule in _IRREVERSIBLE,
        "action": step.action.value,
        "wanted_action": (step.advisory_action or step.action).value,
        "rule": step.rule,
        "guarantee": step.guarantee or "no guarantee",
    }
    if step.alarm_mode is not None:
        _add_alarm(attributes, step)
    return attributes
