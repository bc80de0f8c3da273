"""An agent that knows nothing of this package, behind the MCP proxy, passes the checks that adapters must pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grampus_uq.testing import AgentLaboratory, Sentence, check_agent
from tests.integrations.mcp_proxy_agent import ProxiedAgent
from tests.integrations.sentences import parameters


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLaboratory]:
    with AgentLaboratory("tests.integrations.mcp_proxy_agent:build", tmp_path_factory.mktemp("mcp")) as laboratory:
        yield laboratory


@pytest.mark.parametrize("sentence", parameters("MCP proxy", ProxiedAgent.offers, ProxiedAgent.lacks))
def test_an_agent_behind_the_proxy_keeps_every_sentence_that_it_can_be_asked(
    laboratory: AgentLaboratory, sentence: Sentence
) -> None:
    finding = check_agent(laboratory, sentence)
    assert finding.holds is True, finding.detail
