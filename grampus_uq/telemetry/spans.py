"""Turns a committed step into spans (estimate, semantic, escalate) below the current span, at the step's own times.

Numbers, words and ids only: no message, no tool argument and no tool output ever becomes an attribute, unless `content`
asks for it. docs/telemetry.md lists every attribute.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, Tracer
from pydantic import JsonValue

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.configuration import checked
from grampus_uq.records.events import DecisionEvent, Event, StepEvent
from grampus_uq.records.values import Reading
from grampus_uq.records.vocabulary import UncertaintyAction
from grampus_uq.telemetry.conventions import APPROVAL, ESCALATE, ESCALATED, ESTIMATE, EVALUATION, SEMANTIC
from grampus_uq.telemetry.evaluations import FUSED, SCORES
from grampus_uq.telemetry.span_attributes import (
    Attributes,
    approval_attributes,
    escalate_attributes,
    estimate_attributes,
    parent_attributes,
    semantic_attributes,
    spending_attributes,
)
from grampus_uq.telemetry.span_content import Redact, content_attributes
from grampus_uq.telemetry.trace_context import OverPause, SessionTraces, surroundings

if TYPE_CHECKING:
    from opentelemetry._logs import Logger


def resolve_tracer(tracer: Any) -> Tracer:
    """The OpenTelemetry tracer behind a tracer, a `GrampusTracer` or any object with a `_tracer` of that kind.

    A `_tracer` that is one of OpenTelemetry's wins over whatever else the object answers to. Only OpenTelemetry's own
    proxy is taken as it is: its `_tracer` is a placeholder until a provider is set.
    """
    inner = None if isinstance(tracer, trace.ProxyTracer) else getattr(tracer, "_tracer", None)
    if isinstance(inner, Tracer):
        return inner
    for candidate in (tracer, inner):
        if candidate is not None and callable(getattr(candidate, "start_span", None)):
            found: Tracer = candidate
            return found
    rule = "a SpanEmitter, a GrampusTracer, an OpenTelemetry tracer, or an object with such a `_tracer`"
    raise ConfigurationError.of("tracer", "UncertaintyMonitor", rule, tracer)


def span_processor(tracer: Any) -> SpanEmitter:
    """The processor that emits spans by a tracer; a `SpanEmitter` is one already."""
    return tracer if isinstance(tracer, SpanEmitter) else SpanEmitter(tracer)


_calls_of = operator.attrgetter("calls")


@checked
class SpanEmitter:
    """A processor: `uncertainty.estimate` a step, beneath it `uncertainty.semantic`, `.escalate` and `.approval`.

    `UncertaintyMonitor(tracer=...)` makes one with the defaults, or takes this one.

    A step's spans are children of the span that is current where the step is committed; without one, a session is a
    trace of its own. `over_pause` says what a session that is taken up again from a snapshot does: "continue" the same
    trace where no span is current, or "link": begin another that links to it. The main numbers are also set on a
    recording parent (`copy_to_parent`), where the latest step wins.

    `evaluation_events` are `gen_ai.evaluation.result`: "span" adds them to the estimate span, "log" emits them through
    `logger_provider` (default: the application's global one) as log events of that span, "none" leaves them out. The
    numbers are on span attributes whatever it says.

    `content` adds what the model said and what a tool was called with, each text after `redact(key, text)`, which
    returns what may leave, or None for nothing; what it raises leaves nothing. `tool_names` are the tools whose names
    may be shown; without it, any name that has the shape of a name: a model may call a tool by any text.

    Raises ConfigurationError for an option that is none of these, or something that holds no tracer.
    """

    snapshot_key = "trace"

    __slots__ = ("_content", "_copy", "_log", "_on_span", "_redact", "_tool_names", "_tracer", "_traces")

    def __init__(
        self,
        tracer: Any,
        *,
        over_pause: OverPause = "continue",
        evaluation_events: Literal["span", "log", "none"] = "span",
        logger_provider: Any = None,
        copy_to_parent: bool = True,
        content: bool = False,
        redact: Redact | None = None,
        tool_names: Collection[str] | None = None,
    ) -> None:
        owner = type(self).__name__
        if over_pause not in ("continue", "link"):
            raise ConfigurationError.of("over_pause", owner, "'continue' or 'link'", over_pause)
        if evaluation_events not in ("span", "log", "none"):
            raise ConfigurationError.of("evaluation_events", owner, "'span', 'log' or 'none'", evaluation_events)
        if redact is not None and not content:
            raise ConfigurationError.of("redact", owner, "given together with content=True", redact)
        self._tracer = resolve_tracer(tracer)
        self._traces = SessionTraces(over_pause)
        self._on_span = evaluation_events == "span"
        self._log: Logger | None = None
        if evaluation_events == "log":
            from opentelemetry._logs import get_logger_provider  # experimental: loaded only where it is asked for

            self._log = (logger_provider or get_logger_provider()).get_logger("grampus_uq")
        self._copy = copy_to_parent
        self._content, self._redact = content, redact
        self._tool_names = None if tool_names is None else frozenset(tool_names)

    def begin(self, session_id: str, entry: Mapping[str, Any] | None) -> None:
        """A session begins; with W3C headers as its `entry` it resumes from a snapshot."""
        self._traces.begin(session_id, entry)

    def snapshot(self, session_id: str) -> dict[str, JsonValue] | None:
        """The session's trace as W3C headers; None before its first span."""
        carrier = self._traces.carrier(session_id)
        return None if carrier is None else {**carrier}

    def latest(self, session_id: str) -> SpanContext | None:
        """The estimate span of the session's latest step, for processors that come after this one; else None."""
        return self._traces.latest(session_id)

    def on_event(self, event: Event) -> None:
        """Emit the spans of a step, and of a decision the span of what waited for it; other events have none."""
        if not isinstance(event, StepEvent):
            if isinstance(event, DecisionEvent):
                self._approval(event)
            return
        current, around = surroundings()  # looked up once here instead of three times in the SDK
        within = None if around is trace.INVALID_SPAN else around.get_span_context()
        context, links, place = self._traces.parent(event.session_id, current, within)
        model_readings = list(filter(_calls_of, event.readings))
        attributes = estimate_attributes(event, tool_names=self._tool_names)
        escalated = ESCALATED in attributes
        if model_readings:
            attributes |= spending_attributes(model_readings)
        if self._content:
            attributes.update(content_attributes(event, self._redact))
        span = self._tracer.start_span(
            ESTIMATE, context=context, start_time=event.started_ns, attributes=attributes, links=links
        )
        started_ns, ended_ns, own = event.started_ns, event.ended_ns, span.get_span_context()
        if ended_ns < started_ns:  # a wall clock was set back in between
            ended_ns = started_ns
        self._traces.started(place, own)
        if escalated and event.assessment.action is UncertaintyAction.PAUSE_FOR_HUMAN:
            self._traces.pause(place, own, ended_ns)
        if self._log is not None or (self._on_span and span.is_recording()):
            self._evaluate(attributes, span, context, ended_ns)
        if model_readings or escalated:
            self._beneath(event, model_readings, span, context, ended_ns, escalated)
        span.end(ended_ns)
        if within is not None and self._copy and around.is_recording():
            around.set_attributes(parent_attributes(attributes))

    def _approval(self, event: DecisionEvent) -> None:
        """Emit the span of the waiting time, below the step that paused, with a link to the span of the decision."""
        paused = self._traces.paused(event.session_id)
        if paused is None or event.alarm_rearmed:
            return
        paused_span, since_ns = paused
        current, around = surroundings()
        decision = around.get_span_context()
        self._tracer.start_span(
            APPROVAL,
            context=trace.set_span_in_context(NonRecordingSpan(paused_span), current),
            start_time=since_ns,
            attributes=approval_attributes(event),
            links=(Link(decision),) if decision.is_valid else (),
        ).end(max(since_ns, int(event.time_s * 1e9)))

    def _evaluate(self, estimate: Attributes, span: Span, context: Context, ended_ns: int) -> None:
        """Add an evaluation event for each score among the attributes of the estimate."""
        for name in filter(estimate.__contains__, SCORES):
            scores: Attributes = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": estimate[name]}
            if name == FUSED:
                scores["gen_ai.evaluation.score.label"] = estimate["level"]
            if self._log is None:
                span.add_event(EVALUATION, scores, timestamp=ended_ns)
            else:  # in the span's context, so that it carries the span's ids
                from opentelemetry._logs import LogRecord

                there = trace.set_span_in_context(span, context)
                self._log.emit(LogRecord(timestamp=ended_ns, context=there, event_name=EVALUATION, attributes=scores))

    def _beneath(
        self,
        event: StepEvent,
        model_readings: Sequence[Reading],
        estimate: Span,
        context: Context,
        ended_ns: int,
        escalated: bool,
    ) -> None:
        """Emit the spans under the estimate: sampling where it ran, escalation where the step escalates."""
        below = trace.set_span_in_context(estimate, context)
        for semantic in [reading for reading in model_readings if reading.source == "semantic_entropy"][-1:]:
            self._tracer.start_span(
                SEMANTIC, context=below, start_time=semantic.started_ns, attributes=semantic_attributes(event, semantic)
            ).end(_end_ns(semantic, ended_ns))
        if escalated:
            self._tracer.start_span(
                ESCALATE,
                context=below,
                start_time=_decision_start_ns(event, model_readings, ended_ns),
                attributes=escalate_attributes(event),
            ).end(ended_ns)


def _end_ns(reading: Reading, latest_ns: int) -> int:
    """The end of a reading: not before its start, and not after the step."""
    return max(reading.started_ns, min(latest_ns, reading.started_ns + int(reading.duration_s * 1e9)))


def _decision_start_ns(event: StepEvent, model_readings: Sequence[Reading], ended_ns: int) -> int:
    """The start of the decision: the end of the last reading, or the start of a step without model calls."""
    ends = [_end_ns(reading, ended_ns) for reading in model_readings]
    return max(event.started_ns, min(ended_ns, max(ends, default=event.started_ns)))
