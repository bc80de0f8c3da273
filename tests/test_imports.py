"""Importing costs nothing that is not used: no framework, no client, no exporter; and every public name is there."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import grampus_uq

# What must not be loaded before somebody uses it.
HEAVY = (
    "litellm",
    "grpc",
    "httpx",
    "openai",
    "langchain",
    "langchain_core",
    "langgraph",
    "agents",
    "pydantic_ai",
    "opentelemetry.sdk",
    "opentelemetry.exporter",
    "sklearn",
    "scipy",
    "jinja2",
    "pyarrow",
    "xllamacpp",
    "tokenizers",
    "safetensors",
    "pooch",
    "psycopg",
    "redis",
    "click",
    "rich",
)
WATCH = """
    from grampus_uq import Reading, UncertaintyEstimator, UncertaintyMonitor, UncertaintyPolicy, elicit_confidence
    import anyio
    policy = UncertaintyPolicy(enable_semantic_sampling=True)
    session = UncertaintyMonitor(policy=policy).session("s")
    anyio.run(session.observe_llm_response, "Confidence: 60%", "l")
    session.would_allow("send_email")
"""


def loaded(program: str) -> list[str]:
    """The modules that a fresh interpreter holds after a program."""
    body = f"{textwrap.dedent(program)}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", body], check=True, capture_output=True, text=True, timeout=120)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("program", ["import grampus_uq", WATCH], ids=["import", "watching a step"])
def test_neither_importing_nor_watching_loads_what_it_does_not_use(program):
    found = loaded(program)
    heavy = [name for name in found if any(name == root or name.startswith(f"{root}.") for root in HEAVY)]
    assert heavy == []


def test_importing_the_package_loads_none_of_its_modules():
    assert [name for name in loaded("import grampus_uq") if name.startswith("grampus_uq.")] == []


NAMED = """
    import sys
    from grampus_uq.integrations import langchain, langgraph
    assert [name for name in sys.modules if name.startswith("grampus_uq.runtime")] == []
    assert langchain.ThreadRunner is langgraph.ThreadRunner
"""


def test_an_adapter_loads_the_runner_of_its_threads_only_for_who_names_it():
    assert "grampus_uq.runtime" in loaded(NAMED)


def test_the_probe_sees_what_is_loaded():
    """A test of the test: a program that does load httpx is caught."""
    assert "httpx" in loaded("import grampus_uq, httpx")


ROOT = Path(grampus_uq.__file__).parents[1]
FACES = [".".join(stub.parent.relative_to(ROOT).parts) for stub in sorted(ROOT.glob("grampus_uq/**/__init__.pyi"))]


@pytest.mark.parametrize("face", FACES)
def test_every_name_of_a_room_is_there_and_comes_from_where_its_stub_says(face):
    room = importlib.import_module(face)
    stub = Path(room.__file__).with_suffix(".pyi").read_text("utf-8")
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    for node in imports:
        home = importlib.import_module(f".{node.module}", face)
        for alias in node.names:
            assert getattr(room, alias.name) is getattr(home, alias.name)
            assert alias.name in dir(room)
    assert imports


def test_every_documented_name_can_be_imported():
    assert set(grampus_uq.__all__) < set(dir(grampus_uq))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = grampus_uq.Nonsense
    with pytest.raises(ImportError):
        exec("from grampus_uq import Nonsense")


def test_the_tracer_is_found_in_the_telemetry_package_too():
    telemetry = importlib.import_module("grampus_uq.telemetry")
    assert telemetry.GrampusTracer is grampus_uq.GrampusTracer
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = telemetry.Nonsense
