"""The middleware for LangChain where the conformance sentences do not look: beside others, in doubt, by default."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langchain import UncertaintyMiddleware, resume, waiting
from grampus_uq.integrations.langgraph_threads import before_node
from grampus_uq.testing import ScriptedModel

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


class World:
    """An agent over scripted turns with their confidences, and what its tools did."""

    def __init__(
        self, *turns: tuple[float, AIMessage], others: Sequence[AgentMiddleware[Any, Any, Any]] = (), **given: Any
    ) -> None:
        self.done: list[str] = []
        self.events: list[Any] = []

        def judge(messages: Sequence[Any], _: Any) -> str:
            judged = "\n".join(m.content or "" for m in messages)
            return next(f'{{"p_true": {p}}}' for p, message in turns if str(message.text) in judged)

        def pay(to: str) -> str:
            """Pay."""
            self.done.append(f"pay {to}")
            return f"paid {to}"

        monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]), processors=[self])
        guard = UncertaintyMiddleware(monitor, model_client=ScriptedModel(judge), **({"advisory": False} | given))
        model = Model(messages=iter([message for _, message in turns]))
        self.app: Any = create_agent(model, [pay], middleware=[guard, *others], checkpointer=InMemorySaver())

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    def run(self, given: Any = None) -> list[Any]:
        self.app.invoke({"messages": [("user", "Pay what is due.")]} if given is None else given, CONFIG)
        return waiting(self.state)

    def resume(self, *decisions: Any) -> list[Any]:
        return self.run(resume(self.state, decisions))

    @property
    def state(self) -> Any:
        return self.app.get_state(CONFIG)

    def texts(self) -> list[str]:
        return [str(m.text) for m in self.state.values["messages"]]


def pays(to: str) -> AIMessage:
    return AIMessage("I pay.", tool_calls=[{"name": "pay", "args": {"to": to}, "id": "1"}])


DONE = (0.95, AIMessage("Done."))


def test_the_middleware_acts_as_its_monitor_does_and_advises_when_told_to() -> None:
    assert UncertaintyMiddleware(UncertaintyMonitor()).judge.settings.acts
    assert not UncertaintyMiddleware(UncertaintyMonitor(advisory=True)).judge.settings.acts
    assert not UncertaintyMiddleware(UncertaintyMonitor(advisory=True), advisory=False).judge.settings.acts
    world = World((0.7, pays("bob")), DONE, advisory=True)
    assert world.run() == []
    assert world.done == ["pay bob"]
    advised = [e.assessment.advisory_action for e in world.events if getattr(e, "assessment", None) is not None]
    assert "pause_for_human" in advised


@pytest.mark.timeout(60, method="thread")  # what hangs cannot be interrupted
@pytest.mark.parametrize("awaited", [False, True])
def test_more_calls_wait_than_tasks_may_run_at_the_same_time(awaited: bool) -> None:
    calls = [{"name": "pay", "args": {"to": name}, "id": name} for name in "abcd"]
    world, config = World((0.7, AIMessage("I pay.", tool_calls=calls)), DONE), {**CONFIG, "max_concurrency": 2}

    def go(given: Any) -> None:
        asyncio.run(world.app.ainvoke(given, config)) if awaited else world.app.invoke(given, config)

    go({"messages": [("user", "Pay what is due.")]})
    asked = waiting(world.state)
    assert [request.call and request.call.id for request in asked] == list("abcd")
    go(resume(world.state, [request.decide("approve", principal="me") for request in asked]))
    assert sorted(world.done) == ["pay a", "pay b", "pay c", "pay d"]


@pytest.mark.timeout(60, method="thread")  # what hangs cannot be interrupted
@pytest.mark.parametrize("where", ["precondition", "awaited precondition", "processor"])
def test_a_guarded_agent_runs_inside_what_judges_another_one(where: str) -> None:
    inner = list[World]()

    def work(*_: Any) -> None:
        if inner:
            world = inner.pop()  # inside the first, the second does the same
            world.resume(*(request.decide("approve", principal="me") for request in world.run()))

    async def awaited(call: Any) -> None:
        work()

    given: Any = {"precondition": {"precondition": work, "awaited precondition": awaited}.get(where)}
    worlds = [World((0.7, pays(name)), DONE, **given) for name in ("bob", "eve", "dan")]
    if where == "processor":
        for world in worlds:
            vars(world)["on_event"] = work
    inner += worlds
    work()
    assert [world.done for world in worlds] == [["pay bob"], ["pay eve"], ["pay dan"]]


def stock(*decisions: Any) -> Any:
    return Command(resume={"decisions": list(decisions)})


def test_the_stock_middleware_asks_first_and_its_approval_is_not_the_monitors() -> None:
    world = World((0.7, pays("bob")), DONE, others=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})])
    assert world.run() == []
    assert world.state.interrupts  # the stock middleware's own
    (request,) = world.run(stock({"type": "approve"}))
    assert world.done == []
    world.resume(request.decide("approve", principal="me"))
    assert world.done == ["pay bob"]


def test_beside_the_stock_middleware_a_sure_run_is_asked_about_once() -> None:
    world = World((0.99, pays("bob")), DONE, others=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})])
    world.run()
    assert world.run(stock({"type": "approve"})) == []
    assert world.done == ["pay bob"]


def test_a_call_that_a_reviewer_rejected_there_is_not_asked_about_here() -> None:
    world = World((0.7, pays("bob")), DONE, others=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})])
    world.run()
    assert world.run(stock({"type": "reject"})) == []
    assert world.done == []
    assert world.texts()[-1] == "Done."


class Redirects(AgentMiddleware[Any, Any, Any]):
    """Changes a call on its way to the tool, before the guard sees it."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tool_call={**request.tool_call, "args": {"to": "mallory"}}))


