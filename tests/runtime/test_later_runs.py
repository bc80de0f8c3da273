"""A later run in a session that has ended: what a human rejected in an earlier one does not run unasked."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    AgentStatus,
    FunctionTools,
    StoreError,
    SubAgent,
    ToolCall,
    UncertaintyMonitor,
    tool,
)
from grampus_uq.gate.call import REJECTED_IN_THREAD
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.gate.permits import Permit
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.runtime import MemoryStore
from grampus_uq.runtime.cards import card
from grampus_uq.runtime.dead_letters import drop
from grampus_uq.runtime.ledger import session_key
from grampus_uq.runtime.rollback import rollback
from grampus_uq.runtime.run_state import REJECTED_BEFORE, AgentState
from grampus_uq.runtime.store import Change, Document, Put
from grampus_uq.runtime.stored_permits import grant_permit, stored_permits
from grampus_uq.runtime.worker_jobs import Job, set_aside, take
from grampus_uq.testing import ScriptedModel, answer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]
CLERK, PAYER = AgentDefinition(name="clerk", model="m"), AgentDefinition(name="payer", model="m")


class Clerk:
    """An agent that pays, or has its sub-agent pay: in each run the model proposes what it is asked for."""

    def __init__(
        self, *, delegates: bool = False, advisory: bool = False, delegations: int = 1, lease_s: float = 30.0
    ) -> None:
        self.store, self.paid, self.sure, self.unsure, self.lease_s = MemoryStore(), list[float](), False, 0.65, lease_s
        self.delegates, self.advisory, self.delegations = delegates, advisory, delegations

    def process(self, name: str = "clerk") -> AgentRunner:
        @tool(effect="irreversible")
        def pay(to: str, amount: float) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        def reply(messages: Any, options: Any) -> Any:
            if "Reply with" in messages[-1].content:
                return f'{{"p_true": {0.99 if self.sure else self.unsure}}}'
            done = sum(message.role == "tool" for message in messages)
            if done >= (self.delegations if name == "clerk" else 1):
                return "Done."
            task = next(message.content for message in messages if message.role == "user")
            if self.delegates and name == "clerk":
                return answer("Do it.", tool_calls=[ToolCall(id=f"d{done}", name="payer", arguments={"task": task})])
            arguments = {"amount": float(task) if "." in task else int(task), "to": "bob"}
            return answer("I pay.", tool_calls=[ToolCall(id="1", name="pay", arguments=arguments)])

        sub_agents = [SubAgent(self.process("payer"), PAYER)] if name == "clerk" else []
        given: dict[str, Any] = {"store": self.store, "sub_agents": sub_agents}
        given |= {"uncertainty_monitor": UncertaintyMonitor(advisory=self.advisory), "checkpoints": True}
        given |= {"lease_s": self.lease_s}
        return AgentRunner(ScriptedModel(reply), FunctionTools(pay), **given)

    async def run(self, task: str, *, sure: bool = True, session: str = "s") -> list[Any]:
        self.sure = sure
        return list((await self.process().run(CLERK, task, session_id=session)).pending)

    async def decide(self, request: Any, kind: Any) -> list[Any]:
        more = {"arguments": {"to": "bob", "amount": 7.0}} if kind == "edit" else {"message": "So it is."}
        decision = request.decide(kind, principal="ann", **more)
        return list((await self.process().resume("clerk", "s", decision)).pending)


@pytest.mark.parametrize("delegates", [False, True])
@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_a_call_that_was_rejected_or_changed_waits_in_every_later_run_of_the_session_and_no_other_does(
    delegates: bool, kind: str
) -> None:
    clerk = Clerk(delegates=delegates)
    (request,) = await clerk.run("5", sure=False)
    assert await clerk.decide(request, kind) == []
    ran = [7.0] if kind == "edit" else []
    assert await clerk.run("6") == []
    for task in ("5", "5.0"):
        (request,) = await clerk.run(task)
        assert (request.rule, clerk.paid) == ("rejected_in_thread", [*ran, 6])
        assert await clerk.decide(request, "respond") == []
    (request,) = await clerk.run("5")
    assert await clerk.decide(request, "approve") == []
    assert clerk.paid == [*ran, 6, 5]
    assert await clerk.run("5", session="another") == []


async def test_a_sub_agents_rejection_is_heard_also_where_the_store_fails_as_its_parent_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clerk = Clerk(delegates=True, delegations=2)
    (request,) = await clerk.run("5", sure=False)
    hears, failed = SubAgent.hear_rejections, list[str]()

    async def fails_once(one: SubAgent, state: AgentState, child_id: str, *, here: bool = True) -> None:
        with monkeypatch.context() as patch:
            if not failed:
                failed.append(child_id)
                patch.setattr(clerk.store, "get", _down)
            await hears(one, state, child_id, here=here)

    monkeypatch.setattr(SubAgent, "hear_rejections", fails_once)
    clerk.sure = True
    assert await clerk.decide(request, "reject") == []
    assert (len(failed), clerk.paid) == (1, [])


async def test_a_sub_agent_that_ends_as_the_store_fails_has_rejected_nothing_and_its_parent_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(one: SubAgent, state: AgentState, child_id: str, *, here: bool = True) -> None:
        raise StoreError("down")

    monkeypatch.setattr(SubAgent, "hear_rejections", fails)
    clerk = Clerk(delegates=True)
    assert (await clerk.run("5"), clerk.paid) == ([], [5])


async def _down(kind: str, key: str) -> Any:
    raise StoreError("down")


async def test_who_decides_on_a_rejected_call_of_a_step_that_pauses_by_itself_reads_both_reasons() -> None:
    clerk = Clerk()
    (request,) = await clerk.run("5", sure=False)
    await clerk.decide(request, "reject")
    clerk.unsure = 0.3
    (other,) = await clerk.run("6", sure=False, session="another")
    (request,) = await clerk.run("5", sure=False)
    assert (request.rule, request.level) == ("rejected_in_thread", other.level)
    assert request.reason == f"{other.reason}; {REJECTED_IN_THREAD.reason}"


async def test_where_the_monitor_only_advises_an_earlier_rejection_holds_nothing() -> None:
    clerk = Clerk()
    (request,) = await clerk.run("5", sure=False)
    await clerk.decide(request, "reject")
    clerk.advisory = True
    assert await clerk.run("5") == []
    assert clerk.paid == [5]


@pytest.mark.parametrize("damaged", [None, 5, "text", {"a": 1}, [5, None, "x"]])
def test_a_damaged_list_of_rejections_is_read_as_far_as_it_goes_and_it_stays_bounded(damaged: Any) -> None:
    old = AgentState(agent_id="a", session_id="s", metadata={REJECTED_BEFORE: damaged}, rejected=["y"])
    kept = ["x"] if isinstance(damaged, list) else []
    assert old.rejected_before() == kept
    new = AgentState(agent_id="a", session_id="s").replaces(old)
    assert new.rejected_before() == [*kept, "y"]
    new.rejected = [str(number) for number in range(300)]
    assert len(AgentState(agent_id="a", session_id="s").replaces(new).rejected_before()) == 256


@pytest.mark.parametrize("ended", ["stopped", "rolled back"])
@pytest.mark.parametrize("delegates", [False, True])
@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_a_rejection_that_nobody_took_up_before_a_stop_or_a_rollback_holds_as_well(
    ended: str, delegates: bool, kind: str
) -> None:
    """Also a sub-agent's: a stored answer of a human counts from the moment it was given."""
    clerk = Clerk(delegates=delegates)
    earned: dict[str, Any] = {"thresholds": (0.3,), "epsilon": 0.5, "delta": 0.4, "audit_rate": 0.1}
    await grant_permit(clerk.store, Permit(tool="pay", principal="ann", expires_s=time.time() + 600.0, **earned))
    (request,) = await clerk.run("5", sure=False)
    await says(clerk, request, kind)
    clerk.sure, runner = True, clerk.process()
    if ended == "stopped":
        await runner.stop("clerk", "s")
        assert (await runner.resume("clerk", "s")).metadata["stop_reason"] == "cancelled"
        (again,) = await clerk.run("5")
        assert again.rule == "rejected_in_thread"
    else:
        result = await rollback(runner, "clerk", "s", 0)
        assert [one.rule for one in result.pending] == (["rejected_in_thread"] if kind == "edit" else [])
    (permit,) = await stored_permits(clerk.store)
    assert (clerk.paid, permit.state.wrong) == ([], 1)  # whoever decided, permits learn of it


