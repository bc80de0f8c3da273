"""The middleware for LangChain keeps every conformance sentence, awaited and blocking."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grampus_uq.testing import SENTENCES, AgentLaboratory, Sentence, check_agent
from tests.integrations.sentences import parameters

harness = pytest.importorskip(
    "tests.integrations.langchain_agent", reason="the extra langchain is not installed", exc_type=ImportError
)


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLaboratory]:
    folder = tmp_path_factory.mktemp("langchain")
    with AgentLaboratory("tests.integrations.langchain_agent:build", folder) as laboratory:
        yield laboratory


@pytest.mark.parametrize("sentence", parameters("LangChain", harness.ChainAgent.offers))
def test_the_middleware_keeps_the_sentence(laboratory: AgentLaboratory, sentence: Sentence) -> None:
    finding = check_agent(laboratory, sentence)
    assert finding.holds, finding.detail


@pytest.mark.slow
def test_so_do_its_blocking_twins(tmp_path: Path) -> None:
    with AgentLaboratory("tests.integrations.langchain_agent:build_sync", tmp_path) as laboratory:
        findings = [check_agent(laboratory, sentence) for sentence in SENTENCES]
    assert [(f.sentence.name, f.detail) for f in findings if f.holds is False] == []
