"""The guard for LangGraph where calls and agents run at once: siblings that fail or ask, branches, fan-out."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langgraph import resume, uncertainty_guard, waiting

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONITOR = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))


@given(ways=st.lists(st.sampled_from(["pays", "fails", "asks"]), min_size=1, max_size=4), own=st.booleans())
@settings(max_examples=6)
@example(ways=["pays", "fails"], own=True)
@example(ways=["pays", "asks"], own=False)
def test_approved_calls_run_once_each_and_keep_their_results_whatever_their_siblings_do(
    ways: list[str], own: bool
) -> None:
    """Each of several approved calls pays, or first raises, or first interrupts."""
    paid: list[int] = []
    failed: set[int] = set()

    def pay(number: int) -> str:
        """Pay."""
        if ways[number] == "asks":
            interrupt("Now?")
        if ways[number] == "fails" and number not in failed:
            failed.add(number)
            raise RuntimeError
        paid.append(number)
        return f"paid {number}"

    def agent(state: MessagesState) -> dict[str, Any]:
        if any(message.type == "tool" for message in state["messages"]):
            return {"messages": [AIMessage("Done.")]}
        calls: Any = [{"name": "pay", "args": {"number": n}, "id": f"call-{n}"} for n in range(len(ways))]
        return {"messages": [AIMessage("I pay.", tool_calls=calls)]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    if own:
        builder.add_node("tools", ToolNode([pay]))
    uncertainty_guard(MONITOR).attach(builder, tools="tools" if own else [pay])
    app = builder.compile(checkpointer=InMemorySaver())
    app.invoke({"messages": [HumanMessage("Pay.")]}, CONFIG)
    requests = waiting(app.get_state(CONFIG))
    assert len(requests) == len(ways)
    given: Any = resume(app.get_state(CONFIG), [one.decide("approve", principal="ann") for one in requests])
    for _ in range(2 * len(ways)):
        with contextlib.suppress(RuntimeError):
            app.invoke(given, CONFIG)
        asks = [one.id for one in app.get_state(CONFIG).interrupts]
        given = Command(resume=dict.fromkeys(asks, "yes")) if asks else None
        if not app.get_state(CONFIG).next:
            break
    assert sorted(paid) == list(range(len(ways)))
    results = [message for message in app.get_state(CONFIG).values["messages"] if message.type == "tool"]
    # Also where LangGraph loses what a thread returns just when a sibling's error ends its executor.
    assert sorted((one.tool_call_id, one.text) for one in results) == [
        (f"call-{number}", f"paid {number}") for number in range(len(ways))
    ]


class Sums(MessagesState):
    spent: int


@given(
    amounts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    at_once=st.integers(1, 4),
    answers=st.booleans(),
    leads=st.booleans(),
    acts=st.integers(1, 4),
)
@settings(max_examples=6)
@example(amounts=[1, 2], at_once=2, answers=True, leads=False, acts=4)
@example(amounts=[1, 2], at_once=1, answers=False, leads=False, acts=4)
@example(amounts=[1, 2], at_once=1, answers=True, leads=True, acts=4)
@example(amounts=[1, 2, 3], at_once=1, answers=True, leads=False, acts=2)
@example(amounts=[1, 2, 3], at_once=1, answers=False, leads=False, acts=2)
def test_approved_calls_run_once_each_whatever_their_node_writes_and_wherever_it_leads(
    amounts: list[int], at_once: int, answers: bool, leads: bool, acts: int
) -> None:
    """The tools' node sums in a key without a reducer, answers with messages or not, and may lead to the model.

    The guard `acts` for so many runs, and then only advises.
    """
    paid: list[int] = []

    def tools(state: Sums) -> Any:
        calls = last_calls(state)
        paid.extend(call["args"]["amount"] for call in calls)
        update: dict[str, Any] = {"spent": state["spent"] + sum(call["args"]["amount"] for call in calls)}
        if answers:
            update["messages"] = [ToolMessage("paid", tool_call_id=call["id"]) for call in calls]
        return Command(update=update, goto="agent" if leads else ())

    def agent(state: Sums) -> dict[str, Any]:
        if paid:
            return {"messages": [AIMessage("Done.")]}
        calls: Any = [{"name": "pay", "args": {"amount": one}, "id": f"{n}"} for n, one in enumerate(amounts)]
        return {"messages": [AIMessage("I pay.", tool_calls=calls)]}

    saver, rounds = InMemorySaver(), 0
    given: Any = {"messages": [HumanMessage("Pay.")], "spent": 0}
    while True:
        builder = StateGraph(Sums)  # in another process each time
        builder.add_node("agent", agent)
        builder.add_node("tools", tools)
        builder.add_edge(START, "agent")
        uncertainty_guard(MONITOR, advisory=rounds >= acts).attach(builder)
        app = builder.compile(checkpointer=saver)
        app.invoke(given, CONFIG)
        state = app.get_state(CONFIG)
        if not state.next:
            break
        given = resume(state, [one.decide("approve", principal="ann") for one in waiting(state)[:at_once]])
        rounds += 1
    assert sorted(paid) == sorted(amounts)
    assert state.values["spent"] == sum(amounts)
    assert rounds == min(-(-len(amounts) // at_once), acts)


def last_calls(state: Sums) -> list[Any]:
    message = state["messages"][-1]
    assert isinstance(message, AIMessage)
    return list(message.tool_calls)


@pytest.mark.parametrize("fan_out", [False, True])
def test_advice_lets_agents_answer_in_one_superstep(fan_out: bool) -> None:
    """Two agents in branches of one graph, or one agent sent three tasks."""

    def texts(*, guarded: bool) -> list[str]:
        builder = StateGraph(MessagesState)
        for name in ("first", "second"):
            builder.add_node(name, lambda state, name=name: {"messages": [AIMessage(f"I am the {name}.")]})
            if guarded:
                uncertainty_guard(MONITOR, advisory=True).attach(builder, after=name, tools=f"tools of {name}")
        if fan_out:
            sent = [Send("first", {"messages": [HumanMessage(f"{number}")]}) for number in range(3)]
            builder.add_conditional_edges(START, lambda state: sent, ["first"])
        else:
            builder.add_edge(START, "first")
            builder.add_edge(START, "second")
        for name in ("first", "second"):
            builder.add_node(f"tools of {name}", ToolNode([]))
        app = builder.compile(checkpointer=InMemorySaver())
        return [message.text for message in app.invoke({"messages": [HumanMessage("Go.")]}, CONFIG)["messages"]]

    assert texts(guarded=True) == texts(guarded=False)


@pytest.mark.parametrize("as_task", [True, False])
def test_a_workflow_that_calls_a_guarded_graph_twice_pauses_in_each_call(as_task: bool) -> None:
    """The same call of the second needs an approval of its own; neither runs twice where the workflow does."""
    paid: list[str] = []

    def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    def agent(state: MessagesState) -> dict[str, Any]:
        call: Any = {"name": "pay", "args": {"to": "bob"}, "id": "1"}
        done = state["messages"][-1].type == "tool"
        return {"messages": [AIMessage("Done." if done else "I pay.", tool_calls=[] if done else [call])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    uncertainty_guard(MONITOR).attach(builder, tools=[pay])
    graph: Any = builder.compile()

    def said(prompt: str) -> str:
        return str(graph.invoke({"messages": [("user", prompt)]})["messages"][-1].text)

    awaited = task(said)

    @entrypoint(checkpointer=InMemorySaver())
    def workflow(prompts: list[str]) -> list[str]:
        return [awaited(prompt).result() if as_task else said(prompt) for prompt in prompts]

    result: Any = workflow.invoke(["Pay.", "Pay again."], CONFIG)
    for payments in (0, 1):
        (request,) = waiting(workflow.get_state(CONFIG))
        assert len(paid) == payments
        decision = [request.decide("approve", principal="ann")]
        result = workflow.invoke(resume(workflow.get_state(CONFIG), decision), CONFIG)
    assert (result, len(paid)) == (["Done.", "Done."], 2)
