"""The running server against clients that speak HTTP badly, slowly or not at all."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq.cli import main
from grampus_uq.inbox import front_door
from grampus_uq.inbox.inbox_app import inbox_app
from grampus_uq.inbox.inbox_settings import InboxSettings
from grampus_uq.inbox.people import People
from grampus_uq.runtime import http_server
from grampus_uq.runtime.http_server import listening
from grampus_uq.runtime.stores import open_store
from tests.benchmarks.inbox import RealBrowser

HOST = "Host: localhost:PORT\r\n"
CHANGE = (
    f"POST /sign-in/challenge HTTP/1.1\r\n{HOST}Origin: http://localhost:PORT\r\nContent-Type: application/json\r\n"
)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, Any]]:
    """The port of a running server, and the server."""
    at = listening("127.0.0.1", 0)
    number = int(at.getsockname()[1])
    store = open_store(f"sqlite:///{folder}/s.db")
    server = inbox_app(store, InboxSettings(origin=f"http://localhost:{number}")).server()
    thread = threading.Thread(target=server.run, args=([at],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield number, server
    server.should_exit = True
    thread.join(10)


def test_without_its_extra_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, "grampus_uq.inbox.inbox_app")
    with pytest.raises(SystemExit) as ended:
        main(["inbox", "--store", "memory:"])
    assert ended.value.code == 1
    assert 'pip install "grampus-uq[inbox]"' in capsys.readouterr().err


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Any]]:
    with serving(tmp_path_factory.mktemp("s")) as found:
        yield found


@pytest.fixture
def port(served: tuple[int, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """A server that is patient with a client that is slow because this machine is."""
    patience(60.0, monkeypatch)
    return served[0]


@pytest.fixture
def hasty(served: tuple[int, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """A server with less patience than usual."""
    patience(0.5, monkeypatch)
    return served[0]


def patience(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_HEADERS_S", seconds)
    monkeypatch.setattr(http_server, "_UNREAD_S", seconds, raising=False)
    monkeypatch.setattr(front_door, "_BODY_S", seconds)


def said(port: int, text: str, *, wait_s: float = 60.0) -> str:
    """Everything that comes back before the server closes, or says nothing more."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as one:
        one.sendall(text.replace("PORT", str(port)).encode("latin-1"))
        return rest(one)


def rest(one: Any) -> str:
    parts = []
    try:
        while part := one.recv(65_536):
            parts.append(part)
    except (TimeoutError, ConnectionError):
        pass
    return b"".join(parts).decode("latin-1")


