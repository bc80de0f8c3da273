"""The answer of an upstream server, read message by message; the result of a call is stored before its client has it.

Where the client leaves, an answer that no call waits for is closed at once; that to a call which matters is read on for
some minutes. Every call comes to an end: with its result, or, where its stream broke off and nobody went on with it, as
one of unknown outcome.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import anyio
import httpx
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from grampus_uq.integrations.mcp.answers import Taken
from grampus_uq.integrations.mcp.byte_budget import ByteBudget
from grampus_uq.integrations.mcp.event_stream import (
    EventTooLongError,
    data_of,
    id_of,
    is_message,
    read_events,
    written_event,
)
from grampus_uq.integrations.mcp.http_headers import (
    EVENTS,
    JSON,
    LONGEST_PAGE,
    NO_BODY,
    answered_with,
    content_kind,
    is_page,
    page_text,
)
from grampus_uq.integrations.mcp.http_sessions import HttpSession, Owed
from grampus_uq.integrations.mcp.http_traffic import Traffic
from grampus_uq.integrations.mcp.json_rpc import INVALID_REQUEST, error_line
from grampus_uq.integrations.mcp.server_messages import read_server_message

LATE_S: Final = 600.0
"""Time limit for reading an answer whose client left, and for sending to a client that does not read."""
_RESUME_S: Final = 300.0


class _Streamed(StreamingResponse):
    """A streaming response that keeps its session, and says when nobody reads it any more, however it ends."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        status: int,
        session: HttpSession,
        scope: anyio.CancelScope,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(content, status)
        self._session, self._scope, self._ended = session, scope, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._session.at_work(), suppress(ClientDisconnect), self._scope:
                await super().__call__(scope, receive, send)
        finally:
            self._ended()


