"""Over HTTP each request has its own answer, what passes was read, and every call comes to an end."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import anyio
import httpx
import pytest
import uvicorn

from grampus_uq import Grant
from grampus_uq.integrations.mcp.call_exchange import CallExchange, Passed
from grampus_uq.integrations.mcp.http_headers import session_name
from grampus_uq.integrations.mcp.http_proxy import Upstream, http_app
from grampus_uq.integrations.mcp.http_traffic import Bounds
from grampus_uq.integrations.mcp.json_rpc import read_message
from grampus_uq.integrations.mcp.proxy_config import ProxySettings
from grampus_uq.integrations.mcp.proxy_parts import ProxyParts
from grampus_uq.runtime import MemoryStore
from tests.proxy.guarded import Bench, SlowStore, read_as_doubtful
from tests.servers import free_port

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The server's own."""
    return "asyncio"


_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream"}
_TOOLS = [{"name": "read_note", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]


class Server:
    """An upstream whose answers the test writes: `answer` sends pieces of a body, by what `reached` it last."""

    def __init__(self) -> None:
        self.reached: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.open = 0
        self.status, self.headers = 200, dict(_JSON)
        self.answer: Callable[[dict[str, Any]], AsyncIterator[bytes]] = self.echo

    async def echo(self, message: dict[str, Any]) -> AsyncIterator[bytes]:
        result = {"tools": _TOOLS} if message.get("method") == "tools/list" else {"is": message.get("params")}
        yield json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[..., Any]) -> None:
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        self.bodies.append(body)
        try:
            message = json.loads(body)
        except ValueError:
            message = {"method": scope["method"], "headers": dict(scope["headers"])}
        self.reached.append(message)
        self.open += 1
        async with anyio.create_task_group() as group:

            async def gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(gone)
            try:
                headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
                await send({"type": "http.response.start", "status": self.status, "headers": headers})
                async for piece in self.answer(message):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            finally:
                self.open -= 1
            group.cancel_scope.cancel()

    def ran(self) -> list[Any]:
        return [message["params"] for message in self.reached if message.get("method") == "tools/call"]


class Web:
    """A proxy of one server, in this process, and its clients."""

    def __init__(self, server: Server, bench: Bench, address: str, client: httpx.AsyncClient) -> None:
        self.server, self.bench, self.address, self.client = server, bench, address, client
        self.server_address = ""

    async def post(self, **message: Any) -> httpx.Response:
        return await self.client.post(self.address, json={"jsonrpc": "2.0", **message})

    async def call(self, identity: int, tool: str = "delete_note", **arguments: Any) -> Any:
        params = {"name": tool, "arguments": arguments}
        return (await self.post(id=identity, method="tools/call", params=params)).json()

    async def bare(self, method: bytes, header: bytes) -> None:
        """A request with this header and no other."""
        stream = await anyio.connect_tcp("127.0.0.1", httpx.URL(self.address).port or 0)
        async with stream:
            await stream.send(method + b" /x HTTP/1.1\r\nHost: test\r\n" + header + b"\r\n\r\n")
            await stream.receive()

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not holds():  # noqa: ASYNC110 (nothing tells it)
                await anyio.sleep(0.01)

    async def leave(self, identity: int, **arguments: Any) -> None:
        """Call, and leave at the first byte of the answer."""
        body = {"jsonrpc": "2.0", "id": identity, "method": "tools/call"}
        params = {"name": "delete_note", "arguments": arguments}
        async with (
            httpx.AsyncClient(verify=False, headers={"host": "test"}, timeout=20) as client,
            client.stream("POST", self.address, json={**body, "params": params}) as answer,
        ):
            async for _ in answer.aiter_raw():
                return


@asynccontextmanager
async def served(app: Any, group: anyio.abc.TaskGroup) -> AsyncIterator[int]:
    port, ended = free_port(), anyio.Event()
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="critical", lifespan="off", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        await server._serve()  # `serve` takes the signals of the process
        ended.set()

    group.start_soon(serve)
    while not server.started:  # noqa: ASYNC110 (nothing tells it)
        await anyio.sleep(0.01)
    yield port
    server.should_exit = True
    await ended.wait()


