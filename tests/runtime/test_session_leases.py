"""One worker's hold on a session: lost answers, takeovers, clocks that differ, orders to stop; what is forgotten."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from grampus_uq import AgentRunner, AgentStatus, FunctionTools, ToolCall, open_store, tool
from grampus_uq.cli.approvals_command import command as approvals_command
from grampus_uq.cli.prune_command import command as prune_command
from grampus_uq.cli.stop_command import command as stop_command
from grampus_uq.errors import ConfigurationError, GrampusError, SessionConflictError, SessionError, StoreError
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Effect, Role
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.fates import fate_of
from grampus_uq.runtime.graph import Graph
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.session_lease import Leases
from grampus_uq.runtime.stopping import StoppedError, order_stop
from grampus_uq.runtime.store import Append, Change, Document, Put, SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.stores.sqlite import SQLiteStore
from grampus_uq.testing import HANG, ScriptedModel, answer
from tests.runtime.agents import AGENT, SEND_ONE, World, look, runner, scripted
from tests.sampling import sampled

pytestmark = pytest.mark.anyio
REAL_TIME = time.time


class Faulty(MemoryStore):
    """Fails chosen writes, before or after they were made; counts all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: Callable[[tuple[Change, ...]], str | None] = lambda changes: None
        self.unreadable = False
        self.operations: list[str] = []
        self.bytes: list[int] = []

    async def write(self, *changes: Change) -> float:
        self.operations.append("write")
        self.bytes.append(sum(len(c.body) if isinstance(c, Put) else len("".join(c.bodies)) for c in changes
                              if isinstance(c, Put | Append)))  # fmt: skip
        how = self.lose(changes)
        if how == "before":
            raise StoreError("the connection broke")
        written_s = await super().write(*changes)
        if how == "after":
            raise StoreError("the connection broke")
        return written_s

    async def get(self, kind: str, key: str) -> Document | None:
        if self.unreadable:
            raise StoreError("down")
        return await super().get(kind, key)

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        self.operations.append("read")
        return await super().read(log, start=start)


def announces(changes: tuple[Change, ...]) -> bool:
    return any("execution_started" in body for c in changes if isinstance(c, Append) for body in c.bodies)


@pytest.mark.parametrize("how", ["before", "after"])
async def test_one_lost_answer_while_a_call_is_announced_does_not_burn_its_approval(how: str) -> None:
    world, store, lost = World(), Faulty(), list[str]()
    one = runner(world, store=store)
    (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending

    def lose(changes: tuple[Change, ...]) -> str | None:
        if announces(changes) and not lost:
            lost.append(how)
            return how
        return None

    store.lose = lose
    result = await one.resume("mailer", "s", request.decide("approve", principal="ann"))
    assert (lost, result.status, world.sent) == ([how], AgentStatus.COMPLETED, [("bob", "hi")])
    audit = [entry["what"] for entry in await AuditLog(store, "mailer", "s").entries()]
    assert (audit.count("execution_started"), audit.count("execution_finished")) == (1, 1)


async def test_an_approved_call_that_could_not_be_announced_starts_once_the_store_is_back() -> None:
    world, store = World(), Faulty()
    one = runner(world, store=store)
    (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending
    fails = ["before"] * 4  # the write of the start and of its withdrawal, and their second attempts
    store.lose = lambda changes: fails.pop() if fails and announces(changes) else None
    with pytest.raises(StoreError):
        await one.resume("mailer", "s", request.decide("approve", principal="ann"))
    assert (world.sent, fails) == ([], [])
    store.lose = lambda changes: None
    result = await one.resume("mailer", "s")
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])


async def test_a_lost_write_does_not_overwrite_another_workers_takeover() -> None:
    """Its own write was never made; meanwhile another worker took the session up. The next save must not win."""
    store = Faulty()
    lease = await Leases(Ledger(store), 0.05).take(AgentState(agent_id="a", session_id="s"), 0)
    store.lose = lambda changes: "before"
    with pytest.raises(StoreError):
        await lease.save()
    store.lose = lambda changes: None
    await anyio.sleep(0.06)
    loaded = await Ledger(store).load("a", "s")
    assert loaded is not None
    other = await Leases(Ledger(store), 30.0).take(*loaded)
    for _ in range(2):
        lease.state.output = "of the worker that lost the session"
        with pytest.raises(SessionConflictError, match="taken over"):
            await lease.save()
    other.state.output = "of the worker that has it"
    await other.save()
    now = await Ledger(store).load("a", "s")
    assert now is not None
    assert now[0].output == "of the worker that has it"


