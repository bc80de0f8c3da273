"""Trace and span ids computed from what was recorded, so that sending a recording again makes no second copy of it."""

from __future__ import annotations

import hashlib

from opentelemetry.sdk.trace.id_generator import IdGenerator

__all__ = ["RecordedIds"]


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
        return int.from_bytes(self._trace, "big") or 1  # zero is no id

    def generate_span_id(self) -> int:
        """The id of the event's next span."""
        self._nth += 1
        found = _digest("span", self._trace + f"{self._event}\0{self._nth}".encode())[:8]
        return int.from_bytes(found, "big") or 1


def _digest(what: str, data: bytes) -> bytes:
    return hashlib.sha256(f"grampus_uq {what} 1\0".encode() + data).digest()