def test_a_call_that_another_middleware_changed_is_judged_as_it_is_now() -> None:
    world = World((0.7, pays("bob")), DONE)
    guard = UncertaintyMiddleware(
        UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"])),
        model_client=ScriptedModel('{"p_true": 0.7}'),
        advisory=False,
    )
    done: list[str] = []

    def pay(to: str) -> str:
        """Pay."""
        done.append(to)
        return "paid"

    model = Model(messages=iter([pays("bob"), AIMessage("Done.")]))
    world.app = create_agent(model, [pay], middleware=[Redirects(), guard], checkpointer=InMemorySaver())
    (request,) = world.run()
    assert request.call.arguments == {"to": "mallory"}
    (again,) = world.resume(request.decide("approve", principal="me").model_copy(update={"digest": "0" * 64}))
    assert done == []
    assert world.resume(again.decide("approve", principal="me")) == []
    assert done == ["mallory"]


@pytest.mark.parametrize("said", ["approve", "reject", "respond"])
def test_an_answer_in_grave_doubt_waits_at_the_end(said: Any) -> None:
    world = World((0.3, AIMessage("It is Lyon.")), (0.99, AIMessage("It is Paris.")))
    (request,) = world.run()
    assert request.call is None
    assert world.resume(request.decide(said, principal="me", message="Look again.")) == []
    ends = {"approve": "It is Lyon.", "reject": "It is Paris.", "respond": "It is Paris."}
    spoken = [text for text in world.texts() if text.startswith("It is")]
    assert spoken[-1] == ends[said]
    decided = [event.decision for event in world.events if getattr(event, "decision", None) is not None]
    assert decided == [said]


def test_a_human_s_decision_is_recorded_once_and_in_the_belief() -> None:
    world = World((0.7, pays("bob")), DONE)
    (request,) = world.run()
    world.resume(request.decide("approve", principal="me"))
    decisions = [event for event in world.events if getattr(event, "decision", None) is not None]
    assert [(event.decision, event.principal, event.call_id) for event in decisions] == [("approve", "me", "1")]
    assert not world.state.values["uncertainty"].get("decided")


def test_a_call_runs_only_while_the_host_of_its_thread_lets_nodes_begin() -> None:
    """As a worker's lease that was lost: another worker may run the call."""

    async def lost() -> None:
        raise ConnectionError

    call = {"name": "pay", "args": {"to": "bob"}, "id": "c1"}
    world = World((0.99, AIMessage("I pay Bob.", tool_calls=[call])), (0.99, AIMessage("Bob has it.")))

    async def run() -> None:
        before_node.set(lost)
        await world.app.ainvoke({"messages": [("user", "Pay what is due.")]}, CONFIG)

    with pytest.raises(ConnectionError):
        asyncio.run(run())
    assert world.done == []


def test_a_pause_that_nobody_can_resume_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Without a checkpointer `invoke` returns as if the agent had ended, and `get_state` raises."""
    call = {"name": "pay", "args": {"to": "bob"}, "id": "c1"}
    world = World((0.5, AIMessage("I pay Bob.", tool_calls=[call])))
    (kept,) = world.run()
    assert kept.call is not None
    assert "checkpointer" not in caplog.text
    lost = World((0.5, AIMessage("I pay Bob.", tool_calls=[call])))
    lost.app.checkpointer = None
    lost.app.invoke({"messages": [("user", "Pay what is due.")]}, CONFIG)
    assert lost.done == []
    assert "no checkpointer" in caplog.text
