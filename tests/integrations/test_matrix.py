"""The table of docs/integrations.md is what the checks find, and the checks can fail."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from grampus_uq.testing import SENTENCES, AgentLaboratory, CheckResult, check_agent
from tests.integrations.matrix import ADAPTERS, STOCK, findings, on_page, section, table
from tests.integrations.sentences import ASKED, KNOWN_FALSE

NAIVE = "LangGraph: monitor and interrupt() in one node"


ASKED_IN = {
    "LangGraph": "test_langgraph_conformance",
    "LangChain": "test_langchain_conformance",
    "OpenAI Agents SDK": "test_openai_agents",
    "pydantic-ai": "test_pydantic_ai",
    "AgentRunner": "test_runner_conformance",
    "MCP proxy": "test_mcp_proxy_conformance",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_shows_what_the_checks_find(tmp_path: Path) -> None:
    """Each adapter is asked in a test of its own, sentence by sentence; here it is only seen that all are asked."""
    adapters = {name: answered_elsewhere(name, tmp_path / name) for name in ADAPTERS}
    for name, module in ASKED_IN.items():
        importlib.import_module(f"tests.integrations.{module}")
        assert ASKED[name] == [one.sentence.name for one in adapters[name] if one.holds is not None]
    assert section(adapters, findings(STOCK, tmp_path / "stock")) == on_page(), (
        "python -m tests.integrations.matrix --write"
    )


def answered_elsewhere(adapter: str, folder: Path) -> list[CheckResult]:
    """What the checks find if the adapter's own test passes; what it cannot be asked is found here."""
    with AgentLaboratory(ADAPTERS[adapter], folder) as laboratory:
        found = [check_agent(laboratory, replace(one, check=lambda scene: "")) for one in SENTENCES]
    known = KNOWN_FALSE.get(adapter, {})
    return [replace(one, holds=False) if one.holds and one.sentence.name in known else one for one in found]


@pytest.mark.slow
def test_the_checks_notice_a_guard_that_pays_twice_and_takes_any_approval(tmp_path: Path) -> None:
    (column,) = findings({NAIVE: STOCK[NAIVE]}, tmp_path).values()
    found = {finding.sentence.name: finding for finding in column}
    assert found["approved_elsewhere"].holds is False
    assert "paid more than once" in found["approved_elsewhere"].detail
    assert "counted twice" in found["belief_continues"].detail
    assert '"mallory"' in found["other_arguments_refused"].detail


def test_the_page_has_a_row_for_every_sentence_and_a_column_for_every_way() -> None:
    shown = on_page()
    adapters, _, stock = shown.partition("With the framework's own approval:")
    assert all(adapters.count(f"| {sentence.text} |") == 1 for sentence in SENTENCES)
    assert "| - | - | - | - | - |" not in stock  # of these sentences the notes below the table tell
    for columns in (ADAPTERS, STOCK):
        nothing = {name: [CheckResult(sentence=sentence, holds=None) for sentence in SENTENCES] for name in columns}
        assert table(nothing).splitlines()[0] in shown
