"""Sessions of one run, beside one another: what a human rejected or changed in one runs unasked in no other."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    FunctionTools,
    Grant,
    StoreError,
    SubAgent,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
    tool,
)
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.records.vocabulary import ENDED
from grampus_uq.runtime import MemoryStore
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.cards import card
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.run_state import STATE_VERSION
from grampus_uq.runtime.store import Change, Document, Put
from grampus_uq.testing import ScriptedModel, answer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]
CLERK, PAYER = AgentDefinition(name="clerk", model="m"), AgentDefinition(name="payer", model="m")
PAYS = ToolCall(id="p", name="pay", arguments={"amount": 5})
MORE = ToolCall(id="m", name="pay", arguments={"amount": 6})
LOOKS = ToolCall(id="l", name="look", arguments={})


def works(number: int, *calls: str, name: str = "payer") -> ToolCall:
    return ToolCall(id=f"d{number}", name=name, arguments={"task": " ".join(calls)})


class House:
    """A clerk that makes these calls in one turn, and its sub-agents, each of which makes those of its task."""

    def __init__(self, *calls: ToolCall, store: MemoryStore | None = None) -> None:
        self.calls, self.store, self.paid, self.sure = calls, store or MemoryStore(), list[float](), False
        self.looking, self.looks_on = anyio.Event(), anyio.Event()
        self.advisory = self.alone = False
        self.turns, self.noted = 1, 0

    def process(self, name: str = "clerk") -> AgentRunner:
        @tool(effect="irreversible")
        def pay(amount: float) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        @tool(effect="read")
        async def look() -> str:
            """Look."""
            self.looking.set()
            await self.looks_on.wait()
            return "seen"

        @tool(effect="reversible")
        def note() -> str:
            """Note."""
            self.noted += 1
            return "noted"

        def reply(messages: Any, options: Any) -> Any:
            if "Reply with" in messages[-1].content:
                return f'{{"p_true": {0.99 if self.sure else 0.65}}}'
            turn = sum(message.role == "assistant" for message in messages)
            task = next(message.content for message in messages if message.role == "user").split()
            if name == "clerk":
                return answer("I act.", tool_calls=self.calls) if turn < self.turns else "Done."
            named = {"pay": PAYS, "look": LOOKS, "more": MORE, "note": ToolCall(id="n", name="note", arguments={})}
            return answer("I act.", tool_calls=[named[task[turn]]]) if turn < len(task) else "Done."

        names = ("payer", "helper") if name == "clerk" and not self.alone else ()
        sub_agents = [SubAgent(self.process("payer"), PAYER, name=one) for one in names]
        given: dict[str, Any] = {"store": self.store, "sub_agents": sub_agents, "lease_s": 0.2}
        policy = UncertaintyPolicy(always_ask_tool_names=["helper"])
        monitor = UncertaintyMonitor(policy=policy, advisory=self.advisory)
        return AgentRunner(ScriptedModel(reply), FunctionTools(pay, look, note), uncertainty_monitor=monitor, **given)

    async def says(self, request: ApprovalRequest, kind: Any) -> None:
        """Store a decision on a request, of a sub-agent's too, that nobody takes up."""
        request = request.model_copy(update={"child_session": None})
        more = {"arguments": {"amount": 7.0}} if kind == "edit" else {}
        decision = request.decide(kind, principal="ann", **more)
        await self.process().ledger.decide(decision, shown=card(request), wake=False)

    async def waiting(self) -> ApprovalRequest:
        """The clerk's first pending request, also of a sub-agent, as soon as it is stored."""
        with anyio.fail_after(10.0):
            while not (waits := (await self.process().ledger.known("clerk", "s"))[0].pending()):  # noqa: ASYNC110
                await anyio.sleep(0.005)
        return waits[0]


