"""What a worker's metrics show: its jobs by how they ended, and for each agent the oldest job and the dead letters."""

from __future__ import annotations

import contextlib
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
    """Metrics of one worker on a meter provider, by default the one that the application sets globally.

    `watch` reads the queue every 15 seconds; what is exported is what it found last. The label `agent_id` has the names
    that the worker serves.
    """

    def __init__(self, worker: Worker, meter_provider: MeterProvider | None = None) -> None:
        self.worker = worker
        self.oldest_s: dict[str, float] = {}
        self.dead_letters: dict[str, int] = {}
        meter = (meter_provider or metrics.get_meter_provider()).get_meter(METER_NAME)
        for name, read in (
            ("uncertainty.worker.jobs", self._jobs),
            ("uncertainty.worker.running", lambda: [Observation(worker.running)]),
            ("uncertainty.worker.oldest_job", lambda: _by_agent(self.oldest_s)),
            ("uncertainty.worker.dead_letters", lambda: _by_agent(self.dead_letters)),
        ):
            instrument = WORKER_INSTRUMENTS[name]
            create: Callable[..., object] = getattr(meter, f"create_{instrument.kind}")

            def observed(_: object, read: Callable[[], Iterable[Observation]] = read) -> Iterable[Observation]:
                return read()

            create(name, callbacks=[observed], unit=instrument.unit, description=instrument.description)

    async def watch(self) -> None:
        """Read the queue again and again, until this is cancelled; a store that is down leaves what was known."""
        while True:
            with contextlib.suppress(StoreError):
                await self.read()
            await anyio.sleep(_EVERY_S)

    async def read(self) -> None:
        """Read the queue once."""
        store = self.worker.runner.ledger.store
        for agent in self.worker.agents:
            self.oldest_s[agent] = await oldest_due_s(store, agent)
            letters = await store.scan(DEAD, prefix=session_key(agent, ""), limit=_MOST_LETTERS)
            self.dead_letters[agent] = len(letters)

    def _jobs(self) -> list[Observation]:
        counts = asdict(self.worker.counts).items()
        return [Observation(count, {"ended": ended}) for ended, count in counts if ended not in _NO_JOBS]


def _by_agent(found: dict[str, int] | dict[str, float]) -> list[Observation]:
    return [Observation(value, {"agent_id": agent}) for agent, value in found.items()]
