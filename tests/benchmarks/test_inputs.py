"""What benchmarks are given: a file that cannot serve is one line of usage, and an undefined figure is null."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from grampus_uq.errors import DataError
from tests.benchmarks import proper_scores, stores, tracer
from tests.benchmarks._report import emit, progress
from tests.benchmarks.score_tables import read_score_table
from tests.benchmarks.test_tool_agent import record

pytest.importorskip("sklearn", reason="the extra 'fit' is not installed")

HEADER = "uq_problem_idx,num_steps,judge_probability,solved\n"
OF_TABLES = {"evaluator": ["--alphas", ".1", "--splits", "1"], "proper_scores": ["--draws", "20"], "labels": []}
OF_SETS = {"tool_agent": [], "tool_agent_fit": [], "chain": ["--again"], "permits": ["--recordings"], "labels": []}
OF_LOGS = {"answers": [], "attribution": ["--splits", "2"], "embedders": []}


def run(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *{**OF_SETS, **OF_LOGS, **OF_TABLES}[name], str(path), "--json"])
    importlib.import_module(f"tests.benchmarks.{name}").main()


def refused(name: str, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the script ends with; it printed no figure."""
    with pytest.raises(SystemExit) as ended:
        run(name, path, monkeypatch)
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.out == ""
    return shown.err.splitlines()[-1]


def packed(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


TABLES = {
    "nothing": b"",
    "no rows": HEADER.encode(),
    "cut": gzip.compress((HEADER + "a,1,.5,True\n" * 9).encode())[:-12],
    "no table": b"\x00\x01 hello\n",
    "a column is missing": b"uq_problem_idx,num_steps,solved\na,1,True\nb,1,False\n",
    "no probability": (HEADER + "a,1,1.5,True\nb,1,.5,False\n").encode(),
    "a gap": (HEADER + "a,1,.5,True\na,3,.5,True\nb,1,.5,False\n").encode(),
    "neither": (HEADER + "a,1,.5,maybe\nb,1,.5,False\n").encode(),
    "one run": (HEADER + "a,1,.5,True\na,2,.5,True\n").encode(),
}


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_table_that_cannot_serve_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for fault, content in TABLES.items():
        path = tmp_path / f"{fault.replace(' ', '-')}.csv.gz"
        path.write_bytes(content)
        line = refused(name, path, monkeypatch, capsys)
        assert str(path) in line, (fault, line)


@pytest.mark.parametrize("name", OF_SETS)
def test_a_set_that_cannot_serve_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = json.dumps({"id": "a", "kind": "k", "truth": ["t", {}], "ok": True}) + "\n"
    whole = packed(tmp_path / "whole.tar.gz", {"set/outcomes.jsonl": outcome * 50, "set/recordings/a.jsonl": ""})
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole.read_bytes()[:-30])
    faults = [
        whole,
        cut,
        packed(tmp_path / "bare.tar.gz", {"set/recordings/a.jsonl": ""}),
        packed(
            tmp_path / "broken.tar.gz", {"set/outcomes.jsonl": outcome + "{no json\n", "set/recordings/a.jsonl": ""}
        ),
        packed(tmp_path / "lacks.tar.gz", {"set/outcomes.jsonl": '{"id": "a"}\n', "set/recordings/a.jsonl": ""}),
    ]
    for path in faults:
        line = refused(name, path, monkeypatch, capsys)
        assert str(path) in line, (path.name, line)


@pytest.mark.parametrize("name", OF_LOGS)
def test_a_log_that_cannot_serve_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"history": [{"name": "a", "role": "assistant", "content": "x"}], "mistake_step": "0", "task_id": 1}
    text = json.dumps(one) + "\n"
    for fault, content in {"nothing": b"", "cut": gzip.compress(text.encode())[:-9], "one": text.encode()}.items():
        path = tmp_path / f"{fault}.jsonl.gz"
        path.write_bytes(content)
        line = refused(name, path, monkeypatch, capsys)
        assert str(path) in line, (fault, line)