async def test_a_save_whose_answer_was_lost_long_ago_is_found_made_and_the_transcript_stays_whole() -> None:
    store = Faulty()
    ledger, state = Ledger(store), AgentState(agent_id="a", session_id="s")
    lease = await Leases(ledger, 30.0).take(state, 0)
    for number, how in enumerate(["after", "before", "after", None, "before", None]):
        lease.state.messages.append(Message(role=Role.USER, content=f"{number}"))
        down = [how, "before"]
        store.lose = lambda changes, down=down: down.pop(0) if down else "before"  # type: ignore[misc]  # bound now
        if how is None:
            store.lose = lambda changes: None
            await lease.save()
        else:
            store.unreadable = True
            with pytest.raises(StoreError):
                await lease.save()
            store.unreadable = False
        if how is None:
            loaded = await Ledger(store).load("a", "s")
            assert loaded is not None
            assert [m.content for m in loaded[0].messages] == [f"{n}" for n in range(number + 1)]


# -- the audit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 4, 16])
async def test_parallel_results_cost_operations_in_proportion_to_their_number(calls: int) -> None:
    store = Faulty()

    @tool(effect=Effect.REVERSIBLE)
    async def book(n: int) -> str:
        await anyio.lowlevel.checkpoint()
        return f"booked {n}"

    proposed = [ToolCall(id=f"c{n}", name="book", arguments={"n": n}) for n in range(calls)]
    one = AgentRunner(scripted([answer("Book.", tool_calls=proposed), "Done."]), FunctionTools(book), store=store)
    await one.run(AGENT, "x", session_id="s")
    assert store.operations.count("write") <= calls + 8
    assert store.operations.count("read") == 0
    entries = await AuditLog(store, "mailer", "s").entries()
    assert [e["what"] for e in entries].count("execution_finished") == calls


