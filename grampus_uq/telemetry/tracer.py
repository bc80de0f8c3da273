"""A tracer of our own that sends spans by OTLP and never touches the application's global tracer provider."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from grampus_uq.telemetry.otlp_exporter import span_exporter
from grampus_uq.telemetry.sampling import keep_share
from grampus_uq.telemetry.span_queue import QueuedSpans

__all__ = ["GrampusTracer"]


class GrampusTracer:
    """Spans through a private tracer provider.

    `otlp_endpoint` such as "http://localhost:4317" (gRPC) or "http://localhost:4318/v1/traces" (HTTP, by `protocol` or
    by its path) sends them there; `exporter` takes any OpenTelemetry exporter instead; with neither, spans are made but
    go nowhere. Exporting happens on a thread of its own, from a bounded queue: a dead endpoint costs the agent nothing,
    what cannot be kept is counted (`dropped`). `queue_size` spans wait at most. `sample` keeps that share of the traces
    and every escalation (default: all).
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
        self.provider = TracerProvider(resource=resource, sampler=None if sample is None else keep_share(sample))
        self._queue: QueuedSpans | None = None
        if otlp_endpoint is not None:
            exporter = span_exporter(otlp_endpoint, protocol, headers, owner=type(self).__name__)
        if exporter is not None:
            self._queue = QueuedSpans(exporter, capacity=queue_size)
            self.provider.add_span_processor(self._queue)
        if span_processor is not None:
            self.provider.add_span_processor(span_processor)
        self._tracer = self.provider.get_tracer("grampus_uq")

    @property
    def dropped(self) -> int:
        """How many spans were not exported: the queue was full or closed, or the endpoint refused them."""
        return 0 if self._queue is None else self._queue.dropped

    def force_flush(self, timeout_s: float = 10.0) -> bool:
        """Send what is queued; False when the deadline passed first. Blocks: call it off the event loop."""
        return self.provider.force_flush(int(timeout_s * 1000))

    def shutdown(self) -> None:
        """Send what is queued, within five seconds, and stop. Blocks: call it off the event loop."""
        self.provider.shutdown()

    def __enter__(self) -> GrampusTracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
