"""The built wheel holds every file of the package (stubs, templates, dashboards, facts), and its command runs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def pip(*arguments: str, cwd: Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], cwd=cwd, check=True, timeout=600)


def test_a_wheel_installs_with_every_file_and_its_command_runs_away_from_the_checkout(tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT), cwd=tmp_path)
    (wheel,) = tmp_path.glob("grampus_uq-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in (ROOT / "grampus_uq").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    missing = [name for path in files if (name := path.relative_to(ROOT).as_posix()) not in held]
    assert missing == []
    assert any(name.endswith("licenses/LICENSE") for name in held)
    page = next(zipfile.ZipFile(wheel).read(name).decode() for name in held if name.endswith("/METADATA"))
    assert "](docs/" not in page, "a package page has no docs folder to link to"
    assert "`docs/quickstart.md`" in page

    installed = tmp_path / "installed"
    pip("install", "--no-deps", "--target", str(installed), str(wheel), cwd=tmp_path)
    program = "import grampus_uq, sys; grampus_uq.UncertaintyMonitor(); print(grampus_uq.__file__)"
    for command in (["-c", program], ["-m", "grampus_uq.cli", "dashboard", "--help"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert str(ROOT) not in done.stdout
