"""The gate before a function tool of the OpenAI Agents SDK: what the tool is given, and which approvals open it."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")

from agents import Agent, FunctionTool, RunConfig, RunContextWrapper, Runner
from agents.tool_context import ToolContext

from grampus_uq import ApprovalKind, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.gate.gate import Gate
from grampus_uq.integrations.carried_calls import take_up, write_snapshot
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.integrations.settings import AdapterSettings
from tests.benchmarks.integrations_openai_agents import Canned

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
