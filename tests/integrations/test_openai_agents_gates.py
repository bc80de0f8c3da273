"""The gate before a function tool of the OpenAI Agents SDK: what the tool is given, and which approvals open it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    RunContextWrapper,
    Runner,
    Usage,
    function_tool,
)
from agents.tool_context import ToolContext
from openai.types.responses import ResponseOutputItemDoneEvent

from grampus_uq import ApprovalKind, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.gate.gate import Gate
from grampus_uq.integrations.carried_calls import take_up, write_snapshot
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.testing import ScriptedTurn
from tests.benchmarks.integrations_openai_agents import Canned
from tests.integrations.agents_sdk import completed, output

CALL = ToolCall(id="c", name="pay", arguments={"to": "bob"})
seen: list[type] = []
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The SDK runs on asyncio only."""
    return "asyncio"


async def takes_the_tools_context(context: ToolContext[Any], text: str) -> str:
    seen.append(type(context))
    return str(json.loads(text)["query"])


async def takes_the_runs_context(context: RunContextWrapper[Any], text: str) -> str:
    seen.append(type(context))
    return str(json.loads(text)["query"])


async def declares_nothing(context, text):  # type: ignore[no-untyped-def]  # as users may write it
    seen.append(type(context))
    return str(json.loads(text)["query"])


@pytest.mark.parametrize("invoke", [takes_the_tools_context, takes_the_runs_context, declares_nothing])
async def test_a_gated_tool_is_given_the_context_that_it_declares(invoke: Any) -> None:
    """The SDK reads it from the invocation's signature."""
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    tool = FunctionTool(
        name="look_up",
        description="Look up.",
        params_json_schema={**schema, "additionalProperties": False},
        on_invoke_tool=invoke,
    )
    given, untraced = [], RunConfig(tracing_disabled=True)
    for watched in (False, True):
        seen.clear()
        agent = Agent[Any](name="clerk", model=Canned(2), tools=[tool])
        if watched:
            guard = UncertaintyGuard(UncertaintyMonitor(policy=UncertaintyPolicy()), advisory=False)
            await guard.run(agent, "go", session_id="s", run_config=untraced)
        else:
            await Runner.run(agent, "go", run_config=untraced)
        given.append(list(seen))
    assert given[0] == given[1] != []
    assert (given[0][0] is RunContextWrapper) == (invoke is takes_the_runs_context)


def held(snapshot: Any = None, **rules: Any) -> HeldCalls:
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
    return take_up(AdapterSettings(monitor=monitor, advisory=False), Gate(**rules), "s", "a", snapshot)


def test_a_number_in_place_of_a_sessions_name_is_refused_in_words() -> None:
    settings = AdapterSettings(monitor=UncertaintyMonitor(), advisory=False)
    with pytest.raises(ConfigurationError, match=r"Pass str\(session_id\)"):
        take_up(settings, Gate(), 17, "a")  # type: ignore[arg-type]


def test_a_policy_for_a_monitor_and_a_name_for_a_model_client_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match=r"Pass UncertaintyMonitor\(policy=…\)"):
        UncertaintyGuard(UncertaintyPolicy())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"open_model\(NAME\) makes one"):
        UncertaintyGuard(UncertaintyMonitor(), model_client="gpt-4o-mini")  # type: ignore[typeddict-item]


def test_a_text_that_is_no_paused_run_is_refused_by_its_field() -> None:
    with pytest.raises(DataError, match=r"^field 'v': not a paused run"):
        UncertaintyGuard(UncertaintyMonitor()).waiting("{}")


async def test_the_frameworks_own_approval_lets_a_waiting_call_through_once() -> None:
    calls = held()
    assert (await calls.judge(CALL)).waiting
    assert (await calls.release(CALL, principal="framework")).run
    assert not (await calls.release(CALL, principal="framework")).run


async def test_a_request_that_a_failed_precondition_renewed_is_not_answered_by_the_same_approval() -> None:
    calls = held(precondition=lambda _: "the invoice was paid already")
    (first,) = (await calls.judge(CALL)).requests
    calls.decide(first.decide(ApprovalKind.APPROVE, principal="ann"))
    released = await calls.release(CALL, principal="framework")
    assert not released.run
    assert [request.id for request in calls.requests()] == [released.request.id if released.request else None]
    assert [request.id for request in calls.requests()] != [first.id]


async def test_other_arguments_under_an_id_take_the_waiting_ones_place_and_leave_what_ran() -> None:
    calls = held()
    await calls.release(CALL, principal="framework")
    for to in ("eve", "mallory"):
        await calls.judge(ToolCall(id="c", name="pay", arguments={"to": to}))
    assert [request.call.arguments["to"] for request in calls.requests() if request.call] == ["mallory"]
    again = held(write_snapshot(calls))
    await again.judge(ToolCall(id="c", name="pay", arguments={"to": "carol"}))
    assert [request.call.arguments["to"] for request in again.requests() if request.call] == ["carol"]
    request = (await again.release(CALL, principal="framework")).request
    assert request is not None
    assert request.unknown_outcome  # it had started when its process ended


