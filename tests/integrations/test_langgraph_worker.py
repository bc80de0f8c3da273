"""The worker of the resume queue wakes LangGraph threads that wait at the guard, under the graph's own checkpointer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from grampus_uq import ToolEffects, UncertaintyMonitor, open_store
from grampus_uq.errors import SessionConflictError, SessionError
from grampus_uq.integrations.langgraph import uncertainty_guard
from grampus_uq.integrations.langgraph_worker import ThreadRunner
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import DEAD

pytestmark = pytest.mark.anyio
SOON_S = 20.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # LangGraph's


class Bank:
    """Pays, and may die while it does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paid, self.dies = folder, list[str](), False

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

        async def agent(state: MessagesState) -> dict[str, Any]:
            if any(message.type == "tool" for message in state["messages"]):
                return {"messages": [AIMessage("Done.")]}
            return {"messages": [AIMessage("I pay.", tool_calls=[{"name": "pay", "args": {"to": "bob"}, "id": "1"}])]}

        builder = StateGraph(MessagesState)
        builder.add_node("agent", agent)
        builder.add_edge(START, "agent")
        guard = uncertainty_guard(UncertaintyMonitor(), effects=ToolEffects({"pay": "irreversible"}), agent_id="payer")
        guard.attach(builder, after="agent", tools=[pay])
        async with AsyncSqliteSaver.from_conn_string(str(self.folder / "graph.db")) as saver:
            yield ThreadRunner(builder.compile(checkpointer=saver), store, agent_id="payer", **given)


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
async def test_a_stored_decision_wakes_the_thread_in_another_process(
    bank: Bank, store: SessionStore, kind: str, paid: list[str]
) -> None:
    async with bank.runner(store) as first:
        assert await first.invoke(GIVEN, "t") == "waiting_for_human"
        with pytest.raises(SessionError, match="resume it"):
            await first.invoke(GIVEN, "t")
    (listed,) = await Ledger(store).pending()
    _, asked = await Ledger(store).find_request(listed.requests[0].id[:8])
    async with bank.runner(store) as second, working(second) as worker:
        await anyio.sleep(0.1)
        assert bank.paid == []
        await Ledger(store).decide(asked.decide(kind, principal="ann"))
        await until(worker, "resumed")
    assert bank.paid == paid
    assert (await Ledger(store).known("payer", "t"))[0].status == "completed"


async def test_a_decision_on_other_arguments_pays_nothing_and_asks_again(bank: Bank, store: SessionStore) -> None:
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        asked = (await Ledger(store).pending())[0].requests[0]
        forged = asked.model_copy(update={"run_id": "another"}).decide("approve", principal="eve")
        await Ledger(store).decide(forged)
        assert await one.resume("payer", "t") == "waiting_for_human"
    assert bank.paid == []


async def test_one_worker_at_a_time_has_a_thread(bank: Bank, store: SessionStore) -> None:
    async with bank.runner(store) as one:
        await one.invoke(GIVEN, "t")
        state, version = await one.ledger.known("payer", "t")
        await one._take(state, version)
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
