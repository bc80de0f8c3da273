"""A result that its client has not is kept for the same call, whenever the client gave up; one that it has is not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq import ApprovalPolicy, Grant
from grampus_uq.errors import StoreError
from grampus_uq.gate.call import CallRecord
from grampus_uq.gate.seal import Seal
from grampus_uq.integrations.mcp.call_notes import CallNotes
from grampus_uq.integrations.mcp.call_outcomes import REPEATED
from grampus_uq.integrations.mcp.hand_overs import DeliveredResults, HandOvers
from grampus_uq.records.values import ToolCall
from grampus_uq.runtime import MemoryStore
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.stopping import order_stop
from grampus_uq.runtime.store import Document
from tests.proxy.guarded import Bench, SlowStore, bench, granted
from tests.sampling import crossed, sampled

pytestmark = [pytest.mark.anyio, pytest.mark.jumping_clocks]


class SlowPins(MemoryStore):
    """A store that takes its time with the pins of tools: whoever judges a call holds the session for so long."""

    takes_s = 0.0

    async def get(self, kind: str, key: str) -> Any:
        if kind == "mcp_pin":
            await anyio.sleep(self.takes_s)
        return await super().get(kind, key)


async def gives_up(one: Bench, identity: int) -> None:
    await one.say(method="notifications/cancelled", params={"requestId": identity})


async def text(one: Bench, identity: int) -> str:
    return str((await one.answered(identity))["result"]["content"][0]["text"])


async def approved(one: Bench, identity: int = 1) -> None:
    await one.call(identity, path="a")
    await one.decide()
    await one.asked()


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("result_first", [True, False])
async def test_a_result_and_its_cancellation_may_cross_at_any_turn_of_the_event_loop(
    turns: int, result_first: bool
) -> None:
    async with bench() as one:
        await approved(one)

        async def cancel() -> None:
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await gives_up(one, 1)

        async def answer() -> None:
            await one.returns(1, "gone")

        async with anyio.create_task_group() as group:
            for work in (answer, cancel) if result_first else (cancel, answer):
                group.start_soon(work)
        await one.guard.rest()
        await one.call(2, path="a")
        assert await text(one, 2) == "gone"
        assert len(one.ran()) == 1


@pytest.mark.parametrize("waits", [True, False], ids=["it waits for the result", "the result is kept"])
async def test_a_request_given_up_before_anything_is_written_to_it_was_told_nothing(waits: bool) -> None:
    store = SlowPins()
    async with bench(store) as one:
        await one.lists(delete_note={}, other={})
        await approved(one)
        if waits:
            await one.call(2, path="a")
            await anyio.sleep(0.05)
        await gives_up(one, 1)
        await one.returns(1, "gone")
        if not waits:
            await one.guard.rest()
        store.takes_s = 0.3
        await one.call(3, "other")  # judged for so long, and nobody enters the session meanwhile
        await anyio.sleep(0.1)
        if not waits:
            await one.call(2, path="a")
            await anyio.sleep(0.1)
        assert not any(b'"id":2' in line for line in one.to_client)
        await gives_up(one, 2)
        await anyio.sleep(0.5)
        store.takes_s = 0.0
        await one.call(4, path="a")
        assert await text(one, 4) == "gone"
        assert [call["id"] for call in one.ran()] == [1]


@pytest.mark.one_loop
@sampled("meanwhile,number", [(True, 60)], full=[(True, 200), (False, 200)])
async def test_two_hundred_results_are_kept_for_a_client_that_gave_all_of_them_up(meanwhile: bool, number: int) -> None:
    async with bench(hold_s=60) as one:
        for n in range(number):
            await one.call(n, n=n)
        waiting: list[Any] = []
        while len(waiting) < number:
            await anyio.sleep(0.05)
            waiting = [request for session in await one.ledger.pending() for request in session.requests]
        for request in waiting:
            await one.ledger.decide(request.decide("approve", principal="ann"))
        while len(one.ran()) < number:  # noqa: ASYNC110 (nothing tells it)
            await anyio.sleep(0.05)
        reads_again = anyio.Event()
        if meanwhile:
            reply = one.guard._reply

            async def full(line: bytes) -> bool:
                await reads_again.wait()
                return await reply(line)

            one.guard._reply = full  # type: ignore[method-assign]
        for n in range(number):
            await one.returns(n, f"done {n}")
        if not meanwhile:
            await one.guard.rest()
        await anyio.sleep(0.1)
        for n in range(number):
            await gives_up(one, n)
        reads_again.set()
        await one.guard.rest()
        for n in range(number):
            await one.call(1_000 + n, n=n)
        for n in range(number):
            assert await text(one, 1_000 + n) == f"done {n}"
        assert len(one.ran()) == number


async def test_what_one_request_was_told_is_delivered_whoever_else_gave_up() -> None:
    """A client that was told the result by its second request means another call by the third."""
    async with bench() as one:
        await approved(one)
        await one.call(2, path="a")
        await gives_up(one, 1)
        await one.returns(1, "gone")
        assert await text(one, 2) == "gone"
        await one.guard.rest()
        await gives_up(one, 1)
        await one.call(3, path="a")
        assert "the same call was sent to its server in this session at 20" in (await one.waiting()).reason


@pytest.mark.parametrize("how", ["a minute later", "its id names another call", "its id names a ping"])
async def test_a_late_cancellation_of_an_answered_request_takes_nothing_back(how: str, monkeypatch: Any) -> None:
    async with bench() as one:
        await approved(one)
        await one.returns(1, "gone")
        await one.guard.rest()
        one.exchange._hold_s = 0.3
        if how == "a minute later":
            now = anyio.current_time()
            monkeypatch.setattr(anyio, "current_time", lambda: now + 61.0)
            await gives_up(one, 1)
            monkeypatch.undo()
        else:
            await (one.say(id=1, method="ping") if "ping" in how else one.call(1, path="b"))
            await gives_up(one, 1)
            await one.guard.rest()
        await one.call(3, path="a")
        await one.call(4, path="a")  # as often as it is asked
        for told in (await text(one, 3), await text(one, 4)):
            assert "UTC, and answered; this one was not sent" in told
            assert "Nothing has happened" not in told
        assert len(one.ran()) == 1


async def test_a_call_that_did_not_run_before_is_not_said_to_have_run() -> None:
    async with bench() as one:
        await one.call(1, path="a")
        await one.decide("reject")
        assert "reject" in (await text(one, 1)).lower()
        await one.call(2, path="b")
        await one.decide()
        await one.asked()
        await one.returns(2, "done")
        await one.guard.rest()
        one.exchange._hold_s = 0.3
        await one.call(3, path="c")
        assert "Nothing has happened" in await text(one, 3)
        assert "was sent to" not in (await one.waiting()).reason


@pytest.mark.parametrize("when", ["while it runs", "while it is stored", "while it is written", "as it is answered"])
async def test_a_call_that_a_grant_released_and_its_client_gave_up_is_not_run_beside_itself(when: str) -> None:
    store = SlowStore()
    async with await granted(store) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        await one.call(1, "pay", n=1)
        await one.asked()
        store.locked = when == "while it is stored"
        if when == "while it is written":
            reply = one.guard._reply

            async def slow(line: bytes) -> bool:
                one.guard._reply = reply  # type: ignore[method-assign]
                await anyio.sleep(0.5)
                return await reply(line)

            one.guard._reply = slow  # type: ignore[method-assign]
        if when == "while it runs":
            await gives_up(one, 1)
            await one.call(2, "pay", n=1)
            await anyio.sleep(0.2)
        await one.returns(1, "paid")
        if when != "while it runs":
            if when == "as it is answered":
                await one.guard.rest()
            await anyio.sleep(0.1)
            await gives_up(one, 1)
            await one.call(2, "pay", n=1)
            await anyio.sleep(0.2)
            store.locked = False
        assert await text(one, 2) == "paid"
        assert len(one.ran()) == 1
        await one.guard.rest()
        await one.call(3, "pay", n=1)  # it has the result, and means another one
        assert (await one.waiting()).rule == "repeated_call"


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.25])
@pytest.mark.parametrize("slow", ["the store", "another call's reader", "neither"])
async def test_a_result_is_kept_or_delivered_at_every_moment(slow: str, after_s: float) -> None:
    """What is saved, or judged beside it, opens no window in which a call is neither."""

    class Slow(SlowPins):
        writes_s = 0.0

        async def write(self, *changes: Any) -> float:
            await anyio.sleep(self.writes_s)
            return await super().write(*changes)

    store = Slow()
    async with await granted(store) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}}, other={})
        await one.call(1, "pay", n=1)
        await one.asked()
        store.writes_s, store.takes_s = (0.3 if slow == "the store" else 0.0), (0.0 if slow == "the store" else 0.3)
        if slow == "another call's reader":
            await one.call(9, "other")
            await anyio.sleep(0.05)
        await one.returns(1, "paid")
        await one.answered(1)
        await anyio.sleep(after_s)
        await gives_up(one, 1)
        await one.call(2, "pay", n=1)
        assert await text(one, 2) == "paid"
        assert len(one.ran()) == 1
        store.writes_s = store.takes_s = 0.0


@pytest.mark.parametrize("tool", ["pay", "delete_note"], ids=["granted", "approved"])
async def test_a_client_that_uses_an_id_again_at_once_has_its_result(tool: str) -> None:
    async with await granted(MemoryStore()) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        await one.call(1, tool, n=1)
        if tool != "pay":
            await one.decide()
        await one.asked()
        reply = one.guard._reply

        async def slow(line: bytes) -> bool:
            one.guard._reply = reply  # type: ignore[method-assign]
            told = await reply(line)
            await one.say(id=1, method="ping")  # before the writer returns
            return told

        one.guard._reply = slow  # type: ignore[method-assign]
        await one.returns(1, "done")
        await one.guard.rest()
        assert one.calls.session.current().lease.state.turn == []
        assert one.calls._awaited == set()


@pytest.mark.parametrize("when", ["while they run", "after they were answered"])
async def test_of_two_equal_calls_that_are_given_up_each_has_its_own_result(when: str) -> None:
    async with await granted(MemoryStore()) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        await one.call(1, "pay", n=1)
        await one.asked()
        await one.call(2, "pay", n=1)
        await one.decide()
        await one.asked(2)
        for during in ("while they run", "after they were answered"):
            if during == when:
                await gives_up(one, 1)
                await gives_up(one, 2)
            elif during == "while they run":
                for identity in (1, 2):
                    await one.returns(identity, f"paid {identity}")
                await one.guard.rest()
        for identity in (3, 4):
            await one.call(identity, "pay", n=1)
        if when == "while they run":
            await anyio.sleep(0.2)
            for identity in (1, 2):
                await one.returns(identity, f"paid {identity}")
        assert {await text(one, 3), await text(one, 4)} == {"paid 1", "paid 2"}
        assert len(one.ran()) == 2


@pytest.mark.one_loop
@crossed("kind,late", ["reject", "respond"], [True, False])
async def test_what_a_human_answered_is_told_however_many_calls_came_between(kind: str, late: bool) -> None:
    async with bench(hold_s=0.2) as one:
        await one.lists(pay={}, read_note={"annotations": {"readOnlyHint": True}})
        await one.call(1, "pay", n=1)
        await one.answered(1)
        await one.decide(kind, message="I did it by hand")
        while await one.ledger.pending():  # noqa: ASYNC110 (nothing tells it)
            await anyio.sleep(0.05)
        await anyio.sleep(0.5)
        if late:
            await one.call(2, "pay", n=1)
            assert "by hand" in await text(one, 2)
            await one.guard.rest()
        for identity in range(1_000, 1_210):
            await one.call(identity, "read_note", n=identity)
            await one.asked(identity - 999)
            await one.returns(identity)
            await one.guard.rest()
        if late:
            await gives_up(one, 2)
        await one.call(3, "pay", n=1)
        told = await text(one, 3)
        assert "by hand" in told
        assert "The call ran" not in told


@pytest.mark.parametrize(
    ("arguments", "again"),
    [
        ({"n": 1}, {"n": 1.0}),
        ({"n": 0}, {"n": -0.0}),
        ({"to": ["\u00e9"]}, {"to": ["e\u0301"]}),
        ({"n": 1}, {"n": 1, "params": {"x": 1}}),
        ({"n": 1, "params": {"x": 1}}, {"n": 1, "params": {"x": 2}}),
    ],
    ids=["a fraction of none", "minus nothing", "an accent of its own", "more beside", "other beside"],
)
async def test_what_a_server_may_take_for_the_same_call_is_one(arguments: Any, again: Any) -> None:
    async with await granted(MemoryStore()) as one:
        await one.ledger.grant(Grant(tool="pay", principal="ann", expires_s=time.time() + 600))
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        for identity, given in ((1, dict(arguments)), (2, dict(again))):
            params = {"name": "pay", **given.pop("params", {}), "arguments": given}
            await one.say(id=identity, method="tools/call", params=params)
            if identity == 1:
                await one.asked()
                await one.returns(1)
                await one.answered(1)
        assert (await one.waiting()).rule == "repeated_call"
        assert len(one.ran()) == 1


@pytest.mark.parametrize("kind", ["respond", "edit"])
async def test_a_call_whose_outcome_a_human_settled_does_not_go_ahead_again(kind: str) -> None:
    async with await granted(MemoryStore(), late_s=0.1) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        await one.call(1, "pay", n=1)
        await one.asked()
        await gives_up(one, 1)
        assert (await one.waiting()).unknown_outcome
        await one.decide(kind, **({"arguments": {"n": 2}} if kind == "edit" else {"message": "it was paid"}))
        if kind == "edit":
            await one.call(2, "pay", n=1)
            await one.asked(2)
            await one.returns(2)
        for identity in (3, 4):
            await one.call(identity, "pay", n=1)
            if identity == 3 and kind != "edit":
                await one.answered(3)
        request = await one.waiting()
        assert request.rule == ("rejected_in_thread" if kind == "edit" else "repeated_call")
        assert REPEATED.reason in request.reason
        await anyio.sleep(0.5)
        assert [call["params"]["arguments"]["n"] for call in one.ran()] == ([1, 2] if kind == "edit" else [1])


async def test_a_call_that_was_edited_into_the_same_one_counts() -> None:
    async with await granted(MemoryStore(), hold_s=20.0) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        await one.call(0, "pay", n=1)
        await one.asked()
        await one.call(1, "pay", n=55)
        await one.decide("edit", arguments={"n": 2})
        await one.asked(2)
        await one.call(2, "pay", n=2)
        request = await one.waiting()
        assert request.rule == "repeated_call"
        assert "was started in this session" in request.reason
        assert len(one.ran()) == 2


@pytest.mark.parametrize("beside", [{"n": 1.0}, {"n": 1, "inputResponses": {"x": 1}}])
async def test_a_call_that_a_human_changed_is_held_when_it_comes_again_as_it_was(beside: Any) -> None:
    async with bench(MemoryStore(), hold_s=0.3) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        await one.call(1, "pay", n=1)
        await text(one, 1)
        await one.decide("edit", arguments={"n": 2})
        await one.call(2, "pay", n=1)
        await one.asked()
        await one.returns(2)
        await one.answered(2)
        given = dict(beside)
        await one.say(id=3, method="tools/call", params={"name": "pay", "arguments": {"n": given.pop("n")}, **given})
        request = await one.waiting()
        assert REPEATED.reason in request.reason
        assert [call["params"]["arguments"] for call in one.ran()] == [{"n": 2}]


@pytest.mark.parametrize("beside", [{}, {"inputResponses": {"x": 1}}])
async def test_an_equal_call_that_waits_or_was_rejected_holds_back_one_that_is_written_otherwise(beside: Any) -> None:
    """Else an agent has as many tries at a grant's, a permit's or a reader's word as a number has spellings."""
    async with bench(MemoryStore(), hold_s=0.3) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        await one.call(1, "pay", n=1)
        await text(one, 1)
        await one.ledger.grant(Grant(tool="pay", principal="ann", expires_s=time.time() + 600))
        await one.say(id=2, method="tools/call", params={"name": "pay", "arguments": {"n": 1.0}, **beside})
        await text(one, 2)
        waiting = {"of equal calls" in request.reason: request for request in (await one.ledger.pending())[0].requests}
        assert waiting.keys() == {False, True}
        await one.ledger.decide(waiting[False].decide("reject", principal="ann"))
        await one.call(3, "pay", n=1)
        assert "human" in await text(one, 3)
        await one.guard.rest()
        await one.say(id=4, method="tools/call", params={"name": "pay", "arguments": {"n": 1e0}, **beside, "task": {}})
        assert "human" in await text(one, 4)
        assert one.ran() == []


