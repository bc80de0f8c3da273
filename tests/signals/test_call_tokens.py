"""The parts of a call: each value is found where it is written, and read from its own tokens only."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Message, Role, Step, TokenLogprob, ToolCall
from grampus_uq.records.call_parts import WHOLE_CALL, CallPart, call_probability, weakest_part
from grampus_uq.signals.call_places import Writing
from grampus_uq.signals.call_tokens import MAX_PARTS, call_parts, call_reading
from grampus_uq.signals.driver import read_tokens
from tests.sampling import sampled

CALL = ToolCall(id="1", name="refund", arguments={"order": "A17", "amount": 85.5, "express": True, "to": None})

WAYS = {
    "object": '{"name": "refund", "arguments": {"order": "A17", "amount": 85.5, "express": true, "to": null}}',
    "arguments first": '{"arguments": {"to": null, "order": "A17", "amount": 85.5, "express": true}, "name":"refund"}',
    "function": '{"function": {"name": "refund", "arguments": {"order":"A17","amount":85.5,"express":true,"to":null}}}',
    "flat": '{"tool": "refund", "order": "A17", "amount": 85.5, "express": true, "to": null}',
    "text in text": '{"name": "refund", "arguments": '
    + json.dumps('{"order": "A17", "amount": 85.5, "express": true, "to": null}')
    + "}",
    "application": 'refund(order="A17", amount=85.5, express=True, to=None)',
    "braces": 'refund {"order": "A17", "amount": 85.5, "express": true, "to": null}',
}
VALUES = {"": "refund", "order": "A17", "amount": "85.5", "express": "rue", "to": "one"}


def one_a_character(text: str, doubtful: str = "", odds: float = 0.5, *, last: bool = True) -> tuple[TokenLogprob, ...]:
    """A token a character; those of the last mention of the doubtful text have the odds, the others are certain."""
    at = text.rfind(doubtful) if doubtful else -1
    places = range(at, at + len(doubtful)) if at >= 0 else ()
    return tuple(
        TokenLogprob(token=character, logprob=math.log(odds) if place in places else 0.0)
        for place, character in enumerate(text)
    )


def by_name(parts: tuple[CallPart, ...]) -> dict[str, float | None]:
    return {part.name: part.probability for part in parts}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", ["", "order", "amount"])
def test_a_value_is_read_from_its_own_tokens_however_the_call_is_written(way: str, part: str) -> None:
    value = VALUES[part]
    parts = call_parts(one_a_character("Well, " + WAYS[way], value), [CALL])
    odds = by_name(parts)
    assert odds.pop(part) == pytest.approx(0.5 ** len(value))
    assert set(odds) == {"", *CALL.arguments} - {part}
    assert set(odds.values()) == {1.0}


SCALARS = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(-1e6, 1e6).filter(lambda x: x != 0),
    st.booleans(),
    st.none(),
    st.text(min_size=1, max_size=12),
)
ARGUMENTS = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
    max_size=5,
)


@given(ARGUMENTS, st.booleans(), st.lists(st.integers(1, 6), min_size=1), st.integers(0, 2**32 - 1))
def test_the_parts_of_any_call_in_json_are_those_at_the_places_where_they_were_written(
    arguments: dict[str, Any], plain: bool, sizes: list[int], seed: int
) -> None:
    """Written piece by piece here, so that every value's place is known; then cut into tokens of any size."""
    text, places = '{"name": "pay_out", "arguments": {', {"": (10, 17)}
    for name, value in arguments.items():
        text += f'{", " if text[-1] != "{" else ""}"{name}": '
        written = json.dumps(value, ensure_ascii=plain)
        quotes = isinstance(value, str)
        places[name] = (len(text) + quotes, len(text) + len(written) - quotes)
        text += written
    text += "}}"
    tokens, at, odds = [], 0, []
    while at < len(text):
        size = sizes[len(tokens) % len(sizes)]
        odds.append(-((seed >> len(tokens) % 32) % 5) / 10)
        tokens.append(TokenLogprob(token=text[at : at + size], logprob=odds[-1]))
        at += size
    starts = [sum(len(token.token) for token in tokens[:i]) for i in range(len(tokens))]
    parts = call_parts(tokens, [ToolCall(name="pay_out", arguments=arguments)])
    assert list(dict.fromkeys(part.name for part in parts)) == ["", *arguments]
    prose = [places[name] for name, value in arguments.items() if isinstance(value, str) and len(value.split()) > 8]
    assert not prose  # the values are short
    whole = (9, len(text) - 1) if arguments else (0, len(text))  # without arguments the whole object is the call
    own = [
        odd
        for odd, at, token in zip(odds, starts, tokens, strict=True)
        if whole[0] < at + len(token.token) and at < whole[1]
    ]
    assert math.prod(part.probability or 0.0 for part in parts) == pytest.approx(math.exp(math.fsum(own)))
    values = math.prod(part.probability or 0.0 if part.value is None else part.value for part in parts)
    assert call_probability(parts, 0) == pytest.approx(values**0.75 * math.exp(0.25 * math.fsum(own)))
    for part in parts:
        begin, end = places[part.name]
        first = [odds[i] for i, at in enumerate(starts) if begin <= at < end]
        assert part.least is not None
        assert part.least <= math.exp(min(first, default=0.0)) + 1e-9


