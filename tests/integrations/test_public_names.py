"""Adapters are made of public names, so that a user can write another; and they say what is missing when it is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import grampus_uq

ADAPTERS = sorted((Path(grampus_uq.__file__).parent / "integrations").glob("*.py"))
PUBLIC = {
    "grampus_uq.monitor.snapshot",
    "grampus_uq.recording",
    "grampus_uq.records.events",
    "grampus_uq.records.latest",
    "grampus_uq.records.protocols",
    "grampus_uq.runtime",
    "grampus_uq.wire",
}
"""Beside the root and the gate, whose hosts adapters are. The first and the third are what a fork reads and tells."""


def imported(path: Path) -> set[tuple[str, str]]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {(n.module or "", alias.name) for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names}


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_an_adapter_imports_only_public_names(path: Path) -> None:
    own = {(module, name) for module, name in imported(path) if module.partition(".")[0] == "grampus_uq"}
    private = {
        (module, name)
        for module, name in own
        if not module.startswith(("grampus_uq.integrations", "grampus_uq.gate."))
        and module not in PUBLIC
        and not (module == "grampus_uq" and name in (*dir(grampus_uq), "wire"))
    }
    assert not private


WITHOUT = """
import importlib, sys
for adapter, package in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.modules[package] = None
    try:
        importlib.import_module(f"grampus_uq.integrations.{adapter}")
        print("imported")
    except ImportError as error:
        print(error)
    del sys.modules[package]
"""


def test_without_its_framework_an_adapter_says_what_to_install() -> None:
    needs = {"openai_agents": "agents", "pydantic_ai": "pydantic_ai"}
    needs |= {"langgraph": "langgraph.types", "langchain": "langchain.agents"}
    command = [sys.executable, "-c", WITHOUT, *(word for pair in needs.items() for word in pair)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for adapter, said in zip(needs, done.stdout.splitlines(), strict=True):
        extra = adapter.replace("_", "-")
        assert f'pip install "grampus-uq[{extra}]"' in said
