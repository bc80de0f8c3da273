"""Messages of one client and one server: calls of tools go by the gate, everything else passes with its bytes.

A call that waits is held until shortly before clients give up; then the client is told that it waits, and the same call
again takes it up. A held call stops nothing: each is a task of its own, and their number is bounded.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from grampus_uq.errors import GrampusError, StoreError
from grampus_uq.gate.call import CallRecord, edit_note
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.mcp.guarded_calls import Answer, GuardedCalls, RefusedError, Run, Wait
from grampus_uq.mcp.json_rpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LIST,
    Id,
    Message,
    UnclearError,
    error_line,
    id_in,
    is_modern,
    judged_arguments,
    read_message,
    result_line,
    text_result,
    with_arguments,
    without_state,
    written,
)
from grampus_uq.mcp.message_lines import TooLong
from grampus_uq.mcp.request_state import RequestStateError, RequestStates, StateBinding
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Effect

HOLD_S: Final = 55.0
_MAX_HELD: Final = 1_000
_MAX_LISTS: Final = 1_000
_STORE_DOWN: Final = "Not executed: the session store cannot be reached, and no call runs without it."
_PENDING: Final = (
    "Not executed yet: this call waits for a human's decision (request {request}). Nothing has happened. Call this "
    "tool again with exactly the same arguments later: once it is approved, that runs it, once, and gives its result."
)
_RUNNING: Final = (
    "This call was approved and is still running. Call this tool again with exactly the same arguments later: that "
    "gives its result, and does not run it again."
)
Send = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class _Open:
    """A client's request of a tool that is not answered yet. `running` is the record that its server works on."""

    message: Message
    cancelled: anyio.Event = field(default_factory=anyio.Event)
    running: CallRecord | None = None


