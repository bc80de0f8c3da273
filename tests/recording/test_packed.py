"""Packed recordings: every line as it was, whole runs in a part, and the same answer from every reader."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.recording import (
    Label,
    encode,
    export,
    find_run,
    label,
    pack,
    read,
    recording_files,
    recording_parts,
    runs,
    runs_of_part,
    summarise,
    validate,
)
from grampus_uq.recording.packed import PackedWriter, row_groups
from grampus_uq.recording.replay import replay, replay_all, replay_file
from grampus_uq.records.events import SessionStarted
from tests.learn.evaluate.recorded import events, many, write

pytest.importorskip("pyarrow")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty runs in eight files."""
    made = many(40, np.random.default_rng(1))
    for number in range(8):
        write(tmp_path / "runs" / f"{number}.jsonl", *made[5 * number : 5 * number + 5])
    return tmp_path / "runs"


def lines(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines(keepends=True)]


@pytest.mark.parametrize("workers", [1, 2])
def test_packing_keeps_every_event_and_every_run(folder: Path, tmp_path: Path, workers: int) -> None:
    files = pack(folder, tmp_path / "packed", workers=workers, file_bytes=30_000)
    assert len(files) > 1
    assert sum(file.lines for file in files) == len(lines(folder))
    assert sum(file.sessions for file in files) == 40
    again = [event for path in recording_files(tmp_path / "packed") for event in read(path)]
    assert again == [event for path in recording_files(folder) for event in read(path)]
    plain, packed = list(runs(folder)), list(runs(tmp_path / "packed"))
    assert [run.events for run in packed] == [run.events for run in plain]
    assert [summarise(run).steps for run in packed] == [summarise(run).steps for run in plain]
    assert all(report.ok for report in validate(tmp_path / "packed"))
    assert find_run(tmp_path / "packed", "run-0007").events == find_run(folder, "run-0007").events


def test_the_parts_hold_each_run_once_and_in_order(folder: Path, tmp_path: Path) -> None:
    expected = [run.session_id for run in runs(folder)]
    parts = list(recording_parts(folder, part_bytes=20_000))
    assert len(parts) > 1
    assert [run.session_id for part in parts for run in runs_of_part(part)] == expected
    writer = PackedWriter(tmp_path / "x.parquet")
    for run in runs(folder):
        writer.write(run.session_id, map(encode, run.events))
        writer._flush()  # a row group a run
    writer.close()
    assert len(row_groups(tmp_path / "x.parquet")) == 40
    parts = list(recording_parts(tmp_path / "x.parquet"))
    assert [run.session_id for part in parts for run in runs_of_part(part)] == expected


def test_a_session_id_that_is_used_again_stays_in_one_part(tmp_path: Path) -> None:
    one, other = events("same", [{"verbalized": 0.9}], True), events("same", [{"verbalized": 0.2}] * 2, False)
    write(tmp_path / "in" / "a.jsonl", one, other)
    pack(tmp_path / "in", tmp_path / "out")
    (part,) = recording_parts(tmp_path / "out")
    assert [run.superseded for run in runs_of_part(part)] == [True, False]


def test_tables_beside_packed_files_are_no_recordings(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    export(folder, tmp_path / "packed" / "steps.parquet", "parquet")
    assert [path.name for path in recording_files(tmp_path / "packed")] == ["part-00000.parquet"]


def test_what_cannot_be_packed_or_labelled_is_named(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    with pytest.raises(DataError, match="choose an empty folder"):
        pack(folder, tmp_path / "packed")
    with pytest.raises(DataError, match="is packed already"):
        pack(tmp_path / "packed", tmp_path / "twice")
    with pytest.raises(DataError, match="label the recordings, then pack"):
        label(tmp_path / "packed", Label(session_id="run-0001", success=True), by="ana")
    mixed = events("a", [{"verbalized": 0.9}], True)
    write(tmp_path / "mixed" / "a.jsonl", mixed[:1], events("b", [{"verbalized": 0.9}], True), mixed[1:])
    with pytest.raises(DataError, match="goes on here after another session") as caught:
        pack(tmp_path / "mixed", tmp_path / "no")
    assert caught.value.line == 5
    assert not list((tmp_path / "no").iterdir())


def test_an_unfinished_line_is_left_out_and_counted_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.jsonl"
    write(path, events("a", [{"verbalized": 0.9}], True))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    (file,) = pack(path, tmp_path / "out")
    assert (file.lines, file.partial_lines) == (3, 1)
    path.write_bytes(whole.replace(b"llm_call", b"\xff", 1))
    with pytest.raises(DataError) as caught:
        pack(path, tmp_path / "no")
    assert (caught.value.path, caught.value.line) == (os.fspath(path), 2)


@pytest.mark.parametrize("cut", [4, 100, -9, -1])
def test_a_damaged_packed_file_is_an_error_with_its_path(folder: Path, tmp_path: Path, cut: int) -> None:
    pack(folder, tmp_path / "packed")
    path = tmp_path / "packed" / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError) as caught:
        list(runs(path))
    assert caught.value.path == os.fspath(path)


def test_flipped_bytes_of_a_packed_file_never_raise_anything_but_a_data_error(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    path = tmp_path / "packed" / "part-00000.parquet"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    places = []
    for at in rng.integers(4, len(whole), 60).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        try:
            list(runs(path))
        except DataError as error:
            places.append(error.path)
    assert len(places) > 30
    assert set(places) == {os.fspath(path)}


def test_a_table_that_is_named_as_a_recording_is_refused(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "steps.parquet", "parquet")
    with pytest.raises(DataError, match="not a packed recording"):
        list(runs(tmp_path / "steps.parquet"))


@pytest.mark.slow
def test_a_replay_of_all_counts_the_same_with_any_number_of_workers_and_from_packed_files(
    folder: Path, tmp_path: Path
) -> None:
    strict = Profile(advisory=True, policy=UncertaintyPolicy(low_threshold=0.99, medium_threshold=0.98))
    plain = replay_all(folder, strict)
    assert (plain.runs, plain.steps) == (40, sum(len(run.steps) for run in runs(folder)))
    assert 0 < plain.same < plain.steps
    assert plain.stopped_now > plain.stopped_before
    by_hand = [step for run in runs(folder) for step in replay(run.events, strict)]
    assert plain.same == sum(step.same for step in by_hand)
    pack(folder, tmp_path / "packed", file_bytes=30_000)
    assert replay_all(tmp_path / "packed", strict) == plain
    assert replay_all(tmp_path / "packed", strict, workers=2) == plain
    recorded_with = Profile(advisory=True)
    assert replay_all(folder, recorded_with).same == plain.steps


def test_a_replayed_file_keeps_histories_only_of_sessions_that_were_taken_up_again(tmp_path: Path) -> None:
    first, other = events("a", [{"verbalized": 0.9}] * 3, True), events("b", [{"verbalized": 0.4}] * 3, True)
    again = SessionStarted(session_id="a", agent_id="a", time_s=9.0, resumed=True)
    retold = [*first[:4], again, *first[2:]]  # from the state after the first step
    write(tmp_path / "x.jsonl", retold, other)
    found = list(replay_file(tmp_path / "x.jsonl", Profile(advisory=True)))
    assert [(step.event.session_id, step.assessment.index) for step in found] == [
        *(("a", index) for index in (0, 1, 2, 1, 2)),
        *(("b", index) for index in (0, 1, 2)),
    ]
    assert all(step.same for step in found)
