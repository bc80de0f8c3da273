"""Laws of calls that a worker began: what may have run is never forgotten, what did not run is never asked about."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    ApprovalRequest,
    FunctionTools,
    Grant,
    SubAgent,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
    tool,
)
from grampus_uq.errors import GrampusError, SessionConflictError, SessionError, StoreError
from grampus_uq.gate.requests import ApprovalKind
from grampus_uq.records.vocabulary import Effect, Role
from grampus_uq.runtime.apply_decisions import HumanResponse
from grampus_uq.runtime.dead_letters import drop
from grampus_uq.runtime.rollback import rollback
from grampus_uq.runtime.stopping import order_stop
from grampus_uq.runtime.store import Append, Change, Document
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker_jobs import DEAD, Job
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, scripted
from tests.sampling import examples

TOOLS = ("note", "pay")

pytestmark = pytest.mark.anyio


class Announced(MemoryStore):
    """Does something as a call is announced as started, before or behind that write; `down` refuses everything."""

    down = False
    before: Callable[[], None] | None = None
    behind: Callable[[], None] | None = None
    stops = False

    def _reached(self) -> None:
        if self.down:
            raise StoreError("down")

    async def write(self, *changes: Change) -> float:
        starts = any("execution_started" in b for c in changes if isinstance(c, Append) for b in c.bodies)
        if starts and self.before is not None:
            self.before()
        self._reached()
        now_s = await super().write(*changes)
        if starts and self.stops:
            self.stops = False
            await order_stop(AgentRunner(scripted(["Done."]), FunctionTools(), store=self).ledger, AGENT.name, "s")
        if starts and self.behind is not None:
            self.behind()
        return now_s

    async def get(self, kind: str, key: str) -> Document | None:
        self._reached()
        return await super().get(kind, key)


class Till:
    """A payment whose process dies as often as `deaths` says, once it is paid."""

    def __init__(self, effect: Effect, deaths: int) -> None:
        self.store, self.paid, self.effect, self._deaths = Announced(), list[str](), effect, deaths
        self.scope = anyio.CancelScope()

    def runner(self, calls: int = 1, **given: object) -> AgentRunner:
        @tool(effect=self.effect)
        async def pay(to: str) -> str:
            self.paid.append(to)
            if len(self.paid) <= self._deaths:
                self.scope.cancel()
                await anyio.lowlevel.checkpoint()
            return "paid"

        policy = UncertaintyPolicy(enable_p_true=False, always_ask_tool_names=["pay"])
        turn = answer(
            'I pay. {"confidence": 0.99}',
            tool_calls=[ToolCall(id=f"c{n}", name="pay", arguments={"to": f"A{n}"}) for n in range(calls)],
        )
        return AgentRunner(
            scripted([turn, "Done."]),
            FunctionTools(pay),
            uncertainty_monitor=UncertaintyMonitor(policy=policy),
            store=self.store,
            checkpoints=True,
            lease_s=0.01,
            **given,  # type: ignore[arg-type]  # settings of a runner
        )

    async def resumed(self, kind: str = "", one: AgentRunner | None = None) -> None:
        """Decide all that waits, and let a worker (`one`, or a new one) go on until the run ends, waits or it dies."""
        with anyio.CancelScope() as self.scope, contextlib.suppress(GrampusError):
            one = one or self.runner()
            state, _ = await one.ledger.known(AGENT.name, "s")
            await anyio.sleep(state.leased_for_s())
            response: HumanResponse = "Do something else." if kind == "guidance" else None
            if kind in list(ApprovalKind):
                response = [request.decide(kind, principal="ann", message="no") for request in state.pending()]
            await one.resume(AGENT.name, "s", response)
        self.store.down = False


def _falls(store: Announced) -> None:
    store.down = True


after = st.sampled_from(["stopped", "down before", "down behind", "reject", "guidance", "stopped while it waits"])


@given(then=st.lists(after, min_size=1, max_size=3))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_becomes_of_a_call_that_may_have_run_it_is_told_and_a_rollback_lists_it(then: list[str]) -> None:
    async def run() -> None:
        till = Till(Effect.IRREVERSIBLE, deaths=1)
        await till.runner().run(AGENT, "pay", session_id="s")
        await till.resumed("approve")
        await till.resumed()
        assert till.paid == ["A0"]
        for one in then:
            till.store.before = (lambda: _falls(till.store)) if one == "down before" else None
            till.store.behind = (lambda: _falls(till.store)) if one == "down behind" else None
            till.store.stops = one == "stopped"
            if one == "stopped while it waits":
                await order_stop(till.runner().ledger, AGENT.name, "s")
            await till.resumed(one if one in ("reject", "guidance") else "approve")
        till.store.before = till.store.behind = None
        state, _ = await till.runner().ledger.known(AGENT.name, "s")
        told = [m.content or "" for m in state.messages if m.role is Role.TOOL and not m.metadata.get("placeholder")]
        assert all("may have taken effect" in text or text == "paid" for text in told)
        await anyio.sleep(state.leased_for_s())
        result = await rollback(till.runner(), AGENT.name, "s", 0)
        executed = result.metadata["rollback"]["executed"]
        assert [call["call"]["arguments"] for call in executed] == [{"to": "A0"}]

    anyio.run(run)


@pytest.mark.parametrize(("began", "now"), list(itertools.product(Effect, Effect)))
async def test_a_call_runs_again_unasked_only_if_it_read_when_it_started_and_in_the_next_release(
    began: Effect, now: Effect
) -> None:
    till = Till(began, deaths=1)
    await till.runner().run(AGENT, "pay", session_id="s")
    await till.resumed("approve")
    assert till.paid == ["A0"]
    till.effect = now
    await till.resumed()
    assert (len(till.paid) == 2) == (began is now is Effect.READ)
    state, _ = await till.runner().ledger.known(AGENT.name, "s")
    assert [request.rule for request in state.pending()] == ["unknown_outcome"] * (2 - len(till.paid))


@pytest.mark.parametrize("effect", list(Effect))
async def test_so_it_does_in_the_process_in_which_it_was_cancelled(effect: Effect) -> None:
    till = Till(effect, deaths=1)
    one = till.runner()
    await one.run(AGENT, "pay", session_id="s")
    await till.resumed("approve", one)
    await till.resumed(one=one)
    assert till.paid == ["A0"] * (2 if effect is Effect.READ else 1)


@given(effect=st.sampled_from([one for one in Effect if one is not Effect.READ]), behind=st.booleans())
@settings(max_examples=examples(16), deadline=None)
def test_with_the_store_down_what_a_human_allowed_runs_once_also_when_the_process_dies(
    effect: Effect, behind: bool
) -> None:
    async def run() -> None:
        till = Till(effect, deaths=1)
        await till.runner().run(AGENT, "pay", session_id="s")
        setattr(till.store, "behind" if behind else "before", lambda: _falls(till.store))
        await till.resumed("approve")
        till.store.before = till.store.behind = None
        await till.resumed("respond")
        assert till.paid in ([], ["A0"])

    anyio.run(run)


@given(calls=st.integers(1, 3), at=st.integers(0, 2))
@settings(max_examples=examples(9), deadline=None)
def test_a_worker_that_dies_in_a_precondition_leaves_approved_calls_approved(calls: int, at: int) -> None:
    async def run() -> None:
        till, scope = Till(Effect.IRREVERSIBLE, deaths=0), anyio.CancelScope()

        async def dies(call: ToolCall) -> None:
            if call.id == f"c{at % calls}":
                scope.cancel()
                await anyio.lowlevel.checkpoint()

        one = till.runner(calls, precondition=dies)
        requests = (await one.run(AGENT, "pay", session_id="s")).pending
        with scope:
            await one.resume(AGENT.name, "s", [request.decide("approve", principal="ann") for request in requests])
        await till.runner(calls).resume(AGENT.name, "s")
        assert sorted(till.paid) == [f"A{n}" for n in range(calls)]

    anyio.run(run)


ends = st.sampled_from(["stopped", "down before", "down behind", "guidance", "stopped while it waits", "given up"])


@given(
    then=st.lists(ends, min_size=1, max_size=3),
    effect=st.sampled_from([Effect.IRREVERSIBLE, Effect.REVERSIBLE]),
    deaths=st.integers(0, 1),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_becomes_of_a_sub_agent_that_paid_it_is_told_and_a_rollback_lists_it(
    then: list[str], effect: Effect, deaths: int
) -> None:
    async def run() -> None:
        till, lead = Till(effect, deaths=deaths), AgentDefinition(name="lead", model="m")
        twice = [answer("I pay.", tool_calls=[ToolCall(id=to, name="pay", arguments={"to": to})]) for to in ("A", "B")]

        def runner() -> AgentRunner:
            child = till.runner()
            child.model_client = scripted([*twice, "Done."])
            turn = answer("I delegate.", tool_calls=[ToolCall(id="d", name="payer", arguments={"task": "pay"})])
            return AgentRunner(
                scripted([turn, "Done."]),
                FunctionTools(),
                store=till.store,
                sub_agents=[SubAgent(child, AgentDefinition(name="payer", model="m"))],
                checkpoints=True,
                lease_s=0.01,
            )

        async def resumed(response: HumanResponse) -> None:
            with anyio.CancelScope() as till.scope, contextlib.suppress(GrampusError):
                state, _ = await runner().ledger.known(lead.name, "s")
                await anyio.sleep(state.leased_for_s())
                await runner().resume(lead.name, "s", response)
            till.store.down = False

        (request,) = (await runner().run(lead, "pay", session_id="s")).pending
        await resumed(request.decide("approve", principal="ann"))
        assert till.paid == ["A"]
        for one in then:
            till.store.before = (lambda: _falls(till.store)) if one == "down before" else None
            till.store.behind = (lambda: _falls(till.store)) if one == "down behind" else None
            if one.startswith("stopped"):
                await order_stop(runner().ledger, lead.name, "s")
            if one == "given up":
                letter = Job(agent_id=lead.name, session_id="s").model_dump_json()
                with contextlib.suppress(SessionError, SessionConflictError):
                    await till.store.put(DEAD, f"{lead.name}/s", letter, expected=0)
                    await drop(runner().ledger, lead.name, "s")
            await resumed("Do something else." if one == "guidance" else None)
        till.store.before = till.store.behind = None
        state, _ = await runner().ledger.known(lead.name, "s")
        told = [m.content or "" for m in state.messages if m.role is Role.TOOL and not m.metadata.get("placeholder")]
        assert all("may have taken effect" in text or text == "Done." for text in told)
        await anyio.sleep(state.leased_for_s())
        result = await rollback(runner(), lead.name, "s", 0)
        executed = [call["call"]["arguments"] for call in result.metadata["rollback"]["executed"]]
        assert executed[0] == {"to": "A"}  # what it did, in the place of the call that began it

    anyio.run(run)


class Hanging(Announced):
    """One worker's handle on a store: behind the announcement of a call it hangs until `on`, and fails then."""

    def __init__(self, shared: Announced, on: anyio.Event) -> None:
        super().__init__()
        self.__dict__ |= {name: shared.__dict__[name] for name in ("_documents", "_by_label", "_logs")}
        self.behind, self.hangs, self._on = self._hang, False, on

    def _hang(self) -> None:
        self.hangs = True

    async def get(self, kind: str, key: str) -> Document | None:
        if kind == "stop" and self.hangs:
            await self._on.wait()
            raise StoreError("too late")
        return await super().get(kind, key)


