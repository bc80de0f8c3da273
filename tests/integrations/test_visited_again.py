"""A guarded sub-graph or agent of LangGraph and LangChain that a thread visits again, with an empty state each time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send

from grampus_uq import StoreError, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langchain import ThreadRunner, UncertaintyMiddleware
from grampus_uq.integrations.langgraph import resume, uncertainty_guard, waiting
from grampus_uq.runtime import MemoryStore, StoredStarts
from grampus_uq.runtime.store import pages
from grampus_uq.runtime.stored_starts import START as KEPT
from grampus_uq.testing import ScriptedModel

CONFIG: Any = {"configurable": {"thread_id": "t"}}
GO: Any = {"messages": [("user", "Pay what is due.")]}
KINDS = ["graph", "agent", "called"]
RULE = "rejected_in_thread"
SAID = ["approve", "edit", "reject", "respond"]
Visit = tuple[str, bool]
"""Whom the model pays in a visit, and whether it is sure."""


class Scripted(BaseChatModel):
    """A chat model that answers as `answers` does."""

    answers: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.answers(messages))])


class Desk:
    """A graph whose node `desk` is guarded, keeps nothing, and is visited once for each of the visits."""

    def __init__(self, kind: str, *visits: Visit, awaited: bool = False, saver: Any = None, **given: Any) -> None:
        self.kind, self.visits, self.awaited, self.given = kind, visits, awaited, given
        self.saver = saver or InMemorySaver()
        self.paid: list[str] = []
        self.fails: Callable[[int], object] = lambda number: None
        self.restart()

    def restart(self) -> None:
        """Another process."""
        policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
        monitor = UncertaintyMonitor(policy=policy)
        self.given = {"advisory": False, "model_client": ScriptedModel(self.sure), **self.given}

        def pay(to: str) -> str:
            """Pay."""
            self.paid.append(to)
            return f"paid {to}"

        inner: Any
        if self.kind == "graph":
            builder = StateGraph(MessagesState)
            builder.add_node("agent", lambda state: {"messages": [self.answer(state["messages"])]})
            builder.add_edge(START, "agent")
            uncertainty_guard(monitor, **self.given).attach(builder, tools=[pay])
            inner = builder.compile()
        else:
            guard = UncertaintyMiddleware(monitor, **self.given)
            inner = create_agent(Scripted(answers=self.answer), [pay], middleware=[guard])

        def desk(state: Any) -> Any:
            return {"messages": inner.invoke({"messages": state["messages"]})["messages"]}

        async def adesk(state: Any) -> Any:
            return {"messages": (await inner.ainvoke({"messages": state["messages"]}))["messages"]}

        outer = StateGraph(MessagesState)
        called = adesk if self.awaited else desk
        outer.add_node("desk", called if self.kind == "called" else inner)
        outer.add_edge(START, "desk")
        outer.add_conditional_edges("desk", lambda state: END if self.over(state["messages"]) else "desk")
        self.app = outer.compile(checkpointer=self.saver)

    def number(self, messages: Any) -> int:
        return sum(m.type == "ai" and not m.tool_calls for m in messages)

    def over(self, messages: Any) -> bool:
        return self.number(messages) >= len(self.visits)

    def answer(self, messages: Any) -> AIMessage:
        """Propose the payment of this visit, and then say that the visit is over."""
        number, index = self.number(messages), sum(m.type == "ai" for m in messages)
        if messages[-1].type == "tool":
            self.fails(number)
            return AIMessage("Well.", id=f"m{index}")
        to, _ = self.visits[number]
        call = {"name": "pay", "args": {"to": to}, "id": f"c{number}"}
        return AIMessage(f"I pay in visit {number}.", tool_calls=[call], id=f"m{index}")

    def sure(self, messages: Any, _: Any) -> str:
        judged = "\n".join(str(m.content or "") for m in messages)
        unsure = any(f"visit {n}." in judged for n, (_, sure) in enumerate(self.visits) if not sure)
        return f'{{"p_true": {0.7 if unsure else 0.99}}}'

    def run(self, given: Any = GO, config: Any = CONFIG) -> list[Any]:
        if self.awaited:
            asyncio.run(self.app.ainvoke(given, config))
        else:
            self.app.invoke(given, config)
        return self.asked()

    def asked(self) -> list[Any]:
        return waiting(self.app.get_state(CONFIG))

    def decide(self, kind: Any) -> list[Any]:
        more: dict[str, Any] = {"respond": {"message": "In cash."}, "edit": {"arguments": {"to": "ann"}}}
        word = more.get(kind, {})
        decisions = [one.decide(kind, principal="ann", **word) for one in self.asked()]
        return self.run(resume(self.app.get_state(CONFIG), decisions))


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.lists(st.tuples(st.sampled_from(["bob", "eve"]), st.booleans(), st.sampled_from(SAID)), min_size=2, max_size=4),
    st.booleans(),
)
@settings(max_examples=10, deadline=None)
def test_a_call_that_was_rejected_or_changed_in_any_visit_is_asked_about_in_every_later_one_and_no_other_is(
    kind: str, visits: list[tuple[str, bool, str]], awaited: bool
) -> None:
    """Law."""
    desk = Desk(kind, *((to, sure) for to, sure, _ in visits), awaited=awaited)
    refused, ran = set[str](), list[str]()
    asked = desk.run()
    for number, (to, sure, said) in enumerate(visits):
        if not sure or to in refused:
            (request,) = asked
            assert (request.call.id, request.rule == RULE) == (f"c{number}", to in refused)
            asked = desk.decide(said)
            ran += {"approve": [to], "edit": ["ann"]}.get(said, [])
            refused |= {to} if said in ("reject", "edit") else set()
        else:
            ran += [to]
    assert (desk.paid, asked) == (ran, [])


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rejection_counts_in_the_next_visit_when_its_own_visit_breaks_off(kind: str, awaited: bool) -> None:
    desk = Desk(kind, ("bob", False), ("bob", True), awaited=awaited)

    def breaks(number: int) -> None:
        desk.fails = lambda number: None
        raise ConnectionError

    desk.run()
    desk.fails = breaks
    with pytest.raises(ConnectionError):
        desk.decide("reject")
    desk.visits = (("bob", True),)
    (request,) = desk.run(GO)
    assert (request.rule, desk.paid) == (RULE, [])
    assert desk.decide("approve") == []
    assert desk.paid == ["bob"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False])
def test_another_process_knows_of_a_rejection_where_starts_are_stored(kind: str, shared: bool) -> None:
    store = MemoryStore()
    desk = Desk(kind, ("bob", False), starts=StoredStarts(store) if shared else None)
    desk.run()
    assert desk.decide("reject") == []
    desk.visits += (("eve", True), ("bob", True))
    desk.restart()
    asked = desk.run()
    assert ([one.rule for one in asked], desk.paid) == (([RULE], ["eve"]) if shared else ([], ["eve", "bob"]))
    if shared:
        assert desk.decide("reject") == []
        assert desk.paid == ["eve"]
        kept = asyncio.run(_kept(store))
        assert len(kept) == 1
        assert "bob" not in str(kept)


async def _kept(store: MemoryStore) -> list[Any]:
    return [document async for document in pages(store, KEPT)]


class _Down(MemoryStore):
    """A store that can be down."""

    down = False

    async def get(self, kind: str, key: str) -> Any:
        if self.down:
            raise StoreError("down")
        return await super().get(kind, key)

    async def write(self, changes: Any) -> Any:
        if self.down:
            raise StoreError("down")
        return await super().write(changes)


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_the_store_of_rejections_down_a_rejection_raises_and_is_given_again_and_new_calls_wait(
    kind: str, awaited: bool
) -> None:
    store = _Down()
    desk = Desk(kind, ("bob", False), ("eve", True), awaited=awaited, starts=StoredStarts(store))
    desk.run()
    for _ in range(2):
        store.down = True
        with pytest.raises(StoreError):
            desk.decide("reject")
        assert (len(desk.asked()), desk.paid) == (1, [])
    store.down = False
    assert desk.decide("reject") == []
    assert desk.paid == ["eve"]
    store.down = True
    desk.visits += (("ann", True), ("bob", True))
    (request,) = desk.run()
    assert (request.rule, request.reason[-20:], desk.paid) == (RULE, "cannot be read: down", ["eve"])
    store.down = False
    (request,) = desk.decide("approve")
    assert (request.rule, desk.paid) == (RULE, ["eve", "ann"])


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_guard_only_advises_rejections_hold_nothing(kind: str) -> None:
    store = _Down()
    desk = Desk(kind, ("bob", False), starts=StoredStarts(store))
    desk.run()
    desk.decide("reject")
    desk.given["advisory"] = True
    store.down = True
    desk.restart()
    desk.visits += (("bob", True),)
    assert desk.run() == []
    assert desk.paid == ["bob"]


@pytest.mark.parametrize("kind", KINDS)
def test_another_agent_of_the_thread_knows_of_a_rejection_and_another_thread_does_not(kind: str) -> None:
    store = StoredStarts(MemoryStore())
    desk = Desk(kind, ("bob", False), starts=store, agent_id="one")
    desk.run()
    desk.decide("reject")
    desk.visits = (("bob", True),)
    desk.run(config={"configurable": {"thread_id": "u"}})
    other = Desk(kind, ("bob", True), starts=store, agent_id="other")
    (request,) = other.run()
    assert (desk.paid, other.paid, request.rule) == (["bob"], [], RULE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rejection_counts_whatever_the_host_of_a_run_calls_its_agent(kind: str) -> None:
    desk = Desk(kind, ("bob", False), ("bob", True), awaited=True)

    async def begin() -> str:
        return str(await ThreadRunner(desk.app, MemoryStore(), agent_id="clerk").invoke(GO, "t"))

    assert asyncio.run(begin()) == "waiting_for_human"
    (request,) = desk.decide("reject")
    assert (request.rule, desk.paid) == (RULE, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_that_was_put_back_asks_about_what_was_rejected_since(kind: str) -> None:
    """Also by `update_state`, and where LangGraph gives the new visit the name of the old one."""
    desk = Desk(kind, ("bob", False))
    desk.run()
    before = desk.app.get_state(CONFIG).config
    desk.decide("reject")
    desk.visits = (("bob", True),)
    (request,) = desk.run(None, before)
    assert (request.rule, desk.paid) == (RULE, [])
    desk.decide("reject")
    fork = desk.app.update_state(before, {"messages": [("user", "Again.")]}, as_node="__start__")
    (request,) = desk.run(None, fork)
    assert (request.rule, desk.paid) == (RULE, [])


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
def test_of_visits_at_the_same_time_one_that_was_rejected_holds_none_that_was_asked_about_before(awaited: bool) -> None:
    desk = Desk("graph", ("bob", False), awaited=awaited)
    outer = StateGraph(MessagesState)
    outer.add_node("desk", desk.app.nodes["desk"].bound)
    outer.add_conditional_edges(START, lambda state: [Send("desk", state), Send("desk", state)], ["desk"])
    outer.add_edge("desk", END)
    desk.app = outer.compile(checkpointer=desk.saver)
    one, other = desk.run()
    state = desk.app.get_state(CONFIG)
    assert desk.run(resume(state, [one.decide("reject", principal="a"), other.decide("approve", principal="a")])) == []
    assert desk.paid == ["bob"]
    desk.visits = (("bob", False), ("bob", True))
    assert [request.rule for request in desk.run()] == [RULE, RULE]
    assert desk.decide("reject") == []
    assert desk.paid == ["bob"]


class Turns:
    """Answers of the outer agent and of the one that its tool calls, by the prompt."""

    def __init__(self, outer: list[AIMessage], inner: list[AIMessage]) -> None:
        self.of = {"Pay what is due.": outer, "Pay Bob.": inner}

    def __call__(self, messages: Any) -> AIMessage:
        prompt = next(str(m.text) for m in messages if m.type == "human")
        return self.of[prompt][sum(m.type == "ai" for m in messages)].model_copy(update={"id": None})


def proposes(text: str, name: str, call_id: str, **arguments: Any) -> AIMessage:
    return AIMessage(text, tool_calls=[{"name": name, "args": arguments, "id": call_id}])


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "another process"])
@pytest.mark.parametrize("first", ["outer", "inner"])
def test_a_rejection_of_an_agent_counts_for_the_agent_that_its_tool_calls_and_the_other_way(
    first: str, restarts: bool
) -> None:
    paid, saver, store = list[str](), InMemorySaver(), StoredStarts(MemoryStore())

    def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    def sure(messages: Any, _: Any) -> str:
        return f'{{"p_true": {0.7 if "Perhaps" in str(messages) else 0.99}}}'

    says = [proposes(text, "pay", "c", to="bob") for text in ("Perhaps I pay.", "I pay.")]
    mine, others = says if first == "outer" else says[::-1]
    hands_on = proposes("You do it.", "delegate", "d", task="Pay Bob.")
    turns = [mine, hands_on] if first == "outer" else [hands_on, mine]
    model = Scripted(answers=Turns([*turns, AIMessage("Done.")], [others, AIMessage("Well.")]))

    def process() -> Any:
        monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
        starts = store if restarts else None
        guard = UncertaintyMiddleware(monitor, model_client=ScriptedModel(sure), advisory=False, starts=starts)
        inner = create_agent(model, [pay], middleware=[guard])

        def delegate(task: str) -> str:
            """Hand a task on."""
            return str(inner.invoke({"messages": [("user", task)]})["messages"][-1].text)

        return create_agent(model, [pay, delegate], middleware=[guard], checkpointer=saver)

    app = process()
    app.invoke(GO, CONFIG)
    for rules in (False, True):
        state = app.get_state(CONFIG)
        (request,) = waiting(state)
        assert (request.rule == RULE, paid) == (rules, [])
        answer = resume(state, [request.decide("reject", principal="ann")])
        app.invoke(answer, CONFIG, interrupt_after=["tools"] if restarts else None)
        while restarts and app.get_state(CONFIG).next and not waiting(app.get_state(CONFIG)):
            app = process()
            app.invoke(None, CONFIG)
    assert (waiting(app.get_state(CONFIG)), paid) == ([], [])


@pytest.mark.parametrize("shared", [True, False])
def test_another_process_asks_about_what_was_rejected_in_a_thread_since_it_was_put_back(shared: bool) -> None:
    paid, saver, store = list[str](), InMemorySaver(), StoredStarts(MemoryStore())

    def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    def process(sure: float) -> Any:
        says = [proposes("I pay.", "pay", "c", to="bob"), AIMessage("Well.")]
        monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
        judge, starts = ScriptedModel(f'{{"p_true": {sure}}}'), store if shared else None
        guard = UncertaintyMiddleware(monitor, model_client=judge, advisory=False, starts=starts)
        model = Scripted(answers=Turns(says, []))
        return create_agent(model, [pay], middleware=[guard], checkpointer=saver)

    app = process(0.7)
    app.invoke(GO, CONFIG)
    (request,) = waiting(app.get_state(CONFIG))
    before = next(one.config for one in app.get_state_history(CONFIG) if one.next == ("model",))
    app.invoke(resume(app.get_state(CONFIG), [request.decide("reject", principal="ann")]), CONFIG)
    app = process(0.99)
    app.invoke(None, before)
    asked = [one.rule for one in waiting(app.get_state(CONFIG))]
    assert (asked, paid) == (([RULE], []) if shared else ([], ["bob"]))
