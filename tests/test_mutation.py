"""Of the code that decides, every change that the tests do not notice is known, and why it does no harm."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))


def _nothing_survives_unknown(*given: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.mutation", *given], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, f"\n{found.stdout}{found.stderr}"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_of_the_changes_of_the_code_that_decides_those_of_a_sample_survive_only_where_listed() -> None:
    _nothing_survives_unknown("--sample", "300")


@pytest.mark.mutation
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("group", SETTINGS["groups"])
def test_no_change_of_the_code_that_decides_survives_unknown(group: str) -> None:
    _nothing_survives_unknown("--only", *SETTINGS["groups"][group]["files"])
