"""The guard for LangGraph keeps every conformance sentence: async, sync, and with a tools' node of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grampus_uq.testing import SENTENCES, AgentLaboratory, Sentence, check_agent
from tests.integrations.sentences import parameters

harness = pytest.importorskip(
    "tests.integrations.langgraph_agent", reason="the extra langgraph is not installed", exc_type=ImportError
)


def laboratory_of(build: str, folder: Path) -> AgentLaboratory:
    return AgentLaboratory(f"tests.integrations.langgraph_agent:{build}", folder)


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLaboratory]:
    with laboratory_of("build", tmp_path_factory.mktemp("langgraph")) as laboratory:
        yield laboratory


@pytest.mark.parametrize("sentence", parameters("LangGraph", harness.GraphAgent.offers))
def test_the_guard_keeps_the_sentence(laboratory: AgentLaboratory, sentence: Sentence) -> None:
    finding = check_agent(laboratory, sentence)
    assert finding.holds, finding.detail


@pytest.mark.slow
@pytest.mark.parametrize("build", ["build_sync", "build_own_tools"])
def test_so_does_every_other_way_of_wiring_it(build: str, tmp_path: Path) -> None:
    with laboratory_of(build, tmp_path) as laboratory:
        findings = [check_agent(laboratory, sentence) for sentence in SENTENCES]
    assert [(f.sentence.name, f.detail) for f in findings if f.holds is False] == []
