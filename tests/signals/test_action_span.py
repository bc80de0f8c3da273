"""The tokens of the committed action: which they are, and what is read from them."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Step, TokenLogprob, ToolCall
from grampus_uq.records.values import Reading
from grampus_uq.signals.action_span import action_places, call_in_text
from grampus_uq.signals.token_signals import entropy_confidence, mean_token_probability, token_readings

SEARCH = ToolCall(id="1", name="search", arguments={"q": "x"})
OBJECT = '{"name": "search", "arguments": {"q": "x"}}'


def tokens(text: str, size: int = 3) -> tuple[TokenLogprob, ...]:
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    return tuple(
        TokenLogprob(token=part, logprob=-0.01 * (i + 1), top=((part, -0.01 * (i + 1)), ("other", -3.0 - 0.1 * i)))
        for i, part in enumerate(parts)
    )


def step(text: str, *calls: ToolCall, size: int = 3) -> Step:
    return Step(step_id="s", kind="llm_call", time_s=0.0, text=text, tool_calls=calls, logprobs=tokens(text, size))


def action_tokens(step: Step) -> list[TokenLogprob] | None:
    """The tokens that write the calls of a step."""
    places = action_places(step.logprobs or (), step.tool_calls)
    return None if places is None else [(step.logprobs or ())[place] for place in places]


def read(step: Step, name: str) -> Reading:
    """One of the readings of the committed action."""
    return next(reading for reading in token_readings(step) if reading.source == f"action_{name}")


def span(text: str, *calls: ToolCall) -> str | None:
    """What the tokens of the action say, one character a token."""
    found = action_tokens(step(text, *calls, size=1))
    return None if found is None else "".join(token.token for token in found)


@pytest.mark.parametrize(
    "written",
    [
        OBJECT,
        '{"arguments": {"q": "x"}, "name": "search"}',
        '{"function": {"name": "search", "arguments": {"q": "{"}}}',
        'search(q="a (b) c")',
        'search {"q": "x"}',
        "search(q=search(1))",
        '{"name": "search", "arguments": {"q": "search (more)"}}',
    ],
)
def test_a_call_is_found_behind_the_thoughts_as_an_object_or_an_application(written: str):
    thoughts = "I could search(the web) {but} then again. "
    assert span(f"{thoughts}{written} done", SEARCH) == written


def test_several_calls_of_one_name_are_taken_one_behind_the_other():
    text = f"first {OBJECT} then {OBJECT}."
    assert span(text, SEARCH, SEARCH) == OBJECT + OBJECT
    mail = ToolCall(id="2", name="mail", arguments={})
    assert span(f"[{OBJECT}, " + '{"name": "mail"}]', SEARCH, mail) == OBJECT + '{"name": "mail"}'


def test_a_token_that_writes_only_part_of_the_call_counts():
    found = action_tokens(step("ab" + OBJECT + "cd", SEARCH, size=4))
    assert found is not None
    assert "".join(token.token for token in found) == ("ab" + OBJECT + "cd")[:48]


def test_a_call_that_was_cut_off_reaches_to_the_end():
    assert span("so search(q='x", SEARCH) == "search(q='x"


def test_a_step_without_a_call_commits_its_text():
    said = step("The answer is Paris.")
    assert action_tokens(said) == list(said.logprobs or ())
    assert read(said, "probability").value == mean_token_probability(said.logprobs)
    assert read(said, "entropy").value == entropy_confidence(said.logprobs)


def test_readings_are_those_of_the_spans_tokens_by_hand():
    said = step("abc" + OBJECT, SEARCH)
    own = tokens("abc" + OBJECT)[1:]
    expected = math.fsum(math.exp(token.logprob) for token in own) / len(own)
    assert read(said, "probability").value == pytest.approx(expected, abs=1e-12)
    assert read(said, "entropy").value == pytest.approx(entropy_confidence(own), abs=1e-12)
    assert read(said, "probability").value != mean_token_probability(said.logprobs)


def test_an_action_that_is_not_in_the_tokens_is_missing_and_not_guessed():
    for said in (step("I will look it up.", SEARCH), step("", SEARCH), step("search", SEARCH)):
        for name in ("probability", "entropy"):
            reading = read(said, name)
            assert (reading.value, reading.reason) == (None, "no_logprobs")
    silent = Step(step_id="s", kind="llm_call", time_s=0.0, text=OBJECT, tool_calls=(SEARCH,), logprobs=None)
    assert read(silent, "probability").value is None


def test_a_malformed_token_of_the_action_makes_the_reading_missing():
    bad = (*tokens("abc"), TokenLogprob(token=OBJECT, logprob=math.nan))
    said = Step(step_id="s", kind="llm_call", time_s=0.0, text="x", tool_calls=(SEARCH,), logprobs=bad)
    assert read(said, "probability").value is None


@given(st.text(alphabet='{}[]()"search:, ', max_size=200), st.sampled_from(["search", "", "{"]))
def test_hostile_text_never_raises_and_gives_tokens_of_the_step(text: str, name: str):
    said = step(text, ToolCall(id="1", name=name, arguments={}))
    found = action_tokens(said)
    assert found is None or all(token in said.logprobs for token in found)


def test_deep_and_repeated_text_is_given_up_on():
    for text in ('{"a":' * 20_000 + "search", "search(" * 20_000, "{" * 50_000 + "search", "search " * 20_000):
        action_tokens(step(text, SEARCH, size=1000))
    assert span("x" * 10 + json.dumps({"name": "search"}), SEARCH) == '{"name": "search"}'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (OBJECT, "search"),
        (f"I will look.\n```json\n{OBJECT}\n```\n", "search"),
        (f"<tool_call>\n{OBJECT}\n</tool_call>", "search"),
        (f"[{OBJECT}]", "search"),
        ('search(q="x")', "search"),
        (f"{OBJECT} found nothing, so there is no such order.", None),
        ("I used search.", None),
        ("The search took a while (see above)", None),
        ('{"answer": "search"}', None),
        ("", None),
        ("</", None),
        ("()" * 20_000, None),
    ],
)
def test_a_text_that_ends_with_a_call_is_told_from_one_that_mentions_a_tool(text: str, found: str | None) -> None:
    assert call_in_text(text, ["mail", "", "search"]) == found
