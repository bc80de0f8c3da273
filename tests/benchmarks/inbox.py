"""The inbox with many waiting and many watching: how long a page and a decision take, and that nothing is lost.

    python -m tests.benchmarks.inbox [--store URL ...] [--waiting 10000] [--pages 500] [--decisions 3000] [--rate 50]
        [--json]

A URL is that of an empty store; without one it is a SQLite file, and `servers` stands for a file, a PostgreSQL and a
Valkey of its own. The server runs in a process of its own, as a user starts it; the browsers are in software, with
passkeys. First one person decides alone; then all of them decide at the stated rate together, each one request after
the other, while the pages listen. Rows: `start`, from the command to its first answer; `first page`; the three
requests of a decision (`card`, `prepare`, `decide`); all in milliseconds from sending to the answer; `decisions`, how
many a second were stored, how many were `lost` or stored `twice`, how many different last states the pages heard (1:
all heard the last), and processor time. `load` is that of the machine when the row ended.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
from anyio.abc import TaskGroup

from grampus_uq.gate.webauthn import WebAuthnKey
from grampus_uq.inbox.people import Passkey, People, Role
from grampus_uq.runtime.asked_rows import asked_row
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.store import Append, Change, Put, SessionStore
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.worker_jobs import WAKES, Job
from tests.benchmarks._report import emit
from tests.benchmarks.stores import servers
from tests.gate.test_webauthn import url64
from tests.inbox.browser import Browser
from tests.inbox.test_decisions import Desk, shown


async def fill(store: SessionStore, waiting: int) -> list[str]:
    """So many sessions that wait, all like one that was really made; the ids of their requests, oldest first."""
    desk = Desk(store)
    await Browser(desk.app).register(await People(store).invite("first", Role.DECIDE))
    first = await desk.pause(session="s")
    (document,) = await store.scan("session")
    state = (await Ledger(store).known("mailer", "s"))[0]
    assert state.transcript is not None
    log = state.transcript.log
    entries = tuple(await store.read(log))
    ids, changes = [], list[Change]()
    for number in range(waiting):
        name, created_s = f"t{number}", first.created_s + 1 + number / 1e3
        given = {"id": f"{number:032x}", "created_s": created_s, "session_id": name}
        request = first.model_copy(update=given)
        body = json.loads(document.body)
        body.pop("seal", None)  # it is of another place
        body["session_id"], body["transcript"]["log"] = name, log.replace("/s/", f"/{name}/")
        body["turn"][0]["requests"] = [json.loads(request.model_dump_json())]
        key, job = session_key("mailer", name), json.dumps({"agent_id": "mailer", "session_id": name})
        changes += [
            Put(kind="session", key=key, body=json.dumps(body), expected=0, label=document.label),
            Put(kind=WAKES, key=f"{request.id}/{key}", body=job, expected=0),
            Append(log=body["transcript"]["log"], bodies=entries, expected=0),
            asked_row(request, Job(agent_id="mailer", session_id=name)),
        ]
        ids.append(request.id)
        if len(changes) >= 800 or number == waiting - 1:
            await store.write(*changes)
            changes = []
    return ids


class RealBrowser(Browser):
    """A browser that talks to the server over loopback; it came in by another door, past the limit at the entrance."""

    def __init__(self, origin: str) -> None:
        super().__init__(app=None)
        headers = {"user-agent": "Test/1", "origin": origin}
        kept = httpx.Limits(keepalive_expiry=2.0)  # the server closes after five: asking at that moment would fail
        self.client = httpx.AsyncClient(base_url=origin, headers=headers, timeout=600.0, limits=kept)
        self.origin = origin

    async def enter(self, people: People, name: str) -> None:
        key = WebAuthnKey(self.key.public, rp_id="localhost", origins=[self.origin])
        passkey = Passkey(id=url64(self.id), line=key.line, added_s=0.0)
        person = await people.register(await people.invite(name, Role.DECIDE), passkey)
        cookie, _ = await people.begin(person, passkey, name, "Test/1")
        self.client.cookies.set("inbox", cookie)
        self.csrf = (await self.get("/me")).text.partition('data-csrf="')[2].partition('"')[0]

    def assertion(self, text: str, **forged: Any) -> str:
        return self.key.sign(text.encode(), rp="localhost", origin=self.origin)


async def decide_all(browsers: list[RealBrowser], ids: list[str], rate: float) -> dict[str, list[float]]:
    """Each browser decides its share, all together at this rate a second; milliseconds of each kind of request."""
    took: dict[str, list[float]] = {"card": [], "prepare": [], "decide": []}

    async def timed(what: str, work: Any) -> Any:
        began = time.perf_counter()
        answered = await work
        took[what].append((time.perf_counter() - began) * 1e3)
        return answered

    async def one(browser: RealBrowser, request: str) -> None:
        card = await timed("card", shown(browser, request))
        path = f"/requests/{request}"
        said = (await timed("prepare", browser.send(f"{path}/prepare", {"kind": "approve", **card}))).json()
        body = {"decision": said["decision"], "seen": card["seen"], "id": url64(browser.id)}
        body["signature"] = browser.assertion(said["text"])
        done = await timed("decide", browser.send(f"{path}/decide", body))
        assert done.status_code == 200, done.text

    async def share(first: int) -> None:
        for number in range(first, len(ids), len(browsers)):
            await anyio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            await one(browsers[first], ids[number])

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for first in range(len(browsers)):
            group.start_soon(share, first)
    return took


async def listen(pages: list[RealBrowser], group: TaskGroup) -> list[str]:
    """One open page each; what each heard last."""
    heard = [""] * len(pages)

    async def one(number: int) -> None:
        async with pages[number].client.stream("GET", "/requests/news", timeout=None) as answered:
            async for line in answered.aiter_lines():
                heard[number] = line if line.startswith("data") else heard[number]

    for number in range(len(pages)):
        group.start_soon(one, number)
    await settled(lambda: all(heard))
    return heard


async def settled(so: Callable[[], bool]) -> None:
    """Wait until it is so, at most a minute."""
    for _ in range(600):
        if so():
            return
        await anyio.sleep(0.1)


def processor_s(process: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def row(case: str, took: list[float]) -> dict[str, Any]:
    ordered = sorted(took)
    p95 = ordered[int(len(ordered) * 0.95)]
    median = statistics.median(ordered)
    return {"case": case, "times": len(took), "median_ms": median, "p95_ms": p95, "load": os.getloadavg()[0]}


async def first_pages(browser: RealBrowser, times: int, each_s: float = 0.0) -> list[float]:
    """Milliseconds of the list's first page, asked for so many times."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        assert (await browser.get("/requests")).status_code == 200
        took.append((time.perf_counter() - began) * 1e3)
        await anyio.sleep(each_s)
    return took


