"""A detector refitted on what it let pass loses its level; refitted on weighted random releases it keeps it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.benchmarks import refit

pytest.importorskip("sklearn", reason="the extra 'fit' is not installed")

SETTING = refit.Setting(alpha=0.1, runs=400, let_through=0.25)


def mean_false_alarms(method: str, histories: int = 4) -> float:
    """Over the five refits of some histories."""
    rows = [row["false_alarms"] for seed in range(histories) for row in refit.history(method, SETTING, seed)[1:]]
    return float(np.mean(rows))


@pytest.mark.slow
def test_a_naive_refit_lifts_false_alarms_and_the_repaired_one_keeps_them_at_alpha() -> None:
    assert mean_false_alarms("repaired") <= SETTING.alpha + 0.02
    assert mean_false_alarms("naive") > SETTING.alpha + 0.02


@pytest.mark.slow
def test_sabotage_the_same_released_runs_without_their_weights_lift_them_too() -> None:
    assert mean_false_alarms("unweighted") > SETTING.alpha + 0.05


@pytest.mark.slow
def test_the_counts_say_what_became_of_every_run() -> None:
    for row in refit.history("repaired", SETTING, 0)[1:]:
        assert row["untouched"] + row["let_through"] + row["stopped"] == SETTING.runs
        assert 0 < row["let_through"] < row["stopped"]
    for row in refit.history("naive", SETTING, 0)[1:]:
        assert row["let_through"] == 0


@pytest.mark.slow
def test_the_command_prints_one_object_with_a_row_a_method_and_refit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.refit", "--histories", "2", "--runs", "200", "--json"],
        check=True,
        capture_output=True,
        text=True,
        timeout=280,
    )
    found = json.loads(done.stdout)
    assert found["benchmark"] == "refit"
    assert len(found["rows"]) == len(refit.METHODS) * (refit.REFITS + 1)
