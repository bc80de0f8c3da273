"""Messages of one client and one server: calls of tools go by the gate, everything else passes with its bytes.

A held call stops nothing: each is a task of its own, and their number is bounded.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from grampus_uq.gate.call import CallRecord
from grampus_uq.mcp.call_exchange import CallExchange, Passed
from grampus_uq.mcp.json_rpc import (
    INVALID_REQUEST,
    LIST,
    Id,
    Message,
    UnclearError,
    error_line,
    id_in,
    is_modern,
    read_message,
    result_line,
    text_result,
    written,
)
from grampus_uq.mcp.message_lines import TooLong
from grampus_uq.records.vocabulary import Effect

_MAX_HELD: Final = 1_000
_MAX_LISTS: Final = 1_000
Send = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class _Open:
    """A client's request of a tool that is not answered yet. `running` is the record that its server works on."""

    message: Message
    cancelled: anyio.Event = field(default_factory=anyio.Event)
    running: CallRecord | None = None


class Guard:
    """A `Relay` that judges calls."""

    def __init__(
        self,
        to_client: Send,
        to_server: Send,
        *,
        exchange: CallExchange,
        say: Callable[[str], None],
    ) -> None:
        self._to_client, self._to_server, self._say, self._exchange = to_client, to_server, say, exchange
        self._open: dict[Id, _Open] = {}
        self._given_up: OrderedDict[Id, CallRecord] = OrderedDict()
        self._lists: OrderedDict[Id, bool] = OrderedDict()
        self._group: TaskGroup | None = None
        self._ready = anyio.Event()

    async def run(self) -> None:
        """Serve held calls, decisions and stop orders, until it is cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            self._ready.set()
            await self._exchange.calls.run()
            await self._stop_running()
            await anyio.sleep_forever()

    async def _stop_running(self) -> None:
        """After a stop order: ask the server to give up what it works on."""
        reason = {"reason": "the session was ordered to stop"}
        for identity in [identity for identity, one in self._open.items() if one.running is not None]:
            params = {"requestId": identity, **reason}
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._to_server(
                    written({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
                )

    async def client_left(self) -> None:
        """Give up the requests that nobody can be answered any more; what the server works on goes on."""
        for one in self._open.values():
            one.cancelled.set()

    async def aclose(self) -> None:
        """Leave the session in the store."""
        await self._exchange.calls.aclose()

    # -- from the client ------------------------------------------------------------------------------------------

    async def from_client(self, line: bytes | TooLong) -> None:
        """Pass a message on, judge it as a call, or refuse it."""
        if isinstance(line, TooLong):
            await self._reply(error_line(id_in(line.head), INVALID_REQUEST, "the message is too long"))
            return
        try:
            message = read_message(line)
        except UnclearError as error:
            await self._reply(error_line(error.answer, error.code, f"refused: {error}"))
            return
        if message.is_call:
            await self._take(message)
            return
        if message.method == LIST and message.id is not None:
            self._lists[message.id] = "cursor" in message.params
            while len(self._lists) > _MAX_LISTS:
                self._lists.popitem(last=False)
        if message.id in self._open and message.method is not None:
            await self._reply(error_line(message.id, INVALID_REQUEST, "refused: a call with this id is open"))
            return
        if message.method == "notifications/cancelled" and await self._cancel(message.params.get("requestId")):
            return
        await self._to_server(line)

    async def _cancel(self, identity: Any) -> bool:
        """Give up an open call; True where its server has never heard of it."""
        one = self._open.get(identity) if isinstance(identity, str | int) else None
        if one is None:
            return False
        one.cancelled.set()
        record = one.running
        if record is None:
            return True
        self._close(one)
        if record.decisions or record.effect is Effect.IRREVERSIBLE:  # what became of it matters
            self._given_up[identity] = record
            while len(self._given_up) > _MAX_HELD:
                self._given_up.popitem(last=False)
        else:
            await self._exchange.calls.finish(record, text="The client gave this call up.", is_error=True)
        return False

    async def _take(self, message: Message) -> None:
        assert message.id is not None  # noqa: S101 (a call without one was refused)
        if message.id in self._open or message.id in self._lists:
            why = f"the id {message.id!r:.60} is that of a request which is not answered yet"
            await self._reply(error_line(message.id, INVALID_REQUEST, f"refused: {why}"))
        elif len(self._open) >= _MAX_HELD:
            text = f"Not executed: {_MAX_HELD} calls are open already."
            await self._reply(
                result_line(message.id, text_result(text, is_error=True, modern=is_modern(message.params)))
            )
        else:
            self._open[message.id] = one = _Open(message)
            await self._ready.wait()
            assert self._group is not None  # noqa: S101 (set before it is ready)
            self._group.start_soon(self._serve, one)

    async def _serve(self, one: _Open) -> None:
        """Bring one request to its answer, or to its server."""
        outcome = await self._exchange.outcome(one.message, one.cancelled)
        if isinstance(outcome, Passed):
            one.running = outcome.record
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the server is gone
                await self._to_server(outcome.line)
            return
        self._close(one)
        if outcome is not None:
            await self._reply(outcome.line)
            if outcome.call_id is not None:
                await self._exchange.calls.delivered(outcome.call_id)

    def _close(self, one: _Open) -> None:
        if one.message.id is not None and self._open.get(one.message.id) is one:
            del self._open[one.message.id]

    async def _reply(self, line: bytes) -> None:
        with suppress(anyio.BrokenResourceError):  # the client is gone
            await self._to_client(line)

    # -- from the server ------------------------------------------------------------------------------------------

    async def from_server(self, line: bytes | TooLong) -> None:
        """Pass a message on; the result of a call is stored before."""
        if isinstance(line, TooLong):
            self._say("a message of the server is longer than a message may be: it is dropped")
            identity = id_in(line.head)
            if identity is not None and identity in self._open:
                answer = error_line(identity, INVALID_REQUEST, "the result is too long")
                await self._returned(identity, answer, json.loads(answer))
        elif not self._open and not self._lists and not self._given_up:
            await self._reply(line)
        else:
            await self._seen(line)

    async def _seen(self, line: bytes) -> None:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None  # the client's to refuse
        identity = values.get("id") if isinstance(values, dict) and "method" not in values else None
        if isinstance(identity, str) or type(identity) is int:
            if identity in self._lists:
                self._lists.pop(identity)
                self._exchange.calls.take_list(values.get("result"))
            elif identity in self._open:
                await self._returned(identity, line, values)
                return
            elif identity in self._given_up:
                await self._exchange.returned(self._given_up.pop(identity), line, values)
        await self._reply(line)

    async def _returned(self, identity: Id, line: bytes, values: Mapping[str, Any]) -> None:
        """Take the server's answer to a call; one that it was never asked is dropped."""
        one = self._open[identity]
        if one.running is None:
            self._say("the server answered a call that it was not asked: the answer is dropped")
            return
        self._close(one)
        await self._reply(await self._exchange.returned(one.running, line, values))
        if not one.cancelled.is_set():
            await self._exchange.calls.delivered(one.running.proposed.id)
