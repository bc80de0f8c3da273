"""The requests of all HTTP clients: how many are open at once, and the bytes of those that their server has not had."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.requests import Request

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
    """The body of a request that is not read as a message, as it comes: what is `held` of it first."""

    def __init__(self, request: Request, held: bytes) -> None:
        self._request, self._held, self.over = request, held, anyio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._held
        self._held = b""
        async for chunk in self._request.stream():
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
        body, fits, chunk = bytearray(), True, b""
        try:
            with anyio.move_on_after(_BODY_S) as scope:
                async for chunk in request.stream():
                    fits = len(body) + len(chunk) <= self.bounds.limit and self._budget.take(len(chunk))
                    if not fits:
                        break
                    body += chunk
            whole = fits and not scope.cancelled_caught
            yield bytes(body) if whole else Unread(request, bytes(body) if fits else bytes(body) + chunk)
        finally:
            self._budget.give(len(body))
