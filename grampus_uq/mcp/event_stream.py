"""Server-sent events as bytes: whole events, bounded, and the data of each; what is not changed keeps its bytes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINES: Final = re.compile(rb"\r\n|\n|\r")


class EventTooLongError(Exception):
    """An event that is longer than a message may be."""


async def read_events(chunks: AsyncIterator[bytes], *, limit: int) -> AsyncIterator[bytes]:
    """The events of a stream, each with its end, then what is left. Raises EventTooLongError."""
    held = b""
    async for chunk in chunks:
        start = max(0, len(held) - 3)
        held += chunk
        while found := _END.search(held, start):
            yield held[: found.end()]
            held, start = held[found.end() :], 0
        if len(held) > limit:
            raise EventTooLongError
    if held:
        yield held


def data_of(event: bytes) -> bytes:
    """The data of an event: its `data` lines, joined."""
    lines = [line[5:].removeprefix(b" ") for line in _LINES.split(event) if line[:5] == b"data:"]
    return b"\n".join(lines)


def with_data(event: bytes, data: bytes) -> bytes:
    """An event with other data of one line."""
    kept = [line for line in _LINES.split(event) if line and line[:5] != b"data:"]
    return b"\n".join([*kept, b"data: " + data]) + b"\n\n"
