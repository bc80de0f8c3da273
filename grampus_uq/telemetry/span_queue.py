"""Sends ended spans in batches from a bounded queue; what it cannot keep is counted, and an alarm is kept longest."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry import context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from grampus_uq.telemetry.conventions import ESCALATED
from grampus_uq.telemetry.outbox import Outbox

__all__ = ["QueuedSpans"]

# What the SDK's own processors set while they export, so that an instrumented HTTP client makes no spans of its own.
_SUPPRESSED: Final = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")


class QueuedSpans(SpanProcessor):
    """An OpenTelemetry span processor before one exporter, in place of the SDK's `BatchSpanProcessor`.

    It differs in three things. Drops are counted (`dropped`), those of a failed export included. When the queue is
    full, a span of an escalation or an alarm goes last. `force_flush` and `shutdown` keep their deadlines, whatever
    the exporter does.

    `batch` is small on purpose: encoding a batch holds the interpreter, and with it the agent's event loop.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        capacity: int = 2048,
        batch: int = 128,
        delay_s: float = 1.0,
        shutdown_s: float = 5.0,
    ) -> None:
        self._exporter, self._shutdown_s = exporter, shutdown_s
        self._outbox: Outbox[ReadableSpan] = Outbox(
            self._export, name="spans", capacity=capacity, batch=min(batch, capacity), delay_s=delay_s
        )
        self._closing = threading.Lock()
        self._closed = False

    @property
    def dropped(self) -> int:
        """How many spans were not exported: the queue was full or closed, or the exporter failed."""
        return self._outbox.dropped

    @property
    def waiting(self) -> int:
        """How many spans wait."""
        return self._outbox.waiting

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; takes microseconds."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._outbox.put(span, urgent=bool(span.attributes and span.attributes.get(ESCALATED)))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what is queued; False when the deadline passed first. Blocks."""
        return self._outbox.flush(timeout_millis / 1000.0)

    def shutdown(self) -> None:
        """Export what is queued, for at most `shutdown_s` seconds, and stop. Blocks."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._outbox.close(self._shutdown_s)
            self._exporter.shutdown()  # wakes an exporter that waits between two attempts

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        token = context.attach(context.set_value(_SUPPRESSED, True))
        try:
            if self._exporter.export(spans) is SpanExportResult.FAILURE:
                raise ConnectionError("the exporter gave up")
        finally:
            context.detach(token)
