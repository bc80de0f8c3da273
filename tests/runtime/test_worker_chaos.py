"""Workers die, their database too, and their clocks disagree: every approved call runs once, and every run ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def campaign(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.runtime.worker_chaos", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_500, check=False)


def report(finished: subprocess.CompletedProcess[str], *, runs: int, kills: int) -> None:
    assert finished.returncode == 0, finished.stderr[-2_000:]
    print(finished.stdout)
    counts: dict[str, int] = json.loads(finished.stdout)
    assert counts["runs"] >= runs
    assert counts["killed"] >= kills
    assert counts["database restarts"] == 2
    assert 0 < counts["sent"] < counts["runs"]  # some were rejected


@pytest.mark.kills
@pytest.mark.timeout(1_600)
def test_ten_minutes_of_killed_workers_and_restarted_databases_lose_nothing_and_run_nothing_twice() -> None:
    report(campaign("--seconds", "600"), runs=500, kills=300)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sample_of_the_campaign() -> None:
    report(campaign("--seconds", "20", "--kill-every", "2", "--rate", "5", "--least-runs", "20"), runs=20, kills=3)


@pytest.mark.kills
@pytest.mark.timeout(900)
def test_the_checks_notice_workers_that_run_a_call_of_unknown_outcome_again() -> None:
    finished = campaign("--seconds", "120", "--sabotage")
    assert finished.returncode != 0
    assert "times" in finished.stderr