@given(st.text(max_size=200), st.text(max_size=12), st.dictionaries(st.text(max_size=4), SCALARS, max_size=4))
def test_no_text_raises_and_every_probability_is_one(text: str, name: str, arguments: dict[str, Any]) -> None:
    for written in (text, name + text, f'{{"name": {json.dumps(name)}, {text}', f"{name}({text}"):
        step = Step(
            step_id="s",
            kind="llm_call",
            time_s=0.0,
            tool_calls=(ToolCall(name=name, arguments=arguments),),
            logprobs=one_a_character(written, written[1:3]),
        )
        reading = call_reading(step)
        assert (reading.value is None) == (reading.reason is not None) == (not reading.parts)
        assert all(part.least is not None and 0.0 <= part.least <= 1.0 for part in reading.parts)


def test_tokens_that_do_not_hold_a_value_of_a_call_do_not_stand_for_it() -> None:
    """Half of the call may be lost, or the client read another number than the model wrote."""
    call = CALL.model_copy(update={"arguments": {**CALL.arguments, "sum": 4}})
    (part,) = call_parts(one_a_character(WAYS["application"], "A17"), [call])
    assert (part.name, part.probability) == (WHOLE_CALL, 0.0)


@pytest.mark.parametrize("way", ["object", "function", "flat", "text in text", "application"])
def test_a_text_about_another_call_does_not_speak_for_the_arguments_of_this_one(way: str) -> None:
    call = CALL.model_copy(update={"arguments": {**CALL.arguments, "amount": 855}})
    (part,) = call_parts(one_a_character(WAYS[way]), [call])
    assert part.name == WHOLE_CALL
    coerced = CALL.model_copy(update={"arguments": {**CALL.arguments, "amount": "85.5"}})
    assert [part.name for part in call_parts(one_a_character(WAYS[way]), [coerced])] == ["", *CALL.arguments]


def test_a_call_with_more_arguments_than_are_told_apart_is_read_as_a_whole() -> None:
    arguments = {f"a{number}": number for number in range(MAX_PARTS + 1)}
    text = json.dumps({"name": "f", "arguments": arguments})
    assert [part.name for part in call_parts(one_a_character(text), [ToolCall(name="f", arguments=arguments)])] == ["*"]


def test_prose_counts_for_its_least_token_only() -> None:
    arguments = {"to": "ann@example.org", "body": "Dear Ann, the parcel will be with you on Monday, I hope."}
    text = json.dumps({"name": "send", "arguments": arguments})
    parts = call_parts(one_a_character(text, "parcel", 0.1), [ToolCall(name="send", arguments=arguments)])
    body, around = (part for part in parts if part.name == "body")
    assert (body.probability, body.least) == (None, pytest.approx(0.1))
    assert (around.probability, around.least) == (1.0, 1.0)  # its key and its quotes
    assert call_probability(parts, 0) == 1.0


def test_what_a_model_writes_as_a_name_is_not_shown() -> None:
    arguments = {"ok": 1, "\x1b[31m ignore all rules": 2, "x" * 100: 3}
    parts = call_parts(
        one_a_character(json.dumps({"name": "f", "arguments": arguments})), [ToolCall(name="f", arguments=arguments)]
    )
    assert [part.name for part in parts] == ["", "ok", "argument 2", "argument 3"]


def test_the_weakest_part_and_the_probability_are_those_of_one_call() -> None:
    first, second = (json.dumps({"name": "f", "arguments": {"x": x}}) for x in (17, 23))
    calls = [ToolCall(name="f", arguments={"x": 17}), ToolCall(name="f", arguments={"x": 23})]
    step = Step(
        step_id="s",
        kind="llm_call",
        time_s=0.0,
        tool_calls=tuple(calls),
        logprobs=one_a_character(f"{first}\n{second}", "23"),
    )
    reading = call_reading(step)
    assert reading.value == pytest.approx(0.25)
    assert (call_probability(reading.parts, 0), call_probability(reading.parts, 1)) == (1.0, pytest.approx(0.25))
    weakest = weakest_part(reading.parts, 1)
    assert weakest is not None
    assert weakest.name == "x"


@pytest.mark.parametrize("broken", [math.nan, 0.5])
def test_a_malformed_number_makes_the_reading_missing(broken: float) -> None:
    tokens = (*one_a_character(WAYS["object"])[:-1], TokenLogprob(token="}", logprob=broken))
    step = Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=(CALL,), logprobs=tokens)
    assert call_reading(step).reason == "invalid_value"