@asynccontextmanager
async def web(
    store: MemoryStore | None = None,
    *,
    advisory: bool = False,
    hold_s: float = 10.0,
    judged: dict[str, Any] | None = None,
    user: str = "",
    **bounds: int,
) -> AsyncIterator[Web]:
    hold_s = 0.0 if advisory else hold_s
    server, bench = Server(), Bench(store or MemoryStore(), hold_s=hold_s, advisory=advisory, **(judged or {}))
    async with anyio.create_task_group() as group:
        async with served(server, group) as behind:
            upstream = Upstream(
                url=f"http://{user}127.0.0.1:{behind}/mcp", exchange=lambda name: bench.exchange, advisory=advisory
            )
            limits = Bounds(hosts=frozenset({"test"}), **{"limit": 100_000, **bounds})
            app, release = http_app({"x": upstream}, group, bounds=limits, say=bench.said.append)
            headers = {"host": "test"}
            async with (
                served(app, group) as port,
                httpx.AsyncClient(verify=False, headers=headers, timeout=20) as client,
            ):
                one = Web(server, bench, f"http://127.0.0.1:{port}/x", client)
                one.server_address = upstream.url.replace(user, "")
                await one.post(id=0, method="tools/list")
                yield one
                await release()
        group.cancel_scope.cancel()


async def test_two_requests_of_one_session_may_have_one_id_and_each_gets_its_own_answer() -> None:
    async with web() as one:
        finish, answers = anyio.Event(), []

        async def slowly(message: dict[str, Any]) -> AsyncIterator[bytes]:
            if message.get("params", {}).get("name") == "delete_note":
                await finish.wait()
            async for piece in one.server.echo(message):
                yield piece

        one.server.answer = slowly
        async with anyio.create_task_group() as group:

            async def first() -> None:
                answers.append(await one.call(1, path="a"))

            group.start_soon(first)
            await one.bench.waiting()
            assert (await one.call(1, "read_note"))["result"]["is"]["name"] == "read_note"
            await one.bench.decide()
            await one.until(lambda: len(one.server.ran()) == 2)
            other = await one.post(id=1, method="resources/read", params={"uri": "b"})  # while the call runs
            assert other.json()["result"] == {"is": {"uri": "b"}}
            listed = await one.post(id=1, method="tools/list")
            assert listed.json()["result"]["tools"] == _TOOLS
            finish.set()
        assert answers[0]["result"]["is"]["arguments"] == {"path": "a"}
        assert len(one.server.ran()) == 2


def event(**message: Any) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


async def approved(one: Web, run: Callable[[], Awaitable[Any]]) -> None:
    """A call is approved while it waits."""
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await one.bench.decide()