class Dies(MemoryStore):
    """Fails from the first write of a second sub-agent on, once the first one waits, until it is revived."""

    revived = dead = False

    async def write(self, *changes: Change) -> float:
        keys = {one.key for one in changes if isinstance(one, Put) and one.kind == "session"}
        if not self.revived and any(key.startswith("payer/") and key.endswith("d1") for key in keys):
            with anyio.fail_after(10.0):
                while not await self.scan("session", label="waiting_for_human", prefix="payer/"):  # noqa: ASYNC110
                    await anyio.sleep(0.005)
            self.dead = True
        if self.dead and not self.revived:
            raise StoreError("killed")
        return await super().write(*changes)


@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_a_sub_agent_that_another_process_goes_on_with_knows_what_was_answered_in_the_one_beside_it(
    kind: str,
) -> None:
    store = Dies()
    house = House(works(0, "pay"), works(1, "pay"), store=store)
    with pytest.raises(StoreError):
        await house.process().run(CLERK, "Go.", session_id="s")
    store.revived, house.sure = True, True
    (waits,) = await house.process().ledger.pending("payer")
    await house.says(waits.requests[0], kind)
    await anyio.sleep(0.2)
    result = await house.process().resume("clerk", "s")
    assert [one.rule for one in result.pending] == (["rejected_in_thread"] if kind == "edit" else [])
    assert house.paid == ([7.0] if kind == "edit" else [])


@pytest.mark.parametrize("asks", ["clerk", "payer"])
@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_what_is_answered_while_a_sub_agent_works_is_heard_before_its_next_call(asks: str, kind: str) -> None:
    """Against a call of its parent, or of a sub-agent beside it: each waits in the same turn."""
    house = House(PAYS if asks == "clerk" else works(0, "pay"), works(1, "look", "pay"))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        await house.says(await house.waiting(), kind)
        house.sure = True
        house.looks_on.set()
    assert house.paid == []
    pending = (await house.process().ledger.known("clerk", "s"))[0].pending()
    assert [one.rule for one in pending if one.rule == "rejected_in_thread"] == ["rejected_in_thread"] * (
        kind == "edit"
    )


async def test_a_sub_agent_that_is_resumed_without_its_parent_knows_what_that_one_stored() -> None:
    house = House(works(0, "pay"), works(1, "look", "pay"))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        await house.says(await house.waiting(), "reject")
        group.cancel_scope.cancel()
    house.sure = True
    with anyio.move_on_after(0.5):  # the first hears of it, while the second is at work
        await house.process().resume("clerk", "s")
    house.looks_on.set()
    payer = house.process("payer")
    found = [payer.ledger.state_in(one) for one in await house.store.scan("session", prefix="payer/")]
    (second,) = [state for state in found if state.status not in ENDED]
    assert (await payer.resume("payer", second.session_id)).status == "completed"
    assert house.paid == []


@pytest.mark.parametrize("asks", ["clerk", "payer", "nobody"])
async def test_a_sub_agent_that_is_resumed_without_its_parent_is_asked_about_what_may_have_been_answered_beside_it(
    asks: str,
) -> None:
    """Of that its own process knows nothing, also where its sub-agent would act."""
    first = {"clerk": [PAYS], "payer": [works(0, "pay")], "nobody": []}[asks]
    house = House(*first, works(1, "look", "pay"))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        if first:
            await house.says(await house.waiting(), "reject")
        group.cancel_scope.cancel()
    house.sure = True
    house.looks_on.set()
    payer = house.process("payer")
    found = [payer.ledger.state_in(one) for one in await house.store.scan("session", prefix="payer/")]
    (second,) = [state for state in found if not state.pending()]
    result = await payer.resume("payer", second.session_id)
    rules = [(one.rule, "another session of this run" in one.reason) for one in result.pending]
    assert (rules, house.paid) == (([("rejected_in_thread", True)], []) if first else ([], [5]))
    await house.process().resume("clerk", "s")
    assert house.paid == ([] if first else [5])


