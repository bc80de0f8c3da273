"""The inbox as a running server: bound to one address, with a time to say what one wants and a limit of visitors."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from grampus_uq.errors import MissingDependencyError
from grampus_uq.inbox.front_door import FrontDoor

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingDependencyError.of("uvicorn", "inbox", "The inbox") from error

_HEADERS_S: Final = 10.0
_MAX_HEADERS: Final = 16_384
_MAX_CONNECTIONS: Final = 1_000
_SHUTDOWN_S: Final = 2


class _Impatient(H11Protocol):
    """Closes a connection whose request is not complete within seconds of its beginning."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        # asyncio does this only where the listening socket names its protocol; else each answer waits 40 ms for an ACK.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._hurry()

    def data_received(self, data: bytes) -> None:
        self._hurry()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE and self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
        super().connection_lost(exc)

    def _hurry(self) -> None:
        if self._overdue is None and self.conn.their_state is h11.IDLE:
            self._overdue = self.loop.call_later(_HEADERS_S, self.transport.close)


class _Server(uvicorn.Server):
    """Ends in peace on SIGINT and SIGTERM, also while pages listen: uvicorn's own raises them again, and cancels."""

    def __init__(self, config: uvicorn.Config, app: FrontDoor) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.end()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        known = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, self.handle_exit) for number in known}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listening(host: str, port: int) -> socket.socket:
    """A socket at this address; raises OSError where it is taken, or not of this machine."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


async def serve_inbox(app: FrontDoor, at: socket.socket) -> None:
    """Serve until a signal ends it."""
    await inbox_server(app).serve(sockets=[at])


def inbox_server(app: FrontDoor) -> uvicorn.Server:
    """The server, not begun yet."""
    config = uvicorn.Config(
        app,
        http=_Impatient,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        h11_max_incomplete_event_size=_MAX_HEADERS,
    )
    return _Server(config, app)
