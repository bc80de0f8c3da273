"""LangGraph on the embedded model, through its OpenAI-compatible HTTP server: real text, real log-probabilities.

SmolLM2 cannot call tools, so the calls come from a script; what the agent says, and what the monitor is told, is real.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grampus_uq.recording import read
from grampus_uq.records.events import DecisionEvent, StepEvent
from grampus_uq.records.vocabulary import MissingReason

pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")
pytest.importorskip("langgraph.checkpoint.sqlite", reason="the extra langgraph is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def life(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.integrations.langgraph_embedded", str(folder), what]
    return subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=280, check=False
    )


def test_a_real_answer_is_read_held_back_and_published_once_by_another_process(tmp_path: Path) -> None:
    first = life(tmp_path, "run")
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert first.stdout.split() == ["1"]
    published = tmp_path / "published.txt"
    assert not published.exists()
    second = life(tmp_path, "approve")
    assert second.returncode == 0, second.stderr
    assert second.stdout.split() == ["0"]
    assert len(published.read_text().splitlines()) == 1
    assert "Paris" in published.read_text()
    (file,) = (tmp_path / "runs").glob("*.jsonl")
    events = list(read(file))
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert [step.assessment.index for step in steps] == [0, 1, 2]
    turns = [step for step in steps if step.step.kind == "llm_call"]
    for turn in turns:
        found = {reading.source: reading for reading in turn.readings}
        assert found["token_probability"].value is not None, found
        if turn.step.tool_calls:
            assert found["p_true"].value is not None, found
            assert 0.0 < found["p_true"].value < 1.0  # a mass of probability that the model reported, no round number
        else:  # an answer in words whose tokens tell how sure the model was
            assert found["p_true"].reason == MissingReason.NOT_NEEDED, found
    assert turns[0].step.text.startswith("hmac:")  # a recording keeps no content unless it is told to
    assert [event.decision for event in events if isinstance(event, DecisionEvent)] == ["approve"]
