"""The inbox as a running server: bound to one address, with a time to say what one wants and a limit of visitors."""

from __future__ import annotations

import socket
from typing import Final

from grampus_uq.errors import MissingDependencyError
from grampus_uq.inbox.front_door import FrontDoor

with MissingDependencyError.unless("uvicorn", "inbox", "The inbox"):
    from grampus_uq.runtime.http_server import HttpServer

_MAX_HEADERS: Final = 16_384


async def serve_inbox(app: FrontDoor, at: socket.socket) -> None:
    """Serve until a signal ends it."""
    await inbox_server(app).serve(sockets=[at])


def inbox_server(app: FrontDoor) -> HttpServer:
    """The server, not begun yet."""
    return HttpServer(app, app.end, h11_max_incomplete_event_size=_MAX_HEADERS)
