"""Every adapter asks for the tools that the policy names, however sure the agent is, and says which names fit none."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq import ToolEffects, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langgraph import uncertainty_guard
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability
from grampus_uq.testing import AgentSetup, Decision, Ended, Paused
from grampus_uq.testing.agent_scene import DONE, PROMPT, SURE, play
from grampus_uq.testing.agent_script import read_ledger
from tests.integrations.matrix import ADAPTERS
from tests.sampling import crossed


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking(AgentSetup):
    """The conformance agent under a policy of its own."""

    always: tuple[str, ...] = ()
    irreversible: tuple[str, ...] = ()

    def monitor(self, **given: Any) -> UncertaintyMonitor | None:
        names = {"always_ask_tool_names": [*self.always], "irreversible_tool_names": [*self.irreversible]}
        policy = given.pop("policy", UncertaintyPolicy()).model_copy(update=names)
        return UncertaintyMonitor(policy=policy, **given)

    def ran(self) -> list[str]:
        return [line["name"] for line in read_ledger(self.folder) if line["kind"] == "tool"]


def lived(adapter: str, setup: Asking) -> tuple[Ended | Paused, list[str], Ended | Paused]:
    """Run to the first stop, approve what waits, and run on: both results, and what had run before the approval."""
    module, _, name = ADAPTERS[adapter].partition(":")
    build = getattr(importlib.import_module(module), name)

    async def live() -> tuple[Ended | Paused, list[str], Ended | Paused]:
        async with build(setup) as agent:
            first = await agent.run("s", PROMPT)
            before = setup.ran()
            if not isinstance(first, Paused):
                return first, before, first
            after: Ended | Paused = first
            while isinstance(after, Paused):  # a proxy sees no turn, and asks for the payment too
                after = await agent.resume("s", [Decision(said="approve", on=one) for one in after.pending])
            return first, before, after

    return anyio.run(live)


@crossed("adapter,spelt", list(ADAPTERS), ["look_up", "lookUp", "Look-Up"])
def test_a_tool_that_is_always_asked_for_waits_however_sure_the_agent_is(
    adapter: str, spelt: str, tmp_path: Path
) -> None:
    setup = Asking(folder=tmp_path, script=play(SURE), always=(spelt,))
    first, before, after = lived(adapter, setup)
    assert isinstance(first, Paused)
    assert [one.name for one in first.pending] == ["look_up"]
    assert before == []
    assert isinstance(after, Ended)
    assert after.output == DONE
    assert setup.ran() == ["look_up", "pay"]


@pytest.mark.parametrize("adapter", [name for name in ADAPTERS if name != "MCP proxy"])  # it learns names list by list
def test_a_name_in_the_policy_that_fits_no_tool_of_the_agent_is_logged_at_its_first_turn(
    adapter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Asking(folder=tmp_path, script=play(SURE), irreversible=(f"trasnfer_{adapter}", "Pay", "lookUp"))
    with caplog.at_level(logging.WARNING, logger="grampus_uq.monitor.session"):
        lived(adapter, setup)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "grampus_uq.monitor.session"]
    assert said.startswith(f"the policy protects ('trasnfer_{adapter}',), and none of the agent's tools is named so")
    assert "'look_up'" in said
    assert "'pay'" in said


@pytest.mark.parametrize("guard", [uncertainty_guard, UncertaintyGuard, UncertaintyCapability])
@pytest.mark.parametrize(
    ("policy", "given", "told"),
    [
        ({}, {}, True),
        ({}, {"advisory": True}, False),
        ({}, {"effects": ToolEffects({"pay": "irreversible"})}, False),
        ({"irreversible_tool_names": ["pay"]}, {}, False),
        ({"always_ask_tool_names": ["pay"]}, {}, False),
    ],
)
def test_a_guard_that_acts_and_was_told_of_no_irreversible_tool_says_so(
    guard: Any, policy: dict[str, Any], given: dict[str, Any], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    guard(UncertaintyMonitor(policy=UncertaintyPolicy(**policy)), **given)
    assert ("no tool counts as irreversible" in caplog.text) == told
