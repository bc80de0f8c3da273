"""Streamable HTTP on both sides: each upstream has a path of its own, and what is not a call passes as it is.

Only a `POST` that calls a tool is judged. Sessions are the server's own (`Mcp-Session-Id`); where it has none, a header
`Grampus-Session` or the request's `_meta` names one, else all clients of an upstream share one. Each request has an
answer of its own, whatever ids other clients use. Requests from other hosts' pages are refused: the `Host` and `Origin`
have to be those that the proxy was given.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpx
from anyio.abc import TaskGroup

from grampus_uq.errors import MissingDependencyError
from grampus_uq.integrations.mcp.advisory import unchanged
from grampus_uq.integrations.mcp.answers import Answers
from grampus_uq.integrations.mcp.byte_budget import ByteBudget
from grampus_uq.integrations.mcp.call_exchange import Answered, CallExchange, Passed
from grampus_uq.integrations.mcp.event_stream import written_event
from grampus_uq.integrations.mcp.http_headers import (
    BEYOND,
    SHARED,
    answer_problem,
    check_routing,
    new_session,
    origin_problem,
    passed_on,
    reading_problem,
    session_name,
)
from grampus_uq.integrations.mcp.http_sessions import HttpSession, HttpSessions, Owed, session_in, without_session
from grampus_uq.integrations.mcp.json_rpc import (
    CANCEL,
    INVALID_REQUEST,
    Id,
    Message,
    UnclearError,
    error_line,
    is_modern,
    read_message,
)
from grampus_uq.integrations.mcp.parameter_headers import PARAMETER, check_parameters, header_value, parameter_headers

with MissingDependencyError.unless("mcp", "mcp", "serving MCP over HTTP"):
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from grampus_uq.integrations.mcp.http_traffic import Bounds, Traffic, Unread
    from grampus_uq.integrations.mcp.upstream_answer import LATE_S, UpstreamAnswer

_TIMEOUT: Final = httpx.Timeout(30.0, read=3_600.0)
_Serve = Callable[[HttpSession, Owed], Awaitable["Response"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A server: address, exchange by session, why a tool is refused. `advisory`: all passes, and is judged beside."""

    url: str
    advisory: bool = False
    exchange: Callable[[str], CallExchange]
    refusal: Callable[[str], str | None] = lambda tool: None


def http_app(
    upstreams: Mapping[str, Upstream],
    group: TaskGroup,
    *,
    bounds: Bounds,
    say: Callable[[str], None],
    transport: httpx.AsyncBaseTransport | None = None,
) -> tuple[Starlette, Callable[[], Any]]:
    """The ASGI application with a path for each upstream, and what releases its sessions; `group` outlives requests."""
    unbounded = httpx.Limits(max_connections=None, max_keepalive_connections=20)  # requests are bounded instead
    client = httpx.AsyncClient(
        timeout=_TIMEOUT,
        follow_redirects=False,
        transport=transport,
        limits=unbounded,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # one client's are never sent with another's call
    )
    traffic = Traffic(bounds)
    doors = {
        name: _Door(upstream, HttpSessions(upstream.exchange, group), group, client, traffic=traffic, say=say)
        for name, upstream in upstreams.items()
    }

    async def aclose() -> None:
        for door in doors.values():
            await door.sessions.aclose()
        await client.aclose()

    def end() -> None:
        for door in doors.values():
            door.sessions.end()

    routes = [Route(f"/{name}", door.serve, methods=["GET", "POST", "DELETE"]) for name, door in doors.items()]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    app.state.end = end
    return app, aclose


