"""Turns a committed step into the guide's three spans, under whatever span is current, with the step's own times.

Numbers only: no message, no tool argument and no tool output ever becomes an attribute here.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.trace import Tracer
from opentelemetry.util.types import AttributeValue

from grampus_uq.errors import ConfigurationError
from grampus_uq.events import Event, StepEvent
from grampus_uq.records import Reading
from grampus_uq.vocabulary import STOPPING, UncertaintyAction, UncertaintyLevel

__all__ = ["SpanEmitter", "resolve_tracer"]


def resolve_tracer(tracer: Any) -> Tracer:
    """The OpenTelemetry tracer behind a tracer, a `GrampusTracer` or any object with a `_tracer` of that kind."""
    inner = getattr(tracer, "_tracer", None)
    for candidate in (tracer, inner):
        if candidate is not None and callable(getattr(candidate, "start_span", None)):
            found: Tracer = candidate
            return found
    raise ConfigurationError.of(
        "tracer",
        "UncertaintyMonitor",
        "a GrampusTracer, an OpenTelemetry tracer, or an object with such a `_tracer`",
        tracer,
    )


class SpanEmitter:
    """A processor: `uncertainty.estimate` a step, `uncertainty.semantic` and `uncertainty.escalate` beneath it."""

    __slots__ = ("_tracer",)

    def __init__(self, tracer: Any) -> None:
        self._tracer = resolve_tracer(tracer)

    def on_event(self, event: Event) -> None:
        """Emit the spans of a step; other events have none."""
        if not isinstance(event, StepEvent):
            return
        current = get_current()  # looked up once here instead of three times in the SDK
        estimate = self._tracer.start_span(
            "uncertainty.estimate",
            context=current,
            start_time=event.started_ns,
            attributes=estimate_attributes(event),
        )
        semantic = None
        for reading in event.readings:
            if reading.calls and reading.source == "semantic_entropy":
                semantic = reading
        assessment = event.assessment
        wanted = assessment.advisory_action or assessment.action
        escalates = wanted in STOPPING or assessment.level in _GRAVE
        ended_ns = max(event.started_ns, event.ended_ns)  # a wall clock may have been set back in between
        if semantic is not None or escalates:
            context = trace.set_span_in_context(estimate, current)
            if semantic is not None:
                self._tracer.start_span(
                    "uncertainty.semantic",
                    context=context,
                    start_time=semantic.started_ns,
                    attributes=_semantic_attributes(event, semantic),
                ).end(_end_ns(semantic, ended_ns))
            if escalates:
                self._tracer.start_span(
                    "uncertainty.escalate",
                    context=context,
                    start_time=_decision_start_ns(event, ended_ns),
                    attributes=_escalate_attributes(event, wanted),
                ).end(ended_ns)
        estimate.end(ended_ns)


def _end_ns(reading: Reading, latest_ns: int) -> int:
    """When a reading was there: after its start, and not after the step."""
    return max(reading.started_ns, min(latest_ns, reading.started_ns + int(reading.duration_s * 1e9)))


def _decision_start_ns(event: StepEvent, ended_ns: int) -> int:
    """When the deciding began: as soon as the last reading was there, or with the step when nothing was asked."""
    ends = [_end_ns(reading, ended_ns) for reading in event.readings if reading.calls]
    return max(event.started_ns, min(ended_ns, max(ends, default=event.started_ns)))


_GRAVE = frozenset({UncertaintyLevel.HIGH, UncertaintyLevel.CRITICAL})
_PLAIN: dict[str, str] = {word: word.value for words in (UncertaintyLevel, UncertaintyAction) for word in words}


def estimate_attributes(event: StepEvent) -> dict[str, AttributeValue]:
    """The guide's keys, the ids, and `missing_reason` beside the numbers that are no evidence."""
    step = event.assessment
    attributes: dict[str, AttributeValue] = {
        "session_id": event.session_id,
        "agent_id": event.agent_id,
        "step_id": step.step_id,
        "step_type": step.step_type,
        "verbalized_confidence": step.verbalized_confidence,
        "p_true_confidence": step.p_true_confidence,
        "fused_confidence": step.fused_confidence,
        "propagated_confidence": step.propagated_confidence,
        "level": _PLAIN[step.level],
        "action": _PLAIN[step.action],
        "p_true_ran": step.p_true_confidence != -1.0,
        "samples_used": step.samples_used,
        "rule": step.rule,
    }
    if step.missing_reason is not None:
        attributes["missing_reason"] = step.missing_reason
    if step.tool_name is not None:
        attributes["gen_ai.tool.name"] = step.tool_name
    if step.token_probability is not None:
        attributes["token_probability"] = step.token_probability
    if step.token_entropy is not None:
        attributes["token_entropy"] = step.token_entropy
    if step.semantic_confidence is not None:
        attributes["semantic_confidence"] = step.semantic_confidence
    if step.alarm_mode is not None:
        attributes["uncertainty.alarm_mode"] = step.alarm_mode
        for name, number in (("log_e_value", step.log_e_value), ("log_threshold", step.log_threshold)):
            if number is not None:
                attributes[f"uncertainty.{name}"] = number
        if step.alpha is not None:
            attributes["uncertainty.alpha"] = step.alpha
    if step.p_success is not None:
        attributes["p_success"] = step.p_success
    if step.trajectory_risk is not None:
        attributes["uncertainty.trajectory_risk"] = step.trajectory_risk
    return attributes


def _semantic_attributes(event: StepEvent, reading: Reading) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "session_id": event.session_id,
        "agent_id": event.agent_id,
        "step_id": event.assessment.step_id,
        "sample_count": reading.samples,
        "early_stopped": bool(reading.early_stopped),
    }
    if reading.value is not None:
        attributes["semantic_confidence"] = reading.value
    else:
        attributes["missing_reason"] = str(reading.reason)
    return attributes


def _escalate_attributes(event: StepEvent, wanted: UncertaintyAction) -> dict[str, AttributeValue]:
    step = event.assessment
    attributes: dict[str, AttributeValue] = {
        "session_id": event.session_id,
        "agent_id": event.agent_id,
        "step_id": step.step_id,
        "level": step.level.value,
        "cumulative_confidence": step.propagated_confidence,
        "irreversible": step.rule in ("irreversible_override", "missing_evidence", "worst_so_far"),
        "action": step.action.value,
        "wanted_action": wanted.value,
        "rule": step.rule,
        "guarantee": step.guarantee or "no guarantee",
    }
    return attributes
