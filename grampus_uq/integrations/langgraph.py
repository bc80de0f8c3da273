"""LangGraph: a guard behind the model's node, which pauses the graph before an uncertain irreversible call.

    guard = uncertainty_guard(monitor, model_client=client, advisory=False)
    guard.attach(builder, after="agent", tools=[look_up, pay])

`score` judges the model's turn (it may ask a model) and is checkpointed; `gate` asks the human with `interrupt()`. A
node that interrupts runs again from its top when it is resumed, so in one node the judging would be paid twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

from grampus_uq import ApprovalPolicy, ConfigurationError, MissingDependencyError, ToolEffects, UncertaintyMonitor
from grampus_uq.gate.call import CallPhase, CallRecord
from grampus_uq.integrations.blocking import run_blocking
from grampus_uq.integrations.judged_turns import Carried, Precondition, TurnJudge, requests_of
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
    "place_of",
    "resume_with",
    "schema_of",
    "session_id_of",
    "shown",
    "uncertainty_guard",
    "waiting_requests",
    "with_arguments",
    "with_ids",
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
    when all of the turn have a result. An edit changes the arguments in the model's message too: the transcript says
    what ran, and results stay as the tools gave them.
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
            tools: the tools themselves (then the guard adds the node "tools", which runs no call that was not cleared,
                and checks a human's edits against their schemas), or the name of a node that is there.
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
        score, gate = (name if name not in builder.nodes else f"{name}_{after}" for name in (SCORE, GATE))
        wired = GuardNodes(guard=self, agent=after, tools=node, gate_node=gate, end=end, commands=not conditional_edges)
        ways = (after, node, gate, end)
        for name, work in ((score, wired.score), (gate, wired.gate)):
            given: dict[str, Any] = {} if conditional_edges else {"destinations": ways}
            builder.add_node(name, _Node(name, work), input_schema=schema, **given)
            if conditional_edges:
                builder.add_conditional_edges(name, _seeing(schema, wired.route), list(ways))
        builder.add_edge(after, score)
        builder.add_conditional_edges(node, _seeing(schema, wired.after_tools), [after, gate])

    def tool_node(self, tools: Sequence[Any], **given: Any) -> ToolNode:
        """A `ToolNode` that runs a call only as it was cleared; `given` goes to its constructor."""
        from langgraph.prebuilt import (
            ToolNode,  # a package of its own, which not every old LangGraph fits together with
        )

        node = ToolNode(tools, wrap_tool_call=self.wrap_tool_call, awrap_tool_call=self.awrap_tool_call, **given)
        self.judge.schemas.update({name: schema_of(tool) for name, tool in node.tools_by_name.items()})
        return node

    # -- the tools' own fence -------------------------------------------------------------------------------------

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Run a call only as it was cleared; for `ToolNode(wrap_tool_call=...)`."""
        return handler(request) if self._may_run(request) else _not_cleared(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """`wrap_tool_call`, awaited; for `ToolNode(awrap_tool_call=...)`."""
        return await handler(request) if self._may_run(request) else _not_cleared(request)

    def _may_run(self, request: ToolCallRequest) -> bool:
        """The check at the moment of running. A node of the user's own that sees no channel of ours is looked up."""
        if not self.judge.acts:
            return True
        config = request.runtime.config
        held = request.state.get(KEY) if isinstance(request.state, dict) else None
        place = place_of(self.judge, config)
        if held is not None:
            carried: Carried | None = self.judge.take(session_id_of(config), place, held)
        else:
            carried = self.judge.latest(session_id_of(config))
        call = read_call(request.tool_call)
        return carried is not None and self.judge.clears(carried, carried.record(call), call)


def _not_cleared(request: ToolCallRequest) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(NOT_CLEARED, tool_call_id=call["id"], name=call["name"], status="error")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardNodes:
    """A guard's nodes between the model's node and the tools'. `score` may ask a model, `gate` only asks humans."""

    guard: UncertaintyGuard
    agent: str
    tools: str
    gate_node: str
    end: str
    commands: bool

    async def score(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Judge the model's turn: one superstep, checkpointed, without an interrupt."""
        judge, key = self.guard.judge, self.guard.messages_key
        messages: Sequence[AnyMessage] = state.get(key) or ()
        index = last_answer(messages)
        if index is None:
            if not judge.acts:
                return Command(goto=self.end) if self.commands else {}
            rule = "with a message of the model, which the guard judges"
            raise ConfigurationError.of(key, "uncertainty_guard", rule, f"{len(messages)} messages")
        told: list[Any] = []
        message = with_ids(messages[index])
        if message is not messages[index]:
            told.append(message)
            messages = [*messages[:index], message, *messages[index + 1 :]]
        carried = judge.take(session_id_of(config), place_of(judge, config), state.get(KEY), to_judge=True)
        observe_between(carried.session, messages, index)
        said = read_turn(messages, index, with_prompt=judge.model_client is not None)
        carried = await judge.judge(carried, replace(said, tools=judge.schemas))
        told += answered_for(carried.records)
        turn = carried.turn or {}
        if turn["reflect"] and not carried.records:
            told.append(SystemMessage(judge.monitor.get_reflection_message().content or ""))
        get_stream_writer()({KEY: shown(carried)})
        return self._go_on(state, carried, told)

    # -- asking ---------------------------------------------------------------------------------------------------

    async def gate(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Ask the human about what waits, and take the answer; runs again from its top when it is resumed."""
        judge, held = self.guard.judge, state[KEY]
        before = judge.take(session_id_of(config), place_of(judge, config), held, to_judge=True)
        waiting = requests_of(before)
        if not waiting:
            return self._go_on(state, before, [])
        answer = interrupt({"type": REVIEW, "requests": waiting, "refused": held.get("refused", [])})
        after, accepted, refused = await judge.decide(before, answer)
        after = judge.record(after, accepted)
        fresh = [new for new, old in zip(after.records, before.records, strict=True) if new.phase is not old.phase]
        told: list[Any] = answered_for(fresh)
        if any(record.edited for record in fresh):
            told.insert(0, self._rewritten(state, after))
        turn = after.turn or {}
        reviewed = turn.pop("reviewed", None)
        if reviewed is not None and reviewed["kind"] != "approve":
            told.append(HumanMessage(_said_of_answer(reviewed)))
            turn["back"] = True
        get_stream_writer()({KEY: {"decided": [decision.kind.value for decision, _ in accepted], "refused": refused}})
        return self._go_on(state, after, told, refused)

    def _rewritten(self, state: dict[str, Any], carried: Carried) -> Any:
        """The model's message with the arguments that a human gave: what ran is what the transcript says was called."""
        messages = state[self.guard.messages_key]
        message: Any = messages[last_answer(messages)]
        return with_arguments(message, carried.records)

    # -- routing --------------------------------------------------------------------------------------------------

    def _go_on(self, state: dict[str, Any], carried: Carried, told: list[Any], refused: Sequence[str] = ()) -> Any:
        held = {**self.guard.judge.held(carried), "refused": list(refused)}
        update: dict[str, Any] = {KEY: held}
        if told:
            update[self.guard.messages_key] = told
        if not self.commands:
            return update
        return Command(update=update, goto=self._next({**state, KEY: held}, carried, told))

    def route(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Conditional edge from `score` and `gate`."""
        judge = self.guard.judge
        if state.get(KEY) is None:
            return self.end
        return self._next(state, judge.take(session_id_of(config), place_of(judge, config), state[KEY]), ())

    def _next(self, state: dict[str, Any], carried: Carried, told: Sequence[Any]) -> Any:
        """Where a turn leads: to the tools with what is cleared and has not run, else to the human, else on."""
        turn = carried.turn or {}
        if turn.get("stopped") is not None:
            return self.end
        messages = [*state[self.guard.messages_key], *told]
        answered = _answered(messages)
        ready = [r for r in carried.records if r.phase is CallPhase.CLEARED and r.proposed.id not in answered]
        if ready and len(ready) == len(carried.records) and not any(record.edited for record in ready):
            return self.tools
        if ready:
            return [self._send(state, record) for record in ready]
        if requests_of(carried):
            return self.gate_node
        return self.agent if carried.records or turn.get("back") else self.end

    def _send(self, state: dict[str, Any], record: CallRecord) -> Send:
        """One cleared call as a task of its own: the tools' node sees the state with a turn of this call alone."""
        messages = state[self.guard.messages_key]
        index = last_answer(messages) or 0
        message: Any = messages[index]
        called = next(call for call in message.tool_calls if call["id"] == record.proposed.id)
        alone = message.model_copy(update={"tool_calls": [{**called, "args": dict(record.call.arguments)}]})
        return Send(self.tools, {**state, self.guard.messages_key: [*messages[:index], alone]})

    def after_tools(self, state: dict[str, Any], config: RunnableConfig) -> str:
        """Conditional edge from the tools' node: back to the gate while something waits, else to the model."""
        judge, held = self.guard.judge, state.get(KEY)
        if held is None:
            return self.agent
        waiting = requests_of(judge.take(session_id_of(config), place_of(judge, config), held))
        return self.gate_node if waiting else self.agent


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


def _seeing(schema: Any, route: Callable[[dict[str, Any], RunnableConfig], Any]) -> Callable[..., Any]:
    """The route as a function whose annotation tells LangGraph what it wants to see of the state."""

    def path(state: dict[str, Any], config: RunnableConfig) -> Any:
        return route(state, config)

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


def place_of(judge: TurnJudge, config: RunnableConfig) -> str:
    """What the framework calls the run: a seal is bound to it. Sub-graphs that share a state share it."""
    return f"{judge.agent_id}/{config.get('configurable', {}).get('thread_id') or ''}"


def schema_of(tool: Any) -> Mapping[str, Any]:
    """The JSON schema of the arguments that a model, or a human, may give to a LangChain tool."""
    schema = tool.tool_call_schema
    return schema if isinstance(schema, Mapping) else dict(schema.model_json_schema())


def with_ids(message: Any) -> Any:
    """The model's message with an id of its own for each call: an empty or repeated one names no call."""
    ids = [call["id"] for call in message.tool_calls]
    if all(ids) and len(set(ids)) == len(ids):
        return message
    calls = [
        call if call["id"] and ids.index(call["id"]) == place else {**call, "id": f"call-{uuid.uuid4().hex}"}
        for place, call in enumerate(message.tool_calls)
    ]
    return message.model_copy(update={"tool_calls": calls})


def with_arguments(message: Any, records: Iterable[CallRecord]) -> Any:
    """The model's message with the arguments that humans gave."""
    edited = {record.proposed.id: dict(record.call.arguments) for record in records if record.edited}
    calls = [{**call, "args": edited.get(call["id"], call["args"])} for call in message.tool_calls]
    return message.model_copy(update={"tool_calls": calls})


def answered_for(records: Iterable[CallRecord]) -> list[Any]:
    """Tool results for calls that were answered for without running."""
    return [
        ToolMessage(
            record.text or "",
            tool_call_id=record.proposed.id,
            name=record.proposed.name,
            status="error" if record.is_error else "success",
        )
        for record in records
        if record.phase is CallPhase.SETTLED
    ]


def _said_of_answer(decision: Mapping[str, Any]) -> str:
    said = decision.get("message") or ""
    return f"A human rejected this answer. {said}".strip() if decision["kind"] == "reject" else said


def shown(carried: Carried) -> dict[str, Any]:
    """What is streamed of a judged turn; no content, only names and numbers."""
    turn = carried.turn or {}
    calls = [{"id": r.proposed.id, "name": r.proposed.name, "phase": r.phase.value} for r in carried.records]
    shown = ("step_id", "action", "level", "confidence", "rule", "reason", "guarantee", "stopped")
    return {"session_id": carried.session.session_id, **{key: turn[key] for key in shown}, "calls": calls}
