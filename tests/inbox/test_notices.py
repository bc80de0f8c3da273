"""A webhook is told that something new waits, signed, again where it fails, and nothing of what waits."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest

from grampus_uq.errors import ConfigurationError
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.inbox import notices
from grampus_uq.inbox.arrivals import Arrivals
from grampus_uq.inbox.notices import Notices
from grampus_uq.runtime.asked_rows import ASKED, asked_row, row_key
from grampus_uq.runtime.store import Delete, SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker_jobs import Job
from tests.inbox.browser import someone
from tests.inbox.test_decisions import Desk

pytestmark = pytest.mark.anyio
SECRET = "a secret of the webhook's"


@contextmanager
def webhook(*statuses: int) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A server that answers with these, then with 200: its address, and what it was told."""
    told, left = list[tuple[str, bytes]](), list(statuses)

    class Told(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append((self.headers["grampus-signature"], self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(left.pop(0) if left else 200)
            self.end_headers()

        def log_message(self, *given: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Told)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_request_is_news_when_it_arrives_whatever_the_clock_of_its_host(monkeypatch: Any) -> None:
    """An adapter's requests have the times of its machine. The oldest are looked at, too: what moves up is no news."""
    store, arrivals, passed_s = MemoryStore(), Arrivals(), 0.0
    monkeypatch.setattr(store, "_now", lambda: time.time() + passed_s)
    monkeypatch.setattr("grampus_uq.inbox.arrivals._MOST", 5)
    desk = Desk(store)
    await someone(desk.app, store)
    first = await desk.pause(session="s")

    async def ask(name: str, late_s: float) -> ApprovalRequest:
        request = first.model_copy(update={"id": name, "created_s": await store.now() - late_s})
        await store.write(asked_row(request, Job(agent_id=request.agent_id, session_id="s")))
        return request

    assert await arrivals.look(store) is False
    asked = list[ApprovalRequest]()
    for number, late_s in enumerate((0.0, 300.0, 86_400.0, -300.0, 0.0, 0.0, 0.0)):
        asked.append(await ask(f"r{number}", late_s))
        assert [await arrivals.look(store) for _ in range(2)] == [True, False]
        passed_s += 121.0
        assert await arrivals.look(store) is False
    for one in asked[2:0:-1]:
        await store.write(Delete(kind=ASKED, key=row_key(one.id, one.created_s), expected=1))
        assert await arrivals.look(store) is False, "another one is among the oldest now"


def looks(monkeypatch: Any) -> list[bool]:
    """Whether each look at the store found something new, as they come."""
    found, look = list[bool](), Arrivals.look

    async def looked(self: Arrivals, store: SessionStore) -> bool:
        found.append(await look(self, store))
        return found[-1]

    monkeypatch.setattr(Arrivals, "look", looked)
    return found


async def until(told: list[Any], count: int) -> None:
    with anyio.fail_after(60):
        while len(told) < count:  # noqa: ASYNC110 (a thread fills it)
            await anyio.sleep(0.02)


async def test_what_is_new_is_told_once_signed_and_without_content(store: SessionStore, monkeypatch: Any) -> None:
    monkeypatch.setattr(notices, "EACH_S", 0.02)
    desk, seen = Desk(store), looks(monkeypatch)
    await someone(desk.app, store)
    await desk.pause(session="before")
    with webhook(500, 302, 200) as (url, told):
        one = Notices(url=url, link="https://inbox.example.org/requests", secret=SECRET, first_wait_s=0.01)
        async with anyio.create_task_group() as group:
            group.start_soon(one.run, store)
            await until(seen, 3)
            assert told == [], "what waited before is no news"
            await desk.pause(session="s")
            await until(told, 3)
            await until(seen, len(seen) + 3)
            assert len(told) == 3, "refused twice, then taken, then nothing new"
            await desk.pause(session="t")
            await until(told, 4)
            group.cancel_scope.cancel()
    signature, body = told[2]
    assert json.loads(body) == {
        "text": "2 requests wait: https://inbox.example.org/requests",
        "waiting": 2,
        "link": "https://inbox.example.org/requests",
    }
    time_s, mac = (part.partition("=")[2] for part in signature.split(","))
    assert hmac.new(SECRET.encode(), f"{time_s}.".encode() + body, hashlib.sha256).hexdigest() == mac
    assert b"bob" not in b"".join(text for _, text in told)


@pytest.mark.parametrize(
    ("url", "why"),
    [("http://127.0.0.1:9", "ConnectError"), ("http://a\u2603\ufe0f.example/", "InvalidURL")],
    ids=ascii,
)
async def test_a_webhook_that_is_away_ends_nothing(
    store: SessionStore, monkeypatch: Any, caplog: Any, url: str, why: str
) -> None:
    monkeypatch.setattr(notices, "EACH_S", 0.02)
    desk, seen = Desk(store), looks(monkeypatch)
    await someone(desk.app, store)
    async with anyio.create_task_group() as group:
        group.start_soon(Notices(url=url, link="x", first_wait_s=0.001).run, store)
        await until(seen, 1)
        await desk.pause()
        await until(caplog.records, 1)
        group.cancel_scope.cancel()
    assert f"given up after 5 tries: {why}" in caplog.text


@pytest.mark.parametrize("url", ["", "x", "file:///etc/passwd", "https://", "ftp://x", "https://[", "https://x:y"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="notify"):
        Notices(url=url, link="x")


def test_neither_the_address_nor_the_secret_is_in_the_repr() -> None:
    assert "Notices(link='x'" in (shown := repr(Notices(url="https://u:hunter2@h/hunter2", link="x", secret="hunter2")))
    assert "hunter2" not in shown


@pytest.mark.parametrize(("head", "times"), [(b"", 5), (b"\r\n", 1)], ids=["its head", "its body"])
async def test_a_webhook_that_never_comes_to_an_end_holds_no_later_notice(head: bytes, times: int) -> None:
    """Each byte of an answer comes in time, and the answer never ends: its status is what counts."""
    told = list[bytes]()

    async def dripping(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            told.append(await stream.receive())
            with suppress(anyio.BrokenResourceError):
                await stream.send(b"HTTP/1.1 200 OK\r\n" + head)
                while True:
                    await stream.send(b"x: y\r\n")
                    await anyio.sleep(0.05)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    notices = Notices(url=f"http://127.0.0.1:{port}/", link="x", first_wait_s=0.01, patience_s=0.2)
    with anyio.fail_after(60):
        async with listener, anyio.create_task_group() as group, httpx.AsyncClient() as client:
            group.start_soon(listener.serve, dripping)
            await notices._tell(client, 1, 0.0)
            group.cancel_scope.cancel()
    assert len(told) == times
