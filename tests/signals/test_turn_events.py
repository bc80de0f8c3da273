"""Turns read the same whatever source they come from."""

from __future__ import annotations

import pytest

from grampus_uq.records.events import ObservationEvent
from grampus_uq.records.values import Step, TokenLogprob, ToolCall
from grampus_uq.signals.turn_events import (
    READ_CHARACTERS,
    SENTINELS,
    AgentTurn,
    Observation,
    ProposedCall,
    UserTurn,
    agent_text,
    is_closing,
    observation_text,
    turn_of_observation,
    turn_of_step,
)


def test_calls_read_the_same_whatever_the_order_of_their_keys() -> None:
    first = ToolCall(id="1", name="book", arguments={"b": {"y": 1, "x": [{"n": 1, "m": 2}]}, "a": 2})
    second = ToolCall(id="2", name="book", arguments={"a": 2, "b": {"x": [{"m": 2, "n": 1}], "y": 1}})
    assert agent_text("", [first]) == agent_text("", [second]) == 'book({"a":2,"b":{"x":[{"m":2,"n":1}],"y":1}})'


def test_text_and_calls_are_lines_and_what_is_blank_is_left_out() -> None:
    made = ToolCall(name="f")
    assert agent_text(" Looking. \n", [made, made]) == "Looking.\nf({})\nf({})"
    assert agent_text("  ", [made]) == "f({})"
    assert agent_text("", []) == ""
    assert observation_text(["one", " ", "", "two"]) == "one\ntwo"


def test_no_more_than_a_bounded_part_of_a_text_is_read() -> None:
    assert len(agent_text("x" * (3 * READ_CHARACTERS), [])) == READ_CHARACTERS
    assert len(observation_text(["x" * READ_CHARACTERS] * 3)) == READ_CHARACTERS


@pytest.mark.parametrize("text", ["###STOP###", "Thanks! ###STOP###", *SENTINELS])
def test_a_message_with_a_sentinel_closes(text: str) -> None:
    assert is_closing(text)
    assert not is_closing(text, sentinels=())


@pytest.mark.parametrize("text", ["", "stop", "STOP", "# STOP #"])
def test_a_message_without_a_sentinel_does_not_close(text: str) -> None:
    assert not is_closing(text)


def test_a_recorded_step_becomes_an_agents_turn_or_proposals() -> None:
    made, tokens = ToolCall(id="c", name="f"), (TokenLogprob(token="a", logprob=-1.0),)
    message = Step(step_id="1", kind="decision", time_s=0.0, text="hi", tool_calls=(made,), logprobs=tokens)
    assert turn_of_step(message) == (AgentTurn(text="hi", calls=(made,), logprobs=tokens),)
    tool = Step(step_id="2", kind="tool_call", time_s=0.0, text="ignored", tool_calls=(made, made))
    assert turn_of_step(tool) == (ProposedCall(call=made), ProposedCall(call=made))


def test_a_recorded_observation_becomes_what_a_tool_or_the_user_said() -> None:
    def event(**fields: object) -> ObservationEvent:
        return ObservationEvent(session_id="s", agent_id="a", text="hi", **fields)  # type: ignore[arg-type]  # a dict

    assert turn_of_observation(event(kind="user")) == UserTurn(text="hi")
    assert turn_of_observation(event(kind="tool_result", call_id="c")) == Observation(text="hi", call_id="c")
    assert turn_of_observation(event(kind="tool_result", is_error=True)) == Observation(text="hi", is_error=True)