async def test_the_result_of_a_call_whose_client_left_in_the_middle_is_kept_for_its_repeat() -> None:
    async with web() as one:
        left = anyio.Event()

        async def stream(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield event(method="notifications/progress")
            await left.wait()
            for _ in range(3):
                yield event(method="notifications/progress")
            yield event(id=message["id"], result={"content": [{"type": "text", "text": "gone"}]})

        one.server.headers, one.server.answer = _EVENTS, stream
        await approved(one, lambda: one.leave(1, path="a"))
        await anyio.sleep(0.1)
        left.set()
        await one.until(lambda: one.server.open == 0)
        assert (await one.call(2, path="a"))["result"]["content"][0]["text"] == "gone"
        assert len(one.server.ran()) == 1


@pytest.mark.parametrize("end", ["breaks off", "answers another id", "answers nothing", "fails"])
async def test_a_call_whose_answer_never_comes_is_asked_about_and_not_run_again(end: str) -> None:
    async with web(hold_s=0.5) as one:

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield b""
            if end == "breaks off":
                yield event(method="notifications/progress")
            elif end == "answers another id":
                yield json.dumps({"jsonrpc": "2.0", "id": "1", "result": {}}).encode()
            elif end == "fails":
                yield b"Internal Server Error"

        one.server.answer = answer
        one.server.headers = (
            _EVENTS if end == "breaks off" else {"content-type": "text/plain"} if end == "fails" else _JSON
        )
        one.server.status = 500 if end == "fails" else 200
        one.bench.exchange._hold_s = 10.0
        await approved(one, lambda: one.leave(1, path="a"))
        assert (await one.bench.waiting()).unknown_outcome
        one.bench.exchange._hold_s = 0.1
        one.server.headers, one.server.status = _JSON, 200
        assert "waits for a human" in (await one.call(2, path="a"))["result"]["content"][0]["text"]
        assert len(one.server.ran()) == 1


@pytest.mark.parametrize("tool", ["delete_note", "read_note"])
@pytest.mark.parametrize(
    ("headers", "body", "breaks"),
    [
        (_EVENTS, event(method="notifications/progress"), False),
        (_EVENTS, event(id="1", result={}), True),
        (_EVENTS, b'data: {"jsonrpc":"2.0","id":1,"res', True),
        (_EVENTS, b"", False),
        (_JSON, b'{"jsonrpc":"2.0","id":1,"res', True),
        (_JSON, b"", True),
    ],
)
async def test_a_client_is_told_at_once_that_the_answer_to_its_call_ended_without_a_result(
    headers: dict[str, str], body: bytes, breaks: bool, tool: str
) -> None:
    async with web() as one:

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield body
            if breaks:
                raise ConnectionError

        one.server.headers, one.server.answer = headers, answer
        came: list[str] = []

        async def run() -> None:
            params = {"name": tool, "arguments": {"path": "a"}}
            came.append((await one.post(id=1, method="tools/call", params=params)).text)

        await (approved(one, run) if tool == "delete_note" else run())
        (last,) = [line for line in came[0].splitlines() if '"error"' in line]
        assert json.loads(last.removeprefix("data: "))["id"] == 1
        assert ("whether the call took effect is not known" in last) == (tool == "delete_note")
        asked = [request for session in await one.bench.ledger.pending() for request in session.requests]
        assert [request.unknown_outcome for request in asked] == [True] * (tool == "delete_note")


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, _JSON, b'{"jsonrpc":"2.0","id":1,"result":'),
        (200, _JSON, b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 200_000 + b'"}'),
        (200, _EVENTS, b'data: {"jsonrpc":"2.0","id":1,"result":"' + b"x" * 200_000 + b'"}\n\n'),
        (404, {"content-type": "text/plain"}, b"Session not found"),
    ],
    ids=["broken", "too long", "an event that is too long", "a page"],
)
async def test_an_answer_that_nobody_reads_is_an_error_and_asks_what_became_of_the_call_and_a_refusal_settles_it(
    status: int, headers: dict[str, str], body: bytes
) -> None:
    async with web() as one:

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield body

        one.server.status, one.server.headers, one.server.answer = status, headers, answer
        came: list[httpx.Response] = []
        params = {"name": "delete_note"}

        async def run() -> None:
            came.append(await one.post(id=1, method="tools/call", params=params))

        await approved(one, run)
        error = json.loads(came[0].text.removeprefix("data: "))["error"]
        assert error["code"] == -32600
        assert ("whether the call took effect is not known" in error["message"]) == (status == 200)
        asked = [request for session in await one.bench.ledger.pending() for request in session.requests]
        assert [request.unknown_outcome for request in asked] == [True] * (status == 200)


async def test_a_stream_that_goes_on_in_another_one_brings_its_result_there() -> None:
    async with web() as one:

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            if message["method"] == "tools/call":
                yield b"id: e1\ndata: \n\n"
                return
            yield event(id=99, result={"tools": []})  # to a request that nobody made
            yield event(id=1, result={"content": [{"type": "text", "text": "gone"}]})

        one.server.headers, one.server.answer = _EVENTS, answer
        await approved(one, lambda: one.leave(1, path="a"))
        await one.until(lambda: one.server.open == 0)
        stranger = await one.client.get(one.address)
        assert "gone" not in stranger.text
        rest = await one.client.get(one.address, headers={"last-event-id": "e1"})
        assert "gone" in rest.text
        assert "99" not in rest.text
        assert await one.bench.ledger.pending() == []


