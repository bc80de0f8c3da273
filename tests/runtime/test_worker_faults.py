"""What a worker meets in the wild: errors of any text, deaths, refusals, families, and a store that fails anywhere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    AgentStatus,
    ApprovalPolicy,
    ApprovalRequest,
    FunctionTools,
    SubAgent,
    UncertaintyMonitor,
    tool,
)
from grampus_uq.errors import ChangedToolsError, ConfigurationError, SessionConflictError, SessionError, StoreError
from grampus_uq.gate.call import CallPhase
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.dead_letters import dead_letters, drop, retry
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.stopping import StopOrders
from grampus_uq.runtime.store import WAKING, Delete, Put
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_hosted import HostedRunner
from grampus_uq.runtime.worker_jobs import TIMER, Job, take
from grampus_uq.testing import answer
from tests.clocks import backend_of
from tests.runtime.agents import AGENT, World, mail, runner, scripted
from tests.runtime.test_worker import HAND_OVER
from tests.sampling import examples

pytestmark = pytest.mark.anyio
SOON_S = 60.0


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    return backend_of(request, "asyncio")


@asynccontextmanager
async def working(*workers: Worker) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(worker.run)
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()


async def until(holds: Callable[[], Any]) -> None:
    with anyio.fail_after(SOON_S):
        while not await holds():  # noqa: ASYNC110 (what is stored)
            await anyio.sleep(0.01)


async def status(store: MemoryStore, session: str = "s", agent: str = "mailer") -> AgentStatus:
    return (await Ledger(store).known(agent, session))[0].status


async def decided(store: MemoryStore, world: World, session: str = "s", **given: Any) -> AgentRunner:
    """A session that waits and was approved."""
    one = runner(world, store=store, **given)
    (request,) = (await one.run(AGENT, "x", session_id=session)).pending
    await one.ledger.decide(request.decide("approve", principal="ann"))
    return one


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError


errors = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20).map(RuntimeError),
    st.sampled_from(
        [
            UnspeakableError(),
            RuntimeError("\udce9\x00" * 5_000),
            SystemExit(3),
            asyncio.CancelledError(),
            BaseExceptionGroup("many", [SystemExit(3)]),
            ExceptionGroup("many", [ValueError("\ud800")]),
            SessionError("\udfff"),
            StoreError("no such row"),
        ]
    ),
)


@given(errors, st.booleans())
@settings(max_examples=examples(25), deadline=None)
async def test_no_error_of_a_session_ends_a_worker(error: BaseException, deaf: bool) -> None:
    store = MemoryStore()
    one = await decided(store, World())

    async def resume(*given: Any) -> None:
        raise error

    one.resume = resume  # type: ignore[assignment, method-assign]
    worker = Worker(runner=one, agents=["mailer"], tries=1)

    def told(job: Job, ended: str, why: str) -> None:
        worker.stop()
        if deaf:
            raise error

    if isinstance(error, Exception):
        worker.on_job = told
    async with working(worker):
        await until(lambda: dead_letters(store))
    (letter,) = await dead_letters(store)
    assert letter.failed == worker.counts.set_aside == 1
    assert type(error).__name__ in letter.why


async def test_a_letter_is_void_once_somebody_went_on_with_its_session() -> None:
    store, world = MemoryStore(), World()
    turns = [answer("One.", tool_calls=[mail("1", "bob")]), answer("Two.", tool_calls=[mail("2", "eve")]), "Done."]
    one = await decided(store, world, turns=turns)
    broken = runner(World(), turns, store=store)

    async def poison(*given: Any) -> None:
        raise ZeroDivisionError

    broken.resume = poison  # type: ignore[assignment, method-assign]
    async with working(Worker(runner=broken, agents=["mailer"], tries=1)):
        await until(lambda: dead_letters(store))
    (second,) = (await one.resume("mailer", "s")).pending
    assert await dead_letters(store) == []
    await one.ledger.decide(second.decide("approve", principal="ann"))

    async def done() -> bool:
        return len(world.sent) == 2

    async with working(Worker(runner=one, agents=["mailer"])):
        await until(done)
    assert world.sent == [("bob", "hi"), ("eve", "hi")]


class Faulty(MemoryStore):
    """Fails, or never answers, at one of its operations."""

    at, count, ahead_s = -1, 0, 0.0
    hangs: anyio.Event | None = None

    def _now(self) -> float:
        return super()._now() + self.ahead_s

    async def fault(self) -> None:
        self.count += 1
        if self.count == self.at:
            if self.hangs is not None:
                self.hangs.set()
                await anyio.sleep_forever()
            raise StoreError("the network")

    async def get(self, *given: Any, **named: Any) -> Any:
        await self.fault()
        return await super().get(*given, **named)

    async def scan(self, *given: Any, **named: Any) -> Any:
        await self.fault()
        return await super().scan(*given, **named)

    async def children(self, *given: Any, **named: Any) -> Any:
        await self.fault()
        return await super().children(*given, **named)

    async def read(self, *given: Any, **named: Any) -> Any:
        await self.fault()
        return await super().read(*given, **named)

    async def write(self, *changes: Any) -> float:
        await self.fault()
        return await super().write(*changes)


async def first_of(others: anyio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    await work()
    others.cancel()


@pytest.mark.parametrize("hangs", [False, True])
async def test_wherever_resuming_by_hand_fails_or_is_cancelled_a_worker_goes_on(hangs: bool) -> None:
    """Once a decision is stored, its run comes to its end, or a human is asked what became of a call."""
    asked_again = 0
    for at in range(1, 60):
        store, world = Faulty(), World()
        one = runner(world, store=store)
        (request,) = (await one.run(AGENT, "x", session_id="s")).pending
        store.count, store.at, hanging = 0, at, anyio.Event()
        store.hangs = hanging if hangs else None

        async def resumes(one: AgentRunner = one, request: ApprovalRequest = request) -> None:
            with suppress(StoreError):
                await one.resume("mailer", "s", request.decide("approve", principal="ann"))

        async with anyio.create_task_group() as group:
            group.start_soon(first_of, group.cancel_scope, resumes)
            group.start_soon(first_of, group.cancel_scope, hanging.wait)
        reached, store.at, store.ahead_s = store.count >= at, -1, 3_600.0  # no lease lasts so long
        if not await store.scan("decision"):
            continue  # whoever decided was told that it failed

        async def rests(store: Faulty = store) -> bool:
            state, _ = await Ledger(store).known("mailer", "s")
            asks = [request for request in state.pending() if request.unknown_outcome]
            return state.status is AgentStatus.COMPLETED or bool(asks)

        async with working(Worker(runner=one, agents=["mailer"])):
            await until(rests)
        asked_again += await status(store) is not AgentStatus.COMPLETED
        assert len(world.sent) <= 1
        assert world.sent or await status(store) is not AgentStatus.COMPLETED, f"completed without its call: {at}"
        if not reached:
            break
    assert at > 5
    assert asked_again < at / 2


async def test_deciding_again_wakes_the_session_again() -> None:
    store, world = MemoryStore(), World()
    one = runner(world, store=store)
    (request,) = (await one.run(AGENT, "x", session_id="s")).pending
    decision = request.decide("approve", principal="ann")
    await one.ledger.decide(decision, wake=False)
    await one.ledger.decide(decision)
    assert len(await store.scan(WAKING)) == 1


async def test_a_session_that_a_release_refuses_is_left_to_another_one() -> None:
    store, world = MemoryStore(), World()
    old = await decided(store, world)
    new = runner(World(), store=store)
    refusals = 0

    async def refuses(*given: Any) -> None:
        nonlocal refusals
        refusals += 1
        raise ChangedToolsError("changed")

    new.resume = refuses  # type: ignore[assignment, method-assign]

    async def refused() -> bool:
        return refusals >= 3

    async def done() -> bool:
        return await status(store) is AgentStatus.COMPLETED

    rejecting = Worker(runner=new, agents=["mailer"], tries=1)
    async with working(rejecting):
        await until(refused)
        async with working(*(Worker(runner=old, agents=["mailer"]) for _ in range(3))):
            await until(done)
    assert (rejecting.counts.failed, rejecting.counts.set_aside) == (0, 0)
    assert world.sent == [("bob", "hi")]
    assert await dead_letters(store) == []


async def test_a_session_that_nobody_takes_over_is_set_aside_after_an_hour_of_refusals() -> None:
    store = MemoryStore()
    one = await decided(store, World())

    async def refuses(*given: Any) -> None:
        raise ChangedToolsError("the tools of then")

    one.resume = refuses  # type: ignore[assignment, method-assign]
    for row in await store.scan(WAKING):
        job = Job(agent_id="mailer", session_id="s", refused=359).now(1.0)
        await store.write(Delete(kind=WAKING, key=row.key, expected=row.version), job)
    async with working(Worker(runner=one, agents=["mailer"])):
        await until(lambda: dead_letters(store))
    assert "the tools of then" in (await dead_letters(store))[0].why


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_session_that_kills_its_workers_is_set_aside_after_so_many_deaths_whatever_its_jobs_say(
    tries: int,
) -> None:
    store = MemoryStore()
    one = await decided(store, World())
    for deaths in range(1, 5 * tries + 1):
        state, version = await one.ledger.known("mailer", "s")
        state._leased_until = 0.0  # it ran out
        lease = await one.leases.take(state, version)  # and nothing more: it died
        worker = Worker(runner=one, agents=["mailer"], tries=tries)
        lease.state.lease_s = -1.0
        await one.ledger.save(lease.state, lease.version)
        look = await worker._look(Job(agent_id="mailer", session_id="s"))
        assert look.deaths == deaths
    async with working(worker):
        await until(lambda: dead_letters(store))
    assert f"{5 * tries} workers in a row" in (await dead_letters(store))[0].why


async def died(one: AgentRunner, earlier: int) -> None:
    """A worker takes the session up and dies, after so many others in a row."""
    state, version = await one.ledger.known("mailer", "s")
    state._leased_until = 0.0
    lease = await one.leases.take(state, version)
    lease.state.metadata["worker_deaths"], lease.state.lease_s = earlier, -1.0
    await one.ledger.save(lease.state, lease.version)


@pytest.mark.parametrize("once_more", [False, True])
async def test_a_session_whose_workers_died_runs_when_it_is_tried_again_and_one_more_death_sets_it_aside(
    once_more: bool,
) -> None:
    store, world = MemoryStore(), World()
    one = await decided(store, world)
    await died(one, 24)
    async with working(Worker(runner=one, agents=["mailer"])):
        await until(lambda: dead_letters(store))
    assert "25 workers in a row died" in (await dead_letters(store))[0].why
    await retry(store, "mailer", "s")
    if once_more:
        await take(store, ["mailer"], 1, 0.0)
        await died(one, 25)
    worker = Worker(runner=one, agents=["mailer"])
    worker.on_job = lambda job, ended, why: worker.stop() if ended in ("resumed", "set_aside") else None
    with anyio.fail_after(10):
        await worker.run()
    assert (worker.counts.resumed, worker.counts.set_aside) == (not once_more, once_more)
    assert world.sent == ([] if once_more else [("bob", "hi")])


async def test_a_session_that_comes_to_rest_forgets_the_deaths_of_its_workers() -> None:
    store, world = MemoryStore(), World()
    one = await decided(store, world)
    state, version = await one.ledger.known("mailer", "s")
    state.metadata["worker_deaths"] = 4
    await one.ledger.save(state, version)
    await one.resume("mailer", "s")
    assert "worker_deaths" not in (await one.ledger.known("mailer", "s"))[0].metadata


@pytest.mark.parametrize("hostile", ["many", -5, 1e99, True, None, [1]])
async def test_a_count_of_deaths_that_nobody_wrote_counts_for_nothing(hostile: Any) -> None:
    store, world = MemoryStore(), World()
    one = runner(world, store=store)
    (request,) = (await one.run(AGENT, "x", session_id="s")).pending
    state, version = await one.ledger.known("mailer", "s")
    state.metadata["worker_deaths"] = hostile
    await one.ledger.save(state, version)
    await one.ledger.decide(request.decide("approve", principal="ann"))

    async def done() -> bool:
        return await status(store) is AgentStatus.COMPLETED

    async with working(Worker(runner=one, agents=["mailer"])):
        await until(done)


@pytest.mark.jumping_clocks
async def test_a_second_approval_that_comes_while_the_first_call_runs_is_taken_up_within_a_second() -> None:
    store, sent = MemoryStore(), list[str]()
    first, may_end = anyio.Event(), anyio.Event()

    async def send_email(to: str, body: str) -> str:
        """Send."""
        sent.append(to)
        if to == "bob":
            first.set()
            await may_end.wait()
        return "sent"

    turns = [answer("Two.", tool_calls=[mail("1", "bob"), mail("2", "eve")]), "Done."]
    tools = FunctionTools(tool(effect="irreversible")(send_email))
    one = AgentRunner(scripted(turns), tools, uncertainty_monitor=UncertaintyMonitor(), store=store)
    bob, eve = (await one.run(AGENT, "x", session_id="s")).pending
    async with working(Worker(runner=one, agents=["mailer"])):
        await one.ledger.decide(bob.decide("approve", principal="ann"))
        await first.wait()
        await one.ledger.decide(eve.decide("approve", principal="ann"))
        await anyio.sleep(3.0)  # it was found busy a few times
        may_end.set()
        with anyio.fail_after(2.5):
            while sent != ["bob", "eve"]:  # noqa: ASYNC110 (a tool of the test's)
                await anyio.sleep(0.01)


async def test_the_timer_of_an_expiry_that_came_early_comes_again() -> None:
    store = MemoryStore()
    one = runner(World(), store=store, approvals=ApprovalPolicy(expires_s=3_600.0))
    await one.run(AGENT, "x", session_id="s")
    (timer,) = await store.scan(TIMER)
    early = Put(kind=TIMER, key="0000000001.000000/x", body=timer.body, expected=0, label=timer.label)
    await store.write(Delete(kind=TIMER, key=timer.key, expected=timer.version), early)
    worker = Worker(runner=one, agents=["mailer"])

    async def looked() -> bool:
        return worker.counts.nothing_to_do > 0

    async with working(worker):
        await until(looked)
    (again,) = await store.scan(TIMER)
    assert again.key.partition("/")[0] == timer.key.partition("/")[0]


async def test_a_worker_that_is_told_to_stop_while_it_looks_waits_for_nobody() -> None:
    store = MemoryStore()
    one = await decided(store, World(), lease_s=1e-6)
    started = anyio.Event()

    async def never(*given: Any) -> None:
        started.set()
        await anyio.sleep_forever()

    one.resume = never  # type: ignore[assignment, method-assign]
    worker = Worker(runner=one, agents=["mailer"], per_agent=1, at_once=2, drain_s=0.1)
    scan = store.scan

    async def stopped(*given: Any, **named: Any) -> Any:
        found = await scan(*given, **named)
        if worker.running and given[0] == "session":
            await started.wait()
            worker.stop()
        return found

    store.scan = stopped  # type: ignore[method-assign]
    with anyio.fail_after(SOON_S):
        await worker.run()


async def test_one_row_that_cannot_be_queued_hides_no_other_orphan() -> None:
    class Narrow(MemoryStore):
        async def write(self, *changes: Any) -> float:
            if any(isinstance(one, Put) and one.kind == TIMER and "bad" in one.body for one in changes):
                raise StoreError("too long")
            return await super().write(*changes)

    store, world = Narrow(), World()
    for name in ("bad", "good"):
        one = await decided(store, world, name, lease_s=0.2)
        for row in await store.scan(WAKING):
            await store.write(Delete(kind=WAKING, key=row.key, expected=row.version))
        state, version = await one.ledger.known("mailer", name)
        await one.leases.take(state, version)  # and its worker died

    async def done() -> bool:
        return await status(store, "good") is AgentStatus.COMPLETED

    async with working(Worker(runner=one, agents=["mailer"])):
        await until(done)


async def test_a_session_that_another_worker_ended_meanwhile_has_not_failed() -> None:
    store, world = MemoryStore(), World()
    one = await decided(store, world)
    resume = one.resume

    async def second(agent_id: str, session_id: str) -> Any:
        await resume(agent_id, session_id)
        return await resume(agent_id, session_id)

    one.resume = second  # type: ignore[assignment, method-assign]
    worker = Worker(runner=one, agents=["mailer"], tries=1, on_job=lambda job, ended, why: worker.stop())
    await worker.run()
    assert (worker.counts.nothing_to_do, worker.counts.set_aside) == (1, 0)


async def test_a_session_whose_name_no_store_could_index_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="session_id"):
        await runner(World()).run(AGENT, "x", session_id="ü" * 400)


# -- families ---------------------------------------------------------------------------------------------------------


def family(store: MemoryStore, world: World) -> AgentRunner:
    child = runner(world, store=store)
    turns = [answer("I ask.", tool_calls=[HAND_OVER]), "All done."]
    clerk = SubAgent(child, AGENT, name="clerk")
    watch = UncertaintyMonitor()
    return AgentRunner(scripted(turns), FunctionTools(), uncertainty_monitor=watch, store=store, sub_agents=[clerk])


async def waiting_child(store: MemoryStore, world: World) -> Any:
    """A parent whose sub-agent waits; the request as the child asks it."""
    boss = AgentDefinition(name="boss", model="scripted")
    waiting = await family(store, world).run(boss, "go", session_id="p")
    while waiting.pending[0].child_session is None:
        own = waiting.pending[0].decide("approve", principal="ann")
        waiting = await family(store, world).resume("boss", "p", own)
    return (await Ledger(store).find_request(waiting.pending[0].id))[1]


async def test_who_decides_on_a_sub_agent_that_is_at_work_is_told_to_try_again() -> None:
    store, world = MemoryStore(), World()
    asked = await waiting_child(store, world)
    lease = await runner(world, store=store).leases.take(*await Ledger(store).known("mailer", asked.session_id))
    with pytest.raises(SessionError, match="at work now: try again"):
        await Ledger(store).find_request(asked.id)
    await lease.release()
    assert (await Ledger(store).find_request(asked.id))[1] == asked


async def test_a_sub_agent_whose_parent_ended_asks_nobody_runs_nothing_and_is_forgotten_with_it() -> None:
    store, world = MemoryStore(), World()
    asked = await waiting_child(store, world)
    parent, version = await Ledger(store).known("boss", "p")
    parent.status, parent.turn = AgentStatus.FAILED, []
    await Ledger(store).save(parent, version)
    assert await Ledger(store).pending() == []
    with pytest.raises(SessionError, match="No pending request"):
        await Ledger(store).find_request(asked.id)
    child = runner(world, store=store)
    with pytest.raises(SessionError, match="parent that has ended"):
        await child.resume("mailer", asked.session_id, asked.decide("approve", principal="ann"))
    assert world.sent == []
    assert await prune(store, 1e-9) == 2
    assert await store.scan("session") == []


async def test_a_finished_sub_agent_stays_until_its_parent_has_taken_its_result() -> None:
    store, world = MemoryStore(), World()
    asked = await waiting_child(store, world)
    await runner(world, store=store).resume("mailer", asked.session_id, asked.decide("approve", principal="ann"))
    assert await prune(store, 1e-9, keep=0) == 0
    result = await family(store, world).resume("boss", "p")
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])
    assert await prune(store, 1e-9) == 2


async def test_a_call_that_had_started_when_its_run_was_given_up_is_not_said_to_have_not_run() -> None:
    store, world = MemoryStore(), World()
    one = await decided(store, world, lease_s=0.1)

    state, version = await one.ledger.known("mailer", "s")
    state.turn = [
        record.change(phase=CallPhase.STARTED, requests=()) if record.proposed.name == "send_email" else record
        for record in state.turn
    ]
    await one.ledger.save(state, version)
    await store.put("dead", "mailer/s", '{"agent_id": "mailer", "session_id": "s"}', expected=0)
    await drop(Ledger(store), "mailer", "s", principal="ann")
    given_up, _ = await one.ledger.known("mailer", "s")
    assert not any("Not executed" in message.content for message in given_up.messages)
    entries = await AuditLog(store, "mailer", "s").entries()
    assert [one["data"]["call_id"] for one in entries if one["what"] == "outcome_unknown"] == ["b"]


# -- retention at a bad moment ----------------------------------------------------------------------------------------


async def test_an_audit_that_a_session_begins_anew_while_it_is_pruned_stays() -> None:
    class Racing(MemoryStore):
        begin: Any = None

        async def write(self, *changes: Any) -> float:
            begin, self.begin = self.begin, None
            if begin is not None and any(isinstance(one, Put) and one.label == "completed" for one in changes):
                await begin()
            return await super().write(*changes)

    store = Racing()
    one = runner(World(), ["Done."], store=store, p_true=0.95)
    await one.run(AGENT, "x", session_id="s")
    await prune(store, 1e-9)

    async def begin() -> None:
        await one.run(AGENT, "x", session_id="s")

    store.begin = begin
    await prune(store, None, audits_older_than_s=1e-9)
    assert len(await AuditLog(store, "mailer", "s").entries()) == 2
    await prune(store, 1e-9)
    await prune(store, None, audits_older_than_s=1e-9)
    assert await AuditLog(store, "mailer", "s").entries() == []
    assert await store.scan("session") == []


async def test_a_decision_that_a_session_needs_stays_though_the_session_is_taken_up_between_two_looks() -> None:
    class Moving(MemoryStore):
        moved: Any = None

        async def scan(self, kind: str, **given: Any) -> Any:
            found = await super().scan(kind, **given)
            if kind == "session" and given.get("label") == "running" and self.moved is not None:
                moved, self.moved = self.moved, None
                await moved()
            return found

    store = Moving()
    one = runner(World(), store=store, approvals=ApprovalPolicy(required=2))
    (request,) = (await one.run(AGENT, "x", session_id="s")).pending
    await one.ledger.decide(request.decide("approve", principal="ann"), wake=False)

    async def moved() -> None:
        state, version = await one.ledger.known("mailer", "s")
        await one.leases.take(state, version)

    store.moved = moved
    await anyio.sleep(0.01)
    await prune(store, 1e-9)
    assert len(await store.scan("decision")) == 1
    assert len(await store.scan("wake")) == 1


async def test_prunes_side_by_side_move_every_session_once_and_whole(tmp_path: Path) -> None:
    store = MemoryStore()
    for number in range(20):
        await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id=f"s{number}")
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(partial(prune, store, 1e-9, move_to=tmp_path))
    assert await store.scan("session") == []
    assert sorted(os.listdir(tmp_path)) == sorted(f"s{number}.jsonl" for number in range(20))


async def test_agents_that_hang_leave_a_place_for_every_other_one() -> None:
    store, world = MemoryStore(), World()
    one, desk = runner(world, store=store), AGENT.model_copy(update={"name": "desk"})
    for agent, count in ((AGENT, 6), (desk, 1)):
        for number in range(count):
            (request,) = (await one.run(agent, "x", session_id=f"s{number}")).pending
            await one.ledger.decide(request.decide("approve", principal="ann"), wake=agent is AGENT)
    resume, hanging = one.resume, 0

    async def some(agent_id: str, session_id: str) -> Any:
        nonlocal hanging
        if agent_id == "desk":
            return await resume(agent_id, session_id)
        hanging += 1
        return await anyio.sleep_forever()

    one.resume = some  # type: ignore[assignment, method-assign]

    async def full() -> bool:
        return hanging == 3

    async def done() -> bool:
        return await status(store, "s0", "desk") is AgentStatus.COMPLETED

    async with working(Worker(runner=one, agents=["mailer", "desk"], at_once=4, drain_s=0.0)):
        await until(full)
        await store.write(Job(agent_id="desk", session_id="s0").now(0.0))
        await until(done)


@pytest.mark.parametrize("own", ["boss", ["a"], ["a", 1], {"0": "a"}, 7])
async def test_a_parent_that_nobody_can_read_makes_no_sub_agent_of_a_run(own: Any) -> None:
    store = MemoryStore()
    one = runner(World(), store=store, approvals=ApprovalPolicy(expires_s=3_600.0))
    await one.run(AGENT, "x", session_id="s", child_of={"parent_session": own})
    assert len(await store.scan(TIMER)) == 1


_KEPT = [
    "attended",
    "begun_with",
    "looks",
    "looks_replaced",
    "parent_run",
    "parent_session",
    "parents",
    "rejected_before",
    "started_by",
    "worker_deaths",
]


@given(
    names=st.dictionaries(st.sampled_from(["mine", *_KEPT]), st.sampled_from([True, None, 10**9, ["mailer", "s"], {}]))
)
@settings(max_examples=examples(40))
def test_a_clients_metadata_is_refused_by_name_or_changes_nothing(names: dict[str, Any]) -> None:
    """What the runner reads there decides which worker takes a session up, and whether it is listed at all."""

    async def run() -> None:
        store, world = MemoryStore(), World()
        one = runner(world, store=store)
        taken = sorted(set(names) & set(_KEPT))
        if taken:
            with pytest.raises(ConfigurationError, match=taken[0]):
                await one.run(AGENT, "x", session_id="s", metadata=names)
            assert await store.scan("session") == []
            return
        (request,) = (await one.run(AGENT, "x", session_id="s", metadata=names)).pending
        assert [asked.id for session in await one.ledger.pending() for asked in session.requests] == [request.id]
        await one.ledger.decide(request.decide("approve", principal="ann"))
        assert len(await take(store, ["mailer"], 9, 60.0, (WAKING,))) == 1

    anyio.run(run)


@pytest.mark.parametrize("odd", ["maybe", 1, [], None])
async def test_a_session_with_an_odd_mark_of_attendance_is_listed_like_any_other(odd: Any) -> None:
    store = MemoryStore()
    one = runner(World(), store=store)
    await one.run(AGENT, "x", session_id="s")
    state, version = await one.ledger.known("mailer", "s")
    state.metadata["attended"] = odd
    await one.ledger.save(state, version)
    assert len(await one.ledger.pending()) == 1


async def test_a_decision_on_a_text_that_is_no_request_wakes_nobody() -> None:
    store = MemoryStore()
    one = runner(World(), store=store)
    (request,) = (await one.run(AGENT, "x", session_id="s")).pending
    for named in ("mailer", request.id[:8]):
        await one.ledger.decide(request.model_copy(update={"id": named}).decide("approve", principal="ann"))
    assert await store.scan(WAKING) == []


async def test_a_forged_count_sets_no_session_aside_that_has_ended() -> None:
    store = MemoryStore()
    one = runner(World(), ["Done."], store=store, p_true=0.95)
    await one.run(AGENT, "x", session_id="s")
    await store.write(Job(agent_id="mailer", session_id="s", taken=1_000_000 - 1).now(0.0))
    worker = Worker(runner=one, agents=["mailer"], on_job=lambda job, ended, why: worker.stop())
    await worker.run()
    assert await dead_letters(store) == []


async def test_a_process_that_stood_still_before_its_tool_looks_whether_the_session_is_still_its_own() -> None:
    store, world = MemoryStore(), World()
    one = await decided(store, world, lease_s=0.2)

    class Stopped(MemoryStore):
        """The other's store, for a process that stands still behind the write that says that its call starts."""

        done = False

        async def get(self, kind: str, key: str) -> Any:
            if kind == "stop" and not self.done and "execution_started" in str(await self.read("audit/mailer/s")):
                self.done = True
                await anyio.sleep(0.3)
                with anyio.fail_after(SOON_S):
                    waiting = await one.resume("mailer", "s")
                assert waiting.pending[0].unknown_outcome
            return await super().get(kind, key)

    shared = Stopped()
    shared._documents, shared._logs, shared._by_label = store._documents, store._logs, store._by_label
    sleeper = runner(world, store=shared, lease_s=0.2)
    sleeper.leases.stops = StopOrders(sleeper.ledger)
    with pytest.raises(SessionConflictError):
        await sleeper.resume("mailer", "s")
    assert world.sent == []


