"""The number of approvals that wait in a store, asked from whatever thread exports metrics."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    ConfigurationError,
    FunctionTools,
    PendingSession,
    SubAgent,
    ToolCall,
    UncertaintyMonitor,
    open_store,
)
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.pending_approvals import oldest_pending, pending_approvals
from grampus_uq.runtime.store import Document
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.telemetry import MetricsProcessor
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, mail, runner, scripted


async def paused(url: str, session_id: str, calls: int = 1) -> None:
    """A run that waits for as many approvals as it has calls."""
    store = open_store(url)
    proposed = [mail(f"c{number}", f"bob{number}") for number in range(calls)]
    turns = [answer("I will mail.", tool_calls=proposed), answer("Done.")]
    await runner(World(), turns, store=store).run(AGENT, "Mail Bob.", session_id=session_id)
    await store.aclose()


def test_every_waiting_approval_is_counted_and_decided_ones_no_more(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    count = pending_approvals(url)
    assert count() is None  # there is no store yet: that is not the same as nothing
    anyio.run(paused, url, "s1")
    anyio.run(paused, url, "s2", 2)
    assert count() == 3

    async def reject() -> None:
        store = open_store(url)
        again = runner(World(), store=store)
        (request,) = (await again.list_pending_sessions("mailer"))[0].requests
        await again.resume("mailer", request.session_id, request.decide("reject", principal="ann"))
        await store.aclose()

    anyio.run(reject)
    assert count() == 2


def test_a_page_reads_a_session_once_however_many_of_its_calls_wait() -> None:
    class Counted(MemoryStore):
        gets = 0

        async def get(self, kind: str, key: str) -> Document | None:
            self.gets += kind == "session"
            return await super().get(kind, key)

    async def work() -> tuple[int, list[str], int]:
        store = Counted()
        proposed = [mail(f"c{number}", f"bob{number}") for number in range(5)]
        turns = [answer("I will mail.", tool_calls=proposed), answer("Done.")]
        asked = (await runner(World(), turns, store=store).run(AGENT, "x", session_id="s")).pending
        store.gets = 0
        found, _ = await oldest_pending(Ledger(store))
        assert {one.id for one in found} == {one.id for one in asked}
        return store.gets, [one.session_id for one in found], len(asked)

    assert anyio.run(work) == (1, ["s"] * 5, 5)


def test_what_a_sub_agent_waits_for_is_counted_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    task = ToolCall(id="d", name="mailer", arguments={"task": "mail bob"})

    async def delegate() -> list[PendingSession]:
        store = open_store(url)
        boss = AgentRunner(
            scripted([answer("Delegate.", tool_calls=[task]), answer("Done.")], 0.95),
            FunctionTools(),
            uncertainty_monitor=UncertaintyMonitor(),
            store=store,
            sub_agents=[SubAgent(runner(World(), store=store), AGENT)],
        )
        lead = AgentDefinition(name="boss", model="scripted", system_prompt="You lead.")
        await boss.run(lead, "have bob mailed", session_id="p1")
        waiting = await boss.list_pending_sessions()
        await store.aclose()
        return waiting

    assert len(anyio.run(delegate)) == 2  # the child and its parent
    assert pending_approvals(url)() == 1


def test_it_may_be_asked_from_inside_an_event_loop_and_shows_on_the_gauge(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    reader = InMemoryMetricReader()
    MetricsProcessor(
        MeterProvider(metric_readers=[reader], shutdown_on_exit=False), pending_approvals=pending_approvals(url)
    )

    async def exported_here() -> list[float]:
        await paused(url, "s1")
        data = reader.get_metrics_data()
        assert data is not None
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        (gauge,) = [metric for metric in metrics if metric.name == "uncertainty.approvals.pending"]
        return [point.value for point in gauge.data.data_points]  # type: ignore[union-attr]

    assert anyio.run(exported_here) == [1]


def test_a_store_that_cannot_be_asked_is_not_zero(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "runs.db").write_text("this is no database, and never was one" * 100)
    with caplog.at_level(logging.WARNING):
        assert pending_approvals(f"sqlite:///{tmp_path / 'runs.db'}")() is None
    assert "could not be counted" in caplog.text


def test_a_store_that_does_not_answer_is_given_up_after_the_timeout() -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        count = pending_approvals(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout_s=0.2)
        assert count() is None
    for thread in threading.enumerate():
        if thread.name == "grampus-uq-waiting":
            thread.join(10)  # the socket is closed: it ends now


@pytest.mark.parametrize("url", ["memory:", "ftp://x/y"])
def test_a_url_that_names_no_shared_store_is_refused_when_it_is_given(url: str) -> None:
    with pytest.raises(ConfigurationError):
        pending_approvals(url)
