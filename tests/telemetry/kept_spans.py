"""A monitor whose spans are kept in memory, with any options of the emitter, sampler and monitor."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq import UncertaintyMonitor
from grampus_uq.telemetry.spans import SpanEmitter


class KeptSpans:
    """`monitor` emits into `exporter`; the `application`'s tracer is of the same provider."""

    def __init__(self, *, sampler=None, monitor=None, exporter=None, **options):
        self.exporter = exporter or InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.application = self.provider.get_tracer("application")
        self.emitter = SpanEmitter(self.provider.get_tracer("grampus_uq"), **options)
        self.monitor = UncertaintyMonitor(tracer=self.emitter, **(monitor or {}))

    def spans(self, name=None):
        found = self.exporter.get_finished_spans()
        return [span for span in found if name in {None, span.name, span.name.removeprefix("uncertainty.")}]

    def only(self, name):
        (span,) = self.spans(name)
        return span
