"""Kills processes that run LangGraph threads at chosen points, and lets a worker take the threads up. A script.

    python -m tests.integrations.thread_kills STORE_URL --kills 100 --seed 1

The checkpointer is LangGraph's own, in the same database or beside the file. Every thread proposes one payment, waits
at the guard, and is approved or rejected; the process of its first run, or the worker that resumes it, is killed:
inside the tool (before or after it acts), or before or after its k-th operation on store or checkpointer; or it is
stopped for longer than its lease, and goes on when another worker has the thread. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from grampus_uq import ToolEffects, UncertaintyMonitor, open_store
from grampus_uq.errors import SessionError
from grampus_uq.integrations.langgraph import uncertainty_guard
from grampus_uq.integrations.langgraph_worker import ThreadRunner
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.dead_letters import dead_letters, drop, retry
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.worker import Worker

LEASE_S = 0.4
STEPS = {"run": 24, "resume": 20}  # operations of a process on store and checkpointer, about
STORED = ("get", "scan", "children", "read", "write")
SAVED = ("aget_tuple", "aput", "aput_writes")


@dataclass(frozen=True)
class Kill:
    """Which process dies ("run", "resume") and where: before or after an operation, or inside the tool."""

    phase: str
    where: str
    number: int = 0
    way: signal.Signals = signal.SIGKILL


class Bank:
    """The agent, its payments in a file, and what happens to the process while it works."""

    repeatable: Sequence[str] = ("agent",)

    def __init__(self, url: str, folder: Path, kill: Kill | None) -> None:
        self.url, self.folder, self.kill, self.operations = url, folder, kill, 0

    def die(self, where: str) -> None:
        if self.kill is not None and (self.kill.where, self.kill.number) == (where, self.operations * ("op" in where)):
            kill, self.kill = self.kill, None
            os.kill(os.getpid(), kill.way)

    def watched(self, one: Any, names: tuple[str, ...]) -> Any:
        """Count the operations of a store or a checkpointer, and die at the chosen one."""
        for name in names:
            work = getattr(one, name)

            async def counted(*given: Any, _work: Callable[..., Any] = work, **named: Any) -> Any:
                self.operations += 1
                number = self.operations
                self.die("before op")
                result = await _work(*given, **named)
                if self.operations == number:
                    self.die("after op")
                return result

            setattr(one, name, counted)
        return one

    def store(self) -> SessionStore:
        return self.watched(open_store(self.url), STORED)  # type: ignore[no-any-return]  # a store with counters

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[Any]:
        if self.url.startswith("postgresql"):
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

            async with AsyncPostgresSaver.from_conn_string(self.url) as saver:
                yield self.watched(saver, SAVED)
        else:
            async with AsyncSqliteSaver.from_conn_string(str(self.folder / "graph.db")) as saver:
                yield self.watched(saver, SAVED)

    @asynccontextmanager
    async def runner(self, store: SessionStore) -> AsyncIterator[ThreadRunner]:
        @tool
        def pay(to: str) -> str:
            """Pay."""
            self.die("tool begins")
            with (self.folder / "paid").open("a") as file:
                file.write(f"{to}\n")
            self.die("tool ends")
            return f"paid {to}"

        async def agent(state: MessagesState) -> dict[str, Any]:
            if any(message.type == "tool" for message in state["messages"]):
                return {"messages": [AIMessage("Done.")]}
            to = str(state["messages"][0].content)
            return {"messages": [AIMessage("I pay.", tool_calls=[{"name": "pay", "args": {"to": to}, "id": "1"}])]}

        builder = StateGraph(MessagesState)
        builder.add_node("agent", agent)
        builder.add_edge(START, "agent")
        guard = uncertainty_guard(UncertaintyMonitor(), effects=ToolEffects({"pay": "irreversible"}), agent_id="payer")
        guard.attach(builder, after="agent", tools=[pay])
        async with self.saver() as saver:
            app = builder.compile(checkpointer=saver)
            yield ThreadRunner(app, store, agent_id="payer", repeatable=self.repeatable, lease_s=LEASE_S)

    def paid(self, to: str) -> int:
        file = self.folder / "paid"
        return file.read_text().splitlines().count(to) if file.exists() else 0


def forked(work: Callable[[], Any]) -> int:
    """Do it in a process of its own; its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        anyio.run(work)
        status = 0
    except SessionError:
        status = 2  # refused, as it may be
    except BaseException as error:  # noqa: BLE001 (whatever it was is the parent's business)
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    os._exit(status)


