"""The middleware for LangChain beside others: which answer was judged, added arguments, and what is handed outward."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ToolRetryMiddleware
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.tools import InjectedToolArg, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langchain import UncertaintyMiddleware, resume, waiting
from grampus_uq.testing import ScriptedModel
from tests.integrations.test_langchain_middleware import CONFIG, Model
from tests.sampling import examples

Middleware = AgentMiddleware[Any, Any, Any]


def says(sure: float, *calls: dict[str, Any]) -> AIMessage:
    return AIMessage(f"I go on. {sure}", tool_calls=[{"name": "pay", **call} for call in calls])


def guarded(
    pay: Any, turns: Sequence[AIMessage], outside: Sequence[Middleware] = (), inside: Sequence[Middleware] = ()
) -> Any:
    """An agent whose judge believes the number at the end of an answer."""

    def judge(messages: Sequence[Any], _: Any) -> str:
        judged = re.findall(r"I go on\. ([\d.]+)", "".join(message.content or "" for message in messages))
        return json.dumps({"p_true": float(judged[-1])})

    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
    guard = UncertaintyMiddleware(monitor, model_client=ScriptedModel(judge))
    model = Model(messages=iter(turns))
    return create_agent(model, [pay], middleware=[*outside, guard, *inside], checkpointer=InMemorySaver())


class Best(AgentMiddleware[Any, Any, Any]):
    """Asks the model for several answers, and takes one of them, as it is or written anew."""

    def __init__(self, answers: int, chosen: int, *, anew: bool = False) -> None:
        super().__init__()
        self.answers, self.chosen, self.anew = answers, chosen, anew

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        if any(message.type == "ai" for message in request.messages):
            return handler(request)
        answer = [handler(request) for _ in range(self.answers)][self.chosen]
        return AIMessage(answer.result[0].content) if self.anew else answer


class Given(AgentMiddleware[Any, Any, Any]):
    """Hands the model's answers outward under an id, as a message or as a chunk of one."""

    def __init__(self, own_id: str | None, *, chunk: bool) -> None:
        super().__init__()
        self.own_id, self.chunk = own_id, chunk

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        answer = handler(request).result[0]
        if self.own_id != "model's" and not any(message.type == "ai" for message in request.messages):
            answer.id = self.own_id
        if self.chunk:
            calls = [{**call, "args": json.dumps(call["args"]), "index": n} for n, call in enumerate(answer.tool_calls)]
            return AIMessageChunk(content=answer.content, id=answer.id, tool_call_chunks=calls)
        return answer


@settings(max_examples=examples(20))
@given(
    sure=st.lists(st.sampled_from([0.3, 0.99]), min_size=1, max_size=3),
    chosen=st.integers(0, 2),
    silent=st.sets(st.integers(0, 2)),
    same_call=st.booleans(),
    own_id=st.sampled_from(["model's", "m1", None]),
    chunk=st.booleans(),
)
@example(sure=[0.3, 0.99], chosen=0, silent={1}, same_call=False, own_id="model's", chunk=False)
@example(sure=[0.99], chosen=0, silent=set(), same_call=False, own_id="model's", chunk=False)
@example(sure=[0.3, 0.99], chosen=0, silent=set(), same_call=True, own_id="model's", chunk=False)
@example(sure=[0.3, 0.3, 0.99], chosen=0, silent=set(), same_call=True, own_id="m1", chunk=False)
@example(sure=[0.3, 0.99], chosen=0, silent=set(), same_call=True, own_id=None, chunk=False)
@example(sure=[0.3, 0.99], chosen=1, silent=set(), same_call=True, own_id="m1", chunk=True)
def test_a_call_runs_unasked_only_on_the_evidence_of_its_own_answer(
    sure: list[float], chosen: int, silent: set[int], same_call: bool, own_id: str | None, chunk: bool
) -> None:
    """Whichever of several judged answers another middleware takes; the `silent` ones hold no call.

    The last one's calls run, or wait, as if it were the only one.
    """
    chosen %= len(sure)
    silent -= {chosen}
    paid: list[int] = []

    def pay(number: int) -> str:
        """Pay."""
        paid.append(number)
        return "paid"

    numbers = [0 if same_call else n for n in range(len(sure))]
    calls: list[list[Any]] = [
        [] if n in silent else [{"args": {"number": m}, "id": f"c{m}"}] for n, m in enumerate(numbers)
    ]
    turns = [says(p, *calls) for p, calls in zip(sure, calls, strict=True)]
    app = guarded(pay, [*turns, says(0.99)], outside=[Best(len(sure), chosen)], inside=[Given(own_id, chunk=chunk)])
    app.invoke({"messages": [("user", "Pay.")]}, CONFIG)
    if sure[chosen] < 0.5:
        assert paid == []
        assert len(waiting(app.get_state(CONFIG))) == 1
    elif chosen == len(sure) - 1:
        assert paid == [numbers[chosen]]
    assert set(paid) <= {numbers[chosen]}


