"""Advisory mode between two pipes: every byte passes as it is, and a guard beside records what would wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from grampus_uq.integrations.mcp.byte_budget import ByteBudget
from grampus_uq.integrations.mcp.call_exchange import CallExchange
from grampus_uq.integrations.mcp.guard import Guard
from grampus_uq.integrations.mcp.message_lines import TooLong
from grampus_uq.integrations.mcp.stdio_proxy import Relay
from grampus_uq.runtime.concurrent_tasks import outcome_of

_MOST: Final = 1_000
_MAX_BYTES: Final = 64 * 1024 * 1024
_DRAIN_S: Final = 10.0
_Take = Callable[[bytes | TooLong], Awaitable[None]]


class Advisory(Relay):
    """Shows every message, calls before results, to a guard whose words nobody gets, and delays none for it.

    Beyond a bound on what waits for the guard, messages pass unrecorded.
    """

    def __init__(self, *, exchange: CallExchange, say: Callable[[str], None]) -> None:
        self._say = say
        self._guard = Guard(_to_nobody, _to_nobody, exchange=exchange, say=unchanged(say))
        self._passed: deque[tuple[_Take, bytes | TooLong]] = deque()
        self._more, self._seen = anyio.Event(), anyio.Event()
        self._budget = ByteBudget(_MAX_BYTES)
        self._missed = self._ended = self._failed = False

    async def from_client(self, line: bytes | TooLong) -> None:
        """Show a message of the client."""
        self._show(self._guard.from_client, line)

    async def from_server(self, line: bytes | TooLong) -> None:
        """Show a message of the server."""
        self._show(self._guard.from_server, line)

    def _show(self, take: _Take, line: bytes | TooLong) -> None:
        if not self._failed and len(self._passed) < _MOST and self._budget.take(_size(line)):
            self._passed.append((take, line))
            self._more.set()
        elif not self._missed:
            self._missed = True
            self._say("more messages come than are looked at: some pass unrecorded")

    async def run(self) -> None:
        """Show the guard what passed, until it is cancelled, it fails or nothing more comes."""
        await self._guarded(self._look)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Await the guard's work; where that fails messages go on to pass, unrecorded."""
        try:
            await outcome_of(work)
        except Exception as error:  # noqa: BLE001 (whatever becomes of the record, the messages pass)
            self._say(f"advisory, nothing was changed: no more is recorded ({type(error).__name__})")
            self._missed, self._failed = True, True
            self._seen.set()

    async def _look(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._guard.run)
            while self._passed or not self._ended:
                if not self._passed:
                    self._more = anyio.Event()
                    await self._more.wait()
                    continue
                take, line = self._passed.popleft()
                await take(line)
                await self._guard.rest()
                self._budget.give(_size(line))
            self._seen.set()

    async def aclose(self) -> None:
        """Look at what passed last, and leave the session in the store."""
        self._ended = True
        self._more.set()
        with anyio.move_on_after(_DRAIN_S):
            await self._seen.wait()
        if not self._failed:  # else its lease of the session runs out by itself
            await self._guarded(self._guard.aclose)


def unchanged(say: Callable[[str], None]) -> Callable[[str], None]:
    """Say what was seen, and that it passed all the same."""
    return lambda text: say(f"advisory, nothing was changed: {text}")


def _size(line: bytes | TooLong) -> int:
    return 0 if isinstance(line, TooLong) else len(line)


async def _to_nobody(line: bytes) -> None:
    """Discard a message that a guard would have sent."""
