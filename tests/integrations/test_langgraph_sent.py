"""The guard for LangGraph where nodes are sent what no edge gave them, and tools' nodes of any kind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import CachePolicy, Command, Send
from pydantic import BaseModel

from grampus_uq import ConfigurationError, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langgraph import resume, uncertainty_guard, waiting
from grampus_uq.integrations.langgraph_threads import before_node

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONITOR = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
CALL: Any = {"name": "pay", "args": {"to": "eve"}, "id": "call-9", "type": "tool_call"}


class Model(BaseModel):
    messages: Annotated[list[Any], add_messages] = []


@dataclass
class Data:
    messages: Annotated[list[Any], add_messages] = field(default_factory=list)


def agent(state: Any) -> dict[str, Any]:
    """Pays Bob, and is done."""
    messages = state["messages"] if isinstance(state, dict) else state.messages
    if any(message.type == "tool" for message in messages):
        return {"messages": [AIMessage("Done.")]}
    return {"messages": [AIMessage("I pay.", tool_calls=[{**CALL, "args": {"to": "bob"}, "id": "call-1"}])]}


def add_tools(builder: StateGraph[Any, Any, Any, Any], paid: list[str], kind: str) -> Any:
    """The tools for `attach`: the tool itself, or the name of a node that was added."""

    def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    if kind == "tool":
        return [pay]
    node: Any = ToolNode([pay])
    if kind == "graph":
        inner = StateGraph(MessagesState)
        inner.add_node("inner", node)
        inner.add_edge(START, "inner")
        node = inner.compile()
    builder.add_node("tools", node)
    return "tools"


@given(
    form=st.sampled_from([dict, Model, Data, list]),
    chunk=st.booleans(),
    kind=st.sampled_from(["tool", "node", "graph"]),
)
@settings(max_examples=8, deadline=None)
@example(form=Model, chunk=False, kind="node")
@example(form=dict, chunk=True, kind="node")
@example(form=list, chunk=True, kind="graph")
def test_whatever_is_sent_to_the_tools_runs_only_what_was_cleared(form: type, chunk: bool, kind: str) -> None:
    """In each form of a state that LangGraph's node of tools reads."""
    paid: list[str] = []
    message = (AIMessageChunk if chunk else AIMessage)(content="", tool_calls=[CALL])
    sent: Any = [message] if form is list else form(messages=[message])
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [AIMessage("Done.")]})
    builder.add_node("sends", lambda state: Command(goto=Send("tools", sent)), destinations=("tools",))
    builder.add_edge(START, "sends")
    uncertainty_guard(MONITOR).attach(builder, tools=add_tools(builder, paid, kind))
    if not (form is not dict and kind == "graph"):  # a graph as a node reads no other form itself
        builder.compile(checkpointer=InMemorySaver()).invoke({"messages": [HumanMessage("Go.")]}, CONFIG)
    assert paid == []


@pytest.mark.parametrize("kind", ["tool", "node", "graph"])
def test_an_approval_that_comes_three_times_at_once_runs_the_call_once(kind: str) -> None:
    paid: list[str] = []
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    uncertainty_guard(MONITOR).attach(builder, tools=add_tools(builder, paid, kind))
    app = builder.compile(checkpointer=InMemorySaver())
    app.invoke({"messages": [HumanMessage("Pay.")]}, CONFIG)
    state = app.get_state(CONFIG)
    answer = resume(state, [request.decide("approve", principal="ann") for request in waiting(state)])

    async def at_once() -> None:
        await asyncio.gather(*[app.ainvoke(answer, CONFIG) for _ in range(3)])

    asyncio.run(at_once())
    assert paid == ["bob"]


@pytest.mark.parametrize("cached", [False, True])
def test_a_node_of_tools_that_nothing_could_check_is_refused(cached: bool) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    if cached:
        builder.add_node("tools", ToolNode([]), cache_policy=CachePolicy())
    with pytest.raises(ConfigurationError, match="nothing could check its calls"):
        uncertainty_guard(MONITOR).attach(builder, tools="tools")
    uncertainty_guard(MONITOR, advisory=True).attach(builder, tools="tools")


