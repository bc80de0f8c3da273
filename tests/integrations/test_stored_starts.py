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

from grampus_uq import ApprovalPolicy, StoreError, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.gate.gate import Gate
from grampus_uq.integrations.call_records import waiting_in
from grampus_uq.integrations.carried_calls import take_up, write_snapshot
from grampus_uq.integrations.model_turn import ModelTurn
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.runtime import Change, MemoryStore, StoredStarts
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.store import pages
from grampus_uq.runtime.stored_starts import START
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
    down = slow = False

    async def write(self, *changes: Change) -> float:
        for _ in range(10 if self.slow else 0):
            await asyncio.sleep(0)
        if self.down:
            raise StoreError("no route")
        return await super().write(*changes)


@pytest.mark.parametrize("kind", ["tools", "own node", "langchain"])
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_a_process_found_started_is_asked_about_though_that_process_died_before_its_other_call(
    kind: str,
) -> None:
    class Fails(MemoryStore):
        """Refuses the start of the call that asked second."""

        def __init__(self) -> None:
            super().__init__()
            self.asked, self.down = list[str](), True

        async def write(self, *changes: Any) -> float:
            self.asked += [change.key for change in changes if change.key not in self.asked]
            if self.down and changes[0].key in self.asked[1:2]:
                raise StoreError("no route")
            return await super().write(*changes)

    async def world() -> None:
        store = Fails()
        run = Run(kind, 2, starts=StoredStarts(store))
        await run.go(PROMPT)
        given: Any = await run.decide("approve")
        for _ in range(2):
            with pytest.raises(StoreError, match="no route"):
                await run.go(given)
            run.restart()
            given = None
        store.down = False
        await run.go()
        asked = [request for request in await run.waiting() if request.unknown_outcome]
        assert len(asked) == 1
        await run.go(await run.decide("respond"))
        assert sorted(await run.results()) == [0, 1]

    asyncio.run(world())


class _Held:
    """One approved payment, whose old states several processes take up; a human says yes to whatever they ask."""

    def __init__(self, **settings: Any) -> None:
        self.store, self.ran, self.approved = _Down(), 0, set[str]()
        self.asks_first, self.shut = False, False
        self._settings = settings
        self.gates = [self.chosen().gate(lambda name: None) for _ in range(3)]
        self.states: list[Any] = []

    def chosen(self) -> AdapterSettings:
        monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
        shut: dict[str, Any] = {"precondition": lambda call: "the shop is shut" if self.shut else None}
        return AdapterSettings(monitor=monitor, starts=StoredStarts(self.store), **{**shut, **self._settings})

    async def propose(self) -> None:
        held = take_up(self.chosen(), self.gates[0], "s", "clerk")
        await held.observe(self.chosen(), ModelTurn(content=SAYS, calls=(pay(1),)), [pay(1)])
        await held.judge(pay(1))
        self.states.append(write_snapshot(held))

    async def go(self, gate: Gate, state: Any) -> str | None:
        """Approve what waits in a state and run it there; the rule under which it waits then."""
        held = take_up(self.chosen(), gate, "s", "clerk", state)
        for request in held.requests():
            record = held.decide(request.decide("approve", principal="ann"))
            self.approved.add(request.id)
            if self.asks_first:  # as a host does whose framework cannot make a call wait once it is on its way
                await held.void(record, starts=False)
                await held.void(held.records[0], starts=True)
        release = await held.release(pay(1))
        if release.run:
            told = any(request.unknown_outcome for request in release.record.requests)
            assert told or not self.ran or not held.acts, (
                "it runs again only if a human said so, who knew that it may have run"
            )
            self.ran += 1
            held.settle(release, "paid")
            return None
        self.states.append(write_snapshot(held))
        return None if release.request is None else release.request.rule


def test_a_held_call_runs_once_for_each_approval_whatever_becomes_of_processes_and_their_store() -> None:
    async def world(rng: Random) -> None:
        held = _Held()
        await held.propose()
        for _ in range(8):
            held.store.down = rng.random() < 0.3
            held.store.slow = rng.random() < 0.3
            held.asks_first, held.shut = rng.random() < 0.5, rng.random() < 0.3
            went = [
                asyncio.create_task(held.go(rng.choice(held.gates), rng.choice(held.states)))
                for _ in range(rng.choice([1, 1, 2]))
            ]
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                went[0].cancel()
            await asyncio.wait(went)
            assert all(one.cancelled() or one.exception() is None for one in went), went
            assert held.ran <= len(held.approved), "one approval, one execution"

    for seed in range(12):
        asyncio.run(world(Random(seed)))