async def test_who_decides_on_a_call_is_told_that_the_same_one_started_while_it_waited() -> None:
    async with bench(MemoryStore(), hold_s=0.3) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        for identity, number in ((1, 1), (2, 1.0)):
            await one.call(identity, "pay", n=number)
            await text(one, identity)
        waiting = {"of equal calls" in request.reason: request for request in (await one.ledger.pending())[0].requests}
        first, second = waiting[False], waiting[True]
        await one.ledger.decide(first.decide("approve", principal="ann"))
        await one.call(3, "pay", n=1)
        await one.asked()
        again = await one.waiting()
        assert again.id != second.id
        assert again.reason.startswith("asked again, because the same call was started in this session at 20")
        await one.ledger.decide(second.decide("approve", principal="ann"))  # by who saw the first page
        await one.returns(3, "paid")
        assert await text(one, 3) == "paid"
        await one.call(4, "pay", n=1.0)
        assert "was sent to its server in this session at 20" in await text(one, 4)
        assert len(one.ran()) == 1


@pytest.mark.parametrize("what", ["it was stopped", "its key changed", "it ended"])
async def test_a_session_that_begins_anew_under_its_name_knows_what_was_sent(what: str) -> None:
    store, keys = MemoryStore(), [ApprovalPolicy(seal=Seal(letter * 32)) for letter in "ab"]
    for number, approvals in enumerate(keys if what == "its key changed" else [None, None]):
        async with await granted(store, hold_s=0.3, approvals=approvals) as one:
            one.calls.session.names = replace(one.calls.session.names, resumes=what != "it ended")
            await one.ledger.grant(Grant(tool="pay", principal="ann", expires_s=time.time() + 600))
            await one.lists(pay={"annotations": {"destructiveHint": True}})
            await one.call(1, "pay", n=1)
            if number == 0:
                await one.asked()
                await one.returns(1)
                await one.answered(1)
                await one.guard.rest()
                await anyio.sleep(0.2)
                if what == "it was stopped":
                    await order_stop(one.ledger, "mcp", "s", principal="ann")
                    while one.calls.session.refusal is None:  # noqa: ASYNC110
                        await anyio.sleep(0.05)
            else:
                assert "UTC, and answered; this one was not sent" in await text(one, 1)
                assert one.ran() == []


