"""Doubt over steps: what a value brings along from the call or the result in which it was first seen."""

from __future__ import annotations

import json

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Message, Reading, Role, Sensing, ToolCall, UncertaintyMonitor
from grampus_uq.errors import DataError
from grampus_uq.records.call_parts import CallPart
from grampus_uq.records.events import ObservationEvent, StepEvent
from grampus_uq.signals.origins import (
    MAX_CALLS,
    MAX_VALUES,
    OriginState,
    origins_of_observation,
    origins_of_prompt,
    with_origins,
)
from tests.signals.contexts import said

SOURCE = "origin_probability"


def call(name: str, call_id: str = "", /, **arguments: object) -> ToolCall:
    return ToolCall(id=call_id or name, name=name, arguments=arguments)


def turn(state: OriginState, odds: float, *calls: ToolCall, tool: float = 1.0) -> float | None:
    """A turn whose calls' arguments have this probability; what their values bring along."""
    parts = []
    for number, one in enumerate(calls):
        parts.append(CallPart(call=number, probability=tool, least=tool))
        parts += [CallPart(call=number, name=name, probability=odds, least=odds) for name in one.arguments]
    own = Reading(source="call_probability", value=odds, parts=tuple(parts))
    readings = with_origins([own], state, said("", *calls))
    return next((one.value for one in readings if one.source == SOURCE), None)


def answered(state: OriginState, call_id: str, text: str) -> None:
    event = ObservationEvent(
        session_id="s", agent_id="a", kind="tool_result", text=text, call_id=call_id, is_error=False, time_s=0.0
    )
    origins_of_observation(state, event)


UNIT = st.floats(0.0, 1.0)


@given(UNIT, UNIT, UNIT)
def test_a_value_is_as_doubtful_as_the_most_doubtful_step_on_its_way(find: float, listed: float, last: float) -> None:
    state = OriginState()
    assert turn(state, find, call("find_customer", name="Emma")) is None
    answered(state, "find_customer", '{"customer_id": "C220"}')
    assert turn(state, listed, call("list_orders", customer="C220")) == find
    answered(state, "list_orders", '[{"order_id": "8364"}, {"order_id": "9117"}]')
    assert turn(state, last, call("cancel", order="8364")) == min(find, listed), "its own doubt is another reading"


@given(st.lists(UNIT, min_size=1, max_size=8), st.integers(0, 7), UNIT, st.integers(0, 6))
def test_a_less_sure_earlier_step_never_makes_a_call_surer_and_sure_steps_in_between_lift_nothing(
    odds: list[float], which: int, factor: float, sure_steps: int
) -> None:
    def run(chances: list[float], between: int) -> float:
        state = OriginState()
        for number, chance in enumerate(chances):
            turn(state, chance, call("look", f"c{number}", key=f"K{number}"))
            answered(state, f"c{number}", f"next: K{number + 1}")
            for other in range(between):
                turn(state, 1.0, call("look", f"o{number}-{other}", key=f"K{number}"))
                answered(state, f"o{number}-{other}", f"again: K{number + 1}")
        return turn(state, 1.0, call("pay", order=f"K{len(chances)}")) or 0.0

    lower = [one * factor if number == which % len(odds) else one for number, one in enumerate(odds)]
    assert run(odds, 0) == run(odds, sure_steps) == min(odds)
    assert run(lower, sure_steps) <= run(odds, 0)


def test_what_rules_or_the_request_name_first_is_certain_and_which_tool_was_called_is_no_doubt() -> None:
    state = OriginState()
    origins_of_prompt(
        state, [Message(role=Role.SYSTEM, content="At most 500."), Message(role=Role.USER, content="8364")]
    )
    assert turn(state, 0.3, call("look", order="8364"), tool=0.1) == 1.0
    answered(state, "look", "8364 costs 42.50, 9117 costs 7.09")
    assert turn(state, 1.0, call("cancel", order="8364")) == 1.0
    assert turn(state, 1.0, call("refund", order="8364", amount=42.5)) == 0.3
    assert turn(state, 1.0, call("note", text="nothing with a digit")) is None
    assert turn(state, 1.0, call("pay", order="9999")) is None, "seen nowhere before"


