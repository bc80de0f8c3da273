"""The inbox as a running server: bound to one address, with a time to say what one wants and a limit of visitors."""

from __future__ import annotations

import socket
from typing import Final

from grampus_uq.errors import MissingDependencyError
from grampus_uq.inbox.front_door import FrontDoor

try:
    import uvicorn

    from grampus_uq.runtime.http_server import HttpServer, TimedConnection
except ImportError as error:
    raise MissingDependencyError.of("uvicorn", "inbox", "The inbox") from error

_MAX_HEADERS: Final = 16_384
_MAX_CONNECTIONS: Final = 1_000
_SHUTDOWN_S: Final = 2


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
        http=TimedConnection,
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
    return HttpServer(config, app.end)
