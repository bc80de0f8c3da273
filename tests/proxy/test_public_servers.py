"""Servers that others publish, driven by the official client: through the proxy each side sees the very same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, types
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.proxy.public_servers import SERVERS, PublicServer, listed

TAP = str(Path(__file__).with_name("wire_tap.py"))
PROXY = [sys.executable, "-m", "grampus_uq.cli", "mcp"]


async def _sampled(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text="hi"), model="scripted", stop_reason="endTurn"
    )


async def _elicited(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


async def _roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[])


def _tapped(folder: Path, name: str, command: list[str]) -> list[str]:
    return [sys.executable, TAP, str(folder), name, *command]


def _workspace(folder: Path) -> Path:
    """A repository with one commit, at the same place and the same time in every run."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "b.txt").write_text("first line\n")
    git = ["git", "-c", "init.defaultBranch=main", "-C", str(folder)]
    for command in (["init", "--quiet"], ["add", "b.txt"], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*git, *command], check=True, env=_environment(folder), timeout=60)
    return folder


def _environment(folder: Path) -> dict[str, str]:
    """The same moment, author and home for every run."""
    who = {"NAME": "Ann", "EMAIL": "ann@example.com", "DATE": "2026-01-01T00:00:00Z"}
    git = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    memory = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl"), "NO_PROXY": "*", "no_proxy": "*"}
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **git, **memory, "PYTHONPATH": path}


async def _drive(server: PublicServer, mode: str, command: list[str], folder: Path) -> None:
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=_environment(folder))
    with (folder.parent / "stderr.txt").open("a") as errors, anyio.fail_after(240):
        client = Client(
            stdio_client(parameters, errlog=errors),
            mode=mode,
            sampling_callback=_sampled,
            elicitation_callback=_elicited,
            list_roots_callback=_roots,
        )
        async with client:
            await listed(client)
            await server.drive(client, folder)


def _guarding_nothing(folder: Path) -> list[str]:
    """A guard that judges and records every call, and holds none."""
    return ["--advisory", "--store", f"sqlite:///{folder / 'calls.db'}", "--recordings", str(folder / "runs")]


def _messages(folder: Path, name: str) -> list[Any]:
    return [json.loads(line) for line in (folder / name).read_bytes().splitlines()]


def _normal(value: Any) -> Any:
    """A message without its ids and progress tokens, which count what came before, on either side."""
    if isinstance(value, dict):
        ids = ("id", "progressToken", "requestId")
        return {key: None if key in ids and isinstance(part, int) else _normal(part) for key, part in value.items()}
    return [_normal(part) for part in value] if isinstance(value, list) else value


def _trace(folder: Path, name: str) -> tuple[list[Any], list[Any]]:
    """What was sent and what came back, in an order of its own: what two sides do at once comes in any."""
    sent, back = (sorted(map(_normal, _messages(folder, f"{name}.{side}")), key=_order) for side in ("to", "from"))
    return sent, back


def _order(message: dict[str, Any]) -> str:
    return json.dumps(message, sort_keys=True)


_CASES = [
    pytest.param(server, mode, way, id=f"{server.name}-{mode}-{way}")
    for server in SERVERS
    for mode in server.modes
    for way in ("passing", "guarding")
    if way == "passing" or mode == server.modes[-1]
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("server", "mode", "way"), _CASES)
def test_a_server_and_its_client_see_the_same_bytes_with_the_proxy_as_without(
    server: PublicServer, mode: str, way: str, tmp_path: Path
) -> None:
    logs, space = tmp_path / "logs", tmp_path / "space"
    logs.mkdir()
    command = server.command(space)
    anyio.run(_drive, server, mode, _tapped(logs, "direct", command), _workspace(space))
    inner = _tapped(logs, "server", command)
    proxy = [*PROXY, *(["--unguarded"] if way == "passing" else _guarding_nothing(tmp_path)), "--"]
    anyio.run(_drive, server, mode, _tapped(logs, "client", [*proxy, *inner]), _workspace(space))

    if way == "guarding":
        assert list((tmp_path / "runs").glob("*.jsonl"))
    for side in ("to", "from"):  # byte for byte, on both sides of the proxy
        outside, inside = ((logs / f"{name}.{side}").read_bytes().splitlines() for name in ("client", "server"))
        if way == "guarding":  # a call that is judged may be overtaken by what is sent while it is
            outside, inside = sorted(outside), sorted(inside)
        assert outside == inside
    assert len(_messages(logs, "client.to")) >= 3
    direct, proxied = _trace(logs, "direct"), _trace(logs, "client")
    assert proxied[0] == direct[0]  # the client did the same
    assert proxied[1] == direct[1]  # and was told the same
