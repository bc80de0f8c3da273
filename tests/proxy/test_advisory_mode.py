"""In advisory mode both sides are sent every byte as it came, and what passed is recorded."""

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
from grampus_uq.integrations.mcp.call_exchange import Passed
from grampus_uq.integrations.mcp.json_rpc import read_message
from grampus_uq.integrations.mcp.message_lines import read_lines
from grampus_uq.integrations.mcp.stdio_proxy import passing
from grampus_uq.runtime import MemoryStore
from tests.proxy.guarded import Bench, SlowStore, bench
from tests.proxy.test_guard import UNCLEAR
from tests.proxy.test_server_messages import SPELLINGS
from tests.sampling import examples

pytestmark = pytest.mark.anyio

_CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_note","arguments":{ "a":1.50}}}'
_DONE = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"gone"}]}}'
_LONG = _CALL.replace(b"1.50", b"1" * 100)
_CLIENT = [*UNCLEAR, _CALL, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}', _LONG]
_SERVER = [*SPELLINGS.values(), _DONE, b"a line of a log \xff", _LONG]


class Sides:
    """What each side was sent of what the other one wrote, in chunks of a size."""

    def __init__(self, bench: Bench) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.relay = Advisory(exchange=bench.exchange, say=bench.said.append)

    async def write(self, data: bytes, *, to: str, size: int = 10_000) -> None:
        chunks = [data[start : start + size] for start in range(0, len(data), size)]

        async def receive() -> bytes:
            return chunks.pop(0) if chunks else b""

        async def send(chunk: bytes) -> None:
            self.sent.append((to, chunk))

        async for line in read_lines(passing(receive, send), limit=len(_CALL) + 1):
            await (self.relay.from_client if to == "server" else self.relay.from_server)(line)

    async def call(self, identity: int) -> None:
        await self.write(_CALL.replace(b'"id":1', b'"id":%d' % identity) + b"\n", to="server")

    async def answer(self, identity: int) -> None:
        await self.write(_DONE.replace(b'"id":1', b'"id":%d' % identity) + b"\n", to="client")


async def passed(written: list[tuple[bool, bytes]], size: int) -> list[tuple[str, bytes]]:
    sides = Sides(Bench(MemoryStore(), hold_s=0.0, advisory=True))
    async with anyio.create_task_group() as group:
        group.start_soon(sides.relay.run)
        for from_client, data in written:
            await sides.write(data, to="server" if from_client else "client", size=size)
        await sides.relay.client_left()
        await sides.relay.aclose()
        group.cancel_scope.cancel()
    return sides.sent


_ends = st.sampled_from([b"\n", b"\r\n", b"\n\n", b""])
_lines = st.sampled_from([(True, line) for line in _CLIENT] + [(False, line) for line in _SERVER])
_bytes = st.tuples(st.booleans(), st.binary(min_size=1, max_size=40))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(_lines | _bytes, _ends), max_size=12), st.integers(1, 40))
def test_every_byte_passes_as_it_came_a_line_that_is_too_long_too(
    written: list[tuple[tuple[bool, bytes], bytes]], size: int
) -> None:
    whole = [(from_client, data + end) for (from_client, data), end in written]
    came = anyio.run(passed, whole, size)
    for side, from_client in [("server", True), ("client", False)]:
        wrote = b"".join(data for whose, data in whole if whose is from_client)
        assert b"".join(data for to, data in came if to == side) == wrote


async def test_a_message_is_shown_before_it_passes_so_that_no_answer_is_seen_before_its_call() -> None:
    happened: list[bytes] = []
    chunks = [b"a\nb\nc", b"d\n", b""]

    async def receive() -> bytes:
        return chunks.pop(0)

    async def send(chunk: bytes) -> None:
        happened.append(b"sent " + chunk)

    async for line in read_lines(passing(receive, send)):
        assert isinstance(line, bytes)
        happened.append(line)
    assert happened == [b"a", b"b", b"sent a\nb\nc", b"cd", b"sent d\n"]


async def test_a_call_that_would_wait_and_its_result_are_recorded() -> None:
    played = Bench(MemoryStore(), hold_s=0.0, advisory=True)
    sides = Sides(played)
    async with anyio.create_task_group() as group:
        group.start_soon(sides.relay.run)
        await sides.call(1)
        await sides.answer(1)  # before the call could be judged
        await sides.relay.aclose()
        group.cancel_scope.cancel()
    state = (await played.ledger.known("mcp", "s"))[0]
    assert state.tool_calls_made == 1
    assert "gone" in [message.content for message in state.messages]


async def test_each_call_is_recorded_though_the_same_one_was_never_answered_and_nobody_is_asked() -> None:
    async with bench(hold_s=0.0, advisory=True) as one:
        for _ in range(2):
            judged = await one.exchange.outcome(read_message(_CALL), anyio.Event())
            assert isinstance(judged, Passed)
            await one.exchange.lost(judged.record)
        assert one.calls.session.current().lease.state.turn == []
        assert await one.ledger.pending() == []


async def test_a_store_that_hangs_delays_nothing_and_what_is_not_looked_at_is_bounded() -> None:
    store = SlowStore()
    store.locked = True
    played = Bench(store, hold_s=0.0, advisory=True)
    sides = Sides(played)
    async with anyio.create_task_group() as group:
        group.start_soon(sides.relay.run)
        with anyio.fail_after(60):
            for _ in range(1_500):
                await sides.call(1)
        assert len(sides.sent) == 1_500
        assert any("unrecorded" in text for text in played.said)
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
    played = Bench(Broken(error, good), hold_s=0.0, advisory=True)
    sides = Sides(played)
    async with anyio.create_task_group() as group:
        group.start_soon(sides.relay.run)
        for number in range(5):
            await sides.call(number)
            await anyio.wait_all_tasks_blocked()
            await sides.answer(number)
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            await sides.relay.aclose()
        group.cancel_scope.cancel()
    assert len(sides.sent) == 10
    assert played.said


@pytest.mark.slow
def test_the_command_passes_the_same_bytes_in_both_modes(tmp_path: Path) -> None:
    echo = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
    sent = b"\r\n".join([*_CLIENT, *_SERVER, b"", _CALL.replace(b"1.50", b"1" * 17_000_000)]) + b"\nno end"
    came: list[Any] = []
    for mode in (["--unguarded"], ["--advisory", "--store", f"sqlite:///{tmp_path}/store.db"]):
        command = [sys.executable, "-m", "grampus_uq.cli", "mcp", *mode, "--", sys.executable, "-c", echo]
        run = subprocess.run(command, input=sent, capture_output=True, timeout=120, check=True)
        came.append(run.stdout)
    assert came[0] == came[1] == sent
    assert json.loads(_CALL)
