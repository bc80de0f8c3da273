"""Judged calls are spans by the conventions for MCP, below the client's own, and tell neither arguments nor results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grampus_uq.integrations.mcp.call_spans import CallSpans
from tests.proxy.ended_spans import CountingTracer
from tests.telemetry.receivers import otlp_grpc

SERVER = str(Path(__file__).with_name("small_server.py"))
PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7"
META = {
    "traceparent": f"00-{TRACE}-{PARENT}-01",
    "tracestate": ",".join(f"v{n}={'x' * 30}" for n in range(25)),
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
}
SECRET = "a secret that was typed"


def _values(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.double_value for one in span.attributes}


def _calls(folder: Path, endpoint: str) -> None:
    """One that reads, one that waits, one of a tool whose name is a text, one whose client has no trace."""
    config = f'store = "sqlite:///{folder}/calls.db"\nsession = "desk"\notlp_endpoint = "{endpoint}"\nhold_s = 0.0\n'
    (folder / "guard.toml").write_text(config + '[effects]\nread_note = "read"\n')
    options = ["--config", str(folder / "guard.toml"), "--", sys.executable, SERVER, str(folder / "ran")]
    params: list[dict[str, Any]] = [
        {"name": "read_note", "arguments": {"text": SECRET}, "_meta": META},
        {"name": "delete_note", "arguments": {"text": SECRET}, "_meta": META},
        {
            "name": SECRET,
            "arguments": {},
            "_meta": META | {"traceparent": "00-nonsense", "tracestate": f"a={SECRET}" * 99},
        },
        {"name": "read_note", "arguments": {}, "_meta": {"traceparent": ["x"], "tracestate": 5}},
    ]
    command = [sys.executable, "-m", "grampus_uq.cli", "mcp", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, one in enumerate(params):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": one}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == number
    assert process.returncode == 0


@pytest.mark.parametrize(("code", "kind"), [(-32602, "-32602"), (SECRET, "other"), (True, "other"), (9**99, "other")])
def test_the_error_type_of_a_refused_call_is_a_code_and_never_a_servers_text(code: Any, kind: str) -> None:
    spans = CallSpans(tracer := CountingTracer(), "s", "pipe")
    spans.answered(tracer.start_span("x"), {"error": {"code": code, "message": SECRET}})  # type: ignore[arg-type]
    assert tracer.ended() == [kind]


def test_a_call_is_a_span_below_the_clients_with_what_the_monitor_made_of_it_below(tmp_path: Path) -> None:
    with otlp_grpc() as received:
        _calls(tmp_path, received.endpoint)
        found = [span for _, _, span in received.spans()]
        wire = b"".join(request.SerializeToString() for request in received.traces)
    spans = sorted((span for span in found if span.kind == 2), key=lambda span: span.start_time_unix_nano)  # a server's
    names = [span.name for span in spans]
    assert names == ["tools/call read_note", "tools/call delete_note", "tools/call other", "tools/call read_note"]
    assert [(span.trace_id.hex(), span.parent_span_id.hex()) for span in spans[:2]] == [(TRACE, PARENT)] * 2
    assert not any(span.parent_span_id for span in spans[2:])
    assert not any(span.trace_state for span in spans)  # longer than it may be
    reads, waits = _values(spans[0]), _values(spans[1])
    assert reads["gen_ai.tool.name"] == "read_note"
    assert reads["mcp.protocol.version"] == "2026-07-28"
    assert "error.type" not in reads
    assert waits["uncertainty.action"] == "pause_for_human"
    below = [span for span in found if span.parent_span_id == spans[1].span_id]
    assert [span.name for span in below] == ["uncertainty.estimate"]
    assert SECRET.encode() not in wire
    shown = PAGE.read_text(encoding="utf-8")
    own = {key for span in spans for key in _values(span) if not key.startswith("uncertainty.")}
    assert all(f"`{key}`" in shown for key in own)
    (told,) = re.findall(r"`tools/call TOOL`\n?.*?with\n?(.*?)\.\n", shown, re.DOTALL)
    assert own | {"error.type"} == set(re.findall(r"`([a-z_.]+\.[a-z_.]+)`", told))
