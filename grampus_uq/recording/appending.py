"""Opens a recording for appending, so that each write is one line, with any number of writers.

A piece of a line that a killed writer left at the end of the file is moved aside, unless another process writes to it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

from grampus_uq.errors import DataError
from grampus_uq.recording.codec import MAX_LINE_BYTES, decode

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: pieces stay where they are, and the reader leaves them out
    fcntl = None

_APPEND: Final = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_TORN_SUFFIX: Final = ".torn"
_log = logging.getLogger("grampus_uq.recording")
_BLOCK: Final = 65536
_ASIDE: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)


def open_to_append(path: Path, *, create: bool = True) -> int:
    """Open a recording and mark it as being written; a piece that a killed writer left is set aside first."""
    descriptor = os.open(path, _APPEND | (os.O_CREAT if create else 0), 0o600)
    try:
        _set_aside(path, descriptor)
        if fcntl is not None:
            # As long as the descriptor is open, in whatever process. Waits for one that is inside `_set_aside`.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
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


def _set_aside(path: Path, descriptor: int) -> None:
    """Move a piece without its newline from the end of the file into `<file>.torn`; end a whole line with its newline.

    Only when no other process holds the file: otherwise the "piece" may be a line that is being written, and stays.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    size = os.fstat(descriptor).st_size
    with path.open("rb") as stream:
        start = _end_of_last_line(stream.fileno(), size)
        if start is None or start == size:
            return
        piece = os.pread(stream.fileno(), size - start, start)
    try:
        decode(piece)
    except DataError:
        _append(Path(f"{path}{_TORN_SUFFIX}"), piece + b"\n")
        os.ftruncate(descriptor, start)
        _log.warning("%s: an unfinished line of %d bytes was moved to %s%s.", path, len(piece), path.name, _TORN_SUFFIX)
    else:
        os.write(descriptor, b"\n")


def _append(path: Path, data: bytes) -> None:
    descriptor = os.open(path, _ASIDE, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_of_last_line(descriptor: int, size: int) -> int | None:
    """Offset behind the last newline; None when there is none within the length of a line."""
    end = size
    while end > 0 and size - end <= MAX_LINE_BYTES:
        start = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0 if end == 0 else None
