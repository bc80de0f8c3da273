"""The proper-score benchmark itself: what it prints, and what it refuses."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grampus_uq.errors import DataError
from tests.benchmarks.proper_scores import length_stratified, load, main

HEADER = "uq_problem_idx,num_steps,judge_probability,solved\n"
ISSUE_ROW = {
    "dataset", "stream", "calibrated", "tps_log", "tps_brier", "tps_beta24", "auroc", "auprc", "aurc", "t_ece",
    "t_brier", "delta_tps_z", "delta_auroc_z",
}  # fmt: skip


def table(path: Path, seed: int = 0, runs: int = 60) -> Path:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(runs):
        solved = bool(rng.random() < 0.6)
        for t in range(1, int(rng.integers(1, 6)) + 1):
            p = "" if i == 7 and t == 1 else str(float(np.clip(0.5 + 0.3 * solved + 0.3 * rng.normal(), 0, 1)))
            rows.append(f"run-{i},{t},{p},{solved}\n")
    path.write_bytes(gzip.compress((HEADER + "".join(rows)).encode()))
    return path


@pytest.mark.slow
def test_it_prints_one_object_with_every_row_of_the_transparency_table(tmp_path):
    file = table(tmp_path / "toy.csv.gz")
    command = [sys.executable, "tests/benchmarks/proper_scores.py", str(file), "--json", "--draws", "50"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    got = json.loads(done.stdout)
    assert set(got) == {"benchmark", "machine", "rows"}
    panel = {name: [row for row in got["rows"] if row["panel"] == name] for name in {r["panel"] for r in got["rows"]}}
    streams = [row for row in panel["transparency"] if not row["stream"].startswith("auq_")]
    assert [(row["stream"], row["calibrated"]) for row in streams] == [
        ("judge_probability", False),
        ("judge_probability", True),
        ("base_rate", False),
    ]
    assert all(row.keys() >= ISSUE_ROW for row in panel["transparency"])
    assert streams[1]["delta_tps_z"] is not None
    assert streams[2]["auroc"] == 0.5
    assert {row["skipped"] for row in streams} == {1}
    assert len(panel["fixed_rank"]) == 5
    assert len({(row["auroc"], row["auprc"], row["aurc"]) for row in panel["fixed_rank"]}) == 1
    assert panel["fixed_rank"][0]["tps_log_span"] > 0
    assert len(panel["artificial_censoring"]) == 12
    assert all(row["largest_error"] < 1e-12 for row in panel["artificial_censoring"])
    assert len(panel["speed"]) == 3
    assert len(panel["calibration"]) == 2


@pytest.mark.parametrize(
    ("rows", "line", "field"),
    [
        ("a,1,0.5,True\na,1,0.5,True\n", 3, "num_steps"),
        ("a,2,0.5,True\n", None, "num_steps"),
        ("a,one,0.5,True\n", 2, "num_steps"),
        ("a,1,high,True\n", 2, "judge_probability"),
        ("a,1,0.5,maybe\n", 2, "solved"),
        ("a,1,0.5,True\na,2,0.5,False\n", 3, "solved"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(tmp_path, rows, line, field):
    file = tmp_path / "broken.csv"
    file.write_text(HEADER + rows, encoding="utf-8")
    with pytest.raises(DataError) as refused:
        load(file)
    assert (refused.value.line, refused.value.field) == (line, field)


def test_the_censoring_plan_hides_the_same_share_of_short_and_long_runs():
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 40, 1000)
    stops = length_stratified(lengths, 0.3, rng)
    hidden = stops < lengths
    assert (stops >= 1).all()
    assert (stops <= lengths).all()
    assert hidden.mean() == pytest.approx(0.3)
    assert hidden[lengths < np.median(lengths)].mean() == pytest.approx(0.3, abs=0.02)


def test_a_path_that_is_not_there_is_a_line_of_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["proper_scores", "/nowhere/scores.csv"])
    with pytest.raises(SystemExit):
        main()
    assert "/nowhere/scores.csv: there is no such file or folder" in capsys.readouterr().err
