"""Messages as lines of bytes over pipes: bounded in length, written whole, with backpressure to whoever sends.

A message keeps its bytes from one side to the other. A line that is too long is skipped to its end and reported with
its beginning and its end; nothing else of it is kept.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_ENDS: Final = 1_024
_CHUNK: Final = 65_536
_PIPE: Final = 4_096  # a pipe that is ready takes so many bytes without blocking (POSIX's PIPE_BUF)


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLong:
    """The beginning and the end of a line that is longer than a message may be."""

    head: bytes
    tail: bytes


async def read_lines(
    receive: Callable[[], Awaitable[bytes]], *, limit: int = MAX_MESSAGE_BYTES
) -> AsyncIterator[bytes | TooLong]:
    """The non-empty lines of a stream without their ends, the last one too; at most `limit` bytes are held."""
    held, head = bytearray(), None
    while data := await receive():
        *ended, rest = data.split(b"\n")
        for part in ended:
            head = _add(part, held, head, limit)
            line = bytes(held).removesuffix(b"\r") if head is None else TooLong(head=head, tail=bytes(held))
            held, head = bytearray(), None
            if line:
                yield line
        head = _add(rest, held, head, limit)
    if head is not None:
        yield TooLong(head=head, tail=bytes(held))
    elif held:
        yield bytes(held)


def _add(part: bytes, held: bytearray, head: bytes | None, limit: int) -> bytes | None:
    """Add a part to a line; once it is too long, `held` is its end only, and its beginning is returned."""
    held += part
    if head is None and len(held) > limit:
        head = bytes(held[:_ENDS])
    if head is not None:
        del held[:-_ENDS]
    return head


async def read_descriptor(descriptor: int) -> bytes:
    """Read the bytes in a pipe now; none at its end."""
    with contextlib.suppress(PermissionError):  # a plain file is always ready, and cannot be waited for
        await anyio.wait_readable(descriptor)
    try:
        return os.read(descriptor, _CHUNK)
    except ConnectionError:
        return b""


class LineWriter:
    """Writes whole lines to a pipe or a process, one after another, whoever sends them.

    `send` raises `anyio.BrokenResourceError` once the other side is gone, or a cancelled send tore a line.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._lock = anyio.Lock()
        self._torn = False

    async def send(self, line: bytes) -> None:
        """Write one line."""
        async with self._lock:
            if self._torn:
                raise anyio.BrokenResourceError
            self._torn = True
            await self._write(line + b"\n")
            self._torn = False


async def write_descriptor(descriptor: int, data: bytes) -> None:
    """Write all of this to a pipe, waiting whenever it is full."""
    view = memoryview(data)
    try:
        while view:
            with contextlib.suppress(PermissionError):  # a plain file
                await anyio.wait_writable(descriptor)
            view = view[os.write(descriptor, view[:_PIPE]) :]
    except (BrokenPipeError, ConnectionError) as error:
        raise anyio.BrokenResourceError from error