@pytest.mark.one_loop
@sampled("backend", ["sqlite"], full=["sqlite", "postgres", "redis"])
async def test_many_turns_of_two_parallel_calls_end_on_every_store(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = str(tmp_path / "s.db") if backend == "sqlite" else str(request.getfixturevalue(f"{backend}_url"))
    store = open_store(url)
    with anyio.fail_after(120):
        await two_call_turns(store, sessions=5, turns=6)
    await store.aclose()


async def two_call_turns(store: SessionStore, *, sessions: int, turns: int) -> None:
    """Sessions side by side, each with that many turns of two parallel calls that act."""

    @tool(effect=Effect.REVERSIBLE)
    async def book(n: int) -> str:
        return f"booked {n}"

    def turn(number: int) -> Any:
        return answer(
            f"Turn {number}.",
            tool_calls=[ToolCall(id=f"{number}/{n}", name="book", arguments={"n": n}) for n in range(2)],
        )

    agent = AGENT.model_copy(update={"max_iterations": turns + 2})
    one = AgentRunner(scripted([*(turn(n) for n in range(turns)), "Done."]), FunctionTools(book), store=store)
    done: list[AgentStatus] = []

    async def run(number: int) -> None:
        name = f"{time.time_ns()}-{number}"
        done.append((await one.run(agent, "x", session_id=name)).status)
        entries = await AuditLog(store, "mailer", name).entries()
        assert [e["what"] for e in entries].count("execution_finished") == 2 * turns

    async with anyio.create_task_group() as group:
        for number in range(sessions):
            group.start_soon(run, number)
    assert done == [AgentStatus.COMPLETED] * sessions


async def test_what_a_step_writes_does_not_grow_with_the_length_of_the_run() -> None:
    store = Faulty()

    @tool(effect=Effect.READ)
    async def search(query: str) -> str:
        return "found " + "x" * 500

    turns = [answer("Look.", tool_calls=[look(f"c{n}", "bob")]) for n in range(60)]
    agent = AGENT.model_copy(update={"max_iterations": 100})
    one = AgentRunner(scripted([*turns, "Done."]), FunctionTools(search), store=store)
    await one.run(agent, "x", session_id="s")
    early, late = store.bytes[60:90], store.bytes[-40:-10]  # the window of the latest turns is full by then
    assert max(late) < max(early) * 1.05
    assert sum(late) < sum(early) * 1.05


# -- clocks -----------------------------------------------------------------------------------------------------------


class Elsewhere(SessionStore):
    """The same store from a machine whose own clock is off: only the store's counts."""

    def __init__(self, inner: SessionStore) -> None:
        self._inner = inner

    async def now(self) -> float:
        return await self._inner.now()

    async def get(self, kind: str, key: str) -> Document | None:
        return await self._inner.get(kind, key)

    async def scan(self, kind: str, **options: Any) -> list[Document]:
        return await self._inner.scan(kind, **options)

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        return await self._inner.read(log, start=start)

    async def write(self, *changes: Change) -> float:
        return await self._inner.write(*changes)

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.mark.parametrize("off_s", [-3_600.0, -5.0, 5.0, 3_600.0])
async def test_an_order_to_stop_from_a_machine_with_another_clock_stops_what_runs(
    off_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, started, paid = Steady(), anyio.Event(), list[int]()

    @tool(effect=Effect.REVERSIBLE)
    async def pay(n: int) -> str:
        if n == 0:
            started.set()
            await anyio.sleep(60)
        paid.append(n)
        return "paid"

    turns = [answer("Pay.", tool_calls=[ToolCall(id=f"{n}", name="pay", arguments={"n": n})]) for n in range(3)]
    one = AgentRunner(scripted([*turns, "Done."]), FunctionTools(pay), store=store)
    ended: list[Any] = []

    async def run() -> None:
        ended.append(await one.run(AGENT, "x", session_id="s"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await started.wait()
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + off_s)
        report = await order_stop(Ledger(Elsewhere(store)), wait_s=5.0)
        monkeypatch.setattr(time, "time", real)
    assert (report.reached, report.acknowledged) == (("mailer/s",), ("mailer/s",))
    assert (ended[0].metadata["stop_reason"], paid) == ("cancelled", [])


class Steady(MemoryStore):
    """A store whose clock nobody changes."""

    def _now(self) -> float:
        return REAL_TIME()


class Shifted(MemoryStore):
    """A store whose own clock is off by a day, as seen from here."""

    def _now(self) -> float:
        return super()._now() - 86_400.0


async def test_leases_and_expiry_are_measured_by_the_stores_clock_however_wrong_ours_is() -> None:
    from grampus_uq import ApprovalPolicy

    world, store = World(), Shifted()
    one = runner(world, store=store, approvals=ApprovalPolicy(expires_s=60.0))
    (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending
    assert request.expires_s is not None
    assert abs(request.expires_s - (await store.now() + 60.0)) < 5.0
    result = await one.resume("mailer", "s", request.decide("approve", principal="ann"))
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])
    state = AgentState(agent_id="a", session_id="held")
    lease = await Leases(Ledger(store), 30.0).take(state, 0)
    loaded = await Ledger(store).load("a", "held")
    assert loaded is not None
    assert 25.0 < loaded[0].leased_for_s() <= 30.0
    await lease.release()


# -- orders to stop ---------------------------------------------------------------------------------------------------


async def test_a_thousand_old_orders_cost_one_read_and_stop_nobody() -> None:
    store = MemoryStore()
    for number in range(1_000):
        await order_stop(Ledger(store), "a", f"old{number}")
    await order_stop(Ledger(store))
    asked: list[str] = []

    class Counting(Elsewhere):
        async def get(self, kind: str, key: str) -> Document | None:
            asked.append(f"{kind} {key}")
            return await super().get(kind, key)

    ledger = Ledger(Counting(store))
    leases = Leases(ledger, 30.0)
    orders, lease = leases.stops, await leases.take(AgentState(agent_id="a", session_id="s"), 0)
    await lease.check_stop()
    asked.clear()
    for _ in range(100):
        await lease.check_stop()
    assert asked == []  # within a moment nobody asks again, and then for one document
    orders._asked_at = float("-inf")
    await lease.check_stop()
    assert asked == ["stop *"]
    await order_stop(Ledger(store), "a", "s")
    orders._asked_at = float("-inf")
    for _ in range(2):
        with pytest.raises(StoppedError):
            await lease.check_stop()


async def test_an_order_to_all_also_stops_a_session_whose_worker_died_and_is_replaced_later() -> None:
    store = MemoryStore()
    await Leases(Ledger(store), 0.01).take(AgentState(agent_id="a", session_id="s"), 0)
    await anyio.sleep(0.02)
    await order_stop(Ledger(store))
    loaded = await Ledger(store).load("a", "s")
    assert loaded is not None
    again = await Leases(Ledger(store), 30.0).take(*loaded)
    with pytest.raises(StoppedError):
        await again.check_stop()


@pytest.mark.parametrize("whom", [(), ("a", "s")], ids=["all", "one"])
async def test_a_session_that_obeys_before_anybody_looks_again_is_told_as_reached(whom: tuple[str, ...]) -> None:
    class Obeyed(MemoryStore):
        async def write(self, *changes: Change) -> float:
            written_s = await super().write(*changes)
            if any(isinstance(one, Put) and one.kind == "stop" for one in changes):
                await lease.release()
            return written_s

    store = Obeyed()
    state = AgentState(agent_id="a", session_id="s")
    lease = await Leases(Ledger(store), 30.0).take(state, 0)
    report = await order_stop(Ledger(store), *whom)
    assert report.reached == report.acknowledged == ("a/s",)


async def test_an_order_is_given_though_nobody_can_look_who_runs() -> None:
    class Blind(MemoryStore):
        async def scan(self, *given: Any, **named: Any) -> Any:
            raise StoreError("down")

    store = Blind()
    with pytest.raises(StoreError):
        await order_stop(Ledger(store))
    assert await store.get("stop", "*") is not None


async def test_orders_given_at_the_same_moment_all_count() -> None:
    store = MemoryStore()
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(lambda n=number: order_stop(Ledger(Elsewhere(store)), *(("a", f"{n}") if n % 2 else ())))
    found = await store.get("stop", "*")
    assert found is not None
    assert (found.version, json.loads(found.body)["to_all"]) == (20, 10)


def stop(*arguments: str) -> Any:
    return CliRunner().invoke(stop_command, list(arguments))


def test_stopping_all_says_whom_it_reached_and_nobody_is_an_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"

    async def hang() -> Any:
        store, found = open_store(url), list[Any]()
        one = AgentRunner(ScriptedModel([HANG]), FunctionTools(), store=store)

        async def order() -> None:
            while not await one.ledger.running():  # noqa: ASYNC110 (what the store says, no event does)
                await anyio.sleep(0.01)
            found.append(await anyio.to_thread.run_sync(stop, "--all", "--store", url, "--json"))

        async with anyio.create_task_group() as group:
            group.start_soon(order)
            await one.run(AGENT, "x", session_id="s")
        await store.aclose()
        return found[0]

    result = anyio.run(hang)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "stopped": "all sessions",
        "reached": ["mailer/s"],
        "acknowledged": ["mailer/s"],
    }
    nobody = stop("--all", "--store", url)
    assert nobody.exit_code == 1
    assert "no session of this store was running" in nobody.output


def test_a_session_that_does_not_stop_in_time_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"

    async def die_running() -> None:
        store = open_store(url)
        ledger = Ledger(store)
        state = AgentState(agent_id="a", session_id="dead")
        await Leases(ledger, 60.0).take(state, 0)
        await store.aclose()

    anyio.run(die_running)
    result = stop("--all", "--store", url, "--wait", "0.2")
    assert result.exit_code == 1
    assert "1 sessions did not stop within 0.2 s: a/dead" in result.output


@pytest.mark.parametrize("arguments", [["clerk", "--all"], ["clerk"], [], ["clerk", "s", "--all"]])
def test_an_order_that_could_mean_two_things_is_refused(arguments: list[str], tmp_path: Path) -> None:
    result = stop(*arguments, "--store", str(tmp_path / "s.db"))
    assert isinstance(result.exception, ConfigurationError)
    assert not (tmp_path / "s.db").exists()


def test_commands_that_read_or_order_create_no_store(tmp_path: Path) -> None:
    mistyped = tmp_path / "mistyped.db"
    for command, arguments in (
        (stop_command, ["--all"]),
        (stop_command, ["a", "s"]),
        (approvals_command, ["list"]),
        (approvals_command, ["show", "x" * 32]),
        (prune_command, ["--older-than", "1"]),
    ):
        result = CliRunner().invoke(command, [*arguments, "--store", str(mistyped)])
        assert isinstance(result.exception, GrampusError), (arguments, result.output)
        assert "no SQLite store" in str(result.exception)
        assert not mistyped.exists()


# -- forgetting -------------------------------------------------------------------------------------------------------


async def test_only_what_ended_long_enough_ago_is_forgotten_with_all_that_belongs_to_it() -> None:
    store, world = MemoryStore(), World()
    one = runner(
        world, [answer("Look.", tool_calls=[look("a", "bob")]), "Done."], p_true=0.95, store=store, checkpoints=True
    )
    two = runner(world, SEND_ONE, store=store)
    for name in ("ended", "stopped", "fresh"):
        assert (await one.run(AGENT, "look", session_id=name)).status is AgentStatus.COMPLETED
    await order_stop(Ledger(store), "mailer", "stopped")
    (request,) = (await two.run(AGENT, "mail bob", session_id="waits")).pending
    await Ledger(store).decide(request.decide("approve", principal="ann"))
    for place, document in list(store._documents.items()):
        if place[1] != "mailer/fresh":
            store._documents[place] = Document(
                **{n: getattr(document, n) for n in Document.__slots__} | {"written_s": 1.0}
            )
    assert await prune(store, 3_600.0) == 2
    assert [d.key for d in await store.scan("session")] == ["mailer/fresh", "mailer/waits"]
    assert [log.split("/")[2] for log in store._logs if log.startswith("transcript/")] == ["fresh", "waits"]
    assert {d.key.split("/")[1] for d in await store.scan("checkpoint")} == {"fresh"}
    assert [d.key for d in await store.scan("stop")] == ["*"]
    assert len(await store.scan("decision")) == 1  # its session still asks
    assert (await two.resume("mailer", "waits")).status is AgentStatus.COMPLETED
    assert await prune(store, 1e-9, audits=True) == 2
    assert {kind for kind, _ in store._documents} == {"stop", "kept_audit"} | (
        {"decision"} if await store.scan("decision") else set()
    )
    assert sorted(store._logs) == ["audit/mailer/ended", "audit/mailer/stopped"]  # kept by the first time
    await prune(store, None, audits_older_than_s=3_600.0)
    assert len(store._logs) == 2  # they are younger
    await prune(store, None, audits_older_than_s=1e-9)
    assert list(store._logs) == []
    with pytest.raises(ConfigurationError, match="above 0"):
        await prune(store, 0.0)


async def test_a_session_that_is_taken_up_while_it_is_being_forgotten_lives() -> None:
    class Racing(MemoryStore):
        armed = False

        async def scan(self, kind: str, **options: Any) -> list[Document]:
            found = await super().scan(kind, **options)
            if self.armed and kind == "session" and found:
                self.armed = False
                await runner(World(), ["Again."], store=self, p_true=0.95).run(AGENT, "x", session_id="s")
            return found

    store = Racing()
    await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id="s")
    store.armed = True
    await prune(store, 1e-9)
    loaded = await Ledger(store).load("mailer", "s")
    assert loaded is not None
    assert loaded[0].output == "Again."


