"""The guard for LangGraph in threads that `update_state` writes: advice changes nothing, what waits is asked about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import ToolNode, tools_condition

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langgraph import resume, uncertainty_guard, waiting
from tests.sampling import examples

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONITOR = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))


class Thread:
    """A thread of an agent whose turns propose these calls, and what it paid; `guard` attaches a guard, or nobody."""

    def __init__(self, turns: list[list[str]], guard: Any, awaited: bool = False, **compiled: Any) -> None:
        self.paid: list[str] = []
        self._awaited = awaited

        def agent(state: MessagesState) -> dict[str, Any]:
            number = sum(message.type == "ai" for message in state["messages"])
            names = turns[number] if number < len(turns) else []
            calls: Any = [call(name, f"{number}-{place}", "bob") for place, name in enumerate(names)]
            return {"messages": [AIMessage(f"turn {number}", tool_calls=calls)]}

        def pay(to: str) -> str:
            """Pay."""
            self.paid.append(to)
            return f"paid {to}"

        def look(to: str) -> str:
            """Look."""
            return f"saw {to}"

        builder = StateGraph(MessagesState)
        builder.add_node("agent", agent)
        builder.add_node("tools", ToolNode([pay, look]))
        builder.add_edge(START, "agent")
        if guard is None:
            builder.add_conditional_edges("agent", tools_condition)
            builder.add_edge("tools", "agent")
        else:
            guard(builder)
        self.app = builder.compile(checkpointer=InMemorySaver(), **compiled)

    def run(self, given: Any) -> None:
        if self._awaited:
            anyio.run(self.app.ainvoke, given, CONFIG)
        else:
            self.app.invoke(given, CONFIG)

    def update(self, what: str, as_node: str | None, config: Any = CONFIG) -> str:
        """Write into the thread, or into an old checkpoint of it; the name of the error that this raised."""
        held = self.app.get_state(config).values.get("messages", [])
        values = {"messages": list(self._written(what, held))}
        if not add_messages(held, values["messages"]):
            return "an empty thread"  # `tools_condition` reads none
        try:
            if self._awaited:
                anyio.run(self.app.aupdate_state, config, values, as_node)
            else:
                self.app.update_state(config, values, as_node)
        except InvalidUpdateError as error:
            return str(error)
        return ""

    def _written(self, what: str, messages: list[Any]) -> Iterator[Any]:
        answers = [message for message in messages if message.type == "ai"]
        calls = answers[-1].tool_calls if answers else []
        if what == "a note":
            yield HumanMessage("Note this.")
        elif what == "an answer":
            yield AIMessage("I am done.")
        elif what == "a proposal":
            yield AIMessage("I pay.", tool_calls=[call("pay", f"new-{len(messages)}", "ann")])
        elif what == "an edit" and answers:
            edited: Any = [{**one, "args": {"to": "eve"}} for one in calls]
            yield answers[-1].model_copy(update={"tool_calls": edited})
        elif what == "a removal" and answers:
            yield RemoveMessage(answers[-1].id)
        elif what == "results":
            yield from (ToolMessage("by hand", tool_call_id=one["id"]) for one in calls)

    def shown(self) -> Any:
        state = self.app.get_state(CONFIG)
        said = [(m.type, m.content, getattr(m, "tool_calls", None)) for m in state.values.get("messages", [])]
        return state.next, said, self.paid, [past.next for past in self.app.get_state_history(CONFIG)]

    @property
    def waiting(self) -> list[Any]:
        return waiting(self.app.get_state(CONFIG))

    def open_payments(self) -> set[str]:
        """The ids of the latest answer's payments without a result."""
        messages = self.app.get_state(CONFIG).values["messages"]
        at = [place for place, message in enumerate(messages) if message.type == "ai"]
        later = messages[at[-1] :] if at else []  # a result before it is of an answer that was removed
        done = {message.tool_call_id for message in later if message.type == "tool"}
        calls = later[0].tool_calls if later else []
        return {one["id"] for one in calls if one["name"] == "pay"} - done


def call(name: str, call_id: str, to: str) -> Any:
    return {"name": name, "args": {"to": to}, "id": call_id, "type": "tool_call"}


def advised(builder: Any) -> None:
    uncertainty_guard(MONITOR, advisory=True).attach(builder, tools="tools")


def guarded(builder: Any) -> None:
    uncertainty_guard(MONITOR).attach(builder, tools="tools")


TURNS = st.lists(st.lists(st.sampled_from(["pay", "look"]), min_size=1, max_size=2), min_size=1, max_size=2)
WRITTEN = st.sampled_from(["a note", "an answer", "a proposal", "an edit", "a removal", "results", "nothing"])
STEPS = st.one_of(
    st.just(("run",)),
    st.just(("say",)),
    st.tuples(st.just("update"), WRITTEN, st.sampled_from([None, "agent", "tools", START])),
    st.tuples(st.just("fork"), WRITTEN, st.sampled_from([None, "agent", "tools"]), st.integers(0, 5)),
)
STOPS = st.lists(st.sampled_from(["agent", "tools"]), unique=True)


