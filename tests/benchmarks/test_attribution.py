"""The benchmark reads what published logs look like, and reaches the figures that were measured before."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import attribution as benchmark


def log(path: Path, rows: list[dict[str, object]]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def entry(text: str, **more: str) -> dict[str, str]:
    return {"content": text, **more}


def test_runs_with_labels_that_point_nowhere_are_left_out_and_counted(tmp_path: Path) -> None:
    history = [entry("plan", role="Orchestrator (thought)"), entry("exitcode: 1 (failed)", name="Computer_terminal")]
    rows: list[dict[str, object]] = [
        {"history": history, "mistake_step": label, "question": "q"} for label in ("0", "1", "2", "-1", "", "one")
    ]
    rows.append({"history": [], "mistake_step": "0"})
    runs = benchmark.read_runs(log(tmp_path / "logs.jsonl.gz", rows))
    assert (len(runs.labelled), runs.left_out, runs.dataset) == (2, 5, "logs")
    first, second = runs.labelled[0].trajectory.steps
    assert (first.speaker, first.observation, first.tool_failed) == ("Orchestrator (thought)", False, None)
    assert (second.speaker, second.observation, second.tool_failed) == ("Computer_terminal", True, True)


def test_long_runs_without_names_give_every_row_with_its_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows: list[dict[str, object]] = [
        {
            "history": [entry(f"step {k} {rng.integers(99)}", role=f"agent {k % 3}") for k in range(length)],
            "mistake_step": str(rng.integers(length)),
        }
        for length in rng.integers(5, 131, size=30)
    ]
    path = log(tmp_path / "long.jsonl.gz", rows)
    benchmark.main([str(path), "--splits", "5", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["benchmark"] == "attribution"
    sets = [row for row in report["rows"] if row["table"] == "sets"]
    columns = {
        "dataset",
        "method",
        "level",
        "coverage",
        "removal_rate",
        "removal_rate_sd",
        "evaluations",
        "empty_share",
    }
    assert all(columns <= set(row) for row in sets)
    assert len({(row["method"], row["level"]) for row in sets}) == len(sets) == 17 * 4
    assert all({"method", "level"} <= set(row) for row in report["rows"])


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, float], dict[str, Any]]:
    folder = os.environ.get("GRAMPUS_UQ_DATA")
    if not folder:
        pytest.skip("GRAMPUS_UQ_DATA is not set: the published failure logs are not here")
    benchmark.main([folder, "--splits", "300", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    return {(row["method"], row["level"]): row for row in rows}


@pytest.mark.slow
def test_the_measured_figures_are_reached(figures: dict[tuple[str, float], dict[str, Any]]) -> None:
    """At 80 %: position alone removes a third of the run, the envelope more, what people are shown more than half."""
    position, envelope = figures["constant_rf", 0.8], figures["envelope", 0.8]
    assert position["removal_rate"] == pytest.approx(0.335, abs=0.01)
    assert envelope["removal_rate"] >= 0.39
    assert envelope["coverage"] >= 0.79
    shown = figures["vcp", 0.8]
    assert shown["for"] == "people"
    assert shown["removal_rate"] >= 0.55
    assert 0.78 <= shown["coverage"] <= 0.85
    for (method, level), row in figures.items():
        if row["table"] == "sets":
            assert row["coverage"] >= level - 0.02, (method, level)
    assert figures["constant_rf", 0.5]["evaluations"] < figures["rf", 0.5]["evaluations"]