async def test_a_run_that_takes_the_place_of_an_ended_one_leaves_no_transcript_behind(tmp_path: Path) -> None:
    store = MemoryStore()
    for _ in range(3):
        await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id="s")
    assert len([log for log in store._logs if log.startswith("transcript/")]) == 1


async def test_a_transcript_that_somebody_changed_is_not_taken_for_the_sessions_own(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id="s")
    assert await Ledger(store).load("mailer", "s") is not None
    await store._run(lambda db: db.execute("UPDATE logs SET body = replace(body, 'Done', 'Paid') WHERE log LIKE 't%'"))
    with pytest.raises(StoreError, match="does not fit"):
        await Ledger(store).load("mailer", "s")
    await store.aclose()


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.jumping_clocks
async def test_a_thousand_sessions_that_wait_for_orders_ask_the_store_as_often_as_one_and_all_hear_of_an_order() -> (
    None
):
    asked: list[str] = []

    class Counting(Elsewhere):
        async def get(self, kind: str, key: str) -> Document | None:
            asked.append(key)
            return await super().get(kind, key)

    store = MemoryStore()
    ledger = Ledger(Counting(store))
    leases, stopped = Leases(ledger, 60.0), list[int]()
    started = anyio.Event()

    async def hang() -> None:
        hung.append(1)
        if len(hung) == 1_000:
            started.set()
        await anyio.sleep_forever()

    hung: list[int] = []

    async def run(number: int, scope: anyio.CancelScope) -> None:
        state = AgentState(agent_id="a", session_id=f"{number}")
        lease = await leases.take(state, 0)
        try:
            with scope:
                await lease.run(hang)
        except StoppedError:
            stopped.append(number)

    scopes = [anyio.CancelScope() for _ in range(1_000)]
    async with anyio.create_task_group() as group:
        for number, scope in enumerate(scopes):
            group.start_soon(run, number, scope)
        await started.wait()
        await anyio.sleep(0.6)  # each has looked once at what concerns it
        for scope in scopes[:300]:
            scope.cancel()  # whoever asks for all is among them: another one goes on
        await anyio.sleep(0.6)
        asked.clear()
        await anyio.sleep(1.0)
        assert len(asked) < 20  # one of the seven hundred asks for all
        await order_stop(Ledger(store))
    assert sorted(stopped) == list(range(300, 1_000))


