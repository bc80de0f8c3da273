"""Against rotel, a collector in Rust that shares no code with OpenTelemetry's Python: it decodes what was sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq import GrampusTracer, UncertaintyMonitor
from grampus_uq.telemetry import GrampusMeters, MetricsProcessor
from grampus_uq.telemetry.export import send_recordings
from grampus_uq.telemetry.otlp_exporter import span_exporter
from tests.telemetry.backends.recorded import SECRET, watch_first_half, watch_second_half
from tests.telemetry.backends.servers import Rotel, rotel, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotel]:
    with rotel(tmp_path_factory.mktemp("rotel")) as running:
        yield running


_FIELD = re.compile(r"^ *(Trace ID|Parent ID|ID|Name|Start time|End time) *: ?(.*)$")
_VALUE = re.compile(r"^ *-> (\S+): (Str|Int|Double|Bool)\((.*)\)$")


def printed(log: str, service: str) -> dict[str, dict[str, Any]]:
    """The spans of a service, by span id, as rotel printed them: fields, attributes, and the names of events."""
    found: dict[str, dict[str, Any]] = {}
    ours, span = False, dict[str, Any]()
    for line in log.splitlines():
        field, value = _FIELD.match(line), _VALUE.match(line)
        if line.startswith("ResourceSpans"):
            ours, span = False, {}
        elif line.startswith("Span #"):
            span = {"attributes": {}, "ours": ours}
        elif value is not None and value[1] == "service.name":
            ours = value[3] == service
        elif value is not None and span and "events" not in span:
            span["attributes"][value[1]] = _read(value[2], value[3])
        elif line.strip().startswith("Events:"):
            span["events"] = []
        elif field is not None and span:
            if "events" in span:
                if field[1] == "Name":
                    span["events"].append(field[2])
                continue
            span[field[1]] = field[2]
            if field[1] == "ID" and ours:
                found[field[2]] = span
    return found


def _read(kind: str, text: str) -> Any:
    if kind == "Bool":
        return text == "true"
    return int(text) if kind == "Int" else float(text) if kind == "Double" else text


def hold_against(sent: tuple[ReadableSpan, ...], came: dict[str, dict[str, Any]]) -> None:
    assert set(came) == {f"{span.context.span_id:016x}" for span in sent if span.context is not None}
    for span in sent:
        assert span.context is not None
        shown = came[f"{span.context.span_id:016x}"]
        assert shown["Name"] == span.name
        assert shown["Trace ID"] == f"{span.context.trace_id:032x}"
        assert shown["Parent ID"] == ("" if span.parent is None else f"{span.parent.span_id:016x}")
        assert (int(shown["Start time"]), int(shown["End time"])) == (span.start_time, span.end_time)
        assert shown["attributes"] == dict(span.attributes or {})


async def whole_run(folder: Path, tracer: Any) -> None:
    snapshot = await watch_first_half(folder, tracer)
    await watch_second_half(folder, tracer, snapshot)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_spans_are_decoded_as_they_were_sent_to_the_nanosecond(backend: Rotel, tmp_path: Path, protocol: str) -> None:
    kept = InMemorySpanExporter()
    service = f"live-{protocol}"
    with GrampusTracer(
        service_name=service,
        otlp_endpoint=backend.endpoint(protocol),
        protocol="grpc" if protocol == "grpc" else "http/protobuf",
        span_processor=SimpleSpanProcessor(kept),
    ) as tracer:
        anyio.run(whole_run, tmp_path, tracer)
    sent = kept.get_finished_spans()
    assert len(sent) > 5
    wait_until(lambda: len(printed(backend.log.read_text(), service)) >= len(sent), "the spans")
    text = backend.log.read_text()
    hold_against(sent, printed(text, service))
    assert "gen_ai.evaluation.result" in text
    assert SECRET not in text


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_an_exported_recording_is_decoded_as_it_was_sent(backend: Rotel, tmp_path: Path, protocol: str) -> None:
    anyio.run(whole_run, tmp_path, None)
    service = f"export-{protocol}"
    exporter = span_exporter(backend.endpoint(protocol), protocol=protocol)
    report = send_recordings(tmp_path, exporter, service_name=service)
    exporter.shutdown()
    kept = InMemorySpanExporter()
    send_recordings(tmp_path, kept, service_name=service)  # the same ids: what is kept here is what was sent there
    wait_until(lambda: len(printed(backend.log.read_text(), service)) >= report.spans, "the spans")
    hold_against(kept.get_finished_spans(), printed(backend.log.read_text(), service))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_metrics_are_decoded_by_their_names(backend: Rotel, protocol: str) -> None:
    service = f"metrics-{protocol}"
    with GrampusMeters(
        service_name=service,
        otlp_endpoint=backend.endpoint(protocol),
        protocol="grpc" if protocol == "grpc" else "http/protobuf",
    ) as meters:
        monitor = UncertaintyMonitor(processors=[MetricsProcessor(meters.provider)])
        anyio.run(monitor.session("s1").observe_llm_response, "Confidence: 40%", "l")
    wait_until(lambda: service in backend.log.read_text(), "the metrics")

    def told() -> str:
        return backend.log.read_text().partition(service)[2]

    for name in ("uncertainty.actions", "uncertainty.confidence.propagated", "uncertainty.sessions"):
        wait_until(lambda wanted=name: wanted in told(), name)  # type: ignore[misc]
