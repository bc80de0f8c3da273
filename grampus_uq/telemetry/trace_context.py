"""Where each session's spans belong: under the span that is current, else in the session's own trace, over a pause too.

A session is one trace although its steps are spans of their own: its first step is the root, unless the application
has a span around it. The place travels in `Session.snapshot` as W3C `traceparent`, so that another process goes on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["OverPause", "SessionTraces", "context_of"]

OverPause = Literal["continue", "link"]
_MOST_SESSIONS: Final = 4096
_W3C: Final = TraceContextTextMapPropagator()


@dataclass(slots=True)
class Place:
    """`anchor` is where spans go when no span is current; `earlier` is linked from the next span, once.

    `made` is the context with the anchor that was made of `within`: from step to step it is the same.
    """

    anchor: SpanContext | None = None
    latest: SpanContext | None = None
    earlier: SpanContext | None = None
    within: Context | None = None
    made: Context | None = None


class SessionTraces:
    """Remembers the place of the latest sessions; may be called from any thread.

    Beyond 4096 sessions at once the one that was idle for longest is forgotten: its next step begins another trace.
    """

    def __init__(self, over_pause: OverPause) -> None:
        self._over_pause = over_pause
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, session_id: str, snapshot: Mapping[str, Any] | None) -> None:
        """A session began, or is taken up again from a snapshot: then its trace is continued, or linked to."""
        carrier = None if snapshot is None else snapshot.get("trace")
        earlier = span_context_of(carrier) if isinstance(carrier, Mapping) else None
        anchor = earlier if self._over_pause == "continue" else None
        with self._lock:
            self._places[session_id] = Place(anchor=anchor, earlier=earlier)
            self._places.move_to_end(session_id)
            self._shorten()

    def parent(self, session_id: str, current: Context, around: SpanContext) -> tuple[Context, tuple[Link, ...], Place]:
        """The context that the session's next span starts in, what it links to, and the place to tell when it did."""
        has_parent = around.is_valid
        with self._lock:
            place = self._place(session_id)
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

    def started(self, place: Place, span: SpanContext) -> None:
        """A step's span was started; it becomes the root of the session's trace when there is none yet."""
        place.latest = span if span.is_valid else None
        if place.anchor is None:
            with self._lock:
                place.anchor = place.anchor or place.latest

    def latest(self, session_id: str) -> SpanContext | None:
        """The estimate span of the session's latest step, or None before the first."""
        with self._lock:
            place = self._places.get(session_id)
        return None if place is None else place.latest

    def carrier(self, session_id: str) -> dict[str, str] | None:
        """The session's place as W3C headers, or None while it has none."""
        with self._lock:
            place = self._places.get(session_id)
        if place is None or place.anchor is None:
            return None
        headers: dict[str, str] = {}
        _W3C.inject(headers, trace.set_span_in_context(NonRecordingSpan(place.anchor)))
        return headers

    def _place(self, session_id: str) -> Place:
        place = self._places.get(session_id)
        if place is None:
            place = self._places[session_id] = Place()
            self._shorten()
        else:
            self._places.move_to_end(session_id)
        return place

    def _shorten(self) -> None:
        while len(self._places) > _MOST_SESSIONS:
            self._places.popitem(last=False)


def span_context_of(carrier: Mapping[str, Any]) -> SpanContext | None:
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
    found = span_context_of(carrier) if isinstance(carrier, Mapping) else None
    return Context() if found is None else trace.set_span_in_context(NonRecordingSpan(found), Context())
