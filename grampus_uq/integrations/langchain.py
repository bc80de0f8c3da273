"""LangChain: middleware for `create_agent` that pauses an agent before an uncertain irreversible call.

    guard = UncertaintyMiddleware(monitor, model_client=client)
    agent = create_agent(model, tools, middleware=[guard], checkpointer=checkpointer)

The model's turn is judged where the model is called (`wrap_model_call`: no further node, and checkpointed with the
answer), and the belief travels in the agent's state. A call that needs a human interrupts in `wrap_tool_call`, which
runs again from its top on resume: it asks no model, and what must not be computed anew is a LangGraph task, whose
result is checkpointed. What a decision is bound to is checked once more inside all other middleware, where the tool
itself is called.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import fields, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Unpack

from lazy_loader import attach

from grampus_uq import MissingDependencyError, ToolCall, UncertaintyMonitor
from grampus_uq.gate.call import RAN_BEFORE, CallPhase, CallRecord
from grampus_uq.gate.starts import by_itself
from grampus_uq.integrations.blocking import run_blocking
from grampus_uq.integrations.carried_states import ADVISED, Carried, Turn, requests_of
from grampus_uq.integrations.judged_turns import NOT_CLEARED, TurnJudge
from grampus_uq.integrations.settings import Settings

with MissingDependencyError.unless("langchain", "langchain", "The middleware for LangChain"):
    from langchain.agents.middleware import AgentMiddleware, AgentState, ExtendedModelResponse, hook_config
    from langchain.agents.middleware.types import ModelResponse, PrivateStateAttr, ToolCallRequest
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import BaseTool
    from langgraph.config import get_config
    from langgraph.types import Command
    from langsmith.utils import tracing_is_enabled

from grampus_uq.integrations.langchain_asked import Asked, DescribedTools
from grampus_uq.integrations.langchain_messages import (
    answer_of,
    answers_of,
    as_ai_message,
    find_record,
    injected_into,
    last_answer,
    messages_beside,
    observe_between,
    read_message,
    read_turn,
    schema_of,
    shown,
    unrun,
    with_arguments,
    with_ids,
)
from grampus_uq.integrations.langgraph_steps import AWAITING, BLOCKING, Log, Steps, Way, read_log, to_its_end
from grampus_uq.integrations.langgraph_threads import (
    KEY,
    answers_of_run,
    ask_humans,
    before_node,
    place_of,
    read_state,
    resume,
    waiting,
    written_before,
)

if TYPE_CHECKING:
    from langchain.agents.middleware.types import ModelRequest
    from langgraph.runtime import Runtime

    from grampus_uq.integrations.langgraph_worker import ThreadRunner

__all__ = ["ThreadRunner", "UncertaintyMiddleware", "UncertaintyState", "as_ai_message", "read_message", "resume"]
__all__ += ["waiting"]

__getattr__, _, _ = attach("grampus_uq.integrations", submod_attrs={"langgraph_worker": ["ThreadRunner"]})


def _merge(before: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """A new turn replaces what was; decisions of parallel calls add up until it takes them into its belief."""
    if "turn" in new:
        return new
    held = before if isinstance(before, dict) else {}
    decided = held.get("decided")
    return {**held, "decided": [*(decided if isinstance(decided, list) else ()), *new["decided"]]}


class UncertaintyState(AgentState[Any]):
    """State of the middleware in the agent's checkpoint; private, so neither input nor output shows it."""

    uncertainty: NotRequired[Annotated[dict[str, Any], PrivateStateAttr, _merge]]  # LangGraph wants the reducer last