@pytest.mark.slow
async def test_streams_that_their_clients_left_are_closed_however_many() -> None:
    async with web() as one:

        async def silence(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield b": hello\n\n"
            await anyio.sleep_forever()

        one.server.headers, one.server.answer = _EVENTS, silence
        for _ in range(105):
            async with (
                httpx.AsyncClient(verify=False, headers={"host": "test"}) as client,
                client.stream("GET", one.address) as stream,
            ):
                async for _ in stream.aiter_raw():
                    break
        await one.until(lambda: one.server.open == 0)
        one.server.headers, one.server.answer = _JSON, one.server.echo
        assert (await one.post(id=1, method="ping")).status_code == 200


async def test_a_request_that_its_client_left_before_the_answer_began_is_closed() -> None:
    async with web() as one:

        async def silence(message: dict[str, Any]) -> AsyncIterator[bytes]:
            await anyio.sleep_forever()
            yield b""

        started = anyio.Event()

        async def never(scope: Any, receive: Any, send: Any) -> None:
            started.set()
            one.server.open += 1
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            finally:
                one.server.open -= 1

        one.server.__class__ = type("Silent", (Server,), {"__call__": lambda self, *given: never(*given)})
        with anyio.move_on_after(0.3):
            await one.post(id=1, method="ping")
        await started.wait()
        await one.until(lambda: one.server.open == 0)


@pytest.mark.parametrize("how", ["leaves", "notifies", "notifies, and comes again after the answer"])
@pytest.mark.parametrize("kind", [_JSON, _EVENTS], ids=["body", "events"])
async def test_a_call_that_its_client_gave_up_does_not_run_beside_itself(kind: dict[str, str], how: str) -> None:
    """The server answers nothing, not even headers, before it is done."""
    async with web(judged=read_as_doubtful("pay")) as one:
        works = anyio.Event()

        async def late(scope: Any, receive: Any, send: Any) -> None:
            message = json.loads((await receive())["body"])
            one.server.reached.append(message)
            if "id" not in message:
                await send({"type": "http.response.start", "status": 202, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            await works.wait()
            result = {"content": [{"type": "text", "text": f"paid {len(one.server.ran())}"}]}
            line = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            headers = [(name.encode(), value.encode()) for name, value in kind.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": line if kind is _JSON else b"data: " + line + b"\n\n"})

        one.server.__class__ = type("Late", (Server,), {"__call__": lambda self, *given: late(*given)})
        await one.bench.ledger.grant(Grant(tool="pay", principal="ann", expires_s=time.time() + 60))
        told: list[Any] = []
        leaving = anyio.CancelScope()

        async def first() -> None:
            with leaving:
                await one.post(id=1, method="tools/call", params={"name": "pay", "arguments": {}})

        async def again() -> None:
            told.append(await one.call(2, "pay"))

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await one.until(lambda: len(one.server.ran()) == 1)
            if how == "leaves":
                leaving.cancel()
                await anyio.sleep(0.3)
            else:
                await one.post(method="notifications/cancelled", params={"requestId": 1})
            if "after" in how:
                works.set()
                await anyio.sleep(0.5)
                one.bench.exchange._hold_s = 0.1  # it waits for a human
            group.start_soon(again)
            await anyio.sleep(0.5)
            works.set()
        text = told[0]["result"]["content"][0]["text"]
        assert "was sent to its server in this session at 20" in text if "after" in how else text == "paid 1"
        assert len(one.server.ran()) == 1


@pytest.mark.parametrize("kind", [_JSON, _EVENTS], ids=["body", "events"])
async def test_the_end_of_an_answer_waits_for_no_store(kind: dict[str, str]) -> None:
    """That a result was delivered is stored beside the answer: a client whose deadline ends meanwhile had it."""

    class Hangs(MemoryStore):
        works = anyio.Event()

        async def write(self, *changes: Any) -> float:
            await self.works.wait()
            return await super().write(*changes)

    store = Hangs()
    store.works.set()
    async with web(store) as one:
        line = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "gone"}]}}

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield event(**line) if kind is _EVENTS else json.dumps(line).encode()

        one.server.headers, one.server.answer = kind, answer
        finish = one.bench.calls.finish

        async def finished(*given: Any, **more: Any) -> None:
            await finish(*given, **more)
            store.works = anyio.Event()

        one.bench.calls.finish = finished  # type: ignore[method-assign]
        told: list[str] = []

        async def call() -> None:
            told.append((await one.post(id=1, method="tools/call", params={"name": "delete_note"})).text)

        with anyio.fail_after(60):
            await approved(one, call)
        assert not store.works.is_set()
        assert "gone" in told[0]
        store.works.set()


