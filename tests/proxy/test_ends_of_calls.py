"""Each call has an end, and what one waits for keeps nothing else waiting: clients that give up, stores that hang."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from grampus_uq.integrations.mcp.connection_session import SessionNames
from grampus_uq.runtime import MemoryStore, StoredStarts
from tests.proxy.guarded import SlowStore, bench
from tests.sampling import sampled

pytestmark = [pytest.mark.anyio, pytest.mark.jumping_clocks]

_READS = {"read_note": {"annotations": {"readOnlyHint": True}}}


async def test_a_call_that_was_given_up_and_is_never_answered_is_asked_about_and_not_run_again() -> None:
    async with bench(hold_s=300.0, late_s=0.2) as one:
        await one.call(1, path="a")
        await one.decide()
        await one.asked()
        one.exchange._hold_s = 0.5  # from here on: a busy machine takes longer to decide
        await one.say(method="notifications/cancelled", params={"requestId": 1})
        request = await one.waiting()
        assert request.unknown_outcome
        await one.call(1, path="b")  # its id stays taken: a late answer could be read as this call's
        assert "not answered yet" in (await one.answered(1))["error"]["message"]
        await one.call(2, path="a")
        told = (await one.answered(2))["result"]["content"][0]["text"]
        assert "waits for a human" in told
        assert "nobody knows whether it took effect" in told
        assert "Nothing has happened" not in told
        assert len(one.ran()) == 1


@pytest.mark.parametrize("resumes", [True, False])
async def test_a_server_that_ends_while_an_approved_call_runs_leaves_a_question(resumes: bool) -> None:
    async with bench() as one:
        one.calls.session.names = SessionNames(agent_id="mcp", session_id="s", resumes=resumes)
        await one.call(1, path="a")
        await one.decide()
        await one.asked()
        await one.guard.aclose()
        assert (await one.waiting()).unknown_outcome


async def test_a_call_that_may_have_run_is_asked_about_on_where_its_next_start_does_not_reach_the_server() -> None:
    async with bench() as one:
        for identity in (1, 2):
            await one.call(identity, path="a")
            await one.decide()
            await one.asked(identity)
            record = one.guard._answers.running.pop(identity)
            await (one.exchange.lost(record) if identity == 1 else one.exchange.not_sent(record, "it is not there"))
            assert (await one.waiting()).unknown_outcome
        await one.decide("reject")
        await one.call(3, path="a")
        told = (await one.answered(3))["result"]["content"][0]["text"]
        assert "may have taken effect" in told


@pytest.mark.parametrize("began", [True, False])
async def test_an_edit_that_fits_no_call_forgets_nothing_of_a_call_that_may_have_run(began: bool) -> None:
    params = {"name": "delete_note", "arguments": {"path": "a"}, "more": 1}  # an edit has to say what of it is which
    async with bench() as one:

        async def edited(identity: int) -> str:
            await one.say(id=identity, method="tools/call", params=params)
            await one.waiting()
            await one.decide("edit", arguments={"path": "b"})
            return (await one.answered(identity))["result"]["content"][0]["text"]

        if began:
            await one.say(id=1, method="tools/call", params=params)
            await one.decide()
            await one.asked()
            await one.exchange.lost(one.guard._answers.running.pop(1))
        told = await edited(2)
        assert ("may have taken effect" in told, told.startswith("Not executed: as it was")) == (began, not began)
        await one.say(id=3, method="tools/call", params=params)
        assert (await one.waiting()).unknown_outcome is began
        assert len(one.ran()) == began


@pytest.mark.parametrize("gone", [anyio.BrokenResourceError, anyio.ClosedResourceError])
async def test_a_result_that_could_not_be_written_is_kept_for_the_same_call(gone: type[Exception]) -> None:
    async with bench() as one:

        async def broken(line: bytes) -> None:
            raise gone

        await one.call(1, path="a")
        await one.decide()
        await one.asked()
        working, one.guard._to_client = one.guard._to_client, broken
        await one.returns(1, "deleted")
        await one.guard.rest()
        one.guard._to_client = working
        await one.call(2, path="a")
        assert (await one.answered(2))["result"]["content"][0]["text"] == "deleted"
        assert len(one.ran()) == 1


async def test_a_read_that_was_given_up_and_is_never_answered_asks_nobody() -> None:
    async with bench(late_s=0.05) as one:
        await one.lists(**_READS)
        await one.call(1, "read_note")
        await one.asked()
        await one.say(method="notifications/cancelled", params={"requestId": 1})
        await anyio.sleep(0.3)
        assert await one.ledger.pending() == []
        await one.call(2, "read_note")
        await one.asked(2)


async def test_a_store_that_hangs_delays_the_calls_that_need_it_and_nothing_else() -> None:
    store = SlowStore()
    async with bench(store) as one:
        await one.call(1, path="a")
        await one.decide()
        await one.asked()
        await one.call(2, path="cancelled")
        await one.waiting()
        await one.lists(**_READS)
        await one.call(5, "read_note")
        await one.asked(2)
        await one.returns(5)
        await one.answered(5)
        one.to_client.clear()
        store.locked = True
        with anyio.fail_after(5):
            await one.returns(1, "gone")  # its result must be stored first
            await one.call(3, path="b")
            await one.say(method="notifications/cancelled", params={"requestId": 2})
            await one.say(method="notifications/cancelled", params={"requestId": 1})
            await one.say(id=4, method="ping")
            await one.guard.from_server(b'{"jsonrpc":"2.0","id":4,"result":{}}')
        assert one.to_client == [b'{"jsonrpc":"2.0","id":4,"result":{}}']
        await one.call(6, "read_note")  # needs no store, behind calls that do
        await one.asked(3)
        await one.returns(6)
        await one.answered(6)
        assert len(one.ran()) == 3
        await one.call(7, path="a")  # the result is not handed over before it is stored
        await anyio.sleep(0.2)
        assert not any(json.loads(line)["id"] == 7 for line in one.to_client)
        store.locked = False
        assert (await one.answered(7))["result"]["content"][0]["text"] == "gone"
        assert (await one.answered(1))["result"]["content"][0]["text"] == "gone"


async def test_a_result_that_waits_for_the_store_is_not_lost_when_the_server_ends() -> None:
    store = SlowStore()
    async with bench(store) as one:
        await one.call(1, path="a")
        await one.decide()
        await one.asked()
        store.locked = True
        await one.returns(1, "gone")
        async with anyio.create_task_group() as group:
            group.start_soon(one.guard.aclose)
            await anyio.sleep(0.1)
            store.locked = False
        assert (await one.answered(1))["result"]["content"][0]["text"] == "gone"


async def test_the_bytes_that_waiting_calls_hold_are_bounded() -> None:
    async with bench(hold_s=300.0, max_bytes=10_000) as one:
        for identity in range(1, 6):
            await one.call(identity, text="x" * 3_000)
        assert "too many bytes" in (await one.answered(4))["result"]["content"][0]["text"]
        assert "too many bytes" in (await one.answered(5))["result"]["content"][0]["text"]
        await one.say(method="notifications/cancelled", params={"requestId": 1})
        held = one.guard._calls
        with anyio.fail_after(20):
            while held._held > 9_000:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await one.call(6, text="x" * 3_000)
            while held._held < 9_000:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert len(one.to_client) == 2


async def test_results_that_wait_for_the_store_hold_bounded_bytes_and_all_come() -> None:
    """Beyond the bound the server's messages wait in its pipe."""
    store = SlowStore()
    async with bench(store, max_bytes=10_000) as one:
        for identity in range(1, 7):
            await one.call(identity, path=f"{identity}")
        with anyio.fail_after(20):
            while len(one.ran()) < 6:
                for session in await one.ledger.pending():
                    for request in session.requests:
                        await one.ledger.decide(request.decide("approve", principal="ann"))
                await anyio.sleep(0.1)
        store.locked = True
        taken = list[int]()

        async def server() -> None:
            for identity in range(1, 7):
                await one.returns(identity, "x" * 3_000)
                taken.append(identity)

        async with anyio.create_task_group() as group:
            group.start_soon(server)
            await anyio.sleep(0.5)
            assert taken == [1, 2, 3]
            assert one.to_client == []
            store.locked = False
        for identity in range(1, 7):
            assert (await one.answered(identity))["result"]["content"][0]["text"] == "x" * 3_000


