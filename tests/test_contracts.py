"""What the project promises of its own code: linted, formatted, strictly typed, imports go downward only."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(sysconfig.get_path("scripts"))


def passes(*command: str) -> None:
    """Run a tool in the project's folder; its output is the failure's message."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_code_follows_the_linters_rules():
    passes(sys.executable, "-m", "ruff", "check", ".")


def test_the_code_is_formatted():
    passes(sys.executable, "-m", "ruff", "format", "--check", "grampus_uq", "tests", "examples")


def test_the_package_is_strictly_typed():
    passes(sys.executable, "-m", "mypy")


def test_imports_go_downward_only():
    passes(str(SCRIPTS / "lint-imports"))