@pytest.mark.parametrize("fetched", [True, False])
@pytest.mark.parametrize("before", ["sent", "not sent"])
async def test_a_session_that_begins_anew_knows_what_a_human_rejected_and_what_was_sent_before(
    before: str, fetched: bool
) -> None:
    store = MemoryStore()
    async with await granted(store, hold_s=0.3) if before == "sent" else bench(store, hold_s=0.3) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        if before == "sent":
            await one.call(0, "pay", n=1)
            await one.asked()
            await one.returns(0)
            await one.answered(0)
        await one.call(1, "pay", n=1)
        await text(one, 1)
        await one.decide("reject")
        while await one.ledger.pending():  # noqa: ASYNC110 (nothing tells it)
            await anyio.sleep(0.05)
        if fetched:
            await one.call(2, "pay", n=1)
            assert "a human rejected" in await text(one, 2)
            await one.guard.rest()
        await order_stop(one.ledger, "mcp", "s", principal="ann")
        while one.calls.session.refusal is None:  # noqa: ASYNC110
            await anyio.sleep(0.05)
    async with await granted(store, hold_s=0.3) as two:
        await two.lists(pay={"annotations": {"destructiveHint": True}})
        await two.call(1, "pay", n=1.0)
        told = await text(two, 1)
        assert "was rejected by a human in this session at 20" in told
        assert ("was sent to its server in this session at 20" in told) == (before == "sent")
        assert two.ran() == []


