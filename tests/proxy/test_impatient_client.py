"""The official client gives up after a minute, and the human decides after ten: the call runs exactly once.

By default the same in seconds; `pytest -m kills` takes the ten minutes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client

from grampus_uq import open_store
from grampus_uq.runtime.ledger import Ledger

SERVER = str(Path(__file__).with_name("small_server.py"))
_SECONDS = pytest.mark.timeout(300)
_MINUTES = [pytest.mark.kills, pytest.mark.timeout(1_200)]


async def _decided_late(url: str, after_s: float, asked_twice: anyio.Event) -> None:
    """A human approves, and approves again what is asked again: on a busy machine a call is given up as it starts."""
    await anyio.sleep(after_s)
    await asked_twice.wait()
    store = open_store(url, create=True)
    try:
        ledger, decided = Ledger(store), set[str]()
        while True:
            for session in await ledger.pending():
                for request in session.requests:
                    if request.id not in decided and not request.unknown_outcome:
                        decided.add(request.id)
                        await ledger.decide(request.decide("approve", principal="ann"))
            await anyio.sleep(0.5)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


async def _persists(client: Client, patience_s: float, until_s: float, asked_twice: anyio.Event) -> list[str]:
    """What the same call is told each time, until it has run; a model asks again whatever it is told."""
    told: list[str] = []
    with anyio.fail_after(until_s):
        while not told or told[-1] != "did delete_note":
            try:
                result = await client.call_tool("delete_note", {"path": "a"}, read_timeout_seconds=patience_s)
                told.append(result.content[0].text)
            except MCPError as error:
                told.append(str(error))
            if len(told) == 2:
                asked_twice.set()
            await anyio.sleep(0.1)
    return told


@pytest.mark.parametrize(
    ("patience_s", "hold_s", "decided_s"),
    [
        pytest.param(30.0, 1.0, 5.0, id="told-to-wait", marks=[pytest.mark.slow, _SECONDS]),
        pytest.param(1.0, 60.0, 4.0, id="gives-up", marks=_SECONDS),
        pytest.param(60.0, 55.0, 600.0, id="told-to-wait-ten-minutes", marks=_MINUTES),
        pytest.param(60.0, 3_600.0, 600.0, id="gives-up-ten-minutes", marks=_MINUTES),
    ],
)
def test_a_call_decided_long_after_its_client_gave_up_runs_exactly_once(
    patience_s: float, hold_s: float, decided_s: float, tmp_path: Path
) -> None:
    ran, url = tmp_path / "ran", f"sqlite:///{tmp_path}/calls.db"
    (tmp_path / "proxy.toml").write_text(f'store = "{url}"\nsession = "desk"\nhold_s = {hold_s}\n')
    options = ["--config", str(tmp_path / "proxy.toml"), "--", sys.executable, SERVER, str(ran)]
    command = ["-m", "grampus_uq.cli", "mcp", *options]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))

    async def live() -> list[str]:
        with (tmp_path / "stderr.txt").open("w") as errors:
            transport = stdio_client(parameters, errlog=errors)
            async with Client(transport, mode="legacy") as client:
                await client.list_tools()
                asked_twice = anyio.Event()
                async with anyio.create_task_group() as group:
                    group.start_soon(_decided_late, url, decided_s, asked_twice)
                    told = await _persists(client, patience_s, decided_s + 3 * patience_s + 120.0, asked_twice)
                    group.cancel_scope.cancel()
                    return told

    told = anyio.run(live)
    assert len(told) > 2
    said = "waits for a human" if hold_s < patience_s else "imed out"
    assert said in told[0]
    assert len(ran.read_text().splitlines()) == 1
