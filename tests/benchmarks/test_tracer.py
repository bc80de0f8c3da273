"""The TRACER benchmark reaches the figures that the project states for the airline runs, and counts what it says."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.progress import Progress

from grampus_uq.signals.embedding import HashingEmbedder
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.trajectory_risk import StepComponents
from tests.benchmarks import tracer
from tests.benchmarks.risk_scores import extended_step_risk
from tests.signals.test_minilm import fetched_model

SCORES = [
    "tracer_default",
    "tracer_fitted",
    "structure",
    "extended_sum",
    "n_steps",
    "n_chars",
    "tool_errors",
    "duplicate_calls",
]


def airline() -> str:
    folder = os.environ.get("GRAMPUS_UQ_DATA")
    if not folder:
        pytest.skip("GRAMPUS_UQ_DATA is not set: the airline runs are not part of the project")
    return str(Path(folder) / "tau_bench" / "gpt-4o-airline.json.gz")


def measured(*arguments: str) -> dict[str, dict[str, Any]]:
    """Run the benchmark as a user does, in a process of its own, which sets its threads before NumPy is there."""
    command = [sys.executable, tracer.__file__, *arguments, "--json", "--draws", "100"]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert printed["benchmark"] == "tracer"
    assert [row["score"] for row in printed["rows"]] == SCORES
    return {row["score"]: row for row in printed["rows"]}


def assert_sound(rows: dict[str, dict[str, Any]]) -> None:
    for row in rows.values():
        assert (row["runs"], row["failures"]) == (200, 116)
        assert row["auroc_low"] < row["auroc"] < row["auroc_high"]
        assert row["early_false_alarm_rate"] <= 0.13
    assert rows["n_steps"]["auroc"] == pytest.approx(0.668, abs=5e-4)  # 0.668 was measured elsewhere
    assert rows["n_steps"]["prefix_auroc_10"] == 0.5  # runs that get to one step have the same number of steps


@pytest.mark.slow
def test_the_airline_figures_with_hashing_are_reached() -> None:
    rows = measured(airline(), "--embedder", "hash")
    assert_sound(rows)
    assert rows["extended_sum"]["auroc"] >= 0.63
    assert rows["extended_sum"]["early_detection"] >= 0.24
    assert rows["structure"]["auroc"] >= 0.74  # 0.752 was measured elsewhere
    assert rows["structure"]["gain"] == pytest.approx(rows["structure"]["auroc"] - rows["n_steps"]["auroc"])
    assert rows["structure"]["gain_low"] > -0.02


def with_minilm(file: str) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        model = str(fetched_model(Path(folder)))
        return measured(file, "--embedder", "minilm", "--model-dir", model)


@pytest.mark.promises
@pytest.mark.timeout(1800)
def test_the_airline_figures_with_minilm_are_reached() -> None:
    rows = with_minilm(airline())
    assert_sound(rows)
    assert rows["tracer_default"]["auroc"] == pytest.approx(0.57, abs=0.03)


@pytest.mark.slow
def test_the_figure_of_every_tenth_airline_run_with_minilm_is_reached(tmp_path: Path) -> None:
    with gzip.open(airline()) as whole:
        part = json.load(whole)[::10]
    file = tmp_path / "airline.json"
    file.write_text(json.dumps(part))
    found = with_minilm(str(file))["tracer_default"]
    assert found["runs"] == 20
    assert found["auroc"] == pytest.approx(0.707, abs=0.02)  # with hashing: .611


def test_a_run_that_is_refused_is_named_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(task: int, reward: float, said: str) -> dict[str, Any]:
        traj = [{"role": "user", "content": said}, {"role": "assistant", "content": f"{said}?"}]
        return {"task_id": task, "trial": 0, "reward": reward, "traj": traj}

    rows = [row(task, float(task % 2), "word " * task) for task in range(20)]
    rows[7]["traj"] = None
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(rows))
    absent = tmp_path / "absent.json"
    with pytest.raises(SystemExit) as ended:
        tracer.main([str(absent), str(path), "--json", "--draws", "20"])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    told = json.loads(printed.out)["rows"]
    assert {(row["dataset"], row["read"], row["skipped"]) for row in told} == {("absent", 0, 1), ("runs", 19, 1)}
    assert [row["score"] for row in told] == ["", *SCORES]
    assert "traj" in printed.err
    assert str(absent) in printed.err


@pytest.mark.slow
def test_what_an_agent_did_is_scored_by_regressions_that_never_saw_its_task(tmp_path: Path) -> None:
    """Outcomes are drawn by task alone: whoever had seen a task would know them, and nobody else can."""
    rng = np.random.default_rng(3)
    rows = []
    for task in range(30):
        shape, fails = int(rng.integers(1, 60)), bool(rng.integers(2))
        rows += [
            {"task_id": task, "trial": trial, "reward": float(not fails), "traj": _talk(shape)} for trial in range(4)
        ]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(rows))
    with Progress(disable=True) as progress:
        read = tracer.load(str(path), HashingEmbedder(), progress)
    assert read.skipped == 0
    paths = tracer.structure_paths(read)
    found = auroc([path[-1] for path in paths], [run.failed for run in read.runs])
    assert found is not None
    assert found < 0.75
    assert all(len(path) == len(run.steps) for path, run in zip(paths, read.runs, strict=True))


def _talk(words: int) -> list[dict[str, Any]]:
    said = "no " * words
    return [{"role": "user", "content": "help"}, {"role": "assistant", "content": said}]


def test_the_extended_risk_is_one_on_an_event_and_the_wording_otherwise() -> None:
    quiet = StepComponents(is_agent=True, repetition=0.9, wording_repetition=0.3, tool_error=False)
    assert extended_step_risk(quiet) == 0.3
    for event in ("tool_error", "duplicate_call", "duplicate_observation"):
        assert extended_step_risk(StepComponents(is_agent=True, wording_repetition=0.3, **{event: True})) == 1.0
    assert extended_step_risk(StepComponents(is_agent=False, user_gap=1.9)) == 0.0
