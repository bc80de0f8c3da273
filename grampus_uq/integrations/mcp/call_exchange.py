"""One call of a tool from the client's request to its answer, whatever carries the two: the gate's words in MCP's.

A call that waits is held until shortly before clients give up; then the client is told that it waits, and the same call
again takes it up. Official clients of the revision without a handshake send a call that waits again by themselves, ten
times at most; before that they are told in words.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from grampus_uq.errors import GrampusError, StoreError
from grampus_uq.gate.call import CallRecord, edit_note
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.integrations.mcp.answers import Taken
from grampus_uq.integrations.mcp.call_outcomes import Answer, Run, Wait
from grampus_uq.integrations.mcp.connection_session import RefusedError
from grampus_uq.integrations.mcp.elicitation import CREATE, QUESTION, Elicitation, elicits_here
from grampus_uq.integrations.mcp.guarded_calls import GuardedCalls
from grampus_uq.integrations.mcp.json_rpc import (
    INVALID_PARAMS,
    Message,
    UnclearError,
    error_line,
    is_modern,
    judged_arguments,
    refusal_line,
    request_in,
    result_line,
    text_result,
    with_arguments,
    without_state,
    written,
)
from grampus_uq.integrations.mcp.request_state import RequestState, RequestStateError, RequestStates
from grampus_uq.integrations.mcp.shown_names import without_prefix
from grampus_uq.records.values import ToolCall

if TYPE_CHECKING:
    from grampus_uq.integrations.mcp.call_spans import CallSpans, EndOfCall

HOLD_S: Final = 55.0
_MOST_ROUNDS: Final = 8
_STORE_DOWN: Final = "Not executed: the session store cannot be reached, and no call runs without it."
_UNSEEN: Final = (
    "The session store cannot be reached now: it is not known here whether this call still waits. Call this tool again "
    "with exactly the same arguments later: that says what became of it."
)
_PENDING: Final = (
    "Not executed yet: this call waits for a human's decision (request {request}). Nothing has happened. Call this "
    "tool again with exactly the same arguments later: once it is approved, that runs it, once, and gives its result."
)
_AGAIN: Final = (
    "Not executed yet: this call waits for a human's decision (request {request}). The same call {said}; this "
    "one was not sent. Call this tool again with exactly the same arguments later: once it is approved, that runs it "
    "and gives its result."
)
_UNKNOWN: Final = (
    "This call was started, and nobody knows whether it took effect: it waits for a human's decision (request "
    "{request}). It is not run again. {before}Call this tool again with exactly the same arguments later: that says "
    "what became of it."
)
_RUNNING: Final = (
    "This call was cleared and is still running. Call this tool again with exactly the same arguments later: that "
    "gives its result, and does not run it again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A call that its server is to run now: the line for it, and the record that its answer belongs to."""

    line: bytes
    record: CallRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to a request; `call_id` of a settled call, to be told as delivered."""

    line: bytes
    call_id: str | None = None


class CallExchange:
    """Judges the calls of one session for a transport. `hold_s`: how long a request is kept open while it waits.

    `prefix` stands before the names of the server's tools, for everybody but the server.
    """

    def __init__(
        self,
        calls: GuardedCalls,
        states: RequestStates,
        say: Callable[[str], None],
        *,
        hold_s: float = HOLD_S,
        elicitation: Elicitation | None = None,
        spans: CallSpans | None = None,
        prefix: str = "",
    ) -> None:
        self.calls, self.elicitation, self._spans, self.prefix = calls, elicitation, spans, prefix
        self._states, self._say, self._hold_s, self._until = states, say, hold_s, math.inf
        self.put: Callable[[bytes], Awaitable[object]] | None = None
        """Set by a transport whose client answers questions while its call waits."""

    async def outcome(self, message: Message, cancelled: anyio.Event) -> Passed | Answered | None:
        """The outcome of a call as `read_message` passed it on; None where its client gave it up. Never raises."""
        if self._spans is None:
            return await self._judged(message, cancelled)
        with self._spans.around(message) as span:
            outcome = await self._judged(message, cancelled)
        if isinstance(outcome, Passed):
            self._spans.passed(span, outcome.record.proposed.id)
        elif outcome is None:
            self._spans.unanswered(span)
        else:
            self._spans.answered(span, json.loads(outcome.line))
        return outcome

    async def _judged(self, message: Message, cancelled: anyio.Event) -> Passed | Answered | None:
        try:
            return await self._outcome(message, cancelled)
        except RefusedError as error:
            text = str(error)
        except StoreError as error:
            self._say(f"the store cannot be reached: {error}")
            text = _STORE_DOWN
        except RequestStateError as error:
            self._say(f"a requestState was refused: {error.detail}")
            return Answered(line=error_line(message.id, INVALID_PARAMS, str(error)))
        except GrampusError as error:
            text = f"Not executed: {error}"
        except Exception as error:  # noqa: BLE001 (nothing that one call holds may end the others; it does not run)
            self._say(f"a call was refused: {type(error).__name__}")
            text = "Not executed: this call cannot be judged."
        return Answered(line=refusal_line(message, text))

    async def _outcome(self, message: Message, cancelled: anyio.Event) -> Passed | Answered | None:
        until, round_, told = anyio.current_time() + self._hold_s, 0, None
        stated, own = message.params.get("requestState"), without_state(message)
        name = own.params["name"]
        if not name.startswith(self.prefix) or name == self.prefix:
            raise RefusedError(f"Not executed: the names of this server's tools begin with {self.prefix!r}.")
        arguments = judged_arguments(own.params)
        call = ToolCall(id=f"call_{uuid.uuid4().hex}", name=name, arguments=arguments)
        if own is not message:
            await self.calls.open()
            terms = self.calls.session.current().terms()
            told = self._states.read(stated, terms, call.digest(), now_s=self.calls.ledger.now_s())
            round_ = told.round + 1
        try:
            return await self._awaited(message, own, call, cancelled, told=told, round_=round_, until=until)
        finally:
            self.calls.leave(call.id)

    async def _awaited(
        self,
        message: Message,
        own: Message,
        call: ToolCall,
        cancelled: anyio.Event,
        *,
        told: RequestState | None,
        round_: int,
        until: float,
    ) -> Passed | Answered | None:
        """Return the outcome of a call judged now; `told`: what the client was told of it before."""
        opened, over = await self.calls.propose(call, request=request_in(own.params)), False
        while not cancelled.is_set():
            changed = self.calls.session.changed
            became = await self.calls.next(opened)
            if isinstance(became, Run):
                return await self._passed(own, became.record)
            if isinstance(became, Answer):
                result = None if became.raw is None else json.loads(became.raw)
                if not isinstance(result, dict):
                    modern = is_modern(message.params)
                    result = text_result(became.text, is_error=became.is_error, modern=modern)
                return Answered(line=result_line(message, result), call_id=opened.id)
            if became.request is not None and self.elicitation is not None:
                if told is not None and told.request_id == became.request.id:
                    told, answers = None, message.params.get("inputResponses")
                    if self.elicitation.was_shown(became.request):
                        answer = answers.get(QUESTION) if isinstance(answers, dict) else None
                        await self.elicitation.take(became.request, answer)
                elif self._shows_form(message, became.request, round_):
                    return Answered(line=result_line(message, self._pending(message, call, became, round_)))
                elif self.put is not None and (line := self.elicitation.ask(became.request)) is not None:
                    await self.put(line)
            if over:
                return Answered(line=result_line(message, self._pending(message, call, became, round_)))
            with anyio.move_on_after(min(until, self._until) - anyio.current_time()) as scope:
                await _first_of(changed.wait, cancelled.wait)
            over = scope.cancelled_caught
            if over:  # then it is looked at once more: what the client is told is what is known last
                await self._confirm()
        return None

    async def _confirm(self) -> None:
        """What a client is told of a call that waits is so only while the session is served here."""
        try:
            await self.calls.session.confirm()
        except StoreError as error:
            self._say(f"the store cannot be reached: {error}")
            raise RefusedError(_UNSEEN) from error

    def _pending(self, message: Message, call: ToolCall, wait: Wait, round_: int) -> Mapping[str, Any]:
        """Return the answer to a client whose call is still pending."""
        modern = is_modern(message.params)
        if wait.request is None:
            return text_result(_RUNNING, is_error=True, modern=modern)
        if modern and round_ < _MOST_ROUNDS:
            terms, now_s = self.calls.session.current().terms(), self.calls.ledger.now_s()
            state = self._states.issue(terms, call.digest(), wait.request.id, now_s=now_s, round=round_)
            asked: dict[str, Any] = {"resultType": "input_required", "requestState": state}
            if self.elicitation is not None and self._shows_form(message, wait.request, round_):
                params = {"mode": "form", **self.elicitation.form(wait.request)}
                asked["inputRequests"] = {QUESTION: {"method": CREATE, "params": params}}
            return asked
        said = self.calls.known_of(call, ended=wait.request.unknown_outcome)
        text = _UNKNOWN if wait.request.unknown_outcome else _PENDING if said is None else _AGAIN
        before = "" if said is None else f"The same call {said}. "
        text = text.format(request=wait.request.id[:8], said=said, before=before)
        why = {"request": wait.request.id, "level": wait.request.level.value, "rule": wait.request.rule}
        return text_result(text, is_error=True, modern=modern, **why)

    def _shows_form(self, message: Message, request: ApprovalRequest, round_: int) -> bool:
        """True where a client that answers by sending its call again is asked: at first, and about a new request."""
        if self.elicitation is None or not (is_modern(message.params) and elicits_here(message.params)):
            return False
        return round_ == 0 or (round_ < _MOST_ROUNDS and not self.elicitation.was_shown(request))

    async def _passed(self, message: Message, record: CallRecord) -> Passed | Answered:
        """A started call with its own bytes, unless a human changed it."""
        message = without_prefix(self.prefix, message)
        try:
            line = with_arguments(message, record.call.arguments) if record.edited else message.line
            return Passed(line=line, record=record)
        except UnclearError as error:
            why = f"as it was edited, {error}"
        await self.not_sent(record, why)
        before = " It was started before and may have taken effect." if record.began_before else ""
        text = f"Not {'sent again' if before else 'executed'}: {why}.{before}"
        return Answered(line=refusal_line(message, text))

    async def returned(self, record: CallRecord, taken: Taken) -> bytes:
        """Store the server's answer to a call: the line for the client, with a note where a human changed the call.

        Of one that could not be read a human is asked what became of the call.
        """
        line, values = taken.line, taken.values
        if taken.lost:
            await self.lost(record)
            return line
        if self._spans is not None:
            self._spans.returned(record.proposed.id, values)
        told = _with_note(values, edit_note(record))
        result, error, raw = told.get("result"), told.get("error"), None
        is_error = error is not None or (isinstance(result, dict) and result.get("isError") is True)
        with suppress(ValueError, RecursionError):  # NaN, or too deep: no strict JSON
            raw = json.dumps(result, allow_nan=False) if isinstance(result, dict) else None
            line = line if told is values else written(told)
        await self.calls.finish(record, text=_text_of(result, error), is_error=is_error, raw=raw, answered=True)
        return line

    # -- without an answer ----------------------------------------------------------------------------------------

    async def withdraw(self, record: CallRecord, **why: str) -> None:
        """The client gave a call up before its server heard of it, or there is another reason `why` it must not."""
        self._ended(record, "cancelled")
        await self.calls.withdraw(record, **why)

    async def given_up(self, record: CallRecord) -> None:
        """The client gave up a call that its server has, and no answer came."""
        self._ended(record, "cancelled")
        await self.calls.given_up(record)

    async def lost(self, record: CallRecord) -> None:
        """No answer will come to a call that its server may have."""
        self._ended(record, "no_answer")
        await self.calls.lost(record)

    async def not_sent(self, record: CallRecord, why: str) -> None:
        """A call could not be sent to its server, and its client is told so; one that began before is asked about."""
        self._ended(record, "no_answer")
        if record.began_before:
            await self.calls.withdraw(record, why=why)
            return
        await self.calls.finish(record, text=f"Not executed: {why}.", is_error=True, sent=False)
        self.calls.delivered(record.proposed.id)

    def end(self) -> None:
        """The proxy ends: clients whose calls wait are told so now."""
        self._until = -math.inf
        self.calls.session.wake()

    async def aclose(self) -> None:
        """The client and the server are gone."""
        if self._spans is not None:
            self._spans.close()
        await self.calls.session.aclose()

    def _ended(self, record: CallRecord, why: EndOfCall) -> None:
        if self._spans is not None:
            self._spans.ended(record.proposed.id, why)


async def _first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when the first of these has."""
    async with anyio.create_task_group() as group:

        async def one(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            group.cancel_scope.cancel()

        for wait in waits:
            group.start_soon(partial(one, wait))


def _with_note(values: Mapping[str, Any], note: str | None) -> Mapping[str, Any]:
    """An answer with a note in front of its result's content, or of its error's message."""
    result, error = values.get("result"), values.get("error")
    if note is not None and isinstance(error, dict):
        return {**values, "error": {**error, "message": f"{note} {error.get('message', '')}"}}
    if note is None or not isinstance(result, dict):
        return values
    content = result.get("content")
    told = [{"type": "text", "text": note}, *(content if isinstance(content, list) else ())]
    return {**values, "result": {**result, "content": told}}


def _text_of(result: Any, error: Any) -> str:
    """Return a tool's result as text."""
    if error is not None:
        return json.dumps(error)
    content = result.get("content") if isinstance(result, dict) else None
    parts = content if isinstance(content, list) else ()
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else json.dumps(result)
