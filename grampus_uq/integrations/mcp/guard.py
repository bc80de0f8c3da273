"""Messages of one client and one server: calls of tools go by the gate, everything else passes with its bytes.

Whatever needs the store is a task of its own: a call that waits, or a result that is being stored, stops nothing else.
Their number is bounded, and so are the bytes that they hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from grampus_uq.errors import StoreError
from grampus_uq.gate.call import CallRecord
from grampus_uq.integrations.mcp.answers import Answers, Taken
from grampus_uq.integrations.mcp.byte_budget import ByteBudget
from grampus_uq.integrations.mcp.call_exchange import CallExchange, Passed
from grampus_uq.integrations.mcp.elicitation import elicits, is_answer
from grampus_uq.integrations.mcp.hand_overs import HandOvers
from grampus_uq.integrations.mcp.json_rpc import (
    CANCEL,
    INVALID_REQUEST,
    Id,
    Message,
    UnclearError,
    error_line,
    id_in,
    is_id,
    read_message,
    refusal_line,
    written,
)
from grampus_uq.integrations.mcp.message_lines import TooLong
from grampus_uq.integrations.mcp.stdio_proxy import Relay, Send

_MAX_HELD: Final = 1_000
_MAX_BYTES: Final = 64 * 1024 * 1024
_DRAIN_S: Final = 40.0
"""Results that came before the server ended are stored for so long: longer than a store waits for a lock."""


class Guard(Relay):
    """Judges calls. `late_s`: how long the answer to a call that its client gave up is waited for."""

    passes = False

    def __init__(
        self,
        to_client: Send,
        to_server: Send,
        *,
        exchange: CallExchange,
        say: Callable[[str], None],
        late_s: float = 30.0,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self._to_client, self._to_server, self._say = to_client, to_server, say
        self._exchange, self._late_s = exchange, late_s
        self._answers = Answers(exchange.calls, say, prefix=exchange.prefix)
        self._open: dict[Id, anyio.Event] = {}  # calls that the server has not heard of: set once they are given up
        self._given_up: set[Id] = set()
        self._hand_overs = HandOvers()
        self._calls, self._results = ByteBudget(max_bytes), ByteBudget(max_bytes)
        self._working = 0
        self._rested = anyio.Event()
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
        for identity in tuple(self._answers.running):
            params = {"requestId": identity, **reason}
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._to_server(written({"jsonrpc": "2.0", "method": CANCEL, "params": params}))

    async def client_left(self) -> None:
        """Give up the requests that nobody can be answered any more; what the server works on goes on."""
        for cancelled in self._open.values():
            cancelled.set()

    async def aclose(self) -> None:
        """Store what the server still answered, and leave the session in the store."""
        await self.client_left()
        with anyio.move_on_after(_DRAIN_S):
            await self.rest()
            for record in tuple(self._answers.running.values()):  # the server ended, and nobody else asks about these
                await self._exchange.lost(record)
        await self._exchange.aclose()

    async def rest(self) -> None:
        """Wait until no call is being judged, held or stored."""
        while self._working:
            await self._rested.wait()

    async def _work(self, work: Callable[..., Awaitable[None]], *given: Any) -> None:
        try:
            await work(*given)
        finally:
            self._working -= 1
            self._rested.set()
            self._rested = anyio.Event()

    async def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
        await self._ready.wait()
        assert self._group is not None  # noqa: S101 (set before it is ready)
        self._group.start_soon(work, *given)

    # -- from the client ------------------------------------------------------------------------------------------

    async def from_client(self, line: bytes | TooLong) -> None:
        """Pass a message on, judge it as a call, or refuse it."""
        if isinstance(line, TooLong):
            await self._reply(error_line(id_in(line.head, line.tail), INVALID_REQUEST, "the message is too long"))
            return
        try:
            message = read_message(line)
        except UnclearError as error:
            await self._reply(error_line(error.answer, error.code, f"refused: {error}"))
            return
        if self._exchange.elicitation is not None and is_answer(message):
            await self._start(self._answered, message)
        elif message.method is not None and (message.id in self._open or message.id in self._answers):
            why = f"the id {message.id!r:.60} is that of a request which is not answered yet"
            await self._reply(error_line(message.id, INVALID_REQUEST, f"refused: {why}"))
        elif message.is_call:
            await self._take(message)
        elif not (message.method == CANCEL and await self._cancel(message.params.get("requestId"))):
            if message.method == "initialize":
                self._exchange.put = self._reply if elicits(message.params.get("capabilities")) else None
            if message.id is not None and message.method is not None:
                self._hand_overs.forget(message.id)
            self._answers.expect(message)
            await self._to_server(line)

    async def _answered(self, message: Message) -> None:
        """Take the client's answer to a question of the proxy's."""
        assert self._exchange.elicitation is not None  # noqa: S101 (it asked)
        try:
            await self._exchange.elicitation.answered(message)
        except StoreError as error:
            self._say(f"an answer at the client could not be stored: {error}")

    async def _cancel(self, identity: Any) -> bool:
        """Give up an open call; True where its server has never heard of it."""
        if not is_id(identity):
            return False
        if identity in self._open:
            self._open[identity].set()
            return True
        undelivered = self._hand_overs.give_up(identity)
        if undelivered is not None:
            call_id, told = undelivered
            (self._exchange.calls.take_back if told else self._exchange.calls.left)(call_id)
        record = self._answers.running.get(identity)
        if record is not None and identity not in self._given_up:
            self._given_up.add(identity)
            self._exchange.calls.left(record.proposed.id)
            await self._start(self._await_late, identity, record)
        return False

    async def _await_late(self, identity: Id, record: CallRecord) -> None:
        """End a call that its client gave up: by a late answer, or by none, as servers are to do that heed it."""
        await anyio.sleep(self._late_s)
        if self._answers.give_up(identity, record):
            self._given_up.discard(identity)
            await self._exchange.given_up(record)

    async def _take(self, message: Message) -> None:
        assert message.id is not None  # noqa: S101 (a call without one was refused)
        full = None
        if len(self._open) + len(self._answers.running) >= _MAX_HELD:
            full = f"Not executed: {_MAX_HELD} calls are open already."
        elif not self._calls.take(len(message.line)):
            full = "Not executed: the calls that are open hold too many bytes already."
        if full is None:
            self._hand_overs.forget(message.id)
            self._open[message.id] = cancelled = anyio.Event()
            self._working += 1
            await self._start(self._work, self._serve, message, message.id, cancelled)
        else:
            await self._reply(refusal_line(message, full))

    async def _serve(self, message: Message, identity: Id, cancelled: anyio.Event) -> None:
        """Bring one request to its answer, or to its server."""
        outcome = await self._exchange.outcome(message, cancelled)
        del self._open[identity]
        self._calls.give(len(message.line))
        if isinstance(outcome, Passed) and cancelled.is_set():
            await self._exchange.withdraw(outcome.record)
        elif isinstance(outcome, Passed):
            self._answers.running[identity] = outcome.record
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the server is gone
                await self._to_server(outcome.line)
        elif outcome is None:
            return
        elif outcome.call_id is None:
            await self._reply(outcome.line)
        elif cancelled.is_set():
            self._exchange.calls.left(outcome.call_id)
        else:
            self._hand_overs.begin(identity, outcome.call_id)
            await self._hand(identity, outcome.call_id, outcome.line)

    async def _hand(self, identity: Id, call_id: str, line: bytes | Awaitable[bytes]) -> None:
        """Tell a request what became of its call; one that was given up by then, or later, has not been told."""
        try:
            told = await self._reply(line if isinstance(line, bytes) else await line)
            if told and self._hand_overs.wants(identity, call_id):
                self._exchange.calls.delivered(call_id)
        finally:
            if self._hand_overs.end(call_id):
                self._exchange.calls.take_back(call_id)

    async def _reply(self, line: bytes) -> bool:
        """True once the client has it; False where it is gone."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._to_client(line)
            return True
        return False

    # -- from the server ------------------------------------------------------------------------------------------

    async def from_server(self, line: bytes | TooLong) -> None:
        """Pass a message on; the result of a call is stored before, while others pass."""
        taken = self._answers.take(line)
        if taken is None:
            return
        if taken.record is None:
            await self._reply(taken.line)
            return
        identity = taken.values["id"]
        self._hand_overs.begin(identity, taken.record.proposed.id, wanted=identity not in self._given_up)
        self._given_up.discard(identity)
        await self._results.wait_for(len(taken.line))
        self._working += 1
        await self._start(self._work, self._store, taken, taken.record)

    async def _store(self, taken: Taken, record: CallRecord) -> None:
        try:
            stored = self._exchange.returned(record, taken)
            await self._hand(taken.values["id"], record.proposed.id, stored)
        finally:
            self._results.give(len(taken.line))