@settings(max_examples=15)
@given(
    sure=st.lists(st.sampled_from([0.1, 0.99]), min_size=1, max_size=3),
    chosen=st.integers(0, 2),
    own_id=st.sampled_from(["model's", "m1"]),
    anew=st.booleans(),
    said=st.sampled_from(["approve", "reject"]),
)
@example(sure=[0.1, 0.99], chosen=0, own_id="model's", anew=False, said="approve")
@example(sure=[0.99, 0.1], chosen=0, own_id="m1", anew=False, said="approve")
@example(sure=[0.1, 0.99], chosen=0, own_id="m1", anew=True, said="reject")
def test_an_answer_without_calls_is_reviewed_on_its_own_evidence(
    sure: list[float], chosen: int, own_id: str, anew: bool, said: Literal["approve", "reject"]
) -> None:
    """Once, whichever of several judged answers another middleware takes; on any of them, if it writes it anew."""
    chosen %= len(sure)
    turns = [says(p) for p in (*sure, 0.99)]
    app = guarded(print, turns, outside=[Best(len(sure), chosen, anew=anew)], inside=[Given(own_id, chunk=False)])
    app.invoke({"messages": [("user", "Pay.")]}, CONFIG)
    requests = waiting(app.get_state(CONFIG))
    assert len(requests) == ((min(sure) if anew else sure[chosen]) < 0.5)
    for request in requests:
        app.invoke(resume(app.get_state(CONFIG), [request.decide(said, principal="ann")]), CONFIG)
    assert waiting(app.get_state(CONFIG)) == []
    answers = [message.content for message in app.get_state(CONFIG).values["messages"] if message.type == "ai"]
    assert answers == [turns[chosen].content, *([turns[-1].content] if requests and said == "reject" else [])]


class Adds(AgentMiddleware[Any, Any, Any]):
    """Puts arguments beside those of the model, once the call was approved."""

    def __init__(self, **added: Any) -> None:
        super().__init__()
        self.added = added

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        call = request.tool_call
        return handler(request.override(tool_call={**call, "args": {**call["args"], **self.added}}))


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    to: str


@pytest.mark.parametrize("added", [{}, {"amount": 99}])
@pytest.mark.parametrize("schema", [Open, {"type": "object", "properties": {"to": {"type": "string"}}}, None])
def test_arguments_that_the_schema_does_not_name_are_arguments_all_the_same(schema: Any, added: Any) -> None:
    """What the framework itself gives a tool is none of them."""
    paid: list[Any] = []

    def pay(to: str, runtime: ToolRuntime, key: Annotated[str, InjectedToolArg] = "", **more: Any) -> str:
        """Pay."""
        paid.append((to, more.get("amount")))
        return f"paid in {runtime.config['configurable']['thread_id']}"

    pay_tool = StructuredTool.from_function(pay, name="pay", args_schema=schema)
    turns = [says(0.3, {"args": {"to": "bob"}, "id": "1"}), says(0.99)]
    app = guarded(pay_tool, turns, inside=[Adds(**added)])
    app.invoke({"messages": [("user", "Pay.")]}, CONFIG)
    (request,) = waiting(app.get_state(CONFIG))
    app.invoke(resume(app.get_state(CONFIG), [request.decide("approve", principal="ann")]), CONFIG)
    assert paid == ([] if added else [("bob", None)])


