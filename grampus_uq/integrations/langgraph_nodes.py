"""The nodes of a guarded graph: they judge the model's turn, ask humans, check the tools' calls, and lead on.

`langgraph_wrapping` has how they are put around the user's own nodes.
"""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.types import Command, Send

from grampus_uq import ConfigurationError
from grampus_uq.gate.call import CallPhase, CallRecord, settled
from grampus_uq.gate.starts import by_itself, let_by
from grampus_uq.integrations.carried_states import ADVISED, Carried, requests_of
from grampus_uq.integrations.judged_turns import NOT_CLEARED, TurnJudge
from grampus_uq.integrations.langchain_asked import Asked, asked_here
from grampus_uq.integrations.langchain_messages import (
    answer_of,
    answers_of,
    find_record,
    last_answer,
    messages_beside,
    observe_between,
    read_turn,
    shown,
    unrun,
    with_arguments,
    with_ids,
)
from grampus_uq.integrations.langgraph_steps import Way, read_log
from grampus_uq.integrations.langgraph_threads import (
    KEY,
    answers_of_run,
    ask_humans,
    may_repeat,
    read_state,
    session_id_of,
)
from grampus_uq.integrations.langgraph_wrapping import Onward, is_pushed, leading
from grampus_uq.records.latest import Latest