@pytest.mark.parametrize("kind", ["reject", "approve"])
async def test_a_rejection_that_arrives_while_its_request_is_asked_anew_counts_and_an_approval_does_not(
    kind: str,
) -> None:
    async with bench(hold_s=30.0) as one:
        await one.call(1, "pay", n=1)
        first = await one.waiting()
        await one.call(2, "pay", n=1.0)
        with anyio.fail_after(60):
            while len(requests := (await one.ledger.pending())[0].requests) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        await anyio.sleep(1.0)
        tell = one.calls._tell_waiting

        async def decided(same: Any) -> None:
            await one.ledger.decide(requests[1].decide(kind, principal="ann", message="once is enough"))

        def starts(started: CallRecord) -> None:
            group.start_soon(decided, started)  # before the request that takes its place is in the store
            tell(started)

        one.calls._tell_waiting = starts  # type: ignore[method-assign]
        async with anyio.create_task_group() as group:
            await one.ledger.decide(first.decide("approve", principal="ann"))
            await one.asked()
        if kind == "reject":
            assert "They said: once is enough" in await text(one, 2)
        else:
            await anyio.sleep(1.0)
            assert (await one.waiting()).reason.startswith("asked again, because the same call was started")
        assert len(one.ran()) == 1


class Fails(MemoryStore):
    """Reads no decisions, so often."""

    left = 0

    async def children(self, kind: str, parents: Sequence[str]) -> list[Document]:
        if self.left and kind == "decision":
            self.left -= 1
            raise StoreError("down")
        return await super().children(kind, parents)


