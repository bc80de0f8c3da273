"""Of the code that decides, every change that the tests do not notice is known, and why it does no harm."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))


@pytest.mark.parametrize("group", SETTINGS["groups"])
@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(["--sample", "60"], marks=[pytest.mark.slow, pytest.mark.timeout(1_800)], id="sample"),
        pytest.param([], marks=[pytest.mark.mutation, pytest.mark.timeout(14_400)], id="all"),
    ],
)
def test_no_change_of_the_code_that_decides_survives_unknown(group: str, sample: list[str]) -> None:
    files = SETTINGS["groups"][group]["files"]
    command = [sys.executable, "-m", "tests.mutation", "--only", *files, *sample]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
