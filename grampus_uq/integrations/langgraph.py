"""LangGraph: a guard behind the model's node, which pauses the graph before an uncertain irreversible call.

    guard = uncertainty_guard(monitor, model_client=client, advisory=False)
    guard.attach(builder, after="agent", tools=[look_up, pay])

The model's turn is judged where the model was called, in its own node, and both are checkpointed together: no further
superstep. `gate` asks the human with `interrupt()`, in a node of its own, which runs again from its top when it is
resumed. Where the model's node cannot be judged in (it is cached, a graph, or writes what only the graph's reducers
know how to read) the node `score` behind it does that.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_type_hints

from grampus_uq import ConfigurationError, MissingDependencyError, ToolCall, UncertaintyMonitor
from grampus_uq.gate.call import CallPhase, CallRecord
from grampus_uq.gate.seal import session_place
from grampus_uq.integrations.blocking import run_blocking
from grampus_uq.integrations.judged_turns import NOT_CLEARED, Carried, Held, Settings, TurnJudge, requests_of
from grampus_uq.integrations.langchain_messages import (
    answered_for,
    last_answer,
    observe_between,
    plain_call,
    read_call,
    read_turn,
    schema_of,
    with_arguments,
    with_ids,
)
from grampus_uq.integrations.langgraph_approvals import REVIEW, resume_with, waiting_requests

try:
    from langchain_core.messages import (
        AIMessage,
        AnyMessage,
        BaseMessage,
        HumanMessage,
        SystemMessage,
        ToolMessage,
        convert_to_messages,
    )
    from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
    from langgraph.config import get_stream_writer
    from langgraph.graph import END, StateGraph, add_messages
    from langgraph.types import Command, Send, interrupt
except ImportError as error:
    raise MissingDependencyError.of("langgraph", "langgraph", "The guard for LangGraph") from error

if TYPE_CHECKING:
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest

__all__ = [
    "KEY",
    "GuardNodes",
    "UncertaintyGuard",
    "resume_with",
    "shown",
    "taken",
    "told_of",
    "uncertainty_guard",
    "waiting_requests",
]

KEY = "uncertainty"
"""The channel that the guard adds to the graph's state: {"belief": ..., "turn": ...}, JSON values."""
SCORE, GATE = "uncertainty_score", "uncertainty_gate"
_MAX_SAID = 1_024
Fence = Callable[[Any, RunnableConfig], AbstractContextManager[Any]]


def uncertainty_guard(
    monitor: UncertaintyMonitor, *, messages_key: str = "messages", **settings: Unpack[Settings]
) -> UncertaintyGuard:
    """Build a guard for graphs whose state holds LangChain messages.

    Args:
        monitor: judges; its processors get spans and recordings. The session's id is the thread's.
        messages_key: where the state holds its messages.
        settings: `model_client`, `agent_id`, `effects`, `approvals`, `precondition`, `advisory` (True unless it is
            said): see `Settings`. Without a fitted profile a pause carries no guarantee.
    """
    return UncertaintyGuard(TurnJudge(monitor, **settings), messages_key)


