"""Reads a recording back, event by event, and sets aside what a killed writer left unfinished.

A writer that dies in the middle of a write leaves a piece of a line. The next writer's line then follows it directly,
so a piece is found either at the end of a file or in front of a whole line; both are told apart from a damaged line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grampus_uq.errors import DataError
from grampus_uq.recording.codec import MAX_LINE_BYTES, decode
from grampus_uq.recording.packed import is_parquet, packed_lines
from grampus_uq.recording.run_names import with_later_parts
from grampus_uq.records.events import Event
from grampus_uq.records.strict_json import is_json

_log = logging.getLogger("grampus_uq.recording")
_START: Final = b'{"v":1,"type":"'
_BLOCK: Final = 2**16
_MOST_PIECES: Final = 8  # a line can be behind several pieces; more than this many tries is somebody's attack


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialLine:
    """A piece of a line that a killed writer left: where, and its bytes."""

    path: str
    line: int
    data: bytes


def report(found: PartialLine) -> None:
    """Log a warning that names the place of the piece."""
    _log.warning("%s:%d: an unfinished line of %d bytes was left out.", found.path, found.line, len(found.data))


def read(path: str | os.PathLike[str], *, on_partial_line: Callable[[PartialLine], None] = report) -> Iterator[Event]:
    """Yield the events of one recording, in commit order, holding one line at a time.

    An unfinished line is given to `on_partial_line` (default: a logged warning) and left out; it is never fatal. Raises
    DataError with path, line and field for a damaged line, a newer version, or a line longer than `MAX_LINE_BYTES`.
    """
    for _, event, _ in read_lines(path, on_partial_line=on_partial_line):
        yield event


def read_lines(
    path: str | os.PathLike[str],
    *,
    on_partial_line: Callable[[PartialLine], None] = report,
    groups: Sequence[int] | None = None,
) -> Iterator[tuple[int, Event, bytes]]:
    """Like `read`, with the number of the line (from 1; in a packed file of the row) and the line's bytes.

    `groups` are the row groups of a packed file that are wanted, by default all.
    """
    for number, found, line in scan(path, groups=groups):
        if isinstance(found, DataError):
            raise found
        if isinstance(found, PartialLine):
            on_partial_line(found)
        else:
            yield number, found, line


def scan(
    path: str | os.PathLike[str], *, groups: Sequence[int] | None = None
) -> Iterator[tuple[int, Event | PartialLine | DataError, bytes]]:
    """Like `read_lines`, but what is wrong is yielded in its place, and the lines behind it are read too."""
    name = os.fspath(path)
    for number, line in raw_lines(path, groups=groups):
        if isinstance(line, DataError):
            yield number, line, b""
        elif not line.isspace():
            try:
                event = decode(line, path=name, number=number)
            except DataError as error:
                for found, piece in _salvage(line, name, number, error):
                    yield number, found, piece
            else:
                yield number, event, line


def raw_lines(
    path: str | os.PathLike[str], *, groups: Sequence[int] | None = None
) -> Iterator[tuple[int, bytes | DataError]]:
    """Yield the lines of a recording, packed or not, with their numbers; only the last one may lack its newline.

    In place of a line longer than `MAX_LINE_BYTES` comes a DataError that names path and line; its rest is skipped, a
    block at a time. The later parts of a rotated recording follow the file, and their lines are numbered on.
    """
    path, name = Path(path), os.fspath(path)
    if is_parquet(path):
        for number, line in packed_lines(path, groups):
            yield number, line if len(line) <= MAX_LINE_BYTES else _too_long(name, number)
        return
    number = 0
    for part in with_later_parts(path):
        try:
            stream = part.open("rb")
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}.", path=os.fspath(part)) from error
        with stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) <= MAX_LINE_BYTES:
                    yield number, line
                    continue
                yield number, _too_long(name, number)
                while line and not line.endswith(b"\n"):
                    line = stream.readline(_BLOCK)


def _too_long(path: str, number: int) -> DataError:
    return DataError(f"is longer than {MAX_LINE_BYTES} bytes.", path=path, line=number)


def _salvage(
    line: bytes, path: str, number: int, error: DataError
) -> Iterator[tuple[Event | PartialLine | DataError, bytes]]:
    """Take apart a line that does not decode: an unfinished piece and what follows it, or else the error."""
    start = len(line)
    for _ in range(_MOST_PIECES):
        start = line.rfind(_START, 1, start)
        if start < 0:
            break
        try:
            event = decode(line[start:], path=path, number=number)
        except DataError:
            continue
        try:
            yield decode(line[:start], path=path, number=number), line[:start] + b"\n"  # whole but for its newline
        except DataError:
            yield PartialLine(path=path, line=number, data=line[:start]), b""
        yield event, line[start:]
        return
    # A last line that is whole JSON and merely wrong is not a piece.
    partial_line = PartialLine(path=path, line=number, data=line)
    yield error if line.endswith(b"\n") or is_json(line) else partial_line, b""
