"""The probability of a call counts every token that writes it, wherever and however it is written."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Step, TokenLogprob, ToolCall
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.records.call_parts import WHOLE_CALL, call_probability
from grampus_uq.signals.call_tokens import call_parts, call_reading

FLOOR = UncertaintyPolicy().call_floor or 0.0
DOUBT = 0.3
PAY = ToolCall(id="c1", name="pay", arguments={"amount": 500})


def pay(**arguments: Any) -> ToolCall:
    return PAY.model_copy(update={"arguments": arguments})


def written(text: str) -> list[TokenLogprob]:
    """Tokens of at most three characters, all certain but what stands between two `§`; `§§` is one without text."""
    found = []
    for number, piece in enumerate(text.split("§")):
        pieces = [piece] if number % 2 else [piece[at : at + 3] for at in range(0, len(piece), 3)]
        found += [TokenLogprob(token=one, logprob=math.log(DOUBT) if number % 2 else 0.0) for one in pieces]
    return found


J = '{"name": "pay", "arguments": {"amount": §500§}}'
SURE = '{"name": "pay", "arguments": {"amount": 500}}'
LOOK = ToolCall(id="c2", name="look", arguments={"q": 1})
NESTED = {"from": "A", "to": "B", "amount": 500, "currency": "EUR", "memo": "x"}
SQL = "DELETE FROM orders WHERE customer = 17 AND id = 500"
BLANKS = "x\u00a0a\u00a0a\u00a0a\u00a0a\u00a0a\u00a0a\u00a0a\u00a0"

CASES: dict[str, tuple[str, Sequence[ToolCall]]] = {
    "a doubtful amount": (J, [PAY]),
    "two calls listed in another order than they are written": (
        J + '{"name": "look", "arguments": {"q": 1}}',
        [LOOK, PAY],
    ),
    "two payments listed in another order": (J + '{"name":"pay","arguments":{"amount":5}}', [pay(amount=5), PAY]),
    "a certain copy behind the call": (f"{J} Done: {SURE}", [PAY]),
    "a certain copy before the call": (f"{SURE} so {J}", [PAY]),
    "70 certain copies behind the call": (J + SURE * 70, [PAY]),
    "a mention behind the call": (f"{J}\nI called pay (as agreed).", [PAY]),
    "a mention with a list behind the call": (f"{J}\npay: [done]", [PAY]),
    "70 mentions before the call": ("pay(amount=500) " + "pay " * 70 + J, [PAY]),
    "an example in a member before the arguments": (
        '{"name":"pay","example":{"amount":500},"arguments":{"amount":§500§}}',
        [PAY],
    ),
    "arguments in a text": ('{"name":"pay","arguments":"{\\"amount\\": §500§}"}', [PAY]),
    "a note that names the amount, in a text": (
        '{"name":"pay","arguments":"{\\"note\\": \\"amount: 500\\", \\"amount\\": §500§}"}',
        [pay(note="amount: 500", amount=500)],
    ),
    "a note that names the amount, in an application": (
        'pay(note="amount=500", amount=§500§)',
        [pay(note="amount=500", amount=500)],
    ),
    "a key written twice, the first doubtful": ('{"name":"pay","arguments":{"amount": §500§,"amount":500}}', [PAY]),
    "a key written twice, the last doubtful": ('{"name":"pay","arguments":{"amount":500,"amount": §500§}}', [PAY]),
    "Python's form": ("{'name': 'pay', 'arguments': {'amount': §500§}}", [PAY]),
    "a comma too many": ('{"name":"pay","arguments":{"amount":§500§},}', [PAY]),
    "a name with an escape": ('{"name":"p\\u0061y","arguments":{"amount":§500§}}', [PAY]),
    "a key with an escape": ('{"name":"pay","arguments":{"\\u0061mount":§500§}}', [PAY]),
    "the arguments alone": ('{"amount": §500§}', [PAY]),
    "arguments behind a mark": ('[TOOL_CALLS]pay[ARGS]{"amount": §500§}', [PAY]),
    "arguments behind an id": ('[TOOL_CALLS]pay[CALL_ID]abc[ARGS]{"amount": §500§}', [PAY]),
    "arguments in an element": ('<function=pay>{"amount": §500§}</function>', [PAY]),
    "an argument in an element": ("<function=pay><parameter=amount>§500§</parameter></function>", [PAY]),
    "arguments in a fence": ('function<sep>pay\n```json\n{"amount": §500§}\n```', [PAY]),
    "a name with a prefix": ('functions.pay:0<|arg|>{"amount": §500§}', [PAY]),
    "a name with a prefix in an object": ('{"name":"functions.pay","arguments":{"amount":§500§}}', [PAY]),
    "a name in another case": ('{"name":"Pay","arguments":{"amount":§500§}}', [PAY]),
    "a recipient": ('to=functions.pay <|constrain|>json<|message|>{"amount": §500§}', [PAY]),
    "an application by position": ("pay(§500§)", [PAY]),
    "byte pieces in place of blanks": ('{"name":Ġ"pay",Ġ"arguments":Ġ{"amount":§Ġ500§}}', [PAY]),
    "a newline in a text": (
        '{"name":"pay","arguments":{"note":"a\nb","amount":§500§}}',
        [pay(note="a\nb", amount=500)],
    ),
    "a token without text before a value": ('{"name":"pay","arguments":{"to":"§§Émile"}}', [pay(to="Émile")]),
    "a token without text inside a value": ('{"name":"pay","arguments":{"to":"E§§Émile"}}', [pay(to="EÉmile")]),
    "the brace that ends a number": ('{"name":"pay","arguments":{"amount":5§}§}', [pay(amount=5)]),
    "the quote that ends a text": ('{"name":"pay","arguments":{"to":"A1§"§}}', [pay(to="A1")]),
    "the quote that ends the name": ('{"name":"pay§"§,"arguments":{"amount":500}}', [PAY]),
    "the tool": ('{"name":"§pay§","arguments":{"amount":500}}', [PAY]),
    "a key": ('{"name":"pay","arguments":{"§payee§":"X"}}', [pay(payee="X")]),
    "the key of an optional argument": (
        '{"name":"pay","arguments":{"amount":500§, "force"§: true}}',
        [pay(amount=500, force=True)],
    ),
    "an amount in a structure": (
        '{"name":"pay","arguments":{"details":{"from":"A","to":"B","amount":§500§,"currency":"EUR","memo":"x"}}}',
        [pay(details=NESTED)],
    ),
    "a number in a long list": (
        '{"name":"pay","arguments":{"amounts":[§500§,1,2,3,4,5,6,7,8]}}',
        [pay(amounts=[500, 1, 2, 3, 4, 5, 6, 7, 8])],
    ),
    "a number in a command of many words": (
        '{"name":"pay","arguments":{"sql":"DELETE FROM orders WHERE customer = 17 AND id = §500§"}}',
        [pay(sql=SQL)],
    ),
    "a number among blanks that do not break": (
        f'{{"name":"pay","arguments":{{"to":"{BLANKS}§500§"}}}}',
        [pay(to=f"{BLANKS}500")],
    ),
    "a call listed by its name alone": (J, [ToolCall(id="c1", name="pay")]),
    "a name with an umlaut in ASCII": (
        '{"name":"\\u00fcberweisen","arguments":{"amount":§500§}}',
        [ToolCall(name="überweisen", arguments={"amount": 500})],
    ),
    "two calls in a list": (
        '[{"name":"look","arguments":{"q":1}},{"name":"pay","arguments":{"amount":§500§}}]',
        [LOOK, PAY],
    ),
    "a value in an apostrophe": ("pay(to='§X1§')", [pay(to="X1")]),
    "a thought with the call, and the call in an unknown form": (
        "I will use pay(amount=500). <function=pay><parameter=amount>§500§</parameter></function>",
        [PAY],
    ),
}


def least(text: str, calls: Sequence[ToolCall]) -> float | None:
    parts = call_parts(written(text), calls)
    found = [call_probability(parts, call) for call in range(len(calls))]
    return min([odds for odds in found if odds is not None], default=None)


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_below_the_floor_with_doubt_in(name: str) -> None:
    text, calls = CASES[name]
    odds = least(text, calls)
    assert odds == pytest.approx(DOUBT**0.25 if name == "a key" else DOUBT)
    assert odds < FLOOR
    certain = least(text.replace("§", ""), calls)
    assert certain == 1.0


def test_a_listed_call_that_the_tokens_do_not_write_is_as_unlikely_as_can_be_and_the_others_are_read() -> None:
    parts = call_parts(written(J), [PAY, LOOK])
    assert [call_probability(parts, call) for call in range(2)] == [pytest.approx(DOUBT), 0.0]


def test_of_two_calls_only_the_doubtful_one_is() -> None:
    text, calls = CASES["two payments listed in another order"]
    parts = call_parts(written(text), calls)
    assert [call_probability(parts, call) for call in range(2)] == [1.0, pytest.approx(DOUBT)]


@pytest.mark.parametrize(
    "thought", ["Shall I pay 500, or 5? ", 'pay(amount=5)? No. {"amount": 5}? ', '{"name": "pay"', "pay("]
)
def test_doubt_in_thoughts_before_a_call_and_in_other_calls_is_no_doubt_in_the_call(thought: str) -> None:
    other = '{"name": "look", "arguments": {"q": §1§}}'
    assert least(f"§{thought}§{SURE}", [PAY]) == 1.0
    assert call_probability(call_parts(written(other + SURE + other), [PAY, LOOK]), 0) == 1.0


LEAVES = st.one_of(st.integers(0, 10**6), st.booleans(), st.none(), st.text(max_size=8), st.floats(0, 1e6))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.from_regex("[a-z]{1,6}", fullmatch=True), VALUES, min_size=1, max_size=4)


def as_text(form: str, call: ToolCall, *, plain: bool) -> str:
    """A call in one of the forms that are read."""
    arguments = call.arguments
    if form == "application":
        return f"{call.name}({', '.join(f'{k}={json.dumps(v, ensure_ascii=plain)}' for k, v in arguments.items())})"
    if form == "text":
        return json.dumps(
            {"name": call.name, "arguments": json.dumps(arguments, ensure_ascii=plain)}, ensure_ascii=plain
        )
    if form == "mark":
        return f"{call.name}[ARGS]{json.dumps(arguments, ensure_ascii=plain)}"
    return json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=plain)


FORMS = st.sampled_from(["object", "text", "application", "mark"])


@given(ARGUMENTS, FORMS, st.booleans(), st.integers(1, 5), st.data())
def test_any_doubtful_token_of_a_call_puts_the_call_below_the_floor(
    arguments: dict[str, Any], form: str, plain: bool, size: int, data: st.DataObject
) -> None:
    """From the first character of the name to the end of the arguments; keys and marks count a quarter.

    In an application a token that ends a value and begins the next key may count for both.
    """
    text = as_text(form, pay(**arguments), plain=plain)
    begin, end = text.find("pay"), len(text) - (form in ("object", "text"))
    starts = range(0, len(text), size)
    doubtful = data.draw(st.sampled_from([at for at in starts if begin < at + size and at < end]))
    tokens = [TokenLogprob(token=text[at : at + size], logprob=math.log(DOUBT) * (at == doubtful)) for at in starts]
    odds = call_probability(call_parts(tokens, [pay(**arguments)]), 0)
    assert odds is not None
    least = DOUBT**2 if form == "application" else DOUBT
    assert least * (1.0 - 1e-6) <= odds <= DOUBT**0.25 * (1.0 + 1e-6)


@given(ARGUMENTS, FORMS, st.text(max_size=20), st.booleans(), st.booleans(), st.data())
def test_no_text_or_copy_beside_a_call_raises_its_probability(
    arguments: dict[str, Any], form: str, beside: str, copied: bool, before: bool, data: st.DataObject
) -> None:
    call = pay(**arguments)
    text = as_text(form, call, plain=True)
    odds = data.draw(st.lists(st.sampled_from([0.0, -0.1, -2.0]), min_size=len(text), max_size=len(text)))
    tokens = [TokenLogprob(token=one, logprob=odd) for one, odd in zip(text, odds, strict=True)]
    added = beside + (as_text(data.draw(FORMS), call, plain=True) if copied else "")
    more = [TokenLogprob(token=f" {added} ", logprob=0.0)]
    once = call_probability(call_parts(tokens, [call]), 0)
    twice = call_probability(call_parts(more + tokens if before else tokens + more, [call]), 0)
    assert once is not None
    assert twice is not None
    assert twice <= once + 1e-12


@given(
    ARGUMENTS,
    st.dictionaries(st.sampled_from(["example", "a", "id", "zz"]), ARGUMENTS | LEAVES, max_size=2),
    st.booleans(),
    st.data(),
)
def test_no_member_beside_the_arguments_raises_the_probability_of_a_call(
    arguments: dict[str, Any], members: dict[str, Any], copied: bool, data: st.DataObject
) -> None:
    call, members = pay(**arguments), {**members, "copy": arguments} if copied else members
    others = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in members.items()]
    at = data.draw(st.integers(0, len(others)))
    text = ", ".join(['"name": "pay"', *others[:at], f'"arguments": §{json.dumps(arguments)}§', *others[at:]])
    text = f"{{{text}}}"
    odds = call_probability(call_parts(written(text), [call]), 0)
    assert odds is not None
    assert odds <= DOUBT + 1e-12


@given(st.text(alphabet="ab c1", max_size=60), st.integers(0, 3), st.data())
def test_no_structure_around_an_argument_raises_the_probability_of_a_call(
    text: str, depth: int, data: st.DataObject
) -> None:
    """Also where the argument is prose, whose digits alone count."""
    plain = json.dumps(text)
    at = data.draw(st.integers(0, max(len(plain) - 3, 0)))
    doubted = plain[: at + 1] + "§" + plain[at + 1 : at + 2] + "§" + plain[at + 2 :]
    value: Any = text
    wrapped = doubted
    for _ in range(depth):
        value, wrapped = {"k": [value, 1]}, f'{{"k": [{wrapped}, 1]}}'
    odds = [
        call_probability(call_parts(written(f'{{"name": "pay", "arguments": {{"x": {inner}}}}}'), [pay(x=given)]), 0)
        for inner, given in ((doubted, text), (wrapped, value))
    ]
    assert None not in odds
    assert (odds[1] or 0.0) <= (odds[0] or 0.0) + 1e-12


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (SURE, ToolCall(name="pay")),
        ("pay(amount=500)", ToolCall(name="pay")),
        ('{"name": "pay", "arguments": {"amount": 500, "to": "X"}}', PAY),
        ("pay(amount=500, to='X')", PAY),
    ],
)
def test_a_call_with_arguments_that_are_not_listed_is_not_told_apart(text: str, call: ToolCall) -> None:
    (part,) = call_parts(written(text), [call])
    assert part.name == WHOLE_CALL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "pay", "arguments": {"§amount§": 500}}', DOUBT**0.25),
        ('{"name": "pay", "arguments"§: §{"amount": 500}}', DOUBT**0.25),
        ('{"name": "§pay§", "arguments": {"amount": 500}}', DOUBT),
        (J, DOUBT),
    ],
    ids=["a key", "a mark", "the name", "a value"],
)
def test_a_key_and_a_mark_count_a_quarter_the_name_and_a_value_whole(text: str, expected: float) -> None:
    """The fourth root of how likely a key or mark was; the reading is that of the call."""
    step = Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=(PAY,), logprobs=tuple(written(text)))
    reading = call_reading(step)
    assert reading.value == pytest.approx(expected)
    assert call_probability(reading.parts, 0) == pytest.approx(expected)


def test_an_object_with_two_objects_of_arguments_that_differ_is_no_place_of_either() -> None:
    for first, second in (("arguments", "input"), ("input", "arguments"), ("args", "parameters")):
        for other, odds in (({"amount": 900}, 0.0), (PAY.arguments, 1.0), ({}, 1.0), (None, 1.0)):
            for one, two in ((PAY.arguments, other), (other, PAY.arguments)):
                text = json.dumps({"name": "pay", first: one, second: two})
                assert call_probability(call_parts(written(text), [PAY]), 0) == odds, text


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "refund", "reason": "pay"}',
        '{"tool": "refund", "arguments": {"reason": "pay"}}',
        '{"name": "refund", "arguments": {"order": 5}, "reason": "pay"}',
        '{"function": {"name": "refund", "arguments": {"name": "pay"}}}',
    ],
)
def test_beside_the_member_that_names_a_tool_no_other_one_does(text: str) -> None:
    listed = [ToolCall(name="pay"), *(ToolCall(name="pay", arguments=one) for one in ({}, {"tool": "refund"}))]
    assert [call_probability(call_parts(written(text), [call]), 0) for call in listed] == [0.0] * 3


PAY_BOB = ToolCall(name="pay", arguments={"to": "bob"})


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "refund", "payload": {"name": "pay"}}',
        '{"tool": "refund", "args": {"name": "pay", "to": "bob"}}',
        '{"name": "refund", "lines": [{"name": "pay", "to": "bob"}]}',
        '{"method": "refund", "why": "pay"}',
        '{"name": "pay", "name": "refund", "arguments": {"to": "bob"}}',
        '{"function_name": "refund", "why": "pay", "to": "bob"}',
        '{"name": "refund", "arguments": {"memo": "pay(to=\'bob\')"}}',
        '{"name": "refund", "arguments": {"memo": ["pay"]}}',
        '[TOOL_CALLS]refund[ARGS]{"name": "pay", "to": "bob"}',
        'Action: refund\nAction Input: {"tool": "pay"}',
        '[TOOL_CALLS]refund[ARGS]{"memo": "pay"}',
        "<tool_call>refund\n<arg_key>memo</arg_key>\n<arg_value>pay(to='bob')</arg_value>\n</tool_call>",
        '<invoke name="refund"><parameter name="memo">{"name": "pay", "arguments": {"to": "bob"}}</parameter></invoke>',
        '<invoke name="refund"><parameter name="pay">bob</parameter></invoke>',
        "[refund(memo='pay')]",
        "[refund(memo='pay', to='bob')]",
        "refund(memo=\"pay(to='bob')\")",
    ],
)
def test_a_name_within_another_call_names_no_call(text: str) -> None:
    calls = [PAY_BOB, ToolCall(name="pay", arguments={}), ToolCall(name="pay")]
    assert [call_probability(call_parts(written(text), [call]), 0) for call in calls] == [0.0] * 3


@pytest.mark.parametrize(
    "text",
    [
        '{"function": {"_name": "pay", "to": "bob"}}',
        '{"intent": "pay", "args": {"to": "bob"}}',
        '{"thought": "so", "function_name": "pay", "to": "bob"}',
        'Well, {"name": "pay", "to": "bob"}',
        '```json\n{"tool": "pay", "to": "bob"}\n```',
        '<tool_call>{"name": "pay", "to": "bob"}</tool_call>',
        '{"name": "clerk", "tool_calls": [{"function": {"name": "pay", "arguments": {"to": "bob"}}}]}',
        "result = pay(to='bob')",
    ],
)
def test_a_name_where_a_form_has_its_name_is_read(text: str) -> None:
    assert call_probability(call_parts(written(text), [PAY_BOB]), 0) == 1.0


def test_a_call_in_the_arguments_of_another_one_is_read() -> None:
    inner = {"recipient_name": "functions.pay", "parameters": PAY.arguments}
    for arguments in ({"tool_uses": [inner]}, {"name": "pay", "arguments": PAY.arguments}):
        text = json.dumps({"name": "run", "arguments": arguments})
        assert call_probability(call_parts(written(text), [PAY]), 0) == 1.0, text
