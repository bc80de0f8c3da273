"""What a core install weighs: the installed files of every dependency that pip brings, with litellm and without.

    python -m tests.benchmarks.install_weight [--json]

Sizes are of this environment's files, compiled ones left out, so that they do not depend on what was run.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.benchmarks._report import emit

_MB = 1_000_000


def brought_by(requirements: list[str], without: str = "") -> set[str]:
    """The names of all packages that these requirements bring here."""
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name == without or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
            continue
        extras = requirement.extras or {""}
        if name in found and extras == {""}:
            continue
        try:
            inner = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # for another platform
        found.add(name)
        waiting += [(Requirement(text), chosen) for text in inner for chosen in extras]
    return found


def size(names: set[str]) -> float:
    """Megabytes of the installed files of packages."""
    files = [file for name in names for file in distribution(name).files or () if file.suffix != ".pyc"]
    return sum(Path(str(file.locate())).stat().st_size for file in files if Path(str(file.locate())).is_file()) / _MB


def main() -> None:
    """Parse, weigh, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = project["project"]["dependencies"]
    own = [file for file in (Path(__file__).parents[2] / "grampus_uq").rglob("*") if file.is_file()]
    mine = sum(file.stat().st_size for file in own if file.suffix != ".pyc") / _MB
    rows = [{"what": "grampus-uq itself", "packages": 1, "mb": mine}]
    for what, without in (("all that it needs", ""), ("without litellm and what only litellm brings", "litellm")):
        found = brought_by(wanted, without)
        rows.append({"what": what, "packages": len(found), "mb": size(found)})
    emit("install_weight", rows, options.json)


if __name__ == "__main__":
    main()
