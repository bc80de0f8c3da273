"""Spans by the real exporter's encoding: what they say of a run comes back, and a damaged one costs itself only."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq.errors import DataError
from grampus_uq.importers import events, read_otlp
from grampus_uq.records.events import StepEvent

SAID = ["Paris", "no idea", "Lyon"]


@pytest.fixture(scope="module")
def recorded() -> bytes:
    """One conversation of three answers, as a request in protobuf."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("x")
    with tracer.start_as_current_span("invoke_agent desk"):
        for text in SAID:
            said = [{"role": "assistant", "parts": [{"type": "text", "content": text}]}]
            attributes = {
                "gen_ai.operation.name": "chat",
                "gen_ai.conversation.id": "run-7",
                "gen_ai.agent.name": "desk",
                "gen_ai.output.messages": json.dumps(said),
            }
            tracer.start_span("chat m", attributes=attributes).end()
    return encode_spans(exporter.get_finished_spans()).SerializeToString()


def as_json(data: bytes) -> bytes:
    """The same request in OTLP/JSON: ids in hex where protobuf's own JSON has base64."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    value = MessageToDict(ExportTraceServiceRequest.FromString(data))
    for resource in value["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex()
    return json.dumps(value).encode()


def framed(data: bytes) -> bytes:
    return b"".join(len(data).to_bytes(4, "big") + data for _ in range(1))


@pytest.mark.parametrize("form", ["protobuf", "framed", "json"])
def test_a_conversation_comes_back_in_every_form(tmp_path: Path, recorded: bytes, form: str) -> None:
    path = tmp_path / "spans"
    path.write_bytes({"protobuf": recorded, "framed": framed(recorded), "json": as_json(recorded)}[form])
    (run,) = read_otlp(path)
    assert (run.run_id, run.agent_id) == ("run-7", "desk")
    assert [event.step.text for event in events(run) if isinstance(event, StepEvent)] == SAID


def test_a_truncated_request_is_an_error_with_its_offset_at_whatever_byte(tmp_path: Path, recorded: bytes) -> None:
    data = recorded
    path = tmp_path / "spans"
    for cut in range(3, len(data) - 1, 37):
        path.write_bytes(data[:cut])
        with pytest.raises(DataError, match="at byte") as caught:
            list(read_otlp(path))
        assert caught.value.path == str(path)


def test_a_damaged_span_costs_itself_only(tmp_path: Path, recorded: bytes) -> None:
    data = recorded
    path = tmp_path / "spans"
    at = data.index(b"gen_ai.operation.name")
    path.write_bytes(data[: at - 1] + b"\xff" + data[at:])  # the length of a text runs over its span
    refused: list[DataError] = []
    (run,) = read_otlp(path, on_refused=refused.append)
    assert run.n_steps == 2
    assert [error.field for error in refused] == ["spans[0]"]


def test_a_span_that_claims_more_bytes_than_the_message_around_it_is_no_span(tmp_path: Path) -> None:
    path = tmp_path / "spans"
    path.write_bytes(b"\x0a\x06\x12\x04\x12\x7f\x00\x00" + b"\x0a\x00" * 100)  # 127 bytes inside of four
    with pytest.raises(DataError, match=r"at byte 0: is not an OTLP request"):
        list(read_otlp(path))