@pytest.mark.parametrize("damaged", [True, False])
async def test_a_sub_agent_that_is_resumed_while_nobody_can_read_its_parent_is_asked_before_it_acts(
    damaged: bool,
) -> None:
    house = House(works(0, "look", "note", "pay"))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        group.cancel_scope.cancel()
    house.sure = True
    house.looks_on.set()
    (above,) = await house.store.scan("session", prefix="clerk/")
    broken = Put(kind="session", key=above.key, body="{", expected=above.version, label=above.label)
    await house.store.write(broken if damaged else above.removal())
    payer = house.process("payer")
    (found,) = await house.store.scan("session", prefix="payer/")
    result = await payer.resume("payer", payer.ledger.state_in(found).session_id)
    assert ([one.rule for one in result.pending], house.paid, house.noted) == (["rejected_in_thread"], [], 1)


@pytest.mark.parametrize("damaged", ["{", '{"v": 2}', "of a newer release"])
async def test_where_nobody_can_read_a_sub_agent_any_more_whoever_acts_is_asked(damaged: str) -> None:
    house = House(works(0, "pay"))
    await house.process().run(CLERK, "Go.", session_id="s")
    await house.process().stop("clerk", "s")
    (child,) = await house.store.scan("session", prefix="payer/")
    damaged = damaged if "{" in damaged else json.dumps({**json.loads(child.body), "v": STATE_VERSION + 1})
    await house.store.write(Put(kind="session", key=child.key, body=damaged, expected=child.version, label=child.label))
    await house.process().resume("clerk", "s")
    house.calls, house.sure = (PAYS, LOOKS), True
    house.looks_on.set()
    for _ in range(2):
        result = await house.process().run(CLERK, "Go.", session_id="s")
        assert [(one.rule, "cannot be read" in one.reason) for one in result.pending] == [("rejected_in_thread", True)]
        done = await house.process().resume("clerk", "s", result.pending[0].decide("approve", principal="ann"))
        assert done.status == "completed"
    assert house.paid == [5, 5]
    assert (await house.process().run(CLERK, "Go.", session_id="another")).status == "completed"


class Fails(MemoryStore):
    left = 0

    async def children(self, kind: str, parents: Sequence[str]) -> list[Document]:
        self.left -= 1
        if self.left >= 0:
            raise StoreError("down")
        return await super().children(kind, parents)


@pytest.mark.parametrize("fails", [0, 1, 2, 3, 4])
async def test_the_audit_names_a_rejection_once_however_often_the_store_failed_as_the_run_was_stopped(
    fails: int,
) -> None:
    house = House(PAYS, LOOKS, store=(store := Fails()))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        await house.says(await house.waiting(), "reject")
        store.left = fails
        await house.process().stop("clerk", "s")
    store.left, house.sure = 0, True
    house.looks_on.set()
    result = await house.process().run(CLERK, "Go.", session_id="s")
    told = [one["data"] for one in await AuditLog(store, "clerk", "s").entries() if one["what"] == "decision"]
    assert [one.rule for one in result.pending] == ["rejected_in_thread"]
    assert [one["call_digest"] for one in told] == [PAYS.digest()]
    assert (await house.process().ledger.known("clerk", "s"))[0].replaced() == []


@pytest.mark.parametrize("asks", ["clerk", "payer"])
async def test_what_was_answered_and_could_not_be_read_as_the_run_was_stopped_is_not_pruned_before_its_session(
    asks: str,
) -> None:
    house = House(PAYS if asks == "clerk" else works(0, "pay"), LOOKS, store=(store := Fails()))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        await house.says(await house.waiting(), "reject")
        await anyio.sleep(0.1)
        store.left = 9
        await house.process().stop("clerk", "s")
    store.left, house.sure, house.calls = 0, True, (PAYS,)
    await prune(store, 0.1)
    assert [one.rule for one in (await house.process().run(CLERK, "Go.", session_id="s")).pending] == [
        "rejected_in_thread"
    ]


async def test_what_waits_in_sub_agents_is_pruned_with_the_session_above_them_that_has_not_heard_of_it() -> None:
    house = House(works(0, "pay"), works(1, "pay"))
    await house.process().run(CLERK, "Go.", session_id="s")
    await house.process().stop("clerk", "s")
    await house.process().resume("clerk", "s")
    await anyio.sleep(0.1)
    await prune(house.store, 60.0)
    assert len(await house.store.scan("session")) == 3
    await prune(house.store, 0.1)
    assert await house.store.scan("session") == []


