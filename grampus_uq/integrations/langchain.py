"""LangChain: middleware for `create_agent` that pauses an agent before an uncertain irreversible call.

    guard = UncertaintyMiddleware(monitor, model_client=client, advisory=False)
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
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from grampus_uq import (
    ApprovalDecision,
    ApprovalPolicy,
    MissingDependencyError,
    ToolCall,
    ToolEffects,
    UncertaintyMonitor,
)
from grampus_uq.gate.call import CallPhase, CallRecord
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.integrations.blocking import run_blocking
from grampus_uq.integrations.judged_turns import Carried, Precondition, TurnJudge, requests_of
from grampus_uq.integrations.langchain_messages import last_answer, observe_between, read_call, read_turn

try:
    from typing import NotRequired

    from langchain.agents.middleware import AgentMiddleware, AgentState, ExtendedModelResponse, hook_config
    from langchain.agents.middleware.types import ModelResponse, PrivateStateAttr
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langgraph.config import get_config
    from langgraph.func import task
    from langgraph.types import Command, interrupt
except ImportError as error:
    raise MissingDependencyError.of("langchain", "langchain", "The middleware for LangChain") from error

from grampus_uq.integrations.langgraph import (
    KEY,
    NOT_CLEARED,
    answered_for,
    place_of,
    schema_of,
    session_id_of,
    shown,
    with_arguments,
    with_ids,
)
from grampus_uq.integrations.langgraph_approvals import REVIEW, resume_with, waiting_requests

if TYPE_CHECKING:
    from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
    from langgraph.runtime import Runtime

    from grampus_uq.protocols import ModelClient

__all__ = ["UncertaintyMiddleware", "UncertaintyState", "resume_with", "waiting_requests"]


def _merge(before: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """A new turn replaces what was; decisions of parallel calls add up until it takes them into its belief."""
    if "turn" in new:
        return new
    held = before or {}
    return {**held, "decided": [*held.get("decided", ()), *new["decided"]]}


class UncertaintyState(AgentState[Any]):
    """What the middleware keeps in the agent's checkpoint; private, so neither input nor output shows it."""

    uncertainty: NotRequired[Annotated[dict[str, Any], PrivateStateAttr, _merge]]  # LangGraph wants the reducer last