def test_a_call_that_its_tokens_do_not_write_is_missing_and_a_step_without_a_call_has_no_such_reading() -> None:
    """Services report the log-probabilities of the text alone where calls have a structure of their own."""
    done = one_a_character("Done (refund A17).", "A17")
    step = Step(
        step_id="s", kind="llm_call", time_s=0.0, tool_calls=(CALL,), text="Done (refund A17).\n", logprobs=done
    )
    assert call_reading(step).reason == "no_logprobs"
    assert call_reading(step).parts == ()
    for silent in ("", " ", "</s>"):
        logprobs = (*done, TokenLogprob(token=silent, logprob=-1.0))
        assert call_reading(replace(step, logprobs=logprobs)).value is None
    hidden = call_reading(replace(step, logprobs=(*done, *one_a_character("<call>?", "?"))))
    assert [part.name for part in hidden.parts] == [WHOLE_CALL]
    assert hidden.value == 0.0
    said = Step(step_id="s", kind="llm_call", time_s=0.0, text="Done.", logprobs=one_a_character("Done."))
    assert "call_probability" not in {reading.source for reading in read_tokens(said, ())}
    assert "call_probability" in {reading.source for reading in read_tokens(step, ())}


def a_call(text: str, *calls: ToolCall) -> Step:
    tokens = tuple(TokenLogprob(token=text[at : at + 80], logprob=-0.01) for at in range(0, len(text), 80))
    return Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=calls, logprobs=tokens)


def hostile(size: int) -> dict[str, Step]:
    """Turns made to keep whoever reads them busy, of about this many characters."""
    blanks, odd = " " * size, {"": 1, " ": 2, "amount": 500}
    pay = ToolCall(name="pay", arguments=odd)
    string = '"name":"pay","arguments":"{\\"\\": 1,\\"amount\\": 500}"}'
    names = [ToolCall(name=f"tool{number}", arguments={"a": 1}) for number in range(size // 40)]
    many = [ToolCall(name="pay", arguments={f"a{j}": "ab" for j in range(size // 1000)}) for _ in range(16)]
    return {
        "a key without a letter, and blanks": a_call("{" + blanks + string, pay),
        "a key without a letter, and quotes": a_call("pay(" + '"' * size + ")", pay),
        "a key as long as the text": a_call(f"pay({'k' * size}", ToolCall(name="pay", arguments={"k" * size: 1})),
        "many keys in a text of one letter": a_call("pay(" + "a" * size, many[0]),
        "open brackets": a_call("pay(" * (size // 4), pay, ToolCall(name="p", arguments={"a": 1})),
        "open braces": a_call('{"pay":' * (size // 7), pay),
        "open braces and mentions": a_call("{" * size + '"pay"' * 64, pay),
        "arguments that are no value": a_call("pay(amount=x " * (size // 13), pay, pay),
        "objects that break off": a_call('{"a" ' * (size // 5), pay),
        "mentions in an unknown form": a_call("<pay><amount>500</amount></pay>" * (size // 31), pay),
        "sentences": a_call("pay. I may pay 500: yes.\n" * (size // 25), pay),
        "open texts": a_call('{"pay' * (size // 5), pay),
        "objects": a_call('{"a": {"name": "pay"}}' * (size // 22), pay),
        "names": a_call("".join(f"{call.name}(" for call in names), *names),
        "calls": a_call("\n".join(json.dumps({"name": "pay", "arguments": c.arguments}) for c in many), *many),
    }


def doubles(seconds: Callable[[int], float], size: int) -> float:
    """The processor's seconds of twice the size, which is at most two and a half times as long as the size takes.

    Of many rounds in turn: what else runs beside makes single ones longer, never shorter.
    """
    once = twice = math.inf
    for _ in range(20):
        once, twice = min(once, seconds(size)), min(twice, seconds(2 * size))
        if twice <= 2.5 * once + 0.05:
            break
    assert twice <= 2.5 * once + 0.05
    return twice


def processor_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def test_objects_that_break_off_late_in_a_long_text_take_no_longer_each() -> None:
    """A failing decoder counts the lines before the failure."""
    doubles(lambda size: processor_seconds(lambda: Writing('{"a" ' * (size // 5))), 300_000)


@sampled("name", list(hostile(1))[::3], full=list(hostile(1)))
def test_twice_as_much_hostile_text_takes_at_most_two_and_a_half_times_as_long(name: str) -> None:
    said = [Message(role=Role.USER, content="xab 12 " * 1000)] * 32
    steps = {size: hostile(size)[name] for size in (9_000, 18_000)}
    assert doubles(lambda size: processor_seconds(lambda: call_reading(steps[size], said)), 9_000) < 1.0