class Slow(MemoryStore):
    """Takes a while to give the session of the first sub-agent."""

    pause_s = 0.0

    async def get(self, kind: str, key: str) -> Document | None:
        if kind == "session" and key.endswith("d0"):
            await anyio.sleep(self.pause_s)
        return await super().get(kind, key)


@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_a_sub_agent_that_begins_hears_what_was_answered_in_one_that_is_slow_to_go_on(kind: str) -> None:
    house = House(works(0, "pay"), works(1, "pay", name="helper"), store=(store := Slow()))
    pays, begins = (await house.process().run(CLERK, "Go.", session_id="s")).pending
    await house.says(pays, kind)
    house.sure, store.pause_s = True, 0.05
    result = await house.process().resume("clerk", "s", begins.decide("approve", principal="ann"))
    assert [one.rule for one in result.pending] == (["rejected_in_thread"] if kind == "edit" else [])
    assert house.paid == ([7.0] if kind == "edit" else [])


async def test_what_is_answered_at_once_where_a_sub_agent_pauses_is_heard_in_the_one_beside_it() -> None:
    """Its parent has not taken up yet that it waits."""
    house = House(works(0, "pay"), works(1, "look", "pay"), store=(store := Slow()))
    store.pause_s = 0.05
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        with anyio.fail_after(10.0):
            while not (found := await house.process().ledger.pending("payer")):  # noqa: ASYNC110
                await anyio.sleep(0.005)
        await house.says(found[0].requests[0], "reject")
        house.sure = True
        house.looks_on.set()
    assert house.paid == []


