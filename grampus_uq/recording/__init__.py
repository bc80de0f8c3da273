"""A session as JSON lines: written while it runs, read back exactly, whatever happened to the writer."""

from __future__ import annotations

from grampus_uq.recording.codec import MAX_LINE_BYTES, VERSION, Content, decode, encode
from grampus_uq.recording.kept_content import redact
from grampus_uq.recording.labels import Label, label, label_all, read_labels
from grampus_uq.recording.packing import PackedFile, pack
from grampus_uq.recording.parts import RecordingPart, recording_parts, runs_of_part
from grampus_uq.recording.reader import PartialLine, read
from grampus_uq.recording.run_names import file_name
from grampus_uq.recording.runs import Run, RunSummary, find_run, recording_files, runs, summarise
from grampus_uq.recording.table import export, step_rows
from grampus_uq.recording.validation import FileReport, Finding, validate
from grampus_uq.recording.writer import RecordingProcessor, SyncPolicy

__all__ = [
    "MAX_LINE_BYTES",
    "VERSION",
    "Content",
    "FileReport",
    "Finding",
    "Label",
    "PackedFile",
    "PartialLine",
    "RecordingPart",
    "RecordingProcessor",
    "Run",
    "RunSummary",
    "SyncPolicy",
    "decode",
    "encode",
    "export",
    "file_name",
    "find_run",
    "label",
    "label_all",
    "pack",
    "read",
    "read_labels",
    "recording_files",
    "recording_parts",
    "redact",
    "runs",
    "runs_of_part",
    "step_rows",
    "summarise",
    "validate",
]
