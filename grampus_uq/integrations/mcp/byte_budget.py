"""A bound on the bytes that are held at once, whoever holds them."""

from __future__ import annotations

import anyio


class ByteBudget:
    """At most `limit` bytes together; one task of an event loop after another."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held = limit, 0
        self._given = anyio.Event()

    def take(self, size: int) -> bool:
        """Hold so many bytes, unless they are too many with those that are held."""
        if self._held + size > self._limit:
            return False
        self._held += size
        return True

    async def wait_for(self, size: int) -> None:
        """Hold so many bytes as soon as they fit, or nothing else is held."""
        while self._held and self._held + size > self._limit:
            await self._given.wait()
        self._held += size

    def give(self, size: int) -> None:
        """Let so many bytes go."""
        self._held -= size
        self._given.set()
        self._given = anyio.Event()
