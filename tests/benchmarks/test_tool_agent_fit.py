"""The benchmark of what a profile learns of calls: signal that was put in is found, and none is found in noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import tool_agent_fit
from tests.benchmarks.test_tool_agent import record

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.anyio
async def test_wrong_calls_that_look_doubtful_are_ranked_and_held_and_noise_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    wrong = rng.random(80) < 0.4
    telling = [(bool(bad), float((0.2 if bad else 0.7) + 0.25 * rng.random())) for bad in wrong]
    noise = [(bool(bad), float(0.2 + 0.75 * rng.random())) for bad in wrong]
    for name, runs in (("telling", telling), ("noise", noise)):
        await record(tmp_path / name, runs)
    tool_agent_fit.main([str(tmp_path / "telling"), str(tmp_path / "noise"), "--splits=3", "--draws=100", "--json"])
    rows: dict[Any, Any] = {(r["set"], r["what"]): r for r in json.loads(capsys.readouterr().out)["rows"]}
    found = rows["telling", "p_success"]
    assert (found["n"], found["learned_from"], found["auroc"]) == (80, 40, 1.0)
    assert 0.6 < found["stopped_at_30"] <= 1.0
    assert rows["telling", "detector at 0.1"]["low"] > 0.5
    assert rows["telling", "budget of 0.3"]["low"] > 0.3
    assert rows["noise", "p_success"]["low"] < 0.5 < rows["noise", "p_success"]["high"]
    assert rows["noise", "detector at 0.1"]["low"] < 0.0 < rows["noise", "detector at 0.1"]["high"]
