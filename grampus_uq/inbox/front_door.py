"""Checks on every request to the inbox before any page, and headers of every response.

One host, plain paths, bodies of known and bounded length that arrive in time, and changes only from the inbox's own
pages. Headers of a reverse proxy are never read.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import anyio
from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grampus_uq.errors import MissingDependencyError
from grampus_uq.inbox.inbox_settings import InboxSettings

with MissingDependencyError.unless("uvicorn", "inbox", "The inbox"):
    from grampus_uq.runtime.http_server import HttpServer

MAX_BODY: Final = 262_144
HEALTH: Final = "/healthz"
"""Whether the inbox and its store answer: for probes, which name any host."""
_MAX_QUERY, _MAX_HEADERS, _BODY_S = 1_024, 16_384, 10.0
_PATH = re.compile(rb"/[A-Za-z0-9_/.-]*")
_ODD = re.compile(rb"//|/\.|\.\.")
_READS: Final = ("GET", "HEAD")
_BODIES: Final = frozenset({"application/json", "application/x-www-form-urlencoded"})
_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "publickey-credentials-get=(self), publickey-credentials-create=(self)",
}
_HSTS: Final = "max-age=31536000"


class _RefusedError(Exception):
    """A request that no page sees."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Allowance:
    """So many tries in any minute for each name, and ten times as many for all together, which bounds the names too.

    A try that is refused counts for nothing, so that nobody takes the tries of others by asking on.
    """

    def __init__(self, most: int, *, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._window_s, self._clock = most, window_s, clock
        self._taken = deque[tuple[float, str]]()

    def take(self, name: str) -> bool:
        """Count a try; False when there were too many in the window that ends now."""
        now_s = self._clock()
        while self._taken and now_s - self._taken[0][0] >= self._window_s:
            self._taken.popleft()
        if len(self._taken) >= 10 * self._most or sum(one == name for _, one in self._taken) >= self._most:
            return False
        self._taken.append((now_s, name))
        return True


class FrontDoor:
    """The ASGI middleware around the inbox's pages; `end` lets the streams among them end, before the server does."""

    def __init__(self, app: ASGIApp, settings: InboxSettings, *, end: Callable[[], None]) -> None:
        self._app, self._settings, self.end = app, settings, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if self._settings.secure:
                    headers["strict-transport-security"] = _HSTS
            await send(message)

        try:
            length = self._checked(scope)
            body = await _body(receive, length) if length else b""
        except _RefusedError as refused:
            headers = {"connection": "close"}
            await PlainTextResponse(f"{refused}\n", refused.status, headers)(scope, receive, guarded)
            return
        await self._app(scope, _once(body, receive), guarded)

    def server(self) -> HttpServer:
        """The inbox as a server, not begun yet."""
        return HttpServer(self, self.end, h11_max_incomplete_event_size=_MAX_HEADERS)

    def _checked(self, scope: Scope) -> int:
        """The length of the body; raises _RefusedError."""
        headers = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        path = scope.get("raw_path") or scope["path"].encode()
        probed = scope["method"] in _READS and path == HEALTH.encode()  # by an address of its own
        if hosts != [self._settings.host.encode()] and not probed:
            raise _RefusedError(421, f"This inbox is at {self._settings.origin} only.")
        if not _PATH.fullmatch(path) or _ODD.search(path) or len(path) > _MAX_QUERY or b"%00" in scope["query_string"]:
            raise _RefusedError(400, "No such path.")
        if len(scope["query_string"]) > _MAX_QUERY:
            raise _RefusedError(414, "The address is too long.")
        if scope["method"] in _READS:
            if any(
                name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers
            ):
                raise _RefusedError(400, "A page is asked for without a body.")  # nobody would wait for its end
            return 0
        if scope["method"] != "POST":
            raise _RefusedError(405, "Only GET, HEAD and POST are supported.")
        return self._checked_change(headers)

    def _checked_change(self, headers: list[tuple[bytes, bytes]]) -> int:
        """A change comes from a page of this inbox, with a body of known length."""
        given: dict[str, list[str]] = {}
        for name, value in headers:
            given.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        own_site = given.get("sec-fetch-site", ["same-origin"]) == ["same-origin"]
        if given.get("origin") != [self._settings.origin] or not own_site:
            raise _RefusedError(403, "A change can only be made from a page of this inbox.")
        kinds, lengths = given.get("content-type", []), given.get("content-length", [])
        if len(kinds) != 1 or kinds[0].partition(";")[0].strip().lower() not in _BODIES:
            raise _RefusedError(415, "The body is neither a form nor JSON.")
        if "transfer-encoding" in given or len(lengths) != 1 or not re.fullmatch(r"\d{1,9}", lengths[0]):
            raise _RefusedError(411, "The length of the body is missing.")
        if int(lengths[0]) > MAX_BODY:
            raise _RefusedError(413, f"The body is longer than {MAX_BODY} bytes.")
        return int(lengths[0])


async def _body(receive: Receive, length: int) -> bytes:
    """The whole body; raises _RefusedError when it is another length, or does not come in time."""
    parts, found, more = [], 0, True
    with anyio.move_on_after(_BODY_S):
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise _RefusedError(400, "The body ended early.")
            parts.append(message.get("body", b""))
            found, more = found + len(parts[-1]), message.get("more_body", False)
            if found > length:
                break
        if found == length:
            return b"".join(parts)
        raise _RefusedError(400, "The body's length differs from the stated one.")
    raise _RefusedError(408, "The body did not arrive in time.")


def _once(body: bytes, receive: Receive) -> Receive:
    """Hand over the body that was read, then go on receiving: a later message tells of the browser's leaving."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message
