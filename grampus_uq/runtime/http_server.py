"""The HTTP server of the inbox and of the MCP proxy: ends in peace, and gives a client seconds to say what it wants."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EADDRINUSE
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_SHUTDOWN_S: Final = 2  # streams that clients of the proxy hold open never end by themselves
_HEADERS_S: Final = 10.0
_UNREAD_S: Final = 600.0
_MAX_CONNECTIONS: Final = 1_000


def listening(host: str, port: int) -> socket.socket:
    """A socket at this address; raises OSError, with the way out, where it is taken or not of this machine."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        way_out = f"{'stop what serves there, or ' if error.errno == EADDRINUSE else ''}give another address"
        raise OSError(error.errno, f"{error.strerror}; {way_out}") from None


class TimedConnection(H11Protocol):
    """Closes a connection whose request is not complete within seconds, or that takes nothing of its answer."""

    _overdue: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

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
        for timer in (self._overdue, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._unread = self.loop.call_later(_UNREAD_S, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def _hurry(self) -> None:
        if self._overdue is None and self.conn.their_state is h11.IDLE:
            self._overdue = self.loop.call_later(_HEADERS_S, self.transport.close)


class HttpServer(uvicorn.Server):
    """`serve` returns after SIGINT or SIGTERM, which uvicorn's own raises again, so that nothing open is released.

    `end` lets open requests end in peace; what is open seconds later is cancelled. `more`: settings of uvicorn's.
    """

    def __init__(self, app: Any, end: Callable[[], None], **more: Any) -> None:
        config = uvicorn.Config(
            app,
            http=TimedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_SHUTDOWN_S,
            **more,
        )
        super().__init__(config)
        self._end = end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end()
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
