"""Lines of a file that may be hostile, torn or endless: read in bounded memory, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from grampus_uq.errors import DataError

__all__ = ["MAX_LINE_BYTES", "numbered_lines"]

MAX_LINE_BYTES: Final = 16 * 2**20
"""The longest line that is read, in bytes; the writer never writes a longer one."""


def numbered_lines(
    stream: BinaryIO, *, path: str, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[tuple[int, bytes, bool]]:
    """Yield `(number, line, ended)` for each line, from 1; `ended` is False for a last line without its newline.

    Raises DataError, naming path and line, when a line is longer than `max_line_bytes`; no more than that is held.
    """
    number = 0
    while line := stream.readline(max_line_bytes + 1):
        number += 1
        if len(line) > max_line_bytes:
            raise DataError(f"is longer than {max_line_bytes} bytes.", path=path, line=number)
        yield number, line, line.endswith(b"\n")
