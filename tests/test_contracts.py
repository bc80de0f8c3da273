"""What the project promises of its own code: linted, formatted, strictly typed, imports go downward only."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from tests.benchmarks import house

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(sysconfig.get_path("scripts"))


def passes(*command: str) -> None:
    """Run a tool in the project's folder; its output is the failure's message."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_code_follows_the_linters_rules():
    passes(sys.executable, "-m", "ruff", "check", ".")


def test_the_code_is_formatted():
    passes(sys.executable, "-m", "ruff", "format", "--check", "grampus_uq", "tests", "examples")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_package_and_what_users_write_with_it_are_strictly_typed():
    passes(sys.executable, "-m", "mypy")


def test_imports_go_downward_only():
    passes(str(SCRIPTS / "lint-imports"))


def test_the_package_has_eighteen_doors_no_circle_of_imports_and_no_two_modules_of_one_name():
    found = house.modules(ROOT / "grampus_uq")
    imported = {name: house.imports(ast.parse(path.read_text("utf-8")), found) - {name} for name, path in found.items()}
    assert len({name.split(".")[1] for name in found if "." in name}) <= 18
    assert house.circles(imported) == []
    names = Counter(name.rpartition(".")[2] for name, path in found.items() if path.name != "__init__.py")
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_another_plugin_for_async_tests_in_the_environment_breaks_nothing(tmp_path: Path) -> None:
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path),
        "pytest-asyncio",
    ]
    subprocess.run(fetch, check=True, timeout=300)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/core/test_engine.py", "tests/monitor/test_session.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