def test_what_was_dropped_leaves_its_doubt_to_whatever_is_not_known() -> None:
    """A result with thousands of values cannot wash a doubtful one out."""
    state = OriginState()
    turn(state, 0.2, call("find", name="X1"))
    answered(state, "find", "8364")
    turn(state, 1.0, call("junk", number=1))
    for page in range(20):
        answered(state, "junk", " ".join(f"J{page}x{n}" for n in range(200)))
    assert len(state.values) <= MAX_VALUES
    assert turn(state, 1.0, call("cancel", order="8364")) == 0.2


@pytest.mark.parametrize("hidden", ["many calls", "many values", "long text"])
def test_what_is_not_read_is_as_doubtful_as_anything_known(hidden: str) -> None:
    state = OriginState()
    turn(state, 0.2, call("find", name="X1"))
    answered(state, "find", "8364")
    cancel = call("cancel", order="8364")
    calls = {
        "many calls": [*(call("look", f"l{n}", key="A1") for n in range(MAX_CALLS)), cancel],
        "many values": [call("cancel", junk=" ".join(f"J{n}" for n in range(300)), order="8364")],
        "long text": [call("cancel", junk="x " * 5_000, order="8364")],
    }[hidden]
    assert turn(state, 1.0, *calls) == 0.2
    assert len(state.calls) <= MAX_CALLS


@given(st.lists(st.tuples(UNIT, st.text(max_size=20)), max_size=5), st.text(max_size=30))
def test_a_stored_state_goes_on_alike(steps: list[tuple[float, str]], value: str) -> None:
    state = OriginState()
    for number, (odds, text) in enumerate(steps):
        turn(state, odds, call("look", f"c{number}", key=f"{text} 1{number}"))
        answered(state, f"c{number}", f"{text} 2{number}")
    stored = OriginState.from_json(json.loads(json.dumps(state.to_json())))
    asked = call("pay", order=value, other="21 10")
    assert turn(stored, 0.5, asked) == turn(state, 0.5, asked)
    with pytest.raises(DataError, match="origins"):
        OriginState.from_json({**state.to_json(), "dropped": 2.0})


class Seen:
    def __init__(self) -> None:
        self.last: dict[str, float | None] = {}

    def on_event(self, event: object) -> None:
        if isinstance(event, StepEvent):
            self.last = {one.source: one.value for one in event.readings}


def logprobs(text: str, odds: str) -> list[dict[str, object]]:
    at = text.index(odds)
    pieces = (text[:at], odds, text[at + len(odds) :])
    return [{"token": piece, "logprob": -0.5 if piece == odds else -0.001} for piece in pieces]


@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_session_reads_it_where_it_is_asked_to_and_goes_on_after_a_resume(resumed: bool, enabled: bool) -> None:
    seen = Seen()
    monitor = UncertaintyMonitor(processors=[seen], sensing=Sensing(origins=enabled))
    run = monitor.session("s")
    prompt = [Message(role=Role.USER, content="Cancel the last order of customer 77.")]

    async def main() -> None:
        session = run
        look = call("look", key="K1")
        text = '{"name": "look", "arguments": {"key": "K1"}}'
        await session.observe_llm_response(
            "", "1", prompt_messages=prompt, tool_calls=[look], logprobs=logprobs(text, "K1")
        )
        session.observe_tool_result("look", "order 8364")
        if resumed:
            session = monitor.session("s", snapshot=json.loads(json.dumps(session.snapshot())))
        cancel = call("cancel", order="8364", customer=77)
        await session.observe_llm_response("", "2", prompt_messages=prompt, tool_calls=[cancel])

    anyio.run(main)
    assert seen.last.get(SOURCE) == (pytest.approx(0.6, abs=0.01) if enabled else None)
