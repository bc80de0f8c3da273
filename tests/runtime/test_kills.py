"""SIGKILL wherever it matters: nothing is lost, we execute nothing twice, the audit says what is unknown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def drive(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.runtime.kill_driver", url, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)


def report(finished: subprocess.CompletedProcess[str]) -> dict[str, int]:
    assert finished.returncode == 0, finished.stderr
    print(finished.stdout)
    counts: dict[str, int] = json.loads(finished.stdout)
    return counts


@pytest.mark.timeout(1600)
def test_two_hundred_kills_on_sqlite_lose_nothing_and_run_nothing_twice() -> None:
    counts = report(drive("sqlite:///{folder}/s{n}.db", "--kills", "200", "--seed", "1"))
    assert counts["killed"] >= 200
    assert counts["unknown"] > 0  # the hard case was met
    for place in ("tool_before", "tool_during", "tool_after", "before", "after"):
        assert counts[f"killed resume {place}"] > 0


@pytest.mark.timeout(900)
def test_kills_on_postgres(postgres_url: str) -> None:
    assert report(drive(postgres_url, "--kills", "40", "--seed", "2"))["killed"] >= 40


@pytest.mark.timeout(900)
def test_kills_on_redis(redis_url: str) -> None:
    assert report(drive(redis_url, "--kills", "40", "--seed", "3"))["killed"] >= 40


def test_the_checks_notice_a_runner_that_runs_a_call_again() -> None:
    finished = drive("sqlite:///{folder}/s{n}.db", "--kills", "150", "--seed", "1", "--sabotage")
    assert finished.returncode != 0
    assert "executed 2 times" in finished.stderr