class _Door:
    """Serves one upstream."""

    def __init__(
        self,
        upstream: Upstream,
        sessions: HttpSessions,
        group: TaskGroup,
        client: httpx.AsyncClient,
        *,
        traffic: Traffic,
        say: Callable[[str], None],
    ) -> None:
        self._upstream, self.sessions, self._group, self._client = upstream, sessions, group, client
        self._traffic, self._say = traffic, unchanged(say) if upstream.advisory else say
        self._answers = ByteBudget(traffic.bounds.max_bytes)

    async def serve(self, request: Request) -> Response:
        """Answer one request."""
        names = [name.decode("latin-1") for name, _ in request.headers.raw]
        problem = origin_problem(request.headers, self._traffic.bounds.hosts)
        if problem is None and not self._upstream.advisory:
            problem = reading_problem(request.headers, names, has_body=request.method == "POST")
        if problem is not None:
            return _error(None, problem[1], problem[0])
        if self._traffic.full and not self._upstream.advisory:
            return _error(None, "the proxy has too many open requests", 503)
        try:
            with self._traffic.one():
                return await (self._posted(request) if request.method == "POST" else self._asked(request))
        except ClientDisconnect:
            return Response(status_code=499)

    async def _within(self, name: str, serve: _Serve, unjudged: _Serve) -> Response:
        """Serve a request in its session, which stays for so long; `unjudged` where advice has no room for one."""
        session = await self.sessions.of(name)
        if session is None and self._upstream.advisory:
            self._say("a request passes unjudged: the proxy has too many busy sessions")
            session, serve = self.sessions.apart(name), unjudged
        if session is None:
            return _error(None, "the proxy has too many busy sessions", 503)
        owed = Owed(answers=Answers(session.exchange.calls, self._say, prefix=session.exchange.prefix))
        if self._upstream.advisory:
            owed.judged = anyio.Event()
            owed.judged.set()
        with session.at_work():
            return await serve(session, owed)

    async def _asked(self, request: Request) -> Response:
        """A request without a message."""
        name = session_name(request.headers)

        async def serve(session: HttpSession, owed: Owed) -> Response:
            if request.method == "DELETE" and session.busy == 1:  # no other request is at work in it
                await self.sessions.let_go(name)
            after = request.headers.get("last-event-id", "").strip().encode("latin-1", "replace")
            return await self._forward(request, None, session, session.after(after) or owed)

        return await self._within(name, serve, partial(self._forward, request, None))

    async def _posted(self, request: Request) -> Response:
        """A request with a message."""
        name = session_name(request.headers)
        async with self._traffic.body(request) as body:
            unjudged = partial(self._forward, request, body)
            if isinstance(body, Unread):
                why = "the message is too long or too slow, or too many are held"
                if not self._upstream.advisory:
                    return _error(None, why, 413)
                self._say(f"a request passes unjudged: {why}")
                return await self._within(name, unjudged, unjudged)
            try:
                message = read_message(body, alone=True)
                check_routing(request.headers, message)
                named = session_in(message)
            except UnclearError as error:
                if self._upstream.advisory:
                    return await self._within(name, unjudged, unjudged)
                return _refused(error)
            if named is not None and not self._upstream.advisory:
                message = without_session(message)
            if name == SHARED and named is not None:
                name = session_name({"grampus-session": named})
            return await self._within(name, partial(self._message, request, message, begins=name == SHARED), unjudged)

    async def _message(
        self, request: Request, message: Message, session: HttpSession, owed: Owed, *, begins: bool
    ) -> Response:
        owed.identity = None if message.method is None else message.id
        owed.begins_session = begins and message.method == "initialize" and not self._upstream.advisory
        if message.is_call and not self._upstream.advisory:
            try:
                schema = session.exchange.calls.tools.schema(message.params["name"])
                check_parameters(request.headers.items(), message, schema)
            except UnclearError as error:
                return _refused(error)
            return await self._call(request, message, session, owed)
        if message.is_call:
            owed.judged = anyio.Event()
            self._group.start_soon(self._observe, message, session, owed)
        elif message.method == CANCEL and session.cancel(message.params.get("requestId")):
            return Response(status_code=202)
        else:
            owed.answers.expect(message)
        return await self._forward(request, message.line, session, owed)

    async def _observe(self, message: Message, session: HttpSession, owed: Owed) -> None:
        """Judge a call beside its run."""
        outcome = await session.exchange.outcome(message, anyio.Event())
        if isinstance(outcome, Passed) and message.id is not None and owed.judged is not None:
            owed.answers.running[message.id] = owed.record = outcome.record
        if owed.judged is not None:
            owed.judged.set()

    async def _call(self, request: Request, message: Message, session: HttpSession, owed: Owed) -> Response:
        assert message.id is not None  # noqa: S101 (a call without one was refused)
        why = self._upstream.refusal(message.params["name"])
        if why is not None:
            return _error(message.id, why, 403)
        outcome, cancelled = await self._outcome(request, message, message.id, session)
        why = self._upstream.refusal(message.params["name"])
        if isinstance(outcome, Passed) and not cancelled and why is not None:  # it was shadowed while it waited
            await session.exchange.withdraw(outcome.record, why=why)
            return _error(message.id, why, 403)
        if isinstance(outcome, Passed) and not cancelled:
            owed.answers.running[message.id] = owed.record = outcome.record
            if owed.matters:
                session.running.append((message.id, outcome.record.proposed.id))
            return await self._forward(request, outcome.line, session, owed)
        if isinstance(outcome, Passed):
            await session.exchange.withdraw(outcome.record)
        if outcome is None or isinstance(outcome, Passed):
            return Response(status_code=499)
        if outcome.call_id is not None:
            await anyio.lowlevel.checkpoint()  # a client that left is noticed
            if cancelled or await request.is_disconnected():
                session.exchange.calls.left(outcome.call_id)
                return Response(status_code=499)
            return _Told(outcome.line, outcome.call_id, session)
        return Response(outcome.line, media_type="application/json")

    async def _outcome(
        self, request: Request, message: Message, identity: Id, session: HttpSession
    ) -> tuple[Passed | Answered | None, bool]:
        """Return the outcome of a call that may wait, and whether its client cancelled it meanwhile."""
        cancelled = anyio.Event()
        held = identity, cancelled
        session.held.append(held)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_watch, request, cancelled)
                outcome = await session.exchange.outcome(message, cancelled)
                group.cancel_scope.cancel()
        finally:
            session.held.remove(held)
        return outcome, cancelled.is_set()

    # -- upstream -------------------------------------------------------------------------------------------------

    async def _forward(
        self, request: Request, body: bytes | Unread | None, session: HttpSession, owed: Owed
    ) -> Response:
        """Pass a request on, and its answer back as it is read."""
        answer = await self._sent(request, body, session, owed)
        goes_on = body is None and owed.identity in owed.answers and not self._upstream.advisory
        if not isinstance(answer, httpx.Response):
            ran = body is None or not isinstance(answer, httpx.ConnectError | httpx.ConnectTimeout)
            return await self._unanswered(session, owed, "the server cannot be reached", ran=ran, goes_on=goes_on)
        problem = answer_problem(answer.status_code, answer.headers)
        if problem is None and goes_on and answer.status_code >= 400:
            problem = f"the server does not go on with its answer ({answer.status_code})"
        if problem is not None:
            self._say(problem)
        if problem is not None and not (self._upstream.advisory and answer.status_code < BEYOND):
            await answer.aclose()  # and a redirect may follow the act
            return await self._unanswered(session, owed, problem, ran=True, goes_on=goes_on)
        reading = UpstreamAnswer(
            answer,
            owed,
            session,
            traffic=self._traffic,
            budget=self._answers,
            say=self._say,
            carried=body is not None or owed.identity is None,
        )
        response = reading.response(request.url.path.encode())
        if owed.begins_session and answer.status_code == 200 and "mcp-session-id" not in answer.headers:
            response.raw_headers.append(new_session())
        self._group.start_soon(reading.run)
        return response

    def _outgoing(
        self, request: Request, body: bytes | Unread | None, session: HttpSession, owed: Owed
    ) -> httpx.Request:
        """The request for the server: the client's own headers, and none of this library's."""
        headers, record = passed_on(request.headers.raw), owed.record
        if record is not None and session.exchange.prefix:
            own = record.call.name.removeprefix(session.exchange.prefix)
            headers = [(name, header_value(own) if name == b"mcp-name" else value) for name, value in headers]
        if isinstance(body, Unread):
            headers += [one for one in request.headers.raw if one[0].lower() == b"content-length"]
        if record is not None and record.edited and not isinstance(body, Unread):
            params = json.loads(body or b"{}").get("params", {})
            headers = [(name, value) for name, value in headers if not name.startswith(PARAMETER.encode())]
            if is_modern(params):
                headers += parameter_headers(session.exchange.calls.tools.schema(record.call.name), params["arguments"])
        return httpx.Request(
            request.method,
            self._upstream.url,
            content=body,
            headers=[*headers, (b"accept-encoding", b"identity")],
            extensions={"timeout": _TIMEOUT.as_dict()},
        )

    async def _sent(
        self, request: Request, body: bytes | Unread | None, session: HttpSession, owed: Owed
    ) -> httpx.Response | Exception | None:
        """The answer's beginning, or what went wrong; None where the client left, and nobody else has to know."""
        answer: httpx.Response | Exception | None = None
        async with anyio.create_task_group() as group:

            async def give_up() -> None:
                if isinstance(body, Unread):  # what comes of it is read by who sends it on
                    await body.over.wait()
                await _watch(request, anyio.Event())
                if owed.record is not None:
                    session.exchange.calls.left(owed.record.proposed.id)
                if not owed.matters:
                    group.cancel_scope.cancel()

            group.start_soon(give_up)
            try:
                answer = await self._client.send(self._outgoing(request, body, session, owed), stream=True)
            except Exception as error:  # noqa: BLE001 (whatever it was, somebody is told what became of the call)
                self._say(f"the server cannot be reached: {type(error).__name__}: {error!s:.100}")
                answer = error
            group.cancel_scope.cancel()
        return answer

    async def _unanswered(self, session: HttpSession, owed: Owed, why: str, *, ran: bool, goes_on: bool) -> Response:
        """No answer to a request will come; one to a call that did not run is that it did not.

        `ran`: the server may have it. Only the request that carried a call can say that it has not. `goes_on`: a client
        asked for the rest of a stream, and reads there that none comes: after an error it would wait on.
        """
        if owed.readers:  # a stream of its answer is still read
            return _error(owed.identity, why, 502)
        if self._upstream.advisory:
            self._group.start_soon(self._end, session, owed, why, ran)
            return _error(owed.identity, why, 502)
        await self._end(session, owed, why, ran)
        why = owed.unknown(why) if ran else why
        if goes_on:
            line = error_line(owed.identity, INVALID_REQUEST, why)
            return Response(written_event(b"", line), media_type="text/event-stream")
        return _error(owed.identity, why, 502)

    async def _end(self, session: HttpSession, owed: Owed, why: str, ran: bool) -> None:
        """End a call that no answer will come to."""
        await owed.until_judged()
        if owed.record is not None and owed.identity is not None and owed.answers.give_up(owed.identity, owed.record):
            exchange = session.exchange
            await (exchange.lost(owed.record) if ran else exchange.not_sent(owed.record, why))


class _Told(Response):
    """Response with a call's outcome, delivered once it is sent."""

    def __init__(self, line: bytes, call_id: str, session: HttpSession) -> None:
        super().__init__(line, media_type="application/json")
        self._call_id, self._session = call_id, session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        calls = self._session.exchange.calls
        try:
            with self._session.at_work(), anyio.fail_after(LATE_S):
                await super().__call__(scope, receive, send)
        except BaseException:
            calls.left(self._call_id)
            raise
        calls.delivered(self._call_id)


async def _watch(request: Request, cancelled: anyio.Event) -> None:
    """Notice that the client left while its call waits."""
    with suppress(ClientDisconnect):
        while (await request.receive())["type"] != "http.disconnect":
            pass
    cancelled.set()


def _refused(error: UnclearError) -> Response:
    return _error(error.answer, f"refused: {error}", 400, error.code)


def _error(answer: Id | None, why: str, status: int, code: int = INVALID_REQUEST) -> Response:
    return Response(error_line(answer, code, why), status, media_type="application/json")
