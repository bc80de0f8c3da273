"""Reads a recording back, event by event, and sets aside what a killed writer left unfinished.

A writer that dies in the middle of a write leaves a piece of a line. The next writer's line then follows it directly,
so a piece is found either at the end of a file or in front of a whole line; both are told apart from a damaged line.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grampus_uq.errors import DataError
from grampus_uq.events import Event
from grampus_uq.recording.codec import decode
from grampus_uq.recording.lines import MAX_LINE_BYTES, numbered_lines

__all__ = ["TornLine", "read", "read_numbered"]

_log = logging.getLogger("grampus_uq.recording")
_START: Final = b'{"v":1,"type":"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TornLine:
    """A piece of a line that a killed writer left: where, and its bytes."""

    path: str
    line: int
    data: bytes


def _report(torn: TornLine) -> None:
    _log.warning("%s:%d: an unfinished line of %d bytes was left out.", torn.path, torn.line, len(torn.data))


def read(
    path: str | os.PathLike[str],
    *,
    on_torn: Callable[[TornLine], None] = _report,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Event]:
    """Yield the events of one recording, in commit order, holding one line at a time.

    An unfinished line is given to `on_torn` (default: a logged warning) and left out; it is never fatal. Raises
    DataError with path, line and field for a damaged line, a newer version, or a line longer than `max_line_bytes`.
    """
    for _, event in read_numbered(path, on_torn=on_torn, max_line_bytes=max_line_bytes):
        yield event


def read_numbered(
    path: str | os.PathLike[str],
    *,
    on_torn: Callable[[TornLine], None] = _report,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[tuple[int, Event]]:
    """Like `read`, with the number of the line (from 1) beside each event."""
    name = os.fspath(path)
    with Path(path).open("rb") as stream:
        for number, line, ended in numbered_lines(stream, path=name, max_line_bytes=max_line_bytes):
            if line.isspace():
                continue
            try:
                event = decode(line, path=name, number=number)
            except DataError as error:
                yield from _salvage(line, ended, name, number, on_torn, error)
            else:
                yield number, event


def _salvage(
    line: bytes, ended: bool, path: str, number: int, on_torn: Callable[[TornLine], None], error: DataError
) -> Iterator[tuple[int, Event]]:
    """Events that follow an unfinished piece in a line that does not decode; raises `error` when there is no piece."""
    start = len(line)
    while (start := line.rfind(_START, 1, start)) > 0:
        try:
            event = decode(line[start:], path=path, number=number)
        except DataError:
            continue
        piece = line[:start]
        try:
            before = decode(piece, path=path, number=number)  # whole but for its newline
        except DataError:
            on_torn(TornLine(path=path, line=number, data=piece))
        else:
            yield number, before
        yield number, event
        return
    if ended or _is_object(line):
        raise error
    on_torn(TornLine(path=path, line=number, data=line))


def _is_object(line: bytes) -> bool:
    """True for a last line that is whole JSON and merely wrong: that is no piece."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
