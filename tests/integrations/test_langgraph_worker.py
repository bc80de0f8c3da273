"""The worker of the resume queue wakes LangGraph threads that wait at the guard, under the graph's own checkpointer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages

from grampus_uq import (
    AgentStatus,
    ApprovalDecision,
    ApprovalPolicy,
    Ed25519Signer,
    PublicKeys,
    ToolEffects,
    UncertaintyMonitor,
    open_store,
)
from grampus_uq.errors import SessionConflictError, SessionError
from grampus_uq.integrations.langgraph import uncertainty_guard
from grampus_uq.integrations.langgraph_worker import ThreadRunner
from grampus_uq.runtime.cards import card
from grampus_uq.runtime.dead_letters import drop
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.pending_approvals import oldest_pending
from grampus_uq.runtime.stopping import order_stop
from grampus_uq.runtime.store import Document, Put, SessionStore
from grampus_uq.runtime.stored_decisions import open_request, store_decision
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import DEAD, Job

pytestmark = pytest.mark.anyio
SOON_S = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # LangGraph's


class Bank:
    """Pays, and may die while it does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paid, self.dies = folder, list[str](), False
        self.release, self.name, self.says = "", "payer", "I pay."
        self.approvals = ApprovalPolicy()
        self.quiet = False
        """The graph asks no model."""
        self.inside = False
        """The graph is a sub-graph with a state of its own."""
        self.key = "messages"

    @asynccontextmanager
    async def runner(self, store: SessionStore, **given: Any) -> AsyncIterator[ThreadRunner]:
        """Another process's: its own graph and checkpointer over the same files."""

        @tool
        def pay(to: str) -> str:
            """Pay."""
            self.paid.append(to)
            if self.dies:
                raise ZeroDivisionError
            return f"paid {to}"

        @tool("pay")
        def pay_in(to: str, currency: str) -> str:
            """Pay, as the next release does."""
            self.paid.append(f"{to} {currency}")
            return "paid"

        @tool("pay")
        def pay_too(to: str, currency: str = "EUR") -> str:
            """Pay, as another next release does."""
            self.paid.append(f"{to} {currency}")
            return "paid"

        async def agent(state: dict[str, Any]) -> dict[str, Any]:
            if any(message.type == "tool" for message in state[self.key]):
                return {self.key: [AIMessage("Done.")]}
            return {self.key: [AIMessage(self.says, tool_calls=[{"name": "pay", "args": {"to": "bob"}, "id": "1"}])]}

        builder: Any = StateGraph(TypedDict("State", {self.key: Annotated[list[Any], add_messages]}))  # type: ignore[misc]
        builder.add_node("agent", agent)
        builder.add_conditional_edges(START, lambda state: END if self.quiet else "agent")
        effects = ToolEffects({"pay": "irreversible"})
        told = {"effects": effects, "agent_id": self.name, "approvals": self.approvals, "messages_key": self.key}
        guard = uncertainty_guard(UncertaintyMonitor(), **told)
        guard.attach(builder, after="agent", tools=[{"required": pay_in, "optional": pay_too}.get(self.release, pay)])
        if self.inside:
            within, builder = builder.compile(), StateGraph(MessagesState)

            async def desk(state: MessagesState) -> dict[str, Any]:
                return {"messages": (await within.ainvoke({"messages": state["messages"]}))["messages"]}

            builder.add_node("desk", desk)
            builder.add_edge(START, "desk")
        async with AsyncSqliteSaver.from_conn_string(str(self.folder / "graph.db")) as saver:
            app = builder.compile(checkpointer=saver)
            yield ThreadRunner(app, store, agent_id="payer", messages_key=self.key, **given)


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SessionStore]:
    opened = open_store(f"sqlite:///{tmp_path}/s.db")
    yield opened
    await opened.aclose()


@asynccontextmanager
async def working(one: ThreadRunner) -> AsyncIterator[Worker]:
    worker = Worker(runner=one, agents=["payer"], tries=1)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        yield worker
        worker.stop()


async def until(worker: Worker, name: str) -> None:
    with anyio.fail_after(SOON_S):
        while not getattr(worker.counts, name):  # noqa: ASYNC110 (a count of the worker's)
            await anyio.sleep(0.02)


GIVEN = {"messages": [("user", "pay bob")]}


