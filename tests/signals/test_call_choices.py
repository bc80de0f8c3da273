"""What a tool's schema rules out speaks against no value; what it allows does, and so does what was not reported."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import Step, TokenLogprob, ToolCall
from grampus_uq.signals.call_choices import MAX_CHOICES, Choice
from grampus_uq.signals.call_tokens import call_reading
from tests.sampling import examples
from tests.signals.turns_of_calls import FORMS

PIECES = ('{"name": "', "pay", "_out", '", "arguments": {"unit": "', "kilo", 'gram"', "}}")
CALL = ToolCall(name="pay_out", arguments={"unit": "kilogram"})


def tool(name: str, *allowed: str) -> dict[str, Any]:
    return {"name": name, "parameters": {"properties": {"unit": {"type": "string", "enum": [*allowed]}}}}


def values(tools: list[dict[str, Any]], **at: dict[str, float]) -> dict[str, float | None]:
    """The values of the parts; `at` has the odds of the alternatives at a token, the token's own under "own"."""
    found = []
    for piece in PIECES:
        odds = at.get(piece.strip('"'), {"own": 1.0})
        top = [(text, math.log(p)) for text, p in odds.items() if text != "own" and p]
        found.append(TokenLogprob(token=piece, logprob=math.log(odds["own"]), top=tuple(top)))
    step = Step(step_id="s", kind="llm_call", time_s=0.0, text="", tool_calls=(CALL,), logprobs=tuple(found))
    return {part.name: part.value for part in call_reading(step, (), tools).parts}


@pytest.mark.parametrize(
    ("tools", "name", "unit"),
    [
        ([], 0.3, 0.2),  # nothing is known: each alternative counts
        ([tool("pay_out", "kilogram")], 1.0, 1.0),  # nothing to choose
        ([tool("pay_out", "kilogram", "pound"), tool("get")], 0.3 / 0.4, 0.2 / 0.3),  # pound is, gram is not
        ([tool("pay_out", "kilogram", "gram"), tool("refund")], 0.3 / 0.7, 0.2 / 0.9),
        ([tool("pay_out", "kilogram", "kilowatt"), tool("pay_in")], 0.3 / 0.4, 0.2 / 0.4),  # k may become kilowatt
        ([tool("pay_out", "pound"), tool("pay_in")], 0.3 / 0.4, 0.2),  # the value written is none of those allowed
        ([tool("refund", "kilogram")], 0.3, 0.2),  # nor is the name
        ([tool("pay_out", "kilogram"), {"type": "web_search"}], 0.3, 1.0),  # and here not all names are known
        ([tool("pay_out", "kilogram"), {"type": "hosted_mcp", "function": {"name": "mcp"}}], 0.3, 1.0),
        ([tool(str(n)) for n in range(MAX_CHOICES)] + [tool("pay_out", "kilogram")], 0.3, 0.2),
    ],
)
def test_alternatives_count_where_they_begin_another_value_that_is_allowed(
    tools: list[dict[str, Any]], name: float, unit: float
) -> None:
    likely = {
        "pay": {"own": 0.3, "refund": 0.3, "Pay": 0.3},
        "kilo": {"own": 0.2, "gram": 0.6, "k": 0.1},
    }
    assert values(tools, **likely) == {"": pytest.approx(name), "unit": pytest.approx(unit)}


def test_an_alternative_that_can_only_go_on_to_the_same_value_says_nothing_and_one_that_ends_early_does() -> None:
    tools = [tool("pay_out", "kilogram", "kilo"), tool("pay")]
    likely = {"_out": {"own": 0.5, "_": 0.2, '",': 0.3}, "gram": {"own": 0.5, '"': 0.5}}
    assert values(tools, **likely) == {"": pytest.approx(0.5 / 0.8), "unit": pytest.approx(0.5)}


@given(
    st.lists(st.sampled_from(["pay", "pay_in", "pay_out", "get", "p"]), unique=True),
    st.lists(st.sampled_from(["gram", "kilo", "kilogram", "kilowatt"]), unique=True),
    st.dictionaries(st.sampled_from(["get", "p", "pay_in", "no", '"']), st.floats(0.01, 0.2), max_size=4),
    st.floats(0.01, 0.2),
)
def test_a_value_is_never_less_likely_for_what_its_schema_rules_out_nor_more_for_one_more_choice(
    names: list[str], allowed: list[str], others: dict[str, float], own: float
) -> None:
    likely = {"pay": {"own": own, **others}, "kilo": {"own": own, **others}}
    plain = values([], **likely)
    tools = [tool(name, *allowed) for name in names]
    known = values(tools, **likely)
    one_more = values([*tools, tool("get_more", *allowed, "p")], **likely)
    for part, value in known.items():
        assert (plain[part] or 0.0) <= (value or 0.0) + 1e-12 <= 1.0 + 2e-12
    if "pay_out" in names:
        assert (one_more[""] or 0.0) <= (known[""] or 0.0) + 1e-12