class UncertaintyMiddleware(AgentMiddleware[UncertaintyState, Any, Any]):
    """Judges each turn of the model, gates its tool calls, and holds back an answer in grave doubt.

    Args:
        monitor: judges; its processors get spans and recordings. The session's id is the thread's.
        settings: see `Settings`. Without a fitted profile a pause carries no guarantee.
    """

    state_schema = UncertaintyState

    def __init__(self, monitor: UncertaintyMonitor, **settings: Unpack[Settings]) -> None:
        super().__init__()
        self.judge = TurnJudge(monitor, **settings)
        self._described = DescribedTools()
        self._name = uuid.uuid4().hex
        self._reviews: Callable[..., dict[str, Any]] = functools.lru_cache(_MAX_NODES)(lambda thread, node: {})
        if not tracing_is_enabled():
            self.awrap_model_call = _untraced(self.awrap_model_call)  # type: ignore[method-assign]
            self.awrap_tool_call = _untraced(self.awrap_tool_call)  # type: ignore[method-assign]

    # -- the model's turn -----------------------------------------------------------------------------------------

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        """Call the model and judge its turn: no interrupt, so it runs once."""
        request, edits, decided = await self._edited(request, AWAITING)
        with Asked() as asked:
            response = await handler(request)
        return await self._judged(request, response, asked, edits, decided)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """`awrap_model_call` for agents that run without awaiting."""
        request, edits, decided = to_its_end(self._edited(request, BLOCKING))
        with Asked() as asked:
            response = handler(request)
        return run_blocking(lambda: self._judged(request, response, asked, edits, decided))

    async def _edited(
        self, request: ModelRequest[Any], way: Way
    ) -> tuple[ModelRequest[Any], list[Any], list[CallRecord]]:
        """The request with the calls as humans edited them, the message that holds them, and what humans decided."""
        state = _state(request.state)
        kept = type(state) is dict or isinstance(state, Mapping)  # `read_state` says what is wrong with any other
        asked = _asked(state, acts=self.judge.acts) if kept else set()
        if not kept or not (asked or state.get("decided")):
            return request, [], []
        config, states = get_config(), self.judge.states
        place = place_of(self.judge, config, state)
        decided = {one.proposed.id: one for one in states.read_decided(place, state)}
        before = list[Any]()
        if asked - decided.keys():
            with suppress(*(() if self.judge.acts else (Exception,))):  # of the user's checkpointer
                before = await written_before(way, config, back=2)
        for sent in [sent for source, written in before if source == "loop" for name, sent in written if name == KEY]:
            said = states.read_decided(place, {**state, "decided": sent.get("decided", ())})
            decided = {one.proposed.id: one for one in said} | decided
        return *_with_edits(request, [*decided.values()]), [*decided.values()]

    async def _judged(
        self, request: ModelRequest[Any], response: Any, asked: Asked, beside: list[Any], decided: list[CallRecord]
    ) -> Any:
        if isinstance(response, AIMessage):
            response = ModelResponse(result=[response])
        result = list(response.result)
        index = last_answer(result)
        if index is None:
            return response
        judge, before, config = self.judge, request.state["messages"], get_config()
        reviews = None  # of the answers judged in this run of the model's node, by id
        if judge.acts:  # LangGraph makes the node's name of the checkpoint's id, which others may copy
            given = config["configurable"]
            reviews = self._reviews(str(given.get("thread_id")), given["checkpoint_ns"])
        message: Any = result[index] if reviews is None else _with_ids(result[index], reviews)
        result[index] = message
        begun = any(one.type == "ai" for one in before)
        carried = read_state(judge, config, _state(request.state), to_judge=True, begun=begun)
        carried = judge.record_decisions(carried, decided) if decided else carried
        asks, known = judge.settings.model_client is not None, carried.session.tools_declared
        tools = () if known else [tool if isinstance(tool, dict) else tool.name for tool in request.tools]
        system = [] if request.system_message is None else [request.system_message]
        heard = functools.partial(observe_between, messages=before, index=len(before))
        facts = asked.facts(self._described.of(request.tools))
        answer = read_turn(message, [*system, *request.messages] if asks else (), tools, heard=heard, **facts)
        if len(result) > 1:  # a structured answer is not a call: it stands in the result with what answers it
            answered = {one.tool_call_id for one in result if isinstance(one, ToolMessage)}
            answer = replace(answer, calls=[call for call in answer.calls if call.id not in answered])
        carried = await judge.judge(carried, answer)
        if carried.turn is not None:
            carried.turn["answer"] = message.id
            if reviews is not None:
                reviews[message.id] = carried.turn["review"]
                if len(reviews) > 1:
                    carried.turn["reviews"] = reviews.copy()
        beside += messages_beside(judge, carried)
        request.runtime.stream_writer({KEY: shown(carried)})
        update: dict[str, Any] = {KEY: judge.states.write(carried), **({"messages": beside} if beside else {})}
        structured = response.structured_response
        if (carried.turn or {}).get("stopped") is not None:
            update["jump_to"], structured = "end", None
        response = ModelResponse(result=result, structured_response=structured)
        return ExtendedModelResponse(response, command=Command(update=update))

    # -- the answer -----------------------------------------------------------------------------------------------

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Hold an answer in grave doubt back until a human accepts it, or sends the agent on with a word."""
        update: dict[str, Any] | None = await AWAITING.take(self._reviewed(state))
        return update

    @hook_config(can_jump_to=["model"])
    def after_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """`aafter_agent` for agents that run without awaiting."""
        update: dict[str, Any] | None = to_its_end(BLOCKING.take(self._reviewed(state)))
        return update

    def _reviewed(self, agent_state: Any) -> Steps:
        state = _state(agent_state)
        turn = state.get("turn")
        if not self.judge.acts or not turn:
            return None
        if isinstance(turn, dict) and turn.get("review") is None and "reviews" not in turn:
            return None
        carried = read_state(self.judge, get_config(), state)
        asked = _with_review_of(carried.turn or {}, agent_state["messages"])
        if asked["review"] is None:
            return None
        carried = yield from self._ask(replace(carried, records=(), turn=asked), (yield from read_log({"step": _READ})))
        word = answer_of(carried.turn["reviewed"][0])
        update: dict[str, Any] = {KEY: self.judge.states.write(self.judge.record_decisions(carried, ()))}
        return update if word is None else {**update, "messages": [HumanMessage(word)], "jump_to": "model"}

    # -- the calls ------------------------------------------------------------------------------------------------

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run a call that was cleared, or that a human approved; ask first where one is needed."""
        await before_node.get()()  # before a decision is taken up: what is cancelled here has not run
        run, record = await AWAITING.take(self._cleared(request, AWAITING))
        result = run if isinstance(run, ToolMessage) else await handler(run)
        return result if record is None else await AWAITING.take(self._ended(request, result, record))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """`awrap_tool_call` for agents that run without awaiting."""
        run, record = to_its_end(BLOCKING.take(self._cleared(request, BLOCKING)))
        result = run if isinstance(run, ToolMessage) else handler(run)
        return result if record is None else to_its_end(BLOCKING.take(self._ended(request, result, record)))

    def _cleared(self, request: ToolCallRequest, way: Way) -> Steps:
        """The request to go on with, or the answer in the tool's place; and the record of a call that ends here."""
        judge = self.judge
        if not judge.acts:
            return request, None
        carried = read_state(judge, get_config(), _state(request.state))
        record, call = find_record(carried, request.tool_call)
        read = _of_judged(carried, request.state["messages"])
        if record is None or not read:  # another middleware changed the call, or the model never proposed it
            unjudged = judge.unjudged(carried, call)
            part = yield functools.partial(judge.judge_late, unjudged, read=read)
            (record,) = judge.states.read_part(unjudged, part).records
        once = record.waiting or not by_itself(record)
        if once:
            ids, marks = [record.key(carried.terms.run_id), *(one.id for one in record.requests)], list[Any]()
            note = functools.partial(_note_begun, way, get_config(), ids, marks)
            log = yield from read_log({"step": _READ}, note)
            answer = next((one["answer"] for one in reversed(log) if one.get("answer_of") == call.id), None)
            decided = judge.answered(record, answers_of_run(get_config()))
            if answer is not None and not decided:  # a cancelled attempt at this task ended the call
                return ToolMessage(**answer), None
            if request.tool is not None:
                judge.schemas[record.proposed.name] = functools.partial(schema_of, request.tool)
            turn = {**(carried.turn or {}), "review": None, "arrived": []}
            carried = replace(carried, records=(record,), turn=turn)
            if answer is not None:
                carried = yield from self._ask(carried, log)
                return ToolMessage(**answer), carried.records[0]
            carried = self._settled(carried, log) or (yield from self._begun(carried, log, marks))
            (record,) = carried.records
        ended = record if once else None
        if record.phase is CallPhase.SETTLED:
            return answers_of([record])[0], ended
        if record.edited:
            request = request.override(tool_call={**request.tool_call, "args": dict(record.call.arguments)})
        refusal = judge.refusal(carried, record, record.call)
        if refusal is not None:
            return unrun(request.tool_call, refusal), ended
        bind = _binding(functools.partial(self._running, carried, record, request.tool), judge.look(record))
        return _Guarded.of(request, bind), ended

    def _settled(self, carried: Carried, log: Log) -> Carried | None:
        """The state as a human's word in a cancelled attempt settled it: no later answer lets the call run."""
        parts = [self.judge.states.read_part(carried, one) for one in log if one.get("step") == _DECIDE]
        return next((part for part in parts if part.records[0].phase is CallPhase.SETTLED), None)

    def _begun(self, carried: Carried, log: Log, marks: list[Any]) -> Steps:
        """The state when its one call may run, or is settled.

        That it begins is checkpointed. If it began in an earlier attempt at this task, and did not fail in this
        process, or where `marks` say so, it may have run: a human is asked about that, whatever was decided on it.
        """
        while True:
            if carried.records[0].waiting and not marks:
                carried = yield from self._ask(carried, log, marks)
            if not marks and carried.records[0].phase is not CallPhase.CLEARED:
                return carried
            first: list[bool] = []
            overruled = self.judge.overruled(carried.records[0], answers_of_run(get_config()))
            begin = functools.partial(self._begin, carried, overruled, first)
            marks.append((yield from _logged(log, begin, marks, step=_BEGIN)))
            if first and len(marks) == 1 and marks[0]["at"]:
                return carried
            again = functools.partial(self._begin_again, carried, marks[:])
            carried = self.judge.states.read_part(carried, (yield from _logged(log, again, marks, step=_AGAIN)))
            marks.clear()

    async def _begin(self, carried: Carried, overruled: bool, first: list[bool]) -> dict[str, Any]:
        first.append(True)
        if overruled:
            return {"step": _BEGIN, "at": None}
        here = await self.judge.gate.starts.take(carried.records[0], carried.terms)
        return {"step": _BEGIN, "at": self._place(carried) if here else []}  # []: in a process that is not known

    def _place(self, carried: Carried) -> list[Any]:
        """Where a call begins: the process, and what lets it run."""
        (record,) = carried.records
        by = record.requests[0].id if record.requests else record.key(carried.terms.run_id)
        return [self._name, os.getpid(), by]

    async def _begin_again(self, carried: Carried, marks: list[Any]) -> dict[str, Any]:
        judge, (record,) = self.judge, carried.records
        places = [mark.get("at") for mark in marks]
        here = record.phase is CallPhase.CLEARED and all(place in (None, self._place(carried)) for place in places)
        if not here or None in places or judge.gate.starts.spent(record, carried.terms.run_id):
            carried = replace(carried, records=(judge.ask_again(carried, record, began=not here),))
        return {"step": _AGAIN, **judge.states.write_part(carried)}

    def _running(
        self, carried: Carried, record: CallRecord, own: Any, tool: Any, given: Any
    ) -> AbstractContextManager[str | None]:
        """The check where a tool is called: by the tool that the agent had for the call, its name and its arguments."""
        if tool.name != given["name"] or (own is not None and tool is not own):
            return nullcontext(NOT_CLEARED)
        judge, arguments = self.judge, given["args"]
        if arguments != record.call.arguments:
            beside = injected_into(tool) - record.call.arguments.keys()
            arguments = {name: value for name, value in arguments.items() if name not in beside}
        call = ToolCall.trusted(record.call.id, given["name"], arguments)
        return judge.running(carried, record, call, may_change=True)  # middleware inside this one may

    def _ask(self, carried: Carried, log: Log, marks: list[Any] | None = None) -> Steps:
        """Interrupt until decisions hold on all that waits; the state after them. `marks`: as in `_begun`."""
        refused: list[str] = []
        while requests_of(carried):
            if marks and carried.records[0].began_before:
                marks.clear()  # the human is told
            answer = ask_humans(get_config(), requests_of(carried), refused)
            decide = functools.partial(self._decide, carried, answer)
            part = yield from _logged(log, decide, marks, step=_DECIDE, answer=_digest(answer))
            carried, refused = self.judge.states.read_part(carried, part), part.get("refused", [])
        return carried

    async def _decide(self, carried: Carried, answer: Any) -> dict[str, Any]:
        after, refused = await self.judge.decide(carried, answer)
        entry = {"step": _DECIDE, "answer": _digest(answer), "refused": refused}
        return {**entry, **self.judge.states.write_part(after)}

    def _ended(self, request: ToolCallRequest, result: Any, record: CallRecord) -> Steps:
        """The tool's result as it is; it is checkpointed, and with it, for the belief, what humans decided."""
        place = place_of(self.judge, get_config(), _state(request.state))
        decided = [self.judge.states.write_decided(place, record)] if record.decisions else []
        # A command may hold what no checkpoint can, and a refusal to run is no result: what became of it stays unknown.
        known = isinstance(result, ToolMessage) and result.content not in (NOT_CLEARED, RAN_BEFORE)
        entry = {"step": _END, "answer_of": record.proposed.id, "answer": dict(result) if known else None}
        yield functools.partial(self._end, entry, decided)
        return result

    async def _end(self, entry: dict[str, Any], decided: list[Any]) -> dict[str, Any]:
        config: Any = get_config()
        config["configurable"][_SEND]([(KEY, {"decided": [item]}) for item in decided])
        return entry


