"""A tracer that counts how often each of its spans was ended, and with which error."""

from __future__ import annotations

from typing import Any

from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

from grampus_uq.integrations.mcp.call_spans import CallSpans


class CountedSpan(NonRecordingSpan):
    def __init__(self) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        self.ends, self.error, self.failed = 0, "", False

    def set_attribute(self, key: str, value: Any) -> None:
        assert not self.ends
        self.error = value if key == "error.type" else self.error

    def set_status(self, status: Any, description: str | None = None) -> None:
        assert not self.ends
        self.failed = True

    def end(self, end_time: int | None = None) -> None:
        self.ends += 1


class CountingTracer:
    def __init__(self) -> None:
        self.spans: list[CountedSpan] = []

    def start_span(self, name: str, **more: Any) -> CountedSpan:
        self.spans.append(CountedSpan())
        return self.spans[-1]

    def ended(self) -> list[str]:
        """The `error.type` of each span, "" without one; every span was ended once."""
        assert [span.ends for span in self.spans] == [1] * len(self.spans)
        assert all(span.failed == bool(span.error) for span in self.spans)
        return [span.error for span in self.spans]


def counted(exchange: Any) -> CountingTracer:
    """The spans of this exchange's calls from now on."""
    tracer = CountingTracer()
    exchange._spans = CallSpans(tracer, "s", "pipe")
    return tracer