@pytest.mark.anyio
async def test_a_worker_that_lost_its_session_does_not_say_of_a_call_that_it_did_not_run() -> None:
    """Another one has asked about that call meanwhile, and ran it."""
    till, on = Till(Effect.IRREVERSIBLE, deaths=0), anyio.Event()
    (request,) = (await till.runner().run(AGENT, "pay", session_id="s")).pending
    first, second = till.runner(), till.runner()
    first.ledger.store = store = Hanging(till.store, on)
    async with anyio.create_task_group() as group:

        async def hangs() -> None:
            with contextlib.suppress(GrampusError):
                await first.resume(AGENT.name, "s", request.decide("approve", principal="ann"))

        group.start_soon(hangs)
        asked: list[ApprovalRequest] = []
        while not (store.hangs and asked):
            await anyio.sleep(0.01)
            with contextlib.suppress(GrampusError):
                asked = (await second.resume(AGENT.name, "s")).pending if store.hangs else []
        await second.resume(AGENT.name, "s", asked[0].decide("approve", principal="ann"))
        on.set()
    assert till.paid == ["A0"]
    result = await rollback(second, AGENT.name, "s", 0)
    assert len(result.metadata["rollback"]["executed"]) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("judged", "now"), list(itertools.product([Effect.READ, Effect.REVERSIBLE, Effect.UNKNOWN], Effect))
)
async def test_a_call_that_did_not_start_is_asked_about_where_the_next_release_calls_it_graver_than_it_was_judged(
    judged: Effect, now: Effect
) -> None:
    """Its worker died while it looked at the precondition of another call, which a grant had let through."""
    store, done, scope, dies = MemoryStore(), list[str](), anyio.CancelScope(), True

    async def precondition(call: ToolCall) -> None:
        if dies:
            scope.cancel()
            await anyio.lowlevel.checkpoint()

    def runner(effect: Effect) -> AgentRunner:
        @tool(effect=effect)
        def note(text: str) -> None:
            done.append("note")

        @tool(effect=Effect.IRREVERSIBLE)
        def pay(to: str) -> None:
            done.append("pay")

        calls = [ToolCall(id=name, name=name, arguments={"text" if name == "note" else "to": "A"}) for name in TOOLS]
        return AgentRunner(
            scripted([answer('I do. {"confidence": 0.7}', tool_calls=calls), "Done."]),
            FunctionTools(note, pay),
            uncertainty_monitor=UncertaintyMonitor(policy=UncertaintyPolicy(enable_p_true=False)),
            store=store,
            precondition=precondition,
            lease_s=0.01,
        )

    await runner(judged).ledger.grant(Grant(tool="pay", principal="ann", expires_s=time.time() + 3600))
    with scope:
        await runner(judged).run(AGENT, "go", session_id="s")
    assert not done
    dies = False
    state, _ = await runner(now).ledger.known(AGENT.name, "s")
    await anyio.sleep(state.leased_for_s())
    await runner(now).resume(AGENT.name, "s")
    harmless = now in (Effect.READ, Effect.REVERSIBLE, judged)
    assert sorted(done) == (["note", "pay"] if harmless else ["pay"])