ODD = [
    (f"GET /sign-in HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 200),
    (f"GET http://evil.example/sign-in HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 400),
    ("GET /sign-in HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 421),
    (f"GET /sign-in HTTP/1.1\r\n{HOST}Host: evil.example\r\nConnection: close\r\n\r\n", 400),
    ("GET /sign-in HTTP/1.0\r\n\r\n", 421),
    ("GET /sign-in HTTP/1.1\r\n\r\n", 400),
    (f"GET /sign-in HTTP/1.1\r\n{HOST}X-Forwarded-Host: evil.example\r\nConnection: close\r\n\r\n", 200),
    (f"GET /static/../../people.py HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 400),
    (f"GET /static/%2e%2e/%2e%2e/people.py HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 400),
    (f"GET /static\\..\\people.py HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 400),
    (f"GET //evil.example/ HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 400),
    (f"GET /requests/%00 HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 400),
    (f"TRACE /sign-in HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 405),
    (f"CONNECT evil.example:80 HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 400),
    (f"GET /sign-in HTTP/1.1\r\n{HOST}X: {'a' * 400_000}\r\n\r\n", 400),
    (f"{CHANGE}Connection: close\r\nContent-Length: 2\r\n\r\n{{}}", 200),
    (f"{CHANGE}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n", 411),
    (f"{CHANGE}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n", 411),
    (f"{CHANGE}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}", 400),
    (f"{CHANGE}Content-Length: -2\r\n\r\n{{}}", 400),
    (f"{CHANGE}Connection: close\r\nContent-Length: 99999999\r\n\r\n{{}}", 413),
    (f"{CHANGE}Connection: close\r\n\r\n", 411),
    ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", None),
    ("\x00" * 100, None),
]


@pytest.mark.parametrize(("text", "status"), ODD, ids=lambda value: repr(value)[:70])
def test_what_is_no_plain_request_is_refused(port: int, text: str, status: int | None) -> None:
    answered = said(port, text)
    found = re.match(r"HTTP/1\.1 (\d+)", answered)
    assert (found and int(found[1])) == status or (status is None and " 400 " in answered.partition("\r\n")[0])
    assert "Traceback" not in answered
    assert "evil.example" not in answered
    assert "server:" not in answered.lower()


def test_a_body_that_does_not_come_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "_BODY_S", 0.5)
    answered = said(port, f"{CHANGE}Connection: close\r\nContent-Length: 9\r\n\r\n{{}}")
    assert answered.startswith("HTTP/1.1 408")
    assert "Traceback" not in answered


def test_who_says_nothing_or_little_is_let_go(hasty: int) -> None:
    for begun in ("", "GET /sign-in HTTP/1.1\r\nHost: "):
        with socket.create_connection(("127.0.0.1", hasty), timeout=60) as one:
            one.sendall(begun.encode())
            assert closed(one)


def test_who_sends_a_byte_now_and_then_is_let_go(hasty: int) -> None:
    with socket.create_connection(("127.0.0.1", hasty), timeout=60) as one:
        for byte in f"GET /sign-in HTTP/1.1\r\nX: {'a' * 1_000}":
            try:
                one.sendall(byte.encode())
            except ConnectionError:
                return
            time.sleep(0.05)
    pytest.fail("a request that takes a minute was waited for")


def test_who_reads_nothing_of_an_answer_is_let_go(served: tuple[int, Any], hasty: int) -> None:
    asks = f"GET /static/inbox.js HTTP/1.1\r\n{HOST}\r\n".replace("PORT", str(hasty)).encode()
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        one.connect(("127.0.0.1", hasty))
        one.settimeout(0.1)
        with suppress(TimeoutError):
            one.sendall(asks * 1_000)  # more than buffers hold of the answers
        until_s = time.monotonic() + 60
        while any(kept.client == one.getsockname() for kept in served[1].server_state.connections):
            assert time.monotonic() < until_s
            time.sleep(0.05)


def closed(one: socket.socket) -> bool:
    """True once the server closes a connection that it has not answered."""
    try:
        return one.recv(65_536) == b""
    except ConnectionError:
        return True


def test_others_are_served_while_many_say_nothing(port: int, tmp_path: Path) -> None:
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    try:
        assert said(port, ODD[0][0]).startswith("HTTP/1.1 200")
    finally:
        for one in silent:
            one.close()


def test_a_second_request_on_a_connection_has_its_own_time(port: int, served: Any, monkeypatch: Any) -> None:
    asks = f"GET /static/inbox.css HTTP/1.1\r\n{HOST}\r\n".replace("PORT", str(port)).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        for _ in range(3):
            one.sendall(asks)
            with one.makefile("rb") as answer:
                assert answer.readline().startswith(b"HTTP/1.1 200")
                headers = dict(line.decode().lower().split(": ", 1) for line in iter(answer.readline, b"\r\n"))
                answer.read(int(headers["content-length"]))
            mine = [kept for kept in served[1].server_state.connections if kept.client == one.getsockname()]
            assert [kept._overdue for kept in mine] == [None]  # no time runs on from the request that was answered
        patience(0.2, monkeypatch)
        one.sendall(asks[:20])
        assert closed(one)


@pytest.mark.parametrize("program", ["inbox", "mcp"])
def test_an_address_that_is_taken_is_said_in_a_line(program: str, port: int, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    anyio.run(open_store(store).now)
    (tmp_path / "guard.toml").write_text('[servers.notes]\nurl = "http://127.0.0.1:1/mcp"\n')
    given = {
        "inbox": ["--port", str(port)],
        "mcp": ["--config", f"{tmp_path}/guard.toml", "--http", f"127.0.0.1:{port}"],
    }
    arguments = [program, "--store", store, *given[program]]
    done = subprocess.run([sys.executable, "-m", "grampus_uq.cli", *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Address already in use" in done.stderr
    assert done.stderr.endswith("; stop what serves there, or give another address.\n")


@pytest.mark.anyio
async def test_a_page_that_listens_is_told_the_end_when_the_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream was cut off after two seconds, with a traceback for whoever had stopped the server."""
    monkeypatch.setattr(http_server, "_SHUTDOWN_S", 60)
    with serving(tmp_path) as (port, server):
        store, ann = open_store(f"sqlite:///{tmp_path}/s.db"), RealBrowser(f"http://localhost:{port}")
        await ann.enter(People(store), "ann")
        async with ann.client.stream("GET", "/requests/news") as answered:
            lines = answered.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            server.should_exit = True
            assert [line async for line in lines if line] == []  # raises where it is cut off
        await ann.client.aclose()
        await store.aclose()


def test_no_part_of_an_answer_waits_until_the_one_before_was_acknowledged(tmp_path: Path) -> None:
    """Each page took 40 ms more: an answer is two writes, and browsers acknowledge the first one late."""
    with serving(tmp_path) as (port, server), socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(f"GET /sign-in HTTP/1.1\r\n{HOST}\r\n".replace("PORT", str(port)).encode())
        assert one.recv(100).startswith(b"HTTP/1.1 200")
        (kept,) = server.server_state.connections
        assert kept.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("length", ["Content-Length: 100000", "Transfer-Encoding: chunked", "Content-Length: 1"])
def test_a_page_asked_for_with_a_body_is_refused_and_its_connection_ends(port: int, method: str, length: str) -> None:
    """Such a body could come for ever, and hold its connection: nobody is signed in for it."""
    answer = said(port, f"{method} /sign-in HTTP/1.1\r\n{HOST}{length}\r\n\r\n")
    assert answer.startswith("HTTP/1.1 400")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(f"{method} /sign-in HTTP/1.1\r\n{HOST}{length}\r\n\r\n".replace("PORT", str(port)).encode())
        while one.recv(65_536):  # the server waits for a body twice as long as this client waits
            pass


def test_an_address_that_is_not_of_this_machine_is_not_said_to_be_taken() -> None:
    with pytest.raises(OSError, match=r"; give another address$"):
        listening("192.0.2.1", 8600)
    taken = listening("127.0.0.1", 0)
    with taken, pytest.raises(OSError, match=r"; stop what serves there, or give another address$"):
        listening("127.0.0.1", taken.getsockname()[1])