@pytest.mark.parametrize("fails", [0, 1, 99])
async def test_a_rejection_that_nobody_served_the_session_to_hear_holds_where_it_was_stopped_and_begins_anew(
    fails: int,
) -> None:
    store = Fails()
    dead = Bench(store, hold_s=0.3)
    async with anyio.create_task_group() as first:
        first.start_soon(dead.guard.run)
        await dead.call(1, "pay", n=1)
        await text(dead, 1)
        first.cancel_scope.cancel()
    await dead.decide("reject")
    await order_stop(dead.ledger, "mcp", "s", principal="ann")
    store.left = fails
    async with bench(store, hold_s=0.3) as two:
        await two.call(2, "pay", n=2)
        while two.calls.session.refusal is None:  # noqa: ASYNC110
            await anyio.sleep(0.05)
        store.left = 0
    async with await granted(store, hold_s=0.3) as three:
        await three.lists(pay={"annotations": {"destructiveHint": True}})
        await three.call(3, "pay", n=1.0)
        if fails == 99:
            assert (await three.waiting()).rule == "rejected_in_thread"
        else:
            assert "was rejected by a human in this session at 20" in await text(three, 3)
        assert three.ran() == []


@pytest.mark.parametrize("when", ["at once", "while it runs", "once it was answered", "with an error"])
async def test_of_equal_calls_that_cannot_be_undone_a_grant_lets_one_through(when: str) -> None:
    """Whether a client has what it was sent is known to nobody: one that has not sends the same call again."""
    async with await granted(MemoryStore(), hold_s=20.0) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        await one.call(1, "pay", n=1)
        if when == "at once":
            await one.call(2, "pay", n=1)
        await one.asked()
        if when == "while it runs":
            await one.call(2, "pay", n=1)
            await one.waiting()
        await one.returns(1, "paid", **({"isError": True} if when == "with an error" else {}))
        await one.answered(1)
        if when in ("once it was answered", "with an error"):
            await one.call(2, "pay", n=1)
        request = await one.waiting()
        assert request.rule == "repeated_call"
        answered = when in ("once it was answered", "with an error")
        assert ("the same call was sent to its server in this session at 20" in request.reason) == answered
        assert ("whether its server ran it is not known" in request.reason) != answered
        assert "of equal calls that cannot be undone only one goes ahead by itself" in request.reason
        await one.call(3, "pay", n=2)  # another one is none of its business
        assert len(await one.asked(2)) == 2
        await one.decide()
        await one.asked(3)
        await one.returns(2, "paid again")
        assert await text(one, 2) == "paid again"


async def test_a_grant_is_over_when_the_stores_clock_says_so() -> None:
    """A machine that slept has a clock that stood still; the store's did not."""

    class Ahead(MemoryStore):
        ahead_s = 0.0

        def _now(self) -> float:
            return super()._now() + self.ahead_s

    store = Ahead()
    async with await granted(store) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        await one.call(1, "pay", n=1)
        await one.asked()
        await one.returns(1, "paid")
        await one.guard.rest()
        store.ahead_s = 8 * 3_600.0
        assert one.ledger.now_s() < time.time() + 60
        await one.call(2, "pay", n=2)
        await one.waiting()
        assert len(one.ran()) == 1
        call = ToolCall(id="c", name="pay", arguments={"n": 1})
        late = await one.ledger.use_grant(call, agent_id="mcp", session_id="s", policy=ApprovalPolicy())
        assert late is None


async def test_a_call_that_waited_in_a_session_that_was_taken_over_is_not_said_to_wait() -> None:
    store = MemoryStore()
    async with bench(store, hold_s=0.5) as one:
        await one.call(1, path="a")
        request = await one.waiting()
        found = await store.get("session", "mcp/s")
        assert found is not None
        taken = found.body.replace(one.calls.session.current().lease.state.worker or "", "another")
        await store.put("session", "mcp/s", taken, expected=found.version)
        told = await text(one, 1)
        assert "Another process took this session over" in told
        assert "Nothing has happened" not in told
        assert request.id[:8] not in told


