"""Writers that are killed, and writers side by side: nothing written is lost, and every file is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from grampus_uq.recording import PartialLine, read
from grampus_uq.records.events import StepEvent
from tests.sampling import sampled

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks its writers")


def run(*arguments: object) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "tests.recording.writer_process", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def counts(path: Path, torn: list[PartialLine]) -> dict[str, int]:
    """Steps of each writer; raises when a writer's steps are out of order or one is missing between others."""
    found: dict[str, int] = defaultdict(int)
    if path.exists():
        for event in read(path, on_partial_line=torn.append):
            assert isinstance(event, StepEvent)
            assert event.assessment.index == found[event.agent_id]
            found[event.agent_id] += 1
    return found


def lost(path: Path, lives: list[dict[str, object]], torn: list[PartialLine]) -> int:
    """How many steps that a writer was told were written are not in the file."""
    found = counts(path, torn)
    return sum(max(0, int(str(life["written"])) - found[str(life["writer"])]) for life in lives)


def kill(folder: Path, kind: str, lives: int) -> tuple[int, int, list[PartialLine]]:
    """Kill a writer again and again on one session; return steps lost, steps written, pieces left in the file."""
    told = run("kill", folder, "s1", kind, lives, 1)
    torn: list[PartialLine] = []
    missing = lost(folder / "s1.jsonl", told, torn)
    return missing, sum(int(str(life["written"])) for life in told), torn


@sampled("kind", ["none"], full=["none", "every"])
def test_a_writer_killed_ten_times_loses_nothing(tmp_path: Path, kind: str) -> None:
    missing, written, _ = kill(tmp_path, kind, 10)
    assert written > 0
    assert missing == 0


@pytest.mark.slow
@sampled("kills", [10], full=[30])
def test_a_writer_beside_killed_ones_loses_nothing_and_their_pieces_are_told_apart(tmp_path: Path, kills: int) -> None:
    missing, written, torn = kill(tmp_path, "beside", kills)
    assert written > kills
    assert missing == 0
    assert all(piece.data for piece in torn)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "every"])
def test_a_writer_killed_two_hundred_times_loses_nothing(tmp_path: Path, kind: str) -> None:
    missing, written, _ = kill(tmp_path, kind, 200)
    assert written > 200
    assert missing == 0


@pytest.mark.slow
def test_the_kills_would_show_a_writer_that_keeps_lines_in_memory(tmp_path: Path) -> None:
    told = run("kill", tmp_path, "s1", "buffered", 10, 1)
    data = (tmp_path / "s1.jsonl").read_bytes() if (tmp_path / "s1.jsonl").exists() else b""
    assert data.count(b'{"v":1,') < sum(int(str(life["written"])) for life in told)


@sampled("writers", [2], full=[2, 4])
def test_processes_that_write_one_session_at_once_never_mix_their_lines(tmp_path: Path, writers: int) -> None:
    told = run("together", tmp_path, "s1", "none", writers, 150)
    assert [life["written"] for life in told] == [150] * writers
    torn: list[PartialLine] = []
    assert counts(tmp_path / "s1.jsonl", torn) == {str(writer): 150 for writer in range(writers)}
    assert not torn
