"""`grampus-uq worker`: take jobs from a store's resume queue, and resume their sessions."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import anyio
import click

from grampus_uq.cli.argument_types import FiniteRange
from grampus_uq.cli.printing import as_json_option, one_line, print_json
from grampus_uq.cli.store_options import several_stores_option, with_stores
from grampus_uq.errors import ConfigurationError, StoreError
from grampus_uq.runtime.ledger import session_key
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import DEAD, Job, oldest_due_s
from grampus_uq.runtime.worker_places import Places

_HEALTH_S = 60.0
_MOST_LETTERS = 1_000


@click.command()
@click.argument("factory", metavar="MODULE:FUNCTION")
@several_stores_option
@click.option(
    "--agent", "agents", multiple=True, required=True, help="Agent whose sessions it resumes; may be repeated."
)
@click.option("--at-once", type=click.IntRange(min=1), default=8, help="Concurrent sessions.")
@click.option("--per-agent", type=click.IntRange(min=1), help="Concurrent sessions of one agent.")
@click.option(
    "--per-tenant",
    "at_once_everywhere",
    type=click.IntRange(min=1),
    help="Concurrent sessions of one store, in all workers.",
)
@click.option("--tries", type=click.IntRange(min=1), default=5, help="Errors after which a session is set aside.")
@click.option(
    "--drain", "drain_s", type=FiniteRange(min=0), default=30.0, help="Seconds for sessions to continue after SIGTERM."
)
@as_json_option
def command(factory: str, urls: tuple[str, ...], at_once: int, as_json: bool, **bounds: Any) -> None:
    """Resume decided, expired or orphaned sessions until SIGTERM or SIGINT.

    MODULE:FUNCTION is your function. Called with the store, it returns (also as a coroutine) the `AgentRunner` that
    resumes the sessions, or the `ThreadRunner` of a LangGraph graph; an async context manager yields it, and is
    closed when the worker ends. Modules are also searched in the current folder. With --json each finished job, and
    the worker's state once a minute, is one JSON object per line. Several stores share the worker's places: a busy
    tenant does not delay another, and a store that is down affects no other.
    """
    if "memory:" in urls:
        raise ConfigurationError.of("--store", "worker", "a store that outlives a process", "memory:")
    make = _imported(factory)
    say = _say_json if as_json else _say

    async def work(stores: Sequence[SessionStore]) -> None:
        places, workers = Places(at_once), []
        async with contextlib.AsyncExitStack() as open_until_the_end:
            for number, store in enumerate(stores, 1):
                made = make(store)
                if isinstance(made, contextlib.AbstractAsyncContextManager):
                    made = await open_until_the_end.enter_async_context(made)
                runner = await made if inspect.isawaitable(made) else made
                if not callable(getattr(runner, "resume", None)) or getattr(runner, "ledger", None) is None:
                    rule = "a function that takes a store and returns, or as an async context manager yields, a runner"
                    raise ConfigurationError.of("MODULE:FUNCTION", "worker", rule, factory)
                worker = Worker(
                    runner=runner,
                    at_once=at_once,
                    places=places,
                    on_job=_told(say, {} if len(stores) == 1 else {"store": number}),
                    **bounds,
                )
                workers.append(worker)
            await _until_signalled(workers, say)

    with_stores(urls, work, create=True)


def _imported(factory: str) -> Callable[[SessionStore], Any]:
    module, _, name = factory.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        rule = "the name of a module and of a function in it"
        raise ConfigurationError.of("MODULE:FUNCTION", "worker", rule, factory, str(error)) from error
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise ConfigurationError.of("MODULE:FUNCTION", "worker", "a function that takes a store", factory) from error
    except ValueError:  # a compiled function may not say what it takes
        pass
    return found  # type: ignore[no-any-return]  # the user's own


async def _until_signalled(workers: Sequence[Worker], say: Callable[[dict[str, Any]], None]) -> None:
    """Run the workers beside the receiver of signals and the health line; a second signal cancels what is at work."""
    agents = list(workers[0].agents)
    missing: dict[str, Any] = {}
    with contextlib.suppress(StoreError):  # a store that is down does not end a worker
        stores = [worker.runner.ledger.store for worker in workers]
        empty = [agent for agent in agents if not await _has_sessions(stores, agent)]
        missing = {"no_sessions_yet": empty} if empty else {}
    say({"event": "started", "agents": agents, "at_once": workers[0].at_once, **missing})

    async def receive(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                if workers[0].stopping:
                    scope.cancel()
                say({"event": "draining", "running": sum(worker.running for worker in workers)})
                for worker in workers:
                    worker.stop()

    async def health() -> None:
        while True:
            await anyio.sleep(_HEALTH_S)
            say({"event": "health", **_state(workers), **await backlog(workers)})

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as work:
            group.start_soon(receive, work)
            group.start_soon(health)
            async with anyio.create_task_group() as working:
                for worker in workers:
                    working.start_soon(worker.run)
        group.cancel_scope.cancel()
    say({"event": "stopped", **_state(workers)})


async def _has_sessions(stores: Sequence[SessionStore], agent: str) -> bool:
    """Return True if any of the stores holds a session of the agent; else its name or the URL may be mistyped."""
    key = session_key(agent, "")
    return any([await store.scan("session", prefix=key, limit=1) for store in stores])


def _state(workers: Sequence[Worker]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for worker in workers:
        counts.update({name: count for name, count in asdict(worker.counts).items() if name != "last_s"})
    last_s = max(worker.counts.last_s for worker in workers)
    running = sum(worker.running for worker in workers)
    return {"running": running, "at_once": workers[0].at_once, **counts, "last_s": round(last_s, 3)}


async def backlog(workers: Sequence[Worker]) -> dict[str, float | None]:
    """Age of the oldest due job and number of dead letters (at most 1,000 an agent); None while a store is down."""
    oldest_s, letters = 0.0, 0
    try:
        for worker in workers:
            store = worker.runner.ledger.store
            for agent in worker.agents:
                oldest_s = max(oldest_s, await oldest_due_s(store, agent))
                letters += len(await store.scan(DEAD, prefix=session_key(agent, ""), limit=_MOST_LETTERS))
    except StoreError:
        return {"oldest_job_s": None, "dead_letters": None}
    return {"oldest_job_s": round(oldest_s, 1), "dead_letters": letters}


def _told(say: Callable[[dict[str, Any]], None], place: Mapping[str, Any]) -> Callable[[Job, str, str], None]:
    def told(job: Job, ended: str, why: str) -> None:
        if ended not in ("nothing_to_do", "busy"):
            error = {"error": why} if why else {}
            say({"event": ended, **place, "agent": job.agent_id, "session": job.session_id, **error})

    return told


def _say_json(event: dict[str, Any]) -> None:
    print_json({"time_s": round(time.time(), 3), **event})


def _say(event: dict[str, Any]) -> None:
    """One line an event: the time of this machine, what happened, and the facts."""
    facts = " ".join(f"{name}={one_line(value)}" for name, value in event.items() if name != "event")
    click.echo(f"{time.strftime('%H:%M:%S')} {event['event']} {facts}".rstrip())