_MAX_NODES = 1024
"""Of how many runs of the model's node, at the same time, the answers are known."""
_SEND = "__pregel_send"
"""Where LangGraph takes writes of a task beside its result. In a node's own task they would count as its result."""

_READ, _DECIDE, _BEGIN, _AGAIN, _END = "read", "decide", "begin", "begin again", "end"
"""The `step` of what is checkpointed; earlier versions gave their one kind of step no name."""


def _logged(log: Log, work: Callable[[], Awaitable[Any]], marks: list[Any] | None, **fits: str) -> Steps:
    """The result of this step, past those of earlier attempts that took another way, whose starts go to `marks`.

    A run that is cancelled forgets the human's answer, and the next attempt may be given another one.
    """
    while log:
        entry = log.popleft()
        if all(entry.get(name, value) == value for name, value in fits.items()):
            return entry
        if marks is not None and entry.get("step") == _BEGIN:
            marks.append(entry)
    return (yield work)


def _digest(answer: Any) -> str:
    return sha256(json.dumps(answer, default=str, skipkeys=True).encode()).hexdigest()


def _state(agent_state: Any) -> dict[str, Any]:
    return agent_state.get(KEY) or {}


async def _note_begun(way: Way, config: Any, ids: Collection[str], marks: list[Any]) -> None:
    """Note a start by one of these ids before somebody wrote to the thread: `update_state` drops what came of it."""
    before = await written_before(way, config, back=1)
    left = [one for source, written in before if source == "update" for _, one in written]
    begun = [one for one in left if isinstance(one, dict) and one.get("step") == _BEGIN]
    marks[:] = [one for one in begun if isinstance(at := one.get("at"), list) and any(by in at for by in ids)]