@given(st.lists(st.tuples(st.text(max_size=4), st.floats(allow_nan=True))), st.floats(max_value=0.0))
def test_alternatives_of_any_kind_leave_a_value_a_probability(others: list[tuple[str, float]], own: float) -> None:
    found = [TokenLogprob(token=one, logprob=own, top=tuple(others)) for one in PIECES]
    step = Step(step_id="s", kind="llm_call", time_s=0.0, text="", tool_calls=(CALL,), logprobs=tuple(found))
    tools = [tool("pay_out", "kilogram", "pound"), tool("pay_in")]
    for part in call_reading(step, (), tools).parts:
        assert part.value is not None
        assert 0.0 <= part.value <= 1.0


@pytest.mark.parametrize(
    "broken", [{"name": "pay_out"}, {"name": "pay_out", "parameters": {"properties": {"unit": 7}}}]
)
@pytest.mark.parametrize("more", [[], [{"function": {}}, {"name": ["pay"]}]])
def test_a_schema_that_says_nothing_of_a_value_rules_nothing_out(broken: dict[str, Any], more: list[Any]) -> None:
    assert values([broken, *more], kilo={"own": 0.2, "gram": 0.6})["unit"] == pytest.approx(0.2)


class Counted(list[str]):
    """Counts how often one of its values is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("quote", ['"', ""])
def test_an_alternative_is_sought_among_many_values_without_a_look_at_each(quote: str) -> None:
    among = Counted("a" * 50 + f"{number:03d}" for number in range(MAX_CHOICES))
    choice = Choice.of(among[100], among)
    assert choice is not None
    among.looks = 0
    choice.odds(40, -1.0, [("zzzzzzzz", -2.0)], quote)
    assert 0 < among.looks <= 20


WORDS = [
    "kilo",
    "kilogram",
    "kilowatt",
    "gram",
    "g",
    "pound",
    "kilo gram",
    "",
    "1",
    "true",
    "null",
    "größe",
    'a"b',
    "k\\",
]
VALUES = st.sampled_from([*WORDS, 1, True, None])


def in_tokens(data: st.DataObject, text: str) -> tuple[TokenLogprob, ...]:
    """The text cut into tokens, each with alternatives that sum to at most 1 with it, some of the same value."""
    found = []
    while text:
        piece = text[: data.draw(st.sampled_from([1, 2, 3, 4, 6]))]
        text = text[len(piece) :]
        ends = [piece.replace('"}', '",'), piece.replace("}", ","), piece[:-1], "\\", '"', '\\"', '",']
        others = data.draw(st.lists(st.sampled_from([*WORDS, *ends]), unique=True, max_size=5))
        odds = data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(others) + 2, max_size=len(others) + 2))
        own, *rest = [math.log(one / sum(odds)) for one in odds]
        found.append(TokenLogprob(token=piece, logprob=own, top=tuple(zip(others, rest, strict=False))))
    return tuple(found)


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), st.lists(st.sampled_from(WORDS), min_size=1, max_size=5), VALUES, st.booleans(), st.booleans())
def test_what_is_known_of_a_value_lowers_none_raises_none_that_is_not_allowed_and_has_no_order(
    data: st.DataObject, allowed: list[str], value: Any, escaped: bool, ascii_only: bool
) -> None:
    arguments = json.dumps({"unit": value}, ensure_ascii=ascii_only)
    text = '{"name": "pay", "arguments": %s}' % (json.dumps(arguments) if escaped else arguments)
    call = ToolCall(name="pay", arguments={"unit": value})
    written = in_tokens(data, text)
    step = Step(step_id="s", kind="llm_call", time_s=0.0, text="", tool_calls=(call,), logprobs=written)
    names = ["pay", *data.draw(st.lists(st.sampled_from(["p", "pa", "pay_in", "refund"]), unique=True))]
    tools = [tool(name, *allowed) for name in names]
    raw, known, other = (
        {part.name: part.value for part in call_reading(step, (), given).parts}
        for given in ([], tools, [tool(name, *reversed(allowed), *allowed) for name in reversed(names)])
    )
    assert known == other
    for part, odds in known.items():
        assert (raw[part] is None) == (odds is None)
        assert (raw[part] or 0.0) <= (odds or 0.0) + 1e-9 <= 1.0 + 2e-9
    assert value in allowed or raw["unit"] == known["unit"]


@settings(max_examples=examples(200), deadline=None)
@given(st.sets(st.text("ab ", max_size=4), min_size=1, max_size=5), st.integers(), st.data())
def test_a_value_is_never_surer_than_the_model_is_of_it_whatever_the_tokens(
    allowed: set[str], seed: int, data: st.DataObject
) -> None:
    """A model of random tokens that writes allowed values in all their forms: marks, blanks and escapes."""
    written = {
        before + mark + body + mark: one
        for one in allowed
        for mark in ('"', "'")
        for before in ("", " ", "\n")
        for body in {one, one and f"\\u{ord(one[0]):04x}{one[1:]}"}
    }

    random = Random(seed)

    @cache
    def tokens(text: str) -> dict[str, float]:
        found = sorted({one[len(text) :][:n] for one in written if one.startswith(text) for n in (1, 2, 3)} - {""})
        odds = {piece: random.random() ** 4 + 1e-6 for piece in found}
        return {piece: one / sum(odds.values()) for piece, one in odds.items()}

    @cache
    def exact(text: str, value: str) -> float:
        if text in written:
            return float(written[text] == value)
        return sum(odds * exact(text + piece, value) for piece, odds in tokens(text).items())

    text, value = data.draw(st.sampled_from(sorted((t, v) for t, v in written.items() if f'"{v}"' == t.strip())))
    at, since, found = "", "", [TokenLogprob(token='{"name": "pay", "arguments": {"unit":', logprob=0.0)]
    while at != text:
        piece = data.draw(st.sampled_from([one for one in tokens(at) if text.startswith(at + one)]))
        top = tuple((one, math.log(odds)) for one, odds in tokens(at).items())
        found.append(TokenLogprob(token=piece, logprob=math.log(tokens(at)[piece]), top=top))
        at += piece
        since = at if len(at) <= text.index('"') + 1 else since  # where the first token of the value begins
    found.append(TokenLogprob(token="}}", logprob=0.0))
    call = ToolCall(name="pay", arguments={"unit": value})
    step = Step(step_id="s", kind="llm_call", time_s=0.0, text="", tool_calls=(call,), logprobs=tuple(found))
    parts = {part.name: part.value for part in call_reading(step, (), [tool("pay", *allowed)]).parts}
    assert (parts["unit"] or 0.0) <= exact(since, value) + 1e-9


@pytest.mark.parametrize("form", FORMS)
def test_where_a_name_or_a_value_might_have_ended_as_another_one_in_any_form_it_is_as_unsure_as_that(form: str) -> None:
    """With Kimi's numbers of calls a colon ends a name: `functions.pay:0`."""
    tools = [tool("pay", "kilo", "kilogram"), tool("pay_out", "kilo", "kilogram")]
    for part, shorter in (("", ("pay", "kilogram")), ("unit", ("pay_out", "kilo"))):
        long, short = (FORMS[form](name, {"unit": unit}) for name, unit in (("pay_out", "kilogram"), shorter))
        own = "gram" if part else "_out"
        at = long.index(own)
        for length in (1, 2, 4):
            found = [TokenLogprob(token=one, logprob=0.0) for one in (long[:at], own, long[at + len(own) :])]
            found[1] = replace(found[1], logprob=math.log(0.4), top=((short[at : at + length], math.log(0.6)),))
            step = Step(step_id="s", kind="llm_call", time_s=0.0, text="", tool_calls=(CALL,), logprobs=tuple(found))
            parts = {one.name: one for one in call_reading(step, (), tools).parts}
            one = parts.get(part, parts.get("*"))
            assert one is not None
            assert (one.probability if one.value is None else one.value) == pytest.approx(0.4), (length, parts)


