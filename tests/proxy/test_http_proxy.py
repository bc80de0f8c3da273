"""Over HTTP: the official client in both revisions against the official server, through the proxy."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from mcp.client.client import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from sse_starlette.sse import AppStatus

from grampus_uq.integrations.mcp.event_stream import data_of, read_events, written_event
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stores import open_store
from tests.servers import free_port, serves, until_up


@contextmanager
def serving(app: Any, port: int) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AppStatus, "should_exit", False)  # any server of this process that a signal ended has set it
        thread.start()
        while not server.started:
            assert thread.is_alive(), f"nothing serves on port {port}"
            time.sleep(0.01)
        yield
        server.should_exit = True
        thread.join(60)


@contextmanager
def proxied(tmp_path: Path, more: str = "", /, **servers: str) -> Iterator[str]:
    """A proxy of these servers, in a process of its own: its address."""
    port, config = free_port(), tmp_path / "proxy.toml"
    tables = [f'[servers.{name}]\nurl = "{address}"\ntrusted = true\n' for name, address in servers.items()]
    config.write_text(f'store = "sqlite:///{tmp_path}/store.db"\nhold_s = 5.0\n' + more + "".join(tables))
    options = ["--config", str(config), "--http", f"127.0.0.1:{port}"]
    process = subprocess.Popen([sys.executable, "-m", "grampus_uq.cli", "mcp", *options])
    try:
        until_up(process, lambda: serves(f"http://127.0.0.1:{port}/"))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(60) in (0, -15)


def notes() -> tuple[MCPServer, list[str]]:
    server, ran = MCPServer("notes"), list[str]()

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def read_note(name: str) -> str:
        ran.append(f"read {name}")
        return f"note {name}"

    @server.tool()
    def delete_note(name: str) -> str:
        ran.append(f"delete {name}")
        return f"deleted {name}"

    return server, ran


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_over_http_waits_and_runs_once_in_both_revisions(mode: str, tmp_path: Path) -> None:
    server, ran = notes()
    port = free_port()
    with serving(server.streamable_http_app(), port), proxied(tmp_path, notes=f"http://127.0.0.1:{port}/mcp") as proxy:
        async with Client(f"{proxy}/notes", mode=mode) as client:
            await client.list_tools()
            assert (await client.call_tool("read_note", {"name": "a"})).content[0].text == "note a"
            results: list[Any] = []

            async def delete() -> None:
                results.append(await client.call_tool("delete_note", {"name": "a"}))

            async with anyio.create_task_group() as group:
                group.start_soon(delete)
                await decide(tmp_path)
            assert results[0].content[0].text == "deleted a"
    assert ran == ["read a", "delete a"]


async def decide(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/store.db", create=True)
    try:
        ledger = Ledger(store)
        with anyio.fail_after(120):
            waiting = await ledger.pending()
            while not waiting:
                await anyio.sleep(0.05)
                waiting = await ledger.pending()
        await ledger.decide(waiting[0].requests[0].decide("approve", principal="ann"))
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"host": "evil.example"}, b"{}", 421),
        ({"origin": "http://evil.example"}, b"{}", 403),
        ({"origin": "null"}, b"{}", 403),
        ({"origin": "http://["}, b"{}", 403),
        ({"content-type": "text/plain"}, b"{}", 415),
        ({"content-encoding": "gzip"}, b"{}", 415),
        ({"content-type": "application/json; charset=utf-7"}, b'{"jsonrpc":"2.0","id":1,"method":"ping"}', 415),
        ({"content-type": "application/json; charset=shift_jis"}, b'{"jsonrpc":"2.0","id":1,"method":"ping"}', 415),
        ({"content-type": "application/json; x=1"}, b'{"jsonrpc":"2.0","id":1,"method":"ping"}', 415),
        ({}, b"[]", 400),
        ({}, b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}', 400),
        ({"mcp-method": "tools/call"}, b'{"jsonrpc":"2.0","id":1,"method":"ping"}', 400),
        ({"mcp-name": "=?base64?Yg==?="}, b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}', 400),
        ({"mcp-name": "b"}, b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}', 400),
        ({}, b" " * 17_000_000, 413),
    ],
)
def test_a_request_from_elsewhere_or_in_two_readings_reaches_no_server(
    headers: dict[str, str], body: bytes, status: int, web: tuple[str, list[str]]
) -> None:
    address, reached = web
    answer = httpx.post(f"{address}/one", content=body, headers={"content-type": "application/json"} | headers)
    assert answer.status_code == status
    assert reached == []


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """A proxy of two servers that list one tool of the same name, and what reached them."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    reached: list[str] = []

    async def answer(request: Request) -> JSONResponse:
        values = await request.json()
        if values["method"] == "tools/list":
            tools = [{"name": "send", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]
            return JSONResponse({"jsonrpc": "2.0", "id": values["id"], "result": {"tools": tools}})
        reached.append(values["method"])
        return JSONResponse({"jsonrpc": "2.0", "id": values["id"], "result": {}})

    app, port = Starlette(routes=[Route("/mcp", answer, methods=["POST"])]), free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    with serving(app, port), proxied(tmp_path_factory.mktemp("web"), one=url, two=url) as address:
        yield address, reached


def test_a_tool_that_two_servers_list_is_refused_with_both_named(web: tuple[str, list[str]]) -> None:
    address, reached = web
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "send"}}
    assert httpx.post(f"{address}/one", json=listing).status_code == 200
    assert httpx.post(f"{address}/one", json=call).json()["result"] == {}
    httpx.post(f"{address}/two", json=listing)
    refused = httpx.post(f"{address}/one", json=call)
    assert "one and two" in refused.json()["error"]["message"]
    assert reached == ["tools/call"]
    reached.clear()


def test_events_are_whole_however_their_bytes_arrive() -> None:
    stream = b'id: 1\ndata: {"a":\ndata: 1}\n\n: ping\r\n\r\ndata: x\n\nrest'

    async def read(size: int) -> list[bytes]:
        async def chunks() -> Any:
            for start in range(0, len(stream), size):
                yield stream[start : start + size]

        return [event async for event in read_events(chunks(), limit=100)]

    for size in range(1, len(stream) + 1):
        events = anyio.run(read, size)
        assert b"".join(events) == stream
        assert [data_of(event) for event in events] == [b'{"a":\n1}', None, b"x", None]
    assert written_event(b"id: 1\r\n: x\r\ndata: x\r\n\r\n", b"y") == b"id: 1\ndata: y\n\n"
    assert written_event(b": ping\n\n", None) == b":\n\n"


def test_what_is_held_of_an_event_is_not_copied_for_every_byte_that_comes() -> None:
    copied = []

    class Piece(bytes):
        def __radd__(self, held: Any) -> Any:
            if isinstance(held, bytearray):  # grows in place
                return NotImplemented
            copied.append(held)
            return held + bytes(self)

    async def chunks() -> Any:
        for byte in b"data: 12345\n\n" * 20:
            yield Piece([byte])

    async def read() -> list[bytes]:
        return [event async for event in read_events(chunks(), limit=100)]

    assert anyio.run(read) == [b"data: 12345\n\n"] * 20
    assert not copied
