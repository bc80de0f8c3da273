"""The guard for LangGraph where the conformance sentences do not look: decisions, doubt, wiring, forks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, convert_to_messages
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import CachePolicy, Command
from pydantic import BaseModel

from grampus_uq import (
    ApprovalError,
    ApprovalPolicy,
    ConfigurationError,
    HmacSigner,
    Profile,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.integrations.langgraph import KEY, Fork, resume, uncertainty_guard, waiting
from grampus_uq.integrations.langgraph_fork import afork_before, fork_before
from grampus_uq.recording.replay import replay
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_scorers import running_minimum
from grampus_uq.stats.eprocess_thresholds import ville_threshold
from grampus_uq.testing import ScriptedModel
from tests.sampling import examples

CONFIG: Any = {"configurable": {"thread_id": "t"}}
START_OF_IT: Any = {"messages": [("user", "Pay what is due.")]}


def call(name: str, call_id: str, **arguments: Any) -> Any:
    return {"name": name, "args": arguments, "id": call_id}


def pay(call_id: str, to: str) -> Any:
    return call("pay", call_id, to=to)


class World:
    """A graph over scripted turns, and what its tools did."""

    def __init__(
        self,
        *turns: tuple[float, AIMessage],
        policy: ApprovalPolicy | None = None,
        profile: Profile | None = None,
        dies: bool = False,
        own_node: bool = False,
        last: bool = False,
        **given: Any,
    ) -> None:
        self.turns = turns
        self.done: list[str] = []
        self.events: list[Any] = []
        self.asked = 0

        def judge(messages: Sequence[Any], _: Any) -> str:
            judged = "\n".join(m.content or "" for m in messages)
            return next(f'{{"p_true": {p}}}' for p, message in self.turns if str(message.text) in judged)

        def agent(state: MessagesState) -> dict[str, Any]:
            self.asked += 1
            number = sum(m.type == "ai" for m in state["messages"])
            return {"messages": [self.turns[min(number, len(self.turns) - 1)][1].model_copy(update={"id": None})]}

        def pay(to: str) -> str:
            """Pay."""
            self.done.append(f"pay {to}")
            if dies:
                raise KeyboardInterrupt
            return f"paid {to}"

        def look_up(query: str) -> str:
            """Look up."""
            self.done.append(f"look up {query}")
            return "found"

        profile = profile or Profile(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
        self.monitor = UncertaintyMonitor(profile=profile, processors=[self])
        self.guard = uncertainty_guard(
            self.monitor, model_client=ScriptedModel(judge), approvals=policy, **({"advisory": False} | given)
        )
        builder = StateGraph(MessagesState)
        builder.add_node("agent", agent)
        builder.add_edge(START, "agent")
        if own_node:
            builder.add_node("tools", ToolNode([pay, look_up]))
        if last:
            builder.add_node("last", lambda state: self.done.append("the last"))
        self.guard.attach(builder, tools="tools" if own_node else [pay, look_up], end="last" if last else END)
        self.builder = builder
        self.app = builder.compile(checkpointer=InMemorySaver())

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    @property
    def state(self) -> Any:
        return self.app.get_state(CONFIG)

    def run(self, given: Any = START_OF_IT) -> list[Any]:
        self.app.invoke(given, CONFIG)
        return waiting(self.state)

    def resume(self, *decisions: Any) -> list[Any]:
        return self.run(resume(self.state, decisions))

    def run_fork(self, fork: Fork) -> list[Any]:
        self.app.invoke(fork.command, fork.config)
        return waiting(self.state)

    def texts(self) -> list[str]:
        return [str(m.text) for m in self.state.values["messages"]]


def proposes(text: str, *calls: Any) -> AIMessage:
    return AIMessage(text, tool_calls=list(calls))


def test_a_guard_acts_as_its_monitor_does_and_advises_when_told_to() -> None:
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
    assert uncertainty_guard(UncertaintyMonitor(policy=policy)).judge.settings.acts
    assert not uncertainty_guard(UncertaintyMonitor(policy=policy, advisory=True)).judge.settings.acts
    world = World((0.7, proposes("I pay.", pay("1", "bob"))), (0.95, AIMessage("Done.")), advisory=True)
    assert world.run() == []
    assert world.done == ["pay bob"]
    advised = [e.assessment.advisory_action for e in world.events if getattr(e, "assessment", None) is not None]
    assert "pause_for_human" in advised


@pytest.mark.parametrize("own_node", [False, True])
@pytest.mark.parametrize(
    ("p", "said", "done"),
    [
        (0.95, None, ["pay bob"]),
        (0.7, "approve", ["pay bob"]),
        (0.7, "reject", []),
        (0.05, "respond", []),
    ],
)
def test_a_run_ends_once_at_the_node_that_it_was_given_however_it_ends(
    own_node: bool, p: float, said: Any, done: list[str]
) -> None:
    text = f'I pay. {{"confidence": {p}}}'
    world = World((p, proposes(text, pay("1", "bob"))), (0.95, AIMessage("Done.")), own_node=own_node, last=True)
    for request in world.run():
        assert world.resume(request.decide(said, principal="ann")) == []
    assert (world.done, world.state.next) == ([*done, "the last"], ())


def test_an_approved_call_runs_at_once_and_the_model_waits_for_the_other() -> None:
    turn = proposes("I pay both.", pay("1", "ann"), call("look_up", "2", query="rates"), pay("3", "bob"))
    world = World((0.7, turn), (0.95, AIMessage("Done.")))
    ann, bob = world.run()
    assert world.done == ["look up rates"]
    (still,) = world.resume(ann.decide("approve", principal="me"))
    assert world.done == ["look up rates", "pay ann"]
    assert world.asked == 1
    assert still.id == bob.id
    assert world.resume(still.decide("respond", principal="me", message="in cash")) == []
    assert world.done == ["look up rates", "pay ann"]
    assert world.asked == 2
    assert "in cash" in world.texts()


def test_an_edit_stands_in_the_transcript_and_the_result_is_as_the_tool_gave_it() -> None:
    world = World((0.7, proposes("I pay.", pay("1", "mallory"))), (0.95, AIMessage("Done.")))
    (request,) = world.run()
    world.resume(request.decide("edit", principal="me", arguments={"to": "bob"}))
    assert world.done == ["pay bob"]
    messages = world.state.values["messages"]
    assert messages[1].tool_calls[0]["args"] == {"to": "bob"}
    assert messages[1].text == "I pay."
    assert messages[2].text == "paid bob"


def test_a_rejected_call_is_not_asked_about_again() -> None:
    world = World(
        (0.7, proposes("I pay.", pay("1", "bob"))),
        (0.7, proposes("Again.", pay("2", "bob"))),
        (0.95, AIMessage("Fine.")),
    )
    (request,) = world.run()
    assert world.resume(request.decide("reject", principal="me")) == []
    assert world.done == []
    assert world.texts()[-1] == "Fine."
    assert "already rejected" in world.texts()[-2]


@pytest.mark.parametrize("keeps", [True, None], ids=["kept", "anew"])
def test_a_sub_graph_that_is_visited_again_runs_nothing_that_was_rejected_in_it(keeps: bool | None) -> None:
    """Where it keeps its state the model is told so, as in one graph; in a new visit a human is asked again."""
    again = proposes("Once more.", pay("c2", "bob"))
    world = World((0.7, proposes("I pay.", pay("c1", "bob"))), (0.9, AIMessage("No?")), (0.99, again))
    world.turns += ((0.9, AIMessage("Done.")),)
    outer = StateGraph(MessagesState)
    outer.add_node("desk", world.builder.compile(checkpointer=keeps))
    outer.add_edge(START, "desk")
    outer.add_conditional_edges("desk", lambda state: END if state["messages"][-1].text == "Done." else "desk")
    world.app = outer.compile(checkpointer=InMemorySaver())
    (request,) = world.run()
    asked = world.resume(request.decide("reject", principal="ann"))
    assert [request.rule for request in asked] == ([] if keeps else ["rejected_in_thread"])
    assert asked == [] or world.resume(asked[0].decide("reject", principal="ann")) == []
    assert world.done == []
    assert world.asked == 4


def forged(request: Any) -> list[tuple[str, Any]]:
    good = request.decide("approve", principal="ann")
    return [
        ("is not signed", good),
        ("signature does not hold", good.model_copy(update={"signature": "0" * 64})),
        (
            "not among the approvers",
            HmacSigner("another key of 16 bytes").sign(good.model_copy(update={"principal": "eve"})),
        ),
        ("another call", HmacSigner("a key of at least 16").sign(good.model_copy(update={"digest": "0" * 64}))),
    ]


@pytest.mark.parametrize("number", range(4))
def test_what_is_refused_runs_nothing_and_is_asked_again_with_the_reason(number: int) -> None:
    policy = ApprovalPolicy(signer=HmacSigner("a key of at least 16"), approvers={"ann"})
    world = World((0.7, proposes("I pay.", pay("1", "bob"))), (0.95, AIMessage("Done.")), policy=policy)
    (request,) = world.run()
    why, decision = forged(request)[number]
    (again,) = world.resume(decision)
    assert world.done == []
    assert why in " ".join(world.state.interrupts[0].value["refused"])
    assert world.resume(HmacSigner("a key of at least 16").sign(again.decide("approve", principal="ann"))) == []
    assert world.done == ["pay bob"]


@pytest.mark.parametrize("answer", [True, "yes", {"ok": True}, {"decisions": [{"type": "approve"}]}, None, [[]]])
def test_an_answer_that_is_no_decision_is_refused(answer: Any) -> None:
    world = World((0.7, proposes("I pay.", pay("1", "bob"))), (0.95, AIMessage("Done.")))
    world.run()
    (still,) = world.run(Command(resume={world.state.interrupts[0].id: answer}))
    assert world.done == []
    assert "not an ApprovalDecision" in world.state.interrupts[0].value["refused"][0]
    world.resume(still.decide("approve", principal="me"))
    assert world.done == ["pay bob"]


def test_anything_but_decisions_is_refused_before_the_graph_runs_and_one_needs_no_list() -> None:
    world = World((0.7, proposes("I pay.", pay("1", "bob"))), (0.95, AIMessage("Done.")))
    (request,) = world.run()
    for wrong in ("approve", ["approve"], [None], request, [request]):
        with pytest.raises(ConfigurationError, match=r"request\.decide"):
            resume(world.state, wrong)  # type: ignore[arg-type]
    world.run(resume(world.state, request.decide("approve", principal="me")))  # type: ignore[arg-type]
    assert world.done == ["pay bob"]


def test_an_expired_request_is_asked_anew() -> None:
    world = World((0.7, proposes("I pay.", pay("1", "bob"))), policy=ApprovalPolicy(expires_s=1e-9))
    (request,) = world.run()
    (again,) = world.resume(request.decide("approve", principal="me"))
    assert world.done == []
    assert again.id != request.id
    assert "expired" in again.reason


def test_nothing_waits_is_an_error_of_its_own() -> None:
    world = World((0.95, AIMessage("Done.")))
    world.run()
    with pytest.raises(ApprovalError, match="No request of the guard is pending"):
        resume(world.state, [])


DOUBT = ((0.3, AIMessage("It is Lyon.")), (0.99, AIMessage("It is Paris.")))


def test_an_answer_in_grave_doubt_waits_and_a_word_sends_the_agent_on() -> None:
    world = World(*DOUBT)
    (request,) = world.run()
    assert request.call is None
    assert world.resume(request.decide("reject", principal="me", message="Look again.")) == []
    assert world.texts()[-2:] == ["A human rejected this answer. Look again.", "It is Paris."]


def test_an_answer_in_grave_doubt_is_released_when_it_is_approved() -> None:
    world = World(*DOUBT)
    (request,) = world.run()
    assert world.resume(request.decide("approve", principal="me")) == []
    assert "It is Lyon." in world.texts()
    assert world.asked == 1


def test_the_belief_of_a_thread_goes_on_in_its_next_conversation() -> None:
    world = World((0.7, AIMessage("First.")), (0.95, AIMessage("Second.")))
    world.run()
    world.run({"messages": [("user", "And now?")]})
    indexes = [e.assessment.index for e in world.events if getattr(e, "assessment", None) is not None]
    assert indexes == [0, 1]
    assert [e for e in world.events if getattr(e, "resumed", False)] == []  # one process: one start, no resumption


def test_what_is_streamed_holds_names_and_numbers_and_no_content() -> None:
    world = World((0.7, proposes("I pay.", pay("1", "bob"))))
    events = list(world.app.stream(START_OF_IT, CONFIG, stream_mode="custom"))
    (told,) = [event[KEY] for event in events]
    assert told["calls"] == [{"id": "1", "name": "pay", "phase": "waiting"}]
    assert "bob" not in str(told)


def test_a_call_that_reaches_the_tools_by_another_way_does_not_run() -> None:
    world = World((0.95, AIMessage("Done.")))
    builder = StateGraph(MessagesState)
    builder.add_node("tools", world.guard.tool_node([world_tool(world.done)]))
    builder.add_edge(START, "tools")
    result = builder.compile().invoke({"messages": [proposes("I pay.", pay("1", "bob"))]})
    assert world.done == []
    assert result["messages"][-1].status == "error"
    assert "was not cleared" in result["messages"][-1].text


def test_advice_holds_back_no_call_whatever_way_it_came() -> None:
    done: list[str] = []
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]), advisory=True)
    builder = StateGraph(MessagesState)
    builder.add_node("tools", uncertainty_guard(monitor, advisory=False).tool_node([world_tool(done)]))
    builder.add_edge(START, "tools")
    builder.compile().invoke({"messages": [proposes("I pay.", pay("1", "bob"))]})
    assert done == ["bob"]


def world_tool(done: list[str]) -> Callable[[str], str]:
    def pay(to: str) -> str:
        """Pay."""
        done.append(to)
        return "paid"

    return pay


@pytest.mark.parametrize(("start", "end"), [("agent", "tools"), ("tools", "agent")])
def test_edges_that_lead_around_the_guard_are_refused(start: str, end: str) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: state)
    builder.add_node("tools", ToolNode([world_tool([])]))
    builder.add_edge(start, end)
    with pytest.raises(ConfigurationError, match=rf"leads on from there\. Got .*add_edge\('{start}', '{end}'\)"):
        uncertainty_guard(UncertaintyMonitor()).attach(builder, tools="tools")


def test_a_compiled_graph_is_refused() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: state)
    builder.add_edge(START, "agent")
    with pytest.raises(ConfigurationError, match="not compiled yet"):
        uncertainty_guard(UncertaintyMonitor()).attach(builder.compile(), tools=[])  # type: ignore[arg-type]


def test_a_conditional_edge_around_the_guard_is_named_and_no_other_edge() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: state)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", lambda state: END)
    with pytest.raises(ConfigurationError, match=r"Got \[\"add_conditional_edges\('agent', …\)\"\]"):
        uncertainty_guard(UncertaintyMonitor()).attach(builder, tools=[])


# -- time travel ----------------------------------------------------------------------------------------------------


@dataclass
class Suspected:
    steps: Sequence[Any]
    set_steps: Sequence[int]


@dataclass
class OneStep:
    step_id: str


def failed_run() -> World:
    """Looks something up, pays the wrong person (an edit), and says that it is done."""
    world = World(
        (0.95, proposes("I look.", call("look_up", "1", query="due"))),
        (0.7, proposes("I pay.", pay("2", "mallory"))),
        (0.95, AIMessage("Done.")),
    )
    (request,) = world.run()
    world.resume(request.decide("edit", principal="me", arguments={"to": "eve"}))
    assert world.done == ["look up due", "pay eve"]
    return world


def test_a_fork_goes_back_to_before_the_suspected_step_with_the_belief_of_then() -> None:
    world = failed_run()
    found = Suspected([OneStep("llm_0"), OneStep("llm_1/observation-1")], [1])
    fork = fork_before(world.app, CONFIG, found, note="It was the wrong person.")
    assert fork.step == 1
    assert [ran.canonical() for ran in fork.executed] == ['pay({"to":"eve"})']
    before = len(world.events)
    world.app.invoke(fork.command, fork.config)
    (request,) = waiting(world.state)
    assert request.call is not None
    assert request.call.arguments == {"to": "mallory"}
    assert world.texts()[-2] == "It was the wrong person."
    steps = [e.assessment.index for e in world.events[before:] if getattr(e, "assessment", None) is not None]
    assert steps[0] == 2  # after the first turn and its tool: what came later is not believed any more
    assert world.done == ["look up due", "pay eve"]


def test_a_fork_to_the_start_asks_before_it_repeats_what_was_done() -> None:
    world = World((0.99, proposes("I pay.", pay("1", "bob"))), (0.99, AIMessage("Done.")))
    world.run()
    assert world.done == ["pay bob"]  # a sure run: nobody was asked

    async def again() -> list[Any]:
        fork = await afork_before(world.app, CONFIG, 0)
        await world.app.ainvoke(fork.command, fork.config)
        return waiting(await world.app.aget_state(CONFIG))

    (request,) = anyio.run(again)
    assert request.rule == "repeat_after_rollback"
    assert world.done == ["pay bob"]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("rings", [True, False])
@pytest.mark.parametrize("at", [[0], [1], [1, 0]])
def test_an_alarm_of_the_discarded_part_stays_one_of_the_thread(at: list[int], rings: bool, signed: bool) -> None:
    watched = Profile(
        policy=UncertaintyPolicy(irreversible_tool_names=["pay"]),
        detector=Detector(
            streams=("fused",),
            scorer=running_minimum(bounded=(True,), neutral=(0.5,)),
            thresholds=(ville_threshold(0.5),),
            deployed=0,
            salt="s",
        ),
    )
    policy = ApprovalPolicy(signer=HmacSigner("a key of at least 16")) if signed else None
    look = (0.95, proposes("I look.", call("look_up", "1", query="due")))
    doubt = (0.05 if rings else 0.9, proposes("I look once more.", call("look_up", "2", query="due")))
    world = World(look, doubt, (0.95, AIMessage("Done.")), profile=watched, policy=policy)
    assert len(world.run()) == rings
    for step in at:
        fork = fork_before(world.app, CONFIG, step)
        world.turns = (0.95, proposes("I pay.", pay("3", f"bob{step}"))), (0.95, AIMessage("Done."))
        if step == 1:
            world.turns = look, *world.turns
        world.app.invoke(fork.command, fork.config)
    assert [request.rule for request in waiting(world.state)] == ["detector"] * rings
    assert [done for done in world.done if "pay" in done] == [f"pay bob{step}" for step in at if not rings]
    assert all(step.same for step in replay(world.events, watched))


@given(forks=st.lists(st.integers(0, 3), min_size=1, max_size=3))
@example(forks=[1, 0])
@settings(max_examples=examples(10), deadline=None)
def test_however_often_a_thread_forks_nothing_is_repeated_unasked_and_a_no_stays_a_no(forks: list[int]) -> None:
    """Also to before an earlier fork: what that one left behind is on no way back from here."""
    look = (0.99, proposes("I look.", call("look_up", "0", query="due")))
    ann = (0.99, proposes("I pay Ann.", pay("1", "ann")))
    bob, end = proposes("I pay Bob.", pay("2", "bob")), (0.99, AIMessage("Done."))
    world = World(look, ann, (0.7, bob), end)
    (request,) = world.run()
    world.resume(request.decide("reject", principal="me"))
    world.turns = look, ann, (0.99, bob), end
    for step in forks:
        fork = fork_before(world.app, CONFIG, step)
        asked = world.run_fork(fork)
        while asked:
            assert [one.rule for one in asked] == ["repeat_after_rollback"]
            asked = world.resume(asked[0].decide("respond", principal="me", message="Ann has it."))
    assert [done for done in world.done if "pay" in done] == ["pay ann"]


def test_what_may_have_run_before_a_fork_is_listed_and_asked_about() -> None:
    """An approved call whose process dies in it: whether it took effect is unknown, and another thread may know."""
    world = World((0.7, proposes("I pay.", pay("1", "bob"))), (0.99, AIMessage("Done.")), dies=True)
    (request,) = world.run()
    with pytest.raises(KeyboardInterrupt):
        world.resume(request.decide("approve", principal="me"))
    world.turns = tuple((0.99, message) for _, message in world.turns)
    fork = fork_before(world.app, CONFIG, 0)
    assert [one.canonical() for one in fork.executed] == ['pay({"to":"bob"})']
    assert [one.rule for one in world.run_fork(fork)] == ["repeat_after_rollback"]
    assert world.done == ["pay bob"]


def test_a_fork_to_where_the_run_never_was_is_refused() -> None:
    world = failed_run()
    for at in (3, -1, Suspected([], []), Suspected([OneStep("17")], [0])):
        with pytest.raises(ConfigurationError, match="'at'"):
            fork_before(world.app, CONFIG, at)


# -- the model's node, which the turn is judged in --------------------------------------------------------------------


def test_a_call_that_ran_does_not_run_again_when_its_sibling_is_edited() -> None:
    world = World((0.7, proposes("I pay.", pay("1", "ann"), pay("2", "mallory"))), (0.95, AIMessage("Done.")))
    ann, mallory = world.run()
    world.resume(ann.decide("approve", principal="me"))
    assert world.resume(mallory.decide("edit", principal="me", arguments={"to": "bob"})) == []
    assert world.done == ["pay ann", "pay bob"]


class Typed(BaseModel):
    """A state that a node is given as an object."""

    messages: Annotated[list[AnyMessage], add_messages]


class Other(MessagesState):
    note: str


def appended(before: list[Any] | None, new: list[Any]) -> list[Any]:
    return [*(before or []), *convert_to_messages(new)]


class Custom(TypedDict):
    messages: Annotated[list[Any], appended]


SAYS = AIMessage("I pay.", tool_calls=[pay("1", "bob")])
NODES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "a dict": (MessagesState, lambda state: {"messages": [SAYS.model_copy()]}, {}),
    "one message": (MessagesState, lambda state: {"messages": SAYS.model_copy()}, {}),
    "a command": (MessagesState, lambda state: Command(update={"messages": [SAYS.model_copy()]}), {}),
    "a list of commands": (MessagesState, lambda state: [Command(update={"messages": [SAYS.model_copy()]})], {}),
    "no message object": (MessagesState, lambda state: {"messages": [SAYS.model_dump()]}, {}),
    "an object as state": (Typed, lambda state: {"messages": [SAYS.model_copy()], "n": len(state.messages)}, {}),
    "a state of its own": (
        MessagesState,
        lambda state: {"messages": [SAYS.model_copy()], "note": f"{sorted(state)}"},
        {"input_schema": Other},
    ),
    "a reducer of its own": (Custom, lambda state: {"messages": [SAYS.model_copy(update={"id": "a"})]}, {}),
    "a cache": (MessagesState, lambda state: {"messages": [SAYS.model_copy()]}, {"cache_policy": CachePolicy()}),
}


@pytest.mark.parametrize("kind", NODES)
def test_whatever_the_models_node_reads_and_returns_its_calls_wait_and_run_once(kind: str) -> None:
    schema, node, given = NODES[kind]
    seen: list[Any] = []
    world = World((0.7, SAYS), (0.95, AIMessage("Done.")))

    def agent(state: Any) -> Any:
        seen.append(state)
        messages = state.messages if isinstance(state, Typed) else state["messages"]
        return {"messages": [AIMessage("Done.")]} if messages[-1].type == "tool" else node(state)

    if given.get("input_schema") is Other:
        agent.__annotations__["state"] = Other
    builder: Any = StateGraph(schema)
    builder.add_node("agent", agent, **given)
    builder.add_edge(START, "agent")
    world.guard.attach(builder, tools=[world_tool(world.done)])
    world.app = builder.compile(checkpointer=InMemorySaver(), cache=InMemoryCache())
    (request,) = world.run()
    assert world.done == []
    assert world.resume(request.decide("approve", principal="me")) == []
    assert world.done == ["bob"]
    assert all(KEY not in (state if isinstance(state, dict) else vars(state)) for state in seen)
    assert [m.type if hasattr(m, "type") else "?" for m in world.state.values["messages"]][-3:] == ["ai", "tool", "ai"]


def test_a_graph_as_the_models_node_is_seen_as_a_sub_graph_and_its_calls_wait() -> None:
    world = World((0.7, SAYS), (0.95, AIMessage("Done.")))
    inner = StateGraph(MessagesState)
    inner.add_node("speak", lambda state: {"messages": [SAYS.model_copy()]})
    inner.add_edge(START, "speak")
    child = inner.compile()
    for node in (child, lambda state: {"messages": [child.invoke(state)["messages"][-1]]}):
        builder: Any = StateGraph(MessagesState)
        builder.add_node("agent", node)
        builder.add_edge(START, "agent")
        world.guard.attach(builder, tools=[world_tool(world.done)])
        world.app = builder.compile(checkpointer=InMemorySaver())
        assert [name for name, _ in world.app.get_subgraphs()] == ["agent"]
        assert len(world.run()) == 1
    assert world.done == []


def test_a_turn_that_needs_nobody_takes_no_further_superstep() -> None:
    world = World((0.95, proposes("I look.", call("look_up", "1", query="due"))), (0.95, AIMessage("Done.")))
    world.run()
    nodes = [next(iter(update)) for update in world.app.stream(START_OF_IT, {"configurable": {"thread_id": "u"}})]
    assert nodes == ["agent", "tools", "agent"]
