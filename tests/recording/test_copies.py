"""A run counts once, in however many folders, files and states it lies; runs that differ count each."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.cli import _group
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.learn.evaluate import read_recordings
from grampus_uq.learn.profiles.labelled import labelled_runs
from grampus_uq.recording import Label, encode, label, pack
from grampus_uq.recording.copies import copies, distinct_runs
from grampus_uq.recording.kept_content import redact
from grampus_uq.recording.runs import Run
from grampus_uq.records.events import Event, OutcomeEvent
from grampus_uq.records.values import Outcome
from tests.learn.evaluate.recorded import events, many, write
from tests.sampling import examples

MADE = many(6, np.random.default_rng(0))
TOLD = Outcome(success=True, labelled_by="reviewer", time_s=9.0)


def labelled(made: list[Event], outcome: Outcome = TOLD) -> list[Event]:
    return [*made, OutcomeEvent(session_id=made[0].session_id, agent_id="a", outcome=outcome)]


STATES = {
    "whole": lambda made: made,
    "broken off": lambda made: made[: len(made) // 2 + 1],
    "labelled": labelled,
    "labelled otherwise": lambda made: labelled(made, replace(TOLD, labelled_by="another")),
    "labelled twice": lambda made: labelled(labelled(made)),
    "hashed": lambda made: [redact(event, "hashed", b"k" * 32) for event in made],
    "written by another hand": lambda made: made,
}
places = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(sorted(STATES)), st.integers(0, 3)), max_size=12)


def lay(folder: Path, chosen: list[tuple[int, str, int]]) -> None:
    """Every run whole in the folder `own`, and what was chosen in others, several runs in a file."""
    for number, made in enumerate(MADE):
        write(folder / "own" / f"{number}.jsonl", made)
    files: dict[int, dict[int, str]] = {}
    for number, state, other in chosen:
        files.setdefault(other, {})[number] = state
    for other, inside in files.items():
        lines = [
            encode(event).replace(b'"session_id":', b'"session_id" : ')
            if state == "written by another hand"
            else encode(event)
            for number, state in inside.items()
            for event in STATES[state](MADE[number])
        ]
        (folder / f"copy{other}").mkdir()
        (folder / f"copy{other}" / "some.jsonl").write_bytes(b"".join(lines))


def said(run: Run) -> list[Event]:
    return [event for event in run.events if not (isinstance(event, OutcomeEvent) and event.outcome.labelled_by)]


@settings(max_examples=examples(40), deadline=None)
@given(chosen=places)
def test_whatever_is_copied_in_whatever_state_each_run_is_read_once_whole_and_with_the_labels_of_one(
    chosen: list[tuple[int, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("copies")
    lay(folder, chosen)
    named: list[DataError] = []
    found = sorted(distinct_runs(folder, on_refused=named.append), key=lambda run: run.session_id)
    assert [said(run) for run in found] == MADE
    last = {(number, other): state for number, state, other in chosen}
    assert len(named) == len(last)
    told = {number for (number, _), state in last.items() if state.startswith("labelled")}
    assert {n for n, run in enumerate(found) if run.outcome and run.outcome.labelled_by} == told


def test_runs_of_one_id_that_differ_in_anything_but_labels_are_different_runs(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", events("s", [{"verbalized": 0.8}], True))
    write(tmp_path / "b.jsonl", events("s", [{"verbalized": 0.8}], False))
    write(tmp_path / "c.jsonl", events("s", [{"verbalized": 0.7}], True))
    write(tmp_path / "d.jsonl", events("s", [{"verbalized": 0.8}, {"verbalized": 0.7}], True))
    assert copies(tmp_path) == {}
    assert labelled_runs(tmp_path, Profile()).ids == ("s", "s#1", "s#2", "s#3")
    assert read_recordings(tmp_path).ids == ("s", "s#1", "s#2", "s#3")


def test_a_run_whose_id_was_used_again_in_its_file_is_no_copy_of_the_next_one(tmp_path: Path) -> None:
    made = events("s", [{"verbalized": 0.8}], True)
    write(tmp_path / "a.jsonl", made, made)
    write(tmp_path / "b.jsonl", events("t", [{"verbalized": 0.8}], True))
    assert [run.superseded for run in distinct_runs(tmp_path)] == [True, False, False]


def test_a_file_by_another_name_is_the_same_file(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", MADE[1])
    os.link(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "a.jsonl")
    again = [tmp_path, tmp_path / "a.jsonl", tmp_path]
    assert len(labelled_runs(iter(again), Profile())) == 1


def test_a_packed_copy_is_one(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    lay(tmp_path, [])
    pack(tmp_path / "own", tmp_path / "packed")
    named: list[DataError] = []
    assert labelled_runs(tmp_path, Profile(), on_refused=named.append).recorded == len(MADE) == len(named)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fit_counts_a_copied_folder_once_and_the_label_that_one_of_them_has(tmp_path: Path, workers: int) -> None:
    lay(tmp_path, [(number, "whole", min(number, 1)) for number in range(6)])
    before = labelled_runs(tmp_path / "own", Profile())
    capped = "run-0000"  # it reached its budget, and has no outcome until somebody says one
    label(tmp_path / "copy0", Label(session_id=capped, success=True), by="reviewer")
    after = labelled_runs(tmp_path, Profile(), workers=workers, on_refused=lambda error: None)
    assert sorted(after.ids) == sorted([*before.ids, capped])
    assert after.recorded == before.recorded


def test_evaluate_names_a_copy_counts_its_run_once_and_exits_1(tmp_path: Path) -> None:
    lay(tmp_path, [(1, "whole", 0), (2, "labelled", 0)])
    once = CliRunner().invoke(_group, ["evaluate", str(tmp_path / "own"), "--draws", "5"])
    twice = CliRunner().invoke(_group, ["evaluate", str(tmp_path), "--draws", "5"])
    assert once.exit_code == 0
    assert twice.exit_code == 1
    assert len(twice.stdout.splitlines()) == len(once.stdout.splitlines())
    assert twice.stderr.count("left out:") == 2
    assert "'run-0001' is also in" in twice.stderr
    assert "own/2.jsonl:1, field 'session_id': the session 'run-0002' is also in" in twice.stderr.replace(
        str(tmp_path) + "/", ""
    )


@pytest.mark.slow
def test_the_forecast_of_a_fit_counts_a_copied_folder_once(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the extra 'fit' is not installed")
    for number, made in enumerate(many(24, np.random.default_rng(1))):
        write(tmp_path / "runs" / f"{number}.jsonl", made)
        write(tmp_path / "kept" / f"{number}.jsonl", made)
    shown = []
    for names in (["runs"], ["runs", "kept"]):
        paths = [str(tmp_path / name) for name in names]
        target = str(tmp_path / "profile.json")
        done = CliRunner().invoke(_group, ["fit", *paths, "--json", "--force", "--assurance", "0", "-o", target])
        told = json.loads(done.stdout)
        shown.append({name: told[name] for name in ("counts", "expected", "splits")})
    assert shown[0] == shown[1]
    assert shown[0]["expected"]["runs"] == 24
    assert done.exit_code == 1
