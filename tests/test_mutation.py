"""Of the code that decides, every change that the tests do not notice is known, and why it does no harm."""

from __future__ import annotations

import json
import os
import shutil
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


_CODE = """
import os
import time

def doubled(number):
    return number * 2

def counted(number):
    while number > 0:
        number -= 1
    return number

def unseen(number):
    return number + 1

def waited(number):
    time.sleep(number and 8)

def ended(number):
    if number > 3:
        os._exit(0)
"""
_TESTS = """
import pytest
from grampus_uq.code import counted, doubled, ended, waited

def test_it_doubles():
    assert doubled(0) == 0

def test_it_ends():
    assert counted(3) == 0

@pytest.mark.timeout(1)
def test_it_does_not_wait_nor_leave():
    waited(0)
    ended(3)
"""
_FOUND = {
    "doubled: return number * 2 => return number / 2": "survived",
    "doubled: return number * 2 => return number * 3": "survived",
    "counted: while number > 0: => while number >= 0:": "killed",
    "counted: while number > 0: => while number > 1:": "killed",
    "counted: number -= 1 => number = 1": "timeout",
    "counted: number -= 1 => number += 1": "timeout",
    "counted: number -= 1 => number -= 2": "killed",
    "unseen: return number + 1 => return number - 1": "no tests",
    "unseen: return number + 1 => return number + 2": "no tests",
    "waited: time.sleep(number and 8) => time.sleep(None)": "killed",
    "waited: time.sleep(number and 8) => time.sleep(number or 8)": "timeout",
    "waited: time.sleep(number and 8) => time.sleep(number and 9)": "survived",
    "ended: if number > 3: => if number >= 3:": "lost",
    "ended: if number > 3: => if number > 4:": "survived",
    "ended: os._exit(0) => os._exit(None)": "survived",
    "ended: os._exit(0) => os._exit(1)": "survived",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one file, one file of tests, and the two files that try its changes."""
    for folder, name, text in (("grampus_uq", "code.py", _CODE), ("tests", "test_code.py", _TESTS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
        (tmp_path / folder / name).write_text(text)
    for name in ("mutation.py", "forked_mutants.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


@pytest.mark.slow
def test_a_change_that_no_failed_test_kills_fails_the_run_unless_it_is_listed(project: Path) -> None:
    """A test that waits too long has not failed; nor has a process that ended."""
    found = {f"grampus_uq/code.py: {change}": status for change, status in _FOUND.items()}
    listed = {change for change, status in found.items() if status != "killed"}
    group = '[groups.code]\nfiles = ["grampus_uq/code.py"]\ntests = ["tests/test_code.py"]\nlate_s = 1\n[survivors]\n'
    killed, gone = "grampus_uq/code.py: counted: number -= 1 => number -= 2", "grampus_uq/code.py: gone: 1 => 2"

    def tried(*known: str) -> subprocess.CompletedProcess[str]:
        (project / "tests" / "mutants.toml").write_text(group + f"reason = {json.dumps(known)}\n")
        ran = [sys.executable, "-m", "tests.mutation"]
        environment = {**os.environ, "PYTHONPATH": str(project)}
        return subprocess.run(ran, cwd=project, env=environment, capture_output=True, text=True, check=False)

    unlisted = tried()
    said = {f"{found[change]}: {json.dumps(change)}," for change in listed}
    assert (unlisted.returncode, said - {*unlisted.stdout.splitlines()}) == (1, set()), unlisted
    assert f"16 changes tried, {len(listed)} not killed, 3 of these took too long" in unlisted.stdout
    assert tried(*listed).returncode == 0
    stale = tried(*listed, killed, gone)
    assert stale.returncode == 1
    assert stale.stdout.splitlines()[2:4] == [
        f"accepted, but killed: {killed}",
        f"accepted, but exists no more: {gone}",
    ]
    for right, wrong in (("doubled(0) == 0", "doubled(0) == 1"), ("import pytest", "import absent")):
        text = _TESTS.replace(right, wrong)
        (project / "tests" / "test_code.py").write_text(text)
        broken = tried(*listed)
        assert (broken.returncode, "the changes could not be tried" in broken.stderr) == (1, True), broken


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