async def test_more_open_requests_than_are_served_are_refused_and_served_again_once_others_end() -> None:
    async with web(max_open=3) as one:
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(one.call, number)
            await one.until(lambda: one.bench.calls.session.is_open)
            await anyio.sleep(0.2)
            assert (await one.post(id=9, method="ping")).status_code == 503
            group.cancel_scope.cancel()
        await anyio.sleep(0.2)
        assert (await one.post(id=9, method="ping")).status_code == 200


async def test_the_bytes_that_waiting_calls_hold_are_bounded() -> None:
    async with web(max_bytes=50_000) as one:
        async with anyio.create_task_group() as group:
            for number in range(2):
                group.start_soon(lambda number=number: one.call(number, text="x" * 20_000))
            await anyio.sleep(0.5)
            assert (await one.post(id=9, method="ping", params={"x": "y" * 20_000})).status_code == 413
            group.cancel_scope.cancel()
        await anyio.sleep(0.2)
        assert (await one.post(id=9, method="ping", params={"x": "y" * 20_000})).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", [_JSON, _EVENTS], ids=["body", "events"])
async def test_the_bytes_of_the_answers_that_are_held_are_bounded_and_each_call_comes_to_an_end(
    kind: dict[str, str],
) -> None:
    store = SlowStore()
    async with web(store, max_bytes=50_000) as one:

        async def large(message: dict[str, Any]) -> AsyncIterator[bytes]:
            result = {"content": [{"type": "text", "text": "x" * 30_000}]}
            line = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            yield line if kind is _JSON else b"data: " + line + b"\n\n"

        async def locks(message: dict[str, Any]) -> AsyncIterator[bytes]:
            store.locked = store.locked or len(one.server.ran()) == 3  # all are started in the store
            with anyio.fail_after(60):
                while not store.locked:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            async for piece in large(message):
                yield piece

        one.server.answer, one.server.headers = locks, kind
        answers: list[str] = []

        async def call(number: int) -> None:
            params = {"name": "delete_note", "arguments": {"n": number}}
            answers.append((await one.post(id=number, method="tools/call", params=params)).text)

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(call, number)
            with anyio.fail_after(60):
                while len(one.server.ran()) < 3:
                    for session in await one.bench.ledger.pending():
                        for request in session.requests:
                            await one.bench.ledger.decide(request.decide("approve", principal="ann"))
                    await anyio.sleep(0.05)
            await anyio.sleep(0.5)
            assert answers == []
            store.locked = False
        came = [json.loads(text.removeprefix("data: ")) for text in answers]
        assert sum("result" in one for one in came) == 1
        assert all("beside the other answers" in one["error"]["message"] for one in came if "error" in one)
        unread = [request for session in await one.bench.ledger.pending() for request in session.requests]
        assert len(unread) == 2  # what could not be read is asked about
        assert all(request.unknown_outcome for request in unread)
        assert (await one.post(id=9, method="ping")).status_code == 200  # and let go


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (307, {"location": "http://127.0.0.1:1/past-the-proxy"}),
        (200, {**_JSON, "content-encoding": "gzip"}),
        (200, {"content-type": "application/json; charset=utf-16"}),
        (200, {"content-type": "text/event-stream; charset=utf-16"}),
        (200, {"content-type": "application/json, text/event-stream"}),
        (200, {"content-type": "text/plain"}),
        (200, {}),
    ],
)
async def test_an_answer_that_could_not_be_read_here_is_not_passed_on(status: int, headers: dict[str, str]) -> None:
    async with web() as one:
        one.server.status, one.server.headers = status, headers
        answer = await one.post(id=5, method="resources/list")
        assert answer.status_code == 502
        assert answer.json()["id"] == 5
        assert "location" not in answer.headers
        called = await one.call(6, "read_note")
        assert "error" in called


