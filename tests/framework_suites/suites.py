"""Runs a framework's own tests twice: with a middleware that does nothing, and with an advisory guard.

What passes with the empty middleware passes with the guard, or stands in differences.toml with its reason. What fails
with the empty one too is not the guard's doing: such tests draw the graph, count hooks, or look at what any middleware
changes.

    python -m tests.framework_suites.suites langchain    # everything; minutes
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.archives import unpack

HERE = Path(__file__).parent
VARIANTS = ("empty", "guard")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Where a framework's tests are: its source distribution, what they need besides ours, how pytest takes them."""

    package: str
    needs: Sequence[str]
    paths: Sequence[str]
    sample: Sequence[str]
    options: Sequence[str] = ()


SUITES = {
    "langchain": Suite(
        package="langchain",
        needs=(
            "pytest-asyncio",
            "pytest-socket",
            "syrupy",
            "langchain-tests",
            "langchain-openai",
            "pytest-mock",
            "toml",
            "blockbuster>=1.5.26,<1.6",
        ),
        paths=("tests/unit_tests/agents",),
        sample=("tests/unit_tests/agents/middleware/core", "tests/unit_tests/agents/test_react_agent.py"),
        options=("-o", "addopts=", "--disable-socket", "--allow-unix-socket"),
    ),
    "langgraph": Suite(
        package="langgraph-prebuilt",
        needs=("langgraph-checkpoint-postgres", "pytest-mock", "syrupy"),
        paths=("tests",),
        sample=("tests",),
        options=("-o", "addopts="),
    ),
    "openai-agents": Suite(
        package="openai-agents",
        needs=("inline-snapshot", "pytest-mock", "fastapi", "fakeredis", "graphviz"),
        paths=("tests",),
        sample=("tests/test_agent_runner.py", "tests/test_agent_as_tool.py"),
        options=(
            "--ignore=tests/sandbox",
            "--ignore=tests/extensions",
            "--ignore=tests/voice",
            "--ignore=tests/realtime",
            "--ignore=tests/models",
            "--ignore=tests/mcp",
        ),
    ),
}


@dataclass(frozen=True)
class Outcomes:
    """What became of each test in one variant; how many runs were put under the guard, and what it committed."""

    of: dict[str, str]
    runs: int
    events: int


def run_suite(framework: str, python: Path, folder: Path, *, sampled: bool) -> dict[str, Outcomes]:
    """Fetch the framework's tests of the installed version into `folder` and run them in each variant."""
    source = _source(SUITES[framework].package, folder)
    return {name: _outcomes(framework, name, source, python, folder, sampled=sampled) for name in VARIANTS}


def differing(found: dict[str, Outcomes]) -> set[str]:
    """Tests that pass with an empty middleware, and not with the guard."""
    empty, guard = ({test for test, outcome in found[name].of.items() if outcome == "passed"} for name in VARIANTS)
    return empty - guard


def listed(framework: str) -> dict[str, str]:
    """The tests that are known to differ, each with its reason."""
    values = tomllib.loads((HERE / "differences.toml").read_text(encoding="utf-8"))
    return {test: reason for reason, tests in values.get(framework, {}).items() for test in tests}


def _source(package: str, folder: Path) -> Path:
    wanted = f"{package}=={version(package)}"
    given = ["--quiet", "--no-deps", "--no-binary", package, "--dest", str(folder), wanted]
    subprocess.run([sys.executable, "-m", "pip", "download", *given], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        unpack(packed, folder)
    (source,) = (path for path in folder.iterdir() if path.is_dir() and (path / "tests").is_dir())
    # What is tested is what is installed: the framework's own copy would be another one beside ours.
    for copy in ("langchain", "langgraph", "src"):
        if (source / copy).is_dir():
            (source / copy).rename(source / f"not_{copy}")
    return source


def environment(place: Path) -> Path:
    """The Python of a new environment with all that this one has, and what the frameworks' tests need besides."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    here = sysconfig.get_paths()["purelib"]
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    (packages / "with_ours.pth").write_text(here)
    held = [f"{name}=={version(name)}" for name in ("langchain-core", "langgraph", "openai", "openai-agents", "pytest")]
    wanted = sorted({need for suite in SUITES.values() for need in suite.needs}) + held
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    return python


def _outcomes(framework: str, name: str, source: Path, python: Path, folder: Path, *, sampled: bool) -> Outcomes:
    suite, told = SUITES[framework], folder / f"{name}.json"
    project = HERE.parent.parent
    environment = os.environ | {
        "VARIANT": name,
        "FRAMEWORK": framework,
        "OUTCOMES": str(told),
        "PYTHONPATH": f"{project}{os.pathsep}{HERE}",
    }
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-p",
        "every_run",
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_mode=auto",
    ]
    command += ["--timeout", "120", "--continue-on-collection-errors", *suite.options]
    if name == "guard":  # known to differ, many by waiting for what never comes
        command += [f"--deselect={test}" for test in listed(framework)]
    log = folder / f"{name}.log"
    with log.open("w") as output:
        subprocess.run(
            [*command, *(suite.sample if sampled else suite.paths)], cwd=source, env=environment, stdout=output
        )
    if not told.exists():
        raise RuntimeError(f"{framework}'s tests did not end ({name}): " + log.read_text()[-2000:])
    values = json.loads(told.read_text())
    return Outcomes(values["outcomes"], values["runs"], values["events"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("framework", choices=sorted(SUITES))
    parser.add_argument("--sample", action="store_true", help="the files that CI runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder) / "environment")
        found = run_suite(given.framework, python, Path(folder), sampled=given.sample)
    for name, outcomes in found.items():
        print(f"{name:6}", dict(Counter(outcomes.of.values())), f"{outcomes.runs} runs, {outcomes.events} events")
    known = listed(given.framework)
    new = differing(found) - set(known)
    for test in sorted(differing(found)):
        print("differs:", test, f"({known.get(test, 'NOT LISTED')})")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
