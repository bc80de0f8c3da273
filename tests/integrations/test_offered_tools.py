"""Signals see every tool that the model was offered, also those that end the run or hand it to another agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents import Agent, handoff
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.test import TestModel

from grampus_uq import Reading, Sensing, Step, UncertaintyMonitor
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability
from grampus_uq.records.protocols import SenseContext
from grampus_uq.records.vocabulary import MissingReason
from grampus_uq.testing import AgentSetup, ScriptedModel, ScriptedTurn
from tests.integrations.agents_sdk import FakeModel, tools


class Offered:
    """Keeps the names of the tools that it is shown."""

    source = "offered"

    def __init__(self) -> None:
        self.names: list[set[str]] = []

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        self.names.append({tool["function"]["name"] for tool in context.tools or ()})
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
async def test_the_agents_sdk_shows_the_agents_that_take_over(tmp_path: Path) -> None:
    setup, seen = AgentSetup(folder=tmp_path, script={"Pay.": [ScriptedTurn(text="Done.")]}), Offered()
    monitor = UncertaintyMonitor(sensing=Sensing(signals=[seen]))
    payer = Agent(name="payer", model=FakeModel(setup), tools=[*tools(setup)])
    front = Agent(name="front", model=FakeModel(setup), tools=[*tools(setup)[:1]], handoffs=[handoff(payer)])
    guard = UncertaintyGuard(monitor, advisory=True, model_client=setup.judge())
    await guard.run(front, "Pay.", session_id="s")
    assert seen.names == [{tools(setup)[0].name, "transfer_to_payer"}]
