"""Folders of recordings: which runs they hold, how each ended, and what is wrong with them."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from grampus_uq.cli import runs_command
from grampus_uq.errors import ConfigurationError, DataError, MissingDependencyError
from grampus_uq.importers import ImportedRun
from grampus_uq.importers import events as imported_events
from grampus_uq.recording import (
    Label,
    RecordingProcessor,
    encode,
    export,
    find_run,
    label,
    label_all,
    read,
    read_labels,
    runs,
    step_rows,
    summarise,
    validate,
)
from grampus_uq.recording.table import TABLE_COLUMNS
from grampus_uq.records.events import DecisionEvent, Event, OutcomeEvent
from grampus_uq.records.values import Message, Outcome, Role
from grampus_uq.records.vocabulary import StopReason, UncertaintyAction
from tests.recording.events import START_S, session, started, step_event


def record(folder: Path, *session_ids: str, steps: int = 3, success: bool | None = True) -> None:
    with RecordingProcessor(folder, content="full", fsync="none") as recorder:
        for session_id in session_ids:
            for event in session(session_id, steps, success=success):
                recorder.on_event(event)


def written(*events: Event) -> bytes:
    return b"".join(encode(event) for event in events)


def outcome(success: bool | None, by: str | None = None, stop: StopReason = StopReason.CLEAN) -> OutcomeEvent:
    return OutcomeEvent(
        session_id="s1", agent_id="agent", outcome=Outcome(success=success, stop_reason=stop, labelled_by=by)
    )


# --- runs ------------------------------------------------------------------------------------------------------------


def test_runs_come_file_by_file_in_the_order_of_names_at_any_depth(tmp_path: Path) -> None:
    record(tmp_path / "b", "s3", "S1")
    record(tmp_path / "a", "s2")
    (tmp_path / "a" / "notes.txt").write_text("no recording")
    (tmp_path / "a" / "s2.jsonl.torn").write_text("a piece")
    found = list(runs(tmp_path))
    assert [run.session_id for run in found] == ["s2", "S1", "s3"]
    assert found[0].events == tuple(session("s2"))
    assert (found[0].line, found[0].last, found[0].path) == (1, True, str(tmp_path / "a" / "s2.jsonl"))
    assert [run.session_id for run in runs([tmp_path / "b", tmp_path / "a" / "s2.jsonl"])] == ["S1", "s3", "s2"]


def test_a_file_may_hold_several_sessions_but_not_interleaved(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_bytes(written(*session("s1"), *session("s2")))
    assert [(run.session_id, run.line, run.last) for run in runs(path)] == [("s1", 1, False), ("s2", 9, True)]
    with path.open("ab") as stream:
        stream.write(encode(outcome(True)))
    with pytest.raises(DataError, match="goes on here after another session") as caught:
        list(runs(path))
    assert (caught.value.line, caught.value.field) == (17, "session_id")


def test_a_path_that_does_not_exist_is_an_error_and_not_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        list(runs(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], None),
        ([outcome(None, stop=StopReason.CANCELLED)], (None, StopReason.CANCELLED)),
        ([outcome(True), outcome(None, stop=StopReason.MAX_STEPS)], (True, StopReason.CLEAN)),
        ([outcome(True), outcome(False)], (False, StopReason.CLEAN)),
        ([outcome(False, by="ana"), outcome(True)], (False, StopReason.CLEAN)),
        ([outcome(False, by="ana"), outcome(True, by="bo")], (True, StopReason.CLEAN)),
        ([outcome(True), outcome(False, by="ana"), outcome(None, by="ana")], (None, StopReason.CLEAN)),
    ],
)
def test_the_latest_label_wins_then_the_latest_that_knows(
    tmp_path: Path, outcomes: list[OutcomeEvent], expected: Any
) -> None:
    (tmp_path / "s1.jsonl").write_bytes(written(started(), *outcomes))
    ended = find_run(tmp_path, "s1").outcome
    assert (None if ended is None else (ended.success, ended.stop_reason)) == expected


def test_a_run_that_a_human_or_the_monitor_touched_says_so_and_an_advisory_one_does_not(tmp_path: Path) -> None:
    stopped = step_event(0, action=UncertaintyAction.PAUSE_FOR_HUMAN)
    assessment = stopped.assessment.model_copy(
        update={
            "action": UncertaintyAction.PROCEED_WITH_LOG,
            "advisory_action": UncertaintyAction.PAUSE_FOR_HUMAN,
        }
    )
    advised = dataclasses.replace(stopped, assessment=assessment)
    decided = DecisionEvent(session_id="s1", agent_id="agent", decision="approve", principal="ana")
    cases: list[tuple[list[Event], bool, int]] = [
        ([step_event(0)], False, 0),
        ([stopped], True, 1),
        ([advised], False, 1),
        ([step_event(0), decided], True, 0),
    ]
    for number, (events, touched, pauses) in enumerate(cases):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(written(started(), *events))
        summary = summarise(next(runs(path)))
        assert (summary.touched, summary.pauses) == (touched, pauses)


def test_a_session_id_that_is_used_again_is_another_run_and_labels_go_to_the_latest(tmp_path: Path) -> None:
    record(tmp_path, "s1", steps=3, success=True)
    record(tmp_path, "s1", steps=2, success=None)
    found = list(runs(tmp_path))
    assert [(len(run.steps), run.superseded, run.last) for run in found] == [(3, True, False), (2, False, True)]
    assert find_run(tmp_path, "s1").line == 9
    label_all(tmp_path, [Label(session_id="s1", success=False)], by="ana")
    assert [run.outcome and run.outcome.success for run in runs(tmp_path)] == [True, False]
    assert findings(tmp_path) == [("warning", 9, "session_id")]


def test_a_session_taken_up_from_an_older_state_is_one_run_of_the_steps_that_led_to_its_end(tmp_path: Path) -> None:
    resumed = dataclasses.replace(started(), resumed=True)
    told: list[Event] = [
        step_event(0),
        step_event(1),
        step_event(2),
        resumed,
        step_event(1, value=0.5),
        step_event(2, value=0.75),
    ]
    (tmp_path / "s1.jsonl").write_bytes(written(started(), *told))
    (run,) = runs(tmp_path)
    assert [step.assessment.propagated_confidence for step in run.steps] == [0.25, 0.5, 0.75]
    assert len(run.events) == 7
    assert findings(tmp_path) == [("warning", 6, "assessment.index")]


def test_a_summary_says_when_how_long_how_sure_and_how_it_ended(tmp_path: Path) -> None:
    events: list[Event] = [
        started(),
        step_event(0, value=0.5),
        step_event(1, value=0.25),
        step_event(2, value=0.75),
        outcome(False),
    ]
    (tmp_path / "s1.jsonl").write_bytes(written(*events))
    summary = summarise(find_run(tmp_path, "s1"))
    assert (summary.started_s, summary.duration_s, summary.steps) == (START_S, 2.0, 3)
    assert (summary.least_confidence, summary.last_confidence) == (0.25, 0.75)
    assert (summary.success, summary.stop_reason, summary.model) == (False, "clean", "m")


def test_a_run_imported_without_times_has_no_start_and_no_duration(tmp_path: Path) -> None:
    said = (Message(role=Role.USER, content="2+2?"), Message(role=Role.ASSISTANT, content="4"))
    found = imported_events(ImportedRun(run_id="s1", path="log", line=1, messages=said, outcome=Outcome(success=None)))
    (tmp_path / "s1.jsonl").write_bytes(written(*found))
    summary = summarise(find_run(tmp_path, "s1"))
    assert (summary.started_s, summary.duration_s, summary.steps) == (None, None, 1)


# --- labels ----------------------------------------------------------------------------------------------------------


def test_a_label_is_appended_with_who_and_when_and_the_old_outcome_stays(tmp_path: Path) -> None:
    record(tmp_path, "s1", "s2", success=None)
    before = (tmp_path / "s1.jsonl").read_bytes()
    event = label(tmp_path, Label(session_id="s1", success=False, note="wrong user"), by="ana", time_s=5.0)
    after = (tmp_path / "s1.jsonl").read_bytes()
    assert after.startswith(before)
    assert list(read(tmp_path / "s1.jsonl"))[-1] == event
    expected = Outcome(success=False, stop_reason=StopReason.CLEAN, labelled_by="ana", time_s=5.0, note="wrong user")
    assert find_run(tmp_path, "s1").outcome == expected
    assert find_run(tmp_path, "s2").outcome == Outcome(success=None, time_s=START_S + 3)


def test_a_label_can_be_given_while_the_session_is_still_being_recorded(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path, content="full") as recorder:
        recorder.on_event(started())
        label(tmp_path, Label(session_id="s1", success=True, stop_reason=StopReason.CLEAN), by="ana", time_s=1.0)
        recorder.on_event(step_event(0))
    assert [type(event).__name__ for event in read(tmp_path / "s1.jsonl")] == [
        "SessionStarted",
        "OutcomeEvent",
        "StepEvent",
    ]


def test_a_run_without_a_recorded_end_needs_a_stop_reason(tmp_path: Path) -> None:
    (tmp_path / "s1.jsonl").write_bytes(encode(started()))
    with pytest.raises(DataError, match="column stop_reason") as caught:
        label(tmp_path, Label(session_id="s1", success=True), by="ana")
    assert caught.value.field == "stop_reason"
    assert "--stop-reason clean" in str(caught.value)


def test_a_stop_reason_for_all_labels_is_that_of_runs_whose_end_nothing_else_says(tmp_path: Path) -> None:
    for name, end in (("open", []), ("stopped", [outcome(None, stop=StopReason.MONITOR_STOP)]), ("said", [])):
        events = [dataclasses.replace(event, session_id=name) for event in (started(), *end)]
        (tmp_path / f"{name}.jsonl").write_bytes(written(*events))
    (tmp_path / "labels.csv").write_text("session_id,success,stop_reason\nopen,yes,\nstopped,no,\nsaid,no,tool_error\n")
    arguments = ["label", f"{tmp_path}", "--from", f"{tmp_path}/labels.csv", "--stop-reason", "clean"]
    assert CliRunner().invoke(runs_command.command, arguments).exit_code == 0
    ends = {run.session_id: run.outcome and run.outcome.stop_reason for run in runs(tmp_path)}
    assert ends == {"open": "clean", "stopped": "monitor_stop", "said": "tool_error"}


def test_labels_refuse_an_unknown_session_a_nameless_labeller_and_a_file_of_several_sessions(tmp_path: Path) -> None:
    record(tmp_path / "a", "s1")
    with pytest.raises(DataError, match="no run has the session id 'nobody'; `grampus-uq runs list`"):
        label(tmp_path, Label(session_id="nobody", success=True), by="ana")
    with pytest.raises(ConfigurationError, match="'by'"):
        label(tmp_path, Label(session_id="s1", success=True), by=" ")
    record(tmp_path / "b", "s1")
    with pytest.raises(DataError, match="2 runs have"):
        label(tmp_path, Label(session_id="s1", success=True), by="ana")
    both = tmp_path / "both.jsonl"
    both.write_bytes(written(*session("x"), *session("y")))
    with pytest.raises(DataError, match="another session follows 'x'"):
        label(both, Label(session_id="x", success=True), by="ana")
    label(both, Label(session_id="y", success=False), by="ana")
    assert [run.outcome and run.outcome.success for run in runs(both)] == [True, False]


def test_many_labels_go_in_one_pass_and_the_runs_not_found_are_named(tmp_path: Path) -> None:
    record(tmp_path / "runs", "s1", "s2", "s3", success=None)
    table = tmp_path / "labels.csv"
    table.write_text("success,session_id,note\nyes,s1,fine\n 0 ,s3,\nfailure,s9,\n", encoding="utf-8")
    given: list[OutcomeEvent] = []
    missing = label_all(tmp_path / "runs", read_labels(table), by="ana", time_s=1.0, on_labelled=given.append)
    assert missing == ["s9"]
    assert [event.session_id for event in given] == ["s1", "s3"]
    assert [run.outcome and run.outcome.success for run in runs(tmp_path / "runs")] == [True, None, False]


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        (b"id,success\ns1,yes\n", 1, "session_id"),
        (b"session_id\ns1\n", 1, "success"),
        (b"", 1, "session_id"),
        (b"session_id,success\ns1,maybe\n", 2, "success"),
        (b"session_id,success\ns1\n", 2, "success"),
        (b"session_id,success\n,yes\n", 2, "session_id"),
        (b"session_id,success\ns1,yes\ns1,no\n", 3, "session_id"),
        (b"session_id,success,stop_reason\ns1,yes,tired\n", 2, "stop_reason"),
        (b'session_id,success\n"s1,yes\n', 2, ""),
        (b"session_id,success\ns1,\xff\n", 2, ""),
        (b"session_id,success\n" + b"s1,yes\n" * 4 + b"s2,\xff\n", 3, "session_id"),
        (b"success,session_id,success\nyes,s1,no\n", 1, "success"),
        (b"session_id,success,note\ns1,yes,paid, twice\n", 2, ""),
    ],
)
def test_a_wrong_table_of_labels_names_line_and_column(tmp_path: Path, text: bytes, line: int, field: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(text)
    with pytest.raises(DataError) as caught:
        list(read_labels(path))
    assert (caught.value.path, caught.value.field) == (str(path), field)
    assert caught.value.line is not None
    assert caught.value.line >= line


# --- table -----------------------------------------------------------------------------------------------------------


def test_a_row_a_step_with_every_reading_and_the_outcome(tmp_path: Path) -> None:
    record(tmp_path, "s1", "s2", steps=2, success=False)
    rows = list(step_rows(tmp_path))
    assert [(row["session_id"], row["index"]) for row in rows] == [("s1", 0), ("s1", 1), ("s2", 0), ("s2", 1)]
    assert {(row["reading_verbalized"], row["reading_p_true"], row["success"]) for row in rows} == {(0.25, None, False)}
    assert set(rows[0]) == {*TABLE_COLUMNS, "reading_verbalized", "reading_p_true"}
    assert (rows[0]["monitor_calls"], rows[0]["monitor_tokens"], rows[0]["monitor_cost_usd"]) == (1, 13, 0.0001)


def test_a_step_without_evidence_has_no_fused_confidence(tmp_path: Path) -> None:
    silent = dataclasses.replace(step_event(0), readings=step_event(0).readings[1:])
    (tmp_path / "s1.jsonl").write_bytes(encode(silent))
    assert next(step_rows(tmp_path))["fused_confidence"] is None


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_every_form_holds_the_same_table(tmp_path: Path, form: Any) -> None:
    if form == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")
    record(tmp_path / "runs", "s1", "s2")
    rows = list(step_rows(tmp_path / "runs"))
    target = tmp_path / f"table.{form}"
    assert export(tmp_path / "runs", target, form) == len(rows) == 6
    if form == "csv":
        with target.open(newline="") as stream:
            back = list(csv.DictReader(stream))
        assert back == [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    else:
        assert parquet.read_table(target).to_pylist() == rows
    assert [path.name for path in tmp_path.iterdir() if ".part" in path.name] == []


def test_parquet_without_its_package_says_which_extra_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "runs", "s1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(MissingDependencyError, match=r"grampus-uq\[parquet\]"):
        export(tmp_path / "runs", tmp_path / "t.parquet", "parquet")
    assert os.listdir(tmp_path) == ["runs"]


def test_an_export_whose_recordings_break_on_the_way_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    record(tmp_path / "runs", "s1")
    target = tmp_path / "table.csv"
    target.write_text("old")

    def damage(_: object) -> None:
        with (tmp_path / "runs" / "s1.jsonl").open("ab") as stream:
            stream.write(b"damage\n")

    with pytest.raises(DataError, match=r"s1\.jsonl:9"):
        export(tmp_path / "runs", target, "csv", on_run=damage)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "table.csv"]


def test_an_export_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    record(tmp_path / "runs", "s1")
    with (tmp_path / "runs" / "s1.jsonl").open("ab") as stream:
        stream.write(b"damage\n")
    target = tmp_path / "table.csv"
    target.write_text("old")
    with pytest.raises(DataError, match=r"s1\.jsonl:9"):
        export(tmp_path / "runs", target, "csv")
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "table.csv"]


# --- validation ------------------------------------------------------------------------------------------------------


def findings(path: Path) -> list[tuple[str, int | None, str]]:
    return [(one.severity, one.line, one.field) for report in validate(path) for one in report.findings]


def test_a_sound_recording_has_nothing_to_report(tmp_path: Path) -> None:
    record(tmp_path, "s1", "s2")
    reports = list(validate(tmp_path))
    assert [(report.ok, report.lines, report.sessions, report.steps, report.findings) for report in reports] == [
        (True, 8, 1, 3, ())
    ] * 2


def test_every_wrong_line_is_named_and_the_lines_behind_it_are_still_checked(tmp_path: Path) -> None:
    step = json.loads(encode(step_event(1)))
    step["readigns"] = []
    step["readings"][0]["Value"] = 1
    other = dataclasses.replace(
        step_event(3), assessment=step_event(3).assessment.model_copy(update={"step_id": "another"})
    )
    parts = [
        encode(step_event(0)),
        b"damage\n",
        json.dumps(step).encode() + b"\n",
        b"x" * (17 * 2**20) + b"\n",
        encode(other),
        encode(started("s2")),
        encode(step_event(4)),
        encode(step_event(5))[:80],
    ]
    path = tmp_path / "s1.jsonl"
    path.write_bytes(b"".join(parts))
    assert findings(path) == [
        ("warning", 1, "type"),  # lacks its beginning
        ("error", 2, ""),
        ("error", 3, "readings.0.Value"),
        ("error", 3, "readigns"),
        ("error", 4, ""),  # too long
        ("error", 5, "assessment.index"),
        ("error", 5, "assessment.step_id"),
        ("error", 7, "session_id"),
        ("warning", 7, "assessment.index"),
        ("warning", 8, ""),
    ]
    report = next(validate(path))
    assert not report.ok
    assert str(report.findings[1]).startswith(f"{path}:2: is not JSON")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (b"[" * 65 + b"]" * 65, "step.tool_calls.0.arguments"),
        (b"1e999", "step.tool_calls.0.arguments"),
        (b'1,"q":2', ""),
    ],
    ids=["deep", "infinite", "a name twice"],
)
def test_arguments_that_no_writer_writes_are_named_by_their_line_and_the_rest_is_checked(
    arguments: bytes, field: str, tmp_path: Path
) -> None:
    path = tmp_path / "s1.jsonl"
    step = encode(step_event(0, arguments={"q": "here"})).replace(b'"here"', arguments)
    path.write_bytes(encode(started()) + step + b"damage\n")
    assert [(severity, line) for severity, line, _ in findings(path)] == [("error", 2), ("error", 3)]
    assert findings(path)[0][2] == field


def test_a_step_that_comes_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s1.jsonl"
    path.write_bytes(written(started(), step_event(0), step_event(0)))
    assert findings(path) == [("error", 3, "assessment.index")]


def test_the_same_session_in_two_files_is_a_warning(tmp_path: Path) -> None:
    record(tmp_path / "a", "s1")
    record(tmp_path / "b", "s1")
    assert findings(tmp_path) == [("warning", 1, "session_id")]


def test_a_file_of_rubbish_is_not_reported_without_end(tmp_path: Path) -> None:
    path = tmp_path / "s1.jsonl"
    path.write_bytes(b"rubbish\n" * 1000)
    report = next(validate(path))
    assert (len(report.findings), report.more, report.ok) == (100, 900, False)
