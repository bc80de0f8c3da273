"""SIGKILL wherever it matters: nothing unapproved, twice or lost, and nobody stands still for longer than a lease."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SQLITE = "sqlite:///{folder}/s{n}.db"


def drive(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.runtime.kill_driver", url, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)


def report(finished: subprocess.CompletedProcess[str], kills: int) -> None:
    assert finished.returncode == 0, finished.stderr
    print(finished.stdout)
    counts: dict[str, int] = json.loads(finished.stdout)
    assert counts["killed"] >= kills
    assert counts["unknown"] > 0  # the hard case was met
    assert 0.3 * kills < counts["inside"] < 0.7 * kills


@pytest.mark.kills
@pytest.mark.timeout(1600)
@pytest.mark.parametrize(("backend", "kills"), [("sqlite", 300), ("postgres", 150), ("redis", 150)])
def test_hundreds_of_kills_lose_nothing_and_run_nothing_twice_or_unapproved(
    backend: str, kills: int, request: pytest.FixtureRequest
) -> None:
    url = SQLITE if backend == "sqlite" else str(request.getfixturevalue(f"{backend}_url"))
    report(drive(url, "--kills", str(kills), "--seed", "1"), kills)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["sqlite", "postgres", "redis"])
def test_a_sample_of_kills(backend: str, request: pytest.FixtureRequest) -> None:
    url = SQLITE if backend == "sqlite" else str(request.getfixturevalue(f"{backend}_url"))
    report(drive(url, "--kills", "30", "--seed", "2"), 30)


@pytest.mark.slow
def test_the_checks_notice_a_runner_that_runs_a_call_again() -> None:
    finished = drive(SQLITE, "--kills", "150", "--seed", "1", "--sabotage")
    assert finished.returncode != 0
    assert "executed 2 times" in finished.stderr
