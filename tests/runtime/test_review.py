"""What an attack on the runtime found: each test is a way in which a user would have been hurt."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from click.testing import CliRunner

from grampus_uq import (
    UNWATCHED,
    AgentDefinition,
    AgentRunner,
    ApprovalDecision,
    ApprovalPolicy,
    FunctionTools,
    Grant,
    Graph,
    HmacSigner,
    SessionConflictError,
    SubAgent,
    UncertaintyMonitor,
    human_node,
    open_store,
    tool,
)
from grampus_uq.cli.approvals_command import command as approvals_command
from grampus_uq.cli.stop_command import command as stop_command
from grampus_uq.errors import ApprovalError, ModelError, SessionError, StoreError
from grampus_uq.gate.call import CallPhase, CallRecord
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.records.values import ModelResponse, ToolCall, ToolResult
from grampus_uq.records.vocabulary import AgentStatus, Effect, Role, UncertaintyLevel
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.concurrent_tasks import CancelledItselfError, run_with_watch
from grampus_uq.runtime.ledger import Ledger, audit_of, session_key
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.store import Change
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.stores.sqlite import SQLiteStore
from grampus_uq.runtime.tools import call_executor
from grampus_uq.testing import ScriptedModel, answer
from tests.runtime.agents import AGENT, World, look, mail, results_by_call, runner, scripted
from tests.sampling import sampled

pytestmark = pytest.mark.anyio
BOSS = AgentDefinition(name="boss", model="scripted", system_prompt="You lead.")


def call(name: str, call_id: str = "c", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def with_tools(
    *tools: Any, turns: Sequence[ModelResponse | str], store: Any, p_true: float = 0.99, **given: Any
) -> AgentRunner:
    return AgentRunner(
        scripted(turns, p_true), FunctionTools(*tools), uncertainty_monitor=UncertaintyMonitor(), store=store, **given
    )


async def stored(store: Any, agent: str, session: str) -> AgentState:
    loaded = await Ledger(store).load(agent, session)
    assert loaded is not None
    return loaded[0]


# -- holding a session ------------------------------------------------------------------------------------------------


async def test_a_second_resume_in_the_same_runner_does_not_take_a_running_session_over() -> None:
    started, let_go, ran = anyio.Event(), anyio.Event(), []

    @tool(effect=Effect.REVERSIBLE)
    async def book() -> str:
        started.set()
        await let_go.wait()
        ran.append(1)
        return "booked"

    store = MemoryStore()
    one = with_tools(book, turns=[answer("Book.", tool_calls=[call("book")]), "Done."], store=store)
    ended = []

    async def first() -> None:
        ended.append(await one.run(AGENT, "x", session_id="s"))

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await started.wait()
        with pytest.raises(SessionConflictError):
            await one.resume("mailer", "s")
        let_go.set()
    assert ended[0].status is AgentStatus.COMPLETED
    assert ran == [1]


async def test_a_stream_that_is_closed_lets_its_session_go_before_close_returns() -> None:
    world, store = World(), MemoryStore()
    one = runner(world, store=store)
    async with contextlib.aclosing(one.stream(AGENT, "mail bob", session_id="s")) as events:
        async for _ in events:
            break
    assert (await stored(store, "mailer", "s")).status is AgentStatus.IDLE
    assert (await runner(world, store=store).resume("mailer", "s")).status is AgentStatus.WAITING_FOR_HUMAN


async def test_a_run_cancelled_while_another_call_waits_stays_among_what_waits() -> None:
    started = anyio.Event()
    world, store = World(), MemoryStore()

    @tool(effect=Effect.READ)
    async def slow() -> str:
        started.set()
        await anyio.sleep(60)
        return "never"

    @tool(effect=Effect.IRREVERSIBLE)
    def pay() -> str:
        world.sent.append(("pay", ""))
        return "paid"

    turns: list[ModelResponse | str] = [answer("Both.", tool_calls=[call("slow", "a"), call("pay", "b")]), "Done."]
    one = with_tools(slow, pay, turns=turns, store=store, p_true=0.62)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: one.run(AGENT, "x", session_id="s"))
        await started.wait()
        group.cancel_scope.cancel()
    (waiting,) = await one.list_pending_sessions("mailer")
    assert [r.call.name for r in waiting.requests if r.call] == ["pay"]


async def test_what_waits_is_listed_also_when_the_worker_that_took_it_up_died() -> None:
    world, store = World(), MemoryStore()
    one = runner(world, store=store)
    await one.run(AGENT, "mail bob", session_id="s")
    state = await stored(store, "mailer", "s")
    loaded = await one.ledger.load("mailer", "s")
    assert loaded is not None
    state, version = loaded
    state.status, state.worker, state.lease_s = AgentStatus.RUNNING, "dead", 60.0
    version = await one.ledger.save(state, version)
    assert await one.list_pending_sessions() == []  # its worker is alive as far as anybody knows
    state.lease_s = 0.0
    await one.ledger.save(state, version)
    assert [p.session_id for p in await one.list_pending_sessions()] == ["s"]


async def test_one_unreadable_session_does_not_hide_the_others_that_wait() -> None:
    world, store = World(), MemoryStore()
    one = runner(world, store=store)
    await one.run(AGENT, "mail bob", session_id="s")
    await store.put("session", "mailer/newer", '{"v": 99}', expected=0, label="waiting_for_human")
    assert [p.session_id for p in await one.list_pending_sessions()] == ["s"]


class _LosesAnswers(MemoryStore):
    """Writes, and then says that it failed: the connection broke after the commit."""

    lose = False

    async def write(self, *changes: Change) -> float:
        written_s = await super().write(*changes)
        if self.lose:
            self.lose = False
            raise StoreError("the connection broke")
        return written_s


async def test_a_write_whose_answer_was_lost_does_not_end_the_run_as_taken_over() -> None:
    store = _LosesAnswers()

    @tool(effect=Effect.REVERSIBLE)
    def book() -> str:
        store.lose = True
        return "booked"

    one = with_tools(book, turns=[answer("Book.", tool_calls=[call("book")]), "Done."], store=store)
    assert (await one.run(AGENT, "x", session_id="s")).status is AgentStatus.COMPLETED
    assert (await stored(store, "mailer", "s")).status is AgentStatus.COMPLETED


async def test_losing_the_session_while_a_tool_runs_is_one_plain_error() -> None:
    store = MemoryStore()

    @tool(effect=Effect.REVERSIBLE)
    async def stolen() -> str:
        loaded = await Ledger(store).load("mailer", "s")
        assert loaded is not None
        loaded[0].worker = "another"
        await Ledger(store).save(*loaded)
        return "done"

    one = with_tools(stolen, turns=[answer("Go.", tool_calls=[call("stolen")]), "Done."], store=store)
    with pytest.raises(SessionConflictError):
        await one.run(AGENT, "x", session_id="s")
    assert (await stored(store, "mailer", "s")).worker == "another"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_cancelled_by_asyncio_in_the_middle_of_a_write_still_gives_the_session_back(
    tmp_path: Path,
) -> None:
    writing, go_on = threading.Event(), threading.Event()

    class Slow(SQLiteStore):
        armed = False

        def _call(self, work: Any, kind: str = "DEFERRED") -> Any:
            result = super()._call(work, kind)
            if self.armed and kind == "IMMEDIATE":
                self.armed = False
                writing.set()
                assert go_on.wait(10)
            return result

    store = Slow(tmp_path / "s.db")

    @tool(effect=Effect.READ)
    def find() -> str:
        store.armed = True
        return "found"

    one = with_tools(find, turns=[answer("Look.", tool_calls=[call("find")]), "Done."], store=store)
    task = asyncio.create_task(one.run(AGENT, "x", session_id="s"))
    await anyio.to_thread.run_sync(writing.wait)
    task.cancel()
    await asyncio.sleep(0.05)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await stored(store, "mailer", "s")).status is AgentStatus.IDLE
    await store.aclose()


async def cancels_itself() -> None:
    """As a client does whose connection pool was closed: nobody cancelled the task that awaits it."""
    closed = asyncio.get_running_loop().create_future()
    closed.cancel()
    await closed


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("beside", [False, True])
async def test_a_call_whose_tool_cancelled_itself_is_a_failed_one_and_not_one_that_never_ran(
    anyio_backend: str, beside: bool
) -> None:
    sent: list[str] = []

    @tool(effect="irreversible")
    async def send(to: str) -> str:
        sent.append(to)
        await cancels_itself()
        return "sent"

    @tool(effect="irreversible")
    async def ring(to: str) -> str:
        return f"rang {to}"

    calls = [call("send", "c1", to="bob"), *([call("ring", "c2", to="ann")] if beside else [])]
    model = scripted([answer("I send.", tool_calls=calls), "Done."], 0.99)
    one = AgentRunner(model, FunctionTools(send, ring), uncertainty_monitor=UNWATCHED)
    result = await one.run(AGENT, "x", session_id="s")
    said = {message.tool_call_id: str(message.content) for message in result.messages if message.tool_call_id}
    assert sent == ["bob"]
    assert result.status is AgentStatus.COMPLETED
    assert said["c1"].startswith("The tool failed: ")
    assert said.get("c2") == ("rang ann" if beside else None)
    entries = await AuditLog(one.ledger.store, "mailer", "s").entries()
    assert [e["data"]["is_error"] for e in entries if e["what"] == "execution_finished"] == [True, *([False] * beside)]


@pytest.mark.parametrize("plain", [False, True])
async def test_a_tool_that_wants_to_end_the_process_is_a_failed_call_and_ends_nothing(plain: bool) -> None:
    """As a parser of command lines does that it calls."""

    def leaves() -> str:
        raise SystemExit(2)

    async def awaited() -> str:
        return leaves()

    tools = FunctionTools(tool(name="leave")(leaves if plain else awaited))
    model = scripted([answer("I call.", tool_calls=[call("leave", "c1")]), "Done."], 0.99)
    result = await AgentRunner(model, tools, uncertainty_monitor=UNWATCHED).run(AGENT, "x")
    assert result.status is AgentStatus.COMPLETED
    assert [m.content for m in result.messages if m.role is Role.TOOL] == ["The tool failed: ExitedError: 2"]


async def test_whatever_ends_a_process_gives_the_session_back_first() -> None:
    def ends(messages: Any, options: Any) -> Any:
        raise GeneratorExit

    one = AgentRunner(ScriptedModel(ends), FunctionTools(), uncertainty_monitor=UNWATCHED)
    with pytest.raises(BaseExceptionGroup):
        await one.run(AGENT, "x", session_id="s")
    assert not (await one.ledger.known("mailer", "s"))[0].leased_for_s()


@pytest.mark.parametrize("where", ["model", "effect"])
async def test_a_sub_agent_whose_own_code_exits_ends_no_call_beside_it(where: str) -> None:
    """Its model client, as it asks, or its tools, as a call is judged; the run goes on where it was."""
    left, sent = [where], list[str]()

    class Leaving(FunctionTools):
        def effect_of(self, name: str) -> Effect | None:
            if "effect" in left:
                raise SystemExit(left.pop())
            return super().effect_of(name)

    def asks(messages: Any, options: Any) -> Any:
        if "model" in left:
            raise SystemExit(left.pop())
        return "Done." if messages[-1].role is Role.TOOL else answer("I look.", tool_calls=[call("look", "l")])

    @tool(effect="read")
    def look() -> str:
        return "seen"

    @tool(effect="irreversible")
    async def send() -> str:
        await anyio.sleep(0.05)
        sent.append("bob")
        return "sent"

    store = MemoryStore()
    below = AgentRunner(ScriptedModel(asks), Leaving(look), uncertainty_monitor=UNWATCHED, store=store)
    helps = ToolCall(id="h", name="helper", arguments={"task": "Help."})
    model = scripted([answer("I act.", tool_calls=[helps, call("send", "s")]), "Done."], 0.99)
    sub_agents = [SubAgent(below, AgentDefinition(name="helper", model="m"))]
    one = AgentRunner(model, FunctionTools(send), uncertainty_monitor=UNWATCHED, store=store, sub_agents=sub_agents)
    with pytest.raises(RuntimeError, match=where):
        await one.run(AGENT, "x", session_id="s")
    assert sent == ["bob"]
    assert (await one.resume("mailer", "s")).status is AgentStatus.COMPLETED
    assert sent == ["bob"]


def cancel_here() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("advisory", [False, True])
@pytest.mark.parametrize("before", [False, True])
async def test_a_tool_that_cancelled_its_task_may_have_acted_cuts_no_call_beside_it_and_a_human_is_asked(
    anyio_backend: str, before: bool, advisory: bool
) -> None:
    sent: list[str] = []

    @tool(effect="irreversible")
    async def send(to: str) -> str:
        sent.append(to)
        cancel_here()
        if before:  # as a timeout of its own does that takes the request for its cancellation not back
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            await cancels_itself()
        await asyncio.sleep(0)
        return "sent"

    @tool(effect="irreversible")
    async def ring(to: str) -> str:
        await asyncio.sleep(0.01)
        sent.append(to)
        return f"rang {to}"

    model = scripted(
        [answer("I send.", tool_calls=[call("send", "c1", to="bob"), call("ring", "c2", to="ann")]), "Ok."]
    )
    monitor: Any = UncertaintyMonitor(advisory=True) if advisory else UNWATCHED
    one = AgentRunner(model, FunctionTools(send, ring), uncertainty_monitor=monitor)
    with pytest.raises(CancelledItselfError, match="nobody cancelled it"):
        await one.run(AGENT, "x", session_id="s")
    result = await one.resume("mailer", "s")
    assert [request.rule for request in result.pending] == ["unknown_outcome"]
    assert "rang ann" in [message.content for message in result.messages]
    assert sent == ["bob", "ann"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_watch_that_cancelled_itself_failed_and_one_cancelled_before_cancels_no_later_work(
    anyio_backend: str,
) -> None:
    with pytest.raises(CancelledItselfError):
        await run_with_watch(anyio.sleep_forever, cancels_itself)
    cancel_here()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    with pytest.raises(CancelledItselfError):
        await run_with_watch(cancels_itself, anyio.sleep_forever)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("below", [False, True])
async def test_a_model_that_cancelled_its_own_call_failed_and_the_run_goes_on_where_it_was(
    anyio_backend: str, below: bool
) -> None:
    world, failures = World(), [1]

    class Leaky(ScriptedModel):
        async def complete(self, *given: Any, **more: Any) -> ModelResponse:
            if failures:
                failures.pop()
                await cancels_itself()
            return await super().complete(*given, **more)

    def turns(*said: ModelResponse | str) -> Any:
        return lambda messages, options: said[sum(m.role is Role.ASSISTANT for m in messages)]

    store, mailing = MemoryStore(), answer("I mail.", tool_calls=[mail("m", "bob")])
    mailer = AgentRunner(Leaky(turns(mailing, "Mailed.")), world.tools(), uncertainty_monitor=UNWATCHED, store=store)
    task = answer("You do it.", tool_calls=[call("mailer", "t", task="Mail Bob.")])
    boss = AgentRunner(
        ScriptedModel(turns(task, "All done.")),
        FunctionTools(),
        uncertainty_monitor=UNWATCHED,
        store=store,
        sub_agents=[SubAgent(mailer, AGENT)],
    )
    one, agent = (boss, BOSS) if below else (mailer, AGENT)
    with pytest.raises(CancelledItselfError, match="nobody cancelled it"):
        await one.run(agent, "x", session_id="s")
    assert world.sent == []
    result = await one.resume(agent.name, "s")
    assert result.status is AgentStatus.COMPLETED
    assert len(world.sent) == 1
    assert not below or "Mailed." in [message.content for message in result.messages]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_sub_agent_that_failed_without_a_word_says_why(dies: bool) -> None:
    store = MemoryStore()
    seeks = scripted([answer("I look.", tool_calls=[look("a", "bob")])], 0.99)
    seeker = AgentDefinition(name="seeker", model="scripted", max_iterations=1)
    finder = AgentRunner(seeks, World().tools(), uncertainty_monitor=UNWATCHED, store=store)
    task = answer("You find him.", tool_calls=[call("seeker", "t", task="Find Bob.")])
    boss = AgentRunner(
        scripted([task, "Done."], 0.99),
        FunctionTools(),
        uncertainty_monitor=UNWATCHED,
        store=store,
        sub_agents=[SubAgent(finder, seeker)],
    )
    if dies:  # the parent's process, when the child has ended
        ended, finder.run = finder.run, None  # type: ignore[assignment,method-assign]

        async def run_and_die(*given: Any, **more: Any) -> Any:
            await ended(*given, **more)
            raise KeyError("died")

        finder.run = run_and_die  # type: ignore[method-assign]
        with pytest.raises(KeyError):
            await boss.run(BOSS, "x", session_id="s")
        result = await boss.resume("boss", "s")
    else:
        result = await boss.run(BOSS, "x", session_id="s")
    assert "The sub-agent failed: No answer within 1 steps." in [message.content for message in result.messages]


async def test_an_error_while_an_answer_is_applied_gives_the_session_back() -> None:
    world = World()

    class Breaks(MemoryStore):
        broken = False

        async def scan(self, kind: str, *, label: str | None = None, prefix: str = "") -> Any:
            if self.broken and kind == "decision":
                raise StoreError("down")
            return await super().scan(kind, label=label, prefix=prefix)

    store = Breaks()
    await runner(world, store=store).run(AGENT, "mail bob", session_id="s")
    store.broken = True
    with pytest.raises(StoreError):
        await runner(world, store=store).resume("mailer", "s")
    assert (await stored(store, "mailer", "s")).status is AgentStatus.WAITING_FOR_HUMAN


# -- calls and results ------------------------------------------------------------------------------------------------


async def test_half_a_character_in_a_call_or_a_result_breaks_nothing(tmp_path: Path) -> None:
    got = []

    @tool(effect=Effect.IRREVERSIBLE)
    def say(text: str) -> str:
        got.append(text)
        return "said \ud83d"

    turns: list[ModelResponse | str] = [answer("Say.", tool_calls=[call("say", text="hi \ud83d")]), "Done."]
    store = SQLiteStore(tmp_path / "s.db")
    one = with_tools(say, turns=turns, store=store, p_true=0.62)
    result = await one.run(AGENT, "x", session_id="s")
    (request,) = result.pending
    result = await one.resume("mailer", "s", request.decide("approve", principal="ann"))
    assert result.status is AgentStatus.COMPLETED
    assert got == ["hi \ufffd"]
    await store.aclose()


async def test_a_failing_sub_agent_does_not_cut_off_a_sibling_call_and_raises_its_own_error() -> None:
    done = []
    failed = anyio.Event()

    @tool(effect=Effect.REVERSIBLE)
    async def book() -> str:
        await failed.wait()
        await anyio.sleep(0.05)
        done.append(1)
        return "booked"

    class Failing:
        async def complete(self, **_: Any) -> ModelResponse:
            failed.set()
            raise ModelError("the child's model is down")

    store = MemoryStore()
    child = AgentRunner(Failing(), FunctionTools(), uncertainty_monitor=UncertaintyMonitor(), store=store)
    turns: list[ModelResponse | str] = [
        answer("Both.", tool_calls=[call("book", "a"), call("mailer", "b", task="mail")]),
        "Done.",
    ]
    one = with_tools(book, turns=turns, store=store, sub_agents=[SubAgent(child, AGENT)])
    with pytest.raises(ModelError, match="child"):
        await one.run(BOSS, "x", session_id="p")
    assert done == [1]
    phases = {r.call.id: r.phase for r in (await stored(store, "boss", "p")).turn}
    assert phases["a"] is CallPhase.SETTLED


async def test_an_async_function_behind_a_plain_decorator_really_runs() -> None:
    ran = []

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(**arguments: Any) -> Any:
            return function(**arguments)

        return wrapper

    @logged
    async def book(day: str) -> str:
        ran.append(day)
        return f"booked {day}"

    result = await call_executor(FunctionTools(book), call("book", day="monday"), "k")
    assert (result.output, ran) == ("booked monday", ["monday"])


async def test_a_result_that_cannot_be_printed_is_told_to_the_model_and_the_call_counts_as_run() -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    class Executor:
        async def execute(self, call: ToolCall) -> ToolResult:
            return ToolResult(tool_call_id=call.id, output=Hostile())

    one = AgentRunner(
        scripted([answer("Go.", tool_calls=[call("odd")]), "Done."], 0.99),
        Executor(),
        uncertainty_monitor=UncertaintyMonitor(),
    )
    result = await one.run(AGENT, "x")
    assert result.status is AgentStatus.COMPLETED
    assert any("cannot be written as text" in (m.content or "") for m in result.messages)


async def test_edited_arguments_are_judged_for_what_they_do() -> None:
    """A call edited into a dangerous one must not count as a harmless read that a crash may repeat."""
    seen: list[Effect] = []
    store = MemoryStore()

    @tool(effect=Effect.READ)
    async def query(sql: str) -> str:
        seen.extend(r.effect for r in (await stored(store, "mailer", "s")).turn)
        return "ok"

    def writes(proposed: ToolCall) -> Effect | None:
        return Effect.IRREVERSIBLE if "DELETE" in str(proposed.arguments["sql"]) else None

    one = AgentRunner(
        scripted([answer("Look.", tool_calls=[call("query", sql="SELECT 1")]), "Done."], 0.3),
        FunctionTools(query),
        uncertainty_monitor=UncertaintyMonitor(),
        store=store,
        effects=ToolEffects(predicates={"query": writes}),
    )
    (request,) = (await one.run(AGENT, "x", session_id="s")).pending
    await one.resume("mailer", "s", request.decide("edit", principal="ann", arguments={"sql": "DELETE FROM t"}))
    assert seen == [Effect.IRREVERSIBLE]


# -- decisions and grants ---------------------------------------------------------------------------------------------


async def test_approving_again_after_a_worker_died_before_acting_on_it_is_the_same_decision() -> None:
    world, store = World(), MemoryStore()
    (request,) = (await runner(world, store=store).run(AGENT, "mail bob", session_id="s")).pending
    await Ledger(store).decide(request.decide("approve", principal="ann"))  # and then the worker died
    with pytest.raises(ApprovalError, match="already decided"):
        await runner(world, store=store).resume("mailer", "s", request.decide("reject", principal="ann"))
    again = request.decide("approve", principal="ann")
    assert (await runner(world, store=store).resume("mailer", "s", again)).status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]


async def test_an_edit_beside_another_edit_that_was_stored_first_is_refused() -> None:
    world, store = World(), MemoryStore()
    (request,) = (await runner(world, store=store).run(AGENT, "mail bob", session_id="s")).pending
    first, other = (
        request.decide("edit", principal="ann", arguments={"to": to, "body": "hi"}) for to in ("ann", "eve")
    )
    await Ledger(store).decide(first)
    with pytest.raises(ApprovalError, match="already decided"):
        await runner(world, store=store).resume("mailer", "s", other)
    assert (await runner(world, store=store).resume("mailer", "s", first)).status is AgentStatus.COMPLETED
    assert world.sent == [("ann", "hi")]


async def test_where_a_human_gives_guidance_an_approval_that_was_stored_before_lets_nothing_run() -> None:
    world, store = World(), MemoryStore()
    (request,) = (await runner(world, store=store).run(AGENT, "mail bob", session_id="s")).pending
    await Ledger(store).decide(request.decide("approve", principal="ann"))
    await runner(world, [answer("As you wish.")], store=store).resume("mailer", "s", "Do not mail anybody.")
    assert world.sent == []


async def test_an_unsigned_decision_in_the_store_does_not_stand_in_the_way_of_a_signed_one() -> None:
    world, store, signer = World(), MemoryStore(), HmacSigner("k" * 32)
    one = runner(world, store=store, approvals=ApprovalPolicy(signer=signer))
    (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending
    await Ledger(store).decide(request.decide("reject", principal="eve"))  # who has no key, and reached the store
    result = await one.resume("mailer", "s", signer.sign(request.decide("approve", principal="ann")))
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])


async def test_a_grant_without_a_limit_serves_all_who_use_it_at_once_and_one_with_a_limit_exactly_so_many() -> None:
    class Yielding(MemoryStore):
        async def scan(self, kind: str, **options: Any) -> Any:
            found = await super().scan(kind, **options)
            await anyio.lowlevel.checkpoint()
            return found

    for uses, served in ((None, 10), (7, 7)):
        ledger = Ledger(Yielding())
        used: list[Grant | None] = []
        await ledger.grant(Grant(tool="t", principal="ann", expires_s=time.time() + 60, max_uses=uses))

        async def use(ledger: Ledger = ledger, used: list[Grant | None] = used) -> None:
            used.append(await ledger.use_grant(call("t"), agent_id="a", session_id="s", policy=ApprovalPolicy()))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(use)
        assert sum(grant is not None for grant in used) == served


async def test_a_broken_grant_in_the_store_grants_nothing_and_stops_nothing() -> None:
    store = MemoryStore()
    own = Grant(tool="t", principal="ann", expires_s=time.time() + 60).model_dump_json()
    broken = ["[]", "{}", "no json", '{"grant": 1, "uses": 0}', '{"grant": {}, "uses": "x"}', "[" * 100_000]
    broken += [f'{{"grant": {own}, "uses": {uses}}}' for uses in ("Infinity", "-1e999", "NaN", "[]", "null")]
    for number, body in enumerate(broken):
        await store.put("grant", f"{number:02d}", body, expected=0, label="t")
    good = Grant(id="zz", tool="t", principal="ann", expires_s=time.time() + 60)
    await Ledger(store).grant(good)
    found = await Ledger(store).use_grant(call("t"), agent_id="a", session_id="s", policy=ApprovalPolicy())
    assert found == good


@pytest.mark.parametrize("amount", [float("nan"), "1", True, None, [1], {"a": 1}])
def test_only_a_number_is_within_a_limit(amount: Any) -> None:
    grant = Grant(tool="pay", limits={"amount": {"max": 50}}, principal="ann", expires_s=time.time() + 60)
    proposed = ToolCall.model_construct(id="c", name="pay", arguments={"amount": amount})
    assert not grant.covers(proposed, agent_id="a", session_id="s", now_s=time.time())


# -- sub-agents -------------------------------------------------------------------------------------------------------


def nest(world: World, **innermost: Any) -> AgentRunner:
    """Boss over lead over mailer, each with a store in its own memory."""
    mailer = runner(world, **innermost)
    lead = AgentDefinition(name="lead", model="scripted", system_prompt="You lead.")
    middle = with_tools(
        turns=[answer("Down.", tool_calls=[call("mailer", task="mail bob")]), "Mailed."],
        store=MemoryStore(),
        sub_agents=[SubAgent(mailer, AGENT)],
    )
    return with_tools(
        turns=[answer("Down.", tool_calls=[call("lead", task="have bob mailed")]), "All done."],
        store=MemoryStore(),
        sub_agents=[SubAgent(middle, lead)],
    )


async def test_a_decision_reaches_an_agent_nested_twice_in_its_own_store() -> None:
    world = World()
    top = nest(world)
    (request,) = (await top.run(BOSS, "x", session_id="p")).pending
    result = await top.resume("boss", "p", request.decide("approve", principal="ann"))
    assert result.status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]


async def test_only_the_nested_agents_own_approvers_may_decide_for_it() -> None:
    world = World()
    top = nest(world, approvals=ApprovalPolicy(approvers={"ann"}))
    (request,) = (await top.run(BOSS, "x", session_id="p")).pending
    with pytest.raises(ApprovalError, match="approvers"):
        await top.resume("boss", "p", request.decide("approve", principal="eve"))
    assert world.sent == []
    result = await top.resume("boss", "p", request.decide("approve", principal="ann"))
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])


async def test_of_a_childs_two_requests_the_approved_one_runs_though_the_other_expired() -> None:
    world, store = World(), MemoryStore()
    turns = [answer("Two.", tool_calls=[mail("a", "bob"), mail("b", "eve")]), answer("Done.")]
    child = runner(world, turns, store=store, approvals=ApprovalPolicy(expires_s=60.0))
    top = with_tools(
        turns=[answer("Down.", tool_calls=[call("mailer", task="mail both")]), "All done."],
        store=store,
        sub_agents=[SubAgent(child, AGENT)],
    )
    to_bob, to_eve = (await top.run(BOSS, "x", session_id="p")).pending
    await Ledger(store).decide(to_bob.decide("approve", principal="ann"))
    for agent, session in (("mailer", to_bob.session_id), ("boss", "p")):  # an hour later
        loaded = await Ledger(store).load(agent, session)
        assert loaded is not None
        state, version = loaded
        for record in state.turn:
            late = [
                r.model_copy(update={"expires_s": time.time() - 1.0}) if r.id == to_eve.id else r
                for r in record.requests
            ]
            state.keep(record.change(requests=tuple(late)))
        await Ledger(store).save(state, version)
    result = await top.resume("boss", "p")
    assert result.status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]
    assert (await stored(store, "mailer", to_bob.session_id)).status is AgentStatus.COMPLETED


async def test_a_parent_killed_while_its_child_ran_asks_nobody_and_goes_on_with_the_child() -> None:
    world, store = World(), MemoryStore()
    child = runner(world, [answer("Look.", tool_calls=[look("a", "bob")]), answer("Found.")], p_true=0.99, store=store)
    top = with_tools(
        turns=[answer("Down.", tool_calls=[call("mailer", task="find bob")]), "All done."],
        store=store,
        sub_agents=[SubAgent(child, AGENT)],
    )

    async def killed(*_: Any) -> Any:
        loaded = await Ledger(store).load("boss", "p")
        assert loaded is not None
        at_death.append(loaded[0].model_copy(deep=True))
        return ToolResult(tool_call_id="c", output="lost")

    at_death: list[AgentState] = []
    top.sub_agents["mailer"].execute = killed  # type: ignore[method-assign,assignment]  # only to see what a kill would leave
    await top.run(BOSS, "x", session_id="p")
    del top.sub_agents["mailer"].execute
    left = at_death[0]
    assert left.turn[0].phase is CallPhase.STARTED
    left.lease_s = 0.0
    loaded = await Ledger(store).load("boss", "p")
    assert loaded is not None
    left._kept = loaded[0]._kept
    await Ledger(store).save(left, loaded[1])
    result = await top.resume("boss", "p")
    assert result.status is AgentStatus.COMPLETED
    assert world.searched == ["bob"]


# -- audit ------------------------------------------------------------------------------------------------------------


async def test_sessions_whose_ids_contain_slashes_have_audits_of_their_own() -> None:
    store = MemoryStore()
    await store.write(audit_of("a", "b/c", [("one", {})]))
    await store.write(audit_of("a/b", "c", [("two", {})]))
    assert [e["what"] for e in await AuditLog(store, "a", "b/c").entries()] == ["one"]


async def test_twenty_appenders_at_once_make_one_unbroken_chain(tmp_path: Path) -> None:
    stores = [SQLiteStore(tmp_path / "s.db") for _ in range(2)]

    async def append(number: int) -> None:
        await stores[number % 2].write(audit_of("a", "s", [("entry", {"number": number})]))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(append, number)
    entries = await AuditLog(stores[0], "a", "s").entries()
    assert sorted(e["data"]["number"] for e in entries) == list(range(20))
    for store in stores:
        await store.aclose()


# -- graph ------------------------------------------------------------------------------------------------------------


def noting(name: str, ran: list[str]) -> Any:
    async def handler(state: AgentState) -> AgentState:
        ran.append(name)
        return state

    return handler


def fresh() -> AgentState:
    return AgentState(agent_id="a", session_id="s")


@pytest.mark.parametrize(("said", "expected"), [("away", []), ("on", ["x"])])
async def test_a_join_runs_once_also_when_a_branch_turns_elsewhere(said: str, expected: list[str]) -> None:
    ran: list[str] = []
    graph = Graph(graph_id="g")
    for name in ("start", "short", "long", "fork", "x", "join"):
        graph.add_node(name, noting(name, ran))
    graph.add_edge("start", "short").add_edge("start", "long")
    graph.add_edge("short", "join").add_edge("long", "fork").add_edge("x", "join")
    graph.add_conditional_edge("fork", lambda state: said, {"on": "x", "away": None})
    result = await graph.execute(fresh())
    assert result.status is AgentStatus.COMPLETED
    assert sorted(ran) == sorted(["start", "short", "long", "fork", *expected, "join"])
    assert ran[-1] == "join"


async def test_a_crash_in_another_branch_does_not_answer_for_the_human() -> None:
    store, ran, crash = MemoryStore(), [], [True]

    async def breaks(state: AgentState) -> AgentState:
        if crash.pop():
            raise RuntimeError("killed")
        ran.append("second")
        return state

    def build() -> Graph:
        graph = Graph(graph_id="g", store=store)
        graph.add_node("start", noting("start", ran), entry=True).add_node("human", human_node("May I?"))
        graph.add_node("first", noting("first", ran)).add_node("second", breaks).add_node("pay", noting("pay", ran))
        graph.add_edge("start", "human").add_edge("start", "first")
        return graph.add_edge("first", "second").add_edge("human", "pay")

    with pytest.raises(RuntimeError, match="killed"):
        await build().execute(fresh())
    crash.append(False)
    state = await build().restore_and_execute("g")
    assert state.status is AgentStatus.WAITING_FOR_HUMAN
    assert ran == ["start", "first", "second"]
    assert (await build().restore_and_execute("g")).status is AgentStatus.WAITING_FOR_HUMAN
    assert (await build().restore_and_execute("g", "yes")).status is AgentStatus.COMPLETED
    assert ran == ["start", "first", "second", "pay"]


async def test_two_executions_of_one_graph_object_do_not_write_over_each_other() -> None:
    reached, go_on, ran = anyio.Event(), anyio.Event(), []

    async def slow(state: AgentState) -> AgentState:
        if state.session_id == "one":
            reached.set()
            await go_on.wait()
        ran.append(state.session_id)
        return state

    graph = Graph(graph_id="g")
    graph.add_node("slow", slow).add_node("human", human_node("May I?")).add_edge("slow", "human")

    async def first() -> None:
        with pytest.raises(SessionConflictError):
            await graph.execute(AgentState(agent_id="a", session_id="one"))

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await reached.wait()
        await graph.execute(AgentState(agent_id="a", session_id="two"))
        go_on.set()
    assert (await graph.restore_and_execute(human_response="")).session_id == "two"


async def test_a_checkpoint_of_another_graph_id_is_gone_on_with_under_that_id() -> None:
    store = MemoryStore()
    ran: list[str] = []

    def build(graph_id: str) -> Graph:
        graph = Graph(graph_id=graph_id, store=store)
        graph.add_node("human", human_node("May I?")).add_node("pay", noting("pay", ran))
        return graph.add_edge("human", "pay")

    await build("order-17").execute(fresh())
    assert (await build("orders").restore_and_execute("order-17", "")).status is AgentStatus.COMPLETED
    assert (await build("order-17").restore_and_execute()).status is AgentStatus.COMPLETED
    assert ran == ["pay"]


# -- stores -----------------------------------------------------------------------------------------------------------


async def test_tools_that_occupy_every_worker_thread_do_not_keep_the_store_from_writing(tmp_path: Path) -> None:
    store, written = SQLiteStore(tmp_path / "s.db"), threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()
    outcome: list[bool] = []

    async def occupy() -> None:
        outcome.append(await anyio.to_thread.run_sync(written.wait, 5.0))

    async with anyio.create_task_group() as group:
        for _ in range(int(limiter.total_tokens)):
            group.start_soon(occupy)
        await anyio.wait_all_tasks_blocked()
        assert limiter.available_tokens == 0
        await store.put("d", "k", "{}", expected=0)
        written.set()
    assert all(outcome)
    await store.aclose()


async def test_a_store_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")

    async def write(backend: str) -> None:
        await store.put("d", backend, "{}", expected=0)

    def in_other_loop(backend: str) -> None:
        anyio.run(write, backend, backend=backend)

    for backend in ("asyncio", "trio"):
        await anyio.to_thread.run_sync(in_other_loop, backend)
    assert [d.key for d in await store.scan("d")] == ["asyncio", "trio"]
    await store.aclose()


WRITERS = """
import sys, anyio
from grampus_uq import open_store
from grampus_uq.errors import SessionConflictError
from grampus_uq.runtime.store import Append, Put

