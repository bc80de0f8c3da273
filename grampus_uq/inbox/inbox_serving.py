"""The inbox as a running server: bound to one address, with a time to say what one wants and a limit of visitors."""

from __future__ import annotations

import socket
from typing import Final

from grampus_uq.errors import MissingDependencyError
from grampus_uq.inbox.front_door import FrontDoor

with MissingDependencyError.unless("uvicorn", "inbox", "The inbox"):
    from grampus_uq.runtime.http_server import HttpServer

_MAX_HEADERS: Final = 16_384


def listening(host: str, port: int) -> socket.socket:
    """A socket at this address; raises OSError where it is taken, or not of this machine."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


async def serve_inbox(app: FrontDoor, at: socket.socket) -> None:
    """Serve until a signal ends it."""
    await inbox_server(app).serve(sockets=[at])


def inbox_server(app: FrontDoor) -> HttpServer:
    """The server, not begun yet."""
    return HttpServer(app, app.end, h11_max_incomplete_event_size=_MAX_HEADERS)
