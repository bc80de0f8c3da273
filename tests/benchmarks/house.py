"""How big the house is: doors, files, lines, exported names, circles of imports, repeated lines, what an import loads.

A door is a module or a package directly under `grampus_uq`. A circle is a set of modules that import each other. A
repeated line belongs to a run of six lines or more that occurs twice in the package, apart from blank lines, comments
and imports. What is loaded is counted in a fresh interpreter, for the modules of this package only.

    python -m tests.benchmarks.house [CHECKOUT ...] [--json]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks._report import emit

ADAPTERS = ("langgraph", "langchain", "openai_agents", "pydantic_ai", "litellm")
RUN = 6
_PRINT_FILES = """
import json, sys
print(json.dumps([module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "grampus_uq"]))
"""


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def exported(tree: ast.Module) -> int:
    """How many names without an underscore a module defines."""
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return sum(not name.startswith("_") for name in names)


def documented(tree: ast.Module) -> int:
    """How many names `__all__` lists."""
    lists = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and "__all__" in map(ast.unparse, node.targets)
    ]
    return sum(len(found.elts) for found in lists if isinstance(found, ast.List | ast.Tuple))


def imports(tree: ast.Module, known: Iterable[str]) -> set[str]:
    """The modules of the package that a module imports when it is loaded: not under TYPE_CHECKING or in a function."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & set(known)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of two modules and more that reach each other."""
    reach = {name: _reachable(graph, name) for name in graph}
    found = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph if name in reach[name]}
    return [sorted(circle) for circle in found]


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def repeated(paths: Iterable[Path]) -> int:
    """How many lines lie in runs of six and more that occur twice."""
    places: defaultdict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path in paths:
        lines = list(_code_lines(path))
        for first in range(len(lines) - RUN + 1):
            places[tuple(text for _, text in lines[first : first + RUN])].append((path, first))
    twice = {
        (path, first + ahead)
        for found in places.values()
        if len(found) > 1
        for path, first in found
        for ahead in range(RUN)
    }
    return len(twice)


def _code_lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        text = line.strip()
        if text and not text.startswith(("#", "import ", "from ")) and any(map(str.isalnum, text)):
            yield number, text


def loaded(checkout: Path, program: str) -> tuple[int, int] | tuple[None, None]:
    """How many modules of the package a program loads, and their lines; None where it cannot be run here."""
    body = f"{program}\n{_PRINT_FILES}"
    done = subprocess.run(
        [sys.executable, "-c", body],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        return None, None
    files = [Path(path) for path in json.loads(done.stdout.splitlines()[-1])]
    return len(files), sum(_lines(path) for path in files)


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def measure(checkout: Path) -> Iterator[dict[str, Any]]:
    """The rows of one checkout."""
    package = checkout / "grampus_uq"
    if not package.is_dir():
        raise SystemExit(f"{checkout}: no checkout of this project: it has no folder 'grampus_uq'.")
    where = {"checkout": checkout.resolve().name}
    found = modules(package)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in found.items()}
    names = [name.rsplit(".", 1)[-1] for name, path in found.items() if path.name != "__init__.py"]
    doors = {name.split(".")[1] for name in found if "." in name}
    graph = {name: imports(tree, found) - {name} for name, tree in trees.items()}
    for what, value in (
        ("doors", len(doors)),
        ("files", len(found)),
        ("lines", sum(_lines(path) for path in found.values())),
        ("files over 400 lines", sum(_lines(path) > 400 for path in found.values())),
        ("exported names", sum(exported(tree) for tree in trees.values())),
        ("names of the face", documented(trees["grampus_uq"])),
        ("modules that share a name", len(names) - len(set(names))),
        ("circles", len(circles(graph))),
        ("repeated lines", repeated(found.values())),
    ):
        yield {**where, "what": what, "value": value}
    for program in ("import grampus_uq", *(f"import grampus_uq.integrations.{adapter}" for adapter in ADAPTERS)):
        count, lines = loaded(checkout, program)
        yield {**where, "what": f"modules loaded by {program}", "value": count}
        yield {**where, "what": f"lines loaded by {program}", "value": lines}


def main() -> None:
    """Measure each checkout, by default this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parents[2]])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    emit("house", [row for checkout in options.checkouts for row in measure(checkout)], options.json)


if __name__ == "__main__":
    main()
