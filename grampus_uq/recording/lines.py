"""Lines of a file that may be hostile, torn or endless: read in bounded memory, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from grampus_uq.errors import DataError

__all__ = ["MAX_LINE_BYTES", "numbered_lines"]

MAX_LINE_BYTES: Final = 16 * 2**20
"""The longest line that is read, in bytes; the writer never writes a longer one."""

_BLOCK: Final = 2**16


def numbered_lines(
    stream: BinaryIO, *, path: str, max_line_bytes: int = MAX_LINE_BYTES, after: int = 0
) -> Iterator[tuple[int, bytes | DataError]]:
    """Yield `(number, line)` for each line, from `after` + 1, with its newline; only the last one may have none.

    In place of a line longer than `max_line_bytes` comes a DataError that names path and line; the rest of that line is
    skipped, a block at a time, so that the lines behind it can still be read.
    """
    number = after
    while line := stream.readline(max_line_bytes + 1):
        number += 1
        if len(line) <= max_line_bytes:
            yield number, line
            continue
        yield number, DataError(f"is longer than {max_line_bytes} bytes.", path=path, line=number)
        while line and not line.endswith(b"\n"):
            line = stream.readline(_BLOCK)
