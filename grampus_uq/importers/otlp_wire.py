"""Finds the spans in protobuf of any size by its tags and lengths alone, and hands each out as bytes.

A message of protobuf is a sequence of fields: a tag (number << 3 | wire type) and, of wire type 2, a length in a varint
and that many bytes. Only the way to the spans is walked: TracesData 1, ResourceSpans 2, ScopeSpans 2.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NoReturn

from grampus_uq.errors import DataError
from grampus_uq.importers.opening import blocks

__all__ = ["is_protobuf", "span_messages"]

_TRAIL: Final = (1, 2, 2)
_RESOURCE_SPANS: Final = 0x0A  # field 1, wire type 2: how a request begins
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT: Final = 10


def is_protobuf(path: str | os.PathLike[str]) -> bool:
    """Say whether a file begins as a request in protobuf does, or as the length of one; JSON begins with neither."""
    head = next(blocks(path, size=8), b"")
    if head.startswith(bytes([_RESOURCE_SPANS])):
        return head[1:2] not in (b"{", b"[", b" ", b"\n", b"\r", b"\t") or _framed(head)
    return _framed(head)


def span_messages(path: str | os.PathLike[str], limit: int) -> Iterator[tuple[int, int, bytes] | DataError]:
    """Yield `(offset, number, bytes)` of each span; a DataError in place of one that is longer than `limit`.

    Raises DataError, with the offset in bytes, where lengths do not fit into each other, or the file is truncated.
    """
    stream = _Bytes(path)
    head = stream.peek(8)
    framed = _framed(head)
    counter = [0]
    while stream.peek(1):
        if not framed:
            yield from _walk(stream, None, _TRAIL, limit, counter)
            continue
        length = int.from_bytes(stream.take(4), "big")
        yield from _walk(stream, stream.offset + length, _TRAIL, limit, counter)


def _framed(head: bytes) -> bool:
    return len(head) > 4 and head[0] < 0x08 and head[4] == _RESOURCE_SPANS


def _walk(
    stream: _Bytes, end: int | None, trail: tuple[int, ...], limit: int, counter: list[int]
) -> Iterator[tuple[int, int, bytes] | DataError]:
    """Read the fields of one message, up to its end (None: the file's)."""
    while (stream.offset < end) if end is not None else bool(stream.peek(1)):
        tag = stream.varint()
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            stream.varint()
        elif kind in (_FIXED64, _FIXED32):
            stream.skip(8 if kind == _FIXED64 else 4)
        elif kind == _LENGTH and number:
            length = stream.varint()
            until = stream.offset + length
            if end is not None and until > end:
                stream.fail(f"a field of {length} bytes does not fit into its message")
            if number != trail[0]:
                stream.skip(length)
            elif len(trail) > 1:
                yield from _walk(stream, until, trail[1:], limit, counter)
            else:
                index, counter[0] = counter[0], counter[0] + 1
                if length > limit:
                    reason = f"at byte {stream.offset}: is longer than {limit} bytes."
                    yield DataError(reason, path=stream.path, line=1, field=f"spans[{index}]")
                    stream.skip(length)
                else:
                    yield stream.offset, index, stream.take(length)
        else:
            stream.fail(f"wire type {kind} of field {number} is none of protobuf's, or not of OTLP's")
    if end is not None and stream.offset > end:
        stream.fail("a field runs over the end of its message")


class _Bytes:
    """The bytes of a file, plain or gzip, and the offset of the next one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.offset = 0
        self._blocks = blocks(path)
        self._block = b""
        self._at = 0

    def peek(self, count: int) -> bytes:
        """Up to `count` bytes, fewer at the end of the file."""
        while len(self._block) - self._at < count and (more := next(self._blocks, b"")):
            self._block, self._at = self._block[self._at :] + more, 0
        return self._block[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        pieces: list[bytes] = []
        while count:
            have = self._block[self._at : self._at + count] or self.peek(1)
            if not have:
                self.fail("the file is truncated")
            pieces.append(have)
            self._at += len(have)
            self.offset += len(have)
            count -= len(have)
        return b"".join(pieces)

    def skip(self, count: int) -> None:
        """Pass over `count` bytes without holding them."""
        while count:
            have = min(count, len(self._block) - self._at)
            if not have:
                if not self.peek(1):
                    self.fail("the file is truncated")
                continue
            self._at += have
            self.offset += have
            count -= have

    def varint(self) -> int:
        """A number, seven bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift >= 7 * _MOST_VARINT:
                self.fail("a number is longer than ten bytes")

    def fail(self, reason: str) -> NoReturn:
        raise DataError(f"at byte {self.offset}: {reason}.", path=self.path, line=1)
