"""What vouches for a call is one writing of it, whole, and each writing vouches once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from grampus_uq import ToolCall
from tests.signals.test_call_lending import FLOOR, TURNS, Turn, odds
from tests.signals.turns_of_calls import ARGUMENTS, FORMS, LINES, NAMES, tokens


def listed(name: str, *arguments: dict[str, Any]) -> list[ToolCall]:
    return [ToolCall(id=f"c{number}", name=name, arguments=one) for number, one in enumerate(arguments)]


def vouched(found: Sequence[float | None]) -> int:
    return sum((odd or 0.0) >= FLOOR for odd in found)


@given(NAMES, ARGUMENTS, st.sampled_from(list(FORMS)), st.integers(1, 4), st.integers(1, 6))
def test_as_many_equal_calls_are_vouched_for_as_are_written(
    name: str, arguments: dict[str, Any], form: str, written: int, times: int
) -> None:
    text = "\n".join([FORMS[form](name, arguments)] * written)
    assert vouched(odds(tokens(text), *listed(name, *[arguments] * times))) == min(written, times)


@given(TURNS, st.integers(2, 5))
@example(("pay", {"amount": 500}, "marks", "a copy in code"), 2)
def test_a_line_in_another_form_vouches_for_no_second_call(turn: Turn, times: int) -> None:
    name, arguments, form, before = turn
    text = LINES[before](name, arguments) + FORMS[form](name, arguments)
    assume(text.count("{") < 2 or not before.startswith("a copy"))  # the line is a call in the very form
    assume(form not in ("by position", "pythonic") or before not in ("values in brackets", "a copy in code"))
    assert vouched(odds(tokens(text), *listed(name, *[arguments] * times))) == 1


@given(NAMES, ARGUMENTS, st.sampled_from(list(FORMS)), st.booleans(), st.data())
def test_a_call_that_lists_fewer_arguments_than_were_written_is_not_vouched_for(
    name: str, arguments: dict[str, Any], form: str, beside: bool, data: st.DataObject
) -> None:
    """A tool's default would run in the place of what the model wrote; beside the whole call as alone."""
    assume(arguments)
    dropped = data.draw(st.sets(st.sampled_from(list(arguments)), min_size=1))
    fewer = {key: value for key, value in arguments.items() if key not in dropped}
    found = odds(tokens(FORMS[form](name, arguments)), *listed(name, fewer, *[arguments] * beside))
    assert (found[0] or 0.0) < FLOOR
    assert found[1:] == [1.0] * beside


@given(NAMES, ARGUMENTS, st.sampled_from(list(FORMS)), st.data())
def test_a_call_that_lists_more_arguments_than_were_written_is_not_vouched_for(
    name: str, arguments: dict[str, Any], form: str, data: st.DataObject
) -> None:
    more = {
        **arguments,
        data.draw(st.sampled_from(["days", "force", "reason"])): data.draw(st.sampled_from([3, "now"])),
    }
    (found,) = odds(tokens(FORMS[form](name, arguments)), *listed(name, more))
    assert (found or 0.0) < FLOOR


@pytest.mark.parametrize("names", [("bank.send", "send"), ("bank.send", "bank_send"), ("bank/send", "bank_send")])
def test_one_writing_is_not_that_of_two_names(names: tuple[str, str]) -> None:
    text = f'{{"name": "{names[0]}", "arguments": {{"amount": 500}}}}'
    calls = [ToolCall(id=name, name=name, arguments={"amount": 500}) for name in names]
    assert vouched(odds(tokens(text), *calls)) == 1


def test_one_value_is_not_that_of_two_types() -> None:
    text = '{"name": "pay", "arguments": {"amount": "500"}}'
    assert vouched(odds(tokens(text), *listed("pay", {"amount": 500}, {"amount": "500"}))) == 1


@pytest.mark.parametrize("line", ["pay\n", "Tool: pay\n", "**pay**\n\n"])
def test_a_line_with_a_name_is_no_call_without_arguments(line: str) -> None:
    assert vouched(odds(tokens(line + FORMS["YAML"]("pay", {})), *listed("pay", {}, {}))) == 1


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        ("<|channel>thought", "<channel|>"),
        ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ],
)
def test_a_call_in_the_thoughts_is_none(begin: str, end: str) -> None:
    own = FORMS["tags"]("pay", {"amount": 500})
    calls = listed("pay", {"amount": 500}, {"amount": 500})
    assert vouched(odds(tokens(f"{begin}{own}{end}{own}"), *calls)) == 1
    assert vouched(odds(tokens(f"{begin}{own}{end}{own}{own}"), *calls)) == 2
    assert vouched(odds(tokens(f"{begin}{own}{end}Done."), *calls)) == 0


CUT = {
    "850": ["850, not now", "850,5", "-$850", "- 850", "850,000.5", "850 | no", "850; x", "850 & x", "(850)", "-850"],
    "/srv/a": ["/srv/a, /srv/b", "!/srv/a", "/srv/a | x", "/srv/a; rm", "/srv/a/b"],
    "ann": ["ann, but not yet", "ann@evil.org", "not ann", "ann & bob", "~ann", "ann # no"],
    "tenant = 3": ["tenant = 3 | id = 7", "tenant = 3, id = 7"],
}
"""Values as a client may cut them, and what was written."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", CUT)
def test_a_value_that_the_client_cut_is_not_the_whole(form: str, value: str) -> None:
    given_ = int(value) if value.isdecimal() else value
    for wrote in CUT[value]:
        for beside in ({}, {"memo": "x-ray"}):
            if form == "by position" and "," in wrote:
                continue
            text = FORMS[form]("pay", {"to": wrote, **beside})
            if form == "YAML" and re.search(r" #", wrote):  # which is a comment there
                continue
            assert odds(tokens(text), *listed("pay", {"to": given_, **beside}))[0] in (None, 0.0), text


@pytest.mark.parametrize("form", FORMS)
def test_a_name_that_the_client_cut_is_not_the_whole(form: str) -> None:
    for wrote in ("cancel/pay", "undo pay", "!pay", "no_pay", "pay.cancel", "pay-later", "~pay", "un-pay"):
        text = FORMS[form](wrote, {"amount": 850})
        assert odds(tokens(text), *listed("pay", {"amount": 850}))[0] in (None, 0.0), text