@given(
    schema=st.sampled_from([MessagesState, Model, Data]),
    form=st.sampled_from([dict, Model, Data]),
    more=st.booleans(),
)
@settings(max_examples=6, deadline=None)
@example(schema=MessagesState, form=dict, more=True)
@example(schema=Model, form=dict, more=False)
@example(schema=MessagesState, form=Model, more=False)
def test_an_agent_that_is_sent_something_sees_with_advice_what_it_sees_without(
    schema: type, form: type, more: bool
) -> None:
    def seen(*, guarded: bool) -> list[Any]:
        found: list[Any] = []

        def answers(state: Any) -> dict[str, Any]:
            found.append(state)
            return {"messages": [AIMessage("Done.")]}

        sent: Any = form(messages=[HumanMessage("Go.", id="1")])
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(schema)
        builder.add_node("agent", answers)
        to = Send("agent", {**sent, "subject": "cats"} if more and form is dict else sent)
        builder.add_conditional_edges(START, lambda state: [to], ["agent"])
        if guarded:
            uncertainty_guard(MONITOR, advisory=True).attach(builder, tools=[])
        builder.compile().invoke({"messages": [HumanMessage("Go.")]})
        return found

    assert seen(guarded=True) == seen(guarded=False)


def test_an_agent_that_says_nothing_more_ends_with_advice_as_without() -> None:
    def texts(*, guarded: bool) -> list[str]:
        builder = StateGraph(MessagesState)
        builder.add_node(
            "agent", lambda state: {"messages": []} if state["messages"][-1].type == "tool" else agent(state)
        )
        builder.add_edge(START, "agent")
        tools = add_tools(builder, [], "node")
        if guarded:
            uncertainty_guard(MONITOR, advisory=True).attach(builder, tools=tools)
        else:
            builder.add_conditional_edges("agent", tools_condition)
            builder.add_edge("tools", "agent")
        return [message.text for message in builder.compile().invoke({"messages": [HumanMessage("Go.")]})["messages"]]

    assert texts(guarded=True) == texts(guarded=False)


@pytest.mark.parametrize(
    "made", [lambda said: said, lambda said: [said], lambda said: [HumanMessage("A note.", id="2"), said]]
)
def test_an_agents_update_streams_with_advice_as_it_made_it(made: Any) -> None:
    said = made(AIMessage("Done.", id="1"))

    def updates(*, guarded: bool) -> list[Any]:
        builder = StateGraph(MessagesState)
        builder.add_node("agent", lambda state: {"messages": said})
        builder.add_edge(START, "agent")
        if guarded:
            uncertainty_guard(MONITOR, advisory=True).attach(builder, tools=[])
        streamed = builder.compile().stream({"messages": [HumanMessage("Go.")]}, stream_mode="updates")
        return [update["agent"]["messages"] for update in streamed]

    assert updates(guarded=True) == updates(guarded=False)


def test_a_run_that_is_cancelled_before_its_tool_starts_leaves_the_approval_as_it_is() -> None:
    paid: list[str] = []
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    uncertainty_guard(MONITOR).attach(builder, tools=add_tools(builder, paid, "node"))
    app = builder.compile(checkpointer=InMemorySaver())

    async def twice() -> None:
        await app.ainvoke({"messages": [HumanMessage("Pay.")]}, CONFIG)
        state = await app.aget_state(CONFIG)
        answer = resume(state, [request.decide("approve", principal="ann") for request in waiting(state)])
        reached = asyncio.Event()

        async def stuck() -> None:
            reached.set()
            await asyncio.Event().wait()

        token = before_node.set(stuck)
        run = asyncio.create_task(app.ainvoke(answer, CONFIG))
        await reached.wait()
        run.cancel()
        await asyncio.wait([run])
        before_node.reset(token)
        await app.ainvoke(None, CONFIG)

    asyncio.run(twice())
    assert paid == ["bob"]