@pytest.mark.parametrize("mark", ["\u2028", "\u0085", "\v", "\x1c", "\r"])
async def test_what_is_hidden_from_some_clients_in_a_comment_is_shown_to_none(mark: str) -> None:
    async with web() as one:
        evil = json.dumps({"jsonrpc": "2.0", "id": 5, "result": {"tools": [{"name": "read_note", "x": "EVIL"}]}})

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield f": {mark}data: {evil}\n\n".encode()
            yield f"event: {mark}data: {evil}\n\n".encode()
            yield event(id=5, result={"tools": _TOOLS})

        one.server.headers, one.server.answer = _EVENTS, answer
        shown = (await one.post(id=5, method="tools/list")).text
        if mark != "\r":  # where a line ends for everybody
            assert "EVIL" not in shown
        pin = one.bench.tools.pin("read_note")
        assert pin is not None
        assert ("EVIL" in shown) == ("EVIL" in str(pin.definition))


async def test_a_call_that_waits_is_given_up_by_its_clients_notification() -> None:
    async with web() as one:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: one.leave(1, path="a"))
            await one.bench.waiting()
            params = {"requestId": 1}
            assert (await one.post(method="notifications/cancelled", params=params)).status_code == 202
        assert len(one.server.reached) == 1  # the list
        await one.bench.decide()
        await anyio.sleep(0.5)
        assert one.server.ran() == []


def test_clients_with_other_headers_have_sessions_of_their_own_and_none_is_in_that_of_another_login() -> None:
    """A reverse proxy sets `grampus-session`; no other header names the session that it names, or another login's."""
    values, named = (None, "a", "b"), ("mcp-session-id", "grampus-session", "authorization")
    sent = [
        {name: value for name, value in zip(named, three, strict=True) if value} for three in product(*[values] * 3)
    ]
    assert len({session_name(headers) for headers in sent}) == len(sent)
    assert [session_name({**headers, "x": "y"}) for headers in sent] == [session_name(headers) for headers in sent]


@pytest.mark.parametrize("form", ["500", "404", "event: other", "an error beside", "events under 500"])
async def test_a_list_that_clients_read_as_an_error_or_not_at_all_is_none(form: str) -> None:
    async with web() as one:
        before = one.bench.tools.pin("read_note")

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            tools = [{**_TOOLS[0], "description": "Another one."}]
            beside = {"error": {"code": 1, "message": "no"}} if "beside" in form else {}
            line = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": tools}, **beside}).encode()
            yield b"event: other\ndata: " + line + b"\n\n" if "other" in form else line
            if "events" in form:
                yield b"data: " + line + b"\n\n"

        one.server.status = int(form[-3:]) if form[-3:].isdigit() else 200
        one.server.headers, one.server.answer = _EVENTS if "event" in form else _JSON, answer
        shown = await one.post(id=1, method="tools/list")
        assert one.bench.tools.pin("read_note") == before
        assert "Another one." not in shown.text


@pytest.mark.parametrize("form", ["500", "404", "event: other"])
async def test_a_result_that_clients_do_not_read_is_not_handed_over(form: str) -> None:
    async with web(hold_s=0.5) as one:

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            line = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}}).encode()
            yield b"event: other\ndata: " + line + b"\n\n" if "other" in form else line

        one.server.status = int(form) if form.isdigit() else 200
        one.server.headers, one.server.answer = _JSON if form.isdigit() else _EVENTS, answer
        one.bench.exchange._hold_s = 10.0
        await approved(one, lambda: one.post(id=1, method="tools/call", params={"name": "delete_note"}))
        assert (await one.bench.waiting()).unknown_outcome


