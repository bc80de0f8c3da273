"""The detector benchmarks run, print every promised row and figure, and measure what they say."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grampus_uq.errors import DataError
from tests.benchmarks import detector_speed, exchangeability_watch, healthy_agent
from tests.benchmarks.evaluator import METHODS, load, split_rows

pytest.importorskip("sklearn", reason="the extra 'fit' is not installed")

EVALUATOR = Path(__file__).with_name("evaluator.py")


@pytest.fixture(scope="module")
def verifier_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file in the form of the published verifier scores."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("scores") / "small.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["uq_problem_idx", "num_steps", "judge_probability", "solved"])
        for run in range(240):
            solved = bool(rng.random() < 0.6)
            for step in range(1, int(rng.integers(2, 6))):
                score = rng.beta(5, 2) if solved else rng.beta(3, 3)
                writer.writerow([f"p{run}", step, round(float(score), 2), solved])
    return path


@pytest.mark.slow
def test_one_json_object_with_a_row_for_every_method_and_level(verifier_file: Path) -> None:
    command = [sys.executable, str(EVALUATOR), str(verifier_file), "--splits", "2", "--alphas", ".1", ".3", "--json"]
    found = json.loads(
        subprocess.run([*command, "--calibration-fraction", ".5"], check=True, capture_output=True).stdout
    )
    assert found["benchmark"] == "evaluator"
    assert [(row["method"], row["alpha"]) for row in found["rows"]] == [(m, a) for m in METHODS for a in (0.1, 0.3)]
    promised = {"dataset", "method", "alpha", "false_alarm_rate", "violation_share", "power", "precision"}
    promised |= {"alarm_position", "cost_used", "accuracy_kept", "fit_s", "score_us_a_row"}
    for row in found["rows"]:
        assert promised <= set(row)
        assert row["dataset"] == "small"
        assert row["accuracy_kept"] == pytest.approx(1 - row["false_alarm_rate"])
        assert 0 < row["cost_used"] <= 1


@pytest.mark.parametrize("blank", [0.3, 1.0])
def test_steps_without_a_probability_are_no_evidence_and_end_no_rule(blank: float, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "blank.csv"
    steps = [
        (run, step, "" if rng.random() < blank else round(rng.random(), 2)) for run in range(80) for step in (1, 2)
    ]
    lines = [f"{run},{step},{score},{run % 3 > 0}" for run, step, score in steps]
    path.write_text("\n".join(["uq_problem_idx,num_steps,judge_probability,solved", *lines]), encoding="utf-8")
    rows = split_rows(0, runs=load(path), fraction=0.5, alphas=[0.3], delta=0.1, methods=METHODS)
    assert [row["method"] for row in rows] == list(METHODS)
    assert blank < 1.0 or not any(row["paused_share"] for row in rows)


def test_a_file_with_a_gap_in_its_steps_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gap.csv"
    path.write_text("uq_problem_idx,num_steps,judge_probability,solved\na,1,.5,True\na,3,.5,True\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"steps of a are not 1\.\.2"):
        load(path)


@pytest.mark.slow
def test_every_member_of_the_bank_is_timed_at_every_depth() -> None:
    found = list(detector_speed.rows(detector_speed.simulated(150)))
    assert {row["step"] for row in found} == set(detector_speed.STEPS)
    one_stream = [row for row in found if row["detector"] != "paper"]
    assert {"boosted", "per_step", "running_minimum"} <= {row["detector"] for row in one_stream}
    assert all(row["state_bytes"] <= 1024 for row in one_stream)


@pytest.mark.slow
def test_the_watch_prints_false_alarms_and_delays_for_changes_of_three_sizes_at_once_or_slow() -> None:
    found = list(exchangeability_watch.rows(30, 60, 60, 0.1))
    changed = [row for row in found if "median_delay" in row]
    assert len(changed) == 3 * 5  # at once after no run or 500, or over 300, 1,000 or 3,000 runs
    assert sum("over" in row["case"] for row in changed) == 9
    assert found[0]["case"] == "no change"


@pytest.mark.slow
def test_the_healthy_agent_is_shown_with_the_tiers_beside_the_detector() -> None:
    found = list(healthy_agent.rows(40, 1, 0.1))
    assert found[1]["paused"] > 0.9  # every fifth step irreversible: the tiers pause nearly every healthy run
    assert [row["driver"].split(",")[0] for row in found] == ["default tiers"] * 2 + ["detector"] * 3
    assert all(isinstance(value, str | int | float) for row in found for value in row.values()), "rows are flat"
    assert all(row["low"] <= row["paused"] <= row["high"] for row in found[:3])