class UncertaintyGuard:
    """What a guard is made of; one serves any number of graphs and threads. `attach` wires its nodes into a graph.

    The calls of a turn that need no human run at once, an approved one as soon as it is approved; the model goes on
    when all of the turn have a result. An edit changes the arguments in the model's message too: the transcript says
    what ran, and results stay as the tools gave them.
    """

    def __init__(self, judge: TurnJudge, messages_key: str = "messages") -> None:
        self.judge = judge
        self.messages_key = messages_key
        self._said: dict[tuple[str, str], None] = {}

    def attach(
        self,
        builder: StateGraph[Any, Any, Any, Any],
        *,
        after: str = "agent",
        tools: str | Sequence[Any] = "tools",
        end: str = END,
        conditional_edges: bool = False,
    ) -> None:
        """Put the guard behind the model's node: model -> gate where a human is needed -> tools -> model.

        Args:
            builder: a graph without edges of its own from the model's node or from the tools'.
            after: the model's node.
            tools: the tools themselves (then the guard adds the node "tools", which runs no call that was not cleared,
                and checks a human's edits against their schemas), or the name of a node that is there.
            end: where an answer without calls leads, and a run that was stopped.
            conditional_edges: route by conditional edges, not by `Command`, for graphs that are to show their edges;
                the model's turn is judged in a node of its own then.
        """
        node = tools if isinstance(tools, str) else "tools"
        taken = [start for start, _ in builder.edges if start in (after, node)]
        if taken or builder.branches.get(after) or builder.branches.get(node):
            rule = f"a graph without edges from {after!r} and {node!r}: the guard leads on from there"
            raise ConfigurationError.of("builder", "UncertaintyGuard.attach", rule, sorted(builder.edges))
        schema = _schema(builder, after, node)
        if not isinstance(tools, str):
            builder.add_node(node, self.tool_node(tools), input_schema=schema)
        elif node in builder.nodes:
            self._know(getattr(builder.nodes[node].runnable, "tools_by_name", {}))
        score, gate = (name if name not in builder.nodes else f"{name}_{after}" for name in (SCORE, GATE))
        wired = GuardNodes(
            guard=self,
            agent=after,
            tools=node,
            score_node=score,
            gate_node=gate,
            end=end,
            commands=not conditional_edges,
        )
        ways = (after, node, gate, end)
        for name, work in ((score, wired.score), (gate, wired.gate)):
            given: dict[str, Any] = {} if conditional_edges else {"destinations": ways}
            builder.add_node(name, _Node(name, work), input_schema=schema, **given)
            if conditional_edges:
                builder.add_conditional_edges(name, _seeing(schema, wired.route), list(ways))
        inside = not conditional_edges and self._adds_messages(builder)
        if not (inside and _wrap(builder, after, schema, wired.inside, (score, *ways))):
            _wrap(builder, after, schema, wired.noted, ())
            builder.add_edge(after, score)
        fence = wired.fence if isinstance(tools, str) else None
        wrapped = _wrap(builder, node, schema, wired.behind_tools, () if conditional_edges else (after, gate), fence)
        if conditional_edges or not wrapped:
            builder.add_conditional_edges(node, _seeing(schema, wired.after_tools), [after, gate])

    def _adds_messages(self, builder: StateGraph[Any, Any, Any, Any]) -> bool:
        """True when what a node returns is added to the messages: then the turn is known before it is written."""
        return getattr(builder.channels.get(self.messages_key), "operator", None) is add_messages

    def tool_node(self, tools: Sequence[Any], **given: Any) -> ToolNode:
        """A `ToolNode` that runs a call only as it was cleared; `given` goes to its constructor."""
        from langgraph.prebuilt import (
            ToolNode,  # a package of its own, which not every old LangGraph fits together with
        )

        node = ToolNode(tools, wrap_tool_call=self.wrap_tool_call, awrap_tool_call=self.awrap_tool_call, **given)
        self._know(node.tools_by_name)
        return node

    def _know(self, tools: Mapping[str, Any]) -> None:
        """A human's edits are held against the schemas of these tools."""
        self.judge.schemas |= {name: functools.partial(schema_of, tool) for name, tool in tools.items()}

    # -- the tools' own fence -------------------------------------------------------------------------------------

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Run a call only as it was cleared; for `ToolNode(wrap_tool_call=...)`."""
        with self._running(request) as refused:
            return handler(request) if refused is None else not_run(request.tool_call, refused)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """`wrap_tool_call`, awaited; for `ToolNode(awrap_tool_call=...)`."""
        with self._running(request) as refused:
            return await handler(request) if refused is None else not_run(request.tool_call, refused)

    def _running(self, request: ToolCallRequest) -> AbstractContextManager[str | None]:
        """`TurnJudge.running`. A node of the user's own that sees no channel of ours is looked up."""
        if not self.judge.acts:
            return nullcontext()
        config = request.runtime.config
        held = request.state.get(KEY) if isinstance(request.state, dict) else None
        carried = self.judge.latest(session_id_of(config)) if held is None else taken(self.judge, config, held)
        if carried is None:
            return nullcontext(NOT_CLEARED)
        return self.judge.running(carried, *found(carried, request.tool_call))

    # -- what the model's node said -------------------------------------------------------------------------------

    def note(self, config: RunnableConfig, said: Any) -> None:
        """Remember a message of the model as its node returned it, until it is judged behind that node."""
        self._said[session_id_of(config), _words(said)] = None
        while len(self._said) > _MAX_SAID:
            self._said.pop(next(iter(self._said)), None)

    def noted(self, config: RunnableConfig, said: Any) -> bool:
        """True, once, for a message that the model's node returned here; the checkpoint's may be anybody's."""
        kept = config.get("configurable", {}).get("thread_id")
        return not kept or self._said.pop((session_id_of(config), _words(said)), self) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardNodes:
    """What a guard does in and between the model's node and the tools'; only `gate` asks humans."""

    guard: UncertaintyGuard
    agent: str
    tools: str
    score_node: str
    gate_node: str
    end: str
    commands: bool

    # -- judging --------------------------------------------------------------------------------------------------

    async def inside(self, state: dict[str, Any], said: Any, config: RunnableConfig) -> Any:
        """Judge the turn that the model's node just returned, and write both at once."""
        key = self.guard.messages_key
        update: Any = said.update if isinstance(said, Command) and said.graph is None else said
        before: Sequence[AnyMessage] = state.get(key) or ()
        added = _added(before, update.get(key)) if isinstance(update, dict) else None
        if added is None:
            return _leading(await self.noted(state, said, config), self.score_node)
        carried, message, told = await self._judged([*before, *added], len(before) + len(added) - 1, state, config)
        held = self._held(carried)
        update = {**update, key: [*added[:-1], message, *told], KEY: held}
        goto = self._next({**state, key: [*before, *added[:-1], message], KEY: held}, told, carried)
        return _leading(replace(said, update=update) if isinstance(said, Command) else update, goto)

    async def noted(self, state: dict[str, Any], said: Any, config: RunnableConfig) -> Any:
        """What the model's node returned, remembered for `score`."""
        for one in said if isinstance(said, list | tuple) else [said]:
            update = one.update if isinstance(one, Command) else one
            for message in _spoken(update.get(self.guard.messages_key)) if isinstance(update, dict) else ():
                self.guard.note(config, message)
        return said

    async def score(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Judge the turn that the model's node wrote: one superstep, checkpointed, without an interrupt."""
        key = self.guard.messages_key
        messages: Sequence[AnyMessage] = state.get(key) or ()
        index = last_answer(messages)
        if index is None or any(message.type in ("tool", "human") for message in messages[index:]):
            if not self.guard.judge.acts:
                return Command(goto=self.end) if self.commands else {}
            rule = "with a message of the model, which the guard judges"
            raise ConfigurationError.of(key, "uncertainty_guard", rule, f"{len(messages)} messages")
        vouched = self.guard.noted(config, messages[index])
        carried, message, told = await self._judged(messages, index, state, config, vouched=vouched)
        if message is not messages[index]:
            told.insert(0, message)
        return self._go_on(state, carried, told)

    async def _judged(
        self,
        messages: Sequence[AnyMessage],
        index: int,
        state: dict[str, Any],
        config: RunnableConfig,
        *,
        vouched: bool = True,
    ) -> tuple[Carried, Any, list[Any]]:
        """The state after the turn, its message with ids for its calls, and what is told beside it.

        `vouched` False is for a message of which nobody here knows that the model said it.
        """
        judge, message = self.guard.judge, messages[index]
        message = with_ids(message) if judge.acts else message
        begun = any(message.type == "ai" for message in messages[:index])
        carried = taken(judge, config, state.get(KEY), to_judge=True, begun=begun)
        carried = carried if vouched else judge.doubted(carried)
        observe_between(carried.session, messages, index)
        said = read_turn(message, messages[:index] if judge.model_client is not None else ())
        carried = await judge.judge(carried, replace(said, tools=judge.schemas))
        told = told_of(judge, carried)
        get_stream_writer()({KEY: shown(carried)})
        return carried, message, told

    # -- asking ---------------------------------------------------------------------------------------------------

    async def gate(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Ask the human about what waits, and take the answer; runs again from its top when it is resumed."""
        judge, held = self.guard.judge, state.get(KEY) or {}
        before = taken(judge, config, held, to_judge=True)
        waiting = requests_of(before)
        if not waiting:
            return self._go_on(state, before, [])
        answer = interrupt({"type": REVIEW, "requests": waiting, "refused": held.get("refused", [])})
        after, refused = await judge.decide(before, answer)
        fresh = [new for new, old in zip(after.records, before.records, strict=True) if new.phase is not old.phase]
        told: list[Any] = answered_for(fresh)
        if any(record.edited for record in fresh):
            messages = state[self.guard.messages_key]
            index = last_answer(messages)
            told[:0] = [] if index is None else [with_arguments(messages[index], after.records)]
        reviewed = ((after.turn or {}).get("reviewed") or [None])[0]
        kinds = [decision.kind.value for record in fresh for decision in record.decisions]
        after = judge.record(after, fresh)
        if reviewed is not None:
            kinds.append(reviewed["kind"])
            if reviewed["kind"] != "approve":
                told.append(HumanMessage(said_of_answer(reviewed["kind"], reviewed.get("message"))))
                after = replace(after, turn={**(after.turn or {}), "back": True})
        get_stream_writer()({KEY: {"decided": kinds, "refused": refused}})
        return self._go_on(state, after, told, refused)

    # -- routing --------------------------------------------------------------------------------------------------

    def _held(self, carried: Carried, refused: Sequence[str] = ()) -> dict[str, Any]:
        return {**self.guard.judge.held(carried), "refused": list(refused)}

    def _go_on(self, state: dict[str, Any], carried: Carried, told: list[Any], refused: Sequence[str] = ()) -> Any:
        held = self._held(carried, refused)
        update: dict[str, Any] = {KEY: held, **({self.guard.messages_key: told} if told else {})}
        return Command(update=update, goto=self._next({**state, KEY: held}, told, carried)) if self.commands else update

    def route(self, state: dict[str, Any], config: RunnableConfig) -> Any:
        """Conditional edge from `score` and `gate`."""
        if state.get(KEY) is None:
            return self.end
        return self._next(state, (), taken(self.guard.judge, config, state[KEY]))

    def _next(self, state: dict[str, Any], told: Sequence[Any], carried: Carried) -> Any:
        """Where a turn leads: to the tools with what is cleared and has not run, else to the human, else on."""
        turn, messages = carried.turn or {}, state[self.guard.messages_key]
        answered = {*_answered(messages), *(getattr(one, "tool_call_id", None) for one in told)}
        if not self.guard.judge.acts:  # as the transcript says, whatever is carried
            index = last_answer(messages)
            calls = [] if index is None else messages[index].tool_calls
            open_calls = [call for call in calls if call["id"] not in answered]
            return self.tools if open_calls else self.agent if calls else self.end
        if turn.get("stopped") is not None:
            return self.end
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
        index = last_answer(messages)
        call = {"name": record.call.name, "args": dict(record.call.arguments), "id": record.proposed.id}
        said = AIMessage("") if index is None else messages[index]
        alone = said.model_copy(update={"tool_calls": [{**call, "type": "tool_call"}]})
        return Send(self.tools, {**state, self.guard.messages_key: [*messages[:index], alone]})

    @contextmanager
    def fence(self, given: Any, config: RunnableConfig) -> Iterator[Any]:
        """What answers calls when one of them may not run: for a tools' node that may have no fence of its own."""
        key, judge = self.guard.messages_key, self.guard.judge
        calls = _calls(given, key) if judge.acts else []
        if not calls:
            yield None
            return
        carried = taken(judge, config, given.get(KEY) if isinstance(given, dict) else None)
        pairs = [found(carried, call) for call in calls]
        refused = [judge.refusal(carried, *pair) for pair in pairs]
        if len({call["id"] for call in calls}) < len(calls):  # ours have an id each
            refused = [NOT_CLEARED for _ in calls]
        with ExitStack() as running:
            if not any(refused):
                refused = [running.enter_context(judge.running(carried, *pair)) for pair in pairs]
            told = [not_run(call, why or NOT_CLEARED) for call, why in zip(calls, refused, strict=True)]
            yield {key: told} if any(refused) else None

    async def behind_tools(self, state: Any, said: Any, config: RunnableConfig) -> Any:
        """What the tools' node returned, and where it leads."""
        return _leading(said, self.after_tools(state, config)) if self.commands else said

    def after_tools(self, state: Any, config: RunnableConfig) -> str:
        """Conditional edge from the tools' node: back to the gate while something waits, else to the model."""
        held = state.get(KEY) if isinstance(state, dict) else None
        return self.gate_node if held and requests_of(taken(self.guard.judge, config, held)) else self.agent


class _Node(RunnableLambda[Any, Any]):
    """A node for both ways of running a graph, and nothing of LangChain's between it and its coroutine.

    With `inner` it is a node of the user's own, run first; `work` is given what that returned as well. It is found in
    `deps` by those who look for a node's sub-graph.
    """

    def __init__(
        self,
        name: str,
        work: Callable[..., Coroutine[Any, Any, Any]],
        inner: Any = None,
        read: Callable[[Any], Any] = dict,
        fence: Fence | None = None,
    ) -> None:
        self.name = name
        self._work, self._inner, self._read = work, inner, read
        self._fence = fence or (lambda state, config: nullcontext())
        self.func, self.afunc = self.invoke, self.ainvoke

    @property
    def deps(self) -> list[Runnable[Any, Any]]:
        return [] if self._inner is None else [self._inner]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002 (its name)
        config = config or {}
        if self._inner is None:
            return run_blocking(lambda: self._work(input, config))
        with self._fence(input, config) as said:
            if said is None:
                said = self._inner.invoke(self._read(input), config, **more)
        return run_blocking(lambda: self._work(input, said, config))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002 (its name)
        config = config or {}
        if self._inner is None:
            return await self._work(input, config)
        with self._fence(input, config) as said:
            if said is None:
                said = await self._inner.ainvoke(self._read(input), config, **more)
        return await self._work(input, said, config)


def _wrap(
    builder: StateGraph[Any, Any, Any, Any],
    name: str,
    schema: Any,
    work: Callable[..., Coroutine[Any, Any, Any]],
    ways: tuple[str, ...],
    fence: Fence | None = None,
) -> bool:
    """Let a node of the graph go on to `work` with what it returned; False for one that is not there, cached, a graph.

    The node sees what it saw before; where `fence` has something for it to return it is not run.
    """
    spec = builder.nodes.get(name)
    if spec is None or spec.cache_policy or hasattr(spec.runnable, "get_subgraphs"):
        return False
    own, keys = spec.input_schema, tuple(builder.schemas[spec.input_schema])
    plain = isinstance(own, type) and issubclass(own, dict)

    def read(state: Any) -> Any:
        if not isinstance(state, dict):  # calls that somebody sent a node of tools
            return state
        values = {key: state[key] for key in keys if key in state}
        return values if plain else own(**values)

    runnable: Any = _Node(name, work, spec.runnable, read, fence)
    ends = tuple(dict.fromkeys([*(spec.ends or ()), *ways]))
    builder.nodes[name] = replace(spec, runnable=runnable, input_schema=schema, ends=ends)
    return True


def _leading(said: Any, goto: Any) -> Any:
    """What a node returned, and where it leads beside."""
    if said is None or isinstance(said, dict):
        return Command(update=said, goto=goto)
    return [*(said if isinstance(said, list | tuple) else [said]), Command(goto=goto)]


def _added(before: Sequence[Any], said: Any) -> list[Any] | None:
    """The messages that a node adds, the model's last; None where only the graph's reducer can tell."""
    added = list(said) if isinstance(said, list | tuple) else [said]
    if not added or not all(isinstance(one, BaseMessage) and one.type != "remove" for one in added):
        return None
    ids = {one.id for one in added if one.id is not None}
    if added[-1].type != "ai" or (ids and any(one.id in ids for one in before)):
        return None
    return added


def _schema(builder: StateGraph[Any, Any, Any, Any], *names: str) -> Any:
    """What the graph and these nodes of it read, and the guard's channel."""
    nodes = [builder.nodes[name] for name in names if name in builder.nodes]
    schemas = [builder.state_schema, *(node.input_schema for node in nodes)]
    keys = {key: hint for schema in schemas for key, hint in get_type_hints(schema, include_extras=True).items()}
    make: Any = TypedDict
    return make("GuardedState", {**keys, KEY: dict}, total=False)


def _seeing(schema: Any, route: Callable[[dict[str, Any], RunnableConfig], Any]) -> Callable[..., Any]:
    """The route as a function whose annotation tells LangGraph what it wants to see of the state."""

    def path(state: dict[str, Any], config: RunnableConfig) -> Any:
        return route(state, config)

    path.__name__ = route.__name__
    path.__annotations__["state"] = schema
    return path


# -- what the middleware for LangChain does just so -------------------------------------------------------------------


def taken(judge: TurnJudge, config: RunnableConfig, held: Held | None, **how: bool) -> Carried:
    """Carried state, taken up in the session of the run that this config belongs to (`TurnJudge.take`)."""
    return judge.take(session_id_of(config, held), place_of(judge, config), held, **how)


def session_id_of(config: RunnableConfig, held: Any = None) -> str:
    """The thread's id, and for a sub-graph its place within the run; a graph without a checkpointer has a new one.

    A sub-graph that shares the state of a graph around it goes on with that one's session.
    """
    given = config.get("configurable", {})
    within = str(given.get("checkpoint_ns") or "").split("|")[:-1]
    try:
        known = held["belief"]["session"]["state"]["session_id"]
    except (KeyError, TypeError):
        known = None
    thread = given.get("thread_id")
    if not thread:
        return known if isinstance(known, str) else f"run-{uuid.uuid4().hex}"
    around = ["/".join([str(thread), *(["|".join(within[:depth])] if depth else [])]) for depth in range(len(within))]
    return known if known in around else "/".join([str(thread), *(["|".join(within)] if within else [])])


def place_of(judge: TurnJudge, config: RunnableConfig) -> str:
    """What the framework calls the run: a seal is bound to it. Sub-graphs that share a state share it."""
    return session_place(judge.agent_id, str(config.get("configurable", {}).get("thread_id") or ""))


def found(carried: Carried, given: Any) -> tuple[CallRecord | None, ToolCall]:
    """The record of a call as it stands in a message, and the call in our words."""
    call = plain_call(given)
    record = carried.record(call)
    if record is None:
        call = read_call(given)
        record = carried.record(call)
    return record, call


def told_of(judge: TurnJudge, carried: Carried) -> list[Any]:
    """What is told beside a judged turn: results of calls that were answered for, or a word to think again."""
    if (carried.turn or {}).get("reflect") and not carried.records:
        return [SystemMessage(judge.monitor.get_reflection_message().content or "")]
    return answered_for(carried.records)


def shown(carried: Carried) -> dict[str, Any]:
    """What is streamed of a judged turn; no content, only names and numbers."""
    turn = carried.turn or {}
    calls = [{"id": r.proposed.id, "name": r.proposed.name, "phase": r.phase.value} for r in carried.records]
    keys = ("step_id", "action", "level", "confidence", "rule", "reason", "guarantee", "stopped")
    return {"session_id": carried.session.session_id, **{key: turn[key] for key in keys}, "calls": calls}


def said_of_answer(kind: str, message: str | None) -> str:
    """What the agent is told when a human did not accept its answer."""
    return f"A human rejected this answer. {message or ''}".strip() if kind == "reject" else message or ""


def not_run(call: Any, why: str) -> ToolMessage:
    """What answers a call that may not run."""
    return ToolMessage(why, tool_call_id=call["id"], name=call["name"], status="error")


def _spoken(said: Any) -> list[AIMessage]:
    """The model's messages in what a node returned, in any form that LangChain reads."""
    try:
        messages = convert_to_messages(said if isinstance(said, list | tuple) else [said])
    except Exception:  # noqa: BLE001 (what only the graph's own reducer reads: nobody vouches for it then)
        return []
    return [message for message in messages if isinstance(message, AIMessage)]


def _words(said: Any) -> str:
    """All of a message that is judged; of one that is no JSON, what no other message is."""
    parts = (said.content, said.tool_calls, said.response_metadata, said.usage_metadata)
    try:
        return json.dumps(parts, default=str, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return uuid.uuid4().hex


def _calls(given: Any, key: str) -> list[Any]:
    """The calls that a node of tools is to run: all of the latest turn, answered or not, or those sent to it."""
    if isinstance(given, dict) and "tool_call" in given:
        return [given["tool_call"]]
    entries = given if isinstance(given, list | tuple) else given.get(key) or () if isinstance(given, dict) else ()
    calls = [one for one in entries if isinstance(one, dict) and "args" in one]
    messages: list[Any] = [one for one in entries if isinstance(one, BaseMessage)]
    index = last_answer(messages)
    return calls + ([] if index is None else list(messages[index].tool_calls))


def _answered(messages: Sequence[AnyMessage]) -> set[str]:
    """The ids of the latest turn's calls that have a result."""
    index = last_answer(messages)
    later = messages[0 if index is None else index :]
    return {message.tool_call_id for message in later if isinstance(message, ToolMessage)}
