"""One HTTP connection pool for each event loop, closed by the loop itself when the loop ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

if TYPE_CHECKING:
    import httpx


class LoopPools:
    """Gives every event loop its own `httpx.AsyncClient`: connections cannot move from one loop to another.

    A model client lives as long as the application, which may run several loops, at once in threads or one after the
    other. Each pool is held by an async generator. asyncio and trio both finish the generators that are left when a
    loop ends, and that closes the pool on its own loop, where alone it can be closed. `aclose` does it earlier.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._open: dict[int, tuple[Any, AsyncGenerator[httpx.AsyncClient, None], httpx.AsyncClient]] = {}

    async def client(self) -> httpx.AsyncClient:
        """The client of the running loop, made on first use."""
        loop = running_loop()
        known = self._open.get(id(loop))
        if known is not None and known[0] is loop:
            return known[2]
        self._forget_closed_loops()
        holder = _hold(self._make, self._open, id(loop))
        made = await anext(holder)  # never waits, so two tasks of one loop cannot both come here
        self._open[id(loop)] = (loop, holder, made)
        return made

    async def aclose(self) -> None:
        """Close the pool of the running loop; the pools of other loops are closed when those end."""
        known = self._open.get(id(running_loop()))
        if known is not None:
            await known[1].aclose()

    def _forget_closed_loops(self) -> None:
        """Drop pools whose asyncio loop was closed without finishing its async generators."""
        for key, (loop, _, _) in list(self._open.items()):
            is_closed = getattr(loop, "is_closed", None)
            if is_closed is not None and is_closed():
                self._open.pop(key, None)


async def _hold(
    make: Callable[[], httpx.AsyncClient], opened: dict[int, Any], key: int
) -> AsyncGenerator[httpx.AsyncClient, None]:
    client = make()
    try:
        yield client
    finally:
        opened.pop(key, None)
        await client.aclose()


def running_loop() -> Any:
    """The running loop's own token: an asyncio loop or a trio token."""
    token = anyio.lowlevel.current_token()
    return getattr(token, "native_token", token)  # anyio before 4.11 returned the native token itself
