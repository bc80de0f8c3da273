"""The index of what waits: exactly the pending requests, the oldest first, whatever happens to the sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    ApprovalPolicy,
    FunctionTools,
    SubAgent,
    ToolCall,
    UncertaintyMonitor,
    open_store,
)
from grampus_uq.runtime.asked_rows import ASKED
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.pending_approvals import count_pending, index_pending, oldest_pending
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.store import Change, Delete, Put, SessionStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, mail, runner, scripted

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return open_store(f"sqlite:///{tmp_path}/store.db")


def mailer(store: SessionStore, calls: int = 1, world: World | None = None, **given: Any) -> Any:
    turns = [answer("I will mail.", tool_calls=[mail(f"c{n}", f"bob{n}") for n in range(calls)]), answer("Done.")]
    return runner(world or World(), turns, store=store, **given)


async def ids(store: SessionStore) -> list[str]:
    return [request.id for request in (await oldest_pending(Ledger(store)))[0]]


async def test_pages_hold_each_pending_request_once_the_oldest_first(store: SessionStore) -> None:
    asked: list[str] = []
    for n in range(5):
        result = await mailer(store, calls=2).run(AGENT, "x", session_id=f"s{9 - n}")  # not in the order of keys
        asked += [request.id for request in result.pending]
    paged, after = list[str](), None
    for _ in range(10):
        page, after = await oldest_pending(Ledger(store), after=after, limit=3)
        paged += [request.id for request in page]
        if after is None:
            break
    assert sorted(paged) == sorted(asked)
    created = {r.id: r.created_s for s in await Ledger(store).pending() for r in s.requests}
    assert [created[one] for one in paged] == sorted(created.values())
    assert await count_pending(store, 100) == 10
    assert await count_pending(store, 4) == 4


@pytest.mark.parametrize("kind", ["approve", "reject"])
async def test_a_request_that_was_carried_out_is_in_the_index_no_more(store: SessionStore, kind: str) -> None:
    agent = mailer(store, calls=2)
    first, second = (await agent.run(AGENT, "x", session_id="s")).pending
    await agent.resume("mailer", "s", first.decide(kind, principal="ann"))
    assert await ids(store) == [second.id]
    await agent.resume("mailer", "s", second.decide(kind, principal="ann"))
    assert await store.scan(ASKED) == []


async def test_a_request_that_expired_leaves_the_index_when_it_is_settled(store: SessionStore) -> None:
    agent = mailer(store, approvals=ApprovalPolicy(expires_s=0.01))
    await agent.run(AGENT, "x", session_id="s")
    await anyio.sleep(0.02)
    await agent.resume("mailer", "s")
    assert await store.scan(ASKED) == []


async def test_what_a_sub_agent_asks_is_listed_once(store: SessionStore) -> None:
    task = ToolCall(id="d", name="mailer", arguments={"task": "mail bob"})
    boss = AgentRunner(
        scripted([answer("Delegate.", tool_calls=[task]), answer("Done.")], 0.95),
        FunctionTools(),
        uncertainty_monitor=UncertaintyMonitor(),
        store=store,
        sub_agents=[SubAgent(mailer(store), AGENT)],
    )
    await boss.run(AgentDefinition(name="boss", model="scripted"), "have bob mailed", session_id="p")
    assert len(await boss.list_pending_sessions()) == 2  # the child and its parent
    (request,) = (await oldest_pending(Ledger(store)))[0]
    assert request.child_session is None
    assert request.agent_id == "mailer"


async def test_rows_of_another_release_are_removed_and_missing_ones_added(store: SessionStore) -> None:
    (request,) = (await mailer(store).run(AGENT, "x", session_id="s")).pending
    (row,) = await store.scan(ASKED)
    await store.write(Delete(kind=ASKED, key=row.key, expected=row.version))
    assert await ids(store) == []
    await index_pending(Ledger(store))
    await index_pending(Ledger(store))
    assert await ids(store) == [request.id]
    for key, body in (("0000000001.000000/gone", row.body), ("0000000002.000000/x", '{"agent_id": "a"}'), ("x", "{")):
        await store.write(Put(kind=ASKED, key=key, body=body, expected=0))
    assert await ids(store) == [request.id]
    assert "0000000001.000000/gone" not in [one.key for one in await store.scan(ASKED)]
    (left,) = [one for one in await store.scan(ASKED) if one.key == row.key]
    await mailer(store).resume("mailer", "s", request.decide("reject", principal="ann"))
    assert left.key not in [one.key for one in await store.scan(ASKED)]
    await prune(store, older_than_s=1e-6)
    assert await store.scan(ASKED) == []


async def test_what_is_indexed_is_not_written_again(store: SessionStore) -> None:
    """A start of the inbox wrote a row for each of 10,000 requests, and each write was refused."""
    for name in ("s", "t"):
        await mailer(store, calls=2).run(AGENT, "x", session_id=name)
    gone, *kept = await store.scan(ASKED)
    await store.write(Delete(kind=ASKED, key=gone.key, expected=gone.version))
    written, write = list[Change](), store.write

    async def noted(*changes: Change) -> float:
        written.extend(changes)
        return await write(*changes)

    store.write = noted  # type: ignore[method-assign]  # only to count
    await index_pending(Ledger(store))
    assert [change.key for change in written if isinstance(change, Put)] == [gone.key]
    assert [row.key for row in await store.scan(ASKED)] == [gone.key, *[row.key for row in kept]]


async def test_an_older_releases_resume_is_not_disturbed_by_a_row_that_is_gone(store: SessionStore) -> None:
    (request,) = (await mailer(store).run(AGENT, "x", session_id="s")).pending
    (row,) = await store.scan(ASKED)
    await store.write(Delete(kind=ASKED, key=row.key, expected=row.version))
    world = World()
    await mailer(store, world=world).resume("mailer", "s", request.decide("approve", principal="ann"))
    assert world.sent == [("bob0", "hi")]
