"""This package's own spans, sent by the real exporter's encoding: what a monitor read comes back as it was."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq.errors import DataError
from grampus_uq.importers import events, read_otlp
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.records.events import StepEvent

SAID = ['Paris. {"confidence": 0.9}', "no number here", 'Lyon. {"confidence": 0.2}']


class _Kept:
    def __init__(self) -> None:
        self.steps: list[StepEvent] = []

    def on_event(self, event: Any) -> None:
        if isinstance(event, StepEvent):
            self.steps.append(event)


@pytest.fixture(scope="module")
def recorded() -> tuple[bytes, list[StepEvent]]:
    """One session of three steps and a tool call, as a request in protobuf, and what the monitor committed."""
    exporter, kept = InMemorySpanExporter(), _Kept()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def run() -> None:
        monitor = UncertaintyMonitor(tracer=provider.get_tracer("x"), processors=[kept])
        session = monitor.session("run-7", "desk")
        for number, text in enumerate(SAID):
            await session.observe_llm_response(text, f"s{number}")
        await session.observe_tool_call("search", "s9")

    anyio.run(run)
    return encode_spans(exporter.get_finished_spans()).SerializeToString(), kept.steps


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
def test_readings_come_back_with_their_reasons_and_replay_to_the_same_numbers(
    tmp_path: Path, recorded: tuple[bytes, list[StepEvent]], form: str
) -> None:
    data, steps = recorded
    path = tmp_path / "spans"
    path.write_bytes({"protobuf": data, "framed": framed(data), "json": as_json(data)}[form])
    (run,) = read_otlp(path)
    assert (run.run_id, run.agent_id) == ("run-7", "desk")
    again = [event for event in events(run) if isinstance(event, StepEvent)]
    judged = [step for step in steps if step.step.kind != "tool_call"]
    assert [
        [(reading.source, reading.value, reading.reason) for reading in step.readings if reading.source == "verbalized"]
        for step in again
    ] == [[("verbalized", 0.9, None)], [("verbalized", None, "not_stated")], [("verbalized", 0.2, None)]]
    assert [step.assessment.fused_confidence for step in again] == [step.assessment.fused_confidence for step in judged]


def test_a_truncated_request_is_an_error_with_its_offset_at_whatever_byte(
    tmp_path: Path, recorded: tuple[bytes, list[StepEvent]]
) -> None:
    data, _ = recorded
    path = tmp_path / "spans"
    for cut in range(3, len(data) - 1, 37):
        path.write_bytes(data[:cut])
        with pytest.raises(DataError, match="at byte") as caught:
            list(read_otlp(path))
        assert caught.value.path == str(path)


def test_a_damaged_span_costs_itself_only(tmp_path: Path, recorded: tuple[bytes, list[StepEvent]]) -> None:
    data, _ = recorded
    path = tmp_path / "spans"
    at = data.index(b"verbalized_confidence")
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
