"""Signals see every tool that the model was offered, also those that end the run or hand it to another agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents import Agent, HostedMCPTool, handoff
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.native_tools import MCPServerTool

from grampus_uq import Reading, Sensing, Step, UncertaintyMonitor
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability
from grampus_uq.records.protocols import SenseContext
from grampus_uq.records.vocabulary import MissingReason
from grampus_uq.signals.quoting import is_function
from grampus_uq.testing import AgentSetup, ScriptedModel, ScriptedTurn
from tests.integrations.agents_sdk import FakeModel, tools


class Offered:
    """Keeps the names of the tools that it is shown, and the kinds of those that a provider runs."""

    source = "offered"

    def __init__(self) -> None:
        self.names: list[set[str]] = []
        self.others: list[str] = []

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        tools = context.tools or ()
        self.names.append({tool["function"]["name"] for tool in tools if is_function(tool)})
        self.others += [tool["type"] for tool in tools if not is_function(tool)]
        return Reading(source=self.source, value=None, reason=MissingReason.NOT_NEEDED)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Report(BaseModel):
    total: float


@pytest.mark.anyio
async def test_pydantic_ai_shows_the_tool_by_which_a_run_ends() -> None:
    seen = Offered()
    monitor = UncertaintyMonitor(sensing=Sensing(signals=[seen]))
    judge = ScriptedModel(lambda messages, options: '{"p_true": 0.9}')
    guard = UncertaintyCapability(monitor, advisory=True, model_client=judge)
    agent = PydanticAgent(TestModel(), output_type=Report, capabilities=[guard])

    @agent.tool_plain
    def look(order: str) -> str:
        return f"{order} is paid"

    await agent.run("Sum up.")
    assert seen.names
    assert all(names == {"look", "final_result"} for names in seen.names)


@pytest.mark.anyio
@pytest.mark.parametrize("sdk", [False, True])
async def test_what_a_provider_runs_is_shown_as_no_function_because_it_brings_names_of_its_own(
    sdk: bool, tmp_path: Path
) -> None:
    setup, seen = AgentSetup(folder=tmp_path, script={"Pay.": [ScriptedTurn(text="Done.")]}), Offered()
    monitor = UncertaintyMonitor(sensing=Sensing(signals=[seen]))
    judge = ScriptedModel(lambda messages, options: '{"p_true": 0.9}')
    if sdk:
        guard = UncertaintyGuard(monitor, advisory=True, model_client=judge)
        hosted = HostedMCPTool({"type": "mcp", "server_label": "shop", "require_approval": "never"})
        await guard.run(Agent(name="a", model=FakeModel(setup), tools=[*tools(setup), hosted]), "Pay.", session_id="s")
        assert (seen.names, seen.others) == ([{one.name for one in tools(setup)}], ["hosted_mcp"])
        return
    model = FunctionModel(
        lambda messages, info: ModelResponse([TextPart("Done.")]),
        profile={"supported_native_tools": frozenset({MCPServerTool})},
    )
    capability = UncertaintyCapability(monitor, advisory=True, model_client=judge)
    shop = NativeTool(MCPServerTool(id="shop", url="https://shop.example"))
    await PydanticAgent(model, capabilities=[capability, shop]).run("Pay.")
    assert (seen.names, seen.others) == ([set()], ["native"])


@pytest.mark.anyio
async def test_the_agents_sdk_shows_the_agents_that_take_over(tmp_path: Path) -> None:
    setup, seen = AgentSetup(folder=tmp_path, script={"Pay.": [ScriptedTurn(text="Done.")]}), Offered()
    monitor = UncertaintyMonitor(sensing=Sensing(signals=[seen]))
    payer = Agent(name="payer", model=FakeModel(setup), tools=[*tools(setup)])
    front = Agent(name="front", model=FakeModel(setup), tools=[*tools(setup)[:1]], handoffs=[handoff(payer)])
    guard = UncertaintyGuard(monitor, advisory=True, model_client=setup.judge())
    await guard.run(front, "Pay.", session_id="s")
    assert seen.names == [{tools(setup)[0].name, "transfer_to_payer"}]
