"""A worker resumes what has something to do, on every store, and lets the rest wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
import redis

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    ApprovalPolicy,
    FunctionTools,
    SubAgent,
    ToolCall,
    UncertaintyMonitor,
)
from grampus_uq.errors import ConfigurationError, StoreError
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import AgentStatus, Role
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.store import WAKING, SessionStore
from grampus_uq.runtime.stores import open_store as open_url
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import DEAD, TIMER, Job, take
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, runner, scripted

pytestmark = pytest.mark.anyio
SOON_S = 60.0
Open = Callable[[], SessionStore]


def emptied(backend: str, url: str) -> str:
    """The server's store without what other tests left there: a worker would take it up."""
    if backend == "redis":
        with redis.Redis.from_url(url) as client:
            client.flushdb()
    else:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("DROP TABLE IF EXISTS grampus_documents, grampus_logs, grampus_schema")
    return url


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "redis"))])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], SessionStore]]:
    """Opens another handle on one store, like another process."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/s.db"
    else:
        url = emptied(request.param, str(request.getfixturevalue(f"{request.param}_url")))
    opened: list[SessionStore] = []

    def another() -> SessionStore:
        opened.append(open_url(url))
        return opened[-1]

    yield another
    for store in opened:
        await store.aclose()


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    """A session of this test's own: the servers are shared."""
    return request.node.name


async def status(store: SessionStore, session: str, agent: str = "mailer") -> AgentStatus:
    return (await Ledger(store).known(agent, session))[0].status