def _asked(state: Mapping[str, Any], *, acts: bool) -> set[str]:
    """Ids of the calls of the latest turn if humans may have been asked about some; none in a state without a turn.

    Of a turn that a guard of the other kind, acting or advisory, has judged, nobody can tell by the state.
    """
    try:
        turn, calls = state["turn"], state["turn"]["calls"]
        maybe = any(one["phase"] == CallPhase.WAITING for one in calls) or (ADVISED in turn) is acts
        return {one["proposed"]["id"] for one in calls} if maybe or state.get("decided") else set()
    except (KeyError, TypeError):
        return set()


def _of_judged(carried: Carried, messages: Sequence[Any]) -> bool:
    """Return True if the latest answer is the one that the turn's records are of; earlier versions kept no id."""
    index, turn = last_answer(messages), carried.turn
    return index is not None and turn is not None and messages[index].id == turn.get("answer", messages[index].id)


def _with_review_of(turn: Turn, messages: Sequence[Any]) -> Turn:
    """The turn with the review of the answer that stands, where several were judged: if it is of none, with any."""
    reviews, index = turn.get("reviews", {}), last_answer(messages)
    stands = None if index is None else messages[index].id
    review = reviews.get(stands, next(filter(None, reviews.values()), turn.get("review")))
    return {**{name: value for name, value in turn.items() if name != "reviews"}, "review": review}