@pytest.mark.parametrize("status", [404, 405, 500])
@pytest.mark.parametrize("body", ["text", "an error", "a result", "events"])
async def test_what_answers_a_request_that_goes_on_does_not_refuse_the_call(status: int, body: str) -> None:
    """Only the request that carried a call can have failed it: what became of the call is asked."""
    async with web(hold_s=0.5) as one:

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            if message["method"] == "tools/call":
                yield b"id: e1\ndata: \n\n"
                return
            one_of = {"an error": {"error": {"code": 1, "message": "no"}}, "a result": {"result": {"content": []}}}
            line = json.dumps({"jsonrpc": "2.0", "id": 1, **one_of.get(body, {})}).encode()
            yield b"data: " + line + b"\n\n" if body == "events" else b"gone" if body == "text" else line

        one.server.headers, one.server.answer = _EVENTS, answer
        one.bench.exchange._hold_s = 10.0
        await approved(one, lambda: one.leave(1, path="a"))
        await one.until(lambda: one.server.open == 0)
        kind = {"text": {"content-type": "text/plain"}, "events": _EVENTS}
        one.server.headers, one.server.status = kind.get(body, _JSON), status
        rest = await one.client.get(one.address, headers={"last-event-id": "e1"})
        assert (rest.status_code, json.loads(rest.text.removeprefix("data: "))["id"]) == (200, 1)  # it waits no longer
        assert (await one.bench.waiting()).unknown_outcome


BODIES = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_note","arguments":{"a":1,"a":2}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_note","arguments":{"a":9007199254740993}}}',
    b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_note"}}]',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/register","params":{}}',
    b'{"id":1,"method":"tools/call","params":{"name":"delete_note","arguments":{ } } , "z": 1.50}',
    b"\xff\xfe not JSON",
    b"",
]


@pytest.mark.parametrize("body", BODIES)
async def test_in_advisory_mode_every_byte_passes_as_it_came_in_both_directions(body: bytes) -> None:
    async with web(advisory=True) as one:
        sent = b'{ "jsonrpc":"2.0","id":"1","result":{"tools":[{}],"x":NaN}}\r\n' + body

        async def answer(message: dict[str, Any]) -> AsyncIterator[bytes]:
            yield sent

        one.server.answer = answer
        headers = {"content-type": "application/json; charset=utf-16", "x-other": "yes"}
        one.server.headers, one.server.status = headers, 299
        came = await one.client.post(one.address, content=body, headers={"content-type": "text/odd"})
        assert one.server.bodies[-1] == body
        assert came.content == sent
        assert (came.status_code, came.headers["x-other"]) == (299, "yes")


async def test_a_cookie_of_one_client_is_sent_with_no_other_clients_request() -> None:
    async with web() as one:
        one.server.headers = {**_JSON, "set-cookie": "sid=ALICE"}
        came = await one.post(id=1, method="ping")
        assert came.headers["set-cookie"] == "sid=ALICE; Path=/x"
        await one.bare(b"GET", b"X-Own: yes")
        sent = one.server.reached[-1]["headers"]
        assert set(sent) == {b"host", b"x-own", b"accept-encoding"}  # nothing that the client did not send
        await one.bare(b"GET", b"Cookie: sid=BOB")
        assert one.server.reached[-1]["headers"][b"cookie"] == b"sid=BOB"


@pytest.mark.parametrize("value", ["José".encode("latin-1"), "a → b".encode()])
async def test_a_header_in_any_alphabet_passes_with_an_approved_call(value: bytes) -> None:
    async with web() as one:
        params = {"name": "delete_note", "arguments": {}}
        came: list[httpx.Response] = []

        async def run() -> None:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            came.append(await one.client.post(one.address, json=body, headers=[(b"x-user", value)]))

        await approved(one, run)
        assert "is" in came[0].json()["result"]
        assert len(one.server.ran()) == 1
        await one.bare(b"GET", b"X-User: " + value)
        assert one.server.reached[-1]["headers"][b"x-user"] == value