def gone(child: int, most_s: float = 240.0) -> int:
    """How a process ended; one that is stopped is left stopped, and counts as killed."""
    until = time.monotonic() + most_s
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if found:
            return -signal.SIGSTOP if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    raise AssertionError("a process does not end")


async def begin(bank: Bank, thread: str) -> None:
    store = bank.store()
    async with bank.runner(store) as one:
        await one.invoke({"messages": [("user", thread)]}, thread)


async def work(bank: Bank, thread: str) -> None:
    """A worker, until the thread has ended, waits for a human, or is set aside."""
    store, look = bank.store(), open_store(bank.url)
    async with bank.runner(store) as one, anyio.create_task_group() as group:
        worker = Worker(runner=one, agents=["payer"], tries=2)
        group.start_soon(worker.run)
        while not await settled(look, thread):  # noqa: ASYNC110 (what other processes write)
            await anyio.sleep(0.03)
        worker.stop()


async def settled(store: SessionStore, thread: str) -> str | None:
    """How the thread stands: ended, set aside, or waiting without a decision; None while there is something to do."""
    if any(letter.session_id == thread for letter in await dead_letters(store)):
        return "set aside"
    state, _ = await Ledger(store).known("payer", thread)
    if state.status in (AgentStatus.COMPLETED, AgentStatus.FAILED):
        return str(state.status)
    decided = await Ledger(store).decisions([request.id for request in state.pending()])
    asks = state.status is AgentStatus.WAITING_FOR_HUMAN and not any(decided.values())
    return "waits" if asks else None


