"""Every example in a docstring of the package runs and prints what it says."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_FINDER = doctest.DocTestFinder(exclude_empty=True)


def with_examples() -> list[str]:
    """Modules of the package whose source holds an example."""
    files = sorted((ROOT / "grampus_uq").rglob("*.py"))
    found = [path.relative_to(ROOT) for path in files if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in found]


@pytest.mark.parametrize("name", with_examples())
def test_a_docstrings_examples_print_what_they_say(name: str) -> None:
    module = importlib.import_module(name)
    tests = [test for test in _FINDER.find(module, name) if test.examples]
    assert tests, f"{name} shows examples that doctest does not find: they must be in a docstring"
    printed: list[str] = []
    for test in tests:
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(test, out=printed.append)
    assert not printed, "".join(printed)


_WORDS = r"(What|Whether|Who|Which|Where|How|Why|That)\b"
_CLAUSE, _QUOTED = re.compile(_WORDS), re.compile(rf"[\"']\s*{_WORDS}")


def test_a_public_functions_first_words_are_a_noun_or_a_verb_and_no_clause() -> None:
    """Not "What a call does" but "The effect of a call": a reader of a list of names looks for nouns."""
    found = []
    for path in sorted((ROOT / "grampus_uq").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source if _QUOTED.search(source) else "")):  # few files do
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                text = ast.get_docstring(node) or ""
                if _CLAUSE.match(text):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {text[:60]}")
    assert found == []