class UncertaintyMiddleware(AgentMiddleware[UncertaintyState, Any, Any]):
    """Judges each turn of the model, gates its tool calls, and holds back an answer in grave doubt.

    Args:
        monitor: judges; its processors get spans and recordings. The session's id is the thread's.
        model_client: whom the monitor's signals may ask; None reads only what came with the model's answer.
        agent_id: names the agent in records.
        effects: what the tools do to the world; beside it holds the policy's `irreversible_tool_names`.
        approvals: who may decide, how decisions are signed, when they expire.
        precondition: asked when a call was approved; a text says why it must not run now, and it is asked again.
        advisory: stop nothing, record what would be stopped. Without a fitted profile a pause carries no guarantee.
    """

    state_schema = UncertaintyState

    def __init__(
        self,
        monitor: UncertaintyMonitor,
        *,
        model_client: ModelClient | None = None,
        agent_id: str = "",
        effects: ToolEffects | None = None,
        approvals: ApprovalPolicy | None = None,
        precondition: Precondition | None = None,
        advisory: bool = True,
    ) -> None:
        super().__init__()
        self.judge = TurnJudge(
            monitor,
            model_client=model_client,
            agent_id=agent_id,
            effects=effects,
            approvals=approvals,
            precondition=precondition,
            advisory=advisory,
        )

    # -- the model's turn -----------------------------------------------------------------------------------------

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        """Call the model and judge its turn: no interrupt, so it runs once."""
        request, edits = self._with_edits(request)
        return await self._judged(request, await handler(request), edits)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """`awrap_model_call` for agents that run without awaiting."""
        request, edits = self._with_edits(request)
        response = handler(request)
        return run_blocking(lambda: self._judged(request, response, edits))

    def _with_edits(self, request: ModelRequest[Any]) -> tuple[ModelRequest[Any], list[Any]]:
        """The request with the calls as they ran: a human's edits stand in the transcript from the next turn on."""
        held = _held(request.state)
        records = [_edited_by(item) for item in held.get("decided", ()) if item["call"] is not None]
        edited = {record.proposed.id: record for record in records if record.edited}
        index = last_answer(request.messages)
        if not edited or index is None:
            return request, []
        message = with_arguments(request.messages[index], edited.values())
        return request.override(messages=[*request.messages[:index], message, *request.messages[index + 1 :]]), [
            message
        ]

    async def _judged(self, request: ModelRequest[Any], response: Any, told: list[Any]) -> Any:
        if isinstance(response, AIMessage):
            response = ModelResponse(result=[response])
        result = list(response.result)
        index = last_answer(result)
        if index is None:
            return response
        message: Any = with_ids(result[index])
        result[index] = message
        answered = {
            one.tool_call_id for one in result if isinstance(one, ToolMessage)
        }  # a structured answer is no call
        judge, config, held = self.judge, get_config(), _held(request.state)
        judge.schemas.update({tool.name: schema_of(tool) for tool in request.tools if not isinstance(tool, dict)})
        tools = [tool if isinstance(tool, dict) else tool.name for tool in request.tools]
        place = place_of(judge, config)
        carried = judge.take(session_id_of(config), place, held, to_judge=True)
        believed = [item for item in held.get("decided", ()) if judge.believes(place, item, "call", "decision")]
        carried = judge.record(carried, [_decision_of(item) for item in believed])
        before = request.state["messages"]
        observe_between(carried.session, [*before, message], len(before))
        system = [] if request.system_message is None else [request.system_message]
        prompt = [*system, *request.messages]
        said = read_turn([*prompt, message], len(prompt), with_prompt=judge.model_client is not None)
        calls = [call for call in said.calls if call.id not in answered]
        carried = await judge.judge(carried, replace(said, calls=calls, tools=tools))
        turn = carried.turn or {}
        told += answered_for(carried.records)
        if turn["reflect"] and not carried.records:
            told.append(SystemMessage(judge.monitor.get_reflection_message().content or ""))
        request.runtime.stream_writer({KEY: shown(carried)})
        stopped = turn["stopped"] is not None
        update: dict[str, Any] = {KEY: judge.held(carried)}
        if told:
            update["messages"] = told
        if stopped:
            update["jump_to"] = "end"
        answer = None if stopped else response.structured_response
        return ExtendedModelResponse(
            ModelResponse(result=result, structured_response=answer), command=Command(update=update)
        )

    # -- the answer -----------------------------------------------------------------------------------------------

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Hold an answer in grave doubt back until a human accepts it, or sends the agent on with a word."""
        update: dict[str, Any] | None = await _awaiting(self._reviewed(state))
        return update

    @hook_config(can_jump_to=["model"])
    def after_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """`aafter_agent` for agents that run without awaiting."""
        update: dict[str, Any] | None = _blocking(self._reviewed(state))
        return update

    def _reviewed(self, state: Any) -> Steps:
        held = _held(state)
        if (held.get("turn") or {}).get("review") is None:
            return None
        carried = self._carried(held)
        _, accepted = yield from self._ask(replace(carried, records=()))
        carried = self.judge.record(carried, accepted)
        decision, _ = accepted[0]
        update: dict[str, Any] = {KEY: self.judge.held(replace(carried, turn={**(carried.turn or {}), "review": None}))}
        if decision.kind == "approve":
            return update
        text = decision.message or ""
        if decision.kind == "reject":
            text = f"A human rejected this answer. {text}".strip()
        return {**update, "messages": [HumanMessage(text)], "jump_to": "model"}

    def _carried(self, held: Any) -> Carried:
        config = get_config()
        return self.judge.take(session_id_of(config), place_of(self.judge, config), held)

    # -- the calls ------------------------------------------------------------------------------------------------

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run a call that was cleared, or that a human approved; ask first where one is needed."""
        run, accepted = await _awaiting(self._cleared(request))
        return self._with_decisions(run if isinstance(run, ToolMessage) else await handler(run), accepted)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """`awrap_tool_call` for agents that run without awaiting."""
        run, accepted = _blocking(self._cleared(request))
        return self._with_decisions(run if isinstance(run, ToolMessage) else handler(run), accepted)

    def _cleared(self, request: ToolCallRequest) -> Steps:
        """The request to go on with, or what answers in the tool's place; and the decisions that made it so."""
        judge, call = self.judge, read_call(request.tool_call)
        if not judge.acts:
            return request, []
        carried = self._carried(_held(request.state))
        record = carried.record(call)
        if record is None:  # another middleware changed the call, or the model never proposed it
            packed = yield lambda: _done(self._packed(carried.place, [judge.judge_late(carried, call)]))
            (record,) = self._unpacked(carried, packed)
        accepted: list[Any] = []
        if record.waiting:
            turn = {**(carried.turn or {}), "review": None, "arrived": []}
            after, accepted = yield from self._ask(replace(carried, records=(record,), turn=turn))
            (record,) = after.records
        if record.phase is CallPhase.SETTLED:
            return answered_for([record])[0], accepted
        if not judge.clears(carried, record, record.call):
            return ToolMessage(NOT_CLEARED, tool_call_id=call.id, name=call.name, status="error"), []
        return _bound(request, record), accepted

    def _ask(self, carried: Carried) -> Steps:
        """Interrupt until decisions hold on all that waits; the state after them, and they."""
        refused: list[str] = []
        accepted: list[Any] = []
        while requests_of(carried):
            answer = interrupt({"type": REVIEW, "requests": requests_of(carried), "refused": refused})
            packed = yield functools.partial(self._decide, carried, answer)
            carried = replace(carried, records=self._unpacked(carried, packed), turn=packed["turn"])
            accepted += [_decision_of(item) for item in packed["accepted"]]
            refused = packed["refused"]
        return carried, accepted

    async def _decide(self, carried: Carried, answer: Any) -> dict[str, Any]:
        after, accepted, refused = await self.judge.decide(carried, answer)
        items = [_item(decision, call) for decision, call in accepted]
        packed = self._packed(carried.place, after.records)
        return {**packed, "turn": after.turn, "accepted": items, "refused": refused}

    def _packed(self, place: str, records: Sequence[CallRecord]) -> dict[str, Any]:
        """Records for a task's result, which is checkpointed: sealed, because others may write the checkpoint."""
        return self.judge.sealed(place, {"records": [record.model_dump(mode="json") for record in records]})

    def _unpacked(self, carried: Carried, packed: dict[str, Any]) -> tuple[CallRecord, ...]:
        believed = self.judge.believes(carried.place, packed, "records")
        return self.judge.restored(carried, packed["records"], believed=believed)

    def _with_decisions(self, result: Any, accepted: Sequence[Any]) -> Any:
        """The tool's result, and what humans decided, for the belief."""
        if not accepted:
            return result
        place = place_of(self.judge, get_config())
        decided = {KEY: {"decided": [self.judge.sealed(place, _item(*one)) for one in accepted]}}
        if isinstance(result, ToolMessage):
            return Command(update={"messages": [result], **decided})
        if isinstance(result, Command) and isinstance(result.update, dict):
            return Command(graph=result.graph, goto=result.goto, update={**result.update, **decided})
        return result


