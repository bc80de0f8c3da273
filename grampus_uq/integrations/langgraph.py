"""LangGraph: a guard behind the model's node, which pauses the graph before an uncertain irreversible call.

    guard = uncertainty_guard(monitor, model_client=client)
    guard.attach(builder, after="agent", tools=[look_up, pay])

The model's turn is judged in the model's own node, and both are checkpointed together; where that cannot be (it is
cached, a graph, or writes what only the graph's reducers can read) the node `score` behind it does so. `gate` asks the
human with `interrupt()`, in a node of its own, which runs again from its top when it is resumed.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack, get_type_hints

from lazy_loader import attach

from grampus_uq import ConfigurationError, MissingDependencyError, UncertaintyMonitor
from grampus_uq.integrations.carried_states import Carried
from grampus_uq.integrations.judged_turns import NOT_CLEARED, TurnJudge
from grampus_uq.integrations.settings import Settings

with MissingDependencyError.unless("langgraph", "langgraph", "The guard for LangGraph"):
    from langgraph.graph import END, StateGraph, add_messages

from grampus_uq.integrations.langchain_asked import described
from grampus_uq.integrations.langchain_messages import as_ai_message, find_record, read_message, schema_of, unrun
from grampus_uq.integrations.langgraph_fork import Fork, fork_before
from grampus_uq.integrations.langgraph_nodes import GuardNodes
from grampus_uq.integrations.langgraph_steps import AWAITING, BLOCKING, Way, to_its_end
from grampus_uq.integrations.langgraph_threads import KEY, read_state, resume, session_id_of, waiting
from grampus_uq.integrations.langgraph_wrapping import GuardedNode, conditional_edge, lead_updates, wrap_node

if TYPE_CHECKING:
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest

    from grampus_uq.integrations.langgraph_worker import ThreadRunner

__all__ = ["KEY", "Fork", "ThreadRunner", "UncertaintyGuard", "as_ai_message", "fork_before", "read_message", "resume"]
__all__ += ["uncertainty_guard", "waiting"]

__getattr__, _, _ = attach("grampus_uq.integrations", submod_attrs={"langgraph_worker": ["ThreadRunner"]})

_SCORE, _GATE = "uncertainty_score", "uncertainty_gate"


def uncertainty_guard(
    monitor: UncertaintyMonitor, *, messages_key: str = "messages", **settings: Unpack[Settings]
) -> UncertaintyGuard:
    """Build a guard for graphs whose state holds LangChain messages.

    Args:
        monitor: judges; its processors get spans and recordings. The session's id is the thread's.
        messages_key: where the state holds its messages.
        settings: see `Settings`. Without a fitted profile a pause carries no guarantee.
    """
    return UncertaintyGuard(TurnJudge(monitor, **settings), messages_key)


class UncertaintyGuard:
    """A guard of any number of graphs and threads; `attach` wires its nodes into a graph.

    The calls of a turn that need no human run at once, an approved one as soon as it is approved; the model goes on
    when all of the turn have a result. An edit changes the arguments in the model's message too: the transcript shows
    the call that ran, and results stay as the tools gave them.
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
    ) -> None:
        """Put the guard behind the model's node: model -> gate where a human is needed -> tools -> model.

        Args:
            builder: a graph without edges of its own from the model's node or from the tools'.
            after: the model's node.
            tools: the tools themselves (then the guard adds the node "tools", which runs no call that was not cleared,
                and checks a human's edits against their schemas), or the name of a node that is there, not cached.
            end: where an answer without calls leads, and a run that was stopped.
        """
        if not isinstance(builder, StateGraph):
            raise ConfigurationError.of("builder", "UncertaintyGuard.attach", "a StateGraph, not compiled yet", builder)
        node = tools if isinstance(tools, str) else "tools"
        taken = [f"add_edge({start!r}, {to!r})" for start, to in sorted(builder.edges) if start in (after, node)]
        taken += [f"add_conditional_edges({start!r}, …)" for start in (after, node) if builder.branches.get(start)]
        if taken:
            rule = f"a graph without edges from {after!r} and {node!r}: the guard leads on from there"
            raise ConfigurationError.of("builder", "UncertaintyGuard.attach", rule, taken, "Remove these lines.")
        spec = builder.nodes.get(node)
        if isinstance(tools, str) and self.judge.acts and (spec is None or spec.cache_policy):
            rule = f"a graph whose node {node!r} is there and is not cached: nothing could check its calls"
            raise ConfigurationError.of("builder", "UncertaintyGuard.attach", rule, sorted(builder.nodes))
        schema = _schema(builder, self.judge.acts, after, node)
        if not isinstance(tools, str):
            builder.add_node(node, self.tool_node(tools), input_schema=schema)
        elif spec is not None:
            self._know(getattr(spec.runnable, "tools_by_name", {}))
        score, gate = (name if name not in builder.nodes else f"{name}_{after}" for name in (_SCORE, _GATE))
        nodes = GuardNodes(
            judge=self.judge,
            messages_key=self.messages_key,
            agent=after,
            tools=node,
            score_node=score,
            gate_node=gate,
            end=end,
            own=not isinstance(tools, str),
            one_by_one=lambda: any(  # a key of the graph's state without a reducer
                name != KEY and not hasattr(kind, "operator") for name, kind in builder.channels.items()
            ),
        )
        ways = (after, node, gate, end)
        for name, work in ((score, nodes.score), (gate, nodes.gate)):
            builder.add_node(name, GuardedNode(name, work), input_schema=schema, destinations=ways)
        # Where what a node returns is added to the messages, the turn is known before it is written.
        adds = getattr(builder.channels.get(self.messages_key), "operator", None) is add_messages
        leading = [score, gate]
        if adds and wrap_node(builder, after, schema, nodes.inside, (score, *ways)):
            leading.append(after)
        else:
            wrap_node(builder, after, schema, nodes.note, ())
            builder.add_edge(after, score)
        for name in leading:
            lead_updates(builder, name, conditional_edge(schema, nodes.updated))
        back = (after, gate, score)
        led = wrap_node(builder, node, schema, nodes.behind_tools, back, nodes.fence)
        path = conditional_edge(schema, nodes.updated_tools)
        if led:
            lead_updates(builder, node, path)
        else:
            builder.add_conditional_edges(node, path, list(back))

    def tool_node(self, tools: Sequence[Any], **given: Any) -> ToolNode:
        """A `ToolNode` that runs a call only as it was cleared; `given` goes to its constructor."""
        from langgraph.prebuilt import (
            ToolNode,  # a package of its own, which not every old LangGraph fits together with
        )

        given = {"messages_key": self.messages_key, **given}
        node = ToolNode(tools, wrap_tool_call=self.wrap_tool_call, awrap_tool_call=self.awrap_tool_call, **given)
        self._know(node.tools_by_name)
        return node

    def _know(self, tools: Mapping[str, Any]) -> None:
        """A human's edits are held against the schemas of these tools, and a profile's against what they are."""
        self.judge.schemas |= {name: functools.partial(schema_of, tool) for name, tool in tools.items()}
        self.judge.described = [*(self.judge.described or ()), *map(described, tools.values())]

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Run a call only as it was cleared; for `ToolNode(wrap_tool_call=...)`."""
        return to_its_end(self._run(request, handler, BLOCKING))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """`wrap_tool_call`, awaited; for `ToolNode(awrap_tool_call=...)`."""
        return await self._run(request, handler, AWAITING)

    async def _run(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any], way: Way) -> Any:
        judge = self.judge
        if not judge.acts:
            return await way.call(handler, request)
        carried = self._carried(request)
        if carried is None:
            return unrun(request.tool_call, NOT_CLEARED)
        record, call = find_record(carried, request.tool_call)
        hindered = None if judge.gate.permits is None else await way.do(judge.look(record))
        with nullcontext(hindered) if hindered else judge.running(carried, record, call) as refusal:
            return unrun(request.tool_call, refusal) if refusal is not None else await way.call(handler, request)

    def _carried(self, request: ToolCallRequest) -> Carried | None:
        """The state; for a node of the user's own that has no channel of ours the thread's latest."""
        judge, config = self.judge, request.runtime.config
        state = request.state.get(KEY) if isinstance(request.state, dict) else None
        return judge.states.latest(session_id_of(config)) if state is None else read_state(judge, config, state)


def _schema(builder: StateGraph[Any, Any, Any, Any], acts: bool, *names: str) -> Any:
    """Return the schema of the graph and these nodes, with the guard's channel.

    Agents that answer in one superstep write the channel at once: LangGraph refuses it, and advice may refuse nothing.
    """
    nodes = [builder.nodes[name] for name in names if name in builder.nodes]
    schemas = [builder.state_schema, *(node.input_schema for node in nodes)]
    keys = {key: hint for schema in schemas for key, hint in get_type_hints(schema, include_extras=True).items()}
    make: Any = TypedDict
    return make("GuardedState", {**keys, KEY: dict if acts else Annotated[dict, _latest]}, total=False)


def _latest(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return new
