"""The report: one file, nothing from elsewhere, nothing of what was said, and numbers as in the JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from grampus_uq.cli.evaluate_command import command
from grampus_uq.errors import DataError
from tests.learn.evaluate.recorded import SECRET, events, many, write
from tests.learn.html_page import Page

HOSTILE = "a<script>alert(1)</script>$x_{$\x1b[31m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    write(path / "a.jsonl", *many(60, np.random.default_rng(0), ("verbalized", HOSTILE)))
    return path


def run(*arguments: object):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def text(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("report")
    got = run(folder, "--censoring", "exact", "-o", target / "r.html", "--draws", 20)
    assert got.exit_code == 0, got.output
    assert list(target.iterdir()) == [target / "r.html"]
    return (target / "r.html").read_text(encoding="utf-8")


def test_the_report_is_one_file_that_loads_nothing_and_runs_nothing(text: str) -> None:
    assert all(address.startswith(("#", "data:,")) for address in Page(text).addresses)
    assert "<script" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert 'name="viewport"' in text


def test_no_word_of_the_model_or_the_user_and_no_control_character_is_in_the_report(
    folder: Path, tmp_path: Path
) -> None:
    run(folder, "-o", tmp_path / "r.html", "--draws", 20)
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert SECRET not in text
    assert "\x1b" not in text
    assert "a&lt;script&gt;" in text


def test_the_report_shows_every_stream_assumption_and_stop(text: str) -> None:
    for shown in ("max_steps", "theorem 4.3", "verbalized, recalibrated", "base rate", "fused: min"):
        assert shown in text
    assert text.count("<svg") == 2 + 1 + 2 * 4  # the first two; risk-coverage; reliability and traces of four streams


def test_with_too_few_runs_no_signal_is_called_the_best_anywhere_on_the_page(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", *many(8, np.random.default_rng(0)))
    run(tmp_path, "-o", tmp_path / "r.html", "--draws", 20)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "No signal is the best one yet" in page
    assert "three highest-ranked signals" not in page
    assert "Signal and limit were" not in page


def test_a_chart_without_a_line_is_not_drawn(tmp_path: Path) -> None:
    runs = [events(f"r{n}", [{"verbalized": 0.1 * n}] * 2, n > 4) for n in range(10)]
    write(tmp_path / "runs.jsonl", *runs)
    run(tmp_path, "-o", tmp_path / "r.html", "--draws", 20)
    assert "Effect of holding" not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_json_and_the_table_hold_the_same_numbers(folder: Path) -> None:
    found = json.loads(run(folder, "--json", "--draws", 20).stdout)
    row = next(r for r in found["table"] if r["stream"] == "verbalized" and not r["calibrated"])
    lines = run(folder, "--draws", 20, "--all").stdout.splitlines()
    shown = next(line for line in lines if line.startswith("verbalized\t"))
    assert shown.split("\t")[3] == f"{row['tps_log']:.3f}"
    assert found["censored_runs"] == 8
    assert SECRET not in json.dumps(found)


def test_the_same_seed_gives_the_same_json_and_plots_do_not_depend_on_the_clock(folder: Path, tmp_path: Path) -> None:
    assert run(folder, "--json", "--draws", 20).stdout == run(folder, "--json", "--draws", 20).stdout
    pages = []
    for name in ("a.html", "b.html"):
        run(folder, "-o", tmp_path / name, "--draws", 20)
        pages.append(re.sub(r"Made [^<]*", "", (tmp_path / name).read_text(encoding="utf-8")))
    assert pages[0] == pages[1]


def test_measured_probabilities_come_from_a_file_and_change_the_score(folder: Path, tmp_path: Path) -> None:
    q = tmp_path / "q.csv"
    q.write_text("session_id,q\n" + "".join(f"run-{i:04},0.999\n" for i in range(0, 60, 8)))
    plain = json.loads(run(folder, "--censoring", "exact", "--json", "--draws", 20).stdout)
    given = json.loads(run(folder, "--censoring", "exact", "--continuation", q, "--json", "--draws", 20).stdout)
    assert plain["table"][0]["tps_log"] != given["table"][0]["tps_log"]
    assert any("q: 0 measured, 8 from a model" in line for line in plain["assumptions"])
    assert any("Brier loss is" in line for line in plain["assumptions"])
    assert any("q: 8 measured, 0 from a model" in line for line in given["assumptions"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("session_id,chance\nrun-0000,0.5\n", r"q\.csv:1, field 'q'"),
        ("session_id,q\nrun-0000,1.5\n", r"q\.csv:2, field 'q'"),
        ("session_id,q\nrun-0000,nan\n", r"q\.csv:2, field 'q'"),
        ("session_id,q\nrun-0000,0.5\nrun-0000,0.5\n", r"q\.csv:3, field 'session_id'.*twice"),
        ("session_id,q\nnobody,0.5\n", r"q\.csv:2, field 'session_id'.*not a run that can be scored"),
        ("session_id,q\nrun-0000\n", r"q\.csv:2, field 'q'"),
        ("", r"q\.csv:1, field 'session_id'"),
    ],
)
def test_a_wrong_table_of_chances_is_refused_by_line_and_field(
    folder: Path, tmp_path: Path, text: str, place: str
) -> None:
    (tmp_path / "q.csv").write_text(text)
    with pytest.raises(DataError, match=place):
        run(folder, "--censoring", "exact", "--continuation", tmp_path / "q.csv")


def test_chances_without_exact_censoring_are_refused(folder: Path) -> None:
    assert run(folder, "--continuation", "q.csv").exit_code == 2


def test_a_report_that_cannot_be_written_names_its_place_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        run(folder, "-o", tmp_path / "no folder" / "r.html", "--draws", 20)
    one = tmp_path / "one"
    write(one / "a.jsonl", events("a", [{"verbalized": 0.8}], True))
    assert run(one, "-o", tmp_path / "one.html").exit_code == 0  # one run, one step, one class: still a page