def _with_edits(request: ModelRequest[Any], decided: list[CallRecord]) -> tuple[ModelRequest[Any], list[Any]]:
    """The request with the calls as they ran: a human's edits stand in the transcript from the next turn on.

    Beside it the transcript's own message: middleware outside may show the model another one.
    """
    edited = [record for record in decided if record.edited]
    index = last_answer(request.state["messages"]) if edited else None
    if index is None:
        return request, []
    kept = request.state["messages"][index]
    messages = [with_arguments(one, edited) if one.id == kept.id else one for one in request.messages]
    return request.override(messages=messages), [with_arguments(kept, edited)]


def _with_ids(message: Any, reviews: dict[str, Any]) -> Any:
    """The answer with an id of its own among those judged, and one for each call.

    Middleware outside may have the model asked several times, and take any of the answers: by its id it is known
    whether that is the one that the turn's records are of.
    """
    if not message.id or message.id in reviews:
        message = message.model_copy(update={"id": f"answer-{uuid.uuid4().hex}"})
    reviews[message.id] = None
    return with_ids(message)


def _binding(
    running: Callable[[Any, Any], AbstractContextManager[str | None]],
    look: Callable[[], Coroutine[Any, Any, str | None]] | None,
) -> Callable[[Any], Any]:
    """Return a wrapper that checks a tool's arguments when it is called, inside all other middleware."""
    made: list[Any] = []

    def bind(tool: Any) -> Any:
        if made and any(tool is one for one in made):
            return tool

        def invoke(given: Any, config: Any = None, **more: Any) -> Any:
            hindered = None if look is None else run_blocking(look)
            with nullcontext(hindered) if hindered else running(tool, given) as refused:
                return tool.invoke(given, config, **more) if refused is None else unrun(given, refused)

        async def ainvoke(given: Any, config: Any = None, **more: Any) -> Any:
            hindered = None if look is None else await look()
            with nullcontext(hindered) if hindered else running(tool, given) as refused:
                return await tool.ainvoke(given, config, **more) if refused is None else unrun(given, refused)

        bound = _copied(tool)
        vars(bound).update(invoke=invoke, ainvoke=ainvoke)  # of this one copy: the tool's model has no such fields
        made.append(bound)
        return bound

    return bind


