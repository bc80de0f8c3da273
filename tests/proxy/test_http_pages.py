"""Whatever status, type and body a server answers with, no client reads a message in it that was not read here."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from grampus_uq.integrations.mcp.http_proxy import Upstream, http_app
from grampus_uq.integrations.mcp.http_traffic import Bounds
from grampus_uq.runtime import MemoryStore
from tests.proxy.ended_spans import counted
from tests.proxy.guarded import MODERN, Bench
from tests.sampling import sampled

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


_EVIL = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {"tools": [{"name": "read_note", "inputSchema": {}, "description": "EVIL"}]},
    }
).encode()
_JSON = {"content-type": "application/json"}
_STATUSES = [200, 201, 202, 203, 204, 206, 226, 299, 300, 304, 307, 400, 401, 404, 405, 409, 410, 429, 500, 502, 503]
_TYPES: list[str | None] = [
    *(None, "", "application/json", "application/json; charset=UTF-8", "application/json; charset=utf-16"),
    *("text/event-stream", "text/plain", "text/html; charset=utf-8", "text/plain; charset=utf-16"),
    *("application/octet-stream", "Application/JSON", "text/html, application/json"),
]
_BODIES = {
    "nothing": b"",
    "a message": _EVIL,
    "an event": b"data: " + _EVIL + b"\n\n",
    "an event behind a text": b"not found\ndata: " + _EVIL + b"\n\n",
    "a message behind a text": b"not found\r" + _EVIL,
    "in another alphabet": _EVIL.decode().encode("utf-16"),
    "behind an odd end of a line": "not found\u2028data: ".encode() + _EVIL + b"\n\n",
    "a batch": b"[" + _EVIL + b"]",
    "an error to nobody": b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}',
    "a page": b"<html>Not here.</html>",
    "bytes": b"\xff\x00\xfe",
}


def messages(body: bytes) -> Iterator[Any]:
    """Every message that some client could read in this, whatever its type says: whole, by lines, by events."""
    for text in (body.decode("utf-8", "replace"), body.decode("utf-16", "replace")):
        for part in (text, *text.splitlines(), *re.split(r"\r\n|\n|\r", text)):
            for candidate in (part, part.removeprefix("data:")):
                try:
                    found = json.loads(candidate)
                except ValueError:
                    continue
                yield from found if isinstance(found, list) else [found]


class _Body(httpx.AsyncByteStream):
    """A body that is read as it comes."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


def answer(status: int, headers: Any = None, body: bytes = b"") -> httpx.Response:
    return httpx.Response(status, headers=headers, stream=_Body(body))


class Front:
    """A proxy of one server in this process; `answer` is what the server says next."""

    def __init__(self, client: httpx.AsyncClient, bench: Bench) -> None:
        self.client, self.bench = client, bench
        self.answer: httpx.Response | Exception = answer(200)
        self.reached: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.reached.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def post(self, headers: dict[str, str] | None = None, **message: Any) -> httpx.Response:
        return await self.client.post("http://test/x", json={"jsonrpc": "2.0", **message}, headers=headers)


@asynccontextmanager
async def front(*, advisory: bool = False) -> AsyncIterator[Front]:
    bench = Bench(MemoryStore(), hold_s=0.0)
    async with anyio.create_task_group() as group:
        one: Front
        transport = httpx.MockTransport(lambda request: one(request))
        upstream = Upstream(url="http://behind/mcp", exchange=lambda name: bench.exchange, advisory=advisory)
        bounds = Bounds(hosts=frozenset({"test"}), limit=100_000)
        app, release = http_app({"x": upstream}, group, bounds=bounds, say=bench.said.append, transport=transport)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), verify=False) as client:
            one = Front(client, bench)
            yield one
        await release()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("advisory", [False, True])
async def test_a_status_that_the_proxys_own_server_cannot_send_is_not_passed_on(advisory: bool) -> None:
    async with front(advisory=advisory) as one:
        one.answer = answer(999, {"content-type": "application/json"}, b'{"jsonrpc":"2.0","id":1,"result":{}}')
        assert (await one.post(id=1, method="ping")).status_code == 502


@sampled("types", [[None, "application/json", "text/event-stream"]], full=[_TYPES])
async def test_no_answer_shows_a_client_a_definition_that_was_not_read_here(types: Any) -> None:
    passed = refused = 0
    async with front() as one:
        for status, kind, (name, body) in itertools.product(_STATUSES, types, _BODIES.items()):
            one.bench.tools._tools.clear()
            headers = {} if kind is None else {"content-type": kind}
            one.answer = answer(status, headers, body)
            came = await one.post(id=1, method="tools/list")
            shown = [m for m in messages(came.content) if isinstance(m, dict)]
            place = f"{status}, {kind}, {name}: {came.headers}, {came.content[:200]!r}"
            for message in shown:
                if "EVIL" in str(message.get("result")):
                    passed += 1
                    pin = one.bench.tools.pin("read_note")
                    assert pin is not None, place
                    assert "EVIL" in str(pin.definition), place
            if not shown and came.content:
                refused += 1
                assert came.headers["content-type"] == "text/plain; charset=utf-8" or b'"' not in came.content, place
            if status in (202, 204):
                assert came.content == b"", place
                assert "content-type" not in came.headers, place
            elif status >= 400 and came.headers["content-type"].startswith("text/plain"):
                assert came.text.startswith(f"the server answered {status}: "), place
                assert len(came.text.splitlines()) == 1, place
                assert len(came.text) < 1_100, place
    assert passed > 20  # both are seen
    assert refused > 20