async def test_a_run_that_was_given_up_begins_again_though_its_engine_asks_under_the_same_id() -> None:
    store = MemoryStore()
    (request,) = (await runner(World(), store=MemoryStore()).run(AGENT, "x", session_id="s")).pending

    class Engine:
        """Asks the same again and again, in a tuple as `waiting` of an adapter, and hears what was decided."""

        def __init__(self) -> None:
            self.heard, self.kept = list[Any](), 0

        async def pending(self, session_id: str) -> Any:
            return None if self.heard else (request,)

        async def mark(self, session_id: str) -> str:
            return str(self.kept)

        async def go_on(self, session_id: str, decisions: Any, now_s: float) -> None:
            self.heard += decisions

        async def begin(self) -> None:
            self.kept += 1

    engine = Engine()
    hosted = HostedRunner(engine, store, agent_id="mailer")
    assert await hosted.begin("s", engine.begin) == "waiting_for_human"
    await store.put("dead", "mailer/s", '{"agent_id": "mailer", "session_id": "s"}', expected=0)
    await drop(Ledger(store), "mailer", "s", principal="ann")
    assert await hosted.begin("s", engine.begin) == "waiting_for_human"
    await hosted.ledger.decide(request.decide("approve", principal="ann"))

    async def done() -> bool:
        return await status(store) is AgentStatus.COMPLETED

    async with working(Worker(runner=hosted, agents=["mailer"])):
        await until(done)
    assert [decision.request_id for decision in engine.heard] == [request.id]