def paying_and_looking(sure: list[float], paid: list[float], looking: anyio.Event) -> FunctionTools:
    """A tool that pays, and one that looks, for as long as a run may take where the model is unsure."""

    @tool(effect="irreversible")
    def pay(amount: float) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        looking.set()
        await anyio.sleep(60.0 if sure[0] < 0.9 else 0.0)
        return "seen"

    return FunctionTools(pay, look)


@pytest.mark.parametrize("fails", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_a_run_that_is_stopped_while_another_call_runs_takes_up_first_what_was_decided_on_those_that_wait(
    kind: Any, fails: int
) -> None:
    """Or its session's next run does, where the decisions could not be read as often as they are asked for."""

    class Fails(MemoryStore):
        left = 0

        async def children(self, kind: str, parents: Sequence[str]) -> list[Document]:
            self.left -= 1
            if self.left >= 0:
                raise StoreError("down")
            return await super().children(kind, parents)

    store, sure, paid, looking = Fails(), [0.65], list[float](), anyio.Event()

    def process() -> AgentRunner:
        def reply(messages: Any, options: Any) -> Any:
            if "Reply with" in messages[-1].content:
                return f'{{"p_true": {sure[0]}}}'
            calls = [ToolCall(id="1", name="pay", arguments={"amount": 5}), ToolCall(id="2", name="look", arguments={})]
            return "Done." if messages[-1].role == "tool" else answer("I pay.", tool_calls=calls)

        monitor = UncertaintyMonitor()
        tools = paying_and_looking(sure, paid, looking)
        return AgentRunner(ScriptedModel(reply), tools, store=store, uncertainty_monitor=monitor)

    runner = process()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: runner.run(CLERK, "Pay.", session_id="s"))
        await looking.wait()
        (request,) = (await runner.ledger.known("clerk", "s"))[0].pending()
        more = {"arguments": {"amount": 7}} if kind == "edit" else {}
        decision = request.decide(kind, principal="ann", **more)
        await runner.ledger.decide(decision, shown=card(request), wake=False)
        store.left = fails
        await runner.stop("clerk", "s")
    store.left, sure[0] = 0, 0.99
    result = await process().run(CLERK, "Pay.", session_id="s")
    assert ([one.rule for one in result.pending], paid) == (["rejected_in_thread"], [])