class StandsStill(MemoryStore):
    """Before the write of this number another worker takes the session over, and runs it to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.left: float = float("inf")
        self.other: Callable[[], Awaitable[Any]] | None = None

    async def write(self, *changes: Change) -> float:
        self.left -= 1
        if self.left < 0 and (other := self.other) is not None:
            self.other = None
            with anyio.CancelScope(shield=True):  # it may be the renewal that stands still, which ends with the work
                await other()
        return await super().write(*changes)


@pytest.mark.parametrize("kind", ["approve", "reject", "respond"])
async def test_a_worker_that_lost_the_session_says_nothing_more_in_its_audit(kind: str) -> None:
    """Wherever it stands still: its word that it took up a decision came after the end of the call, which so counted
    as one that never started."""
    for writes in itertools.count():
        world, store, entries = World(), StandsStill(), list[Any]()
        one, two = runner(world, store=store, lease_s=0.06), runner(world, store=store)
        (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending
        await two.ledger.decide(request.decide(kind, principal="ann", message="It is done."))
        audit = AuditLog(store, "mailer", "s")

        async def take_over(other: AgentRunner = two, audit: AuditLog = audit, kept: list[Any] = entries) -> None:
            with anyio.fail_after(20), contextlib.suppress(SessionError):  # it ended
                while not kept:
                    with contextlib.suppress(SessionConflictError):
                        await other.resume("mailer", "s")
                        kept += await audit.entries()
                    await anyio.sleep(0.02)
            kept[:] = await audit.entries()

        store.left, store.other = writes, take_over
        with contextlib.suppress(SessionError):
            await one.resume("mailer", "s")
        if store.other is not None:
            return
        told = await fate_of(two.ledger, request.id)
        assert await audit.entries() == entries, writes
        assert told is not None
        assert told.ran is bool(world.sent) or "nobody knows" in told.told, (writes, told)


async def test_a_node_does_not_begin_once_the_node_beside_it_held_the_process_up_for_longer_than_the_lease() -> None:
    store, acted = MemoryStore(), list[str]()

    def build(who: str, beside: Callable[[], None]) -> Graph:
        async def both(state: AgentState) -> AgentState:
            return state

        async def slow(state: AgentState) -> AgentState:
            beside()
            return state

        async def act(state: AgentState) -> AgentState:
            acted.append(who)
            return state

        graph = Graph(graph_id="g", store=store, lease_s=0.1).add_node("both", both).add_node("slow", slow)
        graph.add_node("act", act)
        return graph.add_edge("both", "slow").add_edge("both", "act")

    def stands_still() -> None:
        time.sleep(0.15)
        other = threading.Thread(target=anyio.run, args=(build("other", lambda: None).restore_and_execute,))
        other.start()
        other.join()

    with pytest.raises(SessionConflictError):
        await build("first", stands_still).execute(AgentState(agent_id="a", session_id="s"))
    assert acted[-1] == "other"
