"""Mutation testing: changes the code that decides, one operator at a time, and names the changes that no test notices.

    python -m tests.mutation [--only grampus_uq/gate/call.py ...] [--matching Gate.spent ...] [--sample 150]

`mutants.toml` beside this file says which files are mutated, which tests judge them, and which surviving changes are
accepted, with the reason. A change is named by its function and its lines, not by a number, so that the list outlives
edits elsewhere. Wrong is: a survivor that is not listed, and a listed one that is killed or no longer exists.

mutmut makes the mutants, in a copy of the project, and `forked_mutants.py` tries them. mutmut changes functions and
methods without decorators (but static and class methods), not constants of a module. Left out are changes of prose
alone (text in which there is a space, unless it is compared or searched for, and what an exception says), and dropped
arguments: each is tried as None.

`--sample` takes the first changes, of all files together, by a digest of change and file: the same ones for the same
code, and an edit draws others of the edited file alone.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SEARCHES = {"split", "removeprefix", "removesuffix", "startswith", "endswith", "partition", "replace", "get"}
LATE_S = 10

MUTMUT = """
[tool.mutmut]
source_paths = ["grampus_uq"]
"""
ADVICE = """
What to do, line by line:
survived: add a test that fails under this change, a sentence about behaviour, to the tests that `tests/mutants.toml`
    names for the file. Where no caller can tell the two apart, copy the line from its quotation mark on into that
    file's [survivors], under the reason why it does no harm.
timeout: no test failed before the time was up: the same; list it where the change never ends.
lost: the process of the tests ended, and no test failed: the same.
no tests: none of those tests runs the function: the same, or name the file that does under its group's `tests`.
accepted, but ...: take the line out of [survivors].
Then try again: python -m tests.mutation --only FILE --matching FUNCTION, and without --matching where the file changed.
"""


class _WithoutProse(ast.NodeTransformer):
    """Drops text for people: a literal with a space in it, except where the program compares or searches with it."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node if isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value == "UTF-8":
            return ast.Constant("utf-8")
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node


@functools.cache  # each change of a function is compared with the function as it is
def _meaning(code: str) -> tuple[str, list[int]]:
    """The code without prose, and how many arguments its calls have."""
    tree = _WithoutProse().visit(ast.parse(textwrap.dedent(code)))
    return ast.dump(tree), [len(n.args) + len(n.keywords) for n in ast.walk(tree) if isinstance(n, ast.Call)]


def _worth_trying(old: list[str], new: list[str]) -> bool:
    (meaning, arguments), (changed, fewer) = _meaning("\n".join(old)), _meaning("\n".join(new))
    return meaning != changed and not (len(arguments) == len(fewer) and sum(fewer) == sum(arguments) - 1)


def mutants_of(file: str) -> Iterator[tuple[str, str]]:
    """mutmut's name of each mutant of a file, and what it changes: function, old lines, new lines."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name, orig_function_and_class_names_from_key

    made = mutate_file_contents(file, Path(file).read_text("utf-8"))
    lines, spans = made.code.splitlines(), made.line_span_by_function_name
    for mutant in made.mutant_names:
        original = mutant.partition("__mutmut_")[0] + "__mutmut_orig"
        old, new = (lines[spans[name].start - 1 : spans[name].end] for name in (original, mutant))
        function, owner = orig_function_and_class_names_from_key(mutant)
        old, new = [o.replace(original, function) for o in old], [n.replace(mutant, function) for n in new]
        if not _worth_trying(old, new):
            continue
        for _ in range(2):  # what both begin with goes, then what both end with
            same = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
            old, new = old[same:][::-1], new[same:][::-1]
        before, after = (" ".join(map(str.strip, part)) for part in (old, new))
        yield get_mutant_name(Path(file), mutant), f"{owner + '.' if owner else ''}{function}: {before} => {after}"


def changes_of(file: str) -> dict[str, list[str]]:
    """The changes of a file as `mutants.toml` names them, and mutmut's names of each."""
    names = defaultdict(list)
    for name, change in mutants_of(file):
        names[f"{file}: {change}"].append(name)
    return names


def rank(change: str) -> bytes:
    """What orders all changes: a digest of each and its file, so that an edit draws others of that file alone."""
    return hashlib.sha256(change.encode() + (ROOT / change.partition(": ")[0]).read_bytes()).digest()