@pytest.mark.parametrize("on", ["clerk", "payer", "helper"])
async def test_where_the_store_of_one_sub_agent_is_down_a_stopped_run_still_takes_up_what_was_decided_elsewhere(
    on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its own calls, and on those of a sub-agent whose store answers; on the other's its session's next run does."""
    store, below, sure, paid, looking = MemoryStore(), MemoryStore(), [0.65], list[float](), anyio.Event()

    def process(store: MemoryStore, *calls: ToolCall, **given: Any) -> AgentRunner:
        def reply(messages: Any, options: Any) -> Any:
            if "Reply with" in messages[-1].content:
                return f'{{"p_true": {sure[0]}}}'
            return "Done." if messages[-1].role == "tool" else answer("I act.", tool_calls=calls)

        given |= {"store": store, "uncertainty_monitor": UncertaintyMonitor()}
        return AgentRunner(ScriptedModel(reply), paying_and_looking(sure, paid, looking), **given)

    pays = [ToolCall(id=f"{amount}", name="pay", arguments={"amount": amount}) for amount in (5, 6, 7)]
    tasks = [ToolCall(id=name, name=name, arguments={"task": "Pay."}) for name in ("payer", "helper")]
    helper = process(MemoryStore(), pays[2])
    payer = process(below, pays[1])
    agents = [SubAgent(payer, PAYER), SubAgent(helper, AgentDefinition(name="helper", model="m"))]
    clerk = process(store, pays[0], *tasks, ToolCall(id="l", name="look", arguments={}), sub_agents=agents)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: clerk.run(CLERK, "Pay.", session_id="s"))
        await looking.wait()
        while len(waiting := (await clerk.ledger.known("clerk", "s"))[0].pending()) < 3:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        (request,) = [one.model_copy(update={"child_session": None}) for one in waiting if one.agent_id == on]
        decides, told = {"clerk": (clerk, pays[0]), "payer": (payer, pays[1]), "helper": (helper, pays[2])}[on]
        await decides.ledger.decide(request.decide("reject", principal="ann"), shown=card(request), wake=False)
        monkeypatch.setattr(below, "get", _down)
        await clerk.stop("clerk", "s")
    sure[0], later = 0.99, process(store, told, sub_agents=agents)
    with pytest.raises(StoreError):
        await later.run(CLERK, "Pay.", session_id="s")
    monkeypatch.undo()
    result = await later.resume("clerk", "s")
    assert ([one.rule for one in result.pending], paid) == (["rejected_in_thread"], [])


async def gives_up(clerk: Clerk) -> None:
    """A worker sets the session aside, and somebody gives it up."""
    await clerk.store.write(Job(agent_id="clerk", session_id="s", sure=True).now(0.0))
    (taken, *_) = await take(clerk.store, ["clerk"], 9, 30.0)
    await set_aside(clerk.store, taken, session_key("clerk", "s"), taken.job)
    await drop(clerk.process().ledger, "clerk", "s")


async def says(clerk: Clerk, request: ApprovalRequest, kind: Any) -> None:
    """Store a decision on a request, of a sub-agent's too, that nobody takes up."""
    request = request.model_copy(update={"child_session": None})
    more = {"arguments": {"to": "bob", "amount": 7.0}} if kind == "edit" else {}
    decision = request.decide(kind, principal="ann", **more)
    await clerk.process().ledger.decide(decision, shown=card(request), wake=False)


@pytest.mark.parametrize("delegates", [False, True])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_a_rejection_that_nobody_took_up_before_the_session_was_given_up_holds_as_well(
    delegates: bool, later: bool, kind: str
) -> None:
    """Workers set it aside before they read the answer: they refuse a session whose tools changed. It is a sub-agent's,
    or a sub-agent would make the call `later`; other calls run, in a run that no human has touched."""
    clerk = Clerk(delegates=delegates)
    (request,) = await clerk.run("5", sure=False)
    await says(clerk, request, kind)
    await gives_up(clerk)
    clerk.delegates = later
    for amount in (6, 8):
        assert await clerk.run(str(amount)) == []
        assert not (await clerk.process().ledger.known("clerk", "s"))[0].touched
    for _ in range(2):
        assert [one.rule for one in await clerk.run("5")] == ["rejected_in_thread"]
        await clerk.process().stop("clerk", "s")
        await clerk.process().resume("clerk", "s")
    assert clerk.paid == [6, 8]


@pytest.mark.parametrize("ended", ["given up", "rolled back"])
async def test_a_sub_agents_rejection_holds_where_its_parent_died_before_it_stored_that_it_waits(ended: str) -> None:
    class Dies(MemoryStore):
        begun = revived = False

        async def write(self, *changes: Change) -> float:
            keys = {change.key for change in changes if isinstance(change, Put) and change.kind == "session"}
            if self.begun and not self.revived and "clerk/s" in keys:
                raise StoreError("killed")
            self.begun = self.begun or any(key.startswith("payer/") for key in keys)
            return await super().write(*changes)

    clerk = Clerk(delegates=True, lease_s=0.05)
    clerk.store = store = Dies()
    with pytest.raises(StoreError):
        await clerk.run("5", sure=False)
    store.revived, clerk.sure = True, True
    (waiting,) = await clerk.process("payer").ledger.pending("payer")
    await says(clerk, waiting.requests[0], "reject")
    await anyio.sleep(0.06)
    if ended == "given up":
        await gives_up(clerk)
        assert [one.rule for one in await clerk.run("5")] == ["rejected_in_thread"]
    else:
        assert (await rollback(clerk.process(), "clerk", "s", 0)).status is AgentStatus.COMPLETED
    assert clerk.paid == []


@pytest.mark.parametrize("delegates", [False, True])
async def test_a_call_that_a_human_changed_before_another_one_gave_guidance_waits_from_then_on(delegates: bool) -> None:
    clerk = Clerk(delegates=delegates)
    (request,) = await clerk.run("5", sure=False)
    await says(clerk, request, "edit")
    assert (await clerk.process().resume("clerk", "s", "Do otherwise.")).status is AgentStatus.COMPLETED
    assert [one.rule for one in await clerk.run("5")] == ["rejected_in_thread"]
    assert clerk.paid == []


@pytest.mark.parametrize("delegates", [False, True])
async def test_a_rejection_that_arrives_at_any_moment_before_the_end_of_a_stopped_run_is_stored_holds(
    delegates: bool,
) -> None:
    class Meanwhile(MemoryStore):
        left = 0
        request: ApprovalRequest

        def decide(self) -> None:
            self.left -= 1
            if self.left == 0:
                decision = json.dumps(
                    {"decision": self.request.decide("reject", principal="ann").model_dump(mode="json")}
                )
                self._make(Put(kind="decision", key=f"{self.request.id}/x", body=decision, expected=0), self._now())

        def _read(self, found: Document) -> Document:
            self.decide()
            return super()._read(found)

        async def write(self, *changes: Change) -> float:
            self.decide()
            return await super().write(*changes)

    for at in range(1, 60):
        clerk = Clerk(delegates=delegates)
        clerk.store = store = Meanwhile()
        (request,) = await clerk.run("5", sure=False)
        store.request = request.model_copy(update={"child_session": None})
        await clerk.process().stop("clerk", "s")
        store.left = at
        await clerk.process().resume("clerk", "s")
        if store.left > 0:
            break
        assert ([one.rule for one in await clerk.run("5")], clerk.paid) == (["rejected_in_thread"], []), at
    assert 5 < at < 59


@pytest.mark.parametrize("effect", ["read", "irreversible"])
async def test_no_sub_agent_begins_while_nobody_can_read_what_a_human_answered_before(
    effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its beginning is declared as: it may make the very call."""
    clerk = Clerk()
    (request,) = await clerk.run("5", sure=False)
    await says(clerk, request, "reject")
    await gives_up(clerk)
    clerk.delegates, clerk.sure = True, True
    runner = clerk.process()
    runner.gate.effects = ToolEffects({"payer": effect})
    with monkeypatch.context() as patch:
        patch.setattr(clerk.store, "children", _down)
        with pytest.raises(StoreError):
            await runner.run(CLERK, "5", session_id="s")
    assert clerk.paid == []
    result = await runner.resume("clerk", "s")
    assert ([one.rule for one in result.pending], clerk.paid) == (["rejected_in_thread"], [])
