"""The spans of OTLP in protobuf, each as bytes, so that a damaged one costs itself only.

A file holds one request, or many, each behind its length in four bytes (the collector's file exporter with `format:
proto`). A request is read whole, and only as far as its spans: TracesData 1, ResourceSpans 2, ScopeSpans 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from grampus_uq.errors import DataError
from grampus_uq.importers.opening import blocks

_MAX_REQUEST_BYTES: Final = 64 * 2**20
_RESOURCE_SPANS: Final = 0x0A  # field 1, wire type 2: how a request begins
_NESTING: Final = (("Scope", 2, ""), ("Resource", 2, "Scope"), ("Request", 1, "Resource"))


def is_protobuf(path: str | os.PathLike[str]) -> bool:
    """Return True for a file that begins as a request in protobuf, or as the length of one; JSON begins as neither."""
    head = next(blocks(path, size=8), b"")
    if head.startswith(bytes([_RESOURCE_SPANS])):
        return head[1:2] not in (b"{", b"[", b" ", b"\n", b"\r", b"\t") or _framed(head)
    return _framed(head)


def span_messages(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield `(number, bytes)` of each span. Raises DataError, with the offset in bytes, for what is not a request."""
    from google.protobuf.message import DecodeError

    number = 0
    for offset, data in _requests(path):
        try:
            request = _request_type().FromString(data)
        except DecodeError as error:
            raise _error(path, offset, f"is not an OTLP request: {error!s:.200}") from error
        for resource in request.items:
            for scope in resource.items:
                for span in scope.items:
                    yield number, span
                    number += 1


def _requests(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield `(offset, bytes)` of each request of at most 64 MiB."""
    stream, pending, offset = blocks(path), bytearray(), 0

    def peek(count: int) -> bytes:
        while len(pending) < count and (more := next(stream, b"")):
            pending.extend(more)
        return bytes(pending[:count])

    if not _framed(peek(8)):
        data = peek(_MAX_REQUEST_BYTES + 1)
        if len(data) > _MAX_REQUEST_BYTES:
            raise _error(path, 0, f"a request is longer than {_MAX_REQUEST_BYTES} bytes")
        yield 0, data
        return
    while head := peek(4):
        end = 4 + int.from_bytes(head, "big")
        if end > _MAX_REQUEST_BYTES:
            raise _error(path, offset, f"a request is longer than {_MAX_REQUEST_BYTES} bytes")
        data = peek(end)[4:]
        if len(pending) < end:
            raise _error(path, offset, "the file is truncated")
        del pending[:end]
        yield offset, data
        offset += end


def _framed(head: bytes) -> bool:
    return len(head) > 4 and head[0] < 0x08 and head[4] == _RESOURCE_SPANS


def _error(path: str | os.PathLike[str], offset: int, reason: str) -> DataError:
    return DataError(f"at byte {offset}: {reason}.", path=os.fspath(path), line=1)


@cache
def _request_type() -> Any:
    """The type of a request that leaves its spans unparsed."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="grampus_uq/unparsed_spans.proto", package="grampus_uq")
    for name, number, inner in _NESTING:
        items = file.message_type.add(name=name).field.add(name="items", number=number, label=3)  # repeated
        items.type = 11 if inner else 12  # a message, or bytes
        if inner:
            items.type_name = f".grampus_uq.{inner}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("grampus_uq.Request"))
