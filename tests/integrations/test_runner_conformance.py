"""The package's own runner passes the checks that adapters must pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grampus_uq.testing import AgentLaboratory, Sentence, check_agent
from tests.integrations.runner_agent import RunnerAgent
from tests.integrations.sentences import parameters


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLaboratory]:
    with AgentLaboratory("tests.integrations.runner_agent:build", tmp_path_factory.mktemp("runner")) as laboratory:
        yield laboratory


@pytest.mark.parametrize("sentence", parameters("AgentRunner", RunnerAgent.offers))
def test_the_runner_keeps_every_sentence_that_it_can_be_asked(laboratory: AgentLaboratory, sentence: Sentence) -> None:
    finding = check_agent(laboratory, sentence)
    assert finding.holds is True, finding.detail
