"""The calls of one session behind the gate, with the session store as its host: judged, held, decided, run once.

It works as an `AgentRunner` without a model: the same state in the store, the same record of a call, lease, audit, stop
orders and decisions. A call is `started` in the store before its server hears of it. The same call again (tool and
arguments) takes up the open one: what waits goes on waiting, what was approved runs once, a result that could not be
handed over is handed over. After that the same call is a new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio

from grampus_uq.errors import SessionConflictError, StoreError
from grampus_uq.gate.call import CallPhase, CallRecord, Doubt, settled
from grampus_uq.gate.gate import both
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.integrations.mcp.call_notes import CallNotes, likeness, noted
from grampus_uq.integrations.mcp.call_outcomes import REPEATED, Answer, OpenCall, Run, Wait, matters
from grampus_uq.integrations.mcp.connection_session import ConnectionSession, RefusedError
from grampus_uq.integrations.mcp.hand_overs import DeliveredResults
from grampus_uq.integrations.mcp.listed_tools import ListedTools
from grampus_uq.integrations.mcp.pins import Pin
from grampus_uq.integrations.mcp.tool_pins import UNLISTED, ToolPins, changed
from grampus_uq.records.latest import Latest
from grampus_uq.records.values import Message, ToolCall, ToolResult
from grampus_uq.records.vocabulary import Effect, Role, UncertaintyAction
from grampus_uq.runtime.apply_decisions import apply_response
from grampus_uq.runtime.asked_rows import sessions_asking
from grampus_uq.runtime.begun_with import BegunWith
from grampus_uq.runtime.concurrent_tasks import run_with_watch
from grampus_uq.runtime.heard_answers import hear_before
from grampus_uq.runtime.ledger import Note
from grampus_uq.runtime.run_state import AgentState, placeholder
from grampus_uq.runtime.turn import Turn

_POLL_S: Final = 0.3
_MAX_OPEN: Final = 1_000
_MAX_MESSAGES: Final = 400
_MAX_TEXT: Final = 2_000
_MAX_WAITING: Final = 8_000_000
_MAX_ASKING: Final = 1_000
_PROMPT: Final = 24
_ABORTED: Final = "Not executed: the policy aborted this session. No call of it runs any more."
_CROWDED: Final = (
    f"Not executed, and nobody was asked: calls of {_MAX_ASKING:,} other sessions of this server already wait for a "
    "human. Call this tool again once some of them were decided."
)
_WITHDRAWN: Final = "its client gave it up when it was approved: its server has not heard of it"
_FORGOTTEN: Final = "It is not known here what became of this call: it may have run."
_UNCLASSIFIED: Final = "nothing says what this tool does ([effects] in the settings can)"
GIVEN_UP: Final = "The client gave this call up."


class GuardedCalls:
    """The calls of one session. Safe for concurrent tasks of one event loop; `run` has to run beside.

    A call's writes are awaited without the session's lock: a store that hangs delays only calls that need it.
    """

    def __init__(self, session: ConnectionSession, tools: ListedTools, *, only_listed: bool = False) -> None:
        self.session, self.tools, self._only_listed = session, tools, only_listed
        self.gate, self.ledger = session.gate, session.ledger
        self._pins = ToolPins(self.ledger.store, session.names.agent_id)
        self._seen, self._watched = dict[str, int](), dict[str, ApprovalRequest]()  # by the id of a request
        self._storing: set[str] = set()
        self._delivered, self._unsaved = DeliveredResults(), anyio.Event()
        self._likenesses = dict[str, tuple[ToolCall, str]]()  # by the id of an open call
        self._sizes: Latest[str, int] = Latest(_MAX_OPEN)  # by the same: writing a large call takes a while
        self._awaited = set[str]()  # calls whose client waits for what becomes of them
        self._open: WeakValueDictionary[str, OpenCall] = WeakValueDictionary()

    async def open(self) -> None:
        """Take the session up, or begin it. Raises RefusedError once it has ended, StoreError."""
        async with self.session.lock:
            await self.session.turn()

    async def run(self) -> None:
        """Renew the lease, take up decisions, save what was delivered and heed stop orders, until it is cancelled."""
        await self.session.run(partial(run_with_watch, self._take_decisions, self._save_delivered))

    def take_list(self, result: Any, *, begins: bool = True) -> None:
        """Take the result of a `tools/list`: calls from now on are judged by it. Raises ValueError as `ListedTools`."""
        self.tools.take(result, begins=begins)
        self.gate.effects = self.tools.effects()

    # -- proposing ------------------------------------------------------------------------------------------------

    async def propose(self, call: ToolCall, *, request: str | None = None) -> OpenCall:
        """Take up the open call that is the same, or judge this one: what `next` is asked with.

        `request`, the user's, is kept nowhere. Raises RefusedError with a sentence for the model, StoreError.
        """
        async with self.session.lock:
            turn = await self.session.turn()
            state = turn.lease.state
            known = self._same(call) if self._acts else None  # what is advised runs anyway: each call is a new one
            if known is not None:
                return self._open.setdefault(known.proposed.id, OpenCall(id=known.proposed.id))
            if len(state.turn) >= _MAX_OPEN:
                self._forget_oldest(state)
            if len(state.turn) >= _MAX_OPEN:
                raise RefusedError(f"Not executed: {_MAX_OPEN} calls of this session are open already.")
            sizes = (self._size(record.proposed) for record in state.turn if record.waiting)
            if self._size(call) + sum(sizes) > _MAX_WAITING:
                raise RefusedError("Not executed: the arguments of the calls that wait are too large together.")
            await hear_before(turn, [call])
            self._open[call.id] = opened = OpenCall(id=call.id, shown=self.tools.shown(call.name))
            doubt = await self._doubt(call, opened.shown) if self._acts else None
            self._note_call(call)
            if self.session.monitor.plan.brings_model:
                await self._read(turn, call, request)
            if await turn.judge(doubt) is UncertaintyAction.ABORT:
                await self.session.abort(_ABORTED)
                opened.answer = Answer(text=_ABORTED, is_error=True)
                return opened
            self._notes.ask(call.id, opened.shown)  # whatever asks about it, now or later
            record = next(one for one in state.turn if one.proposed.id == call.id)
            if record.waiting:
                record = self._notes.told(record)
                if call.name in self.gate.effects.unclassified():
                    record = noted(record, _UNCLASSIFIED)
                self._keep_parameters(state, call.name)
                await self._check_room(turn, state.keep(record))
        if record.waiting:
            await turn.lease.save(("paused", {"requests": [request.id for request in record.requests]}))
        return opened

    async def _check_room(self, turn: Turn, asked: CallRecord) -> None:
        """Raise RefusedError for the first call of a session that would wait where too many other sessions do."""
        names, state = self.session.names, turn.lease.state
        if any(one.waiting for one in state.turn if one is not asked):
            return
        if len(await sessions_asking(self.ledger.store, names.agent_id) - {names.session_id}) < _MAX_ASKING:
            return
        state.turn = [one for one in state.turn if one is not asked]
        await self.gate.answered(settled(asked, _CROWDED, is_error=True), turn.terms())
        raise RefusedError(_CROWDED)

    async def _doubt(self, call: ToolCall, shown: tuple[Pin, ...]) -> Doubt | None:
        """Why a call waits, whatever the policy: its tool's definition, or the same one went ahead before."""
        doubt = await self._redefined(shown)
        if not self._repeats(call):
            return doubt
        return both(doubt, REPEATED)

    async def _redefined(self, shown: tuple[Pin, ...]) -> Doubt | None:
        """Why a call waits for its tool's definition: it changed, or no list that this session still knows has it."""
        return UNLISTED if not shown and self._only_listed else await self._pins.doubt(shown)

    def _repeats(self, call: ToolCall) -> bool:
        """Return True for an irreversible call if an equal one was, or may have been, sent, or a human rejected it."""
        if self.gate.effect(call, None, self.session.monitor.profile.policy) is not Effect.IRREVERSIBLE:
            return False
        same = likeness(call)
        self._notes.renew_rejection(same)
        return self._notes.known_of(same) is not None or any(self._equal_to(same))

    def _equal_to(self, same: str) -> Iterator[CallRecord]:
        """The open calls of this likeness, as proposed or as changed. Each is read once: it may be large."""
        turn, known = self.session.current().lease.state.turn, self._likenesses
        self._likenesses = {}
        for one in turn:
            call, found = known.get(one.proposed.id) or (None, "")
            self._likenesses[one.proposed.id] = one.call, found if call is one.call else likeness(one.call)
        changed = {one.proposed.id for one in turn if one.edited and likeness(one.proposed) == same}
        return (one for one in turn if self._likenesses[one.proposed.id][1] == same or one.proposed.id in changed)

    @property
    def _acts(self) -> bool:
        return not self.session.monitor.profile.advisory

    def _same(self, call: ToolCall) -> CallRecord | None:
        """The open record of the same call: one that waits, that a human decided on, or whose client gave it up."""
        digest, turn = call.digest(), self.session.current().lease.state.turn
        found = [
            record
            for record in turn
            if record.proposed.name == call.name  # the digest of a large call takes a while
            and (record.waiting or record.decisions or self._given_up(record))
            and record.proposed.digest() == digest
        ]
        free = (record for record in found if record.proposed.id not in self._open)  # of two, each request takes up one
        return next(free, found[0] if found else None)

    def _size(self, call: ToolCall) -> int:
        if call.id not in self._sizes:
            self._sizes[call.id] = len(call.canonical())
        return self._sizes[call.id]

    def _keep_parameters(self, state: AgentState, tool: str) -> None:
        """Keep the schema of a tool whose call a human is asked about, and may edit."""
        (BegunWith.read(state) or BegunWith()).keep_parameters(state, tool, self.tools.schema(tool))

    def _forget_oldest(self, state: AgentState) -> None:
        """Make room: of the calls that nobody asks for any more, the first is kept no longer."""
        settled = (one for one in state.turn if one.phase is CallPhase.SETTLED and one.proposed.id not in self._open)
        oldest = next((one for one in settled if one.proposed.id not in self._awaited), None)
        if oldest is not None:
            state.turn = [one for one in state.turn if one is not oldest]
            self._notes.keep_rejection(oldest)
            self._notes.drop_result(oldest.proposed.id)

    def _given_up(self, record: CallRecord) -> bool:
        """Return True for a call running or run without a human's decision, whose client lacks the result."""
        ran = record.phase in (CallPhase.STARTED, CallPhase.SETTLED) and self._acts and matters(record)
        return ran and record.proposed.id not in self._awaited

    @property
    def _notes(self) -> CallNotes:
        return CallNotes(self.session.current().lease.state)

    def known_of(self, call: ToolCall, *, ended: bool = False) -> str | None:
        """The outcome of the same call before, in this session; None: not known. `ended`: only where it is known."""
        return self._notes.known_of(likeness(call), ended=ended)

    def _tell_waiting(self, started: CallRecord) -> None:
        """Ask anew about calls that wait while the same one starts: what was said of them does not hold any more."""
        turn = self.session.current()
        for one in [same for same in self._equal_to(likeness(started.call)) if same.waiting]:
            why = f"the same call {self.known_of(one.proposed)}"
            turn.lease.state.keep(self.gate.asked_again(one, turn.terms(), why))
        self.session.wake()

    def _note_call(self, call: ToolCall) -> None:
        state = self.session.current().lease.state
        state.turn.append(CallRecord.new(call, call.id))
        if len(state.messages) >= _MAX_MESSAGES + 2 * len(state.turn):
            open_calls = {record.proposed.id for record in state.turn}  # what became of one is read from its message
            state.messages = [m for m in state.messages if m.tool_call_id in open_calls]
        state.messages.append(Message(role=Role.ASSISTANT, tool_calls=(call,)))
        state.messages.append(placeholder(call, "This call has not been executed."))
        state.current_step += 1

    async def _read(self, turn: Turn, call: ToolCall, request: str | None) -> None:
        session = turn.lease.session
        if session is None:
            return
        asked = [] if request is None else [Message(role=Role.USER, content=request)]
        function = {"name": call.name, "parameters": self.tools.schema(call.name) or {"type": "object"}}
        await session.observe_llm_response(
            "",
            call.id,
            prompt_messages=[*asked, *turn.lease.state.messages[-_PROMPT:-2]],
            tool_calls=[call],
            tools=[{"type": "function", "function": function}],
        )

    # -- what becomes of it ---------------------------------------------------------------------------------------

    async def next(self, call: OpenCall) -> Run | Wait | Answer:
        """The next act on a call. A cleared one is started: exactly one task is told to run it."""
        async with self.session.lock:
            if call.id in self._storing:
                return Wait(request=None)
            if call.answer is not None:
                return call.answer
            if self.session.refusal is not None:
                return Answer(text=self.session.refusal, is_error=True)
            turn = self.session.current()
            record = next((one for one in turn.lease.state.turn if one.proposed.id == call.id), None)
            if record is None:
                return Answer(text=_FORGOTTEN, is_error=True)
            shown = self.tools.shown(record.proposed.name) if record.decisions else call.shown
            doubt = await self._void(record, shown) if record.phase is CallPhase.CLEARED else None
            if doubt is not None:
                self._notes.sends_not(call.id)
                self._notes.ask(call.id, shown)
                self._keep_parameters(turn.lease.state, record.proposed.name)
                record = turn.lease.state.keep(self._notes.told(self.gate.asked(record, turn.terms(), doubt)))
                await turn.lease.save()
            if record.phase is CallPhase.CLEARED and matters(record):  # what is saved before it is sent holds it
                self._notes.sends(call.id, likeness(record.call), self.ledger.now_s())
            started = await turn.start([record]) if record.phase is CallPhase.CLEARED else []
            if not started:
                record = turn.lease.state.record(record)
                if record.waiting:
                    self._notes.sends_not(call.id)
                if record.phase is CallPhase.SETTLED:
                    self._awaited.add(call.id)  # of two equal ones that nobody decided on each request is told of one
                    return self._handed_over(record)
                return Wait(request=record.requests[0] if record.waiting else None)
            self._awaited.add(call.id)
            if matters(started[0]):
                self._tell_waiting(started[0])
        record = started[0]
        reads = record.effect is Effect.READ and not record.decisions and record.grant is None
        announced = False
        try:
            await self._pins.keep(shown)  # before what looks last whether the call may still go
            announced = reads or bool(await turn.announce(started))
        finally:
            now = (one.phase for one in turn.lease.state.turn if one.proposed.id == call.id)
            if not announced and CallPhase.STARTED not in now:  # another request may have started it meanwhile
                self._notes.sends_not(call.id)
        if not announced:
            return await self.next(call)
        self.tools.note_cleared(shown)
        return Run(record=record)

    async def _void(self, record: CallRecord, shown: tuple[Pin, ...]) -> Doubt | None:
        """Why a cleared call is asked about again: what was shown of its tool is not what it was asked under."""
        before = self._notes.asked_under(record.proposed.id) or []
        new = [pin for pin in shown if pin.digest not in before]
        if not self._acts or not record.decisions or not (new or (before and not shown)):
            return None
        doubt = await self._redefined(shown)
        if doubt is None and before and new:
            old = shown[0] if shown[0] not in new else Pin(name=shown[0].name, digest="", definition=None)
            doubt = changed("since this call was asked about", old, new)
        return None if doubt is None else replace(doubt, reason=f"asked again, the approval is void: {doubt.reason}")

    def _handed_over(self, record: CallRecord) -> Answer:
        """The answer of a settled call: its kept result, or the text in its place."""
        state = self.session.current().lease.state
        raw = self._notes.result(record.proposed.id)
        texts = (m.content for m in reversed(state.messages) if m.tool_call_id == record.proposed.id)
        return Answer(text=next(texts, None) or _FORGOTTEN, is_error=record.is_error, raw=raw)

    async def finish(
        self,
        record: CallRecord,
        *,
        text: str,
        is_error: bool,
        raw: str | None = None,
        answered: bool = False,
        sent: bool = True,
    ) -> None:
        """Take what became of a call that was started; it is stored before anybody is told of it.

        `answered`: its server did. Only that answer to a call that nobody decided on is kept. `sent`: it may have.
        """
        async with self.session.lock:
            turn = self.session.current()
            state = turn.lease.state
            if not any(one.proposed.id == record.proposed.id and one.phase is CallPhase.STARTED for one in state.turn):
                return
            stays = bool(record.decisions) or (answered and self._acts and matters(record))
            if stays and raw is not None:
                self._notes.keep_result(record.proposed.id, raw)
            if not answered:
                self._notes.sends_not(record.proposed.id)
            elif matters(record):
                now_s, same = self.ledger.now_s(), likeness(record.call)
                self._notes.answered(record.proposed.id, same, now_s, is_error=is_error)
            outcome = ToolResult(tool_call_id=record.call.id, output=_short(text), is_error=is_error)
            record = state.record(record)
            turn.take_result(record, outcome)
            waited_for = self._open.get(record.proposed.id)
            if waited_for is not None:
                waited_for.answer = Answer(text=_short(text), is_error=is_error, raw=raw)
            if not stays:
                state.turn = [one for one in state.turn if one.proposed.id != record.proposed.id]
            if not (stays and answered):
                self._awaited.discard(record.proposed.id)
            self._storing.add(record.proposed.id)
        try:
            with contextlib.suppress(SessionConflictError):
                await turn.store_result(record, outcome, ran=sent)
        finally:
            self._storing.discard(record.proposed.id)
            self.session.wake()

    async def lost(self, record: CallRecord) -> None:
        """No result of a call that was started will come: a read may run again, for any other a human is asked."""
        notes: list[Note] = []
        async with self.session.lock:
            turn = self.session.current()
            state = turn.lease.state
            self._awaited.discard(record.proposed.id)
            if any(one.proposed.id == record.proposed.id and one.phase is CallPhase.STARTED for one in state.turn):
                after = self.gate.recovered(state.record(record), turn.terms(), record.effect)
                if after.waiting and self._acts:
                    state.keep(self._notes.told(after))
                    notes.append(("outcome_unknown", turn.facts(record)))
                else:
                    state.turn = [one for one in state.turn if one.proposed.id != record.proposed.id]
            self._notes.lost(record.proposed.id)
        if notes:
            with contextlib.suppress(SessionConflictError):
                await turn.lease.try_save(*notes)
        self.session.wake()

    def leave(self, call_id: str) -> None:
        """The request that proposed a call is answered: one that nobody asked about and that did not start is none."""
        if not self.session.is_open:
            return
        state, gone = self.session.current().lease.state, (CallPhase.NEW, CallPhase.CLEARED)
        if any(o.proposed.id == call_id and o.phase in gone and not o.decisions for o in state.turn):
            state.turn = [one for one in state.turn if one.proposed.id != call_id]
            self._notes.sends_not(call_id)

    async def withdraw(self, record: CallRecord, why: str = _WITHDRAWN) -> None:
        """A started call was held back before its server heard of it: one that was approved is asked about again."""
        if not record.decisions:
            await self.finish(record, text=GIVEN_UP, is_error=True, sent=False)
            return
        self._awaited.discard(record.proposed.id)
        async with self.session.lock:
            turn = self.session.current()
            state = turn.lease.state
            self._notes.sends_not(record.proposed.id)
            started = [r for r in state.turn if r.proposed.id == record.proposed.id and r.phase is CallPhase.STARTED]
            for one in started:
                self._notes.ask(one.proposed.id, self.tools.shown(one.proposed.name))
                state.keep(self._notes.told(self.gate.not_begun(one, turn.terms(), why)))
        with contextlib.suppress(SessionConflictError):
            await turn.lease.try_save(*map(turn.withdrawn, started))
        self.session.wake()

    async def given_up(self, record: CallRecord) -> None:
        """The client gave a call up that runs, and no answer came: what became of it is asked where it matters."""
        if matters(record):
            await self.lost(record)
        else:
            await self.finish(record, text=GIVEN_UP, is_error=True)

    def left(self, call_id: str) -> None:
        """The client gave up before it was told: the same call again takes up this one, and does not run beside it."""
        self._awaited.discard(call_id)

    def delivered(self, call_id: str) -> None:
        """The client was handed what became of a call: the same call again is a new one.

        Like `take_back` it waits for nothing: at no moment is a call neither open nor delivered. `run` saves it.
        """
        self._awaited.discard(call_id)
        if not self.session.is_open:
            return
        state = self.session.current().lease.state
        settled = [r for r in state.turn if r.proposed.id == call_id and r.phase is CallPhase.SETTLED]
        if not settled:
            return
        self._notes.keep_rejection(settled[0])
        answer, waited_for = self._handed_over(settled[0]), self._open.get(call_id)
        if waited_for is not None and waited_for.answer is None:
            waited_for.answer = answer
        state.turn = [record for record in state.turn if record.proposed.id != call_id]
        self._delivered.add(settled[0], answer.text, self._notes.drop_result(call_id))
        self._unsaved.set()

    async def _save_delivered(self) -> None:
        """Save what was delivered, beside all else: a process that takes the session up must not hand it over again."""
        while True:
            await self._unsaved.wait()
            self._unsaved = anyio.Event()
            with contextlib.suppress(SessionConflictError):
                await self.session.current().lease.try_save()

    def take_back(self, call_id: str) -> None:
        """The client left before it was handed a result: keep it for the same call. Waits for nothing."""
        self._awaited.discard(call_id)
        taken = self._delivered.take(call_id)
        if taken is None or not self.session.is_open:
            return
        record, text, raw = taken
        same, state = self._same(record.proposed), self.session.current().lease.state
        if same is not None and same.phase not in (CallPhase.STARTED, CallPhase.SETTLED):
            return  # it was asked about anew
        if len(state.turn) >= _MAX_OPEN:
            self._forget_oldest(state)
        state.turn = [*state.turn, record]
        if raw is not None:
            self._notes.keep_result(call_id, raw)
        if not any(message.tool_call_id == call_id for message in state.messages):
            state.messages.append(
                Message(role=Role.TOOL, content=text, name=record.proposed.name, tool_call_id=call_id)
            )

    # -- decisions ------------------------------------------------------------------------------------------------

    async def _take_decisions(self) -> None:
        """Look for decisions and expired requests while calls wait; never ends."""
        while True:
            await anyio.sleep(_POLL_S)
            waiting = {one.proposed.id: one for one in self.session.current().lease.state.turn if one.waiting}
            if not waiting:
                continue
            try:
                requests = [request for record in waiting.values() for request in record.requests]
                still = {i: one for i, one in self._watched.items() if one.call is not None and one.call.id in waiting}
                self._watched = still | {request.id: request for request in requests}
                arrived = await self.ledger.decisions(list(self._watched))
                counts = {request: len(found) for request, found in arrived.items() if found}
                late = any(request.expired(self.ledger.now_s()) and not request.unknown_outcome for request in requests)
                if late or any(self._seen.get(request) != count for request, count in counts.items()):
                    async with self.session.lock:
                        earlier = list(self._watched.values())
                        await apply_response(self.session.current(), None, earlier=earlier)
                        await self.session.current().lease.save()
                    self._seen = counts
                    self.session.wake()
            except StoreError as error:
                self.session.say(f"decisions cannot be looked for: {error}")
                await anyio.sleep(10 * _POLL_S)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… (shortened from {len(text)} characters)"
