"""A tracer of our own that sends spans by OTLP and never touches the application's global tracer provider."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, get_current_span
from opentelemetry.trace.span import TraceState
from opentelemetry.util.types import Attributes

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.configuration import checked
from grampus_uq.telemetry.conventions import ESCALATED
from grampus_uq.telemetry.otlp_exporter import span_exporter
from grampus_uq.telemetry.outbox import Outbox


class AlarmSampler(Sampler):
    """Samples every span that says `uncertainty.escalated`, and leaves the others to `base`.

    An escalation inside a trace that was not sampled is kept with its estimate span; their parent is then missing in
    the backend, and the trace id still leads to the logs. For an application's own provider:
    `TracerProvider(sampler=AlarmSampler(ParentBased(TraceIdRatioBased(0.1))))`.
    """

    def __init__(self, base: Sampler) -> None:
        self._base = base

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Ask `base`, unless the span escalates."""
        if attributes is not None and attributes.get(ESCALATED) is True:
            parent = get_current_span(parent_context).get_span_context()
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, parent.trace_state)
        return self._base.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """The sampler's name in the SDK."""
        return f"AlarmSampler({self._base.get_description()})"


_BATCH = 128  # encoding a batch holds the interpreter, and with it the agent's event loop


@checked
class GrampusTracer:
    """Spans through a private tracer provider.

    `otlp_endpoint` such as "http://localhost:4317" (gRPC) or "http://localhost:4318/v1/traces" (HTTP, by `protocol` or
    by its path) sends them there; `exporter` takes any OpenTelemetry exporter instead; with neither, spans are made but
    go nowhere. Exporting happens on a thread of its own, from a bounded queue: a dead endpoint costs the agent nothing,
    what cannot be kept is counted (`dropped`). `queue_size` spans wait at most. `sample` keeps that share of the
    traces, whole, and every escalation (default: all); a trace begun elsewhere is kept as it was there.
    """

    def __init__(
        self,
        *,
        service_name: str,
        otlp_endpoint: str | None = None,
        protocol: str | None = None,
        headers: Mapping[str, str] | None = None,
        exporter: SpanExporter | None = None,
        span_processor: SpanProcessor | None = None,
        resource_attributes: Mapping[str, Any] | None = None,
        sample: float | None = None,
        queue_size: int = 2048,
    ) -> None:
        resource = Resource.create({"service.name": service_name, **dict(resource_attributes or {})})
        if sample is not None and not 0.0 <= sample <= 1.0:
            raise ConfigurationError.of("sample", "GrampusTracer", "a share of the traces in [0, 1]", sample)
        sampler = None if sample is None else AlarmSampler(ParentBased(TraceIdRatioBased(sample)))
        self.provider = TracerProvider(resource=resource, sampler=sampler)
        self._queue: _QueuedSpans | None = None
        if otlp_endpoint is not None:
            exporter = span_exporter(otlp_endpoint, protocol, headers, owner=type(self).__name__)
        if exporter is not None:
            self._queue = _QueuedSpans(exporter, capacity=queue_size)
            self.provider.add_span_processor(self._queue)
        if span_processor is not None:
            self.provider.add_span_processor(span_processor)
        self._tracer = self.provider.get_tracer("grampus_uq")

    @property
    def dropped(self) -> int:
        """The number of spans that were not exported: the queue was full or closed, or the endpoint refused them."""
        return 0 if self._queue is None else self._queue.dropped

    def force_flush(self, timeout_s: float = 10.0) -> bool:
        """Send the queued spans; False if the deadline passed first. Blocks: call it off the event loop."""
        return self.provider.force_flush(int(timeout_s * 1000))

    def shutdown(self) -> None:
        """Send the queued spans, within five seconds, and stop. Blocks: call it off the event loop."""
        self.provider.shutdown()

    def __enter__(self) -> GrampusTracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _QueuedSpans(SpanProcessor):
    """An OpenTelemetry span processor before one exporter, in place of the SDK's `BatchSpanProcessor`.

    It differs in three things. Drops are counted (`dropped`), those of a failed export included. When the queue is
    full, a span of an escalation or an alarm goes last. `force_flush` and `shutdown` keep their deadlines, whatever
    the exporter does.
    """

    def __init__(self, exporter: SpanExporter, *, capacity: int) -> None:
        self._exporter = exporter
        self._outbox: Outbox[ReadableSpan] = Outbox(
            self._export, name="spans", capacity=capacity, batch=min(_BATCH, capacity)
        )
        self._closing = threading.Lock()
        self._closed = False

    @property
    def dropped(self) -> int:
        """The number of spans that were not exported: the queue was full or closed, or the exporter failed."""
        return self._outbox.dropped

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; takes microseconds."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._outbox.put(span, urgent=bool(span.attributes and span.attributes.get(ESCALATED)))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what is queued; False when the deadline passed first. Blocks."""
        return self._outbox.flush(timeout_millis / 1000.0)

    def shutdown(self) -> None:
        """Export what is queued, for at most five seconds, and stop. Blocks."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._outbox.close()
            self._exporter.shutdown()  # wakes an exporter that waits between two attempts

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        if self._exporter.export(spans) is SpanExportResult.FAILURE:
            raise ConnectionError("the exporter gave up")
