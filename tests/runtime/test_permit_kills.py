"""SIGKILL among workers that share a permit: no label is lost or counted twice, and the log gives the stored state."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SQLITE = "sqlite:///{folder}/s.db"


def drive(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.runtime.permit_kills", url, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize(
    ("backend", "kills"),
    [
        *(pytest.param(b, 100, marks=[pytest.mark.kills, pytest.mark.timeout(1000)]) for b in ("sqlite", "postgres")),
        *(pytest.param(b, 5, marks=pytest.mark.slow) for b in ("sqlite", "postgres")),
    ],
)
def test_no_label_is_lost_or_counted_twice(backend: str, kills: int, request: pytest.FixtureRequest) -> None:
    url = SQLITE if backend == "sqlite" else str(request.getfixturevalue(f"{backend}_url"))
    finished = drive(url, "--kills", str(kills))
    assert finished.returncode == 0, finished.stderr
    print(finished.stdout)
    counts: dict[str, int] = json.loads(finished.stdout)
    assert counts["killed"] >= kills
    assert counts["answers"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_checks_notice_a_ticket_that_is_written_apart_from_the_state() -> None:
    """A kill has to fall between two writes: of so many campaigns one meets that moment."""
    for seed in range(1, 9):
        finished = drive(SQLITE, "--kills", "30", "--sabotage", "--seed", str(seed))
        if finished.returncode != 0:
            break
    assert finished.returncode != 0
    assert any(what in finished.stderr for what in ("labels were lost", "counted twice", "no ticket of its own"))
