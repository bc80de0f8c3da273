"""No drill runs, however often the processes that make, answer and resume are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.drill_kills import campaign, check


@pytest.mark.slow
def test_no_drill_runs_while_processes_are_killed(tmp_path: Path) -> None:
    found = campaign(tmp_path, drills=60, kills=5)
    check(found)
    assert found.answered >= 60
    assert found.kills == 5


@pytest.mark.kills
@pytest.mark.timeout(14_400)
def test_no_drill_of_ten_thousand_runs_while_processes_are_killed_five_hundred_times(tmp_path: Path) -> None:
    found = campaign(tmp_path, drills=10_000, kills=500)
    check(found)
    assert found.answered >= 10_000
    assert found.kills == 500