async def alone(browser: RealBrowser, ids: list[str]) -> list[dict[str, Any]]:
    """One person and nobody else."""
    rows = [row("first page, alone", await first_pages(browser, 20))]
    by_kind: dict[str, list[float]] = {}
    for request in ids:
        for what, times in (await decide_all([browser], [request], 1.0)).items():
            by_kind.setdefault(f"{what}, alone", []).extend(times)
    return rows + [row(case, took) for case, took in by_kind.items()]


async def together(
    people: list[RealBrowser], ids: list[str], server: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """All of them, beside the open pages."""
    pages = [people[number % len(people)] for number in range(options.pages)]
    processes = {"server": server, "browsers": os.getpid()}
    listed = list[float]()

    async def lists() -> None:
        while True:
            listed.extend(await first_pages(people[-1], 1, each_s=1.0))

    async with anyio.create_task_group() as group:
        heard = await listen(pages, group)
        group.start_soon(lists)
        before = {name: processor_s(process) for name, process in processes.items()}
        began = time.perf_counter()
        took = await decide_all(people, ids, options.rate)
        seconds = time.perf_counter() - began
        used = {f"{name}_ms": 1e3 * (processor_s(of) - before[name]) / len(ids) for name, of in processes.items()}
        await settled(lambda: bool(listed))
        rows = [row(case, times) for case, times in {"first page": listed, **took}.items()]
        await settled(lambda: len(set(heard)) == 1)  # the state that is sent is at most a second old
        group.cancel_scope.cancel()
    told = {"pages": len(pages), "last_states": len(set(heard)), "load": os.getloadavg()[0]}
    return [*rows, {"case": "decisions", "times": len(ids), "a_second": len(ids) / seconds, **told, **used}]


@contextmanager
def served(url: str) -> Iterator[tuple[str, int, float]]:
    """The inbox over a store, as a process: its address, the id of the process, and the seconds to its first answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    origin = f"http://localhost:{port}"
    command = [sys.executable, "-m", "grampus_uq.cli", "inbox", "--store", url, "--port", str(port)]
    began, server = time.perf_counter(), subprocess.Popen(command)
    try:
        while server.poll() is None:
            try:
                httpx.get(f"{origin}/sign-in", timeout=600.0)
                break
            except httpx.ConnectError:
                time.sleep(0.02)
        yield origin, server.pid, time.perf_counter() - began
    finally:
        server.terminate()
        server.wait()


async def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one store."""
    store = open_store(url)
    try:
        ids = await fill(store, options.waiting)
        with served(url) as (origin, server, start_s):
            rows = [row("start", [1e3 * start_s]), *await rows_of(store, ids, origin, server, options)]
        return [{"store": url.partition(":")[0], "waiting": options.waiting, **row} for row in rows]
    finally:
        await store.aclose()


async def rows_of(
    store: SessionStore, ids: list[str], origin: str, server: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    people = [RealBrowser(origin) for _ in range(max(8, -(-options.pages // 4)))]
    for number, browser in enumerate(people):
        await browser.enter(People(store), f"p{number}")
    one, many = ids[:50], ids[50 : 50 + options.decisions]
    rows = [*await alone(people[0], one), *await together(people, many, server, options)]
    stored = await Ledger(store).decisions(ids)
    counts = [len(stored.get(request, ())) for request in ids]
    done, rest = counts[: len(one) + len(many)], counts[len(one) + len(many) :]
    rows[-1] |= {"lost": done.count(0), "twice": sum(count > 1 for count in done), "undecided": rest.count(0)}
    for browser in people:
        await browser.client.aclose()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("waiting", 10_000), ("pages", 500), ("decisions", 3_000), ("rate", 50)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--store", nargs="+", default=[], metavar="URL", help="empty stores, or `servers`")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    async def run() -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            if options.store == ["servers"]:
                async with servers(Path(folder)) as urls:
                    return [row for url in urls for row in await measure(url, options)]
            urls = options.store or [f"sqlite:///{folder}/store.db"]
            return [row for url in urls for row in await measure(url, options)]

    emit("inbox", anyio.run(run), options.json)


if __name__ == "__main__":
    main()
