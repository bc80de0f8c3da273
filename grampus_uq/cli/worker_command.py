"""`grampus-uq worker`: take jobs from a store's resume queue, and resume their sessions."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import anyio
import click

from grampus_uq.cli.argument_types import FiniteRange
from grampus_uq.cli.plain_text import one_line
from grampus_uq.cli.printing import as_json_option, print_json
from grampus_uq.cli.store_options import store_option, with_store
from grampus_uq.errors import ConfigurationError, StoreError
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import Job
from grampus_uq.runtime.worker_metrics import WorkerMetrics

_HEALTH_S = 60.0


@click.command()
@click.argument("factory", metavar="MODULE:FUNCTION")
@store_option
@click.option("--agent", "agents", multiple=True, required=True, help="Whose sessions it resumes; may be repeated.")
@click.option("--at-once", type=click.IntRange(min=1), default=8, show_default=True, help="Sessions side by side.")
@click.option("--per-agent", type=click.IntRange(min=1), default=None, help="Sessions of one agent side by side.")
@click.option("--tries", type=click.IntRange(min=1), default=5, show_default=True, help="Errors until it is set aside.")
@click.option(
    "--drain",
    "drain_s",
    type=FiniteRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds to let sessions go on after SIGTERM.",
)
@as_json_option
def command(
    factory: str,
    url: str,
    agents: tuple[str, ...],
    at_once: int,
    per_agent: int | None,
    tries: int,
    drain_s: float,
    as_json: bool,
) -> None:
    """Resume sessions that were decided, expired or orphaned, until SIGTERM or SIGINT.

    MODULE:FUNCTION is yours: called with the store, it returns (or is awaited for) the `AgentRunner` that resumes the
    sessions, or the `ThreadRunner` of a LangGraph graph. Modules are looked for in the current folder too. With --json
    each job's end, and the state of the worker once a minute, is one JSON object on a line.
    """
    if url == "memory:":
        raise ConfigurationError.of("--store", "worker", "a store that outlives a process", url)
    make = _imported(factory)
    say = _say_json if as_json else _say

    async def work(store: SessionStore) -> None:
        made = make(store)
        runner = await made if inspect.isawaitable(made) else made
        if not callable(getattr(runner, "resume", None)) or getattr(runner, "ledger", None) is None:
            rule = "a function that takes a store and returns an AgentRunner over it"
            raise ConfigurationError.of("MODULE:FUNCTION", "worker", rule, factory)
        worker = Worker(
            runner=runner,
            agents=agents,
            at_once=at_once,
            per_agent=per_agent,
            tries=tries,
            drain_s=drain_s,
            on_job=_told(say),
        )
        await _until_signalled(worker, say)

    with_store(url, work, create=True)


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
    if not callable(found):
        raise ConfigurationError.of("MODULE:FUNCTION", "worker", "a function", factory)
    return found  # type: ignore[no-any-return]  # the user's own


async def _until_signalled(worker: Worker, say: Callable[[dict[str, Any]], None]) -> None:
    """Run the worker beside the receiver of signals and the health line; a second signal cancels what is at work."""
    with contextlib.suppress(StoreError):  # a store that is down does not end a worker
        await worker.runner.ledger.store.now()
    say({"event": "started", "agents": list(worker.agents), "at_once": worker.at_once})

    async def receive(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                if worker.stopping:
                    scope.cancel()
                say({"event": "draining", "running": worker.running})
                worker.stop()

    metrics = WorkerMetrics(worker)

    async def health() -> None:
        while True:
            await anyio.sleep(_HEALTH_S)
            queue = {
                "oldest_job_s": round(max(metrics.oldest_s.values(), default=0.0), 1),
                "dead_letters": sum(metrics.dead_letters.values()),
            }
            say({"event": "health", **_state(worker), **queue})

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as work:
            group.start_soon(receive, work)
            group.start_soon(health)
            group.start_soon(metrics.watch)
            await worker.run()
        group.cancel_scope.cancel()
    say({"event": "stopped", **_state(worker)})


def _state(worker: Worker) -> dict[str, Any]:
    return {"running": worker.running, "at_once": worker.at_once, **asdict(worker.counts)}


def _told(say: Callable[[dict[str, Any]], None]) -> Callable[[Job, str, str], None]:
    def told(job: Job, ended: str, why: str) -> None:
        if ended not in ("nothing_to_do", "busy"):
            error = {"error": why} if why else {}
            say({"event": ended, "agent": job.agent_id, "session": job.session_id, **error})

    return told


def _say_json(event: dict[str, Any]) -> None:
    print_json({"time_s": round(time.time(), 3), **event})


def _say(event: dict[str, Any]) -> None:
    """One line an event: the time of this machine, what happened, and the facts."""
    facts = " ".join(f"{name}={one_line(value)}" for name, value in event.items() if name != "event")
    click.echo(f"{time.strftime('%H:%M:%S')} {event['event']} {facts}".rstrip())
