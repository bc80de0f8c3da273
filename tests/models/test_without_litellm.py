"""Somebody removes litellm: everything that does not call it works, and what does says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "litellm":
            raise ModuleNotFoundError("No module named 'litellm'", name="litellm")

sys.meta_path.insert(0, Blocked())
"""
AGENT = """
import anyio
from grampus_uq import AgentRunner, FunctionTools, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.recording import RecordingProcessor, replay_file
from grampus_uq.records.values import AgentDefinition, ToolCall
from grampus_uq.testing import ScriptedModel, answer

def send_mail(to: str) -> str:
    return "sent"

async def run(monitor):
    calls = [ToolCall(id="c", name="send_mail", arguments={"to": "bob"})]
    model = ScriptedModel([answer('I mail. {"confidence": 0.5}', tool_calls=calls), answer("0.5"), answer("Done.")])
    runner = AgentRunner(model, FunctionTools(send_mail), uncertainty_monitor=monitor)
    return await runner.run(AgentDefinition(name="a"), "mail bob", session_id="s")

with RecordingProcessor("runs") as recorder:
    policy = UncertaintyPolicy(irreversible_tool_names=["send"])
    monitor = UncertaintyMonitor(policy=policy, processors=[recorder])
    result = anyio.run(run, monitor)
assert result.pending, result
assert all(step.same for step in replay_file("runs/s.jsonl", monitor.profile))
"""
PUBLIC = """
import grampus_uq
for name in grampus_uq.__all__:
    getattr(grampus_uq, name)
import importlib, pkgutil
for found in pkgutil.walk_packages(grampus_uq.__path__, "grampus_uq."):
    if found.name not in ("grampus_uq.cli.__main__", "grampus_uq.integrations.litellm"):
        importlib.import_module(found.name)
assert "litellm" not in sys.modules
"""
COMMANDS = """
from click.testing import CliRunner
from grampus_uq.cli import _COMMANDS, _group
for command, sentence in _COMMANDS.items():
    done = CliRunner().invoke(_group, [command, "--help"])
    assert done.exit_code == 0, (command, done.exception)
    assert _group.get_command(None, command).get_short_help_str(limit=400) == sentence
done = CliRunner().invoke(_group, ["doctor", "gpt-4o-mini"])
assert "litellm" in str(done.exception) and "pip install" in str(done.exception), done.exception
"""


@pytest.mark.parametrize(
    "program",
    [AGENT, pytest.param(PUBLIC, marks=pytest.mark.slow), pytest.param(COMMANDS, marks=pytest.mark.slow)],
    ids=["an agent", "every module", "every command"],
)
def test_without_litellm_the_rest_works(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + program], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
