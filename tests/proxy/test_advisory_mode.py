"""In advisory mode the bytes on both sides are those that pass without a guard, and what passed is recorded."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.integrations.mcp.advisory import Advisory
from grampus_uq.integrations.mcp.message_lines import TooLong
from grampus_uq.integrations.mcp.stdio_proxy import Relay
from grampus_uq.runtime import MemoryStore
from tests.proxy.guarded import Bench, SlowStore
from tests.proxy.test_guard import UNCLEAR
from tests.proxy.test_server_messages import SPELLINGS
from tests.sampling import examples

pytestmark = pytest.mark.anyio

_CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_note","arguments":{ "a":1.50}}}'
_DONE = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"gone"}]}}'
_LONG = TooLong(head=b'{"id":1', tail=b"}")
_CLIENT = [*UNCLEAR, _CALL, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}', _LONG]
_SERVER = [*SPELLINGS.values(), _DONE, b"a line of a log \xff", _LONG]


class Sides:
    """What each side was sent by a relay."""

    def __init__(self, bench: Bench, *, advisory: bool) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.relay: Relay = (
            Advisory(self.to_client, self.to_server, exchange=bench.exchange, say=bench.said.append)
            if advisory
            else Relay(self.to_client, self.to_server, bench.said.append)
        )

    async def to_client(self, line: bytes) -> None:
        self.sent.append(("client", line))

    async def to_server(self, line: bytes) -> None:
        self.sent.append(("server", line))


async def passed(messages: list[tuple[bool, bytes | TooLong]], *, advisory: bool) -> list[tuple[str, bytes]]:
    bench = Bench(MemoryStore(), hold_s=0.0, advisory=advisory)
    sides = Sides(bench, advisory=advisory)
    async with anyio.create_task_group() as group:
        group.start_soon(sides.relay.run)
        for from_client, line in messages:
            await (sides.relay.from_client if from_client else sides.relay.from_server)(line)
        await sides.relay.client_left()
        await sides.relay.aclose()
        group.cancel_scope.cancel()
    return sides.sent


_lines = st.sampled_from([(True, line) for line in _CLIENT] + [(False, line) for line in _SERVER])
_bytes = st.tuples(st.booleans(), st.binary(min_size=1, max_size=40))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(_lines | _bytes, max_size=12))
def test_every_message_passes_as_without_a_guard(messages: list[tuple[bool, bytes | TooLong]]) -> None:
    assert anyio.run(lambda: passed(messages, advisory=True)) == anyio.run(lambda: passed(messages, advisory=False))


async def test_a_call_that_would_wait_and_its_result_are_recorded() -> None:
    bench = Bench(MemoryStore(), hold_s=0.0, advisory=True)
    sides = Sides(bench, advisory=True)
    async with anyio.create_task_group() as group:
        group.start_soon(sides.relay.run)
        await sides.relay.from_client(_CALL)
        await sides.relay.from_server(_DONE)  # before the call could be judged
        await sides.relay.aclose()
        group.cancel_scope.cancel()
    state = (await bench.ledger.known("mcp", "s"))[0]
    assert state.tool_calls_made == 1
    assert "gone" in [message.content for message in state.messages]


async def test_a_store_that_hangs_delays_nothing_and_what_is_not_looked_at_is_bounded() -> None:
    store = SlowStore()
    store.locked = True
    bench = Bench(store, hold_s=0.0, advisory=True)
    sides = Sides(bench, advisory=True)
    async with anyio.create_task_group() as group:
        group.start_soon(sides.relay.run)
        with anyio.fail_after(60):
            for _ in range(1_500):
                await sides.relay.from_client(_CALL)
        assert len(sides.sent) == 1_500
        assert any("unrecorded" in text for text in bench.said)
        group.cancel_scope.cancel()


class Broken(MemoryStore):
    """Raises what no store should, from one of its writes on."""

    def __init__(self, error: BaseException, good: int) -> None:
        super().__init__()
        self._error, self._good = error, good

    async def write(self, *changes: Any) -> float:
        self._good -= 1
        if self._good < 0:
            raise self._error
        return await super().write(*changes)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("good", [0, 1, 4])
@pytest.mark.parametrize("error", [OSError("disk"), asyncio.CancelledError()])
async def test_whatever_a_store_raises_every_message_passes(
    anyio_backend: str, error: BaseException, good: int
) -> None:
    bench = Bench(Broken(error, good), hold_s=0.0, advisory=True)
    sides = Sides(bench, advisory=True)
    async with anyio.create_task_group() as group:
        group.start_soon(sides.relay.run)
        for number in range(5):
            await sides.relay.from_client(_CALL.replace(b'"id":1', b'"id":%d' % number))
            await anyio.wait_all_tasks_blocked()
            await sides.relay.from_server(_DONE.replace(b'"id":1', b'"id":%d' % number))
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            await sides.relay.aclose()
        group.cancel_scope.cancel()
    assert len(sides.sent) == 10
    assert bench.said


@pytest.mark.slow
def test_the_command_passes_the_same_bytes_in_both_modes(tmp_path: Path) -> None:
    echo = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
    sent = b"\n".join(line for line in _CLIENT + _SERVER if isinstance(line, bytes)) + b"\n"
    came: list[Any] = []
    for mode in (["--unguarded"], ["--advisory", "--store", f"sqlite:///{tmp_path}/store.db"]):
        command = [sys.executable, "-m", "grampus_uq.cli", "mcp", *mode, "--", sys.executable, "-c", echo]
        run = subprocess.run(command, input=sent, capture_output=True, timeout=120, check=True)
        came.append(run.stdout)
    assert came[0] == came[1] == sent
    assert json.loads(_CALL)
