"""The package's own runner passes the checks that adapters must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from grampus_uq.testing import Act, AgentLaboratory, AgentSetup, Sentence, check_agent
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


@asynccontextmanager
async def hanging(setup: AgentSetup) -> AsyncIterator[RunnerAgent]:
    """A harness whose agent is never ready in the folder "hangs"."""
    await anyio.sleep(60.0 if setup.folder.name == "hangs" else 0.0)
    yield RunnerAgent(setup)


@pytest.mark.slow
def test_an_agent_that_hangs_fails_its_own_check_alone(tmp_path: Path) -> None:
    with AgentLaboratory("tests.integrations.test_runner_conformance:hanging", tmp_path, timeout_s=20.0) as laboratory:
        laboratory._timeout_s = 0.5
        with pytest.raises(AssertionError, match="did not answer within"):
            laboratory.live(tmp_path / "hangs", {}, Act(do="run", session="s", prompt="Pay."))
        laboratory._timeout_s = 20.0
        assert laboratory.live(tmp_path / "works", {}).results == ()


@pytest.mark.slow
def test_a_framework_that_is_not_loaded_in_time_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="said nothing for"):
        AgentLaboratory("tests.integrations.runner_agent:build", tmp_path, timeout_s=0.01)
