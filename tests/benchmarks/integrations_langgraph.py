"""LangGraph's run for the benchmark of adapters: the guard against its hooks with nothing in them, and against none."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langgraph import uncertainty_guard
from tests.benchmarks.integrations import Pair

TEXT = 'I look it up. {"confidence": 0.97}'


def look_up(query: str) -> str:
    """Look something up."""
    return f"found {query}"


def turn(number: int, turns: int) -> AIMessage:
    """A turn that states its confidence; the last one calls nothing."""
    calls = [{"name": "look_up", "args": {"query": "x"}, "id": f"c{number}"}] if number < turns - 1 else []
    return AIMessage(TEXT, tool_calls=calls)


class NothingState(MessagesState):
    nothing: dict[str, Any]


async def _pass_on(request: Any, handler: Any) -> Any:
    return await handler(request)


def graph(turns: int, kind: str, checkpointer: InMemorySaver) -> Any:
    def said(state: MessagesState) -> AIMessage:
        return turn(sum(m.type == "ai" for m in state["messages"]), turns)

    async def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [said(state)]}

    async def routed(state: MessagesState) -> Command[Any]:
        message = said(state)
        return Command(update={"messages": [message], "nothing": {}}, goto="tools" if message.tool_calls else END)

    builder: Any = StateGraph(NothingState if kind == "bare" else MessagesState)
    builder.add_edge(START, "agent")
    if kind == "watched":
        monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
        builder.add_node("agent", agent)
        uncertainty_guard(monitor, advisory=False).attach(builder, tools=[look_up])
    elif kind == "plain":
        builder.add_node("agent", agent)
        builder.add_node("tools", ToolNode([look_up]))
        builder.add_conditional_edges("agent", tools_condition)
        builder.add_edge("tools", "agent")
    else:
        builder.add_node("agent", routed, destinations=("tools", END))
        builder.add_node("tools", ToolNode([look_up], awrap_tool_call=_pass_on))
        builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=checkpointer)


def pair(turns: int) -> Pair:
    async def run(app: Any, number: int) -> None:
        config = {"configurable": {"thread_id": str(number)}, "recursion_limit": 10 * turns}
        result = await app.ainvoke({"messages": [("user", "go")]}, config)
        assert len(result["messages"]) == 2 * turns

    checkpointer = InMemorySaver()
    watched, bare, plain = (graph(turns, kind, checkpointer) for kind in ("watched", "bare", "plain"))
    return Pair(
        watched=lambda n: run(watched, n),
        bare=lambda n: run(bare, n),
        plain=lambda n: run(plain, n),
        hooks="a route by Command, a write to the state a turn, a tool hook that does nothing",
        forget=lambda n: checkpointer.delete_thread(str(n)),
    )
