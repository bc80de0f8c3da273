"""Sends stored recordings: ids computed from them, so that sending again makes no copy, and batches waited for."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator

from grampus_uq.errors import ExportError

_MOST_SPANS = 512
_MOST_CHARACTERS = 1_000_000  # receivers refuse messages of 4 MiB and more; a character has up to four bytes


class Batches(SpanProcessor):
    """A span processor for sending what is stored: unlike the SDK's it has no queue that could overflow.

    Raises ExportError, on the thread that ends a span, when the exporter gives up on a batch; `sent` then says how many
    spans were taken before.
    """

    def __init__(self, exporter: SpanExporter, *, on_sent: Callable[[int], None] | None = None) -> None:
        self.sent = 0
        self._exporter = exporter
        self._on_sent = on_sent
        self._waiting: list[ReadableSpan] = []
        self._characters = 0

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span, and send the batch that it fills."""
        self._waiting.append(span)
        self._characters += _characters(span)
        if len(self._waiting) >= _MOST_SPANS or self._characters >= _MOST_CHARACTERS:
            self.send()

    def send(self) -> None:
        """Send the pending spans. Blocks until they are taken or refused."""
        if not self._waiting:
            return
        batch, self._waiting, self._characters = self._waiting, [], 0
        with _LastWarning() as warning:
            try:
                taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
            except Exception as error:
                raise ExportError.of(f"{type(error).__name__}: {error}", self.sent) from error
        if not taken:
            raise ExportError.of(warning.text or "the exporter gave no reason", self.sent)
        self.sent += len(batch)
        if self._on_sent is not None:
            self._on_sent(len(batch))


def _characters(span: ReadableSpan) -> int:
    found = len(span.name)
    for attributes in (span.attributes, *(event.attributes for event in span.events)):
        for key, value in (attributes or {}).items():
            found += len(key) + (len(value) if isinstance(value, str) else 16)
    return found


class _LastWarning(logging.Handler):
    """Keeps the latest thing that OpenTelemetry's exporters complained of: they return no reason, they only log one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        self._logger = logging.getLogger("opentelemetry.exporter")

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()

    def __enter__(self) -> _LastWarning:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)


class RecordedIds(IdGenerator):
    """Ids of the spans of one run after another: `begin_run`, then `begin_event` before each event of that run.

    The trace id is a hash of the agent, the session and the nanosecond at which the run began; a span id is a hash of
    the trace id, the number of the event within its run, and which of the event's spans it is. Neither the file's name
    nor its place enters: a recording that was moved, or that has grown, keeps the ids of what was sent before.
    """

    def __init__(self) -> None:
        self._trace = bytes(16)
        self._event = ""
        self._nth = 0

    def begin_run(self, agent_id: str, session_id: str, began_ns: int) -> None:
        """Turn to a run: its trace id from now on, and the id of its own span next."""
        name = "\0".join((str(len(agent_id)), agent_id, session_id, str(began_ns)))
        self._trace = _digest("trace", name.encode("utf-8", "surrogatepass"))[:16]
        self.begin_event("run")

    def begin_event(self, event: str) -> None:
        """Turn to an event of the run, named so that no other of the same run has its name."""
        self._event, self._nth = event, 0

    def generate_trace_id(self) -> int:
        """The id of the run."""
        return int.from_bytes(self._trace, "big") or 1  # zero is not an id

    def generate_span_id(self) -> int:
        """The id of the event's next span."""
        self._nth += 1
        found = _digest("span", self._trace + f"{self._event}\0{self._nth}".encode())[:8]
        return int.from_bytes(found, "big") or 1


def _digest(what: str, data: bytes) -> bytes:
    return hashlib.sha256(f"grampus_uq {what} 1\0".encode() + data).digest()