@pytest.mark.parametrize("what", ["the request", "its sending"])
async def test_whatever_goes_wrong_while_an_approved_call_is_sent_its_outcome_is_asked_about(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **more: Any) -> None:
        raise RuntimeError("nobody thought of this")

    async with web(hold_s=10.0) as one:

        async def run() -> None:
            assert "not known" in (await one.call(1, path="a"))["error"]["message"]

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await one.bench.waiting()
            own, send = one.client, httpx.AsyncClient.send
            if what == "the request":
                monkeypatch.setattr(httpx, "Request", broken)
            else:
                monkeypatch.setattr(
                    httpx.AsyncClient, "send", lambda c, *a, **k: (send if c is own else broken)(c, *a, **k)
                )
            await one.bench.decide()
        assert (await one.bench.waiting()).unknown_outcome


async def test_servers_headers_in_any_alphabet_pass_and_take_no_place_for_good() -> None:
    async with web(max_open=4) as one:
        one.server.headers = {**_JSON, "x-note": "a → b"}
        for number in range(12):
            came = await one.post(id=number, method="ping")
            assert came.status_code == 200
            assert (b"x-note", "a → b".encode()) in [(name.lower(), value) for name, value in came.headers.raw]


REGION = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


@pytest.mark.parametrize(
    ("headers", "listed", "passes"),
    [
        ([], False, True),
        ([("Mcp-Param-Region", "eu")], True, True),
        ([("Mcp-Param-Region", "=?base64?ZXU=?=")], True, True),
        ([("Mcp-Param-Region", "us")], True, False),
        ([("Mcp-Param-Region", "=?base64?dXM=?=")], True, False),
        ([("Mcp-Param-Region", "eu"), ("mcp-param-region", "eu")], True, False),
        ([("Mcp-Param-Other", "eu")], True, False),
        ([("Mcp-Param-Region", "eu")], False, False),
    ],
)
async def test_a_parameters_header_says_what_the_argument_says_or_the_call_is_refused(
    headers: list[tuple[str, str]], listed: bool, passes: bool
) -> None:
    async with web() as one:
        if listed:
            one.bench.calls.take_list({"tools": [{**_TOOLS[0], "name": "read_region", "inputSchema": REGION}]})
        params = {"name": "read_region" if listed else "read_note", "arguments": {"region": "eu"}}
        body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}
        came = await one.client.post(one.address, json=body, headers=headers)
        assert (came.status_code == 200) == passes
        assert len(one.server.ran()) == passes


async def test_what_the_proxy_no_longer_knows_of_a_tool_is_asked_about() -> None:
    parts = ProxyParts(ProxySettings(effects={"read_*": "read"}, hold_s=0.1), "memory:", lambda text: None)

    async def passes(exchange: CallExchange, tool: str, number: int) -> bool:
        params = {"name": tool, "arguments": {"n": number}}
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        return isinstance(await exchange.outcome(read_message(line, alone=True), anyio.Event()), Passed)

    hint = {"annotations": {"destructiveHint": True}}
    for taken_up in range(2):  # a session that made room for others, or that goes on after a restart, knows no list
        exchange = parts.exchange("s", resumes=True, server="x")
        assert not await passes(exchange, "read_x", 3 * taken_up)
        exchange.calls.take_list({"tools": [{"name": "read_x", **hint}, {"name": "read_y"}]})
        assert not await passes(exchange, "read_x", 3 * taken_up + 1)
        assert await passes(exchange, "read_y", 3 * taken_up + 2)
        await exchange.calls.session.aclose()
    await parts.aclose()


async def test_in_advisory_mode_a_call_is_judged_beside_its_run() -> None:
    async with web(advisory=True) as one:
        assert "is" in (await one.call(1, path="a"))["result"]
        assert len(one.server.ran()) == 1
        state = one.bench.calls.session.current().lease.state
        await one.until(lambda: state.tool_calls_made == 1)
