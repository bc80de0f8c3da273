"""A worker's metrics say how its jobs ended, how long the oldest waits, and what was set aside."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from grampus_uq.errors import StoreError
from grampus_uq.runtime.store import WAKING
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import TIMER, Job, oldest_due_s
from grampus_uq.runtime.worker_metrics import WorkerMetrics
from grampus_uq.telemetry.instruments import WORKER_INSTRUMENTS
from tests.runtime.agents import AGENT, World, runner
from tests.telemetry.test_conventions import table

pytestmark = pytest.mark.anyio


def shown(reader: InMemoryMetricReader) -> dict[str, dict[tuple[Any, ...], float]]:
    data: Any = reader.get_metrics_data()
    found = data.resource_metrics[0].scope_metrics[0].metrics
    return {
        one.name: {tuple(point.attributes.values()): point.value for point in one.data.data_points} for one in found
    }


async def test_jobs_are_counted_by_their_end_and_what_waits_is_shown_for_each_agent() -> None:
    store, world = MemoryStore(), World()
    one = runner(world, store=store)
    (request,) = (await one.run(AGENT, "x", session_id="s")).pending
    reader = InMemoryMetricReader()
    worker = Worker(runner=one, agents=["mailer", "desk"], on_job=lambda job, ended, why: worker.stop())
    metrics = WorkerMetrics(worker, meter_provider=MeterProvider(metric_readers=[reader], shutdown_on_exit=False))
    await one.ledger.decide(request.decide("approve", principal="ann"))
    now_s = await store.now()
    await store.write(Job(agent_id="desk", session_id="s").at(now_s - 60.0))
    await store.write(Job(agent_id="mailer", session_id="t").at(now_s + 60.0))
    await store.put("dead", "desk/s", "{}", expected=0)
    await metrics.read()
    before = shown(reader)
    assert before["uncertainty.worker.oldest_job"]["desk",] == pytest.approx(60.0, abs=5.0)
    assert before["uncertainty.worker.oldest_job"]["mailer",] < 5.0
    assert before["uncertainty.worker.dead_letters"] == {("mailer",): 0, ("desk",): 1}
    worker.agents = ["mailer"]
    await worker.run()
    after = shown(reader)
    assert after["uncertainty.worker.jobs"]["resumed",] == 1
    assert after.keys() == WORKER_INSTRUMENTS.keys()


@pytest.mark.parametrize("key", ["!", "nan/x", "1e999/x", "-5/x", "/", "a/b"])
async def test_a_row_that_nobody_can_read_is_no_old_job(key: str) -> None:
    store = MemoryStore()
    for kind in (WAKING, TIMER):
        await store.put(kind, key, "{}", expected=0, label="mailer")
    assert 0.0 <= await oldest_due_s(store, "mailer") < 3e9


async def test_a_store_that_is_down_leaves_what_was_known() -> None:
    store = MemoryStore()
    metrics = WorkerMetrics(Worker(runner=runner(World(), store=store), agents=["mailer"]))
    await metrics.read()

    async def down(*given: Any, **named: Any) -> Any:
        raise StoreError("down")

    store.scan = down  # type: ignore[method-assign]
    await metrics.read()
    assert metrics.dead_letters == {"mailer": 0}


def test_the_page_shows_the_workers_metrics_as_the_code_has_them() -> None:
    rows = {row[0]: row[1:] for row in table("Metrics of workers")}
    assert rows == {
        name: [one.kind.replace("_", " "), one.unit, ", ".join(one.labels), one.description]
        for name, one in WORKER_INSTRUMENTS.items()
    }
