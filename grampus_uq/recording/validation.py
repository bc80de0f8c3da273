"""Checks recordings line by line, goes on behind what is wrong, and names each place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from grampus_uq.errors import DataError
from grampus_uq.recording.codec import encode
from grampus_uq.recording.reader import PartialLine, scan
from grampus_uq.recording.runs import Paths, recording_files
from grampus_uq.records.events import Event, SessionStarted, StepEvent
from grampus_uq.records.strict_json import parse_json

_MOST_FINDINGS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong (`error`) or worth knowing (`warning`), and where; `line` None means the whole file."""

    severity: Literal["error", "warning"]
    path: str
    line: int | None
    field: str
    reason: str

    def __str__(self) -> str:
        return str(DataError(self.reason, path=self.path, line=self.line, field=self.field))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """The content of one file, and its faults (the first hundred findings; `more` counts the rest)."""

    path: str
    lines: int
    sessions: int
    steps: int
    findings: tuple[Finding, ...]
    more: int

    @property
    def ok(self) -> bool:
        """True when nothing is an error."""
        return not self.more and all(finding.severity != "error" for finding in self.findings)


def validate(paths: Paths) -> Iterator[FileReport]:
    """Check every recording under files and folders; yield a report a file.

    Errors: a line that does not decode (damaged, newer, too long), a field that the format does not have, two sessions
    interleaved, a step out of order or twice, an assessment of another step. Warnings: an unfinished line, a recording
    that lacks its beginning, a session that was taken up from an older state, a session id that was used again or that
    an earlier file holds too. Raises DataError for a path that does not exist.
    """
    known: set[int] = set()
    for path in recording_files(paths):
        yield _Check(path, known).run()


class _Check:
    """The checks of one file, line after line."""

    def __init__(self, path: Path, known: set[int]) -> None:
        self._path = path
        self._known = known  # hashes of the session ids of earlier files: ids would need ten times the memory
        self._findings: list[Finding] = []
        self._more = 0
        self._steps = 0
        self._sessions: set[str] = set()
        self._current: str | None = None
        self._index: int | None = None
        self._resumed = False

    def run(self) -> FileReport:
        lines = 0
        try:
            for number, found, line in scan(self._path):
                lines = number
                if isinstance(found, DataError):
                    self._find("error", number, found.field, found.reason)
                elif isinstance(found, PartialLine):
                    self._find("warning", number, "", f"an unfinished line of {len(found.data)} bytes is left out.")
                else:
                    self._event(number, found, line)
        except DataError as error:  # the file cannot be opened; the others may be
            self._find("error", error.line, error.field, error.reason)
        self._known.update(map(hash, self._sessions))
        return FileReport(
            path=os.fspath(self._path),
            lines=lines,
            sessions=len(self._sessions),
            steps=self._steps,
            findings=tuple(self._findings),
            more=self._more,
        )

    def _find(self, severity: Literal["error", "warning"], line: int | None, field: str, reason: str) -> None:
        if len(self._findings) == _MOST_FINDINGS:
            self._more += 1
            return
        path = os.fspath(self._path)
        self._findings.append(Finding(severity=severity, path=path, line=line, field=field, reason=reason))

    def _event(self, number: int, event: Event, line: bytes) -> None:
        if line:
            try:
                fields = parse_json(line, unique_names=True)
            except ValueError as error:
                self._find("error", number, "", str(error))
            else:
                for field in _unknown(fields, json.loads(encode(event))):
                    self._find("error", number, field, "is not a field of the format.")
        if event.session_id != self._current:
            self._session(number, event)
        elif isinstance(event, SessionStarted):
            if event.resumed:
                self._resumed = True
            else:
                reason = f"the session id {event.session_id!r:.100} is used again: a new run begins here."
                self._find("warning", number, "session_id", reason)
                self._index = None
        if isinstance(event, StepEvent):
            self._step(number, event)

    def _session(self, number: int, event: Event) -> None:
        session_id = event.session_id
        if session_id in self._sessions:
            reason = f"{session_id!r:.100} goes on here after another session."
            self._find("error", number, "session_id", reason)
        else:
            if hash(session_id) in self._known:
                self._find("warning", number, "session_id", f"{session_id!r:.100} is in an earlier file too.")
            if not isinstance(event, SessionStarted):
                self._find("warning", number, "type", f"the recording of {session_id!r:.100} lacks its beginning.")
            self._index = None
        self._sessions.add(session_id)
        self._current = session_id

    def _step(self, number: int, event: StepEvent) -> None:
        self._steps += 1
        index = event.assessment.index
        expected = 0 if self._index is None else self._index + 1
        if index != expected:
            # A recording may begin in the middle, and a session may be taken up from an older state than its last.
            explained = (self._index is None and index > 0) or (self._resumed and index < expected)
            reason = f"{index} follows {'no step' if self._index is None else self._index}; expected {expected}."
            self._find("warning" if explained else "error", number, "assessment.index", reason)
        self._resumed = False
        if event.assessment.step_id != event.step.step_id:
            reason = f"{event.assessment.step_id!r:.50} is not the step {event.step.step_id!r:.50}."
            self._find("error", number, "assessment.step_id", reason)
        self._index = index


def _unknown(line: Any, event: Any, place: str = "") -> Iterator[str]:
    """Names in the line that the event does not have, at any depth; metadata and arguments are the user's own."""
    if isinstance(line, dict) and isinstance(event, dict):
        for name, value in line.items():
            where = f"{place}.{name}" if place else name
            if name in event:
                yield from _unknown(value, event[name], where)
            else:
                yield where
    elif isinstance(line, list) and isinstance(event, list):
        for number, (one, other) in enumerate(zip(line, event, strict=False)):
            yield from _unknown(one, other, f"{place}.{number}")