async def test_a_call_that_begins_to_run_while_somebody_looks_is_not_said_to_wait() -> None:
    class Slow(MemoryStore):
        takes_s = 0.0

        async def get(self, kind: str, key: str) -> Any:
            if kind == "session":
                await anyio.sleep(self.takes_s)
            return await super().get(kind, key)

    store = Slow()
    async with bench(store) as one:
        await one.call(1, path="a")
        await one.waiting()
        one.exchange._hold_s, store.takes_s = 0.1, 1.5
        await one.call(2, path="a")
        await one.decide()
        await one.asked()
        assert "is still running" in await text(one, 2)
        await one.returns(1, "gone")


@pytest.mark.one_loop
@sampled("number", [80], full=[200])
async def test_two_hundred_calls_that_end_together_look_once(number: int) -> None:
    class Counting(MemoryStore):
        looks = 0

        async def get(self, kind: str, key: str) -> Any:
            self.looks += kind == "session"
            return await super().get(kind, key)

    store = Counting()
    async with bench(store, hold_s=1.0) as one:
        for n in range(number):
            await one.call(n, n=n)
        one.guard._exchange._hold_s = 3.0
        before = store.looks
        for n in range(number):
            await one.call(1_000 + n, n=n)
        for n in range(number):
            assert "Nothing has happened" in await text(one, 1_000 + n)
        assert store.looks - before < 40


async def test_beside_large_calls_that_wait_a_small_one_writes_none_of_them_and_one_too_many_is_refused(
    monkeypatch: Any,
) -> None:
    async with bench(hold_s=0.0) as one:
        for number in range(8):
            await one.call(number, path="a" * 990_000 + str(number))
            assert "Not executed yet" in await text(one, number)
        await one.call(99, tool="move_note", path="a")
        assert "Not executed yet" in await text(one, 99)  # which looked once at whether one of them is the same
        written, write = list[int](), ToolCall.canonical

        def counted(call: ToolCall) -> str:
            written.append(len(write(call)))
            return write(call)

        monkeypatch.setattr(ToolCall, "canonical", counted)
        await one.call(100, tool="move_note", path="b")
        assert "Not executed yet" in await text(one, 100)
        assert written
        assert max(written) < 1_000
        await one.call(101, path="c" * 990_000)
        assert "too large together" in await text(one, 101)


@pytest.mark.parametrize("proposed", [1, 9])
async def test_of_an_edited_call_the_one_that_ran_is_said_to_have_run(proposed: int) -> None:
    async with bench() as one:
        await one.call(1, "pay", n=9)
        await one.decide("edit", arguments={"n": 1})
        await one.asked()
        await one.returns(1, "paid")
        await one.guard.rest()
        one.exchange._hold_s = 0.3
        await one.call(2, "pay", n=proposed)
        assert ("UTC, and answered" in await text(one, 2)) == (proposed == 1)
        assert ("was sent to its server in this session" in (await one.waiting()).reason) == (proposed == 1)


async def test_a_call_that_is_asked_about_anew_still_says_that_the_same_one_ran() -> None:
    async with bench() as one:
        await one.lists(pay={"description": "Pays."})
        await one.call(1, "pay", n=1)
        await one.decide()
        await one.asked()
        await one.returns(1, "paid")
        await one.guard.rest()
        one.exchange._hold_s = 0.2
        await one.call(2, "pay", n=1)
        await text(one, 2)
        await one.decide()
        while await one.ledger.pending():  # noqa: ASYNC110 (nothing tells it)
            await anyio.sleep(0.05)
        await anyio.sleep(0.5)
        await one.lists(pay={"description": "Pays twice."})
        await one.call(3, "pay", n=1)
        assert "UTC, and answered" in await text(one, 3)
        reason = (await one.waiting()).reason
        assert "was sent to its server in this session" in reason
        assert "Pays twice." in reason


async def test_a_result_that_was_delivered_is_not_handed_over_after_a_death() -> None:
    store = MemoryStore()
    one = Bench(store, hold_s=10.0)
    async with anyio.create_task_group() as group:
        group.start_soon(one.guard.run)
        await approved(one)
        await one.returns(1, "gone")
        await one.guard.rest()
        await anyio.sleep(0.2)  # it is saved beside
        group.cancel_scope.cancel()  # no end, as by SIGKILL
    async with bench(store, hold_s=0.3) as two:
        two.calls.session._leases.lease_s = 0.5
        await two.call(1, path="a")
        assert "UTC, and answered" in await text(two, 1)


async def test_results_that_nobody_asks_for_again_make_room_for_others(monkeypatch: Any) -> None:
    monkeypatch.setattr("grampus_uq.integrations.mcp.guarded_calls._MAX_OPEN", 10)
    async with await granted(MemoryStore()) as one:
        grant = Grant(tool="pay", limits={"n": {"min": 0, "max": 99}}, principal="ann", expires_s=time.time() + 60)
        await one.ledger.grant(grant)
        await one.lists(pay={"annotations": {"destructiveHint": True}})
        for n in range(15):
            await one.call(n, "pay", n=n)
            await one.asked(n + 1)
            await gives_up(one, n)
            await one.returns(n, f"paid {n}")
            await one.guard.rest()
        await one.call(100, "pay", n=14)
        assert await text(one, 100) == "paid 14"
        assert len(one.ran()) == 15