def _copied(tool: Any) -> Any:
    """A shallow copy of a tool: `copy.copy`, in half the time for most of the models that tools are."""
    cls = type(tool)
    if not issubclass(cls, BaseTool) or cls.__copy__ is not BaseTool.__copy__ or tool.__pydantic_extra__ is not None:
        return copy.copy(tool)
    twin, store, private = object.__new__(cls), object.__setattr__, tool.__pydantic_private__
    store(twin, "__dict__", vars(tool).copy())
    store(twin, "__pydantic_fields_set__", tool.__pydantic_fields_set__.copy())
    store(twin, "__pydantic_extra__", None)
    store(twin, "__pydantic_private__", private if private is None else private.copy())
    return twin


class _Guarded(ToolCallRequest):
    """A request whose tool is bound, whichever other middleware puts there."""

    @classmethod
    def of(cls, request: ToolCallRequest, bind: Callable[[Any], Any]) -> _Guarded:
        new = cls.__new__(cls)
        vars(new).update(vars(request), _bind=bind, tool=None if request.tool is None else bind(request.tool))
        return new

    def __setattr__(self, name: str, value: Any) -> None:
        bind = self.__dict__.get("_bind")
        super().__setattr__(name, bind(value) if bind is not None and name == "tool" and value is not None else value)

    def override(self, **changes: Any) -> ToolCallRequest:
        """A request with these changes, guarded as this one is."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _Guarded.of(ToolCallRequest(**{**values, **changes}), self.__dict__["_bind"])


def _untraced(hook: Callable[[Any, Any], Any]) -> Any:
    """The hook as a function that returns its coroutine.

    Around a coroutine function LangChain puts two hops to a thread at every call, also where nothing is traced, and
    works out its signature: as much as all of the judging costs.
    """

    def call(request: Any, handler: Any) -> Any:
        return hook(request, handler)

    call.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]
    return call