class _Unannounced(MemoryStore):
    """Takes no write that announces a start, while it is `full`, or says nothing of stop orders behind it."""

    full, silent, announced = True, False, False

    async def write(self, *changes: Change) -> float:
        if self.full and any("execution_started" in b for c in changes if isinstance(c, Append) for b in c.bodies):
            self.announced = self.silent
            if not self.silent:
                raise StoreError("full")
        return await super().write(*changes)

    async def get(self, kind: str, key: str) -> Document | None:
        if self.announced and kind == "stop":
            raise StoreError("silent")
        return await super().get(kind, key)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("by", ["a human", "a grant", "a sub-agent's approval"])
async def test_what_was_allowed_and_could_not_be_announced_raises_and_runs_once_with_what_is_beside_it(
    by: str, silent: bool
) -> None:
    """Nothing of it is refused for good, and nobody is asked anew."""
    store, below, ran = _Unannounced(), MemoryStore(), list[str]()

    def process(name: str, effect: str = "irreversible") -> AgentRunner:
        @tool(effect=effect)
        def pay() -> str:
            ran.append("pay")
            return "paid"

        @tool(effect="reversible")
        def note() -> str:
            ran.append("note")
            return "noted"

        acts = ToolCall(id="p", name="pay", arguments={})
        if name == "clerk" and by == "a sub-agent's approval":
            acts = ToolCall(id="p", name="payer", arguments={"task": "Pay."})
        model = scripted([answer("I pay.", tool_calls=[ToolCall(id="n", name="note", arguments={}), acts]), "Done."])
        agents = [SubAgent(process("payer"), AgentDefinition(name="payer", model="m"))] if name == "clerk" else []
        own = store if name == "clerk" else below
        given: dict[str, Any] = {"store": own, "sub_agents": agents, "lease_s": 0.05}
        return AgentRunner(model, FunctionTools(pay, note), uncertainty_monitor=UncertaintyMonitor(), **given)

    one, agent, store.silent = process("clerk"), AgentDefinition(name="clerk", model="m"), silent
    if by == "a grant":
        await one.ledger.grant(Grant(tool="pay", principal="ann", expires_s=time.time() + 600.0))
        with pytest.raises(StoreError):
            await one.run(agent, "Pay.", session_id="s")
        assert ran == []
        await anyio.sleep(0.06)
        if silent:  # it is stored that the grant cleared it, in whatever a later release takes it for
            store.silent = store.announced = False
            with pytest.raises(StoreError):
                await process("clerk", "read").resume("clerk", "s")
    else:
        store.full = False
        (request,) = (await one.run(agent, "Pay.", session_id="s")).pending
        store.full = True
        with pytest.raises(StoreError):
            await one.resume("clerk", "s", request.decide("approve", principal="ann"))
    store.full = store.announced = False
    await anyio.sleep(0.06)
    result = await one.resume("clerk", "s")
    assert (result.pending, sorted(set(ran)), ran.count("pay")) == ([], ["note", "pay"], 1)
