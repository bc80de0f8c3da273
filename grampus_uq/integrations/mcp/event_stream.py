"""Server-sent events as bytes: whole events, bounded, and the data of each, written so that all clients read it alike.

Of an event's fields only those of plain characters are kept, and of its comments nothing: some clients end a line at
characters that others take for text, and so read a field in what is a comment for all others.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINES: Final = re.compile(rb"\r\n|\n|\r")
_FIELD: Final = re.compile(rb"(?:id|event|retry):[ -~]*")


class EventTooLongError(Exception):
    """A message that is not held: its text goes on after "a message"."""


async def read_events(chunks: AsyncIterator[bytes], *, limit: int) -> AsyncIterator[bytes]:
    """The events of a stream, each with its end, then what is left. Raises EventTooLongError."""
    held = bytearray()  # grows in place: a server may send a byte at a time
    async for chunk in chunks:
        start = max(0, len(held) - 3)
        held += chunk
        while found := _END.search(held, start):
            event, start = bytes(held[: found.end()]), 0
            del held[: len(event)]
            yield event
        if len(held) > limit:
            raise EventTooLongError("is longer than a message may be")
    if held:
        yield bytes(held)


def data_of(event: bytes) -> bytes | None:
    """The data of an event: its `data` lines, joined; None where it has none."""
    lines = [line[5:].removeprefix(b" ") for line in _LINES.split(event) if line[:5] == b"data:"]
    return b"\n".join(lines) if lines else None


def id_of(event: bytes) -> bytes | None:
    """The id of an event, by which a client goes on with its stream."""
    ids = [line[3:].strip() for line in _LINES.split(event) if line[:3] == b"id:" and _FIELD.fullmatch(line)]
    return ids[-1] if ids else None


def is_message(event: bytes) -> bool:
    """Return True for an event that clients read as a message; most ignore other types."""
    kinds = [line[6:].removeprefix(b" ") for line in _LINES.split(event) if line[:6] == b"event:"]
    return all(kind in (b"", b"message") for kind in kinds)


def written_event(event: bytes, data: bytes | None) -> bytes:
    """An event with this data, or with none; a comment where nothing else is in it, which keeps a stream alive."""
    kept = [line for line in _LINES.split(event) if _FIELD.fullmatch(line)]
    lines = [] if data is None else [b"data: " + line for line in data.split(b"\n")]
    return b"\n".join([*kept, *lines] or [b":"]) + b"\n\n"
