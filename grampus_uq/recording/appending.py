"""Opens a recording for appending, so that a write is a line whoever else writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from grampus_uq.recording.partial_line import hold, set_aside

__all__ = ["append_line", "open_to_append", "write_line"]

_APPEND: Final = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def open_to_append(path: Path, *, create: bool = True) -> int:
    """Open a recording and mark it as being written; a piece that a killed writer left is set aside first."""
    descriptor = os.open(path, _APPEND | (os.O_CREAT if create else 0), 0o600)
    try:
        set_aside(path, descriptor)
        hold(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_line(descriptor: int, line: bytes, path: Path) -> None:
    """Write a whole line at once. Raises OSError when the disk takes none or only a part of it.

    There is no second write for a rest: it could follow somebody else's line. The reader sets the piece aside.
    """
    written = os.write(descriptor, line)
    if written != len(line):
        raise OSError(f"{path}: only {written} of {len(line)} bytes could be written.")


def append_line(path: Path, line: bytes) -> None:
    """Append one line to an existing recording; it is on the disk when this returns."""
    descriptor = open_to_append(path, create=False)
    try:
        write_line(descriptor, line, path)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