async def test_a_server_that_talks_nonsense_for_ever_fills_no_log() -> None:
    async with bench() as one:
        for number in range(1_000):
            await one.guard.from_server(b'{"id":%d,"result":{}}' % number)
        assert len(one.said) == 100
        assert one.to_client == []


@pytest.mark.parametrize("stored", [False, True])
async def test_a_call_that_its_client_gave_up_while_it_was_started_is_asked_about_again(stored: bool) -> None:
    """Its server never heard of it: no answer says that it ran or never will."""
    async with bench(starts=StoredStarts(MemoryStore()) if stored else None) as one:
        await one.call(1, path="a")
        given_up, save = anyio.Event(), one.ledger.save

        async def slow(state: Any, version: int, notes: Any = ()) -> int:
            saved = await save(state, version, notes)
            if any(kind == "execution_started" for kind, _ in notes) and not given_up.is_set():
                given_up.set()
                await one.say(method="notifications/cancelled", params={"requestId": 1})
            return saved

        one.ledger.save = slow  # type: ignore[method-assign]
        await one.decide()
        with anyio.fail_after(20):
            await given_up.wait()
        await one.call(2, path="a")
        request = await one.waiting()
        assert "has not heard of it" in request.reason
        assert not one.calls._awaited  # nobody waits for it: at the bound it makes room
        assert not request.unknown_outcome
        assert not one.ran()
        await one.decide()
        await one.asked()
        await one.returns(2, "gone")
        assert (await one.answered(2))["result"]["content"][0]["text"] == "gone"
        assert len(one.ran()) == 1


