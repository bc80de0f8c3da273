"""A span around each judged call of a tool, by OpenTelemetry's conventions for MCP, below the client's own span.

The client's place comes from `_meta.traceparent`, as MCP has it. The message itself is passed on as it came, so that a
server's span is below the client's as well. The monitor's spans are below these. No argument and no result is in them.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode

from grampus_uq.integrations.mcp.json_rpc import CALL, PROTOCOL_VERSION, Message, meta_in
from grampus_uq.telemetry.metric_labels import OTHER
from grampus_uq.telemetry.span_content import plain_name
from grampus_uq.telemetry.spans import resolve_tracer
from grampus_uq.telemetry.trace_context import context_of

EndOfCall = Literal["cancelled", "no_answer"]
"""The `error.type` of a call that its client gave up, and of one to which no answer comes: its server died, its stream
broke off, it could not be sent, or the proxy was ended."""
_MOST_RUNNING: Final = 1_000
_W3C: Final = ("traceparent", "tracestate")
_LONGEST: Final = 512  # what the standard asks to be kept of a tracestate
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class CallSpans:
    """The spans of one session's calls. `transport`: "pipe" or "tcp"."""

    def __init__(self, tracer: Any, session_id: str, transport: str) -> None:
        self._tracer, self._session_id, self._transport = resolve_tracer(tracer), session_id, transport
        self._running: OrderedDict[str, Span] = OrderedDict()

    @contextmanager
    def around(self, message: Message) -> Iterator[Span]:
        """A span for a call, current within; an exception ends it, else one of the methods below, once."""
        tool, meta = plain_name(str(message.params.get("name")), None), meta_in(message.params)
        attributes = {
            "mcp.method.name": CALL,
            "mcp.session.id": self._session_id,
            "jsonrpc.request.id": plain_name(str(message.id), None),
            "network.transport": self._transport,
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.conversation.id": self._session_id,
        }
        version = meta.get(PROTOCOL_VERSION)
        if isinstance(version, str) and _DATE.fullmatch(version):
            attributes["mcp.protocol.version"] = version
        place = {key: text for key in _W3C if isinstance(text := meta.get(key), str) and len(text) <= _LONGEST}
        span = self._tracer.start_span(
            f"{CALL} {tool}", context=context_of({"trace": place}), kind=SpanKind.SERVER, attributes=attributes
        )
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException:
            _end(span, "cancelled")  # with its connection
            raise

    def answered(self, span: Span, values: Mapping[str, Any]) -> None:
        """The call got this answer, a JSON-RPC response."""
        error, result = values.get("error"), values.get("result")
        if error is not None:
            code = error.get("code") if isinstance(error, Mapping) else None
            _end(span, str(code) if type(code) is int and abs(code) < 10**9 else OTHER)
        elif isinstance(result, Mapping) and result.get("isError") is True:
            _end(span, "tool_error")
        else:
            span.end()

    def unanswered(self, span: Span) -> None:
        """The client gave the call up before it was passed on."""
        _end(span, "cancelled")

    def passed(self, span: Span, call_id: str) -> None:
        """The call is with its server."""
        self._running[call_id] = span
        if len(self._running) > _MOST_RUNNING:
            _end(self._running.popitem(last=False)[1], "no_answer")

    def returned(self, call_id: str, values: Mapping[str, Any]) -> None:
        """The server answered a call."""
        span = self._running.pop(call_id, None)
        if span is not None:
            self.answered(span, values)

    def ended(self, call_id: str, why: EndOfCall) -> None:
        """No answer to a call that its server has will be passed on."""
        span = self._running.pop(call_id, None)
        if span is not None:
            _end(span, why)

    def close(self) -> None:
        """The connection is gone: so are the answers to the calls that run."""
        for call_id in tuple(self._running):
            self.ended(call_id, "no_answer")


def _end(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)
    span.end()