def test_a_schema_of_two_tools_of_one_name_rules_nothing_out() -> None:
    two = [tool("pay_out", "gram", "kilogram"), tool("pay_out", "kilogram")]
    assert values(two, kilo={"own": 0.2, "gram": 0.6})["unit"] == pytest.approx(0.2)


@pytest.mark.parametrize("of", ["kilö", 'kilo"x', "kilo\\"])
def test_what_may_be_written_in_several_ways_rules_nothing_out(of: str) -> None:
    assert values([tool("pay_out", "kilogram", of)], kilo={"own": 0.2, "gram": 0.6})["unit"] == pytest.approx(0.2)


@pytest.mark.parametrize("more", [{"type": ["string", "null"]}, {"type": "string", "nullable": True}])
def test_null_is_an_alternative_to_a_known_value_where_the_schema_allows_it_beside_them(more: dict[str, Any]) -> None:
    tools = [tool("pay_out", "gram", "kilogram")]
    tools[0]["parameters"]["properties"]["unit"].update(more)
    assert values(tools, kilo={"own": 0.2, "null": 0.6})["unit"] == pytest.approx(0.2)


def test_what_may_become_another_value_is_doubt_and_what_no_tool_allows_is_none() -> None:
    """By an escape, by an end before its time, or as nothing of a value is written yet."""
    choice = Choice.of("ann", ("ann", "bob"))
    assert choice is not None
    begun = {'"': ("", "\\", "a\\", "\\u0062ob", '\\"', "b", 'bob"'), "": ("", ">", "<", "]", "b", "bob}")}
    same, none = {'"': ('ann"', 'ann",'), "": ("ann}", " ann)")}, {'"': ("an", "zoe", 'an"'), "": ("zoe", "an}")}
    for quote in ('"', ""):
        for texts, kind in ((begun, False), (same, True), (none, None)):
            assert {text: choice.is_same(text, quote) for text in texts[quote]} == dict.fromkeys(texts[quote], kind)
