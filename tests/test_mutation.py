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


_NAMED = """
import sys, pytest
class Seen:
    def pytest_collection_finish(self, session):
        self.ids = [item.nodeid for item in session.items]
seen, arguments = Seen(), ["--collect-only", "-qq", "-n", "0", "-p", "no:cacheprovider"]
pytest.main([*arguments, *sys.argv[1:]], plugins=[seen])
odd = [one for one in seen.ids if chr(92) in one]
sys.exit(pytest.main([*arguments, *odd]) if odd else 0)
"""


@pytest.mark.slow
def test_each_test_that_judges_a_change_can_be_named() -> None:
    """mutmut names tests within the process that collected them, where pytest escapes the backslash in `ids=` again."""
    named = {part for group in SETTINGS["groups"].values() for part in group["tests"] if (ROOT / part).exists()}
    found = subprocess.run([sys.executable, "-c", _NAMED, *sorted(named)], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("group", SETTINGS["groups"])
def test_of_the_changes_of_the_code_that_decides_those_of_a_sample_survive_only_where_listed(group: str) -> None:
    _nothing_survives_unknown("--only", *SETTINGS["groups"][group]["files"], "--sample", "5")


@pytest.mark.mutation
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("group", SETTINGS["groups"])
def test_no_change_of_the_code_that_decides_survives_unknown(group: str) -> None:
    _nothing_survives_unknown("--only", *SETTINGS["groups"][group]["files"])