class Guard:
    """A `Relay` that judges calls. `hold_s`: how long a client's request is kept open while its call waits."""

    def __init__(
        self,
        to_client: Send,
        to_server: Send,
        *,
        calls: GuardedCalls,
        states: RequestStates,
        say: Callable[[str], None],
        hold_s: float = HOLD_S,
    ) -> None:
        self._to_client, self._to_server, self._say = to_client, to_server, say
        self._calls, self._states, self._hold_s = calls, states, hold_s
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
            await self._calls.run()
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
        await self._calls.aclose()

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
            await self._calls.finish(record, text="The client gave this call up.", is_error=True)
        return False

    async def _take(self, message: Message) -> None:
        assert message.id is not None  # noqa: S101 (a call without one was refused)
        if message.id in self._open or message.id in self._lists:
            why = f"the id {message.id!r:.60} is that of a request which is not answered yet"
            await self._reply(error_line(message.id, INVALID_REQUEST, f"refused: {why}"))
        elif len(self._open) >= _MAX_HELD:
            text = f"Not executed: {_MAX_HELD} calls are open already."
            await self._answer(message, text_result(text, is_error=True, modern=is_modern(message.params)))
        else:
            self._open[message.id] = one = _Open(message)
            await self._ready.wait()
            assert self._group is not None  # noqa: S101 (set before it is ready)
            self._group.start_soon(self._serve, one)

    async def _serve(self, one: _Open) -> None:
        """Bring one request to its answer, or to its server; whatever goes wrong with it is its own."""
        try:
            answer = await self._outcome(one)
        except RefusedError as error:
            answer = text_result(str(error), is_error=True, modern=is_modern(one.message.params))
        except StoreError as error:
            self._say(f"the store cannot be reached: {error}")
            answer = text_result(_STORE_DOWN, is_error=True, modern=is_modern(one.message.params))
        except RequestStateError as error:
            self._say(f"a requestState was refused: {error.detail}")
            self._close(one)
            await self._reply(error_line(one.message.id, INVALID_PARAMS, str(error)))
            return
        except GrampusError as error:
            self._say(f"a call was refused: {error}")
            answer = text_result(f"Not executed: {error}", is_error=True, modern=is_modern(one.message.params))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the server is gone
        except Exception as error:  # noqa: BLE001 (nothing that one call holds may end the others; it does not run)
            self._say(f"a call was refused: {type(error).__name__}: {error}")
            answer = text_result("Not executed: this call cannot be judged.", is_error=True)
        if answer is not None:
            self._close(one)
            await self._answer(one.message, answer)

    def _close(self, one: _Open) -> None:
        if one.message.id is not None and self._open.get(one.message.id) is one:
            del self._open[one.message.id]

    async def _answer(self, message: Message, result: Mapping[str, Any]) -> None:
        if message.id is not None:
            await self._reply(result_line(message.id, result))

    async def _reply(self, line: bytes) -> None:
        with suppress(anyio.BrokenResourceError):  # the client is gone
            await self._to_client(line)

    async def _outcome(self, one: _Open) -> Mapping[str, Any] | None:
        """The result to answer with; None where the server answers, or nobody waits for one any more."""
        stated, message = one.message.params.get("requestState"), without_state(one.message)
        call = ToolCall(
            id=f"call_{uuid.uuid4().hex}", name=message.params["name"], arguments=judged_arguments(message.params)
        )
        if message is not one.message:
            await self._calls.open()
            self._states.read(stated, self._binding(call), now_s=self._calls.now_s())
        call_id = await self._calls.propose(call)
        until = anyio.current_time() + self._hold_s
        while not one.cancelled.is_set():
            changed = self._calls.changed
            became = await self._calls.next(call_id)
            if isinstance(became, Run):
                return await self._pass(one, message, became.record)
            if isinstance(became, Answer):
                self._close(one)
                await self._answer(one.message, _result(became, is_modern(message.params)))
                await self._calls.delivered(call_id)
                return None
            with anyio.move_on_after(until - anyio.current_time()) as scope:
                await _first_of(changed.wait, one.cancelled.wait)
            if scope.cancelled_caught:
                return self._pending(message, call, became)
        self._close(one)
        return None

    def _binding(self, call: ToolCall) -> StateBinding:
        names = self._calls.names
        return StateBinding(
            agent_id=names.agent_id,
            session_id=names.session_id,
            call_digest=call.digest(),
            rules=self._calls.rules(),
        )

    def _pending(self, message: Message, call: ToolCall, wait: Wait) -> Mapping[str, Any]:
        """What a client is told whose call still waits."""
        modern = is_modern(message.params)
        if wait.request is None:
            return text_result(_RUNNING, is_error=True, modern=modern)
        if modern:
            state = self._states.issue(self._binding(call), wait.request.id, now_s=self._calls.now_s())
            return {"resultType": "input_required", "requestState": state}
        text = _PENDING.format(request=wait.request.id[:8])
        return text_result(text, is_error=True, request=wait.request.id, **_why(wait.request))

    async def _pass(self, one: _Open, message: Message, record: CallRecord) -> Mapping[str, Any] | None:
        """Give a started call to its server, with its own bytes unless a human changed it."""
        line: bytes | None = message.line
        if record.edited:
            line = with_arguments(message, record.call.arguments)
        if line is None:
            text = "Not executed: the edited arguments do not fit what else this call carries."
            await self._calls.finish(record, text=text, is_error=True)
            return text_result(text, is_error=True, modern=is_modern(message.params))
        one.running = record
        await self._to_server(line)
        return None

    # -- from the server ------------------------------------------------------------------------------------------

    async def from_server(self, line: bytes | TooLong) -> None:
        """Pass a message on; the result of a call is stored before."""
        if isinstance(line, TooLong):
            self._say("a message of the server is longer than a message may be: it is dropped")
            identity = id_in(line.head)
            if identity is not None and identity in self._open:
                await self._returned(identity, error_line(identity, INVALID_REQUEST, "the result is too long"))
        elif not self._open and not self._lists and not self._given_up:
            await self._reply(line)
        else:
            await self._seen(line)

    async def _seen(self, line: bytes) -> None:
        try:
            values = parse_json(line)
        except ValueError:
            values = None  # the client's to refuse
        identity = values.get("id") if isinstance(values, dict) and "method" not in values else None
        if isinstance(identity, str) or type(identity) is int:
            if identity in self._lists:
                self._lists.pop(identity)
                self._calls.take_list(values.get("result"))
            elif identity in self._open:
                await self._returned(identity, line)
                return
            elif identity in self._given_up:
                await self._finish(self._given_up.pop(identity), values)
        await self._reply(line)

    async def _returned(self, identity: Id, line: bytes) -> None:
        """Take the server's answer to a call; one that it was never asked is dropped."""
        one = self._open[identity]
        if one.running is None:
            self._say("the server answered a call that it was not asked: the answer is dropped")
            return
        self._close(one)
        values = json.loads(line)
        noted = await self._finish(one.running, values)
        await self._reply(line if noted is values.get("result") else written({**values, "result": noted}))
        await self._calls.delivered(one.running.proposed.id)

    async def _finish(self, record: CallRecord, values: Mapping[str, Any]) -> Any:
        """Store the server's answer to a call; returns its result, with a note where a human changed the call."""
        result, error = values.get("result"), values.get("error")
        noted = _with_note(result, edit_note(record))
        is_error = error is not None or (isinstance(result, dict) and result.get("isError") is True)
        raw = json.dumps(noted) if isinstance(noted, dict) else None
        await self._calls.finish(record, text=_text_of(result, error), is_error=is_error, raw=raw)
        return noted


async def _first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when the first of these has."""
    async with anyio.create_task_group() as group:

        async def one(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            group.cancel_scope.cancel()

        for wait in waits:
            group.start_soon(partial(one, wait))


def _why(request: ApprovalRequest) -> dict[str, Any]:
    return {"level": request.level.value, "rule": request.rule}


def _result(answer: Answer, modern: bool) -> Mapping[str, Any]:
    if answer.raw is not None:
        kept = parse_json(answer.raw)
        if isinstance(kept, dict):
            return kept
    return text_result(answer.text, is_error=answer.is_error, modern=modern)


def _with_note(result: Any, note: str | None) -> Any:
    """A result with a note in front of its content."""
    if note is None or not isinstance(result, dict):
        return result
    content = result.get("content")
    return {**result, "content": [{"type": "text", "text": note}, *(content if isinstance(content, list) else ())]}


def _text_of(result: Any, error: Any) -> str:
    """What a tool said, as text."""
    if error is not None:
        return json.dumps(error)
    content = result.get("content") if isinstance(result, dict) else None
    texts = [part["text"] for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else json.dumps(result)