@pytest.mark.one_loop
@pytest.mark.parametrize("decision", ["approve", "reject"])
@sampled("many", [range(30)], full=[range(100)])
async def test_each_of_many_requests_for_many_calls_is_told_what_became_of_its_call(decision: str, many: range) -> None:
    """However late it looks: the others were told before, and the same call would be a new one."""
    async with bench(hold_s=300.0) as one:
        for number in many:
            await one.call(number, path=f"{number}")
        for number in many:
            await one.call(1_000 + number, path=f"{number}")
        with anyio.fail_after(300):
            while sum(len(session.requests) for session in await one.ledger.pending()) < len(many):  # noqa: ASYNC110
                await anyio.sleep(0.05)
            for session in await one.ledger.pending():
                for request in session.requests:
                    await one.ledger.decide(request.decide(decision, principal="ann"))
            if decision == "approve":
                async with anyio.create_task_group() as group:
                    for call in await one.asked(len(many)):
                        group.start_soon(one.returns, call["id"], f"deleted {call['params']['arguments']['path']}")
            for number in many:
                for identity in (number, 1_000 + number):
                    text = (await one.answered(identity))["result"]["content"][0]["text"]
                    assert text.startswith(f"deleted {number}" if decision == "approve" else "Not executed: a human")
        assert len(one.ran()) == (len(many) if decision == "approve" else 0)


@pytest.mark.one_loop
async def test_calls_that_are_given_up_while_they_are_judged_take_no_place() -> None:
    async with bench() as one:
        await one.lists(**_READS)
        for identity in range(1_100):
            await one.call(identity, "read_note", n=identity)
            await one.say(method="notifications/cancelled", params={"requestId": identity})
        await one.guard.rest()
        state = one.calls.session.current().lease.state
        assert len(state.turn) == len(one.guard._answers.running) < 1_000
        await one.call(2_000, "read_note", last=True)
        await one.asked(len(one.ran()) + 1)
