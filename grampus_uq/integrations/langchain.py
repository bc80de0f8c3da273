"""LangChain: middleware for `create_agent` that pauses an agent before an uncertain irreversible call.

    guard = UncertaintyMiddleware(monitor, model_client=client, advisory=False)
    agent = create_agent(model, tools, middleware=[guard], checkpointer=checkpointer)

The model's turn is judged after the call (`after_model`, a checkpointed node of its own), and the belief travels in the
agent's state. A call that needs a human interrupts in `wrap_tool_call`, which runs again from its top on resume: it
asks no model, and what must not be computed anew is a LangGraph task, whose result is checkpointed.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from grampus_uq import ApprovalPolicy, MissingDependencyError, ToolEffects, UncertaintyMonitor
from grampus_uq.integrations.blocking import run_blocking
from grampus_uq.integrations.judged_turns import Precondition, Turn, TurnJudge, proposes, requests_of
from grampus_uq.integrations.langchain_messages import last_answer, observe_between, read_call, read_turn

try:
    from typing import NotRequired

    from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langgraph.config import get_config
    from langgraph.func import task
    from langgraph.types import Command, interrupt
except ImportError as error:
    raise MissingDependencyError.of("langchain", "langchain", "The middleware for LangChain") from error

from grampus_uq.integrations.langgraph import KEY, answered_for, session_id_of, shown, with_note
from grampus_uq.integrations.langgraph_approvals import REVIEW, resume_with, waiting_requests

if TYPE_CHECKING:
    from langchain.agents.middleware.types import ToolCallRequest
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

    @hook_config(can_jump_to=["end"])
    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Judge the turn: no interrupt, so it runs once."""
        messages = state["messages"]
        index = last_answer(messages)
        if index is None:
            return None
        held = state.get(KEY) or {}
        before = held.get("belief")
        session = self.judge.session(session_id_of(get_config()), before)
        if held.get("decided"):
            before = self.judge.record(session, held["belief"], held["turn"], held["decided"])
        observe_between(session, messages, index)
        said = read_turn(messages, index, with_prompt=self.judge.model_client is not None)
        belief, turn = await self.judge.judge(session, before, said)
        told: list[Any] = answered_for(entry for entry in turn["calls"] if entry["phase"] == "settled")
        if turn["reflect"] and not turn["calls"]:
            told.append(SystemMessage(self.judge.monitor.get_reflection_message().content or ""))
        runtime.stream_writer({KEY: shown(turn, session.session_id)})
        update: dict[str, Any] = {KEY: {"belief": belief, "turn": turn}}
        if told:
            update["messages"] = told
        if turn["stopped"] is not None:
            update["jump_to"] = "end"
        return update

    @hook_config(can_jump_to=["end"])
    def after_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """`aafter_model` for agents that run without awaiting."""
        return run_blocking(lambda: self.aafter_model(state, runtime))

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
        held = state.get(KEY)
        if held is None or not requests_of(held["turn"]):
            return None
        turn = held["turn"]
        _, accepted = yield from self._ask(turn)
        reviewed = accepted[0]["decision"]
        session = self.judge.session(session_id_of(get_config()), held["belief"])
        belief = self.judge.record(session, held["belief"], turn, accepted)
        update: dict[str, Any] = {KEY: {"belief": belief, "turn": {**turn, "review": None}}}
        if reviewed["kind"] == "approve":
            return update
        said = reviewed.get("message") or ""
        text = f"A human rejected this answer. {said}".strip() if reviewed["kind"] == "reject" else said
        return {**update, "messages": [HumanMessage(text)], "jump_to": "model"}

    # -- the calls ------------------------------------------------------------------------------------------------

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run a call that needs nobody, or that a human let through; ask first where one is needed."""
        if _needs_nobody(request):
            return await handler(request)
        entry, accepted = await _awaiting(self._cleared(request))
        if entry["phase"] == "settled":
            return _with_decisions(answered_for([entry])[0], accepted)
        result = await handler(_edited(request, entry))
        return _with_decisions(with_note(result, entry["arguments"]), accepted)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """`awrap_tool_call` for agents that run without awaiting."""
        if _needs_nobody(request):
            return handler(request)
        entry, accepted = _blocking(self._cleared(request))
        if entry["phase"] == "settled":
            return _with_decisions(answered_for([entry])[0], accepted)
        result = handler(_edited(request, entry))
        return _with_decisions(with_note(result, entry["arguments"]), accepted)

    def _cleared(self, request: ToolCallRequest) -> Steps:
        """The call's entry once nothing of it waits any more, and the decisions that made it so."""
        held = request.state.get(KEY) or {}
        call = read_call(request.tool_call)
        turn = held.get("turn") or {"calls": [], "step_id": "llm_0"}
        entry = next((e for e in turn["calls"] if proposes(e, call)), None)
        if entry is None:  # another middleware changed the call, or the model never proposed it
            session_id = session_id_of(get_config())
            entry = yield lambda: self.judge.judge_late(session_id, held.get("belief"), turn["step_id"], call)
        if entry["phase"] != "waiting":
            return entry, []
        after, accepted = yield from self._ask({"calls": [entry], "review": None})
        return after["calls"][0], accepted

    def _ask(self, turn: Turn) -> Steps:
        """Interrupt until decisions hold on all that waits; the turn after them, and they."""
        refused: list[str] = []
        accepted: list[Any] = []
        while requests_of(turn):
            answer = interrupt({"type": REVIEW, "requests": requests_of(turn), "refused": refused})
            turn, taken, refused = yield functools.partial(self.judge.decide, turn, answer)
            accepted += taken
        return turn, accepted


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


def _needs_nobody(request: ToolCallRequest) -> bool:
    """True for a call exactly as it was judged and let through: the usual case, looked at without building anything."""
    held, call = request.state.get(KEY), request.tool_call
    for entry in held["turn"]["calls"] if held else ():
        known = entry["call"]
        if known["id"] == call["id"] and known["name"] == call["name"] and known["arguments"] == call["args"]:
            return bool(entry["phase"] == "cleared")
    return False


def _edited(request: ToolCallRequest, entry: dict[str, Any]) -> ToolCallRequest:
    if entry["arguments"] is None:
        return request
    return request.override(tool_call={**request.tool_call, "args": entry["arguments"]})


def _with_decisions(result: Any, accepted: Sequence[Any]) -> Any:
    """The tool's result, and what humans decided, for the belief."""
    if not accepted:
        return result
    if isinstance(result, ToolMessage):
        return Command(update={"messages": [result], KEY: {"decided": list(accepted)}})
    if isinstance(result, Command) and isinstance(result.update, dict):
        return Command(graph=result.graph, goto=result.goto, update={**result.update, KEY: {"decided": list(accepted)}})
    return result
