"""Streamable HTTP on both sides: each upstream has a path of its own, and what is no call passes as it is.

Only a `POST` that calls a tool is judged. Sessions are the server's own (`Mcp-Session-Id`); where the revision has
none, a header `Grampus-Session` names one, else all clients of an upstream share one. Requests from other hosts' pages
are refused: the `Host` and `Origin` have to be those that the proxy was given.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx
from anyio.abc import ObjectSendStream, TaskGroup

from grampus_uq.errors import MissingDependencyError
from grampus_uq.gate.call import CallRecord
from grampus_uq.mcp.call_exchange import CallExchange, Passed
from grampus_uq.mcp.event_stream import EventTooLongError, data_of, read_events, with_data
from grampus_uq.mcp.http_sessions import HttpSession, HttpSessions
from grampus_uq.mcp.json_rpc import (
    CALL,
    INVALID_REQUEST,
    LIST,
    Id,
    Message,
    UnclearError,
    error_line,
    read_message,
)

try:
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise MissingDependencyError.of("mcp", "mcp", "serving MCP over HTTP") from error

_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"),
        *("transfer-encoding", "host", "content-length", "accept-encoding", "grampus-session"),
    }
)
_JSON: Final = frozenset({"application/json", "application/json;charset=utf-8", 'application/json;charset="utf-8"'})
_MCP: Final = frozenset({"mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name", "grampus-session"})
_TIMEOUT: Final = httpx.Timeout(30.0, read=3_600.0)
_BUSY: Final = "the proxy has too many busy sessions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """An upstream server: its address, the exchange of a session by its name, and why a tool must not be called."""

    url: str
    exchange: Callable[[str], CallExchange]
    refusal: Callable[[str], str | None] = lambda tool: None


def http_app(
    upstreams: Mapping[str, Upstream],
    group: TaskGroup,
    *,
    hosts: frozenset[str],
    limit: int,
    say: Callable[[str], None],
    transport: httpx.AsyncBaseTransport | None = None,
) -> tuple[Starlette, Callable[[], Any]]:
    """The ASGI application with one path for each upstream, and what releases its sessions at the end.

    `hosts`: the values of `Host` that are served, as "127.0.0.1:8765". `group` outlives the requests.
    """
    client = httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, transport=transport)
    doors = {
        name: _Door(upstream, HttpSessions(upstream.exchange, group), group, client, hosts=hosts, limit=limit, say=say)
        for name, upstream in upstreams.items()
    }

    async def aclose() -> None:
        for door in doors.values():
            await door.sessions.aclose()
        await client.aclose()

    routes = [Route(f"/{name}", door.serve, methods=["GET", "POST", "DELETE"]) for name, door in doors.items()]
    return Starlette(routes=routes), aclose


class _Door:
    """Serves one upstream."""

    def __init__(
        self,
        upstream: Upstream,
        sessions: HttpSessions,
        group: TaskGroup,
        client: httpx.AsyncClient,
        *,
        hosts: frozenset[str],
        limit: int,
        say: Callable[[str], None],
    ) -> None:
        self._upstream, self.sessions, self._group, self._client = upstream, sessions, group, client
        self._hosts, self._limit, self._say = hosts, limit, say

    async def serve(self, request: Request) -> Response:
        """Answer one request."""
        refused = _refused_headers(request, self._hosts)
        if refused is not None:
            return refused
        session = await self.sessions.of(_session_name(request))
        if session is None:
            return Response(error_line(None, INVALID_REQUEST, _BUSY), 503, media_type="application/json")
        if request.method != "POST":
            if request.method == "DELETE":
                await self.sessions.let_go(_session_name(request))
            return await self._forward(request, None, session)
        body = await _bounded(request, self._limit)
        if body is None:
            return _error(None, "the message is too long", 413)
        try:
            message = read_message(body, alone=True)
            _check_routing(request, message)
        except UnclearError as error:
            return Response(
                error_line(error.answer, error.code, f"refused: {error}"), 400, media_type="application/json"
            )
        if message.is_call:
            return await self._call(request, message, session)
        return await self._forward(request, body, session, listing=message.id if message.method == LIST else None)

    async def _call(self, request: Request, message: Message, session: HttpSession) -> Response:
        assert message.id is not None  # noqa: S101 (a call without one was refused)
        why = self._upstream.refusal(message.params["name"])
        if why is not None:
            return _error(message.id, why, 403)
        if message.id in session.open or message.id in session.running:
            return _error(message.id, f"refused: a call with the id {message.id!r:.60} is open", 400)
        session.open.add(message.id)
        cancelled = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_watch, request, cancelled)
                outcome = await session.exchange.outcome(message, cancelled)
                group.cancel_scope.cancel()
        finally:
            session.open.discard(message.id)
        if isinstance(outcome, Passed):
            session.running[message.id] = outcome.record
            return await self._forward(request, outcome.line, session, call=message.id, edited=outcome.record.edited)
        if outcome is None:
            return Response(status_code=499)
        if outcome.call_id is not None:
            await session.exchange.calls.delivered(outcome.call_id)
        return Response(outcome.line, media_type="application/json")

    # -- upstream -------------------------------------------------------------------------------------------------

    async def _forward(
        self,
        request: Request,
        body: bytes | None,
        session: HttpSession,
        *,
        listing: Id | None = None,
        call: Id | None = None,
        edited: bool = False,
    ) -> Response:
        """Pass a request on and its answer back. The answer is read to its end even where the client leaves."""
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name not in _HOP and not (edited and name.startswith("mcp-param-"))
        ]
        outgoing = self._client.build_request(
            request.method, self._upstream.url, content=body, headers=[*headers, ("accept-encoding", "identity")]
        )
        try:
            answer = await self._client.send(outgoing, stream=True)
        except httpx.HTTPError as error:
            self._say(f"the server cannot be reached: {type(error).__name__}: {error}")
            await self._lost(session, call, ran=not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout))
            return _error(call, "the server cannot be reached", 502)
        send, receive = anyio.create_memory_object_stream[bytes](0)
        self._group.start_soon(self._read, answer, send, session, listing, call)
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP}
        return StreamingResponse(receive, answer.status_code, headers=kept)

    async def _lost(self, session: HttpSession, call: Id | None, *, ran: bool) -> None:
        """No answer to a call will come."""
        record = None if call is None else session.running.pop(call, None)
        if record is not None and ran:
            await session.exchange.calls.lost(record)
        elif record is not None:
            text = "Not executed: the server cannot be reached."
            await session.exchange.calls.finish(record, text=text, is_error=True)
            await session.exchange.calls.delivered(record.proposed.id)

    async def _read(
        self,
        answer: httpx.Response,
        send: ObjectSendStream[bytes],
        session: HttpSession,
        listing: Id | None,
        call: Id | None,
    ) -> None:
        """Read an answer to its end, store the results of calls in it, and send its bytes while anybody reads them."""
        taken: list[str] = []
        resumable = gone = False
        try:
            async for part in self._parts(answer, session, listing, taken):
                resumable = resumable or part.startswith(b"id:") or b"\nid:" in part
                with suppress(anyio.BrokenResourceError):
                    if not gone:
                        gone = True
                        await send.send(part)
                        gone = False
                if gone and not session.running:
                    break  # nobody reads it, and no call is answered in it
        except EventTooLongError:
            self._say("a message of the server is longer than a message may be: its stream is ended")
        except httpx.HTTPError as error:
            self._say(f"the server's answer broke off: {type(error).__name__}")
        finally:
            with anyio.CancelScope(shield=True):
                await answer.aclose()
                await send.aclose()
        for call_id in () if gone else taken:
            await session.exchange.calls.delivered(call_id)
        if not resumable:
            await self._lost(session, call, ran=True)

    async def _parts(
        self, answer: httpx.Response, session: HttpSession, listing: Id | None, taken: list[str]
    ) -> AsyncIterator[bytes]:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            async for event in read_events(answer.aiter_raw(), limit=self._limit):
                data = data_of(event)
                changed = await self._seen(data, session, listing, taken)
                yield event if changed is data else with_data(event, changed)
            return
        body = b""
        async for chunk in answer.aiter_raw():
            body += chunk
            if len(body) > self._limit:
                raise EventTooLongError
        yield await self._seen(body, session, listing, taken)

    async def _seen(self, data: bytes, session: HttpSession, listing: Id | None, taken: list[str]) -> bytes:
        """A message of the server; the result of a call is stored before anybody reads it."""
        if not data or (listing is None and not session.running):
            return data
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            return data
        identity = values.get("id") if isinstance(values, dict) and "method" not in values else None
        if not isinstance(identity, str) and type(identity) is not int:
            return data
        if identity == listing:
            try:
                session.exchange.calls.take_list(values.get("result"))
            except ValueError as error:
                return error_line(listing, INVALID_REQUEST, f"the server's list of tools is refused: {error}")
            return data
        record: CallRecord | None = session.running.pop(identity, None)
        if record is None:
            return data
        taken.append(record.proposed.id)
        return await session.exchange.returned(record, data, values)


def _refused_headers(request: Request, hosts: frozenset[str]) -> Response | None:
    """Why a request is not served by its headers: another site's page, or a header that could be read in two ways."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if host not in hosts:
        return _error(None, f"this proxy does not serve the host {host!r:.80}", 421)
    if origin is not None and urlsplit(origin).netloc not in hosts:
        return _error(None, f"pages of {origin!r:.80} may not use this proxy", 403)
    names = [name.decode("latin-1") for name, _ in request.headers.raw]
    if any(names.count(name) > 1 for name in _MCP):
        return _error(None, "a header of the protocol comes twice", 400)
    if request.headers.get("content-encoding", "identity") != "identity":
        return _error(None, "the body is encoded", 415)
    kind = "".join(request.headers.get("content-type", "").split()).lower()
    if request.method == "POST" and kind not in _JSON:  # in another alphabet the server reads another message
        return _error(None, "the body is not application/json in UTF-8", 415)
    return None


def _check_routing(request: Request, message: Message) -> None:
    """Raise UnclearError where the headers say another method or tool than the body: a server may believe either."""
    method, name = request.headers.get("mcp-method"), request.headers.get("mcp-name")
    if method is not None and method != message.method:
        raise UnclearError("its header Mcp-Method says another method", answer=message.id)
    if name is not None and message.method == CALL and _header_text(name) != message.params.get("name"):
        raise UnclearError("its header Mcp-Name says another tool", answer=message.id)


def _header_text(value: str) -> str | None:
    """The text of a header of the protocol: plain, or `=?base64?...?=`; None where it cannot be read."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except ValueError:
        return None


def _session_name(request: Request) -> str:
    given = request.headers.get("mcp-session-id") or request.headers.get("grampus-session")
    return "shared" if given is None else hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:32]


async def _bounded(request: Request, limit: int) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


async def _watch(request: Request, cancelled: anyio.Event) -> None:
    """Notice that the client left while its call waits."""
    with suppress(ClientDisconnect):
        while (await request.receive())["type"] != "http.disconnect":
            pass
    cancelled.set()


def _error(answer: Id | None, why: str, status: int) -> Response:
    return Response(error_line(answer, INVALID_REQUEST, why), status, media_type="application/json")
