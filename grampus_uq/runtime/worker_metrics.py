"""Metrics of a worker: jobs by ending, and for each agent the oldest job and the dead letters."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Final

import anyio
from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider, Observation

from grampus_uq.errors import StoreError
from grampus_uq.runtime.ledger import session_key
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import DEAD, oldest_due_s
from grampus_uq.telemetry.instruments import METER_NAME, WORKER_INSTRUMENTS

_EVERY_S: Final = 15.0
_MOST_LETTERS = 1_000
_NO_JOBS = ("last_s",)


class WorkerMetrics:
    """Metrics of the workers of one process on a meter provider, by default the one that is set globally.

    `watch` reads the queues every 15 seconds; what is exported is what it found last. The label `agent_id` has the
    names that the workers serve; of several stores it shows the oldest job, and all dead letters.
    """

    def __init__(self, *workers: Worker, meter_provider: MeterProvider | None = None) -> None:
        self.workers = workers
        self._oldest_s: dict[tuple[int, str], float] = {}
        self._letters: dict[tuple[int, str], int] = {}
        meter = (meter_provider or metrics.get_meter_provider()).get_meter(METER_NAME)
        for name, read in (
            ("uncertainty.worker.jobs", self._jobs),
            ("uncertainty.worker.running", self._running),
            ("uncertainty.worker.oldest_job", lambda: _by_agent(self.oldest_s)),
            ("uncertainty.worker.dead_letters", lambda: _by_agent(self.dead_letters)),
        ):
            instrument = WORKER_INSTRUMENTS[name]
            create: Callable[..., object] = getattr(meter, f"create_{instrument.kind}")

            def observed(_: object, read: Callable[[], Iterable[Observation]] = read) -> Iterable[Observation]:
                return read()

            create(name, callbacks=[observed], unit=instrument.unit, description=instrument.description)

    @property
    def oldest_s(self) -> dict[str, float]:
        """Of each agent the seconds since its oldest due job was due, as last read; 0 where none waits."""
        found: dict[str, float] = {}
        for (_, agent), age_s in [*self._oldest_s.items()]:
            found[agent] = max(age_s, found.get(agent, 0.0))
        return found

    @property
    def dead_letters(self) -> dict[str, int]:
        """Of each agent the sessions that are set aside, as last read."""
        found: Counter[str] = Counter()
        for (_, agent), count in [*self._letters.items()]:
            found[agent] += count
        return dict(found)

    async def watch(self) -> None:
        """Read the queues again and again, until this is cancelled; a store that is down leaves what was known."""
        while True:
            await self.read()
            await anyio.sleep(_EVERY_S)

    async def read(self) -> None:
        """Read the queues once."""
        for number, worker in enumerate(self.workers):
            store = worker.runner.ledger.store
            with contextlib.suppress(StoreError):
                for agent in worker.agents:
                    self._oldest_s[number, agent] = await oldest_due_s(store, agent)
                    letters = await store.scan(DEAD, prefix=session_key(agent, ""), limit=_MOST_LETTERS)
                    self._letters[number, agent] = len(letters)

    def _running(self) -> list[Observation]:
        return [Observation(sum(worker.running for worker in self.workers))]

    def _jobs(self) -> list[Observation]:
        counts: Counter[str] = Counter()
        for worker in self.workers:
            counts.update({name: count for name, count in asdict(worker.counts).items() if name not in _NO_JOBS})
        return [Observation(count, {"ended": ended}) for ended, count in counts.items()]


def _by_agent(found: dict[str, int] | dict[str, float]) -> list[Observation]:
    return [Observation(value, {"agent_id": agent}) for agent, value in found.items()]
