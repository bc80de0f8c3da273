"""What was concluded live is what a replay of the recording concludes, however little text was kept."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.recording import RecordingProcessor, find_run, validate
from grampus_uq.recording.replay import replay_file
from grampus_uq.records.values import Outcome, TokenLogprob, ToolCall
from grampus_uq.records.vocabulary import Effect

TEXTS = [
    'I am sure. {"confidence": 0.95}',
    "Perhaps it is this one, I am not certain.",
    "<confidence>20%</confidence> half an emoji \ud83d",
    "",
    "x" * 5000,
]


async def live(recorder: RecordingProcessor, rng: random.Random) -> UncertaintyMonitor:
    """Forty steps of all kinds; taken up again in the middle by another monitor, from a snapshot.

    The metadata are the user's own, whatever words they choose: a branch of a repository is not a branch of the run.
    """
    policy = UncertaintyPolicy(irreversible_tool_names=["delete"])
    monitor = UncertaintyMonitor(policy=policy, processors=[recorder])
    session = monitor.session("s1", "desk", model="m", metadata={"branch": "main"})
    for index in range(40):
        if index == 20:
            monitor = UncertaintyMonitor(policy=policy, processors=[recorder])
            own = {"branch": "mend", "alarmed": "no"}
            session = monitor.session("s1", "desk", snapshot=session.snapshot(), model="m", metadata=own)
        call = ToolCall(
            id=f"c{index}", name=rng.choice(["find_user", "delete_user"]), arguments={"card": "sk-live-secret"}
        )
        logprobs = [TokenLogprob(token="x", logprob=-rng.random())] if rng.random() < 0.5 else None
        await session.observe_llm_response(rng.choice(TEXTS), f"{index}", tool_calls=[call], logprobs=logprobs)
        effect = rng.choice([None, Effect.READ, Effect.IRREVERSIBLE])
        _, action = await session.observe_tool_call(call, f"{index}.0", effect=effect)
        session.observe_tool_result(call.id, "the card is sk-live-secret")
        if action.stops and rng.random() < 0.7:
            session.record_decision(
                "approve", principal="ana", step_id=f"{index}.0", call=call, message="card sk-live-secret"
            )
    session.finish(Outcome(success=False))
    return monitor


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("content", ["full", "hashed", "none"])
def test_a_replay_concludes_what_was_concluded_live(tmp_path: Path, content: Any, seed: int) -> None:
    with RecordingProcessor(tmp_path, content=content) as recorder:
        monitor = anyio.run(live, recorder, random.Random(seed))
        assert monitor.processor_failures == {}
    replayed = list(replay_file(recorder.path("s1"), monitor.profile))
    assert len(replayed) == 80
    assert all(step.same for step in replayed)
    assert len({step.assessment.level for step in replayed}) > 2
    assert any(step.assessment.action.stops for step in replayed)
    run = find_run(tmp_path, "s1")
    assert len(run.steps) == 80
    assert not run.went_back
    assert [report.findings for report in validate(tmp_path)] == [()]
    assert (b"sk-live-secret" in recorder.path("s1").read_bytes()) is (content == "full")


def test_a_replay_with_another_policy_concludes_something_else(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        monitor = anyio.run(live, recorder, random.Random(0))
    other = monitor.profile.model_copy(update={"policy": UncertaintyPolicy(low_threshold=0.99, medium_threshold=0.9)})
    assert not all(step.same for step in replay_file(recorder.path("s1"), other))
