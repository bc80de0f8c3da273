"""The inbox with many waiting and many watching: how long a page and a decision take, and that nothing is lost.

    python -m tests.benchmarks.inbox [--waiting 10000] [--pages 500] [--decisions 500] [--store URL]

The server runs in a process of its own, as a user starts it; the browsers are in software, with passkeys.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio
import httpx

from grampus_uq.gate.webauthn import WebAuthnKey
from grampus_uq.inbox.people import Passkey, People, Role
from grampus_uq.runtime.asked_rows import asked_row
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.store import Append, Change, Put, SessionStore
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.worker_jobs import WAKES
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
            asked_row(request),
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
        self.client = httpx.AsyncClient(base_url=origin, headers=headers, timeout=60.0)
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


async def decide_all(browsers: list[RealBrowser], ids: list[str]) -> dict[str, list[float]]:
    """Each browser decides its share; milliseconds of each kind of request."""
    took: dict[str, list[float]] = {"card": [], "prepare": [], "decide": []}

    async def timed(what: str, work: Any) -> Any:
        began = time.perf_counter()
        answered = await work
        took[what].append((time.perf_counter() - began) * 1e3)
        return answered

    async def one(browser: RealBrowser, mine: list[str]) -> None:
        for request in mine:
            card = await timed("card", shown(browser, request))
            path = f"/requests/{request}"
            said = (await timed("prepare", browser.send(f"{path}/prepare", {"kind": "approve", **card}))).json()
            body = {"decision": said["decision"], "seen": card["seen"], "id": url64(browser.id)}
            body["signature"] = browser.assertion(said["text"])
            done = await timed("decide", browser.send(f"{path}/decide", body))
            assert done.status_code == 200, done.text

    async with anyio.create_task_group() as group:
        for number, browser in enumerate(browsers):
            group.start_soon(one, browser, ids[number :: len(browsers)])
    return took


def shown_times(what: str, took: list[float]) -> None:
    ordered = sorted(took)
    p95 = ordered[int(len(ordered) * 0.95)]
    print(f"{what:10} {len(took):6} times: median {statistics.median(took):7.1f} ms, p95 {p95:7.1f} ms")


async def measure(url: str, origin: str, given: argparse.Namespace) -> None:
    store = open_store(url)
    people = [RealBrowser(origin) for _ in range(max(8, -(-given.pages // 6)))]
    for number, browser in enumerate(people):
        await browser.enter(People(store), f"p{number}")
    pages = []
    for _ in range(20):
        began = time.perf_counter()
        assert (await people[0].get("/requests")).status_code == 200
        pages.append((time.perf_counter() - began) * 1e3)
    shown_times("first page", pages)
    async with AsyncExitStack() as stack:
        heard = 0
        for number in range(given.pages):
            stream = people[number % len(people)].client.stream("GET", "/requests/news")
            answered = await stack.enter_async_context(stream)
            heard += answered.status_code == 200
        print(f"{heard} pages are open")
        began = time.perf_counter()
        took = await decide_all(people[:8], given.ids[: given.decisions])
        seconds = time.perf_counter() - began
    for what, times in took.items():
        shown_times(what, times)
    stored = await Ledger(store).decisions(given.ids)
    counts = [len(decisions) for decisions in stored.values()]
    print(
        f"{given.decisions / seconds:.1f} decisions a second; stored {sum(counts)}, twice {sum(n > 1 for n in counts)}"
    )
    assert counts == [1] * given.decisions + [0] * (len(counts) - given.decisions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("waiting", 10_000), ("pages", 500), ("decisions", 500)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--store", default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as one:
        url = given.store or f"sqlite:///{folder}/store.db"
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        one.close()

        async def filled() -> None:
            store = open_store(url)
            given.ids = await fill(store, given.waiting)
            await store.aclose()

        anyio.run(filled)
        command = [sys.executable, "-m", "grampus_uq.cli", "inbox", "--store", url, "--port", str(port)]
        server = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert server.stderr is not None
        print(server.stderr.readline().decode().strip())
        time.sleep(2)
        try:
            anyio.run(measure, url, f"http://localhost:{port}", given)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
