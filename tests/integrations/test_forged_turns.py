"""What LangGraph and LangChain runs make of state that others wrote: turns no model said, other threads, twice at once.

Ann approves with a key of her own. Others write the checkpoints, and read all that is in them.
"""

from __future__ import annotations

import copy
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.sampling import sampled

pytest.importorskip("langchain.agents", reason="the extra langchain is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool as as_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from grampus_uq import (
    ApprovalPolicy,
    Ed25519Signer,
    PublicKeys,
    Seal,
    ToolCall,
    ToolEffects,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.errors import GrampusError
from grampus_uq.gate.call import REJECTED_BEFORE
from grampus_uq.integrations.blocking import run_blocking
from grampus_uq.integrations.langchain import UncertaintyMiddleware
from grampus_uq.integrations.langgraph import KEY, resume, uncertainty_guard, waiting
from grampus_uq.testing import ScriptedModel
from tests.integrations.forging import into_state

ANN = Ed25519Signer.generate()
KEYS = PublicKeys({"ann": ANN.public_key})
SHARED = Seal(b"a key of the hosts")
both = pytest.mark.parametrize("framework", ["LangGraph", "LangChain"])
Change = Callable[[str, Any], Any]


def call(name: str = "pay", call_id: str = "1", **arguments: Any) -> Any:
    return {"name": name, "args": arguments, "id": call_id}


def says(confidence: float, *calls: Any) -> AIMessage:
    return AIMessage(f'I go on. {{"confidence": {confidence}}}', tool_calls=list(calls))


BOB = {"to": "bob", "amount": 5}
EVIL = {"to": "mallory", "amount": 99_999}
PAYS = (says(0.6, call(**BOB)), says(0.99))
LOOKS = (says(0.99, call("look", at="x")), says(0.99, call("look", "2", at="y")), says(0.99))


class Model(BaseChatModel):
    turns: tuple[AIMessage, ...]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        said = self.turns[min(sum(m.type == "ai" for m in messages), len(self.turns) - 1)]
        return ChatResult(generations=[ChatGeneration(message=said.model_copy(update={"id": None}))])


class Process:
    """One process' guard and graph over a checkpointer that others may write, and what its tools did."""

    def __init__(
        self,
        framework: str,
        saver: InMemorySaver,
        turns: Sequence[AIMessage],
        *,
        seal: Seal | None = SHARED,
        advisory: bool = False,
        sure: bool = False,
        judged: bool = False,
        inside: Sequence[Any] = (),
        outside: Sequence[Any] = (),
    ) -> None:
        self.done: list[Any] = []
        self.saver = saver

        def pay(to: str, amount: int) -> str:
            """Pay."""
            self.done.append((to, amount))
            return "paid"

        def look(at: str) -> str:
            """Look."""
            self.done.append(at)
            return "seen"

        heedless: Any = {"on_missing_evidence": "proceed"} if sure else {}
        monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"], **heedless))
        given: Any = {
            "approvals": ApprovalPolicy(signer=KEYS, seal=seal),
            "advisory": advisory,
            "effects": ToolEffects({"look": "read"}),
            "model_client": ScriptedModel('{"p_true": 0.98}') if sure or judged else None,
        }
        self.tools = [as_tool(pay), as_tool(look)]
        if framework == "LangChain":
            guard: Any = UncertaintyMiddleware(monitor, **given)
            stack = [*outside, guard, *inside]
            self.app: Any = create_agent(Model(turns=tuple(turns)), self.tools, middleware=stack, checkpointer=saver)
            return
        builder: Any = StateGraph(MessagesState)
        model = Model(turns=tuple(turns))
        builder.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
        builder.add_edge(START, "agent")
        uncertainty_guard(monitor, **given).attach(builder, tools=self.tools)
        self.app = builder.compile(checkpointer=saver)

    def waiting(self, thread: str = "t") -> list[Any]:
        return waiting(self.app.get_state(config(thread)))

    def run(self, thread: str = "t", given: Any = None) -> list[Any]:
        self.app.invoke(given or {"messages": [("user", "Go on.")]}, config(thread))
        return self.waiting(thread)

    def go_on(self, thread: str = "t") -> list[Any]:
        self.app.invoke(None, config(thread))
        return self.waiting(thread)

    def resume(self, *decisions: Any, thread: str = "t") -> list[Any]:
        return self.run(thread, resume(self.app.get_state(config(thread)), decisions))

    def stop_after_the_model(self) -> None:
        self.app.invoke({"messages": [("user", "Go on.")]}, config("t"), interrupt_before=["tools"])


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def ann(request: Any, kind: Any = "approve") -> Any:
    return ANN.sign(request.decide(kind, principal="ann"))


def rewrite(saver: InMemorySaver, change: Change) -> None:
    """Every channel's value, and what tasks wrote, as `change` gives it."""
    for key, kept in list(saver.blobs.items()):
        if kept[0] != "empty":
            saver.blobs[key] = saver.serde.dumps_typed(change(str(key[2]), saver.serde.loads_typed(kept)))
    for writes in saver.writes.values():
        for at, write in list(writes.items()):
            value = change(write[1], saver.serde.loads_typed(write[2]))
            writes[at] = (*write[:2], saver.serde.dumps_typed(value), *write[3:])


def copied(saver: InMemorySaver, old: str, new: str) -> None:
    for space, kept in list(saver.storage[old].items()):
        saver.storage[new][space] = dict(kept)
    for store in (saver.blobs, saver.writes):
        for key in [key for key in store if key[0] == old]:
            store[(new, *key[1:])] = copy.copy(store[key])  # type: ignore[index]


def with_the_models_call(new: Any) -> Change:
    """This call in place of the one that the model's latest message holds, in what is sent to the tools as well."""

    def change(channel: str, value: Any) -> Any:
        for spot in value if isinstance(value, list) else [value]:
            if channel == "messages" and isinstance(spot, AIMessage) and spot is (value[-1:] or [spot])[0]:
                spot.tool_calls = [{**new, "type": "tool_call"}]
                spot.content = 'I pay. {"confidence": 1.0}'
            elif channel == "__pregel_tasks" and isinstance(spot.arg, list):
                spot.arg = [{**one, **new} for one in spot.arg]
            elif channel == "__pregel_tasks" and "tool_call" in spot.arg:
                spot.arg["tool_call"] |= new
        return value

    return change


@both
@pytest.mark.parametrize("turn", [0, 1])
def test_an_answer_that_no_model_gave_is_asked_about(framework: str, turn: int) -> None:
    saver = InMemorySaver()
    process = Process(framework, saver, LOOKS, sure=True)
    process.stop_after_the_model()
    for _ in range(turn):
        process.app.invoke(None, config("t"), interrupt_before=["tools"])
    assert list(process.app.get_state(config("t")).next) == ["tools"]
    rewrite(saver, with_the_models_call(call(call_id="9", **EVIL)))
    other = Process(framework, saver, LOOKS, sure=True)
    waiting = other.go_on()
    assert EVIL["to"] not in str(other.done)
    if framework != "LangGraph":  # there a turn is judged where the model is called: nobody proposed it at all
        assert [request.call.arguments for request in waiting] == [EVIL]


@both
def test_an_answer_that_the_model_gave_here_counts(framework: str) -> None:
    """The law above is kept by no guard that asks about everything."""
    process = Process(framework, InMemorySaver(), [says(0.99, call(**BOB)), says(0.99)], judged=True)
    assert process.run() == []
    assert process.done == [("bob", 5)]


@both
@pytest.mark.parametrize("left", [{}, {"belief": None, "turn": None}, None])
def test_without_the_channel_a_rejected_call_does_not_run(framework: str, left: Any) -> None:
    saver = InMemorySaver()
    turns = [says(0.0, call(**BOB)), says(0.99), says(0.99, call(call_id="9", **BOB)), says(0.99)]
    process = Process(framework, saver, turns, judged=True)
    (request,) = process.run()
    assert process.resume(ann(request, "reject")) == []
    rewrite(saver, lambda channel, value: left if channel == KEY else value)
    other = Process(framework, saver, turns, judged=True)
    (again,) = other.run()
    assert (again.rule, other.done) == ("unvouched_state", [])


@both
@pytest.mark.parametrize("seal", [SHARED, None])
@pytest.mark.parametrize("same", [True, False])
def test_an_approval_of_one_thread_runs_nothing_in_another(framework: str, seal: Seal | None, same: bool) -> None:
    saver = InMemorySaver()
    process = Process(framework, saver, PAYS, seal=seal)
    (request,) = process.run("a")
    copied(saver, "a", "b")
    process.resume(ann(request), thread="a")
    assert process.done == [("bob", 5)]
    other = process if same else Process(framework, saver, PAYS, seal=seal)
    (asked,) = other.resume(ann(request), thread="b")
    assert other.done == [("bob", 5)] * same
    assert asked.session_id == "b"


@both
def test_a_decision_of_an_earlier_step_runs_nothing_at_this_one(framework: str) -> None:
    saver = InMemorySaver()
    turns = [PAYS[0], PAYS[0], says(0.99)]
    process = Process(framework, saver, turns)
    (first,) = process.run()
    decision = ann(first)
    process.resume(decision)

    def moved(channel: str, value: Any) -> Any:
        if channel == KEY and isinstance(value, dict) and (value.get("turn") or {}).get("calls"):
            record = value["turn"]["calls"][0]
            record |= {"requests": [first.model_dump(mode="json")], "decisions": [decision.model_dump(mode="json")]}
            record |= {"step_id": first.step_id, "phase": "cleared"}
            value["turn"]["step_id"] = first.step_id
        return value

    rewrite(saver, moved)
    other = Process(framework, saver, turns)
    assert len(other.go_on()) == 1
    assert other.done == []


@both
def test_an_approval_that_is_delivered_twice_at_once_runs_once(framework: str) -> None:
    saver, meet = InMemorySaver(), threading.Barrier(2, timeout=120)
    process = Process(framework, saver, PAYS)
    (request,) = process.run()
    command = resume(process.app.get_state(config("t")), [ann(request)])

    def deliver() -> None:
        meet.wait()
        process.app.invoke(command, config("t"))

    threads = [threading.Thread(target=deliver) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.done == [("bob", 5)]


@both
def test_an_approved_call_whose_tool_failed_may_be_tried_again(framework: str) -> None:
    process = Process(framework, InMemorySaver(), PAYS)
    (request,) = process.run()
    func, failures = process.tools[0].func, [OSError("the line is down")]

    def fails_once(to: str, amount: int) -> str:
        if failures:
            raise failures.pop()
        return str(func(to, amount))

    process.tools[0].func = fails_once
    with pytest.raises(OSError, match="the line is down"):
        process.resume(ann(request))
    process.go_on()
    assert process.done == [("bob", 5)]


class Changing(AgentMiddleware[Any, Any, Any]):
    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(self.change(request))


def test_a_rejected_call_that_other_middleware_makes_of_another_does_not_run() -> None:
    def trimmed(request: Any) -> Any:
        made = {**request.tool_call["args"], "to": request.tool_call["args"]["to"].strip().lower()}
        return request.override(tool_call={**request.tool_call, "args": made})

    turns = [PAYS[0], says(1.0, call(call_id="2", to="Bob ", amount=5)), says(1.0)]
    process = Process("LangChain", InMemorySaver(), turns, outside=[Changing(trimmed)])
    (request,) = process.run()
    assert process.resume(ann(request, "reject")) == []
    assert process.done == []
    assert "already rejected" in process.app.get_state(config("t")).values["messages"][-2].text


def test_a_late_call_that_an_earlier_branch_ran_is_asked_about() -> None:
    judge = UncertaintyMiddleware(UncertaintyMonitor(), advisory=False).judge
    state = {"repeats": [ToolCall(id="1", name="pay", arguments=BOB).digest()]}
    carried = judge.states.read("t", "/t", state, begun=False)
    late = judge.unjudged(carried, ToolCall(id="2", name="pay", arguments=BOB))
    part = run_blocking(functools.partial(judge.judge_late, late, read=True))
    (record,) = judge.states.read_part(late, part).records
    assert record.requests[0].rule == "repeat_after_rollback"


def test_a_late_call_that_was_rejected_in_another_session_of_the_thread_is_asked_about() -> None:
    judge = UncertaintyMiddleware(UncertaintyMonitor(), advisory=False).judge
    one, other = (judge.states.read(f"t/desk:{n}", f"/t/{n}", None, thread="t", begun=False) for n in range(2))
    pay = ToolCall(id="1", name="pay", arguments=BOB)
    run_blocking(functools.partial(judge.gate.starts.reject, pay, one.terms))
    late = judge.unjudged(other, pay)
    part = run_blocking(functools.partial(judge.judge_late, late, read=True))
    (record,) = judge.states.read_part(late, part).records
    assert record.requests[0].rule == "rejected_in_thread"


def test_no_store_is_asked_about_a_late_call_that_the_thread_itself_refuses() -> None:
    class Silent:
        async def take(self, by: str, owner: str) -> bool:
            raise AssertionError

        free = take

    judge = UncertaintyMiddleware(UncertaintyMonitor(), advisory=False, starts=Silent()).judge
    pay = ToolCall(id="1", name="pay", arguments=BOB)
    known = {"belief": {"v": 2, "session": None, "rejected": [pay.likeness()]}}
    carried = judge.states.read("t", "/t", known, thread="t")
    part = run_blocking(functools.partial(judge.judge_late, judge.unjudged(carried, pay), read=True))
    (record,) = judge.states.read_part(judge.unjudged(carried, pay), part).records
    assert (record.text, record.requests) == (REJECTED_BEFORE, ())


@pytest.mark.filterwarnings("ignore:Setting attribute")
@pytest.mark.parametrize("how", ["tool", "tool and arguments", "rerouted", "in place", "by two"])
def test_middleware_inside_cannot_put_another_tool_or_call_in_place_of_what_was_cleared(how: str) -> None:
    turns = [says(0.99, call("look", at="x")) if how in ("rerouted", "by two") else PAYS[0], says(0.99)]
    inside: list[Any] = []
    process = Process("LangChain", InMemorySaver(), turns, inside=inside)
    paying = process.tools[0]

    def change(request: Any) -> Any:
        evil = {**request.tool_call, "args": dict(EVIL)}
        if how == "tool":
            return request.override(tool=copy.copy(paying))
        if how == "tool and arguments":
            return request.override(tool=paying, tool_call=evil)
        if how == "in place":
            request.tool = paying
            request.tool_call["args"].update(EVIL)
            return request
        return request.override(tool=paying, tool_call={**evil, "name": "pay"})

    stack = [Changing(change)]
    if how == "by two":
        stack = [Changing(lambda request: request.override(state=request.state)), *stack]
        stack[0].__class__ = type("Other", (Changing,), {})
    process = Process("LangChain", process.saver, turns, inside=stack)
    paying = process.tools[0]
    waiting = process.run()
    if waiting:
        process.resume(ann(waiting[0]))
    assert process.done == []


@both
def test_advice_goes_on_when_the_process_is_replaced_in_mid_turn(framework: str) -> None:
    saver = InMemorySaver()
    Process(framework, saver, LOOKS, seal=None, advisory=True).stop_after_the_model()
    other = Process(framework, saver, LOOKS, seal=None, advisory=True)
    assert other.go_on() == []
    assert (other.done, other.app.get_state(config("t")).next) == (["x", "y"], ())


GARBLED: dict[str, Callable[[Any], object]] = {
    "another version": lambda held: held["belief"].update(v=99),
    "belief a text": lambda held: held.update(belief="x"),
    "belief a list": lambda held: held.update(belief=[1]),
    "session a text": lambda held: held["belief"].update(session="x"),
    "state a list": lambda held: held["belief"]["session"].update(state=[]),
    "a number that is none": lambda held: into_state(held, cumulative="x"),
    "a state that is no text": lambda held: held["belief"]["session"]["state"].update(text=5),
    "a text that is no state": lambda held: held["belief"]["session"]["state"].update(text="[1]"),
    "a text without an end": lambda held: held["belief"]["session"]["state"].update(text="[" * 100_000),
    "values beside the text": lambda held: held["belief"]["session"]["state"].update(cumulative=1.0),
    "turns a text": lambda held: held["belief"].update(turns="x"),
    "rejected a number": lambda held: held["belief"].update(rejected=5),
    "repeats null": lambda held: held["belief"].update(repeats=None),
    "turn a text": lambda held: held.update(turn="x"),
    "calls a text": lambda held: held["turn"].update(calls="x"),
    "calls of nothing": lambda held: held["turn"].update(calls=[{}, 1]),
    "no calls": lambda held: held["turn"].pop("calls"),
    "no step": lambda held: held["turn"].pop("step_id"),
    "another step": lambda held: held["turn"]["calls"][0].update(step_id="llm_7"),
    "stopped": lambda held: held["turn"].update(stopped="x"),
    "settled": lambda held: held["turn"]["calls"][0].update(phase="settled", text="no"),
    "waiting": lambda held: held["turn"]["calls"][0].update(phase="waiting"),
    "a review": lambda held: held["turn"].update(review={}),
    "decided a number": lambda held: held.update(decided=5),
    "decided nothing": lambda held: held.update(decided=[1, {}]),
    "no belief": lambda held: held.pop("belief"),
    "no turn": lambda held: held.pop("turn"),
    "nothing": lambda held: held.clear(),
}


@sampled(
    "framework,advisory",
    [("LangGraph", True), ("LangChain", False)],
    full=list(itertools.product(["LangGraph", "LangChain"], [True, False])),
)
def test_a_garbled_channel_changes_no_advised_run_and_is_told_plainly_otherwise(framework: str, advisory: bool) -> None:
    found = {}
    for name, garble in GARBLED.items():
        saver = InMemorySaver()
        first = Process(framework, saver, LOOKS, advisory=advisory)
        first.stop_after_the_model()

        def change(channel: str, value: Any, garble: Callable[[Any], object] = garble) -> Any:
            if channel == KEY and value.get("turn") is not None:
                garble(value)
            return value

        rewrite(saver, change)
        other = Process(framework, saver, LOOKS, advisory=advisory)
        try:
            other.go_on()
        except GrampusError as error:
            if advisory:
                found[name] = repr(error)
        except Exception as error:  # noqa: BLE001 (that is what is looked for)
            found[name] = repr(error)
        else:
            if advisory and other.done != ["x", "y"]:
                found[name] = str(other.done)
    assert found == {}
