"""Sessions that were set aside are listed, tried again or given up; and no agent waits behind another one's flood."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import open_store
from grampus_uq.cli.approvals_command import command as approvals
from grampus_uq.cli.stuck_command import command
from grampus_uq.errors import SessionError, StoreError
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.dead_letters import DeadLetter, dead_letters, drop, retry
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.store import WAKING, Document, SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import DEAD, Job, set_aside, take
from tests.runtime.agents import AGENT, World, runner

pytestmark = pytest.mark.anyio


async def stuck(store: SessionStore, world: World, session: str = "s", why: str = "boom") -> Any:
    """A session that waits, was decided, and was set aside."""
    one = runner(world, store=store)
    (request,) = (await one.run(AGENT, "x", session_id=session)).pending
    await one.ledger.decide(request.decide("approve", principal="ann"))
    (taken,) = await take(store, ["mailer"], 1, 30.0)
    await set_aside(store, taken, session_key("mailer", session), taken.job.model_copy(update={"why": why}))
    return one


async def resume_all(worker: Worker, number: int) -> None:
    """Let the worker work until it has resumed so many sessions."""
    worker.on_job = lambda job, ended, why: worker.stop() if worker.counts.resumed >= number else None
    with anyio.fail_after(30):
        await worker.run()


async def test_a_session_that_is_tried_again_runs_its_decided_call_once() -> None:
    store, world = MemoryStore(), World()
    one = await stuck(store, world)
    (letter,) = await dead_letters(store)
    assert (letter.agent_id, letter.session_id, letter.why) == ("mailer", "s", "boom")
    await retry(store, "mailer", "s")
    assert await dead_letters(store) == []
    await resume_all(Worker(runner=one, agents=["mailer"]), 1)
    assert world.sent == [("bob", "hi")]
    with pytest.raises(SessionError, match="not set aside"):
        await retry(store, "mailer", "s")


async def test_a_session_that_is_given_up_ends_as_failed_and_runs_nothing_though_it_was_approved() -> None:
    store, world = MemoryStore(), World()
    one = await stuck(store, world)
    await drop(Ledger(store), "mailer", "s", principal="ann")
    loaded, _ = await one.ledger.known("mailer", "s")
    assert (loaded.status, loaded.metadata["error"]) == (AgentStatus.FAILED, "Given up: boom")
    assert not loaded.pending()
    assert [
        e["data"]["principal"] for e in await AuditLog(store, "mailer", "s").entries() if e["what"] == "given_up"
    ] == ["ann"]
    with pytest.raises(SessionError, match="has ended"):
        await one.resume("mailer", "s")
    assert (world.sent, await dead_letters(store)) == ([], [])
    with pytest.raises(SessionError, match="not set aside"):
        await drop(Ledger(store), "mailer", "s")


async def test_a_session_that_a_worker_runs_is_not_given_up_and_one_that_nobody_can_read_is_deleted() -> None:
    store, world = MemoryStore(), World()
    one = await stuck(store, world)
    state, version = await one.ledger.known("mailer", "s")
    await one.leases.take(state, version)
    assert await dead_letters(store) == []  # somebody went on with it
    with pytest.raises(SessionError, match="not set aside"):
        await drop(Ledger(store), "mailer", "s")
    found = await store.get("session", "mailer/s")
    assert found is not None
    await store.put("session", "mailer/s", "{", expected=found.version, label="waiting_for_human")
    await store.put(DEAD, "mailer/s", '{"agent_id": "mailer", "session_id": "s"}', expected=0)
    with pytest.raises(StoreError):
        await one.ledger.load("mailer", "s")
    await drop(Ledger(store), "mailer", "s")
    assert await store.get("session", "mailer/s") is None
    assert await AuditLog(store, "mailer", "s").entries()


async def test_a_session_is_not_deleted_because_the_store_fails_as_it_is_given_up() -> None:
    class Fails(MemoryStore):
        left = 0

        def _read(self, found: Document) -> Document:
            self.left -= 1
            if self.left == 0:
                raise StoreError("down")
            return super()._read(found)

    for at in range(1, 9):
        store = Fails()
        one = await stuck(store, World())
        store.left = at
        with contextlib.suppress(StoreError):
            await drop(Ledger(store), "mailer", "s")
        store.left = 0
        await one.ledger.known("mailer", "s")


@given(st.lists(st.text(max_size=30), max_size=4), st.text(max_size=30))
async def test_letters_are_listed_whatever_their_names_and_bodies_hold(bodies: list[str], name: str) -> None:
    store = MemoryStore()
    for number, body in enumerate(bodies):
        await store.put(DEAD, f"{number}{name}", body, expected=0)
    found = await dead_letters(store)
    assert [letter.why for letter in found] == ["This letter cannot be read."] * len(bodies)
    assert isinstance(found[0] if found else None, DeadLetter | None)


@pytest.mark.parametrize(("older_than_s", "keep"), [(1e-9, None), (None, 0), (3600.0, 0)])
async def test_letters_go_with_their_session_when_that_is_forgotten(
    older_than_s: float | None, keep: int | None
) -> None:
    store, world = MemoryStore(), World()
    one = await stuck(store, world)
    assert await prune(store, older_than_s, keep=keep) == 0  # it still waits
    assert len(await dead_letters(store)) == 1
    await one.resume("mailer", "s")
    assert await prune(store, older_than_s, keep=keep) == 1
    assert await dead_letters(store) == []


def test_the_command_lists_retries_and_drops(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"

    async def prepare() -> None:
        store = open_store(url)
        for session in ("a", "b\x1b[31m", "c"):
            await stuck(store, World(), session, why="bad \x1b[31m text")
        await store.aclose()

    def cli(*arguments: str) -> Result:
        return CliRunner().invoke(command, [*arguments, "--store", url])

    anyio.run(prepare)
    assert "\x1b" not in cli("list").output
    assert [one["session_id"] for one in json.loads(cli("list", "--json").output)] == ["a", "b\x1b[31m", "c"]
    listed = CliRunner().invoke(approvals, ["list", "--store", url])
    assert "Set aside after errors: 3 (`grampus-uq stuck list`)." in listed.stderr
    assert len(listed.stdout.splitlines()) == 4  # what waits, and nothing else
    assert cli("drop", "mailer", "a", "--as", "ann").exit_code == 0
    assert isinstance(cli("drop", "mailer", "a").exception, SessionError)
    assert "Returned to the workers: 1." in cli("retry", "mailer", "c").output
    assert "Returned to the workers: 1." in cli("retry", "--all").output
    assert json.loads(cli("list", "--json", "--agent", "mailer").output) == []


# -- fairness ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_loop
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 30), min_size=1),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 6)),
)
async def test_every_agent_with_work_gets_its_share_of_the_places_and_none_stays_free(
    jobs: dict[str, int], at_once: int, per_agent: int | None
) -> None:
    store = MemoryStore()
    for agent, number in jobs.items():
        for session in range(number):
            await store.write(Job(agent_id=agent, session_id=str(session)).now(1.0))
    worker = Worker(runner=runner(World(), store=store), agents=sorted(jobs), at_once=at_once, per_agent=per_agent)
    taken = await worker._share_out(at_once, [WAKING])
    got = {agent: sum(one.job.agent_id == agent for one in taken) for agent in jobs}
    most = max(1, at_once - len(jobs) + 1) if per_agent is None else per_agent
    possible = {agent: min(number, most) for agent, number in jobs.items()}
    assert all(got[agent] <= possible[agent] for agent in jobs)
    assert len(taken) == min(at_once, sum(possible.values()))
    share = at_once // len(jobs)
    assert all(got[agent] >= min(possible[agent], share) for agent in jobs)


async def test_of_one_agent_no_more_sessions_run_than_it_may_have() -> None:
    store, world = MemoryStore(), World()
    one = runner(world, store=store)
    for number in range(6):
        (request,) = (await one.run(AGENT, "x", session_id=f"s{number}")).pending
        await one.ledger.decide(request.decide("approve", principal="ann"))
    worker, most, resume = Worker(runner=one, agents=["mailer"], at_once=6, per_agent=2), 0, one.resume

    async def watched(*given: Any, **options: Any) -> Any:
        nonlocal most
        most = max(most, worker.running)
        await anyio.sleep(0.02)
        return await resume(*given, **options)

    one.resume = watched  # type: ignore[method-assign]  # the runner as it is, watched
    await resume_all(worker, 6)
    assert (most, len(world.sent)) == (2, 6)