def run(tried: dict[str, list[str]], files: list[str], tests: list[str], late_s: int) -> dict[str, set[str]]:
    """Try these changes in the copy that is the working directory: the statuses of each."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    for file in files:
        Path(file).write_text(mutate_file_contents(file, Path(file).read_text("utf-8")).code, "utf-8")
    asked = {"tests": tests, "names": [name for names in tried.values() for name in names], "late_s": late_s}
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "mutation", "PYTHONPATH": os.getcwd(), "MUTANT_UNDER_TEST": ""}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.forked_mutants"],
        input=json.dumps(asked),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    status = json.loads(ran.stdout or "{}")
    if ran.returncode or len(status) < len(asked["names"]):
        sys.exit(f"the changes could not be tried:\n{ran.stderr[-8000:]}")
    return {change: {status[name] for name in names} for change, names in tried.items()}


def problems_of(found: dict[str, set[str]], accepted: set[str]) -> Iterator[str]:
    """What is wrong with the changes that were tried: new survivors, and accepted ones that are killed."""
    killed = {change for change, statuses in found.items() if statuses == {"killed"}}
    alive = found.keys() - killed
    late = sum("timeout" in statuses for statuses in found.values())
    print(f"{len(found)} changes tried, {len(alive)} not killed, {late} of these took too long", flush=True)
    for change in sorted(alive - accepted):
        yield f"{'/'.join(sorted(found[change]))}: {json.dumps(change, ensure_ascii=False)},"
    yield from (f"accepted, but killed: {change}" for change in sorted(accepted & killed))


def copy_of(folder: Path) -> Path:
    """A copy of the project in which a group's files are changed."""
    for part in ("grampus_uq", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8") + MUTMUT, "utf-8")
    return folder


def problems(
    groups: dict[str, dict[str, Any]], accepted: set[str], folder: Path, sample: int | None, matching: list[str]
) -> list[str]:
    """What is wrong with the groups' changes, or with those that match, or with so many drawn by a digest."""
    copies = {name: copy_of(folder / name) for name in groups}
    os.chdir(next(iter(copies.values())))
    changes = {
        name: {change: names for file in group["files"] for change, names in changes_of(file).items()}
        for name, group in groups.items()
    }
    existing = [change for of_group in changes.values() for change in of_group]
    wanted = [change for change in existing if not matching or any(text in change for text in matching)]
    chosen = set(sorted(wanted, key=rank)[:sample])
    wrong: list[str] = []
    for name, copy in copies.items():
        os.chdir(copy)
        tried = {change: names for change, names in changes[name].items() if change in chosen}
        print(f"{name}: {len(changes[name])} changes", flush=True)
        group = groups[name]
        found = run(tried, group["files"], group["tests"], group.get("late_s", LATE_S)) if tried else {}
        wrong += problems_of(found, accepted)
    files = {file for group in groups.values() for file in group["files"]}
    listed = {change for change in accepted if change.partition(": ")[0] in files}
    return [*wrong, *(f"accepted, but exists no more: {change}" for change in sorted(listed.difference(existing)))]


def main() -> int:
    """Exit status 1 where something is wrong; what, and what to do about it, goes to the standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="files to mutate, of those that mutants.toml names; all by default")
    parser.add_argument(
        "--matching", nargs="+", default=[], help="only changes with one of these texts, a function's name, say"
    )
    parser.add_argument("--sample", type=int, help="so many changes of all the files together; each one by default")
    parser.add_argument("--folder", type=Path, help="where the copies are made and kept; a temporary one by default")
    given = parser.parse_args()
    settings = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))
    accepted = {change for changes in settings["survivors"].values() for change in changes}
    groups = {
        name: {**group, "files": files}
        for name, group in settings["groups"].items()
        if (files := [file for file in group["files"] if not given.only or file in given.only])
    }
    if not groups:
        parser.error("mutants.toml names none of these files.")
    with tempfile.TemporaryDirectory() as temporary:
        wrong = problems(groups, accepted, given.folder or Path(temporary), given.sample, given.matching)
        os.chdir(ROOT)
    print(*wrong, *([ADVICE] if wrong else []), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
