"""Several servers behind one proxy over HTTP: names kept or prefixed, shared ones refused, and clients told apart."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp.client.client import Client

from grampus_uq.errors import ConfigurationError
from grampus_uq.integrations.mcp.http_proxy import Upstream, http_app
from grampus_uq.integrations.mcp.http_serving import serve_http
from grampus_uq.integrations.mcp.http_traffic import Bounds
from grampus_uq.integrations.mcp.proxy_config import ProxySettings, ServerSettings
from grampus_uq.integrations.mcp.proxy_parts import ProxyParts
from grampus_uq.runtime import http_server
from grampus_uq.runtime.asked_rows import ASKED, asked_row
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.worker_jobs import Job
from tests.proxy.test_http_pages import answer
from tests.proxy.test_http_proxy import decide, notes, proxied, serving
from tests.servers import free_port

pytestmark = pytest.mark.anyio
_JSON = {"content-type": "application/json"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clients:
    """Clients of a proxy whose servers all list the same tools and say what they were called with."""

    def __init__(self, client: httpx.AsyncClient, parts: ProxyParts) -> None:
        self.client, self.ledger = client, Ledger(parts._store)
        self.reached: list[tuple[str, dict[str, Any], httpx.Headers]] = []
        self.given: dict[str, str] = {}

    async def serve(self, request: httpx.Request) -> httpx.Response:
        message = json.loads(await request.aread() or b"{}")
        self.reached.append((request.url.host, message, request.headers))
        listed = [{"name": name, "annotations": {"readOnlyHint": True}} for name in ("send", "read")]
        result: dict[str, Any] = {"tools": listed} if message.get("method") == "tools/list" else {"is": "done"}
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result})
        return answer(200, {**_JSON, **self.given}, body.encode())

    async def post(self, path: str, method: str, headers: dict[str, str] | None = None, **params: Any) -> Any:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.client.post(f"http://test/{path}", json=message, headers=headers)

    async def call(self, path: str, tool: str, headers: dict[str, str] | None = None, **arguments: Any) -> str:
        """What a call is answered, as a text."""
        return str((await self.post(path, "tools/call", headers, name=tool, arguments=arguments)).json())

    def ran(self) -> list[tuple[str, str]]:
        return [(host, m["params"]["name"]) for host, m, _ in self.reached if m.get("method") == "tools/call"]


@asynccontextmanager
async def clients(servers: dict[str, str], *, hold_s: float = 0.0, **settings: Any) -> AsyncIterator[Clients]:
    """`servers`: the prefix of each."""
    tables = {name: ServerSettings(url=f"http://{name}", trusted=True, prefix=p) for name, p in servers.items()}
    parts = ProxyParts(ProxySettings(hold_s=hold_s, servers=tables, **settings), "memory:", print)
    upstreams = {
        name: Upstream(
            url=one.url,
            exchange=partial(parts.exchange, resumes=True, server=name, trusted=True, prefix=one.prefix),
            refusal=parts.shadow,
        )
        for name, one in tables.items()
    }
    async with anyio.create_task_group() as group:
        one: Clients
        transport = httpx.MockTransport(lambda request: one.serve(request))
        bounds = Bounds(hosts=frozenset({"test"}), limit=100_000, max_bytes=50_000)
        app, release = http_app(upstreams, group, bounds=bounds, say=print, transport=transport)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), verify=False) as client:
            one = Clients(client, parts)
            yield one
        await release()
        await parts.aclose()
        group.cancel_scope.cancel()


async def listed(one: Clients, path: str) -> list[str]:
    return [tool["name"] for tool in (await one.post(path, "tools/list")).json()["result"]["tools"]]


async def test_names_are_kept_or_prefixed_and_each_server_hears_its_own() -> None:
    async with clients({"a": "", "b": "b_"}, effects={"b_send": "irreversible"}) as one:
        assert await listed(one, "a") == ["send", "read"]
        assert await listed(one, "b") == ["b_send", "b_read"]
        assert "done" in await one.call("a", "send")
        assert "done" in await one.call("b", "b_read", {"mcp-name": "b_read", "mcp-method": "tools/call"})
        assert one.ran() == [("a", "send"), ("b", "read")]
        assert one.reached[-1][2]["mcp-name"] == "read"
        assert "waits for a human" in await one.call("b", "b_send")  # settings and requests have the client's name
        ((request,),) = [session.requests for session in await one.ledger.pending()]
        assert request.call is not None
        assert request.call.name == "b_send"
        for unknown in ("send", "b_", "a_read", "B_read"):
            assert "begin with" in await one.call("b", unknown)
        assert len(one.ran()) == 2


async def test_an_approved_call_with_a_prefix_runs_once_and_an_edit_keeps_the_tool() -> None:
    async with clients({"b": "b_"}, effects={"b_send": "irreversible"}) as one:
        await listed(one, "b")
        for kind, more, sent in [("approve", {}, {"n": 1}), ("edit", {"arguments": {"n": 7}}, {"n": 7})]:
            assert "waits for a human" in await one.call("b", "b_send", n=1)
            ((request,),) = [session.requests for session in await one.ledger.pending()]
            await one.ledger.decide(request.decide(kind, principal="ann", **more))
            with anyio.fail_after(60):
                while "waits for a human" in (said := await one.call("b", "b_send", n=1)):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            assert "done" in said
            params = one.reached[-1][1]["params"]
            assert (params["name"], params["arguments"]) == ("send", sent)
        assert len(one.ran()) == 2


@pytest.mark.parametrize(
    ("servers", "shared"),
    [({"a": "", "b": ""}, True), ({"a": "", "b": "b_"}, False), ({"a": "x_", "b": "X-"}, True), ({"a": ""}, False)],
)
async def test_a_name_that_two_servers_share_is_refused_unless_a_prefix_tells_them_apart(
    servers: dict[str, str], shared: bool
) -> None:
    async with clients(servers) as one:
        for path in servers:
            await listed(one, path)
        for path, prefix in servers.items():
            said = await one.call(path, f"{prefix}send")
            assert ("a and b list the tool" in said) == shared
            assert ("done" in said) != shared
    async with clients(servers, shadowing="allow") as one:
        for path, prefix in servers.items():
            await listed(one, path)
            assert "done" in await one.call(path, f"{prefix}send")


def test_a_prefix_is_refused_in_advisory_mode() -> None:
    server = {"a": ServerSettings(url="http://a", prefix="a_")}
    settings = ProxySettings(advisory=True, servers=server)
    parts = ProxyParts(settings, "memory:", print)
    with pytest.raises(ConfigurationError, match="advisory"):
        anyio.run(serve_http, settings, parts, "127.0.0.1:8765", print)


async def test_who_begins_no_request_is_let_go_and_a_proxy_that_ends_answers_and_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "_HEADERS_S", 0.05)
    settings, address, closed = ProxySettings(servers={"a": ServerSettings(url="http://a")}), free_port(), []
    parts = ProxyParts(settings, "memory:", print)
    close = parts.aclose

    async def aclose() -> None:
        await close()
        closed.append(True)

    monkeypatch.setattr(parts, "aclose", aclose)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(serve_http, settings, parts, f"127.0.0.1:{address}", lambda _: None)
            while True:
                with contextlib.suppress(OSError):
                    client = await anyio.connect_tcp("127.0.0.1", address)
                    break
                await anyio.sleep(0.01)
            async with client:
                await client.send(b"POST /a HTTP/1.1\r\nHost: 127")
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await client.receive()
            came: list[str] = []

            async def call() -> None:
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "send", "arguments": {}}}
                async with httpx.AsyncClient(verify=False) as caller:
                    came.append((await caller.post(f"http://127.0.0.1:{address}/a", json=body)).text)

            group.start_soon(call)
            while not await Ledger(parts._store).pending():  # noqa: ASYNC110 (nothing tells it)
                await anyio.sleep(0.01)
            signal.raise_signal(signal.SIGTERM)
    assert "waits for a human" in came[0]
    assert closed


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_calls_two_official_servers_by_kept_and_prefixed_names(
    mode: str, tmp_path: Path
) -> None:
    (first, ran), (second, other) = notes(), notes()
    ports = free_port(), free_port()
    tables = "".join(
        f'[servers.{name}]\nurl = "http://127.0.0.1:{port}/mcp"\ntrusted = true\nprefix = "{prefix}"\n'
        for name, port, prefix in [("one", ports[0], ""), ("two", ports[1], "two_")]
    )
    with (
        serving(first.streamable_http_app(stateless_http=True), ports[0]),  # where the proxy names the session
        serving(second.streamable_http_app(), ports[1]),
        proxied(tmp_path, tables) as proxy,
    ):
        async with Client(f"{proxy}/one", mode=mode) as one, Client(f"{proxy}/two", mode=mode) as two:
            assert {tool.name for tool in (await one.list_tools()).tools} == {"read_note", "delete_note"}
            assert {tool.name for tool in (await two.list_tools()).tools} == {"two_read_note", "two_delete_note"}
            assert (await one.call_tool("read_note", {"name": "a"})).content[0].text == "note a"
            results: list[Any] = []

            async def delete() -> None:
                results.append(await two.call_tool("two_delete_note", {"name": "b"}))

            async with anyio.create_task_group() as group:
                group.start_soon(delete)
                await decide(tmp_path)
            assert results[0].content[0].text == "deleted b"
    assert (ran, other) == (["read a"], ["delete b"])


async def test_an_answer_has_one_date_and_one_server() -> None:
    """Both are written by the proxy's own server; the upstream's stood beside them."""
    async with clients({"a": ""}) as one:
        one.given = {"date": "Sun, 29 Nov 2026 13:43:47 GMT", "server": "theirs", "x-other": "theirs"}
        given = (await one.post("a", "tools/list")).headers
        assert [name for name in ("date", "server", "x-other") if name in given] == ["x-other"]


async def test_clients_that_nothing_tells_apart_get_sessions_of_their_own_where_they_begin_one() -> None:
    async with clients({"a": ""}, effects={"send": "irreversible"}) as one:

        async def begins(headers: dict[str, str] | None = None) -> str | None:
            found: str | None = (await one.post("a", "initialize", headers)).headers.get("mcp-session-id")
            return found

        ann, bob = await begins(), await begins()
        assert ann is not None
        assert bob is not None
        assert ann != bob
        for own in (ann, bob):  # the same call of two clients is two calls
            assert "waits for a human" in await one.call("a", "send", {"mcp-session-id": own})
        assert len(await one.ledger.pending()) == 2
        assert not any("mcp-session-id" in headers for _, _, headers in one.reached)  # its server knows none
        assert await begins({"grampus-session": "desk"}) is None
        assert await begins({"authorization": "Bearer x"}) is None
        assert await begins({"mcp-session-id": ann}) is None
        one.given = {"mcp-session-id": "theirs"}
        assert await begins() == "theirs"
        await one.post("a", "ping", {"mcp-session-id": "theirs"})
        assert one.reached[-1][2]["mcp-session-id"] == "theirs"


@pytest.mark.parametrize("named", ["mcp-session-id", "grampus-session"])
async def test_a_session_serves_no_other_login_whatever_names_it(named: str) -> None:
    async with clients({"a": ""}, effects={"send": "irreversible"}) as one:
        ann, eve = ({named: "s-1", "authorization": f"Bearer {who}"} for who in ("ann", "eve"))
        for headers in (ann, eve):
            await one.post("a", "tools/list", headers)
        assert "waits for a human" in await one.call("a", "send", ann, n=1)
        ((request,),) = [session.requests for session in await one.ledger.pending()]
        await one.ledger.decide(request.decide("approve", principal="bob"))
        with anyio.fail_after(60):
            while await one.ledger.pending():  # noqa: ASYNC110 (until it is taken up: nothing tells it)
                await anyio.sleep(0.05)
        for stranger in (eve, {named: "s-1"}, {"authorization": "Bearer eve"}):
            await one.client.delete("http://test/a", headers=stranger)
            assert "done" not in await one.call("a", "send", stranger, n=1)
        assert one.ran() == []
        assert "done" in await one.call("a", "send", ann, n=1)
        assert one.ran() == [("a", "send")]


async def test_sessions_with_held_calls_are_bounded_and_nobody_is_asked_for_one_more() -> None:
    async with clients({"a": "", "b": ""}, shadowing="allow", effects={"send": "irreversible"}) as one:
        sent = [{"grampus-session": name} for name in ("first", "last")]
        for headers in sent:
            await one.post("a", "tools/list", headers)
        await one.post("b", "tools/list")
        assert "waits for a human" in await one.call("a", "send", sent[0])
        ((request,),) = [session.requests for session in await one.ledger.pending()]
        rows = [
            asked_row(request.model_copy(update={"id": f"{number}"}), Job(agent_id=agent, session_id=f"{number}"))
            for number, agent in enumerate(["mcp/a"] * 999 + ["somebody-else"] * 999)
        ]
        await one.ledger.store.write(*rows)
        refused = await one.call("a", "send", sent[1])
        assert "nobody was asked: calls of 1,000 other sessions of this server already wait" in refused
        assert len(await one.ledger.pending()) == 1
        assert "done" in await one.call("a", "read", sent[1])  # what nobody has to decide on goes on
        assert "waits for a human" in await one.call("a", "send", sent[0], n=2)  # and so do sessions that ask already
        assert "waits for a human" in await one.call("b", "send")
        row = await one.ledger.store.get(ASKED, rows[0].key)
        assert row is not None
        await one.ledger.store.write(row.removal())
        assert "waits for a human" in await one.call("a", "send", sent[1])
        assert one.ran() == [("a", "read")]


async def test_a_client_that_ends_a_session_ends_nothing_of_the_calls_that_are_at_work_in_it() -> None:
    async with clients({"a": ""}, effects={"send": "irreversible"}) as one:
        await listed(one, "a")
        answers: list[str] = []
        may_end, serve = anyio.Event(), one.serve

        async def slowly(request: httpx.Request) -> httpx.Response:
            found = await serve(request)
            if one.ran():
                await may_end.wait()
            return found

        async def call() -> None:
            answers.append(await one.call("a", "send"))

        one.serve = slowly  # type: ignore[method-assign]
        await call()
        ((request,),) = [session.requests for session in await one.ledger.pending()]
        await one.ledger.decide(request.decide("approve", principal="ann"))
        async with anyio.create_task_group() as group:
            with anyio.fail_after(60):
                while not one.ran():
                    group.start_soon(call)
                    await anyio.sleep(0.1)
            group.start_soon(one.client.delete, "http://test/a")
            await anyio.sleep(0.3)
            await call()
            assert "still running" in answers[-1]
            may_end.set()
        assert sum("done" in said for said in answers) >= 1
        assert await one.ledger.pending() == []
        assert len(one.ran()) == 1


class _Endless(httpx.AsyncByteStream):
    def __init__(self, ended: anyio.Event) -> None:
        self._ended = ended

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"x" * 45_000
        await self._ended.wait()


async def test_a_server_that_never_ends_its_answers_takes_no_room_of_another_one() -> None:
    async with clients({"a": "", "b": "b_"}) as one:
        await listed(one, "b")
        ended, serve = anyio.Event(), one.serve

        async def endless(request: httpx.Request) -> httpx.Response:
            if request.url.host == "a":
                return httpx.Response(200, headers=_JSON, stream=_Endless(ended))
            return await serve(request)

        one.serve = endless  # type: ignore[method-assign]
        async with anyio.create_task_group() as group:
            group.start_soon(one.post, "a", "ping")
            await anyio.sleep(0.2)
            assert "beside the other answers" in (await one.post("a", "ping")).text
            assert "done" in await one.call("b", "b_read", text="y" * 20_000)
            ended.set()


async def test_a_request_may_name_its_session_in_its_meta_and_its_server_does_not_see_the_name() -> None:
    key = "grampus_uq/session"
    async with clients({"a": ""}, effects={"send": "irreversible"}) as one:

        async def asks(headers: dict[str, str] | None = None, /, **meta: Any) -> int:
            """How many requests wait after this call."""
            params = {"name": "send", "arguments": {}, "_meta": meta}
            assert "waits for a human" in (await one.post("a", "tools/call", headers, **params)).text
            return len(await one.ledger.pending())

        assert await asks(**{key: "ann"}) == 1
        assert await asks(**{key: "ann"}, progressToken=1) == 1
        assert await asks({"grampus-session": "ann"}) == 1  # the same name, however it is given
        assert await asks(**{key: "bob"}) == 2
        assert await asks() == 3
        assert await asks({"grampus-session": "ann"}, **{key: "bob"}) == 3  # the header comes first
        await one.post("a", "ping", _meta={key: "ann", "x": 1})
        assert one.reached[-1][1]["params"]["_meta"] == {"x": 1}
        for bad in (1, "", ["ann"], "x" * 2_000):
            refused = await one.post("a", "tools/list", _meta={key: bad})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32600)
        assert (await one.post("a", "initialize", _meta={key: "ann"})).headers.get("mcp-session-id") is None


async def test_a_name_that_another_server_lists_while_its_call_waits_is_refused_when_the_call_is_approved() -> None:
    async with clients({"a": "", "b": ""}, hold_s=20.0, effects={"send": "irreversible"}) as one:
        await listed(one, "a")
        said: list[str] = []

        async def send() -> None:
            said.append(await one.call("a", "send"))

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            with anyio.fail_after(60):
                while not (waiting := await one.ledger.pending()):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            await listed(one, "b")
            await one.ledger.decide(waiting[0].requests[0].decide("approve", principal="ann"))
        assert "a and b list the tool" in said[0]
        assert one.ran() == []
        ((request,),) = [session.requests for session in await one.ledger.pending()]
        assert "a and b list the tool" in request.reason
