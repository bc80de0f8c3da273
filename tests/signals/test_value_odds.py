"""Which part of a call is doubtful is told by its name and values, whatever its keys and marks were worth."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grampus_uq import Step, TokenLogprob, ToolCall
from grampus_uq.records.call_parts import CallPart, call_probability, weakest_part
from grampus_uq.signals.call_tokens import call_parts, call_reading
from tests.sampling import examples
from tests.signals.turns_of_calls import ARGUMENTS, FORMS, NAMES, own_words, tokens

READ = ("object", "parameters", "arguments in a text", "function in a list", "marks", "kimi", "react", "pythonic")
"""Forms whose arguments are read one by one."""
ODDS = st.floats(0.001, 0.9)


def values(found: list[TokenLogprob], call: ToolCall) -> dict[str, float | None]:
    return {part.name: part.value for part in call_parts(found, [call])}


def doubted(sure: list[TokenLogprob], at: int, odds: float) -> list[TokenLogprob]:
    return [*sure[:at], replace(sure[at], logprob=math.log(odds)), *sure[at + 1 :]]


@given(NAMES, ARGUMENTS, st.sampled_from(READ), ODDS, st.data())
def test_doubt_in_one_token_is_that_of_the_value_that_it_writes_and_in_the_form_of_none(
    name: str, arguments: dict[str, Any], form: str, odds: float, data: st.DataObject
) -> None:
    text, call = FORMS[form](name, arguments), ToolCall(name=name, arguments=arguments)
    sure = tokens(text)
    for at in range(len(sure)):
        changed = [value for value in values(doubted(sure, at, odds), call).values() if value != 1.0]
        assert changed in ([], [pytest.approx(odds)]), "each token belongs to one value or to none"
    assume(arguments)
    key = data.draw(st.sampled_from(list(arguments)))
    value = arguments[key]
    written = value if isinstance(value, str) else repr(value) if form == "pythonic" else json.dumps(value)
    for word, of in ((name, ""), (written, key), (key, None)):
        if text.count(word) == 1:
            at = data.draw(st.sampled_from(own_words(text, "", {"": word})))
            found = values(doubted(sure, at, odds), call)
            expected = dict.fromkeys(found, 1.0) | ({} if of is None else {of: pytest.approx(odds)})
            assert found == expected, (text, word)


PAY = ToolCall(name="pay", arguments={"amount": 85, "to": "ann"})
WRITTEN = ('{"name": "', "pay", '", "', 'arguments": {"', "amount", '": ', "85", ", ", '"to": "', "ann", '"}}')


@pytest.mark.parametrize(
    ("likely", "amount", "to"),
    [
        ({"85": {"own": 0.4, "850": 0.6}}, 0.4, 1.0),
        ({"amount": {"own": 0.1, "sum": 0.9}}, 1.0, 1.0),
        ({", ": {"own": 0.4, "0": 0.6}}, 0.4, 1.0),
        ({", ": {"own": 0.4, "}": 0.6}}, 1.0, 0.4),
        ({", ": {"own": 0.4, "}}": 0.3, ".": 0.3}}, 0.7, 0.4 / 0.7),
        ({", ": {"own": 0.4, ",": 0.2, "}": 0.4}}, 1.0, 0.6),
        ({", ": {"own": 0.4}}, 0.4, 1.0),
        ({", ": {"own": 0.4, "}": math.nan, "0": math.inf, "]": 1e9}}, 0.4, 1.0),
    ],
)
def test_what_ends_a_value_counts_against_what_ends_it_elsewhere(
    likely: dict[str, dict[str, float]], amount: float, to: float
) -> None:
    found = []
    for one in WRITTEN:
        own, *others = likely.get(one, {"own": 1.0}).items()
        top = [(token, math.log(odds) if 0 < odds <= 1 else odds) for token, odds in others]
        found.append(TokenLogprob(token=one, logprob=math.log(own[1]), top=tuple(top)))
    assert values(found, PAY) == {"": 1.0, "amount": pytest.approx(amount), "to": pytest.approx(to)}


@pytest.mark.parametrize("other", [" *", "/2", "%", " - 5", " 5", "€", "万", ":1", ",000", " ,5", "'000", " "])
def test_a_number_that_might_have_gone_on_is_as_unsure_as_that(other: str) -> None:
    top = ((other, math.log(0.6)), ("}", math.log(0.1)))
    ended = TokenLogprob(token=")", logprob=math.log(0.3), top=top)
    sure = [TokenLogprob(token=one, logprob=0.0) for one in ("pay", "(", "amount=", "85")]
    call = ToolCall(name="pay", arguments={"amount": 85})
    assert values([*sure, ended], call) == {"": 1.0, "amount": pytest.approx(0.4)}


@pytest.mark.parametrize("mark", "\"'")
@pytest.mark.parametrize("value", ["A", "A (UK)", "a[0]", "{}", "f(x)]"])
def test_a_text_that_might_have_gone_on_is_as_unsure_as_that_whatever_its_last_letter(value: str, mark: str) -> None:
    ended = TokenLogprob(token=mark, logprob=math.log(0.3), top=((" Ltd", math.log(0.6)), (f"{mark}, ", math.log(0.1))))
    sure = [TokenLogprob(token=one, logprob=0.0) for one in ("pay", "(", "to=", mark, value, ")")]
    call = ToolCall(name="pay", arguments={"to": value})
    assert values([*sure[:-1], ended, sure[-1]], call) == {"": 1.0, "to": pytest.approx(0.4)}


@pytest.mark.parametrize("blanks", [[" "], ["85 "], [" ", "\t"], ["85 ", " "]])
def test_blanks_end_no_number_and_what_stands_behind_them_does(blanks: list[str]) -> None:
    begun = [] if blanks[0].startswith("85") else ["85"]
    sure = [TokenLogprob(token=one, logprob=0.0) for one in ("pay", "(", "amount=", *begun, *blanks)]
    top = (("* 2", math.log(0.6)), (", ", math.log(0.1)))
    call = ToolCall(name="pay", arguments={"amount": 85})
    found = values([*sure, TokenLogprob(token=")", logprob=math.log(0.3), top=top)], call)
    assert found == {"": 1.0, "amount": pytest.approx(0.4)}


MORE = ("", " ", "\n", "\n  ")
"""Blanks before and behind a comma, or before what closes."""


def test_blanks_around_a_comma_hide_no_doubt_about_one_more_argument() -> None:
    cases = itertools.product(["85", '"ann"'], [*MORE, 99 * " "], ["}", "}}", " }", "\n  }", *MORE], [False, True])
    hidden = []
    for value, blanks, other, split in cases:
        quote = '"' if value[0] == '"' else ""
        pieces = [quote + blanks, ","] if split and quote + blanks else [f"{quote}{blanks},"]
        top = () if quote + other == pieces[0] else ((quote + other, math.log(0.6)),)
        sure = ['{"name": "pay", "arguments": {"amount": ', value.rstrip('"'), *pieces, '\n "now": ', "true", "}}"]
        found = [TokenLogprob(token=one, logprob=0.0) for one in sure]
        found[2] = replace(found[2], logprob=math.log(0.4), top=top)
        call = ToolCall(name="pay", arguments={"amount": json.loads(value), "now": True})
        if top and values(found, call)["now"] != pytest.approx(0.4):
            hidden.append((value, blanks, other, split))
    assert hidden == []


@pytest.mark.parametrize("mark", ['"', ""])
def test_a_token_that_writes_the_end_of_a_value_and_the_comma_hides_no_doubt_about_one_more_argument(mark: str) -> None:
    sure = ['{"name": "pay", "arguments": {"to": ', f"{mark}1", f".5{mark},", ' "now": ', "true", "}}"]
    found = [TokenLogprob(token=one, logprob=0.0) for one in sure]
    found[2] = replace(found[2], logprob=math.log(0.4), top=((f".5{mark}}}", math.log(0.6)),))
    call = ToolCall(name="pay", arguments={"to": "1.5" if mark else 1.5, "now": True})
    assert values(found, call) == {"": 1.0, "to": pytest.approx(1.0), "now": pytest.approx(0.4)}


def test_a_comma_that_comes_with_other_blanks_is_no_doubt() -> None:
    top = (("\n,", math.log(0.3)), (',"', math.log(0.3)))
    ended = TokenLogprob(token=", ", logprob=math.log(0.4), top=top)
    sure = [TokenLogprob(token=one, logprob=0.0) for one in WRITTEN]
    found = [ended if one.token == ", " else one for one in sure]
    assert values(found, PAY) == {"": 1.0, "amount": 1.0, "to": 1.0}


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(["85", '"ann"']),
    st.tuples(st.sampled_from(MORE), st.sampled_from(MORE)),
    st.sets(st.tuples(st.sampled_from(MORE), st.sampled_from(MORE)), max_size=3),
    st.sets(st.sampled_from(MORE), min_size=1),
    st.integers(),
    st.data(),
)
def test_one_more_argument_is_never_surer_than_the_model_is_of_giving_it_whatever_blanks_it_writes(
    first: str, own: tuple[str, str], more: set[tuple[str, str]], ends: set[str], seed: int, data: st.DataObject
) -> None:
    goes_on = {f'{first}{before},{behind}"z": 1}}}}' for before, behind in {own, *more}}
    written = sorted(goes_on | {f"{first}{blanks}}}}}" for blanks in ends})
    random = Random(seed)

    @cache
    def following(text: str) -> dict[str, float]:
        found = sorted({one[len(text) :][:n] for one in written if one.startswith(text) for n in (1, 2, 4, 7)} - {""})
        odds = {piece: random.random() ** 4 + 1e-6 for piece in found}
        return {piece: one / sum(odds.values()) for piece, one in odds.items()}

    @cache
    def exact(text: str) -> float:
        if text in written:
            return float(text in goes_on)
        return sum(odds * exact(text + piece) for piece, odds in following(text).items())

    text = f'{first}{own[0]},{own[1]}"z": 1}}}}'
    at = since = first.rstrip('"')
    found = [TokenLogprob(token=f'{{"name": "pay", "arguments": {{"unit":{since}', logprob=0.0)]
    while at != text:
        piece = data.draw(st.sampled_from([one for one in following(at) if text.startswith(at + one)]))
        top = tuple((one, math.log(odds)) for one, odds in following(at).items())
        found.append(TokenLogprob(token=piece, logprob=math.log(following(at)[piece]), top=top))
        at += piece
    value = values(found, ToolCall(name="pay", arguments={"unit": json.loads(first), "z": 1}))["z"]
    assert (value or 0.0) <= exact(since) + 1e-9


BEGUN = {  # by the value, the tokens before it: alternatives that begin another value, and those that begin none
    ("850", ('":', " ")): (
        [" -", " 9", " null", " [", ' "9', '\n "A', " 8500", " 8", ' "8'],
        [' "', "  ", "\n", " 850}"],  # a number may be written as a text
    ),
    ("850", ('":',)): (['":-', '":9', '": 9', '":null', '": 8', '":""'], ['":', '": ', '":"', '_of":9', "x"]),
    ("850", ('":', " ", " ")): ([" -", " 9", "\n-", " 85"], [" ", " 850,"]),
    ('"ann"', ('":', ' "')): (
        [' "bob', ' "anna', " null", ' [""', ' ""', " 7", " {", ' "an', ' "ann,', ' "ann', " ", "\n"],
        [' "ann",', '\n"', " '"],
    ),
    ('"ann"', ('":', " ", '"')): (['"bob', "null", '"an', " "], ['"ann"', ' "']),
    ('"ann"', ('":', " ")): ([" null", " 8", ' "an'], [" ", "\n", ' "']),
    ('"2026-01-08"', ('":', ' "')): ([" ", " 2026", ' "bob'], [' "2026-01-08"', '\n"']),
    ("true", ('":', " ")): ([" false", ' "', '\n"', " null"], [" ", "\n", " true}"]),
    ("null", ('":', "\n ")): ([' "', '"', " {"], [" ", "\n", " null,"]),
    ("[7]", ('":', " ")): ([' "', ' "[', " 7"], [" ", "\n"]),
    ('{"a":1}', ('": ',)): (['": "', '":"', '": 8'], ['":', '":\n']),
    ('"ann"', ('":',)): (['":null', "\":'bob", '":""'], ["\":'", '": ', '": "', '":"ann"']),
    ('""', ('":', " ")): ([' "A', " 0", " null", ' "'], [" ", ' ""}']),
    ('"ann"', ('":"',)): (['":"bob', '":null', '": "bob', '":7', '":"an', '":', '": '], ['": "', '_id":"bob']),
    ('"850"', ('":"',)): (['":"85', '":null', '":7'], ['":', '": ', '": "']),
}


def test_what_stands_before_a_value_and_may_have_begun_another_one_is_doubt_about_it() -> None:
    wrong = []
    for (value, gap), known in BEGUN.items():
        call = ToolCall(name="pay", arguments={"to": json.loads(value)})
        begun = ['{"name', '":', ' "', "pay", '", "arguments', '":', ' {"', "to"]
        sure = [*begun, *gap, value[gap[-1].endswith('"') :], "}}"]
        found = [TokenLogprob(token=one, logprob=0.0) for one in sure]
        for begins, others in zip((True, False), known, strict=True):
            for other in others:
                changed = replace(found[7 + len(gap)], logprob=math.log(0.4), top=((other, math.log(0.6)),))
                likely = values([*found[: 7 + len(gap)], changed, *found[8 + len(gap) :]], call)["to"]
                if likely != pytest.approx(0.4 if begins or other == changed.token else 1.0):  # itself is no other
                    wrong.append((value, gap, other, likely))
    assert wrong == []


KINDS = (85, -8, 1.5, None, True, "ann", "", "it's", [1], {"a": 1})


@pytest.mark.parametrize("marks", [r"[^\w\s]{1,3}", r"\s?[^\w\s]{1,3}"])
def test_without_alternatives_no_call_is_surer_than_the_model_is_of_its_value(marks: str) -> None:
    surer = []
    for form, (value, other) in itertools.product(READ, itertools.permutations(KINDS, 2)):
        own, rest = [
            re.findall(rf"\s?[A-Za-z]{{1,5}}|\d|{marks}|\s+|.", FORMS[form]("pay", {"to": one}))
            for one in (value, other)
        ]
        at = next(i for i, (one, another) in enumerate(zip(own, rest, strict=False)) if one != another)
        found = doubted([TokenLogprob(token=one, logprob=0.0) for one in own], at, 0.5)
        odds = call_probability(call_parts(found, [ToolCall(name="pay", arguments={"to": value})]), 0)
        if odds is None or odds > 0.5 + 1e-9:
            surer.append((form, value, other))
    assert surer == []


@given(
    st.sampled_from(["", " ", "\n    ", "\n" + 90 * " "]),
    st.sampled_from([":", " :"]),
    st.sampled_from(["850", "-8", '"ann"', '"f(x)"', "true"]),
    st.sampled_from(["-9", "null", '"bob', "[", '"ann,', "8500", "{", '"']),
    st.data(),
)
def test_doubt_before_a_value_is_found_however_key_marks_and_blanks_are_cut_into_tokens(
    blanks: str, colon: str, value: str, other: str, data: st.DataObject
) -> None:
    assume(other != '"' or value == "true")
    before = f'{{"name": "pay", "arguments": {{"to"{colon}{blanks}'
    lead, begin = before.rindex(colon) + len(colon) - 1, len(before) + value.startswith('"')
    inside = st.integers(before.index("to"), begin)
    cuts = sorted({0, begin, *data.draw(st.lists(inside, max_size=20))})
    text = f"{before}{value}}}}}"
    found = [TokenLogprob(token=text[a:b], logprob=0.0) for a, b in itertools.pairwise([*cuts, len(text)])]
    at = data.draw(st.sampled_from([i for i, end in enumerate(cuts[1:]) if end > lead]))
    start = cuts[at]
    rest = data.draw(st.sampled_from([blanks, ""])) if start <= lead else ""
    top = ((text[start : lead + 1] + rest + other, math.log(0.6)),)
    found[at] = replace(found[at], logprob=math.log(0.4), top=top)
    assert values(found, ToolCall(name="pay", arguments={"to": json.loads(value)}))["to"] == pytest.approx(0.4)


def test_what_stands_before_a_tools_name_and_may_have_begun_another_one_is_doubt_about_it() -> None:
    hidden = []
    for form, arguments in itertools.product(sorted(FORMS), ({"amount": 850, "to": "ann"}, {})):
        call, text = ToolCall(name="pay", arguments=arguments), FORMS[form]("pay", arguments)
        at = text.index("pay")
        mark = text[max(at - 1, 0) : at]
        pieces = (text[: max(at - 1, 0)], mark, "pay", text[at + 3 :])
        likely = {mark: (0.4, ((f"{mark}get", math.log(0.6)),))}
        found = []
        for piece in filter(None, pieces):
            odds, top = likely.get(piece, (1.0, ()))
            found.append(TokenLogprob(token=piece, logprob=math.log(odds), top=top))
        if mark and (call_probability(call_parts(found, [call]), 0) or 0.0) > 0.4 + 1e-9:
            hidden.append((form, arguments))
    assert hidden == []


@pytest.mark.parametrize("before", ["", '"', 'use "'])
def test_a_call_cut_at_its_name_or_its_first_value_is_read_without_an_error(before: str) -> None:
    for form, arguments in itertools.product(FORMS.values(), [{}, {"to": ""}, {"amount": 850, "to": "ann"}]):
        whole = before + form("pay", arguments)
        name = whole.index("pay")
        for begin, end in itertools.product([0, max(name - 1, 0), name], [name + 3, name + 9, len(whole) - 1]):
            split = (whole[begin : name - 1], whole[max(begin, name - 1) : name], "pay", whole[name + 3 : end])
            pieces = [piece for piece in split if piece]
            others = [((f"{one[-1]}pay,", -3.0), (f"{one[0]}get", -3.0), ("", -4.0)) for one in pieces]
            found = [TokenLogprob(token=one, logprob=-0.1, top=top) for one, top in zip(pieces, others, strict=True)]
            for part in call_parts(found, [ToolCall(name="pay", arguments=arguments)]):
                assert part.value is None or 0.0 <= part.value <= 1.0


def test_an_alternative_counts_however_many_unlikely_ones_stand_before_it() -> None:
    others = [(f"~{number}", -30.0) for number in range(100)]
    for at, other, of in ((5, '": -', "amount"), (7, "}", "to")):
        found = [TokenLogprob(token=one, logprob=0.0) for one in WRITTEN]
        found[at] = replace(found[at], logprob=math.log(0.4), top=(*others, (other, math.log(0.6))))
        assert values(found, PAY)[of] == pytest.approx(0.4), other


@pytest.mark.parametrize(
    ("begun", "others"),
    [
        ((' {"', "amount", '": '), (" {}", " {}}", " { }", " {", " ")),
        ((" {\n", ' "amount', '": '), (" {}", " {")),
        ((" {", "\n", '"amount', '": '), ("}", " }", "\n}}")),
        ((" {", "\n ", '"', "amount", '": '), ("}}", "\n }")),
    ],
)
def test_the_wish_to_give_no_argument_is_doubt_about_the_first_one(
    begun: tuple[str, ...], others: tuple[str, ...]
) -> None:
    at = 2 if len(begun) > 3 else 1
    call = ToolCall(name="pay", arguments={"amount": 85, "to": "ann"})
    for other in others:
        pieces = ['{"name": "pay", "arguments":', *begun, "85", ", ", '"to": "', "ann", '"}}']
        found = [TokenLogprob(token=one, logprob=0.0) for one in pieces]
        found[at] = replace(found[at], logprob=math.log(0.4), top=((other, math.log(0.6)),))
        assert values(found, call) == {"": 1.0, "amount": pytest.approx(0.4), "to": 1.0}, other
    call = ToolCall(name="pay", arguments={"amount": 85})
    found = [TokenLogprob(token=one, logprob=0.0) for one in ("pay", "(", "amount=", "85", ")")]
    for place, other in ((1, "()"), (1, "( )"), (2, ")")):
        unsure = replace(found[place], logprob=math.log(0.4), top=((other, math.log(0.6)),))
        assert values([*found[:place], unsure, *found[place + 1 :]], call)["amount"] == pytest.approx(0.4), other
    for other in ("( ", "(\n", "(am", "(to"):  # which opens the arguments in another way, or begins a key
        unsure = replace(found[1], token="(a", logprob=math.log(0.4), top=((other, math.log(0.6)),))
        sure = [found[0], unsure, replace(found[2], token="mount="), *found[3:]]
        assert values(sure, call)["amount"] == 1.0, other


def test_of_known_values_only_those_that_are_allowed_are_begun_before_the_value() -> None:
    tools = [{"name": name, "parameters": {}} for name in ("pay", "look_up")]
    sure = ['{"name', '":', ' "', "pay", '", "arguments": {}}']
    for other, odds in ((' "look', 0.4), (' "pay', 1.0), (' "sorry', 1.0), (" null", 1.0), (" ", 1.0)):
        found = [TokenLogprob(token=one, logprob=0.0) for one in sure]
        found[2] = replace(found[2], logprob=math.log(0.4), top=((other, math.log(0.6)),))
        call = ToolCall(name="pay", arguments={})
        step = Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=(call,), logprobs=tuple(found))
        (part,) = call_reading(step, (), tools).parts
        assert part.value == pytest.approx(odds), other


VALUES = ("8", "85", "850", "85.0", "-8", "8e1", "true", "null", '"8"', '"85"', '""', '"f(8)"', '"f(8)[5]"', '"f(8)."')
GOES_ON = (" * 2}}", "%}}", "/2}}")
WHOLE = ("}}", " }}", "} }", "\n}}")
"""What may stand behind a value, with which it is another one or the end of the call."""


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sets(st.sampled_from(VALUES), min_size=1),
    st.sets(st.sampled_from([*GOES_ON, *WHOLE, ', "z": 1}}'])),
    st.sampled_from(WHOLE),
    st.integers(),
    st.data(),
)
def test_a_value_is_never_surer_than_the_model_is_of_it_however_it_is_ended(
    others: set[str], ends: set[str], end: str, seed: int, data: st.DataObject
) -> None:
    written = {
        before + one + behind: (one, behind) for before in ("", " ") for one in others for behind in {end, *ends}
    }
    random = Random(seed)

    @cache
    def following(text: str) -> dict[str, float]:
        found = sorted({one[len(text) :][:n] for one in written if one.startswith(text) for n in (1, 2, 3, 4)} - {""})
        odds = {piece: random.random() ** 4 + 1e-6 for piece in found}
        return {piece: one / sum(odds.values()) for piece, one in odds.items()}

    @cache
    def exact(text: str, value: str) -> float:
        if text in written:
            one, behind = written[text]
            return float(one == value and (one[0] == '"' or behind not in GOES_ON))
        return sum(odds * exact(text + piece, value) for piece, odds in following(text).items())

    text = data.draw(st.sampled_from(sorted(one for one in written if written[one][1] == end)))
    at, since, found = "", "", [TokenLogprob(token='{"name": "pay", "arguments": {"unit":', logprob=0.0)]
    begin = len(text) - len(text.lstrip()) + text.lstrip().startswith('"')
    while at != text:
        piece = data.draw(st.sampled_from([one for one in following(at) if text.startswith(at + one)]))
        top = tuple((one, math.log(odds)) for one, odds in following(at).items())
        found.append(TokenLogprob(token=piece, logprob=math.log(following(at)[piece]), top=top))
        at += piece
        since = at if len(at) <= begin else since  # where the first token of the value begins
    value = values(found, ToolCall(name="pay", arguments={"unit": json.loads(written[text][0])}))["unit"]
    assert (value or 0.0) <= exact(since, written[text][0]) + 1e-9


@given(
    NAMES,
    ARGUMENTS,
    st.sampled_from(READ),
    st.lists(st.tuples(st.text(max_size=4), st.floats(allow_nan=True))),
    st.data(),
)
def test_alternatives_of_any_kind_leave_each_value_a_probability_above_that_of_the_part(
    name: str, arguments: dict[str, Any], form: str, others: list[tuple[str, float]], data: st.DataObject
) -> None:
    call, sure = ToolCall(name=name, arguments=arguments), tokens(FORMS[form](name, arguments))
    logs = data.draw(st.lists(st.floats(max_value=0.0), min_size=len(sure), max_size=len(sure)))
    found = [replace(one, logprob=log, top=tuple(others)) for one, log in zip(sure, logs, strict=True)]
    for part in call_parts(found, [call]):
        assert part.value is None or 0.0 <= part.value <= 1.0


@given(st.lists(st.tuples(st.floats(0, 1), st.none() | st.floats(0, 1)), min_size=1, max_size=6))
def test_the_part_to_look_at_first_is_that_of_the_least_likely_value_where_one_is_in_doubt(
    odds: list[tuple[float, float | None]],
) -> None:
    parts = [CallPart(name=str(n), probability=whole, value=value) for n, (whole, value) in enumerate(odds)]
    told = [whole if value is None else value for whole, value in odds]
    weakest = weakest_part(parts, 0)
    assert weakest is not None
    if min(told) < 0.95:
        assert told[int(weakest.name)] == min(told)
    else:
        assert weakest.probability == min(whole for whole, _ in odds)


def test_a_key_that_a_grammar_forced_does_not_hide_the_doubtful_value() -> None:
    """As recorded: a grammar made a model write `arguments`, at which it would have written `description`."""
    odds = {'arguments": {"': 0.05, "85": 0.6}
    found = [TokenLogprob(token=one, logprob=math.log(odds.get(one, 1.0))) for one in WRITTEN]
    weakest = weakest_part(call_parts(found, [PAY]), 0)
    assert weakest is not None
    assert (weakest.name, weakest.value) == ("amount", pytest.approx(0.6))