async def soon(holds: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(SOON_S):
        while not await holds():  # noqa: ASYNC110 (what other handles wrote)
            await anyio.sleep(0.02)


@asynccontextmanager
async def working(one: AgentRunner, agents: tuple[str, ...] = ("mailer",), **given: Any) -> AsyncIterator[Worker]:
    worker = Worker(runner=one, agents=agents, **given)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        try:
            yield worker
        finally:
            worker.stop()


async def test_a_decision_wakes_the_session_that_waits_for_it_and_no_other(open_store: Open, session: str) -> None:
    world = World()
    one = runner(world, store=open_store())
    asked = (await one.run(AGENT, "mail bob", session_id=session)).pending[0]
    await one.run(AGENT, "mail bob", session_id=f"{session}-2")
    async with working(runner(world, store=open_store())) as worker:
        other = open_store()
        await anyio.sleep(0.1)
        assert world.sent == []
        await Ledger(other).decide(asked.decide("approve", principal="ann"))

        async def done() -> bool:
            return await status(other, session) is AgentStatus.COMPLETED

        await soon(done)
        assert world.sent == [("bob", "hi")]
        assert await status(other, f"{session}-2") is AgentStatus.WAITING_FOR_HUMAN
    assert worker.counts.resumed == 1
    assert await other.scan(WAKING, label="mailer") == []


async def test_a_request_that_expires_wakes_its_session(open_store: Open, session: str) -> None:
    world, approvals = World(), ApprovalPolicy(expires_s=0.3)
    one = runner(world, store=open_store(), approvals=approvals)
    await one.run(AGENT, "mail bob", session_id=session)
    async with working(runner(world, store=open_store(), approvals=approvals)):

        async def done() -> bool:
            return await status(one.ledger.store, session) is AgentStatus.COMPLETED

        await soon(done)
    assert world.sent == []


async def test_a_session_whose_worker_died_is_taken_up_when_its_lease_ran_out(open_store: Open, session: str) -> None:
    one = runner(World(), ["Done."], p_true=0.95, store=open_store(), lease_s=0.2)
    state, version = await one._fresh(AGENT, session, {})
    state.messages.append(Message(role=Role.USER, content="say something"))
    await one.leases.take(state, version)  # and nothing more: it died
    async with working(runner(World(), ["Done."], p_true=0.95, store=open_store(), lease_s=0.2)):

        async def done() -> bool:
            return await status(one.ledger.store, session) is AgentStatus.COMPLETED

        await soon(done)


async def test_a_decision_on_what_a_sub_agent_asks_wakes_its_parent(open_store: Open, session: str) -> None:
    world = World()

    def family(store: SessionStore) -> AgentRunner:
        child = runner(world, store=store)
        turns = [answer("I ask.", tool_calls=[HAND_OVER]), "All done."]
        clerk = SubAgent(child, AGENT, name="clerk")
        return AgentRunner(
            scripted(turns), FunctionTools(), uncertainty_monitor=UncertaintyMonitor(), store=store, sub_agents=[clerk]
        )

    parent = AgentDefinition(name="boss", model="scripted")
    waiting = await family(open_store()).run(parent, "go", session_id=session)
    while waiting.status is AgentStatus.WAITING_FOR_HUMAN and waiting.pending[0].child_session is None:
        own = waiting.pending[0].decide("approve", principal="ann")
        waiting = await family(open_store()).resume("boss", session, own)
    asked = waiting.pending[0]
    assert asked.child_session is not None
    store = open_store()
    _, as_the_child_asks = await Ledger(store).find_request(asked.id)
    async with working(family(open_store()), ("boss",)):
        await Ledger(store).decide(as_the_child_asks.decide("approve", principal="ann"))

        async def done() -> bool:
            return world.sent == [("bob", "hi")] and await status(store, session, "boss") is AgentStatus.COMPLETED

        await soon(done)


async def test_a_sub_agent_that_ends_without_its_parent_wakes_it(open_store: Open, session: str) -> None:
    world = World()
    child = runner(world, store=open_store())
    waiting = await child.run(AGENT, "mail", session_id=session, child_of={"parent_session": ["boss", session]})
    assert await child.ledger.store.children("wake", [waiting.pending[0].id]) == []
    await child.resume("mailer", session, waiting.pending[0].decide("approve", principal="ann"))
    (job,) = [one.job for one in await take(child.ledger.store, ["boss"], 9, 60.0) if one.job.session_id == session]
    assert job.sure


async def test_a_session_that_fails_again_and_again_is_set_aside_and_no_other_is_kept_waiting(
    open_store: Open, session: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    one = runner(world, store=open_store())
    bad = (await one.run(AGENT, "mail bob", session_id=session)).pending[0]
    good = (await one.run(AGENT, "mail bob", session_id=f"{session}-2")).pending[0]
    failing = runner(world, store=open_store())
    resume = failing.resume

    async def broken(agent_id: str, session_id: str, *given: Any, **named: Any) -> Any:
        if session_id == session:
            raise ZeroDivisionError("poison")
        return await resume(agent_id, session_id, *given, **named)

    failing.resume = broken  # type: ignore[method-assign]
    ledger = Ledger(open_store())
    for request in (bad, good):
        await ledger.decide(request.decide("approve", principal="ann"))
    key = session_key("mailer", session)
    async with working(failing, tries=2) as worker:

        async def done() -> bool:
            return await ledger.store.get(DEAD, key) is not None and len(world.sent) == 1

        await soon(done)
        assert worker.counts.failed == 1
        letter = await ledger.store.get(DEAD, key)
        assert letter is not None
        assert Job.model_validate_json(letter.body).why == "ZeroDivisionError: poison"
        assert "failed: ZeroDivisionError" in caplog.text
        assert "poison" not in caplog.text, "an error's text may quote a message"
        await ledger.store.write(Job(agent_id="mailer", session_id=session).now(0.0))
        seen = worker.counts.nothing_to_do

        async def dropped() -> bool:
            return worker.counts.nothing_to_do > seen

        await soon(dropped)
    assert await status(ledger.store, session) is AgentStatus.WAITING_FOR_HUMAN


HAND_OVER = ToolCall(id="h", name="clerk", arguments={"task": "mail bob"})
HOSTILE = ["", "{}", "null", "[]", '{"agent_id": "mailer"}', '{"agent_id": "other", "session_id": "s"}', "{" * 5_000]
HOSTILE += ['{"agent_id": "mailer", "session_id": "s", "taken": -1}']
HOSTILE += ['{"agent_id": "mailer", "session_id": "\\ud800"}']
HOSTILE += [
    '{"agent_id": "mailer", "session_id": "nobody"}',
    '{"agent_id": "mailer", "session_id": "s", "taken": 1e99}',
]


async def test_rows_that_nobody_can_read_are_removed_and_stop_no_worker(open_store: Open, session: str) -> None:
    world = World()
    one = runner(world, store=open_store())
    asked = (await one.run(AGENT, "mail bob", session_id=session)).pending[0]
    store = open_store()
    for number, body in enumerate(HOSTILE):
        for kind, key in ((WAKING, f"{number}"), (TIMER, f"!{session}/{number}")):
            await store.put(kind, key, body, expected=0, label="mailer")
        await store.put("session", f"mailer/{session}%20{number}", body, expected=0, label="running")
        await store.put("wake", f"{asked.id}/{number}", body, expected=0)
    async with working(runner(world, store=open_store())):
        await Ledger(store).decide(asked.decide("approve", principal="ann"))

        async def done() -> bool:
            return world.sent == [("bob", "hi")] and await store.scan(WAKING, label="mailer") == []

        await soon(done)


async def test_a_worker_that_is_stopped_gives_back_what_it_runs(open_store: Open, session: str) -> None:
    one = runner(World(), store=open_store())
    asked = (await one.run(AGENT, "mail bob", session_id=session)).pending[0]
    slow = runner(World(), store=open_store())
    started = anyio.Event()

    async def never(agent_id: str, session_id: str) -> None:
        started.set()
        await anyio.sleep_forever()

    slow.resume = never  # type: ignore[assignment, method-assign]
    await one.ledger.decide(asked.decide("approve", principal="ann"))
    with anyio.fail_after(SOON_S):
        async with working(slow, drain_s=0.0):
            await started.wait()
    taken = [each.job for each in await take(one.ledger.store, ["mailer"], 99, 60.0)]
    assert [(job.session_id, job.taken) for job in taken] == [(session, 1)]  # at once, and as if never taken before


async def test_who_waits_for_a_job_hears_of_one_that_another_handle_writes(open_store: Open) -> None:
    waits, writes = open_store(), open_store()
    await waits.now()
    await waits.wait_for_job(600.0)  # the first time at once: there may be jobs from before
    await waits.wait_for_job(0.1)
    heard = anyio.Event()

    async def hear() -> None:
        await waits.wait_for_job(600.0)
        heard.set()

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as group:
            group.start_soon(hear)
            while not heard.is_set():  # what was written before it listened it does not hear
                with anyio.move_on_after(0.3):
                    await heard.wait()
                await writes.write(Job(agent_id="a", session_id="s").now(0.0))


async def test_of_many_that_take_one_job_one_gets_it_and_the_others_when_it_did_not_come_back(
    open_store: Open, session: str
) -> None:
    stores = [open_store() for _ in range(4)]
    await stores[0].write(Job(agent_id=session, session_id="s").now(0.0))
    taken: list[Any] = []

    async def try_to(store: SessionStore) -> None:
        taken.extend(await take(store, [session], 5, 600.0))

    for count in (1, 1):
        async with anyio.create_task_group() as group:
            for store in stores:
                group.start_soon(try_to, store)
        assert len(taken) == count
    await stores[0].write(Job(agent_id=session, session_id="t").now(0.0))
    taken = await take(stores[0], [session], 5, 0.3)  # and it does not come back
    while float(taken[0].held.partition("/")[0]) > await stores[1].now():  # noqa: ASYNC110 (nothing tells it)
        await anyio.sleep(0.05)
    for count in (2, 2):
        async with anyio.create_task_group() as group:
            for store in stores:
                group.start_soon(try_to, store)
        assert len(taken) == count
    assert [(one.job.session_id, one.job.taken) for one in taken] == [("t", 1), ("t", 2)]


async def test_a_job_that_no_worker_came_back_from_is_set_aside(open_store: Open, session: str) -> None:
    one = runner(World(), store=open_store())
    asked = (await one.run(AGENT, "mail bob", session_id=session)).pending[0]
    await one.ledger.decide(asked.decide("approve", principal="ann"), wake=False)
    await one.ledger.store.write(Job(agent_id="mailer", session_id=session, taken=10).now(0.0))
    async with working(one, tries=2) as worker:

        async def done() -> bool:
            return worker.counts.set_aside == 1

        await soon(done)


async def test_a_store_that_is_down_ends_no_worker(tmp_path: Path) -> None:
    world = World()
    one = runner(world, store=open_url(f"sqlite:///{tmp_path}/s.db"))
    asked = (await one.run(AGENT, "mail bob", session_id="s")).pending[0]
    broken = runner(world, store=open_url(f"sqlite:///{tmp_path}/s.db"))
    scan, down = broken.ledger.store.scan, True

    async def scanned(*given: Any, **named: Any) -> Any:
        if down:
            raise StoreError("down")
        return await scan(*given, **named)

    broken.ledger.store.scan = scanned  # type: ignore[method-assign]
    async with working(broken) as worker:
        await one.ledger.decide(asked.decide("approve", principal="ann"))

        async def noticed() -> bool:
            return worker.counts.store_failures > 0

        await soon(noticed)
        down = False

        async def done() -> bool:
            return world.sent == [("bob", "hi")]

        await soon(done)


def test_a_worker_serves_some_agent_and_one_session_at_least() -> None:
    one = runner(World())
    with pytest.raises(ConfigurationError, match="agents"):
        Worker(runner=one, agents=())
    with pytest.raises(ConfigurationError, match="agents"):
        Worker(runner=one, agents="mailer")
    with pytest.raises(ConfigurationError, match="at_once"):
        Worker(runner=one, agents=("a",), at_once=0)