Steps = Generator[Callable[[], Awaitable[Any]], Any, Any]
"""Work that awaits, step by step; each step's result is checkpointed, so that a second run finds it and repeats none.

A hook that interrupted runs again from its top: without this, a precondition that failed the first time might hold the
second, and an approval that was refused would count.
"""


async def _awaiting(steps: Steps) -> Any:
    result = None
    while True:
        try:
            work = steps.send(result)
        except StopIteration as end:
            return end.value
        result = await _once(work)


def _blocking(steps: Steps) -> Any:
    result = None
    while True:
        try:
            work = steps.send(result)
        except StopIteration as end:
            return end.value
        result = _once_blocking(work).result()


async def _work(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


def _work_blocking(work: Callable[[], Awaitable[Any]]) -> Any:
    return run_blocking(functools.partial(_work, work))


_as_task: Any = task(name="uncertainty_step")
_once, _once_blocking = _as_task(_work), _as_task(_work_blocking)


def _held(state: Any) -> dict[str, Any]:
    return state.get(KEY) or {}


async def _done(value: Any) -> Any:
    return value


def _item(decision: ApprovalDecision, call: ToolCall | None) -> dict[str, Any]:
    return {
        "decision": decision.model_dump(mode="json"),
        "call": None if call is None else call.model_dump(mode="json"),
    }


def _decision_of(item: Any) -> tuple[ApprovalDecision, ToolCall | None]:
    call = item["call"]
    return ApprovalDecision.model_validate(item["decision"]), None if call is None else ToolCall.model_validate(call)


def _edited_by(item: Any) -> CallRecord:
    decision, call = _decision_of(item)
    call = call or ToolCall(name="none")
    record = CallRecord(proposed=call, call=call, step_id="")
    if decision.arguments is None:
        return record
    return record.change(call=call.model_copy(update={"arguments": decision.arguments}))


def _bound(request: ToolCallRequest, record: CallRecord) -> ToolCallRequest:
    """The request as it was cleared: with a human's arguments, and a tool that runs with no others.

    Middleware inside this one may change the call on its way; a tool that only reads or can be undone follows it.
    """
    if record.edited:
        request = request.override(tool_call={**request.tool_call, "args": dict(record.call.arguments)})
    if request.tool is None or (record.effect in HARMLESS and not record.decisions):
        return request
    return request.override(tool=_bound_tool(request.tool, record.call))


def _bound_tool(tool: Any, call: ToolCall) -> Any:
    """The tool, refusing any arguments but these; what the framework injects is none of the model's."""
    free = set(schema_of(tool).get("properties", ()))

    def is_cleared(given: Any) -> bool:
        arguments = {name: value for name, value in given["args"].items() if name in free or name in call.arguments}
        return call.model_copy(update={"name": given["name"], "arguments": arguments}).digest() == call.digest()

    def refused(given: Any) -> ToolMessage:
        return ToolMessage(NOT_CLEARED, tool_call_id=given["id"], name=given["name"], status="error")

    def invoke(given: Any, config: Any = None, **more: Any) -> Any:
        return tool.invoke(given, config, **more) if is_cleared(given) else refused(given)

    async def ainvoke(given: Any, config: Any = None, **more: Any) -> Any:
        return await tool.ainvoke(given, config, **more) if is_cleared(given) else refused(given)

    bound = copy.copy(tool)
    object.__setattr__(bound, "invoke", invoke)  # of this one copy: the tool's model declares no such fields
    object.__setattr__(bound, "ainvoke", ainvoke)
    return bound
