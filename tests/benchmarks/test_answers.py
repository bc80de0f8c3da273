"""The benchmark of answers: a set whose figures are known, and what is counted as the monitor's tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import anyio
import pytest

from grampus_uq import Effect, Message, Outcome, Role, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.recording import RecordingProcessor
from grampus_uq.testing import ScriptedModel, answer
from tests.benchmarks import answers


async def record(folder: Path) -> None:
    """Right answers are written surely and judged badly, wrong ones the other way round."""
    recording = RecordingProcessor(folder, content="full")
    policy = UncertaintyPolicy(call_floor=None)
    monitor = UncertaintyMonitor(policy=policy, advisory=True, processors=[recording])
    for number in range(12):
        right = number % 2 == 0
        session = monitor.session(f"s{number}", model="m", metadata={"topic": "capitals"})
        written = [{"token": "Paris", "logprob": math.log((0.9 if right else 0.3) + number / 1000)}]
        await session.observe_llm_response(
            "Paris",
            "answer",
            prompt_messages=[Message(role=Role.USER, content="Capital?")],
            model_client=ScriptedModel(answer("0.2" if right else "0.9", usage=(40, 10))),
            logprobs=written,
            usage={"input_tokens": 8, "output_tokens": 2, "total_tokens": 10},
        )
        call = ToolCall(id="p", name="publish", arguments={"text": "Paris"})
        await session.observe_tool_call(call, "publish", effect=Effect.IRREVERSIBLE)
        session.finish(Outcome(success=right))
    recording.close()


def test_the_default_pays_for_nothing_and_goes_by_the_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anyio.run(record, tmp_path / "set")
    answers.main([str(tmp_path / "set"), "--draws", "50", "--json"])
    rows = {(row["set"], row["score"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    default, asked = rows["set", "default"], rows["set", "asked"]
    assert (default["auroc"], default["times_agent"], default["held_wrong"], default["held_right"]) == (1, 1, 1, 0)
    assert asked["auroc"] == 0
    assert asked["times_agent"] == 6  # 10 tokens of the agent's, 50 of the monitor's
    assert rows["set", "claim_probability"]["default_minus"] == 0
    assert rows["set", "p_true"]["auroc"] == 0