class Outside:
    """What somebody outside the processes sees and does; holds no connection, for processes are forked from here."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, work: Callable[[SessionStore], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            store = open_store(self.url)
            try:
                return await work(store)
            finally:
                await store.aclose()

        return anyio.run(asked)

    def settled(self, thread: str) -> Any:
        return self.ask(lambda store: settled(store, thread))

    def letter(self, thread: str) -> str:
        (found,) = [one for one in self.ask(dead_letters) if one.session_id == thread]
        return str(found.why)

    def decide(self, thread: str, kind: str) -> None:
        async def decided(store: SessionStore) -> None:
            (asked,) = (await Ledger(store).known("payer", thread))[0].pending()
            await Ledger(store).decide(asked.decide(kind, principal="ann"))

        self.ask(decided)


def scenario(url: str, folder: Path, number: int, kill: Kill, kind: str, counts: Counter[str]) -> None:
    thread, seen = f"t{number}", Outside(url)
    calm, watched = Bank(url, folder, None), Bank(url, folder, kill)
    stopped = list[int]()
    try:
        first_run(watched if kill.phase == "run" else calm, calm, seen, thread, counts, stopped)
        seen.decide(thread, kind)
        if kill.phase == "resume":
            count(forked(lambda: work(watched, thread)), counts, stopped)
        at_rest(calm, seen, thread, stopped)
        for child in stopped:  # another worker has had the thread meanwhile
            os.kill(child, signal.SIGCONT)
        time.sleep(0.3 * bool(stopped))
    finally:  # one that stands still would keep the pipes open on which this script says why it failed
        end(stopped)
    check(calm, seen, thread, kill, kind, counts)


def end(stopped: list[int]) -> None:
    while stopped:
        child = stopped.pop()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def count(child: int, counts: Counter[str], stopped: list[int]) -> None:
    ended = gone(child)
    counts["killed"] += ended == -signal.SIGKILL
    counts["stopped"] += ended == -signal.SIGSTOP
    stopped += [child] if ended == -signal.SIGSTOP else []


def at_rest(calm: Bank, seen: Outside, thread: str, stopped: list[int]) -> str:
    """Let workers go on until the thread stands somewhere; how it stands.

    A job that outlasts its lease is tried again beside itself. Then one may set the thread aside while the other is at
    work: the worker ends, and leaves the thread to the next one. Whoever is stopped in the middle of a write to
    LangGraph's file locks it for the others: it is ended then, and the thread tried again.
    """
    for _ in range(5):
        found = seen.settled(thread)
        if found == "set aside" and stopped and "locked" in seen.letter(thread):
            end(stopped)
            seen.ask(lambda store: retry(store, "payer", thread))
        elif found is not None:
            return str(found)
        assert gone(forked(lambda: work(calm, thread))) == 0
    raise AssertionError(f"{thread} comes to no rest")


def first_run(watched: Bank, calm: Bank, seen: Outside, thread: str, counts: Counter[str], stopped: list[int]) -> None:
    """Begin the thread, and let it come to where it waits, whoever dies, or is `stopped`, on the way."""
    count(forked(lambda: begin(watched, thread)), counts, stopped)
    for _ in range(3):
        if seen.ask(lambda store: store.get("session", f"payer/{thread}")) is None:  # nobody was told that it runs
            assert gone(forked(lambda: begin(calm, thread))) == 0
        if (stands := at_rest(calm, seen, thread, stopped)) == "waits":
            return
        assert stands == "set aside", f"{thread} is {stands} before anybody decided"
        assert "begin it anew" in seen.letter(thread), seen.letter(thread)
        counts["begun anew"] += 1
        end(stopped)  # it may hold the lock of LangGraph's file
        seen.ask(lambda store: drop(Ledger(store), "payer", thread, principal="ann"))
        assert gone(forked(lambda: begin(calm, thread))) == 0
    raise AssertionError(f"{thread} does not come to wait")


def check(bank: Bank, seen: Outside, thread: str, kill: Kill, kind: str, counts: Counter[str]) -> None:
    """Hold the thread's end against what the world saw of it."""
    paid, ended, where = bank.paid(thread), seen.settled(thread), f"{thread} {kind} {kill}"
    assert paid <= 1, f"paid {paid} times: {where}"
    if kind == "reject":
        assert (ended, paid) == ("completed", 0), f"{ended}, paid {paid} times: {where}"
    elif ended == "set aside":  # only where nobody can know whether the tool acted
        assert "died in tools" in seen.letter(thread), f"{seen.letter(thread)}: {where}"
    else:
        assert (ended, paid) == ("completed", 1), f"{ended}, paid {paid} times: {where}"
    counts[f"{kind}: {ended}, paid {paid}"] += 1


def chosen(rng: random.Random) -> Kill:
    way = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
    if rng.random() < 0.25:
        return Kill("resume", rng.choice(["tool begins", "tool ends"]), way=way)
    phase = rng.choice(["run", "resume"])
    return Kill(phase, rng.choice(["before op", "after op"]), rng.randrange(1, STEPS[phase]), way)


def campaign(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rng, counts, number = random.Random(options.seed), Counter[str](), 0
    url = options.url.replace("{folder}", str(folder))

    async def prepare(store: SessionStore) -> None:
        await store.now()
        async with Bank(url, folder, None).saver() as saver:
            await saver.setup()

    Outside(url).ask(prepare)
    while counts["killed"] + counts["stopped"] < options.kills:
        number += 1
        scenario(url, folder, number, chosen(rng), rng.choice(["approve", "approve", "reject"]), counts)
    return {"threads": number, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="store_true", help="Say that tools may run again.")
    options = parser.parse_args()
    if options.sabotage:
        Bank.repeatable = ("agent", "tools")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(campaign(options, Path(folder))))


if __name__ == "__main__":
    main()
