"""LangGraph: a guard behind the model's node, which pauses the graph before an uncertain irreversible call.

    guard = uncertainty_guard(monitor, model_client=client, advisory=False)
    guard.attach(builder, after="agent", tools=[look_up, pay])

`score` judges the model's turn (it may ask a model) and is checkpointed; `gate` asks the human with `interrupt()`. A
node that interrupts runs again from its top when it is resumed, so in one node the judging would be paid twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

from grampus_uq import ApprovalPolicy, ConfigurationError, MissingDependencyError, ToolEffects, UncertaintyMonitor
from grampus_uq.integrations.blocking import run_blocking
from grampus_uq.integrations.judged_turns import CHANGED, Precondition, Turn, TurnJudge, requests_of, run_of
from grampus_uq.integrations.langchain_messages import last_answer, observe_between, read_call, read_turn
from grampus_uq.integrations.langgraph_approvals import REVIEW, resume_with, waiting_requests

try:
    from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage, ToolMessage
    from langchain_core.runnables import Runnable, RunnableConfig
    from langgraph.config import get_stream_writer
    from langgraph.graph import END, StateGraph
    from langgraph.types import Command, Send, interrupt
except ImportError as error:
    raise MissingDependencyError.of("langgraph", "langgraph", "The guard for LangGraph") from error

if TYPE_CHECKING:
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest

    from grampus_uq.protocols import ModelClient

__all__ = [
    "KEY",
    "GuardNodes",
    "UncertaintyGuard",
    "answered_for",
    "resume_with",
    "session_id_of",
    "shown",
    "uncertainty_guard",
    "waiting_requests",
    "with_note",
]

KEY = "uncertainty"
"""The channel that the guard adds to the graph's state: {"belief": ..., "turn": ...}, JSON values."""
SCORE, GATE = "uncertainty_score", "uncertainty_gate"
NOT_CLEARED = "Not executed: this call was not cleared. Propose it in a turn of the model."


def uncertainty_guard(
    monitor: UncertaintyMonitor,
    *,
    model_client: ModelClient | None = None,
    agent_id: str = "",
    effects: ToolEffects | None = None,
    approvals: ApprovalPolicy | None = None,
    precondition: Precondition | None = None,
    advisory: bool = True,
    messages_key: str = "messages",
) -> UncertaintyGuard:
    """Build a guard for graphs whose state holds LangChain messages.

    Args:
        monitor: judges; its processors get spans and recordings. The session's id is the thread's.
        model_client: whom the monitor's signals may ask; None reads only what came with the model's answer.
        agent_id: names the agent in records.
        effects: what the tools do to the world; beside it holds the policy's `irreversible_tool_names`.
        approvals: who may decide, how decisions are signed, when they expire.
        precondition: asked when a call was approved; a text says why it must not run now, and it is asked again.
        advisory: stop nothing, record what would be stopped. Without a fitted profile a pause carries no guarantee.
        messages_key: where the state holds its messages.
    """
    judge = TurnJudge(
        monitor,
        model_client=model_client,
        agent_id=agent_id,
        effects=effects,
        approvals=approvals,
        precondition=precondition,
        advisory=advisory,
    )
    return UncertaintyGuard(judge, messages_key)