@pytest.mark.parametrize(("kind", "paid"), [("approve", ["bob"]), ("reject", [])])
@pytest.mark.parametrize("key", ["messages", "dialog"])
async def test_a_stored_decision_wakes_the_thread_in_another_process(
    bank: Bank, store: SessionStore, key: str, kind: str, paid: list[str]
) -> None:
    bank.key = key
    async with bank.runner(store) as first:
        assert await first.invoke({key: GIVEN["messages"]}, "t") == "waiting_for_human"
        with pytest.raises(SessionError, match="resume it"):
            await first.invoke({key: GIVEN["messages"]}, "t")
    (listed,) = await Ledger(store).pending()
    _, asked = await Ledger(store).find_request(listed.requests[0].id[:8])
    async with bank.runner(store) as second, working(second) as worker:
        await anyio.sleep(0.1)
        assert bank.paid == []
        await Ledger(store).decide(asked.decide(kind, principal="ann"))
        await until(worker, "resumed")
    assert bank.paid == paid
    assert (await Ledger(store).known("payer", "t"))[0].status == "completed"


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_a_decision_that_an_end_kept_from_the_thread_is_heard_as_it_begins_anew(
    bank: Bank,
    store: SessionStore,
    kind: Any,
    inside: bool,
    given_up: bool,
    quiet: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a run between asks no model."""
    bank.inside = inside

    async def slow(session_id: str) -> Any:
        await anyio.sleep(60.0)

    async with bank.runner(store) as first:
        await first.invoke(GIVEN, "t")
        (asked,) = (await Ledger(store).pending())[0].requests
        given: dict[str, Any] = {"arguments": {"to": "eve"}} if kind == "edit" else {}
        await Ledger(store).decide(asked.decide(kind, principal="ann", **given))
        if given_up:
            letter = Job(agent_id="payer", session_id="t", failed=3, why="down").model_dump_json()
            await store.write(Put(kind=DEAD, key=session_key("payer", "t"), body=letter, expected=0, label="payer"))
            await drop(first.ledger, "payer", "t")
        else:
            await order_stop(first.ledger, "payer", "t")
            monkeypatch.setattr(first.host, "pending", slow)
            assert await first.resume("payer", "t") == "failed"
    bank.quiet = quiet
    async with bank.runner(store) as second:
        if quiet:
            assert await second.invoke(GIVEN, "t") == "completed"
            bank.quiet = False
        assert await second.invoke(GIVEN, "t") == ("waiting_for_human" if kind == "edit" else "completed")
        rules = [request.rule for session in await Ledger(store).pending() for request in session.requests]
    assert (rules, bank.paid) == (["rejected_in_thread"] if kind == "edit" else [], [])


@pytest.mark.parametrize(("inside", "key"), [(False, "messages"), (False, "dialog"), (True, "messages")])
async def test_a_card_shows_what_was_said_in_the_thread_and_what_was_read_of_its_call(
    bank: Bank, store: SessionStore, inside: bool, key: str
) -> None:
    """A sub-graph with a state of its own keeps its answers and its readings."""
    bank.says, bank.inside, bank.key = 'I pay. {"confidence": 0.7}', inside, key
    async with bank.runner(store) as one:
        await one.invoke({key: GIVEN["messages"]}, "t")
        state, asked = await Ledger(store).find_request((await Ledger(store).pending())[0].requests[0].id)
    shown = card(asked, state)
    said = [("user", "pay bob"), *([] if inside else [("assistant", bank.says)])]
    assert [(message.role, message.content) for message in shown.messages] == said
    read = ({}, None) if inside else ({"verbalized": 0.7}, (0.8, 0.6, 0.4))
    assert (shown.readings, shown.thresholds, shown.unread) == (*read, None)


async def test_a_decision_that_the_guard_refuses_is_shown_as_refused_and_hides_no_valid_one(
    bank: Bank, store: SessionStore
) -> None:
    """An approver without a key in the guard's file was "decided, unchecked" for ever."""
    ann, ledger = Ed25519Signer.generate(), Ledger(store)
    bank.approvals = ApprovalPolicy(signer=PublicKeys({"ann": ann.public_key}))
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        (asked,) = (await ledger.pending())[0].requests
        decision = asked.decide("approve", principal="ann")
        await ledger.decide(decision)
        assert await one.resume("payer", "t") == "waiting_for_human"
        found = await open_request(ledger, asked.id)
        assert [(who, "sign" in why) for who, why in found.refused] == [("ann", True)]
        assert found.standing == ()
        await ledger.decide(ann.sign(decision))
        assert (await open_request(ledger, asked.id)).standing == (ann.sign(decision),)
        assert await one.resume("payer", "t") == "completed"
    assert bank.paid == ["bob"]


async def test_each_decision_that_the_guard_refuses_is_shown_and_none_is_kept(bank: Bank, store: SessionStore) -> None:
    bank.approvals = ApprovalPolicy(signer=PublicKeys({"ann": Ed25519Signer.generate().public_key}))
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        (asked,) = (await Ledger(store).pending())[0].requests
        for who in ("eve", "mal"):
            await Ledger(store).decide(asked.decide("approve", principal=who))
            await one.resume("payer", "t")
            assert [name for name, _ in (await open_request(one.ledger, asked.id)).refused][-1] == who
        state = await one._app.aget_state({"configurable": {"thread_id": "t"}})
    assert state.values["uncertainty"]["turn"]["arrived"] == []


async def test_a_guard_without_a_name_has_that_of_its_runner(bank: Bank, store: SessionStore) -> None:
    """Until it has one of its own, which counts from the next run on."""
    bank.name = ""
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        (asked,) = (await Ledger(store).pending())[0].requests
        assert (asked.agent_id, asked.session_id) == ("payer", "t")
    bank.name = "another"
    async with bank.runner(store) as one:
        await Ledger(store).decide(asked.decide("approve", principal="ann"))
        assert await one.resume("payer", "t") == "completed"
    assert bank.paid == ["bob"]


@pytest.mark.parametrize(("name", "inside"), [("another", False), ("payer", True)])
async def test_the_pages_list_what_waits_in_a_thread_whatever_its_guard_calls_it(
    bank: Bank, store: SessionStore, name: str, inside: bool
) -> None:
    """A guard inside a sub-graph has a session of its own."""
    bank.name, bank.inside = name, inside
    async with bank.runner(store) as one:
        assert await one.invoke(GIVEN, "t") == "waiting_for_human"
        (asked,) = (await Ledger(store).pending())[0].requests
        assert (asked.agent_id, asked.session_id) != ("payer", "t")
        for _ in range(2):
            assert (await oldest_pending(Ledger(store)))[0] == [asked]
        await Ledger(store).decide(asked.decide("approve", principal="ann"))
        assert await one.resume("payer", "t") == "completed"
    assert (await oldest_pending(Ledger(store)))[0] == []


async def test_a_decision_on_other_arguments_pays_nothing_and_asks_again(bank: Bank, store: SessionStore) -> None:
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        asked = (await Ledger(store).pending())[0].requests[0]
        forged = asked.model_copy(update={"run_id": "another"}).decide("approve", principal="eve")
        await Ledger(store).decide(forged)
        assert await one.resume("payer", "t") == "waiting_for_human"
    assert bank.paid == []


class Ahead(MemoryStore):
    """Its clock is not that of the process which runs the thread."""

    ahead_s = 0.0

    def _now(self) -> float:
        return super()._now() + self.ahead_s


async def test_a_request_that_expires_is_asked_anew_and_can_be_decided_by_the_stores_clock(bank: Bank) -> None:
    store, bank.approvals = Ahead(), ApprovalPolicy(expires_s=60.0)
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        (first,) = (await Ledger(store).pending())[0].requests
        store.ahead_s = 61.0
        async with working(one) as worker:
            await until(worker, "resumed")
            (again,) = (await Ledger(store).pending())[0].requests
            assert (again.id != first.id, "expired" in again.reason) == (True, True)
            found = await open_request(one.ledger, again.id)
            await store_decision(one.ledger, found, again.decide("approve", principal="ann"))
            with anyio.fail_after(SOON_S):
                while not bank.paid:  # noqa: ASYNC110 (a list of the test's)
                    await anyio.sleep(0.02)
    assert bank.paid == ["bob"]


@pytest.mark.parametrize(("kind", "paid"), [("approve", ["bob"]), ("reject", [])])
async def test_what_was_decided_in_time_holds_however_late_it_is_taken_up(
    bank: Bank, kind: str, paid: list[str]
) -> None:
    store, bank.approvals = Ahead(), ApprovalPolicy(expires_s=60.0)
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        (asked,) = (await Ledger(store).pending())[0].requests
        store.ahead_s = 59.0
        await Ledger(store).decide(asked.decide(kind, principal="ann"))
        store.ahead_s = 3_600.0
        assert await one.resume("payer", "t") == "completed"
    assert bank.paid == paid


async def test_what_arrives_in_time_while_the_worker_looks_is_not_lost(bank: Bank) -> None:
    """It had read the decisions, and found the request expired a moment later: it was asked anew."""

    class Slow(Ahead):
        meanwhile: ApprovalDecision | None = None

        async def children(self, kind: str, parents: Sequence[str]) -> list[Document]:
            found, said = await super().children(kind, parents), self.meanwhile
            if said is not None and kind == "decision":
                self.meanwhile, self.ahead_s = None, 30.0
                await Ledger(self).decide(said)
                self.ahead_s = 61.0
                one.ledger._set_clock(self._now())
            return found

    store, bank.approvals = Slow(), ApprovalPolicy(expires_s=60.0)
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        (asked,) = (await Ledger(store).pending())[0].requests
        store.meanwhile = asked.decide("reject", principal="bob", message="Never.")
        assert await one.resume("payer", "t") == "waiting_for_human"
        assert await one.resume("payer", "t") == "completed"
    assert bank.paid == []


async def test_a_machine_whose_clock_is_ahead_keeps_what_waits_for_more_approvals(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, bank.approvals, real = Ahead(), ApprovalPolicy(expires_s=60.0, required=2), time.time
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        (asked,) = (await Ledger(store).pending())[0].requests
        monkeypatch.setattr(time, "time", lambda: real() + 3_600.0)
        store.ahead_s = -3_600.0
        for number, name in enumerate(("ann", "bob")):
            await Ledger(store).decide(asked.decide("approve", principal=name))
            assert await one.resume("payer", "t") == ("completed" if number else "waiting_for_human")
    assert bank.paid == ["bob"]


async def test_one_worker_at_a_time_has_a_thread(bank: Bank, store: SessionStore) -> None:
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        state, version = await one.ledger.known("payer", "t")
        await one._leases.take(state, version)
        with pytest.raises(SessionConflictError):
            await one.resume("payer", "t")


async def test_a_thread_that_died_in_a_tool_is_set_aside_and_not_paid_twice(bank: Bank, store: SessionStore) -> None:
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        asked = (await Ledger(store).pending())[0].requests[0]
        bank.dies = True
        await Ledger(store).decide(asked.decide("approve", principal="ann"), wake=False)
        with pytest.raises(ZeroDivisionError):
            await one.resume("payer", "t")
        bank.dies = False
    async with bank.runner(store) as other, working(other) as worker:
        await Ledger(store).decide(asked.decide("approve", principal="bea"))
        await until(worker, "set_aside")
    (letter,) = await store.scan(DEAD)
    assert "may have acted already" in letter.body
    assert bank.paid == ["bob"]


async def test_nodes_that_may_run_again_do_so_when_the_thread_is_resumed(bank: Bank, store: SessionStore) -> None:
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        asked = (await Ledger(store).pending())[0].requests[0]
        await Ledger(store).decide(asked.decide("approve", principal="ann"))
        bank.dies = True
        with pytest.raises(ZeroDivisionError):
            await one.resume("payer", "t")
        bank.dies = False
    async with bank.runner(store, repeatable=["tools"]) as other:
        assert await other.resume("payer", "t") == "completed"
    assert bank.paid == ["bob", "bob"]


async def test_a_worker_that_slept_through_its_lease_pays_nothing_when_it_wakes_up(
    bank: Bank, store: SessionStore
) -> None:
    async with bank.runner(store) as sleeper, bank.runner(store) as other:
        await sleeper.invoke(GIVEN, "t")
        asked = (await Ledger(store).pending())[0].requests[0]
        await Ledger(store).decide(asked.decide("approve", principal="ann"))
        run = sleeper._app.ainvoke

        async def overslept(*given: Any, **named: Any) -> Any:
            state, version = await other.ledger.known("payer", "t")
            state.lease_s = 0.0  # as if it had run out
            state.worker = "another"
            await other.ledger.save(state, version)
            return await run(*given, **named)

        sleeper._app.ainvoke = overslept
        with pytest.raises(SessionConflictError):
            await sleeper.resume("payer", "t")
    assert bank.paid == []


async def test_a_thread_that_died_before_its_first_checkpoint_is_not_taken_for_one_that_ended(
    bank: Bank, store: SessionStore
) -> None:
    async with bank.runner(store) as one:
        run = one._app.ainvoke

        async def dies(*given: Any, **named: Any) -> Any:
            raise ZeroDivisionError

        for then in ("waiting_for_human", "completed"):  # a new thread, and one that has ended before
            one._app.ainvoke = dies
            with pytest.raises(ZeroDivisionError):
                await one.invoke(GIVEN, "t")
            one._app.ainvoke = run
            with pytest.raises(SessionError, match="begin it anew"):
                await one.resume("payer", "t")
            state, version = await one.ledger.known("payer", "t")
            state.status = AgentStatus.FAILED  # as `stuck drop` does
            await one.ledger.save(state, version)
            assert await one.invoke(GIVEN, "t") == then
            for pending in await Ledger(store).pending():
                await Ledger(store).decide(pending.requests[0].decide("reject", principal="ann"))
                assert await one.resume("payer", "t") == "completed"
    assert bank.paid == []


@pytest.mark.parametrize("step", range(1, 6))
async def test_a_thread_that_died_between_the_writes_of_a_step_and_its_checkpoint_goes_on(
    bank: Bank, store: SessionStore, step: int
) -> None:
    async def dying(one: ThreadRunner) -> Any:
        saver, saved = one._app.checkpointer, 0
        put = saver.aput

        async def dies(*given: Any) -> Any:
            nonlocal saved
            saved += 1
            if saved > step:
                raise ZeroDivisionError
            return await put(*given)

        saver.aput = dies
        return one

    async with bank.runner(store) as one:
        try:
            stands = str(await (await dying(one)).invoke(GIVEN, "t"))
        except ZeroDivisionError:
            stands = "died"
    async with bank.runner(store) as one:
        assert (stands if stands != "died" else await one.resume("payer", "t")) == "waiting_for_human"
        asked = (await Ledger(store).pending())[0].requests[0]
        await Ledger(store).decide(asked.decide("approve", principal="ann"))
    async with bank.runner(store) as one:
        try:
            stands = str(await (await dying(one)).resume("payer", "t"))
        except ZeroDivisionError:
            stands = "died"
    async with bank.runner(store) as one:
        assert (stands if stands != "died" else await one.resume("payer", "t")) == "completed"
        values = (await one._app.aget_state({"configurable": {"thread_id": "t"}})).values
        assert values["messages"][-1].content == "Done."
    assert bank.paid == ["bob"]


@pytest.mark.parametrize(("release", "paid"), [("required", []), ("optional", ["bob EUR"])])
async def test_an_approved_call_whose_tool_changed_runs_only_where_its_arguments_still_fit(
    bank: Bank, store: SessionStore, release: str, paid: list[str]
) -> None:
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
    asked = (await Ledger(store).pending())[0].requests[0]
    await Ledger(store).decide(asked.decide("approve", principal="ann"))
    bank.release = release
    async with bank.runner(store) as other:
        assert await other.resume("payer", "t") == "completed"
    assert bank.paid == paid


def drive(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.integrations.thread_kills", url, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)


def url_of(backend: str, request: pytest.FixtureRequest) -> str:
    pytest.importorskip("langgraph.checkpoint.postgres", reason="langgraph-checkpoint-postgres is not installed")
    return "sqlite:///{folder}/s.db" if backend == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.mark.kills
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_threads_of_processes_that_are_killed_or_stopped_pay_once_or_are_set_aside(
    backend: str, request: pytest.FixtureRequest
) -> None:
    finished = drive(url_of(backend, request), "--kills", "150", "--seed", "1")
    assert finished.returncode == 0, finished.stderr
    counts = json.loads(finished.stdout)
    print(counts)
    assert min(counts["killed"], counts["stopped"], counts["begun anew"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sample_of_kills_under_langgraphs_postgresql_checkpointer(request: pytest.FixtureRequest) -> None:
    finished = drive(url_of("postgres", request), "--kills", "8", "--seed", "2")
    assert finished.returncode == 0, finished.stderr


@pytest.mark.slow
def test_the_checks_notice_tools_that_run_again(request: pytest.FixtureRequest) -> None:
    finished = drive(url_of("sqlite", request), "--kills", "30", "--seed", "5", "--sabotage")
    assert "paid 2 times" in finished.stderr
