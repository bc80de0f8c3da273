"""`grampus-uq worker` as a process: it resumes what was decided, says so, and drains on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from grampus_uq import AgentRunner, open_store
from grampus_uq.cli.worker_command import backlog
from grampus_uq.errors import StoreError
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import WAKING, SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import TIMER, Job, oldest_due_s
from tests.runtime.agents import AGENT, World, runner

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


def _down(*given: object, **named: object) -> None:
    raise StoreError("down")


def make(store: SessionStore) -> AgentRunner:
    return runner(World(), store=store)


@asynccontextmanager
async def make_held(store: SessionStore) -> AsyncIterator[AgentRunner]:
    """With a thread that no process ends before, as a connection of aiosqlite has, until the runner is closed."""
    closed = threading.Event()
    threading.Thread(target=closed.wait).start()
    try:
        yield make(store)
    finally:
        closed.set()


def lines(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    found: dict[str, object] = json.loads(process.stdout.readline())
    return found


def started(*urls: str, agents: Sequence[str] = ("mailer",), factory: str = "make") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "grampus_uq.cli", "worker", f"tests.cli.test_worker_command:{factory}", "--json"]
    command += [part for url in urls for part in ("--store", url)]
    return subprocess.Popen(
        [*command, *(part for agent in agents for part in ("--agent", agent))],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.one_loop
async def test_a_worker_process_serves_the_stores_of_several_tenants(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("acme", "globex")]
    for url in urls:
        store = open_store(url)
        asked = (await make(store).run(AGENT, "mail bob", session_id="s")).pending[0]
        await Ledger(store).decide(asked.decide("approve", principal="ann"))
        await store.aclose()
    process = started(*urls)
    try:
        assert lines(process)["event"] == "started"
        assert {(done["event"], done["store"]) for done in (lines(process), lines(process))} == {
            ("resumed", 1),
            ("resumed", 2),
        }
        process.send_signal(signal.SIGTERM)
        assert lines(process)["event"] == "draining"
        assert lines(process)["resumed"] == 2
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.one_loop
@pytest.mark.parametrize("factory", ["make", "make_held"])
async def test_a_worker_process_resumes_what_was_decided_and_ends_on_sigterm(tmp_path: Path, factory: str) -> None:
    """Also where the factory is an async context manager, which is closed then."""
    url = f"sqlite:///{tmp_path}/s.db"
    store = open_store(url)
    asked = (await make(store).run(AGENT, "mail bob", session_id="s")).pending[0]
    await Ledger(store).decide(asked.decide("approve", principal="ann"))
    process = started(url, agents=["mailer", "clark"], factory=factory)
    try:
        begun = lines(process)
        assert (begun["event"], begun["no_sessions_yet"]) == ("started", ["clark"])  # "mailer" has one
        done = lines(process)
        assert (done["event"], done["agent"], done["session"]) == ("resumed", "mailer", "s")
        process.send_signal(signal.SIGTERM)
        assert lines(process)["event"] == "draining"
        stopped = lines(process)
        assert (stopped["event"], stopped["resumed"], stopped["running"]) == ("stopped", 1, 0)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
    assert (await Ledger(store).known("mailer", "s"))[0].status == "completed"
    await store.aclose()


async def test_the_health_line_says_how_long_jobs_wait_and_what_was_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    workers = [Worker(runner=make(each), agents=["mailer", "desk"]) for each in (store, MemoryStore())]
    assert await backlog(workers) == {"oldest_job_s": 0.0, "dead_letters": 0}
    now_s = await store.now()
    await store.write(Job(agent_id="desk", session_id="s").at(now_s - 60.0))
    await store.write(Job(agent_id="mailer", session_id="t").at(now_s + 60.0))
    await store.put("dead", "desk/s", "{}", expected=0)
    found = await backlog(workers)
    assert found == {"oldest_job_s": pytest.approx(60.0, abs=5.0), "dead_letters": 1}
    monkeypatch.setattr(store, "scan", _down)
    assert await backlog(workers) == {"oldest_job_s": None, "dead_letters": None}


@pytest.mark.parametrize("key", ["!", "nan/x", "1e999/x", "-5/x", "/", "a/b"])
async def test_a_row_that_nobody_can_read_is_no_old_job(key: str) -> None:
    store = MemoryStore()
    for kind in (WAKING, TIMER):
        await store.put(kind, key, "{}", expected=0, label="mailer")
    assert 0.0 <= await oldest_due_s(store, "mailer") < 3e9