def test_runs_of_one_class_have_no_figure_about_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failures alone set no threshold, so the rules that need one never alarm, and say that they were not fitted."""
    for solved in (True, False):
        path = tmp_path / f"{solved}.csv"
        path.write_text(HEADER + "".join(f"r{i},1,.{i % 8 + 1},{solved}\n" for i in range(60)))
        run("evaluator", path, monkeypatch)
        rows = rows_of(capsys.readouterr().out)
        assert {row["power" if solved else "false_alarm_rate"] for row in rows} == {None}
        assert {row["unfitted_share"] for row in rows if row["method"] == "ours_pac"} == {float(not solved)}
        emit("proper_scores", proper_scores.dataset_rows(path, 20, np.random.default_rng(0)), True)
        rows = [row for row in rows_of(capsys.readouterr().out) if row["panel"] == "artificial_censoring"]
        assert {row["shift_failures" if solved else "shift_successes"] for row in rows} == {None}


def rows_of(text: str) -> list[dict[str, Any]]:
    """The rows of strict JSON, which has no NaN."""

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    return list(json.loads(text, parse_constant=refuse)["rows"])


def test_an_undefined_figure_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    emit("any", [{"a": float("nan"), "b": float("-inf"), "c": 1.0, "d": "nan", "e": None}], True)
    assert rows_of(capsys.readouterr().out) == [{"a": None, "b": None, "c": 1.0, "d": "nan", "e": None}]


def test_a_table_is_read_in_any_order_with_other_columns_and_words_for_solved(tmp_path: Path) -> None:
    rows = ["x,a,2,.5,True", "y,b,1,,0", '"two\nlines",a,1,0.25,1', "z,b,2.0,nan,false"]
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfnote," + HEADER.encode().replace(b"\n", b"\r\n") + "\r\n".join(rows).encode())
    table = read_score_table(path)
    assert (table.ids, table.scores, table.solved) == (["a", "b"], [[0.25, 0.5], [None, None]], [True, False])
    path.write_text("note," + HEADER + '"two\nlines",a,1,.5,1\nx,a,2,.5,0\n')
    with pytest.raises(DataError) as error:
        read_score_table(path)
    assert (error.value.line, error.value.field) == (4, "solved"), "a row's line, whatever its cells hold"


def test_tracer_measures_what_runs_of_one_class_allow_and_fails_where_no_run_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}] * 2
    runs = [{"task_id": i, "trial": 0, "reward": 1.0, "traj": messages, "info": {}} for i in range(12)]
    path = tmp_path / "right.json"
    path.write_text(json.dumps(runs))
    tracer.main([str(path), "--json", "--draws", "20"])
    shown = capsys.readouterr()
    rows = rows_of(shown.out)
    assert "tracer_fitted is left out" in shown.err
    assert "tracer_fitted" not in {row["score"] for row in rows}
    assert {row["auroc"] for row in rows} == {None}
    path.write_text("[]")
    with pytest.raises(SystemExit) as ended:
        tracer.main([str(path), "--json"])
    shown = capsys.readouterr()
    assert (ended.value.code, [row["read"] for row in rows_of(shown.out)]) == (1, [0])
    assert str(path) in shown.err


def test_a_set_whose_agent_was_not_asked_anew_is_no_set_for_the_chain_that_asks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Redraws that were never made counted as wrong ones."""
    anyio.run(record, tmp_path / "set", [(True, 0.3)] * 4 + [(False, 0.9)] * 8)
    assert "set: no call of this set was drawn anew." in refused("chain", tmp_path / "set", monkeypatch, capsys)


def test_a_store_with_fewer_calls_than_are_approved_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["stores", f"sqlite:///{tmp_path}/s.db", "--sessions", "1", "--waiting", "20"])
    with pytest.raises(SystemExit) as ended:
        stores.main()
    assert ended.value.code == 2
    assert "--waiting" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("evaluator", "--splits=0"),
        ("evaluator", "--alphas=10"),
        ("labels", "--splits=-1"),
        ("tool_agent_fit", "--learn=1"),
        ("attribution", "--splits=0"),
        ("proper_scores", "--draws=0"),
    ],
)
def test_an_option_that_leaves_nothing_to_measure_is_one_line(
    name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a split there were no rows, or means of nothing; a level of ten alarmed on everything."""
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "".join(f"r{i},1,.{i % 8 + 1},{i % 2}\n" for i in range(60)))
    monkeypatch.setattr(sys, "argv", [name, option, "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"tests.benchmarks.{name}").main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert option.partition("=")[0] in shown.err.splitlines()[-1]


def test_progress_is_for_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    progress("one of two")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress("two of two")
    assert capsys.readouterr() == ("", "two of two\n")
