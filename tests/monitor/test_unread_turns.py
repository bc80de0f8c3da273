"""A turn handed over and not read leaves a session unsettled: only calls that are listed, and open, are proposed."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import ConfigurationError, DataError, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.monitor.session import Session
from grampus_uq.monitor.unread_turns import UnreadTurns

POLICY = UncertaintyPolicy(irreversible_tool_names=["pay"])


def pay(identity: str, amount: Any = 5000) -> dict[str, Any]:
    return {"id": identity, "name": "pay", "arguments": {"amount": amount}}


def written(amount: Any, odds: float) -> list[dict[str, Any]]:
    parts = [
        ('{"name": ', 0.99),
        ('"pay", ', 0.99),
        ('"arguments": {"amount": ', 0.99),
        (str(amount), odds),
        ("}}", 0.99),
    ]
    return [{"token": text, "logprob": math.log(p)} for text, p in parts]


class Stuck:
    """A judge that never answers."""

    async def complete(self, **_: Any) -> Any:
        await anyio.sleep_forever()


def begun(**given: Any) -> Session:
    return UncertaintyMonitor(policy=POLICY).session("s", **given)


async def look(session: Session, step: str = "look") -> None:
    sure = [{"token": t, "logprob": -0.01} for t in ("Looking", ".")]
    for number in range(3):
        await session.observe_llm_response("Looking.", f"{step}{number}", logprobs=sure)


async def sure_turn(session: Session, step: str, call: dict[str, Any]) -> None:
    logprobs = written(call["arguments"]["amount"], 0.99)
    await session.observe_llm_response("", step, tool_calls=[call], logprobs=logprobs)


async def given_up(session: Session, step: str, call: dict[str, Any]) -> None:
    with anyio.move_on_after(0.02):
        await session.observe_llm_response(
            "", step, tool_calls=[call], logprobs=written(5000, 0.3), model_client=Stuck(), model_id="m"
        )


REFUSED = {
    "calls": {"tool_calls": {"name": "pay"}},
    "prompt": {"prompt_messages": [object()]},
    "usage": {"usage": "12"},
    "external": {"external": {"verifier": 1.5}},
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_turn_leaves_the_session_unsettled_until_the_step_is_read(case: str) -> None:
    async def run() -> None:
        session = begun()
        await look(session)
        assert session.would_allow("pay").allowed
        with pytest.raises(ConfigurationError):
            await session.observe_llm_response(
                "", "t", **{"tool_calls": [pay("c9")], "logprobs": written(5000, 0.3), **REFUSED[case]}
            )
        await look(session, "later")
        for call in ("pay", pay("c9"), pay("", 5)):
            assert not session.would_allow(call).allowed
        await sure_turn(session, "t", pay("c9"))
        assert session.would_allow(pay("c9")).allowed

    anyio.run(run)


@pytest.mark.parametrize("lists", [False, True])
def test_a_turn_given_up_is_not_forgotten_when_others_are_read(lists: bool) -> None:
    async def run() -> None:
        session = begun()
        await look(session)
        if lists:
            await sure_turn(session, "t0", pay("c1", 5))
        await given_up(session, "t", pay("c9"))
        await look(session, "later")
        for call in ("pay", pay("c9"), {"id": "c9", "name": "pay"}):
            assert not session.would_allow(call).allowed
        # What was listed of the turns that were read goes ahead as ever.
        await sure_turn(session, "t2", pay("c2", 7))
        assert session.would_allow(pay("c2", 7)).allowed
        assert not session.would_allow("pay").allowed

    anyio.run(run)


def test_one_given_up_while_another_beside_it_is_read() -> None:
    async def run() -> None:
        session = begun()
        await look(session)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(given_up, session, "a", pay("c9"))
            await anyio.sleep(0.01)
            await look(session, "beside")
        assert not session.would_allow(pay("c9")).allowed

    anyio.run(run)


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_snapshot_says_which_turns_were_not_read(in_flight: bool) -> None:
    async def run() -> None:
        session = begun()
        await look(session)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(given_up, session, "t", pay("c9"))
            await anyio.sleep(0.005)
            early = session.snapshot()
        resumed = begun(snapshot=early if in_flight else session.snapshot())
        assert not resumed.would_allow(pay("c9")).allowed
        assert not resumed.would_allow("pay").allowed
        await sure_turn(resumed, "t", pay("c9"))
        assert resumed.would_allow(pay("c9")).allowed
        assert "unread" not in resumed.snapshot()

    anyio.run(run)


@pytest.mark.parametrize("broken", [{}, "t", [1], None])
def test_a_snapshot_with_a_broken_list_is_refused(broken: Any) -> None:
    snapshot = {**begun().snapshot(), "unread": broken}
    with pytest.raises(DataError, match="unread"):
        begun(snapshot=snapshot)


def test_one_listing_lets_one_payment_go_while_a_turn_is_not_read() -> None:
    """The same payment under a new id: its own turn is in flight, was given up, or never was."""

    async def run() -> None:
        session = begun()
        await look(session)
        await sure_turn(session, "t1", pay("c1", 500))
        assert session.would_allow(pay("c1", 500)).allowed
        await session.observe_tool_call(pay("c1", 500), "t1")
        assert not session.would_allow(pay("c2", 500)).allowed
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(given_up, session, "t2", pay("c2", 500))
            await anyio.sleep(0.005)
            for call in (pay("c2", 500), pay("c1", 500), pay("", 500)):
                assert not session.would_allow(call).allowed
        assert not session.would_allow(pay("c2", 500)).allowed
        assert not (await session.observe_tool_call(pay("c2", 500), "t2"))[0].verdict.allowed

    anyio.run(run)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["begin", "read", "lose"])), max_size=30))
def test_unsettled_exactly_while_a_step_is_in_flight_or_lost(events: list[tuple[str, str]]) -> None:
    """Against the plain account: which steps are in flight, which were lost and not read since."""
    turns, in_flight, lost = UnreadTurns(), [], set()
    for step, event in events:
        if event == "begin":
            turns.begin(step)
            in_flight.append(step)
        elif step in in_flight:
            in_flight.remove(step)
            (turns.read if event == "read" else turns.lose)(step)
            (lost.discard if event == "read" else lost.add)(step)
        assert bool(turns) is bool(in_flight or lost)
        again = UnreadTurns.of({"unread": turns.to_json()})
        assert bool(again) is bool(turns)
        assert again.to_json() == turns.to_json()


def test_what_is_kept_of_lost_turns_is_bounded_and_never_forgets() -> None:
    turns = UnreadTurns()
    for number in range(1000):
        turns.lose(turns.begin(f"step {number}"))
    assert len(turns.to_json()) <= 65
    again = UnreadTurns.of({"unread": turns.to_json()})
    for number in range(1000):
        for known in (turns, again):
            known.read(known.begin(f"step {number}"))
    assert turns
    assert again


def test_a_step_without_a_name_that_is_refused_is_never_read() -> None:
    async def run() -> None:
        session = begun()
        await look(session)
        with suppress(ConfigurationError):
            await session.observe_llm_response("", None, tool_calls=[pay("c9")])  # type: ignore[arg-type]
        await look(session, "later")
        assert not session.would_allow(pay("c9")).allowed

    anyio.run(run)
