"""The command names the steps that hold the error, says what that is worth, and where a file is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import numpy as np
import pytest

from grampus_uq import UncertaintyMonitor
from grampus_uq.cli import main
from grampus_uq.recording import Content, Label, RecordingProcessor, label
from grampus_uq.records.values import Outcome

TEXTS = {True: "I assume it is a placeholder", False: "I looked it up"}


def log(name: str, error: int, length: int = 6, **changes: object) -> dict[str, object]:
    history = [
        {"content": f"{TEXTS[i == error]} {i}", "role": "assistant", "name": f"Agent{i % 2}"} for i in range(length)
    ]
    return {"question_ID": name, "history": history, "mistake_step": str(error)} | changes


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    return written(tmp_path / "labelled.jsonl", [log(f"l{i}", int(rng.integers(6))) for i in range(40)])


def called(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["attribute", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_the_set_its_text_the_reason_and_the_promise_are_printed(
    tmp_path: Path, labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = written(tmp_path / "failed.jsonl", [log("f", 3, mistake_step=None)])
    assert called(failed, "--calibration", labelled) == 0
    shown = capsys.readouterr().out
    assert "run f: vcp at 80%, step" in shown
    assert "I assume it is a placeholder 3" in shown
    assert "against it: assumes or hedges" in shown
    assert "With probability at least 80%" in shown
    assert "exchangeable" in shown


@pytest.mark.parametrize("method", ["envelope", "lf_envelope", "lf", "rf", "twf", "vcp", "crsvp"])
def test_json_is_one_object_for_every_method_and_the_error_of_a_clear_failure_is_inside(
    method: str, tmp_path: Path, labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [log("f", 3), log("g", 1)]
    failed = written(tmp_path / "failed.jsonl", rows)
    assert called(failed, "--calibration", labelled, "--method", method, "--level", 0.9, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["calibration"]["fitted_on"] > 0
    assert [a["method"] for a in told["attributions"]] == [method] * 2
    assert [error in a["set_steps"] for error, a in zip((3, 1), told["attributions"], strict=True)] == [True, True]


def with_two_suspects(name: str, error: int, decoy: int) -> dict[str, object]:
    texts = [f"{TEXTS[i in (error, decoy)]} {i}" for i in range(12)]
    return log(name, error, history=[{"content": text, "role": "assistant", "name": "A"} for text in texts])


def test_people_are_shown_the_suspect_steps_alone_also_where_they_stand_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = [with_two_suspects(f"l{i}", *rng.choice(12, 2, replace=False).tolist()) for i in range(60)]
    labelled = written(tmp_path / "labelled.jsonl", rows)
    failed = written(tmp_path / "failed.jsonl", [with_two_suspects("f", 1, 10)])
    assert called(failed, "--calibration", labelled, "--level", 0.9, "-o", tmp_path / "page.html") == 0
    assert "run f: vcp at 90%, steps 1, 10 of 0 to 11" in capsys.readouterr().out
    assert "Look at 2 of 12 steps: 1, 10<" in (tmp_path / "page.html").read_text()


def test_the_label_of_the_failed_run_changes_nothing(
    tmp_path: Path, labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for step in (3, 0, None):
        failed = written(tmp_path / "failed.jsonl", [log("f", 3, mistake_step=step, ground_truth="x")])
        called(failed, "--calibration", labelled, "--json")
        answers.append(capsys.readouterr().out)
    assert len(set(answers)) == 1


def test_a_failed_run_is_taken_out_of_the_calibration_and_that_is_said(
    tmp_path: Path, labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(labelled, "--calibration", labelled, "--run", "l0", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [a["trajectory_id"] for a in told["attributions"]] == ["l0"]
    assert any("'l0'" in place for place in told["calibration"]["left_out"])


def test_the_report_is_drawn_for_one_run(tmp_path: Path, labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = written(tmp_path / "failed.jsonl", [log("f", 3), log("g", 1)])
    page = tmp_path / "report.html"
    assert called(failed, "--calibration", labelled, "-o", page) == 2
    assert "--run" in capsys.readouterr().err
    assert called(failed, "--calibration", labelled, "-o", page, "--run", "g") == 0
    assert "<svg" in page.read_text()
    capsys.readouterr()
    assert called(failed, "--calibration", labelled, "-o", tmp_path / "no" / "x.html", "--run", "g") == 1
    assert "cannot be written" in capsys.readouterr().err


def test_what_is_wrong_is_named_by_path_line_and_field(
    tmp_path: Path, labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = written(tmp_path / "failed.jsonl", [log("f", 3), log("g", 1, history=[{"content": 5, "name": "a"}])])
    assert called(broken, "--calibration", labelled) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{broken}:2, field 'history[0].content'" in error
    rows = [json.loads(line) for line in labelled.read_text().splitlines()]
    mixed = written(tmp_path / "mixed.jsonl", [*rows, log("late", 5, length=6, mistake_step="17")])
    failed = written(tmp_path / "one.jsonl", [log("f", 3)])
    assert called(failed, "--calibration", mixed) == 0
    assert f"left out: {mixed}:41, field 'mistake_step'" in capsys.readouterr().err
    for arguments, status, said in (
        (("--run", "nobody"), 1, "holds no failed run 'nobody'"),
        (("--level", 80), 2, "must be in (0, 1)"),
    ):
        assert called(failed, "--calibration", labelled, *arguments) == status
        assert said in capsys.readouterr().err
    few = written(tmp_path / "few.jsonl", [log("only", 1), log("late", 5, length=6, mistake_step="17")])
    assert called(failed, "--calibration", few) == 2
    error = capsys.readouterr().err
    assert "at least two failures" in error
    assert f"left out: {few}:2, field 'mistake_step'" in error


def test_a_calibration_whose_rest_is_lost_is_no_success(
    tmp_path: Path, labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, lines = written(tmp_path / "one.jsonl", [log("f", 3)]), labelled.read_text().splitlines()
    labelled.write_text("\n".join([*lines[:30], '{"history": [', *lines[30:]]))
    assert called(failed, "--calibration", labelled) == 1
    shown = capsys.readouterr()
    assert f"left out: {labelled}:31: is not JSON" in shown.err
    assert "run f: vcp" in shown.out


def test_a_hostile_text_cannot_steer_the_terminal(
    tmp_path: Path, labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = [{"content": "\x1b]0;owned\x07 I assume \x1b[2J \ud800 \u202e", "role": "assistant", "name": "\x1b[31mA"}]
    failed = written(tmp_path / "failed.jsonl", [log("\x1b[1mf", 0, history=evil)])
    assert called(failed, "--calibration", labelled) == 0
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\ud800", "\u202e"} & set(shown)


def record(folder: Path, name: str, error: int, content: Content = "full", **metadata: str) -> None:
    processor = RecordingProcessor(folder, content=content)
    session = UncertaintyMonitor(processors=[processor]).session(name, "agent", metadata=metadata)

    async def steps() -> None:
        for i in range(6):
            await session.observe_llm_response(f"{TEXTS[i == error]} {i}", f"llm_{i}")
            session.observe_tool_result(f"c{i}", "fine")

    anyio.run(steps)
    session.finish(Outcome(success=None, time_s=1.0))
    processor.close()


def test_recordings_serve_on_both_sides_when_their_labels_name_the_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, rng = tmp_path / "labelled", np.random.default_rng(1)
    for i in range(24):
        error = int(rng.integers(6))
        record(folder, f"r{i}", error)
        note = f"error at llm_{error}" if i else "error at llm_77"
        label(folder, Label(session_id=f"r{i}", success=False, note=note), by="ann")
    record(folder, "unlabelled", 2)
    record(tmp_path / "failed", "f", 3)
    assert called(tmp_path / "failed", "--calibration", folder, "--level", 0.9, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    (attribution,) = told["attributions"]
    assert "llm_3" in attribution["step_ids"]
    assert [("llm_77" in place, "not labelled" in place) for place in told["calibration"]["left_out"]] == [
        (True, False),
        (False, True),
    ]


def test_trials_of_a_task_count_once_by_whatever_name_their_recordings_give_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "labelled"
    for i in range(24):
        record(folder, f"r{i}", i % 6, case=f"case {i % 12}")
        label(folder, Label(session_id=f"r{i}", success=False, note=f"error at llm_{i % 6}"), by="ann")
    record(tmp_path / "failed", "f", 3)
    counted = {}
    for key in ("task_id", "case"):
        assert called(tmp_path / "failed", "--calibration", folder, "--task-key", key, "--json") == 0
        counted[key] = json.loads(capsys.readouterr().out)["calibration"]["failures"]
    assert counted["case"] <= 6 < counted["task_id"]


@pytest.mark.parametrize("content", ["hashed", "none"])
def test_a_recording_without_its_text_is_refused(
    content: Content, tmp_path: Path, labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "failed", "f", 3, content)
    assert called(tmp_path / "failed", "--calibration", labelled) == 1
    error = capsys.readouterr().err
    assert "field 'step.text'" in error
    assert 'content="full"' in error