async def test_calls_with_empty_and_repeated_ids_are_told_apart() -> None:
    """Both frameworks refuse such answers themselves, today; two calls that are wholly equal are two as well."""
    calls = held()
    bob, eve = (ToolCall(id="", name="pay", arguments={"to": to}) for to in ("bob", "eve"))
    calls.propose([bob, eve, bob.model_copy()])
    for call in (bob, eve, bob.model_copy()):
        assert (await calls.judge(call)).waiting
    requests = calls.requests()
    assert [request.call.arguments["to"] for request in requests if request.call] == ["bob", "eve", "bob"]
    calls.decide(requests[0].decide("approve", principal="ann"))
    calls.decide(requests[2].decide("reject", principal="ann"))
    assert [(await calls.release(bob)).run, (await calls.release(bob)).run] == [True, False]
    assert (await calls.release(eve)).request == requests[1]


async def test_a_call_of_a_later_answer_is_another_one() -> None:
    calls = held()
    for _ in range(2):
        calls.propose([CALL])
        assert (await calls.judge(CALL)).waiting
        calls.decide(calls.requests()[0].decide("approve", principal="ann"))
        assert (await calls.release(CALL)).run
        assert (await calls.release(CALL)).answer is not None


# -- what the SDK itself makes of an answer ----------------------------------------------------------------------------


class Says(Model):
    """One answer with one call, then the end; streamed, with the items once or with the whole answer beside them."""

    def __init__(self, text: str, arguments: dict[str, Any], *, once: bool = False) -> None:
        turn = ScriptedTurn(text=text, calls=(ToolCall(id="c1", name="pay", arguments=arguments),))
        self._answers = [output(turn), output(ScriptedTurn(text="Done."))]
        self._once = once

    def _answer(self, items: Any) -> list[Any]:
        return self._answers[0 if isinstance(items, str) or len(items) == 1 else 1]

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        return ModelResponse(output=self._answer(input), usage=Usage(), response_id=None)

    async def stream_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        items: list[Any] = self._answer(input)
        for place, item in enumerate(items):
            yield ResponseOutputItemDoneEvent(
                type="response.output_item.done", item=item, output_index=place, sequence_number=place
            )
        yield completed([] if self._once else items)


def paying(model: Model, paid: list[Any], **approval: Any) -> Agent[Any]:
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    return Agent(name="a", model=model, tools=[function_tool(strict_mode=False, **approval)(pay)])


@given(confidence=st.sampled_from([0.05, 0.4, 0.7, 0.9, 0.99]))
@settings(max_examples=4, deadline=None)
@example(confidence=0.4)
async def test_an_answer_whose_items_are_streamed_once_is_read_as_any_other(confidence: float) -> None:
    """Some services leave the completed answer without its items: the SDK takes those that it saw."""
    found = []
    for once in (False, True):
        guard = UncertaintyGuard(UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"])))
        paid: list[Any] = []
        model = Says(f'I pay Bob now. {{"confidence": {confidence}}}', {"amount": 1}, once=once)
        result = guard.run_streamed(paying(model, paid), "Pay.", session_id="s")
        async for _ in result.stream_events():
            pass
        paused = await guard.pause(result)
        asked = [] if paused is None else [(one.rule, one.reason) for one in paused.requests]
        found.append((paid, asked, guard.watched(result).belief.total_steps))
    assert found[0] == found[1]


@given(amount=st.sampled_from([1, 900, "1", "900", True, 1.0, 900.0, None]), more=st.booleans())
@settings(max_examples=8, deadline=None)
@example(amount="900", more=False)
@example(amount=1, more=True)
async def test_an_approval_rule_of_the_tools_own_decides_as_without_a_guard(amount: Any, more: bool) -> None:
    """The rule is shown what the model wrote; the SDK asks by itself where the tool would read something else."""

    async def rule(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return isinstance(arguments.get("amount"), int) and arguments["amount"] > 100

    found = []
    for guarded in (None, True, False):
        paid: list[Any] = []
        model = Says("I pay Bob now.", {"amount": amount, **({"to": "eve"} if more else {})})
        agent = paying(model, paid, needs_approval=rule)
        if guarded is None:
            result = await Runner.run(agent, "Pay.")
        else:
            guard = UncertaintyGuard(UncertaintyMonitor(policy=UncertaintyPolicy()), advisory=guarded)
            result = await guard.run(agent, "Pay.", session_id="s")
        found.append((paid, len(result.interruptions)))
    assert found == [found[0]] * 3


async def test_what_a_tools_own_invoker_has_beside_its_call_is_left_alone() -> None:
    """The SDK asks its own invokers alone what a tool would read of a call."""

    class Pays:
        async def __call__(self, context: Any, text: str) -> str:
            return "paid"

        async def prepare_arguments(self, text: str, name: str) -> str:
            raise AssertionError("this is nobody's to call")

    async def never(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return False

    tool = FunctionTool(
        name="pay",
        description="Pay.",
        params_json_schema={"type": "object", "properties": {}},
        on_invoke_tool=Pays(),
        needs_approval=never,
        strict_json_schema=False,
    )
    agent = Agent[Any](name="a", model=Says("I pay.", {"amount": 1}), tools=[tool])
    result = await UncertaintyGuard(UncertaintyMonitor(), advisory=True).run(agent, "Pay.", session_id="s")
    assert [item.output for item in result.new_items if item.type == "tool_call_output_item"] == ["paid"]