async def main(url, kind, name):
    store = open_store(url)
    for number in range(25):
        await store.put(kind, f"{name}/{number}", "{}", expected=0)
        while True:
            found = await store.get(kind, "counter")
            version, count = (0, 0) if found is None else (found.version, int(found.body))
            try:
                await store.write(
                    Put(kind=kind, key="counter", body=str(count + 1), expected=version),
                    Append(log=kind, bodies=(f'{{"by":"{name}"}}',), expected=None),
                )
                break
            except SessionConflictError:
                continue
    await store.aclose()

anyio.run(main, *sys.argv[1:])
"""


@sampled("backend", ["sqlite"], full=["sqlite", "postgres", "redis"])
def test_four_processes_on_one_store_lose_no_update_and_meet_no_lock(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    new = f"sqlite:///{tmp_path / 's.db'}"
    url, kind = new if backend == "sqlite" else str(request.getfixturevalue(f"{backend}_url")), uuid.uuid4().hex
    workers = [
        subprocess.Popen([sys.executable, "-c", WRITERS, url, kind, str(n)], stderr=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    for worker in workers:
        _, said = worker.communicate(timeout=200)
        assert worker.returncode == 0, said

    async def read() -> tuple[str, int, int]:
        store = open_store(url)
        found = await store.get(kind, "counter")
        documents, entries = await store.scan(kind), [json.loads(entry) for entry in await store.read(kind)]
        await store.aclose()
        assert found is not None
        assert [entry["seq"] for entry in entries] == list(range(len(entries)))
        return found.body, len(documents), len(entries)

    assert anyio.run(read) == ("100", 101, 100)


# -- command line -----------------------------------------------------------------------------------------------------


def waiting_store(tmp_path: Path, proposed: ToolCall, reason: str) -> tuple[str, ApprovalRequest]:
    url = f"sqlite:///{tmp_path / 's.db'}"
    request = ApprovalRequest(
        agent_id="mailer", session_id="s", step_id="llm_0", call=proposed, level=UncertaintyLevel.HIGH, rule="r",
        reason=reason,
    )  # fmt: skip
    state = AgentState(agent_id="mailer", session_id="s", status=AgentStatus.WAITING_FOR_HUMAN)
    state.propose(reason, [proposed], "llm_0")
    state.turn = [
        CallRecord(proposed=proposed, call=proposed, step_id="llm_0", phase=CallPhase.WAITING, requests=[request])
    ]

    async def write() -> None:
        store = open_store(url)
        await Ledger(store).save(state, 0)
        await store.aclose()

    anyio.run(write)
    return url, request


def test_what_an_agent_wrote_can_neither_repaint_the_terminal_nor_break_the_list(tmp_path: Path) -> None:
    hostile = "[/nothing] [conceal]\x1b[2J\x1b[1;1Hcall send_email\rsafe\u202egnp"
    url, request = waiting_store(tmp_path, call(f"pay{hostile}", to=hostile), hostile)
    for arguments in (["list"], ["show", request.id]):
        result = CliRunner().invoke(approvals_command, [*arguments, "--store", url], env={"COLUMNS": "400"})
        assert result.exit_code == 0, result.output
        assert "[conceal]" in result.output.replace("\n", "")
        assert not set("\x1b\r\u202e") & set(result.output)


def test_an_id_too_short_to_have_been_read_from_a_list_decides_nothing(tmp_path: Path) -> None:
    url, request = waiting_store(tmp_path, mail("a", "bob"), "why")
    result = CliRunner().invoke(approvals_command, ["approve", request.id[:7], "--store", url])
    assert isinstance(result.exception, SessionError)
    assert "too short" in str(result.exception)
    assert CliRunner().invoke(approvals_command, ["approve", request.id[:8], "--store", url]).exit_code == 0


def test_an_order_to_stop_a_session_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    url, _ = waiting_store(tmp_path, mail("a", "bob"), "why")
    assert CliRunner().invoke(stop_command, ["mailer", "s", "--store", url]).exit_code == 0
    result = CliRunner().invoke(stop_command, ["mailer", "typo", "--store", url])
    assert result.exit_code == 1
    assert "There is no session 'typo'" in str(result.exception)


async def test_a_paused_session_that_was_ordered_to_stop_runs_nothing_when_it_is_approved_later() -> None:
    world, store = World(), MemoryStore()
    one = runner(world, store=store)
    (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending
    await one.stop("mailer", "s", principal="ann")
    result = await one.resume("mailer", "s", request.decide("approve", principal="bob"))
    assert result.status is AgentStatus.FAILED
    assert world.sent == []
    assert set(results_by_call(result.messages).values()) == {1}
    assert (await one.run(AGENT, "mail bob", session_id="s")).status is AgentStatus.WAITING_FOR_HUMAN  # a new run


# -- endings ----------------------------------------------------------------------------------------------------------


async def test_signatures_hold_after_a_decision_went_through_a_store_whatever_its_numbers() -> None:
    request = ApprovalRequest(
        agent_id="a", session_id="s", step_id="x", call=call("t", x=0.1 + 0.2, y=2**70, z=[1e-320, -0.0, 1e22]),
        level=UncertaintyLevel.HIGH, rule="r",
    )  # fmt: skip
    again = ApprovalRequest.model_validate_json(request.model_dump_json())
    assert again.digest() == request.digest()
    decision = request.decide("edit", principal="ann", arguments={"x": 1e16, "y": 5e-324, "z": 10**30})
    assert ApprovalDecision.model_validate_json(decision.model_dump_json()).signed_text() == decision.signed_text()


async def test_a_thousand_waiting_sessions_are_listed_and_one_of_them_found() -> None:
    world, store = World(), MemoryStore()
    one = runner(world, store=store)
    (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending
    body = json.loads((await stored(store, "mailer", "s")).model_dump_json())
    for number in range(999):
        other = {**body, "session_id": f"n{number}"}
        for record in other["turn"]:
            for waiting in record["requests"]:
                waiting["id"] = f"{number:032x}"
        text = json.dumps(other)
        await store.put("session", session_key("mailer", f"n{number}"), text, expected=0, label="waiting_for_human")
    assert len(await one.list_pending_sessions("mailer")) == 1000
    assert (await one.ledger.find_request(request.id))[1].id == request.id


async def test_the_store_failing_on_a_stop_order_still_reports_and_lets_go() -> None:
    started = anyio.Event()

    class Failing(MemoryStore):
        down = False

        async def write(self, *changes: Change) -> float:
            if self.down:
                raise StoreError("down")
            return await super().write(*changes)

    @tool(effect=Effect.READ)
    async def hang() -> str:
        started.set()
        await anyio.sleep(60)
        return "never"

    store = Failing()
    one = with_tools(hang, turns=[answer("Hang.", tool_calls=[call("hang")])], store=store)
    ended = []

    async def run() -> None:
        ended.append(await one.run(AGENT, "x", session_id="s"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await started.wait()
        await one.stop("mailer", "s")
        store.down = True
    assert ended[0].status is AgentStatus.FAILED
    assert ended[0].metadata["stop_reason"] == "cancelled"


def test_a_stream_that_never_started_can_be_closed() -> None:
    async def main() -> None:
        one = AgentRunner(ScriptedModel([]), FunctionTools())
        await one.stream(AGENT, "x").aclose()

    anyio.run(main)