@pytest.mark.parametrize("body", [b"", b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no"}}', b"{}"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_call_that_its_server_did_not_take_has_its_end_whatever_the_error_says(kind: str, body: bytes) -> None:
    async with front() as one:
        one.bench.calls.take_list({"tools": [{"name": "read_note", "annotations": {"readOnlyHint": True}}]})
        one.answer = answer(400, {"content-type": kind}, body)
        came = await one.post(id=1, method="tools/call", params={"name": "read_note"})
        assert came.status_code == 400
        assert came.headers["content-type"] == "application/json"
        with anyio.fail_after(60):
            while one.bench.calls.session.current().lease.state.turn:  # noqa: ASYNC110 (nothing tells it)
                await anyio.sleep(0.01)
        assert await one.bench.ledger.pending() == []


async def test_a_cookie_of_one_upstream_is_for_its_own_path_only() -> None:
    async with front() as one:
        cookies = ["sid=1", "sid=1; Path=/; HttpOnly", "a=b; domain=behind ;path=/x;Secure"]
        one.answer = answer(202, [("set-cookie", value) for value in cookies])
        came = await one.post(method="notifications/initialized")
        shown = came.headers.get_list("set-cookie")
        assert shown == ["sid=1; Path=/x", "sid=1; HttpOnly; Path=/x", "a=b;Secure; Path=/x"]


async def test_a_call_that_a_human_edited_is_sent_with_the_headers_of_the_edited_arguments() -> None:
    region = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    params = {"name": "delete_note", "arguments": {"region": "eu"}, "_meta": MODERN}
    async with front() as one:
        one.bench.exchange._hold_s = 10.0
        one.bench.calls.take_list({"tools": [{"name": "delete_note", "inputSchema": region}]})
        one.answer = answer(200, _JSON, b'{"jsonrpc":"2.0","id":1,"result":{}}')
        async with anyio.create_task_group() as group:
            post = {"id": 1, "method": "tools/call", "params": params}
            group.start_soon(lambda: one.post({"mcp-param-region": "eu", "mcp-method": "tools/call"}, **post))
            await one.bench.decide("edit", arguments={"region": "ü"})
        (sent,) = one.reached
        assert json.loads(sent.content)["params"]["arguments"] == {"region": "ü"}
        assert sent.headers.get_list("mcp-param-region") == ["=?base64?w7w=?="]


_CALLS = [
    (answer(200, _JSON, b'{"jsonrpc":"2.0","id":1,"result":{}}'), ""),
    (answer(200, _JSON, b'{"jsonrpc":"2.0","id":1,"result":{"isError":true}}'), "tool_error"),
    (answer(400, _JSON, b'{"jsonrpc":"2.0","id":1,"error":{"code":7,"message":""}}'), "7"),
    (answer(400, _JSON, b'{"jsonrpc":"2.0","id":null,"error":{"code":7,"message":""}}'), "-32600"),
    (answer(404), "-32600"),
    (answer(500, _JSON), "no_answer"),
    (answer(202, _JSON, b'{"jsonrpc":"2.0","id":1,"result":{}}'), "no_answer"),
    (answer(200, _JSON, b'{"jsonrpc":"2.0","id":2,"result":{}}'), "no_answer"),
    (answer(307, _JSON), "no_answer"),
    (httpx.ConnectError("nobody"), "no_answer"),
    (httpx.ReadError("gone"), "no_answer"),
]


async def test_the_span_of_each_call_is_ended_once_whatever_became_of_it() -> None:
    async with front() as one:
        spans = counted(one.bench.exchange)
        one.bench.calls.take_list({"tools": [{"name": "read_note", "annotations": {"readOnlyHint": True}}]})
        for one.answer, error in _CALLS:
            await one.post(id=1, method="tools/call", params={"name": "read_note"})
            with anyio.fail_after(60):
                while not spans.spans[-1].ends:  # noqa: ASYNC110 (nothing tells it)
                    await anyio.sleep(0.01)
            assert spans.ended()[-1] == error, one.answer
        refused = await one.post(id=1, method="tools/call", params={"name": "delete_note"})
        assert "waits for a human" in refused.text
        assert spans.ended()[-1] == "tool_error"