@pytest.mark.parametrize("trouble", ["down", "cancelled"])
def test_a_held_call_that_never_began_is_not_asked_about_as_if_it_had(trouble: str) -> None:
    async def run() -> None:
        held = _Held()
        await held.propose()
        (state,), gate = held.states, held.gates[0]
        held.store.down, held.store.slow = trouble == "down", trouble == "cancelled"
        task = asyncio.create_task(held.go(gate, state))
        for _ in range(8):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert held.ran == 0
        held.store.down = held.store.slow = False
        await held.go(gate, state)
        assert held.ran == 1, "the same process may try again"

    asyncio.run(run())


@pytest.mark.parametrize("here", ["approve", "edit"])
def test_whoever_finds_a_call_started_elsewhere_is_not_told_that_it_was_started_as_they_decided(here: str) -> None:
    async def run() -> None:
        held = _Held()
        await held.propose()
        (request,), rules = waiting_in(held.states[0]), list[str]()
        for gate, kind in zip(held.gates, ["edit" if here == "approve" else "approve", here], strict=False):
            calls = take_up(held.chosen(), gate, "s", "clerk", held.states[0])
            given: Any = {"amount": 2} if kind == "edit" else None
            calls.decide(request.decide(kind, principal="ann", arguments=given))
            release = await calls.release(pay(1))
            rules += [] if release.request is None else [release.request.reason]
        (why,) = rules
        assert "as it was decided" in why

    asyncio.run(run())


@pytest.mark.parametrize("because", ["expired", "other rules", "its precondition fails"])
@pytest.mark.parametrize("process", [0, 1])
def test_an_old_state_that_asks_anew_does_not_run_the_call_again(process: int, because: str) -> None:
    async def run() -> None:
        held = _Held(approvals=ApprovalPolicy(expires_s=0.05 if because == "expired" else None))
        await held.propose()
        await held.go(held.gates[0], held.states[0])
        if because == "expired":
            await asyncio.sleep(0.06)
        elif because == "other rules":
            held.gates[process].approvals = ApprovalPolicy(approvers=["ann", "ben"])
        else:
            held.asks_first = held.shut = True
        rule = await held.go(held.gates[process], held.states[0])
        if held.shut and process == 1:  # it fails before the start is asked for
            held.shut = False
            rule = await held.go(held.gates[process], held.states[-1])
        assert (rule, held.ran) == ("unknown_outcome", 1)

    asyncio.run(run())


def test_advisory_mode_stores_no_start_and_holds_no_call() -> None:
    async def run() -> None:
        held = _Held()
        await held.propose()
        held._settings = {"advisory": True}
        for gate in held.gates:
            await held.go(gate, held.states[0])
        assert held.ran == 3
        assert [document async for document in pages(held.store, START)] == []
        held.store.down = True
        calls = take_up(held.chosen(), held.gates[0], "s", "clerk", held.states[0])
        assert not await calls.void(calls.decide(calls.requests()[0].decide("approve", principal="ann")), starts=True)

    asyncio.run(run())


@pytest.mark.slow
def test_an_old_state_runs_nothing_in_the_process_that_ran_it_however_many_calls_ago() -> None:
    async def run() -> None:
        held = _Held()
        await held.propose()
        gate, old = held.gates[0], held.states[0]
        await held.go(gate, old)
        calls = take_up(held.chosen(), held.gates[1], "s", "clerk", old)
        record = calls.decide(calls.requests()[0].decide("approve", principal="ann"))
        for number in range(65_536):
            request = record.requests[0].model_copy(update={"id": f"{number}"})
            other = record.change(requests=(request,), step_id=f"{number}")
            with gate.starts.once(other):
                assert await gate.starts.take(other, calls.terms)
        assert await held.go(gate, old) == "unknown_outcome"
        assert held.ran == 1

    asyncio.run(run())


def test_the_human_is_told_by_whichever_process_asks_after_the_one_that_found_the_start_taken_was_killed() -> None:
    async def run() -> None:
        run = Run("langchain", 1, starts=StoredStarts(MemoryStore()))
        await run.go(PROMPT)
        given, old = await run.decide("approve"), copy.deepcopy(run._saver)
        await run.go(given)
        run._saver = old
        run.restart()
        finder, kept = asyncio.create_task(run.go(given)), list[Any]()
        while not finder.done():
            kept.append(copy.deepcopy(run._saver))
            await asyncio.sleep(0)
        for saver in kept[-30::3]:
            run._saver = saver
            run.restart()
            await run.go(given)
            assert [request.rule for request in await run.waiting()] == ["unknown_outcome"]

    asyncio.run(run())


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
