"""Workers of several tenants share places: no flood of one keeps another waiting, nor does a store that is down."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError, StoreError
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_places import Places, StorePlaces
from tests.runtime.agents import AGENT, World, runner

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@given(
    st.integers(1, 12),
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
    st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=200),
)
def test_each_tenant_with_work_comes_to_its_share_whatever_the_others_have_and_the_sum_is_kept(
    at_once: int, jobs: list[int], events: list[tuple[bool, int]]
) -> None:
    places, waiting, running = Places(at_once), dict(enumerate(jobs)), Counter[int]()
    for member in waiting:
        places.join(str(member))

    def look(member: int) -> int:
        most = places.room(str(member))
        begun = min(most, waiting[member])
        waiting[member] -= begun
        running[member] += begun
        if most:
            places.began(str(member), begun, hungry=begun == most)
        assert running.total() <= at_once
        return begun

    for ends, number in events:
        member = number % len(jobs)
        if ends and running[member]:
            running[member] -= 1
            places.ended(str(member))
        else:
            look(member)
    for _ in range(200):  # every round a session of each ends, and each looks
        while sum(look(member) for member in waiting):
            pass
        for member in waiting:
            if waiting[member]:
                assert running[member] >= min(1, at_once // len(jobs))
            if running[member]:
                running[member] -= 1
                places.ended(str(member))
    assert not any(waiting.values())


class Tenant:
    """A store with decided runs of its own, and how many of them run."""

    def __init__(self) -> None:
        self.store, self.world, self.running, self.most = MemoryStore(), World(), 0, 0
        self.one = runner(self.world, store=self.store)
        self.may_end = anyio.Event()
        self.resume, self.one.resume = self.one.resume, self.resumed  # type: ignore[method-assign, assignment]

    async def decided(self, sessions: int) -> None:
        for number in range(sessions):
            (request,) = (await self.one.run(AGENT, "x", session_id=f"s{number}")).pending
            await self.one.ledger.decide(request.decide("approve", principal="ann"))

    async def resumed(self, agent_id: str, session_id: str) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.may_end.wait()
        self.running -= 1
        return await self.resume(agent_id, session_id)


async def until(holds: Any) -> None:
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110 (what the workers did)
            await anyio.sleep(0.01)


async def test_a_tenant_is_served_at_once_beside_the_flood_of_another_and_a_store_that_is_down() -> None:
    flood, other, down = Tenant(), Tenant(), Tenant()
    await flood.decided(10)

    async def broken(*given: Any, **named: Any) -> Any:
        raise StoreError("down")

    down.store.scan = broken  # type: ignore[method-assign]
    places = Places(4)
    workers = [Worker(runner=one.one, agents=["mailer"], at_once=4, places=places) for one in (flood, other, down)]
    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(worker.run)
        await until(lambda: flood.running == 2)  # a place for each of the others
        other.may_end.set()
        await other.decided(3)
        await until(lambda: len(other.world.sent) == 3)
        assert flood.running == 2
        flood.may_end.set()
        await until(lambda: len(flood.world.sent) == 10)
        for worker in workers:
            worker.stop()
    assert workers[2].counts.store_failures > 0


async def test_of_a_store_no_more_sessions_run_than_it_may_have_in_all_workers_together() -> None:
    tenant = Tenant()
    await tenant.decided(8)
    workers = [Worker(runner=tenant.one, agents=["mailer"], at_once_everywhere=3) for _ in range(4)]
    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(worker.run)
        await until(lambda: tenant.running >= 3)
        await anyio.sleep(0.5)
        tenant.may_end.set()
        await until(lambda: len(tenant.world.sent) == 8)
        for worker in workers:
            worker.stop()
    assert tenant.most == 3
    assert await tenant.store.scan("place") == []


async def test_the_place_of_a_worker_that_died_is_free_after_its_lease_and_that_of_a_live_one_is_kept() -> None:
    store = MemoryStore()
    died, lives, waits = (StorePlaces(store, 2, 0.3) for _ in range(3))
    assert await died.take() is not None
    async with anyio.create_task_group() as group:
        group.start_soon(lives.renew)
        kept = await lives.take()
        assert kept is not None
        assert await waits.take() is None
        await anyio.sleep(0.5)
        assert await waits.take() is not None
        assert await waits.take() is None
        await lives.give(kept)
        assert await waits.take() == kept
        group.cancel_scope.cancel()


def test_there_is_a_place_at_least() -> None:
    with pytest.raises(ConfigurationError, match="at_once"):
        Places(0)
