"""The guarded sessions of one HTTP upstream, by name; each runs beside the requests until it is let go."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from grampus_uq.gate.call import CallRecord
from grampus_uq.mcp.call_exchange import CallExchange
from grampus_uq.mcp.json_rpc import Id

_MAX_SESSIONS = 256


@dataclass(slots=True)
class HttpSession:
    """One session: its exchange, the requests that are open, and the calls that its server works on, by their ids."""

    exchange: CallExchange
    scope: anyio.CancelScope
    open: set[Id] = field(default_factory=set)
    running: dict[Id, CallRecord] = field(default_factory=dict)


class HttpSessions:
    """The sessions of one upstream. `make` builds the exchange of a new one by its name."""

    def __init__(self, make: Callable[[str], CallExchange], group: TaskGroup) -> None:
        self._make, self._group = make, group
        self._sessions: OrderedDict[str, HttpSession] = OrderedDict()

    async def of(self, name: str) -> HttpSession | None:
        """The session of this name; None where too many are busy. The longest unused idle one makes room."""
        if name not in self._sessions:
            if len(self._sessions) >= _MAX_SESSIONS:
                idle = next((n for n, one in self._sessions.items() if not one.open and not one.running), None)
                if idle is None:
                    return None
                await self.let_go(idle)
            session = HttpSession(exchange=self._make(name), scope=anyio.CancelScope())
            self._sessions[name] = session
            self._group.start_soon(self._run, session)
        self._sessions.move_to_end(name)
        return self._sessions[name]

    async def _run(self, session: HttpSession) -> None:
        with session.scope:
            await session.exchange.calls.run()

    async def let_go(self, name: str) -> None:
        """Release a session in the store, and forget it here."""
        session = self._sessions.pop(name, None)
        if session is not None:
            await session.exchange.calls.aclose()
            session.scope.cancel()

    async def aclose(self) -> None:
        """Let all go."""
        for name in list(self._sessions):
            await self.let_go(name)
