"""Of the code that decides, every change that the tests do not notice is known, and why it does no harm."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests import mutation

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))


def _nothing_survives_unknown(*given: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.mutation", *given], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, f"\n{found.stdout}{found.stderr}"


_CODE = """
def doubled(number):
    return number * 2

def counted(number):
    while number > 0:
        number -= 1
    return number

def unseen(number):
    return number + 1
"""
_TESTS = """
from grampus_uq.code import counted, doubled

def test_it_doubles():
    assert doubled(0) == 0

def test_it_ends():
    assert counted(3) == 0
"""


@pytest.mark.slow
def test_a_change_is_killed_survives_is_late_or_is_reached_by_no_test(tmp_path: Path, monkeypatch: Any) -> None:
    for folder, name, text in (("grampus_uq", "code.py", _CODE), ("tests", "test_code.py", _TESTS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
        (tmp_path / folder / name).write_text(text)
    shutil.copy(ROOT / "tests" / "forked_mutants.py", tmp_path / "tests")
    (tmp_path / "pyproject.toml").write_text(mutation.MUTMUT)
    monkeypatch.chdir(tmp_path)
    changes = mutation.changes_of("grampus_uq/code.py")
    found = mutation.run(changes, ["grampus_uq/code.py"], ["tests/test_code.py"], late_s=1)
    assert {change.partition(": ")[2]: status for change, status in found.items()} == {
        "doubled: return number * 2 => return number / 2": {"survived"},
        "doubled: return number * 2 => return number * 3": {"survived"},
        "counted: while number > 0: => while number >= 0:": {"killed"},
        "counted: while number > 0: => while number > 1:": {"killed"},
        "counted: number -= 1 => number = 1": {"timeout"},
        "counted: number -= 1 => number += 1": {"timeout"},
        "counted: number -= 1 => number -= 2": {"killed"},
        "unseen: return number + 1 => return number - 1": {"no tests"},
        "unseen: return number + 1 => return number + 2": {"no tests"},
    }
    (tmp_path / "tests" / "test_code.py").write_text(_TESTS.replace("doubled(0) == 0", "doubled(0) == 1"))
    with pytest.raises(SystemExit, match=r"The code as it is fails: .*test_it_doubles"):
        mutation.run(changes, [], ["tests/test_code.py"])


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
