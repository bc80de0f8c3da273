"""The benchmark of the inbox prints one object of flat rows, and each of its decisions is stored once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ("--waiting", "70", "--pages", "6", "--decisions", "10", "--rate", "20")


@pytest.mark.slow
def test_every_decision_is_measured_and_stored_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.inbox", *SMALL, "--json"]
    done = subprocess.run(
        [*command, "--store", f"sqlite:///{tmp_path}/store.db"], stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert set(found) == {"benchmark", "machine", "rows"}
    rows = {row["case"]: row for row in found["rows"]}
    kinds = [*("card", "prepare", "decide"), *("card, alone", "prepare, alone", "decide, alone")]
    assert [rows[kind]["times"] for kind in kinds] == [10, 10, 10, 50, 50, 50]
    counted = {name: rows["decisions"][name] for name in ("times", "lost", "twice", "undecided", "last_states")}
    assert counted == {"times": 10, "lost": 0, "twice": 0, "undecided": 10, "last_states": 1}
    assert not any(isinstance(value, dict | list) for row in found["rows"] for value in row.values())
    assert {(row["store"], row["waiting"]) for row in found["rows"]} == {("sqlite", 70)}