_MAX_NOTED = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardNodes:
    """The guard's nodes in and between the model's node and the tools' node; only `gate` asks humans."""

    judge: TurnJudge
    messages_key: str
    agent: str
    tools: str
    score_node: str
    gate_node: str
    end: str
    own: bool
    """The tools' node is the guard's, which refuses each call itself, and answers each that it runs."""
    one_by_one: Callable[[], bool]
    """True for a graph with a key that takes one value in a superstep: the tools' node may write it for each call."""
    _name: str = field(default_factory=lambda: uuid.uuid4().hex)
    _results: Latest[str, list[Any]] = field(default_factory=lambda: Latest(_MAX_NOTED))
    """Results of the tools' node for calls that run once, by what lets them run."""
    _noted: Latest[tuple[str, str], Asked] = field(default_factory=lambda: Latest(_MAX_NOTED))
    """Messages of the model as its node returned them, and what it was asked with, until `score` judges them."""

    # -- judging --------------------------------------------------------------------------------------------------

    async def inside(self, state: Any, result: Any, config: RunnableConfig) -> Any:
        """Judge the turn that the model's node just returned, and write both at once."""
        key = self.messages_key
        if not isinstance(state, dict):  # somebody sent it
            state = {key: state if isinstance(state, list | tuple) else getattr(state, key, None)}
        update: Any = result.update if isinstance(result, Command) and result.graph is None else result
        before: Sequence[AnyMessage] = state.get(key) or ()
        added = _added(before, update.get(key)) if isinstance(update, dict) else None
        if added is None:
            return leading(await self.note(state, result, config), self.score_node)
        index = len(before) + len(added) - 1
        carried, message, beside = await self._judged([*before, *added], index, state, config, asked_here())
        messages = [*added[:-1], message]
        state = {**state, key: [*before, *messages]}
        carried = self._handing(state, beside, carried)
        kept = self._state(carried)
        given = update[key] if message is added[-1] and not beside else [*messages, *beside]
        update = {**update, key: given, KEY: kept}
        goto = self._next({**state, KEY: kept}, beside, carried)
        if isinstance(result, Command):
            return [replace(result, update=update), Onward(goto=goto)]
        return Onward(update=update, goto=goto)

    async def note(self, state: dict[str, Any], result: Any, config: RunnableConfig) -> Any:
        """Remember the messages that the model's node returned, for `score`."""
        for one in result if isinstance(result, list | tuple) else [result]:
            update = one.update if isinstance(one, Command) else one
            for message in _of_model(update.get(self.messages_key)) if isinstance(update, dict) else ():
                self._noted[session_id_of(config), _content(message)] = asked_here()
        return result

    def _take_noted(self, config: RunnableConfig, message: Any) -> Asked | None:
        """Once, what was noted of a message that the model's node returned here; the checkpoint's may be anybody's."""
        kept = config.get("configurable", {}).get("thread_id")
        return self._noted.pop((session_id_of(config), _content(message)), None) if kept else Asked()

    async def score(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Judge the turn that the model's node wrote: one superstep, checkpointed, without an interrupt."""
        key = self.messages_key
        messages: Sequence[AnyMessage] = state.get(key) or ()
        index = last_answer(messages)
        over = _answer_is_over(messages)
        if over and not self.judge.acts:
            return Onward(goto=self.end)
        if index is None and state.get(KEY):  # `update_state` took the answer away
            return self._go_on(state, self._open(state, read_state(self.judge, config, state[KEY])), [])
        if index is None:
            rule = "with a message of the model, which the guard judges"
            raise ConfigurationError.of(key, "uncertainty_guard", rule, f"{len(messages)} messages")
        if over:  # `update_state` may have written as the model's node, after an answer that was judged
            carried = self._open(state, read_state(self.judge, config, state.get(KEY)))
            if _is_judged(carried, messages):
                return self._go_on(state, carried, [])
        asked = self._take_noted(config, messages[index])
        carried, message, beside = await self._judged(messages, index, state, config, asked)
        answered = _answered(messages, ())  # before `update_state` changed another call of the turn
        beside = [one for one in beside if getattr(one, "tool_call_id", None) not in answered]
        if message is not messages[index]:
            beside.insert(0, message)
        return self._go_on(state, carried, beside)

    async def _judged(
        self,
        messages: Sequence[AnyMessage],
        index: int,
        state: dict[str, Any],
        config: RunnableConfig,
        asked: Asked | None,
    ) -> tuple[Carried, Any, list[Any]]:
        """The state after the turn, its message with ids, messages beside; it may be anybody's without `asked`."""
        judge, message = self.judge, messages[index]
        message = with_ids(message) if judge.acts else message
        begun = last_answer(messages[:index]) is not None
        carried = read_state(judge, config, state.get(KEY), to_judge=True, begun=begun)
        carried = carried if asked else judge.doubted(carried)
        asks = judge.settings.model_client is not None
        heard = functools.partial(observe_between, messages=messages, index=index)
        facts = (asked or asked_here()).facts(judge.described)
        turn = read_turn(message, messages[:index] if asks else (), judge.schemas, heard=heard, **facts)
        carried = await judge.judge(carried, turn)
        get_stream_writer()({KEY: shown(carried)})
        return carried, message, messages_beside(judge, carried)

    # -- asking ---------------------------------------------------------------------------------------------------

    async def gate(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Ask the human about what waits, and take the answer; runs again from its top when it is resumed."""
        judge, carried_state = self.judge, state.get(KEY) or {}
        before = self._open(state, read_state(judge, config, carried_state, to_judge=True))
        for one in [] if self.own else before.records:  # a node of the user's own need not answer each call
            if self._unanswered(one, state):
                await judge.gate.starts.free(one, before.terms)
        cut = [one for one in before.records if self._asks_again(config, before, one, state) or self._lost(one, state)]
        if cut:  # a request lives in the state: it is asked about in the next superstep
            return self._go_on(state, self._asking_about(before, cut, state), [])
        requests = requests_of(before)
        if not requests or self._ready(state, (), before):
            return self._go_on(state, before, [])
        answer = ask_humans(config, requests, carried_state.get("refused", []))
        after, refused = await judge.decide(before, answer)
        fresh = [new for new, old in zip(after.records, before.records, strict=True) if new.phase is not old.phase]
        beside: list[Any] = answers_of(fresh)
        messages = state[self.messages_key]
        if (index := last_answer(messages)) is not None:
            as_decided = with_arguments(messages[index], fresh)
            beside[:0] = [] if as_decided.tool_calls == messages[index].tool_calls else [as_decided]
        reviewed = ((after.turn or {}).get("reviewed") or [None])[0]
        kinds = [decision.kind.value for record in fresh for decision in record.decisions]
        after = judge.record_decisions(after, fresh)
        if reviewed is not None:
            kinds.append(reviewed["kind"])
            word = answer_of(reviewed)
            if word is not None:
                beside.append(HumanMessage(word))
                after = replace(after, turn={**(after.turn or {}), "back": True})
        get_stream_writer()({KEY: {"decided": kinds, "refused": refused}})
        return self._go_on(state, after, beside, refused)

    def _asks_again(
        self, config: RunnableConfig, carried: Carried, record: CallRecord | None, state: Any = None
    ) -> bool:
        """True for a cleared call without a result in `state` that was cut off, or that this run's answer overrules."""
        if record is None or record.phase is not CallPhase.CLEARED:
            return False
        cut = self.judge.gate.starts.cut_off(record, carried.terms.run_id)
        again = cut or self.judge.overruled(record, answers_of_run(config))
        return again and (state is None or record.proposed.id not in _answered(state[self.messages_key], ()))

    def _lost(self, record: CallRecord, state: dict[str, Any]) -> bool:
        """True for a call that the guard's own tools' node was handed, and gave no result: it was cut off elsewhere."""
        return self.own and self._unanswered(record, state)

    def _unanswered(self, record: CallRecord, state: dict[str, Any]) -> bool:
        """True for a call that may run once, and that the tools' node was handed without a result since."""
        turn = (state.get(KEY) or {}).get("turn") or {}
        handed = not by_itself(record) and record.proposed.id in turn.get("handed", ())
        return handed and record.proposed.id not in _answered(state[self.messages_key], ())

    def _asking_about(self, carried: Carried, cut: Sequence[CallRecord], state: dict[str, Any]) -> Carried:
        """The state with new requests about these calls, no longer handed to the tools' node."""
        judge, turn = self.judge, carried.turn or {}
        ids = {record.proposed.id for record in cut}
        records = [
            judge.ask_again(carried, r, began=self._lost(r, state)) if r.proposed.id in ids else r
            for r in carried.records
        ]
        handed = [one for one in turn.get("handed", ()) if one not in ids]
        return replace(carried, turn={**turn, "handed": handed}, records=tuple(records))

    # -- routing --------------------------------------------------------------------------------------------------

    def _state(self, carried: Carried, refused: Sequence[str] = ()) -> dict[str, Any]:
        return {**self.judge.states.write(carried), "refused": list(refused)}

    def _go_on(self, state: dict[str, Any], carried: Carried, beside: list[Any], refused: Sequence[str] = ()) -> Any:
        carried = self._handing(state, beside, carried)
        update: dict[str, Any] = {KEY: self._state(carried, refused), **({self.messages_key: beside} if beside else {})}
        return Onward(update=update, goto=self._next({**state, KEY: update[KEY]}, beside, carried))

    def updated(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """The next node after a write of `update_state` as one of the nodes."""
        messages = state.get(self.messages_key) or ()
        carried = self._open(state, read_state(self.judge, config, state.get(KEY)))
        if not self.judge.acts:
            return self.end if _answer_is_over(messages) else self._next(state, (), carried)
        if not _is_judged(carried, messages):
            return self.score_node
        turn, answered = carried.turn or {}, _answered(messages, ())
        now = [one for one in turn.get("now", ()) if one not in answered]  # `update_state` drops what was sent
        carried = replace(carried, turn={**turn, "now": now})
        goto = self._next(state, (), carried)
        return self.gate_node if goto == self.agent and self._ready(state, (), carried) else goto

    def updated_tools(self, state: dict[str, Any], config: RunnableConfig) -> str:
        """The way from the tools' node, also for a write of `update_state` as it.

        Back to the gate while something waits or is to run, else to the model.
        """
        if self._unjudged(state, config):
            return self.score_node
        found = state.get(KEY) if isinstance(state, dict) else None
        if not found:
            return self.agent
        carried = self._open(state, read_state(self.judge, config, found))
        turn = carried.turn or {}
        handed, now = turn.get("handed"), turn.get("now", ())
        if not self.judge.acts:
            left = handed is not None and not {record.proposed.id for record in carried.records} <= {*handed}
            return self.gate_node if left else self.agent
        if len(now) > 1 or any(self._asks_again(config, carried, record, state) for record in carried.records):
            return self.gate_node  # of several tasks one may be cut off: `gate` alone sees all of their results
        cleared = [record.proposed.id for record in carried.records if record.phase is CallPhase.CLEARED]
        more = handed is not None and not {*cleared} <= {*handed}
        return self.gate_node if more or requests_of(carried) else self.agent

    def _open(self, state: dict[str, Any], carried: Carried) -> Carried:
        """The state in which calls with a result given by hand no longer wait; none where no answer is left."""
        if last_answer(state.get(self.messages_key) or ()) is None:
            return replace(carried, turn=None, records=())
        if not any(record.waiting for record in carried.records):
            return carried
        answered = _answered(state.get(self.messages_key) or (), ())
        over = [record.waiting and record.proposed.id in answered for record in carried.records]
        records = [settled(r, None) if done else r for r, done in zip(carried.records, over, strict=True)]
        return replace(carried, records=tuple(records))

    def _ready(self, state: dict[str, Any], beside: Sequence[Any], carried: Carried) -> list[CallRecord]:
        """The cleared calls that the tools' node was not handed yet."""
        done = {*_answered(state[self.messages_key], beside), *(carried.turn or {}).get("handed", ())}
        return [r for r in carried.records if r.phase is CallPhase.CLEARED and r.proposed.id not in done]

    def _handing(self, state: dict[str, Any], beside: Sequence[Any], carried: Carried) -> Carried:
        """The state with the calls that the tools' node is handed now, each once, whatever that answers to it.

        Nothing is said of a turn whose calls all run at once, without a human: the model goes on after them.
        """
        turn = carried.turn or {}
        handed = turn.get("handed", [])
        if self.judge.acts:
            ready = self._ready(state, beside, carried)
            alone = ("handed" in turn or ready) and not _all_at_once(carried, ready)
            now = [record.proposed.id for record in (ready[:1] if self.one_by_one() else ready)]
        else:  # what ended under a guard that acts is over
            calls, left = _calls_of_turn(state[self.messages_key], beside)
            alone = "handed" in turn or len(left) < len(calls)
            now = [call["id"] for call in left if call["id"] not in handed]
        return replace(carried, turn={**turn, "handed": [*handed, *now], "now": now}) if alone else carried

    def _next(self, state: dict[str, Any], beside: Sequence[Any], carried: Carried) -> Any:
        """Return the next node: tools for cleared calls that have not run, else the human, else onward."""
        turn = carried.turn or {}
        if not self.judge.acts:  # as the transcript says, whatever is carried
            _, left = _calls_of_turn(state[self.messages_key], beside)
            if "handed" not in turn:
                return self.tools if left else self.end
            now = [call for call in left if call["id"] in turn.get("now", ())]
            return self._send(state, now) if now else self.agent
        if turn.get("stopped") is not None:
            return self.end
        if _all_at_once(carried, self._ready(state, beside, carried)):
            return self.tools
        # A call that may run once only has a task of its own: no sibling's failure or interrupt makes it run again.
        now = turn.get("now", ())
        if now:
            return [self._send(state, [_as_it_runs(one)]) for one in carried.records if one.proposed.id in now]
        if requests_of(carried):
            return self.gate_node
        return self.agent if carried.records or turn.get("back") else self.end

    def _send(self, state: dict[str, Any], calls: list[Any]) -> Send:
        """Calls as a task of their own: the tools' node sees the state with a turn of these calls alone."""
        messages = state[self.messages_key]
        index = last_answer(messages)
        message = AIMessage("") if index is None else messages[index]
        alone = message.model_copy(update={"tool_calls": calls})
        return Send(self.tools, {**state, self.messages_key: [*messages[:index], alone]})

    # -- the tools' node ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def fence(self, given: Any, config: RunnableConfig, way: Way) -> AsyncIterator[list[Any]]:
        """A list for the result of the tools' node, which is run only where there is none yet.

        The result of a call that runs once stays in it: a run that is cancelled now loses the node's.
        """
        key, judge = self.messages_key, self.judge
        found = given.get(KEY) if isinstance(given, dict) else None
        calls, handed = _calls(given, key) if judge.acts else [], _handed_now(found)
        if not calls or (self.own and not handed):
            yield [{}] if self._unjudged(given, config) else []
            return
        carried = read_state(judge, config, found)
        pairs = [find_record(carried, call) for call in calls]
        records, looked = [record for record, _ in pairs], judge.gate.permits is not None and not self.own
        if handed and len(records) == 1 and self.tools not in may_repeat.get():
            await self._begin(config, carried, records[0], way)
        held = self._held(carried, records)
        goes_on = not held and not any(self._asks_again(config, carried, record) for record in records)
        # Last, for storing that it begins may take its time; the guard's own node looks by itself.
        refused = [await way.do(judge.look(record)) for record in records] if looked and goes_on else []
        if any(refused):
            yield [{key: [unrun(call, why or NOT_CLEARED) for call, why in zip(calls, refused, strict=True)]}]
            return
        if self._unjudged(given, config):
            yield [{}]
            return
        if held or any(self._asks_again(config, carried, record) for record in records):
            yield held or [{}]
            return
        refused = [judge.refusal(carried, *pair) for pair in pairs]
        if len({call["id"] for call in calls}) < len(calls):  # ours have an id each
            refused = [NOT_CLEARED for _ in calls]
        with ExitStack() as running:
            if not any(refused):
                refused = [running.enter_context(judge.running(carried, *pair)) for pair in pairs]
            answers = [unrun(call, why or NOT_CLEARED) for call, why in zip(calls, refused, strict=True)]
            yield held if not any(refused) else [] if self.own else [{key: answers}]

    async def _begin(self, config: RunnableConfig, carried: Carried, record: CallRecord | None, way: Way) -> None:
        """Checkpoint that a call which runs once begins: another process cannot know that it may have run."""
        by = None if record is None else let_by(record, carried.terms.run_id)
        if record is None or by is None or self._asks_again(config, carried, record):
            return
        entry = {"began": by, "at": [self._name, os.getpid()]}
        take = functools.partial(self.judge.gate.starts.take, record, carried.terms)
        log = await way.take(read_log(entry, take))
        if any(one.get("began") == by and one != entry for one in log):
            self.judge.gate.starts.began_elsewhere(by)

    def _held(self, carried: Carried, records: Sequence[CallRecord | None]) -> list[Any]:
        """The list with the result of a call that runs once; it takes it. A new one for all other calls."""
        cleared = [record for record in records if record is not None and record.phase is CallPhase.CLEARED]
        by = let_by(cleared[0], carried.terms.run_id) if len(records) == len(cleared) == 1 else None
        if by is None:  # a record that is not cleared may name the request of any thread
            return []
        return self._results.setdefault(by, [])

    def _unjudged(self, state: Any, config: RunnableConfig) -> bool:
        """True where an edge, or a guard that advises, led a proposal to the tools' node that was never judged."""
        if not self.judge.acts or not isinstance(state, dict):
            return False
        if is_pushed(config):
            return ADVISED in ((state.get(KEY) or {}).get("turn") or {})
        messages = state.get(self.messages_key) or ()
        return not _is_judged(read_state(self.judge, config, state.get(KEY)), messages)

    async def behind_tools(self, state: Any, result: Any, config: RunnableConfig) -> Any:
        """The result of the tools' node, and the next node; where a tool leads to the model, the guard does."""
        if self.judge.acts:
            many = isinstance(result, list | tuple)
            result = [self._unled(one) for one in result] if many else self._unled(result)
        return leading(result, self.updated_tools(state, config))

    def _unled(self, one: Any) -> Any:
        led = isinstance(one, Command) and one.graph is None and one.goto in (self.agent, [self.agent], (self.agent,))
        return replace(one, goto=()) if led else one


def _handed_now(state: Any) -> bool:
    """Return True for a turn of which each call is a task of its own; what is no state is for its reader to refuse."""
    turn = state.get("turn") if isinstance(state, dict) else None
    return bool(turn) and (not isinstance(turn, dict) or bool(turn.get("now")))


def _added(before: Sequence[Any], given: Any) -> list[Any] | None:
    """The messages that a node adds, the model's last; None where only the graph's reducer can tell."""
    added = list(given) if isinstance(given, list | tuple) else [given]
    if not added or not all(isinstance(one, BaseMessage) and one.type != "remove" for one in added):
        return None
    ids = {one.id for one in added if one.id is not None}
    if not isinstance(added[-1], AIMessage) or (ids and any(one.id in ids for one in before)):
        return None
    return added


def _of_model(messages: Any) -> list[AIMessage]:
    """The model's messages in a node's result, in any form that LangChain reads."""
    try:
        read = convert_to_messages(messages if isinstance(messages, list | tuple) else [messages])
    except Exception:  # noqa: BLE001 (what only the graph's own reducer reads: nobody vouches for it then)
        return []
    return [message for message in read if isinstance(message, AIMessage)]


def _content(message: Any) -> str:
    """All of a message that is judged; of one that is not JSON, what no other message is."""
    parts = (message.content, message.tool_calls, message.response_metadata, message.usage_metadata)
    try:
        return json.dumps(parts, default=str, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return uuid.uuid4().hex


def _calls(given: Any, key: str) -> list[Any]:
    """The calls that a node of tools is to run: all of the latest turn, answered or not, or those sent to it."""
    if isinstance(given, dict) and "tool_call" in given:
        return [given["tool_call"]]
    held = given.get(key) if isinstance(given, dict) else getattr(given, key, None)
    entries = given if isinstance(given, list | tuple) else held or ()
    calls = [one for one in entries if isinstance(one, dict) and "args" in one]
    messages: list[Any] = [one for one in entries if isinstance(one, BaseMessage)]
    index = last_answer(messages)
    return calls + ([] if index is None else list(messages[index].tool_calls))


def _all_at_once(carried: Carried, ready: Sequence[CallRecord]) -> bool:
    """Return True for a turn whose calls the tools' node may run in one visit: none of them may run once only."""
    return bool(ready) and len(ready) == len(carried.records) and all(map(by_itself, ready))


def _is_judged(carried: Carried, messages: Sequence[Any]) -> bool:
    """Return True if the open calls of the latest answer are those that were judged last, as proposed or as edited."""
    index, answered = last_answer(messages), _answered(messages, ())
    calls = [] if index is None else [call for call in messages[index].tool_calls if call["id"] not in answered]
    open_ = (CallPhase.WAITING, CallPhase.CLEARED)
    judged = [r for r in carried.records if r.phase in open_ and r.proposed.id not in answered]
    return {id(find_record(carried, call)[0]) for call in calls} == {*map(id, judged)}


def _answer_is_over(messages: Sequence[AnyMessage]) -> bool:
    """Return True if the model said nothing yet, or a human or a tool spoke after it."""
    index = last_answer(messages)
    return index is None or any(message.type in ("tool", "human") for message in messages[index:])


def _calls_of_turn(messages: Sequence[AnyMessage], beside: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The latest turn's calls, and those of them that have no result."""
    index = last_answer(messages)
    message: Any = None if index is None else messages[index]
    calls, answered = list(message.tool_calls) if message else [], _answered(messages, beside)
    return calls, [call for call in calls if call["id"] not in answered]


def _as_it_runs(record: CallRecord) -> dict[str, Any]:
    """A cleared call as a message holds it."""
    args = dict(record.call.arguments)
    return {"name": record.call.name, "args": args, "id": record.proposed.id, "type": "tool_call"}


def _answered(messages: Sequence[AnyMessage], beside: Sequence[Any]) -> set[str]:
    """The ids of the latest turn's calls that have a result, in the transcript or beside it."""
    index = last_answer(messages)
    later = [*messages[0 if index is None else index :], *beside]
    return {message.tool_call_id for message in later if isinstance(message, ToolMessage)}