class Outside(AgentMiddleware[Any, Any, Any]):
    """Keeps what it is handed for a call."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        self.given.append(handler(request))
        return self.given[-1]


@settings(max_examples=8)
@given(said=st.sampled_from(["approve", "edit", "reject", "respond"]), command=st.booleans())
@example(said="edit", command=True)
@example(said="approve", command=False)
def test_middleware_outside_is_handed_what_the_tool_gave_and_the_decision_counts(said: str, command: bool) -> None:
    """A message stays a message, a command a command; the next turn knows what was decided."""

    def pay(to: str) -> Any:
        """Pay."""
        return Command(goto=[], update={"messages": [ToolMessage(f"paid {to}", tool_call_id="1")]}) if command else "ok"

    outside = Outside()
    app = guarded(pay, [says(0.3, {"args": {"to": "bob"}, "id": "1"}), says(0.99)], outside=[outside])
    app.invoke({"messages": [("user", "Pay.")]}, CONFIG)
    (request,) = waiting(app.get_state(CONFIG))
    more: Any = {"edit": {"arguments": {"to": "ann"}}, "respond": {"message": "Later."}}.get(said, {})
    app.invoke(resume(app.get_state(CONFIG), [request.decide(said, principal="ann", **more)]), CONFIG)
    ran = said in ("approve", "edit")
    assert [type(one) for one in outside.given] == [Command if command and ran else ToolMessage]
    values = app.get_state(CONFIG).values
    assert len(values["uncertainty"]["belief"]["rejected"]) == (said in ("edit", "reject"))
    assert values["messages"][1].tool_calls[0]["args"] == {"to": "ann" if said == "edit" else "bob"}


class Hides(AgentMiddleware[Any, Any, Any]):
    """Shows the model its own answers without text and arguments, as `ContextEditingMiddleware` does."""

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        bare = [
            message.model_copy(
                update={"content": "", "tool_calls": [{**call, "args": {}} for call in message.tool_calls]}
            )
            if message.type == "ai"
            else message
            for message in request.messages
        ]
        return handler(request.override(messages=bare))


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_an_edit_changes_nothing_else_in_the_transcript_whatever_middleware_shows_the_model(where: str) -> None:
    def pay(to: str) -> str:
        """Pay."""
        return "paid"

    turns = [says(0.3, {"args": {"to": "bob"}, "id": "1"}, {"args": {"to": "eve"}, "id": "2"}), says(0.99)]
    others: Any = {where: [Hides()]}
    app = guarded(pay, turns, **others)
    app.invoke({"messages": [("user", "Pay.")]}, CONFIG)
    bob, eve = waiting(app.get_state(CONFIG))
    said = [bob.decide("edit", principal="ann", arguments={"to": "zoe"}), eve.decide("approve", principal="ann")]
    app.invoke(resume(app.get_state(CONFIG), said), CONFIG)
    answer = app.get_state(CONFIG).values["messages"][1]
    assert answer.text == turns[0].text
    assert [call["args"] for call in answer.tool_calls] == [{"to": "zoe"}, {"to": "eve"}]


@pytest.mark.parametrize(("where", "questions"), [("inside", 1), ("outside", 2)])
def test_an_approved_call_that_raises_is_tried_again_unasked_only_behind_the_guard(where: str, questions: int) -> None:
    tried: list[str] = []

    def pay(to: str) -> str:
        """Pay."""
        tried.append(to)
        if len(tried) == 1:
            raise ConnectionError
        return "paid"

    others: Any = {where: [ToolRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)]}
    app = guarded(pay, [says(0.3, {"args": {"to": "bob"}, "id": "1"}), says(0.99)], **others)
    app.invoke({"messages": [("user", "Pay.")]}, CONFIG)
    for asked in range(questions):
        assert len(tried) == asked
        (request,) = waiting(app.get_state(CONFIG))
        app.invoke(resume(app.get_state(CONFIG), [request.decide("approve", principal="ann")]), CONFIG)
    assert (waiting(app.get_state(CONFIG)), tried) == ([], ["bob", "bob"])


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_call_that_a_stock_reviewer_edited_runs_only_as_the_guard_was_asked_about_it(where: str) -> None:
    """In front of the guard it is asked about; behind it the edited call is another one than was cleared."""
    paid: list[str] = []

    def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    others: Any = {where: [HumanInTheLoopMiddleware(interrupt_on={"pay": True})]}
    app = guarded(pay, [says(0.99, {"args": {"to": "bob"}, "id": "1"}), says(0.99)], **others)
    app.invoke({"messages": [("user", "Pay.")]}, CONFIG)
    edit = {"type": "edit", "edited_action": {"name": "pay", "args": {"to": "eve"}}}
    app.invoke(Command(resume={"decisions": [edit]}), CONFIG)
    asked = waiting(app.get_state(CONFIG))
    assert ([request.call and request.call.arguments for request in asked], paid) == ([{"to": "eve"}][: len(asked)], [])
    for request in asked:
        app.invoke(resume(app.get_state(CONFIG), [request.decide("approve", principal="ann")]), CONFIG)
    assert paid == (["eve"] if where == "outside" else [])