async def test_results_that_come_back_are_no_more_than_there_is_room_for(monkeypatch: Any) -> None:
    monkeypatch.setattr("grampus_uq.integrations.mcp.guarded_calls._MAX_OPEN", 5)
    async with await granted(MemoryStore(), uses=20) as one:
        await one.lists(pay={"annotations": {"destructiveHint": True}}, look={"annotations": {"readOnlyHint": True}})
        for n in range(10):
            await one.call(n, "pay", n=n)
            await one.asked(n + 1)
            await one.returns(n, f"paid {n}")
            await one.guard.rest()
        for n in range(10):
            await gives_up(one, n)
        assert len(one.calls.session.current().lease.state.turn) == 5
        await one.call(100, "look")
        await one.asked(11)
        await one.call(101, "pay", n=9)
        assert await text(one, 101) == "paid 9"


async def test_a_call_that_waits_is_not_said_to_wait_while_nobody_can_look() -> None:
    class Down(MemoryStore):
        down = False

        async def get(self, kind: str, key: str) -> Any:
            if self.down and kind == "session":
                raise StoreError("down")
            return await super().get(kind, key)

    store = Down()
    async with bench(store, hold_s=0.5) as one:
        await one.call(1, path="a")
        await one.waiting()
        store.down = True
        assert "it is not known here whether this call still waits" in await text(one, 1)
        store.down = False
        await one.call(2, path="a")
        assert "Nothing has happened" in await text(one, 2)


_EVENT = st.tuples(st.sampled_from(["begin", "end", "give_up", "forget"]), st.integers(0, 3), st.sampled_from("ab"))


@given(st.lists(_EVENT, max_size=40))
def test_a_call_is_undelivered_exactly_while_all_that_were_told_of_it_have_given_up(events: Any) -> None:
    overs = HandOvers()
    telling: list[tuple[int, str]] = []
    has: dict[str, set[int]] = {"a": set(), "b": set()}
    names: dict[int, str] = {}

    async def run() -> None:
        for what, identity, call in events:
            if what == "begin" and identity not in names and (identity, call) not in telling:
                overs.begin(identity, call)
                telling.append((identity, call))
                has[call].add(identity)
                names[identity] = call
            elif what == "end" and any(one == call for _, one in telling):
                telling.remove(next(one for one in telling if one[1] == call))
                free = not any(one == call for _, one in telling)
                assert overs.end(call) == (free and not has[call])
            elif what == "give_up":
                named = names.pop(identity, None)
                if named is not None:
                    has[named].discard(identity)
                told = named is not None and any(one == named for _, one in telling)
                gone = named is not None and not has[named]
                assert overs.give_up(identity) == ((named, not told) if gone else None)
            elif what == "forget":
                names.pop(identity, None)
                overs.forget(identity)
            assert all(overs.wants(one, of) == (one in has[of]) for one, of in telling)

    anyio.run(run)


def test_what_was_delivered_is_kept_within_bounds() -> None:
    kept = DeliveredResults()

    def record(number: int, note: str = "") -> CallRecord:
        return CallRecord.new(ToolCall(id=f"c{number}", name="t", arguments={"note": note}), "s")

    for number in range(1_001):
        kept.add(record(number), "t", "x")
    assert kept.take("c0") is None
    assert kept.take("c1") == (record(1), "t", "x")
    assert kept.take("c1") is None
    kept.add(record(1), "t", "x" * 100_001)
    assert kept.take("c1") == (record(1), "t", None)
    for number in range(2_000, 2_009):
        kept.add(record(number, "y" * 250_000), "t", None)
    assert kept.take("c1000") is None
    assert [number for number in range(2_000, 2_009) if kept.take(f"c{number}")] == list(range(2_002, 2_009))
    kept.add(record(1), "t", "x")
    assert kept.take("c1") == (record(1), "t", "x")


@given(st.lists(st.tuples(st.sampled_from("ssualr"), st.integers(0, 1), st.integers(0, 2)), max_size=14))
@example([("s", 0, 0), ("s", 0, 0), ("a", 0, 1), ("u", 0, 0)])
@example([("s", 0, 0), ("s", 0, 0), ("l", 0, 1), ("u", 0, 0)])
@example([("s", 0, 0), ("s", 0, 0), ("u", 0, 0), ("u", 0, 0)])
@example([("s", 0, 0), ("r", 0, 0)])
def test_what_went_to_its_server_is_known_and_nothing_else(events: list[tuple[str, int, int]]) -> None:
    """Starts, withdrawals, answers and losses of equal calls in any order, all within a second, and restarts."""
    keeps = CallNotes(AgentState(agent_id="a", session_id="s"))
    goes, went = dict[str, int](), set[int]()
    for number, (kind, like, place) in enumerate(events):
        if kind == "s":
            goes[str(number)] = like
            keeps.sends(str(number), str(like), 7.0)
        elif kind == "r":
            after = CallNotes(AgentState(agent_id="a", session_id="s"))
            after.remember(keeps._state)
            after.lose()
            keeps = after
            went |= set(goes.values())  # nobody knows what became of them
            goes.clear()
        elif goes:
            identity = sorted(goes)[place % len(goes)]
            which = goes.pop(identity)
            if kind == "u":
                keeps.sends_not(identity)
            elif kind == "a":
                went.add(which)
                keeps.answered(identity, str(which), 7.0, is_error=False)
            else:
                went.add(which)
                keeps.lost(identity)
        known = {like for like in (0, 1) if keeps.known_of(str(like)) is not None}
        assert known == went | set(goes.values())