@pytest.mark.slow
@given(turns=TURNS, steps=st.lists(STEPS, min_size=1, max_size=6), before=STOPS, after=STOPS, awaited=st.booleans())
@settings(max_examples=examples(60), deadline=None)
@example([["pay"]], [("say",), ("update", "an edit", None), ("run",)], ["tools"], [], False)
@example([["pay"]], [("say",), ("update", "results", "tools"), ("run",)], ["tools"], [], True)
@example([["pay"]], [("update", "a proposal", "agent"), ("run",)], [], [], False)
@example([["pay"]], [("say",), ("update", "a note", "agent"), ("run",)], ["tools"], [], False)
@example([["pay"]], [("say",), ("fork", "an edit", None, 2), ("run",)], [], [], False)
def test_advice_changes_nothing_in_a_thread_that_is_updated_wherever_it_stops(
    turns: list[list[str]], steps: list[Any], before: list[str], after: list[str], awaited: bool
) -> None:
    threads = [
        Thread(turns, guard, awaited, interrupt_before=before, interrupt_after=after) for guard in (None, advised)
    ]
    for kind, *what in steps:
        seen = []
        for thread in threads:
            error = ""
            if kind == "update":
                error = thread.update(what[0], what[1])
            elif kind == "fork":
                past = list(thread.app.get_state_history(CONFIG))
                if past:
                    error = thread.update(what[0], what[1], past[what[2] % len(past)].config)
            elif kind == "say" or thread.app.get_state(CONFIG).values:
                thread.run(None if kind == "run" else {"messages": [HumanMessage("Pay.")]})
            seen.append((error, thread.shown()))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("awaited", [False, True])
@given(
    turn=st.lists(st.sampled_from(["pay", "look"]), min_size=0, max_size=2).map(lambda names: ["pay", *names]),
    updates=st.lists(
        st.tuples(
            st.sampled_from(["a note", "an edit", "a removal", "a proposal", "results", "nothing"]),
            st.sampled_from([None, "agent", "tools", "uncertainty_score", "uncertainty_gate"]),
        ),
        min_size=1,
        max_size=3,
    ),
)
@example(turn=["pay"], updates=[("results", None), ("a removal", "tools")])
@settings(max_examples=examples(25), deadline=None)
def test_a_call_that_waits_is_asked_about_whatever_is_written_beside_it(
    awaited: bool, turn: list[str], updates: list[tuple[str, str | None]]
) -> None:
    thread = Thread([turn], guarded, awaited)
    thread.run({"messages": [HumanMessage("Pay.")]})
    assert len(thread.waiting) == turn.count("pay")
    for what, as_node in updates:
        assert thread.update(what, as_node) == ""
    thread.run(None)
    open_payments = thread.open_payments()
    assert {request.call.id for request in thread.waiting} == open_payments
    assert thread.paid == []
    shown = sorted(request.call.arguments["to"] for request in thread.waiting)
    if shown:
        decisions = [request.decide("approve", principal="ann") for request in thread.waiting]
        thread.run(resume(thread.app.get_state(CONFIG), decisions))
    assert sorted(thread.paid) == shown
    assert thread.waiting == []


@pytest.mark.parametrize("awaited", [False, True])
def test_a_call_that_was_refused_has_one_answer_though_another_call_of_its_turn_is_changed(awaited: bool) -> None:
    thread = Thread([["pay", "look", "pay"]], guarded, awaited)
    thread.run({"messages": [HumanMessage("Pay.")]})
    state = thread.app.get_state(CONFIG)
    thread.run(resume(state, [thread.waiting[0].decide("reject", principal="ann")]))
    answer = next(one for one in state.values["messages"] if one.type == "ai")
    calls = [*answer.tool_calls[:2], call("pay", "0-2", "eve")]
    thread.app.update_state(CONFIG, {"messages": [answer.model_copy(update={"tool_calls": calls})]})
    thread.run(None)
    thread.run(resume(thread.app.get_state(CONFIG), [one.decide("approve", principal="ann") for one in thread.waiting]))
    messages = thread.app.get_state(CONFIG).values["messages"]
    assert sorted(one.tool_call_id for one in messages if one.type == "tool") == ["0-0", "0-1", "0-2"]
    assert thread.paid == ["eve"]


@pytest.mark.parametrize("own", [False, True])
def test_a_proposal_that_another_node_wrote_and_an_edge_led_to_the_tools_is_judged_before_it_runs(
    own: bool,
) -> None:
    paid: list[str] = []

    def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return f"paid {to}"

    def look(to: str) -> str:
        """Look."""
        return f"saw {to}"

    def planner(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("plan", tool_calls=[call("pay", "1", "bob"), call("look", "2", "bob")])]}

    builder = StateGraph(MessagesState)
    builder.add_node("planner", planner)
    builder.add_node("agent", lambda state: {"messages": [AIMessage("Done.")]})
    builder.add_edge(START, "planner")
    builder.add_edge("planner", "tools")
    if own:
        builder.add_node("tools", ToolNode([pay, look]))
    uncertainty_guard(MONITOR).attach(builder, tools="tools" if own else [pay, look])
    app = builder.compile(checkpointer=InMemorySaver())
    app.invoke({"messages": [HumanMessage("Pay.")]}, CONFIG)
    (request,) = waiting(app.get_state(CONFIG))
    assert request.call is not None
    assert (request.call.name, paid) == ("pay", [])
    app.invoke(resume(app.get_state(CONFIG), [request.decide("approve", principal="ann")]), CONFIG)
    results = [message.text for message in app.get_state(CONFIG).values["messages"] if message.type == "tool"]
    assert paid == ["bob"]
    assert sorted(results) == ["paid bob", "saw bob"]
