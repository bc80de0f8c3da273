"""Starts in a store: of several processes that hold one approval, or an old state with it, one runs the call."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from grampus_uq import StoreError, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.gate.call import CallPhase
from grampus_uq.integrations.carried_calls import take_up, write_snapshot
from grampus_uq.integrations.model_turn import ModelTurn
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.runtime import Change, MemoryStore, StoredStarts
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.stores import open_store
from tests.integrations.test_cancelled_runs import CONFIG, KINDS, PROMPT, Run
from tests.integrations.test_permits import SAYS, pay


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_resume_one_approval_at_once_run_each_call_once(kind: str) -> None:
    async def world(rng: Random) -> None:
        run = Run(kind, payments := rng.choice([1, 1, 2, 3]), starts=StoredStarts(MemoryStore()))
        await run.go(PROMPT)
        given, before = await run.decide("approve"), copy.deepcopy(run._saver)
        apps = [run.app]
        for _ in range(rng.choice([1, 1, 2])):
            run.restart()
            apps.append(run.app)

        async def go_on(app: Any) -> None:
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            await app.ainvoke(given, CONFIG)

        await asyncio.gather(*(go_on(app) for app in apps), return_exceptions=True)
        once = Counter(range(payments))
        assert Counter(run.paid) == once, f"paid {run.paid}"
        run._saver = before  # somebody puts the old state back
        run.restart()
        await run.go(given)
        assert Counter(run.paid) == once, f"the old state paid: {run.paid}"
        asked = await run.waiting()
        assert {request.rule for request in asked} == {"unknown_outcome"}
        while asked:  # "own" nodes run one call after another
            await run.go(await run.decide("reject"))
            asked = await run.waiting()
        assert Counter(run.paid) == once

    for seed in range(6):
        asyncio.run(world(Random(f"{kind} {seed}")))


class _Down(MemoryStore):
    down = False

    async def write(self, *changes: Change) -> float:
        if self.down:
            raise StoreError("no route")
        return await super().write(*changes)


@pytest.mark.parametrize("kind", ["tools", "own node, edges", "langchain"])
def test_a_call_whose_start_cannot_be_stored_runs_later(kind: str) -> None:
    async def world() -> None:
        store = _Down()
        run = Run(kind, 1, starts=StoredStarts(store))
        await run.go(PROMPT)
        store.down = True
        with pytest.raises(StoreError, match="no route"):
            await run.go(await run.decide("approve"))
        assert run.paid == []
        store.down = False
        await run.go()
        assert run.paid == [0]

    asyncio.run(world())


@pytest.mark.anyio
async def test_a_held_call_whose_start_cannot_be_stored_waits_again() -> None:
    store = _Down()
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
    chosen = AdapterSettings(monitor=monitor, starts=StoredStarts(store))
    held = take_up(chosen, chosen.gate(lambda name: None), "s", "clerk")
    await held.observe(chosen, ModelTurn(content=SAYS, calls=(pay(1),)), [pay(1)])
    held.decide((await held.judge(pay(1))).requests[0].decide("approve", principal="ann"))
    old = write_snapshot(held)
    store.down = True
    release = await held.release(pay(1))
    assert not release.run
    assert release.request is not None
    assert "no route" in release.request.reason
    store.down = False
    held.decide(release.request.decide("approve", principal="ann"))
    assert (await held.release(pay(1))).run
    elsewhere = take_up(chosen, chosen.gate(lambda name: None), "s", "clerk", old)
    assert (await elsewhere.release(pay(1))).run, "the approval before was void, and nothing ran on it"
    again = take_up(chosen, chosen.gate(lambda name: None), "s", "clerk", old)
    assert (await again.release(pay(1))).record.phase is CallPhase.WAITING


@pytest.mark.anyio
async def test_old_starts_are_pruned() -> None:
    store = MemoryStore()
    assert await StoredStarts(store).take("a", "one")
    await prune(store, 3600.0)
    assert not await StoredStarts(store).take("a", "other")
    await prune(store, 1e-9)
    assert await StoredStarts(store).take("a", "other")


@pytest.mark.parametrize("many", [2, 20])
def test_of_many_that_ask_for_a_start_one_has_it(tmp_path: Path, many: int) -> None:
    async def work() -> None:
        store, had = open_store(f"sqlite:///{tmp_path / 'starts.db'}", create=True), list[int]()

        async def ask(owner: int) -> None:
            starts = StoredStarts(store)
            if await starts.take("a", f"{owner}"):
                had.append(owner)
                assert await starts.take("a", f"{owner}"), "its owner may ask again"

        async with anyio.create_task_group() as group:
            for owner in range(many):
                group.start_soon(ask, owner)
        assert len(had) == 1
        await store.aclose()

    anyio.run(work)
