"""The place of each session's spans: below the current span, else in the session's own trace, across pauses too.

A session is one trace although its steps are spans of their own: its first step is the root, unless the application
has a span around it. The place travels in `Session.snapshot` as W3C `traceparent`, so that another process goes on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from grampus_uq.records.latest import Latest

OverPause = Literal["continue", "link"]
_MOST_SESSIONS: Final = 4096
_W3C: Final = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _Place:
    """`anchor` is where spans go when no span is current; `earlier` is linked from the next span, once.

    `made` is the context with the anchor that was made of `within`: from step to step it is the same. `paused` is the
    estimate span of the latest step that paused, and when it ended, in nanoseconds since 1970.
    """

    anchor: SpanContext | None = None
    latest: SpanContext | None = None
    earlier: SpanContext | None = None
    within: Context | None = None
    made: Context | None = None
    paused: tuple[SpanContext, int] | None = None


class SessionTraces:
    """Remembers the place of the latest sessions; may be called from any thread.

    Beyond 4096 sessions at once the one that was idle for longest is forgotten: its next step begins another trace.
    """

    def __init__(self, over_pause: OverPause) -> None:
        self._over_pause = over_pause
        self._places: Latest[str, _Place] = Latest(_MOST_SESSIONS)
        self._lock = threading.Lock()

    def begin(self, session_id: str, carrier: Mapping[str, Any] | None) -> None:
        """A session begins, or resumes with the headers of its snapshot: then its trace is continued, or linked to."""
        earlier = None if carrier is None else _span_context_of(carrier)
        anchor = earlier if self._over_pause == "continue" else None
        with self._lock:
            self._places[session_id] = _Place(anchor=anchor, earlier=earlier, paused=_paused(carrier))

    def parent(
        self, session_id: str, current: Context, around: SpanContext | None
    ) -> tuple[Context, tuple[Link, ...], _Place]:
        """The context that the session's next span starts in, what it links to, and the place to tell when it did."""
        has_parent = around is not None and around.is_valid
        with self._lock:
            place = self._places.get(session_id)
            if place is None:
                place = self._places[session_id] = _Place()
            else:
                self._places.move_to_end(session_id)
            if place.within is current and place.made is not None and not has_parent and place.earlier is None:
                return place.made, (), place  # from step to step the same, as long as nothing else began around it
            earlier, place.earlier = place.earlier, None
            if has_parent:
                place.anchor, place.made = around, None
            anchor, made = place.anchor, place.made if place.within is current else None
        links: tuple[Link, ...] = ()
        if earlier is not None and (anchor is None or anchor.trace_id != earlier.trace_id):
            links = (Link(earlier),)
        if has_parent or anchor is None:
            return current, links, place
        if made is None:
            made = trace.set_span_in_context(NonRecordingSpan(anchor), current)
            with self._lock:
                if place.anchor is anchor:
                    place.within, place.made = current, made
        return made, links, place

    def started(self, place: _Place, span: SpanContext) -> None:
        """A step's span was started; it becomes the root of the session's trace when there is none yet."""
        place.latest = span
        if place.anchor is None and span.is_valid:
            with self._lock:
                place.anchor = place.anchor or span

    def latest(self, session_id: str) -> SpanContext | None:
        """The estimate span of the session's latest step, or None before the first."""
        with self._lock:
            place = self._places.get(session_id)
        latest = None if place is None else place.latest
        return latest if latest is not None and latest.is_valid else None

    def carrier(self, session_id: str) -> dict[str, str] | None:
        """The session's place as W3C headers, or None while it has none."""
        with self._lock:
            place = self._places.get(session_id)
        if place is None or place.anchor is None:
            return None
        headers: dict[str, str] = {}
        _W3C.inject(headers, trace.set_span_in_context(NonRecordingSpan(place.anchor)))
        if place.paused is not None:
            paused: dict[str, str] = {}
            _W3C.inject(paused, trace.set_span_in_context(NonRecordingSpan(place.paused[0])))
            headers |= {"paused": paused["traceparent"], "paused_ns": str(place.paused[1])}
        return headers

    def pause(self, place: _Place, span: SpanContext, ended_ns: int) -> None:
        """The step of this estimate span paused the session: the wait for a human begins at its end."""
        if span.is_valid:
            place.paused = span, ended_ns

    def paused(self, session_id: str) -> tuple[SpanContext, int] | None:
        """The estimate span of the session's latest step that paused, and when the waiting began; in any process."""
        with self._lock:
            place = self._places.get(session_id)
        return None if place is None else place.paused


def surroundings() -> tuple[Context, Span]:
    """The context that a span made now belongs in, and the span that it would be beneath.

    OpenInference's instrumentation of LangChain makes none of its spans current, and says which one is meant. Of that
    and the current one, the span that began later is within the other.
    """
    context = get_current()
    current = trace.get_current_span(context) if context else trace.INVALID_SPAN
    instrumentation = sys.modules.get("openinference.instrumentation.langchain")
    meant = None if instrumentation is None else instrumentation.get_current_span()
    if meant is None or (getattr(current, "start_time", None) or 0) > (getattr(meant, "start_time", None) or 0):
        return context, current
    return trace.set_span_in_context(meant, context), meant


def _paused(carrier: Any) -> tuple[SpanContext, int] | None:
    """The paused span and start of the wait of a carried session; None where they are missing or malformed."""
    if not isinstance(carrier, Mapping):
        return None
    span, since = _span_context_of({"traceparent": carrier.get("paused")}), str(carrier.get("paused_ns", ""))
    digits = since.isascii() and since.isdigit() and len(since) < 20
    return (span, int(since)) if span is not None and digits else None


def _span_context_of(carrier: Mapping[str, Any]) -> SpanContext | None:
    """The span context that W3C headers name, or None when they name none that could be: a store may hold anything."""
    headers = {name: value for name, value in carrier.items() if isinstance(name, str) and isinstance(value, str)}
    found = trace.get_current_span(_W3C.extract(headers, Context())).get_span_context()
    return found if found.is_valid else None


def context_of(snapshot: Mapping[str, Any]) -> Context:
    """The OpenTelemetry context in which a snapshot's session ran, for a span of your own around its resumption.

    `tracer.start_as_current_span("invoke_agent desk", context=context_of(snapshot))` puts what follows into the same
    trace. An empty context when the snapshot holds no trace.
    """
    carrier = snapshot.get("trace")
    found = _span_context_of(carrier) if isinstance(carrier, Mapping) else None
    return Context() if found is None else trace.set_span_in_context(NonRecordingSpan(found), Context())