class UpstreamAnswer:
    """Reads one answer; `response` is what the client is given meanwhile.

    `budget`: for the bytes of this server's answers, so that no server takes up the room of another.
    `carried`: it answers the request that carried the message, and not one that goes on with its stream.
    """

    def __init__(
        self,
        answer: httpx.Response,
        owed: Owed,
        session: HttpSession,
        *,
        traffic: Traffic,
        budget: ByteBudget,
        say: Callable[[str], None],
        carried: bool = True,
    ) -> None:
        self._answer, self._owed, self._session = answer, owed, session
        self._traffic, self._limit, self._say = traffic, traffic.bounds.limit, say
        self._budget, self._carried = budget, carried
        self._as_it_comes = owed.judged is not None
        self._send, self._receive = anyio.create_memory_object_stream[tuple[bytes, str | None]](0)
        self._scope, self._sending = anyio.CancelScope(), anyio.CancelScope()
        self._gone, self._handed, self._torn, self._held = False, False, False, 0
        self._settled: str | None = None

    def response(self, path: bytes) -> StreamingResponse:
        """The answer for the client of this path, as it is read."""
        response = _Streamed(self._sent(), self._answer.status_code, self._session, self._sending, self._left)
        response.raw_headers += answered_with(self._answer.headers.raw, path, kind=self._kind_shown)
        elsewhere = self._answer.next_request
        if self._as_it_comes and elsewhere is not None:  # relative to the server, not to this proxy
            without_password = elsewhere.url.copy_with(userinfo=b"")  # the proxy's own, at that server
            response.raw_headers.append((b"location", str(without_password).encode()))
        self._owed.readers += 1
        self._session.busy += 1
        return response

    @property
    def _kind_shown(self) -> bytes | None:
        """The content type of what the client gets in place of a body that is not a message; None where it is one."""
        if self._as_it_comes:
            return None
        if self._answer.status_code in NO_BODY:
            return b""
        if not is_page(self._answer.status_code, content_kind(self._answer.headers)):
            return None
        return b"application/json" if self._refuses else b"text/plain; charset=utf-8"

    @property
    def _refuses(self) -> bool:
        """True where the server says that it did not take a call: it says what is wrong with it."""
        return self._carried and 400 <= self._answer.status_code < 500 and self._owed.record is not None

    def _left(self) -> None:
        self._gone = True
        self._receive.close()
        if self._owed.record is not None:
            self._session.exchange.calls.left(self._owed.record.proposed.id)
        if self._owed.matters:
            self._scope.deadline = anyio.current_time() + LATE_S
        else:
            self._scope.cancel()

    async def run(self) -> None:
        """Read the answer to its end."""
        try:
            async with anyio.create_task_group() as self._looks:
                await self._read()
            await self._end()
        except Exception as error:  # noqa: BLE001 (one answer does not stop those of the others)
            self._say(f"an answer of the server could not be handled: {type(error).__name__}")
        finally:
            self._session.busy -= 1
            self._sending.deadline = anyio.current_time() + LATE_S

    async def _read(self) -> None:
        try:
            with self._traffic.one(), self._scope:
                try:
                    async for part in self._parts(self._chunks()):
                        if not self._as_it_comes:
                            await self._hand_over(part)
                except Exception as error:  # noqa: BLE001 (its call comes to an end all the same)
                    self._say(f"the server's answer broke off: {type(error).__name__}")
                    self._torn = self._as_it_comes
                if (line := await self._without_result()) is not None:
                    await self._hand_over(line)
        finally:
            self._owed.readers -= 1
            self._let_go(self._held)
            with anyio.CancelScope(shield=True):
                await self._answer.aclose()
                await self._send.aclose()

    async def _hand_over(self, part: bytes) -> None:
        self._handed = True
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client is gone
            with anyio.move_on_after(LATE_S) as waits:
                await self._send.send((part, self._settled))
            if waits.cancelled_caught:  # or takes nothing
                self._sending.cancel()

    async def _sent(self) -> AsyncIterator[bytes]:
        """The parts for the client: the result in one is delivered once the next is asked for, when this one is out."""
        calls = self._session.exchange.calls
        async for part, settled in self._receive:
            yield part
            await anyio.lowlevel.checkpoint()  # a client that left meanwhile is noticed
            if settled is not None:
                calls.delivered(settled)
        if self._torn:  # its client sees that it broke off, as without this proxy
            self._sending.cancel()
            await anyio.lowlevel.checkpoint()

    async def _chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.aiter_raw():
            if self._as_it_comes:
                await self._hand_over(chunk)
            yield chunk

    async def _held_chunks(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same, counted until they are let go. Raises EventTooLongError where too many bytes are held."""
        async for chunk in chunks:
            if not self._budget.take(len(chunk)):
                raise EventTooLongError("does not fit beside the other answers that are held")
            self._held += len(chunk)
            yield chunk

    def _let_go(self, size: int) -> None:
        self._budget.give(size)
        self._held -= size

    async def _parts(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the parts sent to the client, message by message."""
        kind = content_kind(self._answer.headers)
        if self._kind_shown == b"":
            return
        try:
            if kind in EVENTS:
                async for event in read_events(self._held_chunks(chunks), limit=self._limit):
                    event_id, data = id_of(event), data_of(event) if is_message(event) else None
                    yield written_event(event, await self._seen(data) if data else data)
                    if event_id is not None and self._owed.identity is not None:
                        self._session.goes_on(event_id, self._owed)
                    self._let_go(len(event))
                return
            body = bytearray()
            async for chunk in self._held_chunks(chunks):
                body += chunk
                if self._kind_shown is not None and len(body) > LONGEST_PAGE:
                    break
                if len(body) > self._limit:
                    raise EventTooLongError("is longer than a message may be")
        except EventTooLongError as error:
            self._say(f"a message of the server {error}: its answer is ended")
            failed = await self._stored(self._owed.answers.fail(f"the server's answer {error}", lost=True))
            yield (written_event(b"", failed) if kind in EVENTS else failed) if failed else b""
            if self._as_it_comes:
                async for _ in chunks:
                    pass
            return
        yield await self._page(bytes(body), kind)

    async def _page(self, body: bytes, kind: str) -> bytes:
        status = self._answer.status_code
        if body and kind in JSON:
            unread = error_line(self._owed.identity, INVALID_REQUEST, "the server answered something else")
            if status >= 400 and self._is_more_than_an_error(body):
                return unread
            shown = await self._seen(body) or unread
            if self._refuses and not self._as_it_comes:  # where the error in it names no request
                await self._stored(self._owed.answers.fail(f"the server answered {status}"))
            return shown
        if self._refuses:
            return await self._stored(self._owed.answers.fail(page_text(status, body).decode())) or b""
        return page_text(status, body) if is_page(status, kind) else b""

    def _is_more_than_an_error(self, body: bytes) -> bool:
        """Return True for content of a failed answer that clients ignore, or a failure not of the call itself."""
        message = read_server_message(body)
        return not self._carried or (message is not None and not message.values.keys().isdisjoint(("result", "method")))

    async def _seen(self, data: bytes) -> bytes | None:
        """Store the result in a message, and return the bytes for the client."""
        if self._owed.judged is None:
            return await self._stored(self._owed.answers.take(data))
        if self._budget.take(len(data)):
            self._looks.start_soon(self._look, data)
        else:
            self._say("more answers come than are looked at: some pass unrecorded")
        return None

    async def _look(self, data: bytes) -> None:
        try:
            await self._owed.until_judged()
            await self._stored(self._owed.answers.take(data))
        finally:
            self._budget.give(len(data))

    async def _stored(self, taken: Taken | None) -> bytes | None:
        if taken is None or taken.record is None:
            return None if taken is None else taken.line
        self._settled = taken.record.proposed.id
        kept: list[bytes] = []
        with anyio.CancelScope(shield=True):  # a result that came is kept, though nobody reads it any more
            kept.append(await self._session.exchange.returned(taken.record, taken))
        return kept[0]

    async def _without_result(self) -> bytes | None:
        """The error, once a human is asked, for a client that would wait on: the answer is over, no other goes on."""
        owed, kind, identity = self._owed, content_kind(self._answer.headers), self._owed.identity
        stops = kind in EVENTS or (kind in JSON and not self._handed)
        if self._as_it_comes or self._gone or self._kind_shown is not None or not stops or identity is None:
            return None
        if identity not in owed.answers or owed.resumable or owed.readers > 1:
            return None
        if owed.record is not None and owed.answers.give_up(identity, owed.record):
            with anyio.CancelScope(shield=True):
                await self._session.exchange.lost(owed.record)
        line = error_line(identity, INVALID_REQUEST, owed.unknown("the server's answer ended without a result"))
        return written_event(b"", line) if kind in EVENTS else line

    async def _end(self) -> None:
        """The stream has ended: a call that it left unanswered gets its end here, or where the stream goes on."""
        owed = self._owed
        await owed.until_judged()
        record = owed.record
        if record is None or owed.identity is None or owed.readers:
            return
        if owed.resumable and owed.answers.running and (self._carried or self._answer.status_code < 400):
            await anyio.sleep(_RESUME_S)
        if not owed.readers and owed.answers.give_up(owed.identity, record):
            exchange = self._session.exchange
            await (exchange.given_up(record) if self._gone else exchange.lost(record))