class UncertaintyGuard:
    """What a guard is made of; one serves any number of graphs and threads. `attach` wires its nodes into a graph.

    The calls of a turn that need no human run at once, an approved one as soon as it is approved; the model goes on
    when all of the turn have a result.
    """

    def __init__(self, judge: TurnJudge, messages_key: str = "messages") -> None:
        self.judge = judge
        self.messages_key = messages_key

    def attach(
        self,
        builder: StateGraph[Any, Any, Any, Any],
        *,
        after: str = "agent",
        tools: str | Sequence[Any] = "tools",
        end: str = END,
        conditional_edges: bool = False,
    ) -> None:
        """Put the guard behind the model's node: model -> score -> gate where a human is needed -> tools -> model.

        Args:
            builder: a graph without edges of its own from the model's node or from the tools'.
            after: the model's node.
            tools: the tools themselves (then the guard adds the node "tools", which runs no call that was not cleared
                and tells the model of edited arguments), or the name of a node that is there (then an edit changes the
                arguments in the model's own message).
            end: where an answer without calls leads, and a run that was stopped.
            conditional_edges: route by conditional edges, not by `Command`, for graphs that are to show their edges.
        """
        schema = _schema(builder)
        node = tools if isinstance(tools, str) else "tools"
        taken = [start for start, _ in builder.edges if start in (after, node)]
        if taken or builder.branches.get(after) or builder.branches.get(node):
            rule = f"a graph without edges from {after!r} and {node!r}: the guard leads on from there"
            raise ConfigurationError.of("builder", "UncertaintyGuard.attach", rule, sorted(builder.edges))
        if not isinstance(tools, str):
            builder.add_node(node, self.tool_node(tools), input_schema=schema)
        wired = GuardNodes(
            guard=self, agent=after, tools=node, end=end, commands=not conditional_edges, rewrites=tools == node
        )
        ways = (after, node, GATE, end)
        for name, work in ((SCORE, wired.score), (GATE, wired.gate)):
            given: dict[str, Any] = {} if conditional_edges else {"destinations": ways}
            builder.add_node(name, _Node(name, work), input_schema=schema, **given)
            if conditional_edges:
                builder.add_conditional_edges(name, _seeing(schema, wired.route), list(ways))
        builder.add_edge(after, SCORE)
        builder.add_conditional_edges(node, _seeing(schema, wired.after_tools), [after, GATE])

    def tool_node(self, tools: Sequence[Any], **given: Any) -> ToolNode:
        """A `ToolNode` that runs a call only as it was cleared; `given` goes to its constructor."""
        from langgraph.prebuilt import (
            ToolNode,  # a package of its own, which not every old LangGraph fits together with
        )

        return ToolNode(tools, wrap_tool_call=self.wrap_tool_call, awrap_tool_call=self.awrap_tool_call, **given)

    # -- the tools' own fence -------------------------------------------------------------------------------------

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Run a call only as it was cleared; for `ToolNode(wrap_tool_call=...)`."""
        edited = self._fence(request)
        if isinstance(edited, ToolMessage):
            return edited
        return with_note(handler(request), edited)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """`wrap_tool_call`, awaited; for `ToolNode(awrap_tool_call=...)`."""
        edited = self._fence(request)
        if isinstance(edited, ToolMessage):
            return edited
        return with_note(await handler(request), edited)

    def _fence(self, request: ToolCallRequest) -> ToolMessage | dict[str, Any] | None:
        """What to answer in the tool's place, or the arguments that a human gave, or None for a call as proposed."""
        state = request.state if isinstance(request.state, dict) else {}
        held = state.get(KEY)
        call = read_call(request.tool_call)
        turn = held["turn"] if held else None
        for entry in turn["calls"] if turn else ():
            cleared = entry["phase"] == "cleared" and entry["call"]["name"] == call.name
            if cleared and entry["call"]["id"] == call.id and run_of(entry) == call.arguments:
                edited: dict[str, Any] | None = entry["arguments"]
                return edited
        if self.judge.advisory or self.judge.monitor.profile.advisory:
            return None
        return ToolMessage(NOT_CLEARED, tool_call_id=call.id, name=call.name, status="error")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardNodes:
    """A guard's nodes between the model's node and the tools'. `score` may ask a model, `gate` only asks humans."""

    guard: UncertaintyGuard
    agent: str
    tools: str
    end: str
    commands: bool
    rewrites: bool

    async def score(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Judge the model's turn: one superstep, checkpointed, without an interrupt."""
        messages: Sequence[AnyMessage] = state.get(self.guard.messages_key) or ()
        index = last_answer(messages)
        if index is None:
            rule = "with a message of the model, which the guard judges"
            raise ConfigurationError.of(self.guard.messages_key, "uncertainty_guard", rule, f"{len(messages)} messages")
        before = (state.get(KEY) or {}).get("belief")
        session = self.guard.judge.session(session_id_of(config), before)
        observe_between(session, messages, index)
        said = read_turn(messages, index, with_prompt=self.guard.judge.model_client is not None)
        belief, turn = await self.guard.judge.judge(session, before, said)
        told: list[Any] = answered_for(entry for entry in turn["calls"] if entry["phase"] == "settled")
        if turn["reflect"] and not turn["calls"]:
            told.append(SystemMessage(self.guard.judge.monitor.get_reflection_message().content or ""))
        get_stream_writer()({KEY: shown(turn, session.session_id)})
        return self._go_on(state, belief, turn, told)

    # -- asking ---------------------------------------------------------------------------------------------------

    async def gate(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Ask the human about what waits, and take the answer; runs again from its top when it is resumed."""
        held = state[KEY]
        before, turn = held["belief"], held["turn"]
        waiting = requests_of(turn)
        if not waiting:
            return self._go_on(state, before, turn, [])
        answer = interrupt({"type": REVIEW, "requests": waiting, "refused": held.get("refused", [])})
        after, accepted, refused = await self.guard.judge.decide(turn, answer)
        belief = before
        if accepted:
            session = self.guard.judge.session(session_id_of(config), before)
            belief = self.guard.judge.record(session, before, after, accepted)
        fresh = [new for new, old in zip(after["calls"], turn["calls"], strict=True) if new["phase"] != old["phase"]]
        told: list[Any] = answered_for(entry for entry in fresh if entry["phase"] == "settled")
        if self.rewrites and any(entry["arguments"] is not None for entry in fresh):
            told.insert(0, self._rewritten(state, after))
        reviewed = after.pop("reviewed", None)
        if reviewed is not None and reviewed["kind"] != "approve":
            told.append(HumanMessage(_said_of_answer(reviewed)))
            after["back"] = True
        get_stream_writer()({KEY: {"decided": [item["decision"]["kind"] for item in accepted], "refused": refused}})
        return self._go_on(state, belief, after, told, refused)

    def _rewritten(self, state: dict[str, Any], turn: Turn) -> Any:
        """The model's message with the arguments that a human gave, for tools' nodes that cannot say so themselves."""
        messages = state[self.guard.messages_key]
        message: Any = messages[last_answer(messages)]
        calls = [{**call, "args": run_of(entry)} for call, entry in zip(message.tool_calls, turn["calls"], strict=True)]
        return message.model_copy(update={"tool_calls": calls})

    # -- routing --------------------------------------------------------------------------------------------------

    def _go_on(
        self, state: dict[str, Any], belief: Any, turn: Turn, told: list[Any], refused: Sequence[str] = ()
    ) -> Any:
        update: dict[str, Any] = {KEY: {"belief": belief, "turn": turn, "refused": list(refused)}}
        if told:
            update[self.guard.messages_key] = told
        return Command(update=update, goto=self._next(state, turn)) if self.commands else update

    def route(self, state: dict[str, Any]) -> Any:
        """Conditional edge from `score` and `gate`."""
        return self._next(state, state[KEY]["turn"])

    def _next(self, state: dict[str, Any], turn: Turn) -> Any:
        """Where a turn leads: to the tools with what is cleared and has not run, else to the human, else on."""
        if turn["stopped"] is not None:
            return self.end
        answered = _answered(state[self.guard.messages_key])
        cleared = [e for e in turn["calls"] if e["phase"] == "cleared" and e["call"]["id"] not in answered]
        if cleared and len(cleared) == len(turn["calls"]) and all(e["arguments"] is None for e in cleared):
            return self.tools
        if cleared:
            return [self._send(state, turn, entry) for entry in cleared]
        if requests_of(turn):
            return GATE
        return self.agent if turn["calls"] or turn.get("back") else self.end

    def _send(self, state: dict[str, Any], turn: Turn, entry: dict[str, Any]) -> Send:
        """One cleared call as a task of its own: the tools' node sees the state with a turn of this call alone."""
        messages = state[self.guard.messages_key]
        index = last_answer(messages) or 0
        message: Any = messages[index]
        call = {**message.tool_calls[turn["calls"].index(entry)], "args": run_of(entry)}
        alone = message.model_copy(update={"tool_calls": [call]})
        return Send(self.tools, {**state, self.guard.messages_key: [*messages[:index], alone], KEY: {"turn": turn}})

    def after_tools(self, state: dict[str, Any]) -> str:
        """Conditional edge from the tools' node: back to the gate while something waits, else to the model."""
        turn = (state.get(KEY) or {}).get("turn")
        return GATE if requests_of(turn) else self.agent


class _Node(Runnable[Any, Any]):
    """A node for both ways of running a graph; nothing between it and its coroutine."""

    def __init__(self, name: str, work: Callable[[dict[str, Any], RunnableConfig], Any]) -> None:
        self.name = name
        self._work = work

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002 (its name)
        return run_blocking(lambda: self._work(input, config or {}))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002 (its name)
        return await self._work(input, config or {})


def _schema(builder: StateGraph[Any, Any, Any, Any]) -> Any:
    """The graph's own state and the guard's channel: tools see the whole state whoever sends them a call."""
    keys: dict[str, Any] = {**get_type_hints(builder.state_schema, include_extras=True), KEY: dict}
    make: Any = TypedDict
    return make("GuardedState", keys, total=False)


def _seeing(schema: Any, route: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """The route as a function whose annotation tells LangGraph what it wants to see of the state."""

    def path(state: dict[str, Any]) -> Any:
        return route(state)

    path.__name__ = route.__name__
    path.__annotations__["state"] = schema
    return path


def session_id_of(config: RunnableConfig) -> str:
    """The thread's id, and for a sub-graph its place within the run; a graph without a checkpointer has a new one."""
    given = config.get("configurable", {})
    within = str(given.get("checkpoint_ns") or "").rpartition("|")[0]
    thread = str(given.get("thread_id") or f"run-{uuid.uuid4().hex}")
    return f"{thread}/{within}" if within else thread


def _answered(messages: Sequence[AnyMessage]) -> set[str]:
    """The ids of the latest turn's calls that have a result."""
    found = set()
    for message in reversed(messages):
        if message.type == "ai":
            break
        if isinstance(message, ToolMessage):
            found.add(message.tool_call_id)
    return found


def answered_for(entries: Iterable[dict[str, Any]]) -> list[Any]:
    """Tool results for calls that were answered for without running."""
    return [
        ToolMessage(
            entry["text"] or "",
            tool_call_id=entry["call"]["id"],
            name=entry["call"]["name"],
            status="error" if entry["is_error"] else "success",
        )
        for entry in entries
    ]


def with_note(result: Any, edited: dict[str, Any] | None) -> Any:
    """Tell the model that the result is of other arguments than it proposed."""
    if edited is None or not isinstance(result, ToolMessage) or not isinstance(result.content, str):
        return result
    note = CHANGED.format(arguments=json.dumps(edited, sort_keys=True))
    return result.model_copy(update={"content": f"{note}\n{result.content}"})


def _said_of_answer(decision: Mapping[str, Any]) -> str:
    said = decision.get("message") or ""
    return f"A human rejected this answer. {said}".strip() if decision["kind"] == "reject" else said


def shown(turn: Turn, session_id: str) -> dict[str, Any]:
    """What is streamed of a judged turn; no content, only names and numbers."""
    calls = [{"id": e["call"]["id"], "name": e["call"]["name"], "phase": e["phase"]} for e in turn["calls"]]
    shown = ("step_id", "action", "level", "confidence", "rule", "reason", "guarantee", "stopped")
    return {"session_id": session_id, **{key: turn[key] for key in shown}, "calls": calls}
