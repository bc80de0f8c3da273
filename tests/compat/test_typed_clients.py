"""What users write passes their type checker, and works as it is typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grampus_uq import Message, Role
from grampus_uq.records.protocols import ModelClient
from grampus_uq.wire.model_call import ask_model
from tests.compat import typed_clients

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_pyright_takes_the_clients_of_users() -> None:
    """mypy takes them with the package (`tests/test_contracts.py`)."""
    checker = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--level", "error"]
    files = ["tests/compat/typed_clients.py", "tests/compat/typed_face.py"]  # its wheel brings its own Node
    done = subprocess.run([*checker, *files], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.anyio
@pytest.mark.parametrize("client", typed_clients.CLIENTS, ids=lambda client: type(client).__name__)
async def test_each_client_is_asked_with_what_it_takes(client: ModelClient) -> None:
    options = {"temperature": 0.0, "max_tokens": 8, "top_logprobs": None}
    reply = await ask_model(client, [Message(role=Role.USER, content="?")], "m", options)
    assert reply.content.startswith("1 m ")
