"""`grampus-uq runs`: what it prints, what it refuses, and its exit status."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from grampus_uq.cli import main
from grampus_uq.recording import RecordingProcessor, encode, find_run
from tests.recording.events import session, started, step_event
from tests.recording.test_runs import record


class Ran:
    """What a command printed and how it ended."""

    def __init__(self, out: str, err: str, status: int) -> None:
        self.out, self.err, self.status = out, err, status


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(["runs", *map(str, arguments)])
        captured = capsys.readouterr()
        return Ran(captured.out, captured.err, int(ended.value.code or 0))

    return call


def test_list_gives_a_line_a_run_and_filters(tmp_path: Path, run: Any) -> None:
    record(tmp_path, "s1", "s2")
    record(tmp_path, "s3", success=None)
    lines = run("list", tmp_path).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["session_id", "s1", "s2", "s3"]
    assert lines[1].split("\t")[2:7] == ["3", "0", "0.250", "0.250", "success"]
    assert [item["session_id"] for item in json.loads(run("list", tmp_path, "--json").out)] == ["s1", "s2", "s3"]
    assert [item["session_id"] for item in json.loads(run("list", tmp_path, "--json", "--unlabelled").out)] == ["s3"]
    assert json.loads(run("list", tmp_path, "--json", "--paused").out) == []


def test_what_is_made_of_recordings_is_its_owners_alone_unless_it_takes_the_place_of_another_file(
    tmp_path: Path, run: Any
) -> None:
    record(tmp_path / "runs", "s1")
    (shared := tmp_path / "shared.html").touch(0o640)
    for output in (tmp_path / "own.html", shared):
        assert run("show", tmp_path / "runs", "s1", "-o", output).status == 0
    assert run("pack", tmp_path / "runs", "-o", tmp_path / "packed").status == 0
    assert run("table", tmp_path / "runs", "-o", tmp_path / "own.csv").status == 0
    found = [shared, *tmp_path.glob("own.*"), *tmp_path.glob("packed*"), *tmp_path.glob("packed/*")]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in found}
    own = {"own.html": 0o600, "own.csv": 0o600, "packed": 0o700, "part-00000.parquet": 0o600}
    assert modes == own | {"shared.html": 0o640}


def test_show_gives_every_event_in_order_and_text_only_when_asked(tmp_path: Path, run: Any) -> None:
    record(tmp_path, "s1")
    ran = run("show", tmp_path, "s1")
    shown = ran.out
    assert "I book the flight" not in shown
    assert [line.split("\t")[1] for line in shown.splitlines() if "\t" in line] == [
        "event",
        "began",
        *["llm_call book", "tool result"] * 3,
        "outcome",
    ]
    assert (
        "thresholds:          uncertainty is low from 0.80, medium from 0.60, high from 0.40, critical below" in ran.err
    )
    assert "lowest_reading:      stated confidence 0.25 at step 0" in ran.err
    assert shown.count("\tstated confidence 0.25, no P(True): timeout\t") == 3
    assert "I book the flight" in run("show", tmp_path, "s1", "--text").out
    document = json.loads(run("show", tmp_path, "s1", "--json").out)
    assert document["summary"]["steps"] == 3
    assert len(document["events"]) == len(session())


def test_what_a_recording_says_does_not_command_the_terminal(tmp_path: Path, run: Any) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J[red]x\r\n"
    with RecordingProcessor(tmp_path, content="full") as recorder:
        recorder.on_event(started(hostile))
        recorder.on_event(step_event(0, hostile, text=hostile))
    for ran in (run("list", tmp_path), run("show", tmp_path, hostile, "--text"), run("validate", tmp_path)):
        assert ran.status == 0
        assert not {"\x1b", "\x07", "\r"} & set(ran.out + ran.err)


def test_label_appends_and_says_who(tmp_path: Path, run: Any) -> None:
    record(tmp_path, "s1", success=None)
    assert run("label", tmp_path, "s1", "failure", "--by", "ana", "--note", "wrong user").status == 0
    ended = find_run(tmp_path, "s1").outcome
    assert ended is not None
    assert (ended.success, ended.labelled_by, ended.note) == (False, "ana", "wrong user")
    assert ended.time_s > 1.7e9


def test_label_from_a_table_names_the_runs_it_did_not_find(tmp_path: Path, run: Any) -> None:
    record(tmp_path / "runs", "s1", "s2", success=None)
    table = tmp_path / "labels.csv"
    table.write_text("session_id,success\ns2,yes\ns9,no\n")
    ran = run("label", tmp_path / "runs", "--from", table, "--by", "ana", "--json")
    assert ran.status == 1
    document = json.loads(ran.out)
    assert document["not_found"] == ["s9"]
    assert [event["session_id"] for event in document["labelled"]] == ["s2"]


@pytest.mark.parametrize(
    "arguments",
    [["s1"], ["s1", "maybe"], [], ["s1", "success", "--from", "x.csv"], ["--from", "x.csv", "--note", "n"]],
)
def test_label_refuses_half_a_label(tmp_path: Path, run: Any, arguments: list[str]) -> None:
    record(tmp_path, "s1")
    assert run("label", tmp_path, *arguments).status == 2


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", " =1", "\u2003@A", "\uff1d1"]
)
def test_no_name_from_a_recording_is_a_formula_of_the_spreadsheet_that_opens_its_table(
    tmp_path: Path, run: Any, name: str
) -> None:
    record(tmp_path, name)
    (row, *_) = csv.DictReader(io.StringIO(run("table", tmp_path, "-o", "-", "--format", "csv").out, newline=""))
    assert row["session_id"] == f"'{name}"
    assert float(row["time_s"]) > 0.0


def test_table_writes_a_file_or_standard_output(tmp_path: Path, run: Any) -> None:
    record(tmp_path / "runs", "s1")
    ran = run("table", tmp_path / "runs", "-o", tmp_path / "t.csv", "--json")
    assert json.loads(ran.out) == {"rows": 3, "output": str(tmp_path / "t.csv")}
    printed = run("table", tmp_path / "runs", "-o", "-", "--format", "csv").out
    assert list(csv.reader(io.StringIO(printed))) == list(csv.reader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert run("table", tmp_path / "runs", "-o", tmp_path / "t.xls").status == 2
    assert run("table", tmp_path / "runs", "-o", "-", "--format", "parquet").status == 2


def test_validate_names_places_and_fails(tmp_path: Path, run: Any) -> None:
    record(tmp_path, "s1")
    assert run("validate", tmp_path).out == "1 files, 1 sessions, 3 steps: valid.\n"
    path = tmp_path / "s2.jsonl"
    path.write_bytes(
        encode(started("s2")).replace(b'"resumed":false', b'"resumed":0') + encode(step_event(0, "s2"))[:9]
    )
    ran = run("validate", tmp_path)
    assert ran.status == 1
    assert f"error: {path}:1, field 'resumed': " in ran.out
    assert f"warning: {path}:2: an unfinished line of 9 bytes" in ran.out
    reports = json.loads(run("validate", tmp_path, "--json").out)
    assert [report["ok"] for report in reports] == [True, False]
    assert reports[1]["findings"][0]["field"] == "resumed"


@pytest.mark.parametrize("arguments", [["list"], ["validate"], ["table", "-o", "x.csv"]])
def test_a_folder_that_does_not_exist_is_one_line_and_status_1(tmp_path: Path, run: Any, arguments: list[str]) -> None:
    ran = run(arguments[0], tmp_path / "nowhere", *arguments[1:])
    assert (ran.status, ran.err) == (1, f"grampus-uq: {tmp_path / 'nowhere'}: does not exist.\n")


def test_a_table_of_labels_that_does_not_exist_is_one_line_and_status_1(tmp_path: Path, run: Any) -> None:
    ran = run("label", tmp_path, "--from", str(tmp_path / "nowhere.csv"))
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert f"{tmp_path / 'nowhere.csv'}: cannot be read" in ran.err


@pytest.mark.parametrize("command", ["table", "pack"])
def test_an_output_that_cannot_be_written_is_one_line_and_status_1(tmp_path: Path, run: Any, command: str) -> None:
    record(tmp_path, "s1")
    (tmp_path / "file").write_text("")
    ran = run(command, tmp_path / "s1.jsonl", "-o", str(tmp_path / "file" / "x.csv"))
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert str(tmp_path / "file") in ran.err


def test_a_file_that_may_not_be_read_is_one_line_too(tmp_path: Path, run: Any) -> None:
    record(tmp_path, "s1")
    (tmp_path / "s1.jsonl").unlink()
    os.symlink(tmp_path / "gone", tmp_path / "s1.jsonl")
    ran = run("list", tmp_path)
    assert ran.status == 1
    assert "cannot be read" in ran.err
