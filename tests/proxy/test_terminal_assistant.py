"""A terminal assistant that others publish, unchanged, with the embedded model: its settings name the proxy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")

from grampus_uq.models import LocalModel
from tests.proxy.public_servers import files_server, terminal_assistant
from tests.proxy.small_model_endpoint import SmallModel
from tests.proxy.test_http_proxy import serving
from tests.servers import free_port

TAP = str(Path(__file__).with_name("wire_tap.py"))
GRAMPUS_UQ = [sys.executable, "-m", "grampus_uq.cli"]
TASK = "Read the plan and write one sentence about it to a file."


def settings(folder: Path, port: int, *options: str) -> dict[str, object]:
    """The assistant's settings: a local model, and the server of files behind the proxy."""
    server = [sys.executable, TAP, str(folder), "server", *files_server(folder / "project")]
    proxy = [sys.executable, TAP, str(folder), "client", *GRAMPUS_UQ, "mcp", *options, "--", *server]
    endpoint = {"baseURL": f"http://127.0.0.1:{port}/v1", "apiKey": "none"}
    limit = {"context": 32_768, "output": 512}
    local = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "local",
        "options": endpoint,
        "models": {"small": {"limit": limit}},
    }
    return {
        "autoupdate": False,
        "share": "disabled",
        "model": "local/small",
        "small_model": "local/small",
        "provider": {"local": local},
        "mcp": {
            "files": {
                "type": "local",
                "command": proxy,
                "timeout": 60_000,
            }
        },
    }


def run(program: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One run of the assistant in a home of its own: nothing of this machine is read or written."""
    homes = {f"XDG_{kind}_HOME": str(folder / "home" / kind) for kind in ("CONFIG", "DATA", "CACHE", "STATE")}
    root = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    alone = {
        "HOME": str(folder / "home"),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "PYTHONPATH": root,
        "PWD": str(folder / "project"),
    }
    return subprocess.run(
        [program, "run", *words],
        cwd=folder / "project",
        env={**os.environ, **homes, **alone},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )


def reached(folder: Path) -> list[str]:
    """The tools that the server was asked to run."""
    messages = [json.loads(line) for line in (folder / "server.to").read_bytes().splitlines()]
    return [message["params"]["name"] for message in messages if message.get("method") == "tools/call"]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_an_assistant_reads_waits_for_the_terminal_and_its_model_is_told_what_the_approved_call_gave(
    tmp_path: Path,
) -> None:
    program, port, url = terminal_assistant(), free_port(), f"sqlite:///{tmp_path}/guard.db"
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    plan, note = tmp_path / "project" / "plan.txt", tmp_path / "project" / "note.txt"
    plan.write_text("On Monday the whales are counted in the bay.\n")
    (tmp_path / "guard.toml").write_text(
        f'store = "{url}"\nsession = "desk"\nhold_s = 1.0\n'
        '[effects]\n"read_*" = "read"\n"list_*" = "read"\nwrite_file = "irreversible"\n'
    )
    told = settings(tmp_path, port, "--config", str(tmp_path / "guard.toml"))
    (tmp_path / "project" / "opencode.json").write_text(json.dumps(told))
    path = {"type": "string", "enum": [str(plan)]}
    to = {"type": "string", "enum": [str(note)]}
    text = {"type": "string", "minLength": 10, "maxLength": 80}
    reads = {"type": "object", "properties": {"path": path}, "required": ["path"]}
    writes = {"type": "object", "properties": {"path": to, "content": text}, "required": ["path", "content"]}
    model = LocalModel()
    small = SmallModel(model, [("read_text_file", reads), ("write_file", writes)])
    try:
        with serving(small.app(), port):
            first = run(program, tmp_path, TASK)
            assert first.returncode == 0, first.stderr
            assert "whales are counted" in small.told[0]
            assert "waits for a human's decision" in small.told[1]
            assert reached(tmp_path) == ["read_text_file"]
            assert not note.exists()

            listed = subprocess.run(
                [*GRAMPUS_UQ, "approvals", "list", "--json", "--store", url], capture_output=True, text=True, check=True
            )
            (request,) = json.loads(listed.stdout)
            decide = ["approvals", "approve", request["id"], "--as", "ann", "--store", url]
            subprocess.run([*GRAMPUS_UQ, *decide], check=True, capture_output=True)

            second = run(program, tmp_path, TASK)
            assert second.returncode == 0, second.stderr
    finally:
        anyio.run(model.aclose)
    assert "Successfully wrote" in small.told[1]
    assert reached(tmp_path) == ["read_text_file", "write_file"]  # of the second run: the tap began anew
    assert len(note.read_text()) >= 10
    assert small.said[-1].strip()
    assert small.said[-1].strip()[:20] in second.stdout
