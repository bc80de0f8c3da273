"""Starts in another store: a runner whose own store was put back does not start an approved call again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import anyio
import pytest

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    FunctionTools,
    Grant,
    SessionStore,
    SubAgent,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.gate.starts import Starts
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime import StoredStarts
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.run_state import ExecutionResult
from grampus_uq.runtime.stored_permits import close_permit
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, Copied, World, look, mail, runner, scripted
from tests.runtime.test_looks import Case, mailing
from tests.runtime.test_stored_permits import Office

pytestmark = pytest.mark.anyio

TURNS = [answer("I mail.", tool_calls=[mail("a", "ann"), look("b", "bob"), mail("c", "bob")]), answer("Done.")]
BOSS = AgentDefinition(name="boss", model="m")
ASK = UncertaintyPolicy(always_ask_tool_names=["mailer"])


def process(kind: str, world: World, store: SessionStore, starts: Starts | None, **given: Any) -> AgentRunner:
    """The runner of a process of its own: of the agent that mails, or of one that delegates to it."""
    given = {"store": store, "starts": starts, "lease_s": 0.01, **given}
    mailer = runner(world, TURNS, **given)
    if kind == "alone":
        return mailer
    turn = answer("I delegate.", tool_calls=[ToolCall(id="d", name="mailer", arguments={"task": "mail both"})])
    monitor = UncertaintyMonitor(policy=ASK if kind == "delegation asked" else UncertaintyPolicy())
    model, below = scripted([turn, "Done."], 1.0), [SubAgent(mailer, AGENT)]
    return AgentRunner(model, FunctionTools(), uncertainty_monitor=monitor, sub_agents=below, **given)


async def to_the_end(kind: str, world: World, store: SessionStore, starts: StoredStarts | None) -> list[str]:
    """Answer until the session ends, each time in another process; rejected is what may have run before."""
    agent, rules = AGENT if kind == "alone" else BOSS, []
    result: ExecutionResult | None = None
    while result is None or result.status is AgentStatus.WAITING_FOR_HUMAN:
        one = process(kind, world, store, starts)
        if await store.get("session", f"{agent.name}/s") is None:
            result = await one.run(agent, "mail both", session_id="s")
            continue
        pending = [request for session in await one.ledger.pending(agent.name) for request in session.requests]
        rules += [request.rule for request in pending]
        said = [r.decide("reject" if r.rule == "unknown_outcome" else "approve", principal="ann") for r in pending]
        result = await one.resume(agent.name, "s", said)
    assert result.status is AgentStatus.COMPLETED
    return rules


@pytest.mark.parametrize("kind", ["alone", "delegated", "delegation asked"])
async def test_a_store_that_was_put_back_to_any_moment_runs_no_approved_call_again(kind: str) -> None:
    world, store, starts = World(), Copied(), StoredStarts(MemoryStore())
    assert "unknown_outcome" not in await to_the_end(kind, world, store, starts)
    assert sorted(world.sent) == [("ann", "hi"), ("bob", "hi")]
    await anyio.sleep(0.02)  # the leases in the copies have ended
    agent, again = AGENT.name if kind == "alone" else BOSS.name, 0
    mailed_in = {document.key for document in await store.scan("session", prefix="mailer/")}
    for copied in store.copies:
        found = await copied.get("session", f"{agent}/s")
        proposed = [await copied.get("session", key) for key in mailed_in]
        if (
            found is None
            or found.label in ("completed", "failed")
            or not all(one and '"turn":[{' in one.body for one in proposed)
        ):
            continue  # before the calls were proposed, new ones are: a human is asked about these
        before = len(world.sent)
        rules = await to_the_end(kind, world, copied, starts)
        assert len(world.sent) == before, rules
        again += "unknown_outcome" in rules
    assert again > 2


async def _let_ahead(by: str, store: Copied) -> tuple[World, Callable[[], AgentRunner]]:
    """Something that lets a mail ahead without a question, and the runners of processes of their own."""
    given: dict[str, Any] = {"starts": StoredStarts(MemoryStore()), "lease_s": 0.01}
    if by == "permit":
        office = Office(store, **given)
        await office.earn()
        return office.world, office.runner
    world = World()
    if by == "grant":
        await Ledger(store).grant(Grant(tool="send_email", principal="ann", expires_s=time.time() + 3_600.0))
        return world, lambda: runner(world, store=store, **given)
    return world, lambda: Case(mailing("bob", 0.95), store=store, world=world, **given).runner


@pytest.mark.parametrize("by", ["permit", "grant", "look"])
async def test_nor_does_it_run_a_call_again_that_was_let_ahead_in_the_process_that_ran_it_or_in_another(
    by: str,
) -> None:
    world, process = await _let_ahead(by, store := Copied())
    sent, copied = len(world.sent), len(store.copies)
    one, rules = process(), list[str]()
    assert (await one.run(AGENT, "mail bob", session_id="s")).status is AgentStatus.COMPLETED
    for copy, other in zip(store.copies[copied:], itertools.cycle((one, process())), strict=False):
        found = await copy.get("session", "mailer/s")
        if found is None or found.label == "completed" or '"turn":[{' not in found.body:
            continue
        vars(store).update(deepcopy({name: value for name, value in vars(copy).items() if name != "copies"}))
        await anyio.sleep(0.02)  # the lease in the copy
        while (result := await other.resume("mailer", "s")).status is not AgentStatus.COMPLETED:
            (request,) = result.pending
            rules.append(request.rule)
            if request.unknown_outcome:
                break
            await other.ledger.decide(request.decide("approve", principal="ann"))
        assert len(world.sent) == sent + 1, rules
    assert rules.count("unknown_outcome") > 1


async def test_a_call_that_did_not_begin_as_its_permit_ended_is_not_asked_about_as_if_it_had() -> None:
    office, starts = Office(), StoredStarts(MemoryStore())
    permit = await office.earn()

    class Late:
        async def take(self, by: str, owner: str) -> bool:
            await close_permit(office.store, permit.id, "enough")
            return await starts.take(by, owner)

    one, sent = office.runner(starts=Late()), len(office.world.sent)
    result = await one.run(AGENT, "mail bob", session_id="s")
    assert ([request.rule for request in result.pending], len(office.world.sent)) == (["permit"], sent)
    result = await one.resume("mailer", "s", result.pending[0].decide("approve", principal="ann"))
    assert (result.status, len(office.world.sent)) == (AgentStatus.COMPLETED, sent + 1)


async def test_while_the_starts_store_is_slow_the_session_stays_its_workers_and_a_stop_order_is_heard() -> None:
    world, store = World(), MemoryStore()

    class Slow:
        takes = 0

        async def take(self, by: str, owner: str) -> bool:
            self.takes += 1
            if self.takes > 1:
                await one.stop("mailer", "s")
            before = await store.get("session", "mailer/s")
            with anyio.fail_after(5.0):
                while True:
                    await anyio.sleep(0.005)
                    if self.takes == 1 and await store.get("session", "mailer/s") != before:
                        return True

    one = process("alone", world, store, Slow(), lease_s=0.05)
    result = await one.run(AGENT, "mail both", session_id="s")
    said = [request.decide("approve", principal="ann") for request in result.pending]
    assert (await one.resume("mailer", "s", said)).metadata["stop_reason"] == "cancelled"
    assert world.sent == []


async def test_under_an_advisory_monitor_no_start_is_written_and_none_holds_a_call() -> None:
    world, store, kept = World(), Copied(), MemoryStore()
    await to_the_end("alone", world, store, starts := StoredStarts(kept))
    for copied in store.copies:
        found = await copied.get("session", "mailer/s")
        if found is None or found.label != "waiting_for_human":
            continue
        before, sent = len(await kept.scan("start")), len(world.sent)
        advised = process("alone", world, store, starts, monitor=UncertaintyMonitor(advisory=True))
        for more in (2, 4):  # the second time in the process that ran them
            vars(store).update(deepcopy({name: value for name, value in vars(copied).items() if name != "copies"}))
            said = [
                r.decide("approve", principal="ann") for one in await advised.ledger.pending() for r in one.requests
            ]
            assert (await advised.resume("mailer", "s", said)).status is AgentStatus.COMPLETED
            assert (len(world.sent), len(await kept.scan("start"))) == (sent + more, before)
        return
