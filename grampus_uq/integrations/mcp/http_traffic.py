"""The requests of all HTTP clients: how many are open at once, and the bytes of those that their server has not had."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.requests import ClientDisconnect, Request

from grampus_uq.integrations.mcp.byte_budget import ByteBudget

_MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_OPEN: Final = 400
_BODY_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of the server: accepted `Host` values ("127.0.0.1:8765"), message size `limit`, and concurrency."""

    hosts: frozenset[str]
    limit: int
    max_bytes: int = _MAX_BYTES
    max_open: int = _MAX_OPEN


class Unread:
    """The body of a request that is not, or not yet, read as a message: what is `held` of it, then what still comes."""

    def __init__(self, request: Request) -> None:
        self._request, self._more = request, True
        self.held, self.over = bytearray(), anyio.Event()

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield the pieces that still come; after a cancellation, the ones that are left."""
        while self._more:
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._more = message.get("more_body", False)
            yield message.get("body", b"")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield bytes(self.held)
        async for chunk in self.rest():
            yield chunk
        self.over.set()


class Traffic:
    """Open requests of one event loop."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self._open = bounds, 0
        self._budget = ByteBudget(bounds.max_bytes)

    @property
    def full(self) -> bool:
        """True where no further request is served."""
        return self._open >= self.bounds.max_open

    @contextmanager
    def one(self) -> Iterator[None]:
        """While a request or an answer is open."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes | Unread]:
        """The body of a request, counted for so long; unread where it is too long or too slow, or too much is held."""
        unread, held = Unread(request), 0
        try:
            with anyio.move_on_after(_BODY_S) as scope:
                async for chunk in unread.rest():
                    unread.held += chunk
                    if len(unread.held) > self.bounds.limit or not self._budget.take(len(chunk)):
                        break
                    held += len(chunk)
            whole = len(unread.held) == held and not scope.cancelled_caught
            yield bytes(unread.held) if whole else unread
        finally:
            self._budget.give(held)
