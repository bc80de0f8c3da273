"""A session as JSON lines: written while it runs, read back exactly, whatever happened to the writer."""

from __future__ import annotations

from grampus_uq.recording.codec import VERSION, Content, decode, encode
from grampus_uq.recording.content import redact
from grampus_uq.recording.lines import MAX_LINE_BYTES
from grampus_uq.recording.names import file_name
from grampus_uq.recording.reader import TornLine, read
from grampus_uq.recording.writer import RecordingProcessor, SyncPolicy

__all__ = [
    "MAX_LINE_BYTES",
    "VERSION",
    "Content",
    "RecordingProcessor",
    "SyncPolicy",
    "TornLine",
    "decode",
    "encode",
    "file_name",
    "read",
    "redact",
]
