"""In advisory mode over HTTP a client and a server see of each other what they would see without the proxy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import httpx
import pytest

from tests.proxy.test_http_answers import web

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The server's own."""
    return "asyncio"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_that_breaks_off_breaks_off_for_its_client_after_all_that_came(kind: str) -> None:
    async with web(advisory=True) as one:

        async def torn(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield b'data: {"jsonrpc":'
            yield b' "2.0"'
            raise OSError("the server dies")

        one.server.answer, one.server.headers = torn, {"content-type": kind}
        came, broke_off = b"", False
        async with one.client.stream("POST", one.address, json={"method": "ping", "id": 1}) as answer:
            try:
                async for chunk in answer.aiter_raw():
                    came += chunk
            except httpx.RemoteProtocolError:
                broke_off = True
        assert came == b'data: {"jsonrpc": "2.0"'
        assert broke_off


@pytest.mark.parametrize("user", ["", "ann:sesame@"])
@pytest.mark.parametrize("to", ["/mcp/", "../other?x=1", "http://127.0.0.1:1/b"])
async def test_a_redirect_leads_where_the_server_says_and_the_log_has_the_address_to_give(to: str, user: str) -> None:
    """No client learns the password by which the proxy reaches its server."""
    async with web(advisory=True, user=user) as one:
        one.server.status, one.server.headers = 307, {"location": to}
        answer = await one.post(id=1, method="ping")
        assert answer.status_code == 307
        assert answer.headers["location"] == str(httpx.URL(one.server_address).join(to))
        assert any("give the address it redirects to" in text for text in one.bench.said)


async def test_a_server_hears_at_once_that_its_client_left_a_call() -> None:
    async with web(advisory=True) as one:

        async def endless(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield b": begun\n\n"
            await anyio.sleep_forever()

        one.server.answer, one.server.headers = endless, {"content-type": "text/event-stream"}
        await one.leave(1, path="a")
        await one.until(lambda: one.server.open == 0)
        state = one.bench.calls.session.current().lease.state
        await one.until(lambda: state.tool_calls_made == 0 and not state.turn)
        assert await one.bench.ledger.pending() == []


@pytest.mark.parametrize("status", [200, 404, 600])
async def test_a_call_that_is_never_answered_is_no_open_one_and_the_same_one_is_recorded(status: int) -> None:
    async with web(advisory=True) as one:
        answers = one.server.answer

        async def dies(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield b"{"
            raise OSError("the server dies")

        one.server.answer, one.server.status = dies, status
        params = {"name": "delete_note", "arguments": {"path": "a"}}
        with suppress(httpx.RemoteProtocolError):
            await one.post(id=1, method="tools/call", params=params)
        state = one.bench.calls.session.current().lease.state
        await one.until(lambda: not state.turn)
        before = state.tool_calls_made
        one.server.answer, one.server.status = answers, 200
        assert "is" in (await one.call(2, path="a"))["result"]
        await one.until(lambda: state.tool_calls_made == before + 1)
        assert await one.bench.ledger.pending() == []


@pytest.mark.parametrize("framed", [True, False], ids=["its length is given", "in pieces"])
@pytest.mark.parametrize("bounds", [{"limit": 1_000}, {"max_bytes": 1_000}], ids=["too long", "too many are held"])
@pytest.mark.parametrize("size", [2_000, 400_000])
async def test_a_request_that_is_not_held_passes_unjudged_with_its_bytes(
    bounds: dict[str, int], framed: bool, size: int
) -> None:
    async with web(advisory=True, **bounds) as one:

        async def saying(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"was": len(one.server.bodies[-1])}}).encode()

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(body), 90_001):
                yield body[at : at + 90_001]

        body = b'{"id": 7, "method": "tools/call", "params": {"name": "delete_note", "x": "' + b"y" * size + b'"}}'
        one.server.answer = saying
        answer = await one.client.post(one.address, content=body if framed else pieces())
        assert (answer.status_code, answer.json()["result"]) == (200, {"was": len(body)})
        assert one.server.bodies[-1] == body
        assert [text for text in one.bench.said if "passes unjudged" in text]
        one.server.answer = one.server.echo
        assert "is" in (await one.call(8, path="a"))["result"]
        await one.until(lambda: one.bench.calls.session.current().lease.state.tool_calls_made == 1)


async def test_beside_more_clients_than_sessions_each_one_is_served_and_the_last_ones_unjudged() -> None:
    async with web(advisory=True, max_open=20) as one:

        async def listening(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield b": open\n\n"
            await anyio.sleep_forever()

        unbounded = httpx.AsyncClient(verify=False, headers={"host": "test"}, limits=httpx.Limits())
        one.server.answer, one.server.headers = listening, {"content-type": "text/event-stream"}
        async with AsyncExitStack() as streams, unbounded as client:
            for number in range(256):
                asks = client.stream("GET", one.address, headers={"mcp-session-id": str(number)})
                assert (await streams.enter_async_context(asks)).status_code == 200
            one.server.answer, one.server.headers = one.server.echo, {"content-type": "application/json"}
            params = {"name": "delete_note", "arguments": {"path": "a"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            last = await client.post(one.address, json=body, headers={"mcp-session-id": "last"})
            assert last.json()["result"] == {"is": params}
            assert one.server.ran() == [params]
            assert any("unjudged: the proxy has too many busy sessions" in text for text in one.bench.said)