def test_calls_that_merely_start_push_out_none_that_went() -> None:
    keeps = CallNotes(AgentState(agent_id="a", session_id="s"))
    for number in range(1_000):
        keeps.answered(f"c{number}", f"went {number}", 1.0, is_error=False)
    for number in range(1_000):
        keeps.sends(f"s{number}", f"started-{number}", 2.0)
    keeps.answered("c0", "went 0", 3.0, is_error=True)
    assert all(keeps.known_of(f"went {number}") for number in range(1_000))
    again = CallNotes(AgentState(agent_id="a", session_id="s"))
    again.remember(keeps._state)
    again.lose()  # a process died: it is not known which of them went
    assert all(again.known_of(f"went {number}") and again.known_of(f"started-{number}") for number in range(1_000))
    for number in range(1_000):
        keeps.sends_not(f"s{number}")
    keeps.answered("one", "more", 4.0, is_error=False)
    assert [number for number in range(1_000) if not keeps.known_of(f"went {number}")] == [1]
    assert not any(keeps.known_of(f"started-{number}") for number in range(1_000))


@pytest.mark.parametrize("killed", [False, True])
async def test_who_decides_on_an_unknown_outcome_is_told_of_the_same_call_and_of_its_next_start(killed: bool) -> None:
    store = MemoryStore()
    one = Bench(store, hold_s=1.0)
    async with anyio.create_task_group() as first:
        first.start_soon(one.guard.run)
        for identity in (1, 2):
            await one.call(identity, "pay", n=1)
            await one.decide()
            await one.asked(identity)
            if identity == 1:
                await one.returns(1)
                await one.answered(1)
        if not killed:
            await one.exchange.lost(one.calls.session.current().lease.state.turn[0])
        first.cancel_scope.cancel()
    async with bench(store, hold_s=1.0) as two:
        await two.call(3, "pay", n=1)
        told = await text(two, 3)
        assert "nobody knows whether it took effect" in told
        assert "The same call was sent to its server" in told
        assert "was started in" not in told  # that is this one
        request = await two.waiting()
        assert request.unknown_outcome
        assert request.reason.startswith("the same call was sent to its server")
        assert "and whether its server ran it" not in request.reason
        await two.call(4, "pay", n=1.0)
        await text(two, 4)
        (waiting,) = await two.ledger.pending()
        await two.ledger.decide(waiting.requests[1].decide("approve", principal="ann"))
        await two.call(5, "pay", n=1.0)
        await two.asked()
        again = await two.waiting()
        assert again.unknown_outcome
        assert again.id != request.id
        assert again.reason.startswith("asked again, because the same call was sent")
        assert "was started in" in again.reason


@pytest.mark.one_loop
async def test_a_rejection_is_not_forgotten_while_the_same_call_is_proposed() -> None:
    async with bench(hold_s=0.1) as one:
        await one.call(1, "pay", n=1)
        await text(one, 1)
        await one.decide("reject")
        while await one.ledger.pending():  # noqa: ASYNC110
            await anyio.sleep(0.05)
        await one.call(2, "pay", n=1)
        await text(one, 2)
        await one.guard.rest()
        notes = one.calls._notes
        for number in range(1_500):
            for name in ("sent", "lost", "rejected"):
                notes._note(str(number), "7", name)
            if number % 500 == 0:
                await one.call(10 + number, "pay", n=1.0)
                await text(one, 10 + number)
        known = str(one.calls.known_of(ToolCall(name="pay", arguments={"n": 1})))
        assert known.startswith("was rejected by a human")
        assert one.calls._notes.known_of("499") is None


class NoStart(MemoryStore):
    """Takes no write that starts a call, while it is `full`."""

    full = False

    async def write(self, *changes: Any) -> float:
        if self.full and any("execution_started" in str(change) for change in changes):
            raise StoreError("disk full")
        return await super().write(*changes)


@pytest.mark.parametrize("human", ["edit", "approve"])
async def test_a_call_that_could_not_start_is_not_said_to_have_been_sent_and_starts_later(human: str) -> None:
    store = NoStart()
    store.full = True
    async with bench(store, hold_s=5.0) as one:
        await one.call(1, n=1)
        await one.decide(human, **({"arguments": {"n": 2}} if human == "edit" else {}))
        assert "store cannot be reached" in (await one.answered(1))["result"]["content"][0]["text"]
        assert one.ran() == []
        assert one.calls._notes._believed("sent") == one.calls._notes._believed("going") == {}
        store.full = False
        await one.call(2, n=1)
        (ran,) = await one.asked()
        assert ran["params"]["arguments"] == {"n": 2 if human == "edit" else 1}
        await one.returns(ran["id"], "gone")
        text = "".join(part["text"] for part in (await one.answered(2))["result"]["content"])
        assert text.endswith("gone")