class Watched(MemoryStore):
    """Counts who asks for the session of the first sub-agent once it has ended, and takes a while to give it then."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.ended = 0, anyio.Event()

    async def get(self, kind: str, key: str) -> Document | None:
        found = await super().get(kind, key)
        if kind == "session" and key.endswith("d0") and found is not None and found.label == "completed":
            self.asked += 1
            self.ended.set()
            await anyio.sleep(0.1)
        return found


async def test_a_sub_agent_that_ends_unasked_is_not_asked_for_by_one_that_acts_beside_it() -> None:
    house = House(works(0, "pay"), works(1, "look", "pay"), store=(store := Watched()))
    house.sure, house.looks_on = True, store.ended
    assert (await house.process().run(CLERK, "Go.", session_id="s")).status == "completed"
    assert (store.asked, house.paid) == (1, [5, 5])  # its parent


class Late(MemoryStore):
    """Has somebody answer just before the start of a payment of the second sub-agent is written."""

    answer: Callable[[], Awaitable[None]] | None = None

    async def write(self, *changes: Change) -> float:
        written = [
            one.body for one in changes if isinstance(one, Put) and one.kind == "session" and one.key.endswith("d1")
        ]
        turns = [call for body in written for call in json.loads(body)["turn"]]
        if any(call["phase"] == "started" and call["proposed"]["name"] == "pay" for call in turns) and self.answer:
            answer, self.answer = self.answer, None
            await answer()
        return await super().write(*changes)


@pytest.mark.parametrize("asks", ["clerk", "payer"])
@pytest.mark.parametrize("kind", ["reject", "edit", "approve"])
async def test_what_is_answered_until_a_call_is_announced_is_heard_before_it_runs(asks: str, kind: str) -> None:
    """It was judged, and nothing spoke against it then; what is answered later comes too late."""
    house = House(PAYS if asks == "clerk" else works(0, "pay"), works(1, "look", "pay"), store=(store := Late()))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        waits = await house.waiting()
        store.answer = lambda: house.says(waits, kind)
        house.sure = True
        house.looks_on.set()
    assert (house.paid, store.answer) == ([5.0] if kind == "approve" else [], None)
    pending = (await house.process().ledger.known("clerk", "s"))[0].pending()
    assert [one.rule for one in pending if one.id != waits.id] == ["rejected_in_thread"] * (kind == "edit")
    if kind == "edit":
        (asked,) = [one for one in pending if one.id != waits.id]
        await house.process().resume("clerk", "s", asked.decide("reject", principal="ann"))
        assert house.paid == [7.0]


@pytest.mark.parametrize("goes_on", ["clerk", "payer"])
async def test_a_call_that_was_cleared_as_its_worker_died_is_held_by_what_was_answered_since(goes_on: str) -> None:
    house = House(works(0, "pay"), works(1, "look", "pay"), store=(store := Late()))

    async def dies() -> None:
        group.cancel_scope.cancel()
        await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        waits = await house.waiting()
        store.answer, house.sure = dies, True
        house.looks_on.set()
    payer = house.process("payer")
    (second,) = [one for one in await store.scan("session", prefix="payer/") if one.key.endswith("d1")]
    body = json.loads(second.body)
    body["turn"][0]["phase"] = "cleared"  # as a lease that is renewed meanwhile stores it
    body = json.dumps(body)
    await store.write(Put(kind="session", key=second.key, body=body, expected=second.version, label=second.label))
    await house.says(waits, "edit")
    if goes_on == "clerk":
        result = await house.process().resume("clerk", "s")
    else:
        result = await payer.resume("payer", payer.ledger.state_in(second).session_id)
    assert [one.rule for one in result.pending] == ["rejected_in_thread"]
    assert house.paid == ([7.0] if goes_on == "clerk" else [])


async def unread(*calls: ToolCall) -> tuple[House, Fails]:
    """A session that ended while a payment waited; what was answered could not be read, nor can it for long."""
    house = House(PAYS, LOOKS, store=(store := Fails()))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        await house.says(await house.waiting(), "reject")
        store.left = 9
        await house.process().stop("clerk", "s")
    store.left, house.sure, house.calls = 1_000, True, calls
    house.looks_on.set()
    return house, store


@pytest.mark.parametrize("calls", [(PAYS,), (MORE, PAYS), (works(0, "look"), works(1, "pay")), (works(0, "pay"),)])
async def test_no_call_runs_while_an_answer_that_may_be_against_it_cannot_be_read(calls: tuple[ToolCall, ...]) -> None:
    house, store = await unread(*calls)
    with pytest.raises(StoreError):
        await house.process().run(CLERK, "Go.", session_id="s")
    assert house.paid == []
    store.left = 0
    result = await house.process().resume("clerk", "s")
    assert (result.pending[0].rule, house.paid) == ("rejected_in_thread", [6] if MORE in calls else [])


@pytest.mark.parametrize("calls", [(MORE,), (LOOKS,), (MORE, LOOKS)])
async def test_other_calls_run_while_an_answer_cannot_be_read(calls: tuple[ToolCall, ...]) -> None:
    house, _ = await unread(*calls)
    assert (await house.process().run(CLERK, "Go.", session_id="s")).status == "completed"
    assert house.paid == [6] * (MORE in calls)


async def test_where_the_monitor_only_advises_nothing_is_read_of_what_was_answered() -> None:
    house, _ = await unread(PAYS)
    house.advisory = True
    assert (await house.process().run(CLERK, "Go.", session_id="s")).status == "completed"
    assert house.paid == [5]


class Withholds(MemoryStore):
    """Gives no decisions on one request."""

    on = ""

    async def children(self, kind: str, parents: Sequence[str]) -> list[Document]:
        if self.on in parents:
            raise StoreError("down")
        return await super().children(kind, parents)


async def test_an_answer_that_cannot_be_read_hides_no_other_one() -> None:
    house = House(PAYS, MORE, LOOKS, store=(store := Withholds()))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        await house.waiting()
        first, second = (await house.process().ledger.known("clerk", "s"))[0].pending()
        await house.says(second, "reject")
        store.on = first.id
        await house.process().stop("clerk", "s")
    house.calls, house.sure = (MORE,), True
    result = await house.process().run(CLERK, "Go.", session_id="s")
    assert ([one.rule for one in result.pending], house.paid) == (["rejected_in_thread"], [])


async def test_where_what_waits_in_the_session_above_cannot_be_read_no_sub_agent_makes_that_call() -> None:
    house = House(PAYS, works(0, "look", "pay"), works(1, "look", "look"), store=(store := Withholds()))

    async def fails() -> None:
        with pytest.raises(StoreError):
            await house.process().run(CLERK, "Go.", session_id="s")

    async with anyio.create_task_group() as group:
        group.start_soon(fails)
        await house.looking.wait()
        store.on, house.sure = (await house.waiting()).id, True
        house.looks_on.set()
    assert house.paid == []


@pytest.mark.parametrize("call", [PAYS, works(0, "pay")])
async def test_what_nobody_answered_in_an_earlier_run_is_asked_for_once(call: ToolCall) -> None:
    house = House(call)
    await house.process().run(CLERK, "Go.", session_id="s")
    await house.process().stop("clerk", "s")
    await house.process().resume("clerk", "s")
    house.calls, house.sure = (MORE,), True
    await house.process().run(CLERK, "Go.", session_id="s")
    assert ((await house.process().ledger.known("clerk", "s"))[0].replaced(), house.paid) == ([], [6])


class Stands(MemoryStore):
    """Stands still as the first sub-agent begins, for more than half a lease, and then fails its parent once."""

    left = -1

    async def get(self, kind: str, key: str) -> Document | None:
        if self.left < 0 and kind == "session" and key.endswith("d0"):
            time.sleep(0.15)  # noqa: ASYNC251 (the whole process stands still)
            self.left = 2
        return await super().get(kind, key)

    async def write(self, *changes: Change) -> float:
        if self.left > 0 and any(isinstance(one, Put) and one.key.startswith("clerk/") for one in changes):
            self.left -= 1
            raise StoreError("down")
        return await super().write(*changes)


@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_a_granted_call_that_did_not_start_hears_what_was_answered_in_the_sub_agent_that_waits_beside_it(
    kind: str,
) -> None:
    for _ in range(60):  # trio starts the calls of a turn in any order
        house = House(works(0, "pay"), PAYS, store=Stands())
        grant = Grant(tool="pay", agent_id="clerk", principal="ann", expires_s=time.time() + 60.0)
        await house.process().ledger.grant(grant)
        try:
            await house.process().run(CLERK, "Go.", session_id="s")
        except StoreError:  # the sub-agent began first
            break
    else:
        pytest.fail("the sub-agent never began first")
    assert house.paid == []
    (waits,) = await house.process().ledger.pending("payer")
    await house.says(waits.requests[0], kind)
    result = await house.process().resume("clerk", "s")
    assert [one.rule for one in result.pending] == (["rejected_in_thread"] if kind == "edit" else [])
    assert house.paid == ([7.0] if kind == "edit" else [])


class Soon(MemoryStore):
    """Has somebody answer before one of the next writes."""

    left = 0
    answer: Callable[[], Awaitable[None]]

    async def write(self, *changes: Change) -> float:
        self.left -= 1
        if self.left == 0:
            await self.answer()
        return await super().write(*changes)


@pytest.mark.parametrize("first", [PAYS, works(0, "pay")])
@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_who_was_shown_a_call_before_another_one_gave_guidance_is_heard_until_it_starts_again(
    kind: str, first: ToolCall
) -> None:
    for at in range(1, 60):
        house = House(first, store=(store := Soon()))
        (waits,) = (await house.process().run(CLERK, "Go.", session_id="s")).pending
        paid = list[float]()

        async def answers(house: House = house, waits: ApprovalRequest = waits, paid: list[float] = paid) -> None:
            paid += house.paid
            await house.says(waits, kind)

        store.answer, store.left = answers, at
        house.sure, house.turns, house.calls = True, 2, (PAYS,)
        result = await house.process().resume("clerk", "s", "Do otherwise.")
        if paid:  # before the answer
            break
        assert [one.rule for one in result.pending] == ["rejected_in_thread"] * (kind == "edit"), at
        assert house.paid == []
    assert (house.paid, at > 4) == ([5], True)


class Counts(MemoryStore):
    """Counts how often decisions are read."""

    reads = 0

    async def children(self, kind: str, parents: Sequence[str]) -> list[Document]:
        self.reads += 1
        return await super().children(kind, parents)


async def test_calls_that_guidance_settled_are_asked_for_together_and_of_too_many_the_latest_are_kept() -> None:
    reads = list[int]()
    for many in (2, 9):
        house = House(*(ToolCall(id=f"p{n}", name="pay", arguments={"amount": n}) for n in range(many)))
        house.store, house.turns = (store := Counts()), 3
        await house.process().run(CLERK, "Go.", session_id="s")
        for _ in range(2):
            store.reads = 0
            await house.process().resume("clerk", "s", "Do otherwise.")
            reads.append(store.reads)
        state, _ = await house.process().ledger.known("clerk", "s")
        assert (len(state.replaced()), state.rejected_before()) == (2 * many, [])
    assert reads[:2] == reads[2:]
    (*_, last) = state.replaced()
    state.keep_replaced([*[last] * 256, last])
    assert (len(state.replaced()), state.rejected_before()) == (256, ["unreadable"])


async def test_a_run_that_is_stopped_before_it_asks_leaves_what_nobody_answered_to_the_next_one() -> None:
    house = House(PAYS, store=(store := Soon()))
    (waits,) = (await house.process().run(CLERK, "Go.", session_id="s")).pending
    await house.process().stop("clerk", "s")
    await house.process().resume("clerk", "s")
    store.answer, store.left = functools.partial(house.process().stop, "clerk", "s"), 1
    result = await house.process().run(CLERK, "Go.", session_id="s")
    assert (result.status, result.pending) == ("failed", [])
    await house.says(waits, "reject")
    house.sure = True
    result = await house.process().run(CLERK, "Go.", session_id="s")
    assert ([one.rule for one in result.pending], house.paid) == (["rejected_in_thread"], [])


class Broken(MemoryStore):
    """Cannot give the session of the first sub-agent, once it waits."""

    broken = False

    async def get(self, kind: str, key: str) -> Document | None:
        if self.broken and kind == "session" and key.endswith("d0"):
            raise StoreError("down")
        return await super().get(kind, key)


@pytest.mark.parametrize("then", ["look", "pay"])
async def test_beside_a_sub_agent_whose_store_is_down_only_harmless_calls_run(then: str) -> None:
    house = House(works(0, "pay"), works(1, "look", then), store=(store := Broken()))

    async def run() -> None:
        with contextlib.suppress(StoreError):
            await house.process().run(CLERK, "Go.", session_id="s")

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await house.looking.wait()
        await house.waiting()
        store.broken, house.sure = True, True
        house.looks_on.set()
    store.broken = False
    (second,) = [one for one in await store.scan("session", prefix="payer/") if one.key.endswith("d1")]
    assert (second.label == "completed", house.paid) == (then == "look", [])


async def test_what_a_sub_agent_that_is_gone_was_told_hides_no_other_answer() -> None:
    house = House(works(0, "pay"), store=(store := Withholds()))
    await house.process().run(CLERK, "Go.", session_id="s")
    house.alone = True
    await house.process().stop("clerk", "s")
    await house.process().resume("clerk", "s")
    house.calls = (PAYS, LOOKS)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: house.process().run(CLERK, "Go.", session_id="s"))
        await house.looking.wait()
        await house.says(waits := await house.waiting(), "reject")
        store.on = waits.id
        await house.process().stop("clerk", "s")
    store.on, house.calls, house.sure = "", (PAYS,), True
    result = await house.process().run(CLERK, "Go.", session_id="s")
    assert ([one.rule for one in result.pending], house.paid) == (["rejected_in_thread"], [])
