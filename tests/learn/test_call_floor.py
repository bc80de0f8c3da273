"""A call floor from a model's own calls holds at most the wanted share of new ones, and is never below its bound."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import TokenLogprob, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn import call_floor_for_share
from grampus_uq.recording import RecordingProcessor
from grampus_uq.stats.selective import share_threshold
from tests.binomial import binomial_ceiling

POLICY = UncertaintyPolicy(irreversible_tool_names=["pay"], enable_p_true=False)


def share_held(seed: int, share: float, *, sabotaged: bool = False) -> bool:
    """Whether a new call of a model lies below the floor that 40 of its calls gave."""
    rng = np.random.default_rng(seed)
    calls = rng.beta(2, 2, size=41)
    floor = share_threshold(calls[:40], share)
    assert floor is not None
    return bool(calls[40] < (np.quantile(calls[:40], 2 * share) if sabotaged else floor))


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_at_most_the_share_of_new_calls_is_held_and_not_much_less(share: float) -> None:
    held = sum(share_held(seed, share) for seed in range(2_000))
    assert held <= binomial_ceiling(2_000, share)
    assert held >= 2_000 * (share - 1 / 41) - 4 * math.sqrt(2_000 * share)


def test_a_floor_that_is_too_high_breaks_that_promise() -> None:
    held = sum(share_held(seed, 0.2, sabotaged=True) for seed in range(2_000))
    assert held > binomial_ceiling(2_000, 0.2)


@given(st.lists(st.floats(0.0, 1.0), max_size=60), st.floats(0.01, 0.99))
def test_of_the_calls_themselves_no_more_lie_below_it_and_too_few_give_none(calls: list[float], share: float) -> None:
    floor = share_threshold(calls, share)
    if floor is None:
        assert len(calls) < 1.0 / share - 1.0 + 1e-6
        return
    assert 0.0 <= floor <= 1.0
    assert sum(call < floor for call in calls) <= share * (len(calls) + 1)


def record(folder: Path, odds: list[float | None], trials: int = 1, **given: Any) -> None:
    async def work() -> None:
        with RecordingProcessor(folder, **given) as recorder:
            for number, p in enumerate(odds):
                monitor = UncertaintyMonitor(policy=POLICY, processors=[recorder], advisory=True)
                session = monitor.session(f"r{number}", metadata={"task_id": f"t{number // trials}"})
                look = ToolCall(id="l", name="look", arguments={"at": 1})
                await session.observe_llm_response("", "0", tool_calls=[look], logprobs=written(look, 0.01))
                await session.observe_tool_call(look, "1", effect="read")
                call = ToolCall(id="c", name="pay", arguments={"amount": 5})
                logprobs = None if p is None else written(call, p)
                await session.observe_llm_response("", "2", tool_calls=[call], logprobs=logprobs)
                await session.observe_tool_call(call, "3")
                await session.observe_tool_call(call, "4")

    anyio.run(work)


def written(call: ToolCall, odds: float) -> list[TokenLogprob]:
    ((name, value),) = call.arguments.items()
    pieces = ((f'{{"name": "{call.name}", "arguments": {{"{name}": ', 1.0), (f"{value}", odds), ("}}", 1.0))
    return [TokenLogprob(token=text, logprob=math.log(p)) for text, p in pieces]


@pytest.mark.parametrize("content", ["full", "hashed", "none"])
def test_it_is_read_from_recordings_without_labels_and_calls_that_were_not_read_do_not_count(
    tmp_path: Path, content: Any
) -> None:
    odds = [0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95]
    record(tmp_path, [*odds, None, None], content=content)
    assert call_floor_for_share(tmp_path, 0.2, policy=POLICY) == pytest.approx(0.25)
    assert call_floor_for_share(tmp_path, 0.1, policy=POLICY, least=0.3) == 0.3
    assert call_floor_for_share(tmp_path, 0.05, policy=POLICY) is None, "nine calls say nothing of one in twenty"
    assert call_floor_for_share(tmp_path, 0.2) is None, "without the policy no call is known to be irreversible"
    for share, least in ((0.0, 0.1), (1.0, 0.1), (0.2, -0.1), (0.2, 1.1)):
        with pytest.raises(ConfigurationError):
            call_floor_for_share(tmp_path, share, least=least)


@pytest.mark.slow
@given(tasks=st.integers(1, 12), trials=st.integers(1, 6))
def test_trials_and_copies_set_no_more_of_a_floor_than_their_tasks_do(tasks: int, trials: int) -> None:
    odds: list[float | None] = [round(0.05 + 0.9 * task / 12, 3) for task in range(tasks) for _ in range(trials)]
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder, "runs"), odds, trials)
        shutil.copytree(Path(folder, "runs"), Path(folder, "runs", "copy"))
        found = call_floor_for_share(folder, 0.2, policy=POLICY, least=0.0, on_refused=lambda error: None)
    expected = share_threshold([p for p in odds[::trials] if p is not None], 0.2)
    assert found == (None if expected is None else pytest.approx(expected))
