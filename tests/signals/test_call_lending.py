"""No line before a call lends it a name, a key or a value that its own tokens do not write."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grampus_uq import TokenLogprob, ToolCall
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.records.call_parts import call_probability
from grampus_uq.signals.call_tokens import call_parts
from tests.sampling import crossed
from tests.signals.turns_of_calls import ARGUMENTS, FORMS, LINES, NAMES, Form, other, own_words, tokens

FLOOR = UncertaintyPolicy().call_floor or 0.0
Turn = tuple[str, dict[str, Any], str, str]
TURNS = st.tuples(NAMES, ARGUMENTS, st.sampled_from(list(FORMS)), st.sampled_from(list(LINES)))


def odds(found: Sequence[TokenLogprob], *calls: ToolCall, shown: str = "") -> list[float | None]:
    parts = call_parts(found, calls, text=shown)
    return [call_probability(parts, number) for number in range(len(calls))]


def damaged(own: list[TokenLogprob], at: int, damage: str) -> list[TokenLogprob]:
    lost = own[at].token
    if damage == "lost":
        return own[:at] + own[at + 1 :]
    if damage == "merged and lost":
        return own[:at] + own[at + 2 :]
    one = replace(own[at], token=other(lost)) if damage == "changed" else replace(own[at], logprob=math.log(0.3))
    return [*own[:at], one, *own[at + 1 :]]


def _still_writes(text: str, call: ToolCall) -> bool:
    """True where what is left is a JSON object of the very call."""
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1])
        given_ = found.get("arguments", found.get("parameters"))
        return bool(
            found["name"] == call.name
            and (given_ if isinstance(given_, dict) else json.loads(given_)) == call.arguments
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


@given(TURNS, st.sampled_from(["lost", "changed", "doubtful", "merged and lost"]), st.booleans(), st.data())
def test_a_call_with_a_lost_a_changed_or_a_doubtful_token_is_below_the_floor(
    turn: Turn, damage: str, shown: bool, data: st.DataObject
) -> None:
    """Of its name, a key or a value; whatever the line before it holds, and whether that is the visible text or not."""
    name, arguments, form, before = turn
    own, line = FORMS[form](name, arguments), LINES[before](name, arguments)
    at = data.draw(st.sampled_from(own_words(own, name, arguments)))
    left = damaged(tokens(own), at, damage)
    text = "".join(one.token for one in left)
    call = ToolCall(name=name, arguments=arguments)
    assume(damage == "doubtful" or (text != own and not _still_writes(text, call)))
    assume("lost" not in damage or arguments)  # of a name and two brackets nothing may be left at all
    merged = "".join(one.token for one in tokens(own)[at : at + 2])
    assume(damage != "merged and lost" or not merged.endswith("="))  # a key and its sign: the value by its position
    (found,) = odds([*tokens(line), *left], call, shown=line.strip() if shown else "")
    assert found is not None
    assert found < FLOOR


@pytest.mark.parametrize("form", FORMS)
def test_text_behind_a_call_lends_it_no_value_that_it_lost(form: str) -> None:
    arguments = {"to": "ann", "amount": 850}
    own = FORMS[form]("pay", arguments)
    at = own.rindex("850")
    for behind in ("\n850", "850", "  # 850", " // amount 850", "\n- to: ann\n- amount: 850\n", "\namount=850"):
        found = [*tokens(own[:at]), *tokens(own[at + 3 :]), *tokens(behind)]
        (odd,) = odds(found, ToolCall(name="pay", arguments=arguments))
        assert odd is not None, behind
        assert odd < FLOOR, behind


BEHIND: dict[str, Form] = {
    "values in brackets": lambda n, a: f"\n{n}({', '.join(map(str, a.values()))})",
    "name and values": lambda n, a: f"\n{n} {' '.join(f'{k}={v}' for k, v in a.items())}",
    "a name and a list": lambda n, a: f"\n{n}: {', '.join(f'{k}: {v}' for k, v in a.items())}",
    "thoughts": lambda n, a: f"\n<think>So {FORMS['pythonic'](n, a)[1:-1]} it is</think>",
    "code": lambda n, a: f"\n{FORMS['pythonic'](n, a)[1:-1]}",
    "arguments": lambda _, a: f"\n{json.dumps(a)}",
}
"""Lines behind a call, which hold its name, its keys and its values."""
UNMARKED = ("elements", "lisp", "by position", "pythonic", "arguments first")
"""Forms whose beginning is no mark of a call, or stands behind the arguments."""


@given(
    NAMES,
    ARGUMENTS.filter(lambda arguments: any(len(str(value)) > 1 for value in arguments.values())),
    st.sampled_from([form for form in FORMS if form not in UNMARKED]),
    st.sampled_from(list(BEHIND)),
    st.sampled_from(["lost", "changed", "doubtful"]),
    st.data(),
)
def test_a_line_behind_a_call_lends_it_no_value_that_it_lost(
    name: str, arguments: dict[str, Any], form: str, behind: str, damage: str, data: st.DataObject
) -> None:
    own = FORMS[form](name, arguments)
    value = next(str(one) for one in arguments.values() if len(str(one)) > 1)
    inside = own_words(own, "", {"": next(one for one in arguments.values() if str(one) == value)})
    assume(inside)
    left = damaged(tokens(own), data.draw(st.sampled_from(inside)), damage)
    call = ToolCall(name=name, arguments=arguments)
    text = "".join(one.token for one in left)
    assume(damage == "doubtful" or (text != own and not _still_writes(text, call)))
    (found,) = odds([*left, *tokens(BEHIND[behind](name, arguments))], call)
    assert found is not None
    assert found < FLOOR


LEAST_CUT = {"by position": "(", "YAML": ":", "fence": "```json", "react": "Action"}
"""What a stream that is cut has to hold to be told from one that ends."""


@crossed("form,before", list(FORMS), ["a copy", "a copy in code", "values in brackets", "name and values", "a name"])
def test_a_stream_that_is_cut_within_a_call_vouches_for_nothing(form: str, before: str) -> None:
    """Whatever the line before it holds, a copy of the call included, and whether that is the visible text or not."""
    for arguments in ({"to": "Mallory Smith", "amount": 500}, {"ref": "A-17"}, {}):
        own, line = tokens(FORMS[form]("pay", arguments)), LINES[before]("pay", arguments)
        written = ["pay", *map(str, arguments.values())]
        for number in range(1, len(own)):
            text = "".join(one.token for one in own[:number])
            if all(word in text for word in written):
                break
            if LEAST_CUT.get(form, "") in text and (arguments or form != "arguments first"):
                for shown in ("", line.strip()):
                    call = ToolCall(name="pay", arguments=arguments)
                    (found,) = odds([*tokens(line), *own[:number]], call, shown=shown)
                    assert found is not None, text
                    assert found < FLOOR, text


@crossed("form,between", [form for form in FORMS if form != "YAML"], [None, "\n", ""])  # YAML closes nothing
def test_a_stream_that_is_cut_vouches_for_no_call_that_its_client_completed(form: str, between: str | None) -> None:
    """A number may go on, and an argument may be left, where what the call opened is not closed."""
    other = {"to": "eve", "amount": 700}
    first = "" if between is None else FORMS[form]("pay", other) + between
    beside = [ToolCall(name="pay", arguments=other)] if first else []
    own = FORMS[form]("pay", {"to": "bob", "amount": 500})
    for end in range(own.index("bob"), own.index("500") + 4 - ("</" in own[own.index("bob") :])):
        numbers = [{"to": "bob", "amount": number} for number in (5, 50, 500)]
        for arguments in (*([] if "</" in own[own.index("bob") : end] else [{"to": "bob"}]), *numbers):
            found = odds(tokens(first + own[:end]), *beside, ToolCall(name="pay", arguments=arguments))
            assert found[-1] in (None, 0.0), (own[:end], arguments)


@given(
    NAMES,
    ARGUMENTS.filter(lambda arguments: len({str(value) for value in arguments.values() if len(str(value)) > 1}) > 1),
    st.sampled_from(["by position", "lisp", "pythonic", "elements", "arguments first"]),
    st.sampled_from(["lost", "changed"]),
    st.data(),
)
def test_a_copy_with_marks_behind_a_call_in_code_lends_it_no_value_that_it_lost(
    name: str, arguments: dict[str, Any], form: str, damage: str, data: st.DataObject
) -> None:
    own = FORMS[form](name, arguments)
    value = next(str(one) for one in arguments.values() if len(str(one)) > 1)
    inside = own_words(own, "", {"": next(one for one in arguments.values() if str(one) == value)})
    assume(inside)
    left = damaged(tokens(own), data.draw(st.sampled_from(inside)), damage)
    text = "".join(one.token for one in left)
    assume(text != own and not _still_writes(text, ToolCall(name=name, arguments=arguments)))
    (found,) = odds([*left, *tokens(f"\n{FORMS['object'](name, arguments)}")], ToolCall(name=name, arguments=arguments))
    assert found is not None
    assert found < FLOOR


@pytest.mark.parametrize("form", [one for one in FORMS if one not in ("by position", "pythonic", "lisp", "YAML")])
def test_a_line_behind_a_call_without_arguments_lends_it_no_name(form: str) -> None:
    own = FORMS[form]("refund", {})
    lost = own.replace("refund", "", 1)
    for behind in BEHIND.values():
        (found,) = odds(tokens(lost + behind("refund", {})), ToolCall(name="refund", arguments={}))
        assert (found or 0.0) < FLOOR, lost


BEGUN = [form for form in FORMS if form not in (*UNMARKED, "YAML")]
LENT = ("a copy in code", "name and values", "a name and a list", "arguments")


def test_a_line_before_what_is_left_of_a_call_lends_it_no_beginning() -> None:
    lent = []
    both = {"to": "Mallory Smith", "amount": 500}, {"ref": "A-17"}
    for form, line, arguments in itertools.product(FORMS, LENT, both):
        own, call = tokens(FORMS[form]("pay", arguments)), ToolCall(name="pay", arguments=arguments)
        for at in range(len(own)):
            left = "".join(one.token for one in own[at:])
            if "pay" in left or not any(str(value) in left for value in arguments.values()):
                continue
            (found,) = odds([*tokens(LINES[line]("pay", arguments)), *own[at:]], call)
            if (found or 0.0) >= FLOOR and form != "by position":
                lent.append((form, line, left))
    assert lent == []


def test_a_line_before_what_is_left_of_a_call_vouches_for_no_value_of_one_character() -> None:
    """Where what is left closes more than it opens."""
    lent = []
    for form, line, value in itertools.product(BEGUN, LENT, ("x", "q", 7)):
        arguments = {"to": value, "memo": "b"}
        own, call = tokens(FORMS[form]("pay", arguments)), ToolCall(name="pay", arguments=arguments)
        for at in range(1, len(own)):
            left = "".join(one.token for one in own[at:])
            (found,) = odds([*tokens(LINES[line]("pay", arguments)), *own[at:]], call) if "pay" not in left else (0.0,)
            values = re.sub(r"\w*:tool_call", "", left)  # MiniMax's tag holds an x
            if (found or 0.0) >= FLOOR and str(value) in values and not left.startswith("{"):
                lent.append((form, line, left))
    assert lent == []


@pytest.mark.parametrize("beside", [{"id": "call_1"}, {"index": 0, "type": "function"}, {"meta": {"a": [{}]}}])
def test_a_call_whose_object_goes_on_behind_its_arguments_is_read(beside: dict[str, Any]) -> None:
    call = {"name": "pay", "arguments": {"to": "x", "memo": "b"}, **beside}
    for text in (
        json.dumps(call),
        json.dumps([{"function": call, **beside}]),
        f"<tool_call>{json.dumps(call)}</tool_call>",
    ):
        assert odds(tokens(text), ToolCall(name="pay", arguments=call["arguments"])) == [1.0], text


TOGETHER = [
    ToolCall(name="pay", arguments={"to": "Mallory", "amount": 500}),
    ToolCall(name="send", arguments={"to": "ann"}),
    ToolCall(name="pay", arguments={"to": "x"}),
]
IN_TAGS = [
    form for form in BEGUN if FORMS[form]("pay", {"to": "x"}).startswith("<") or form in ("object", "parameters")
]


@pytest.mark.parametrize("around", ["tool_calls", "function_calls", "calls id='1'"])
@pytest.mark.parametrize("form", IN_TAGS)
def test_calls_that_stand_together_within_a_tag_are_read_as_without_it(form: str, around: str) -> None:
    alone = "\n".join(FORMS[form](call.name, call.arguments) for call in TOGETHER)
    within = f"<{around}>\n{alone}\n</{around.split()[0]}>"
    assert odds(tokens(within), *TOGETHER) == odds(tokens(alone), *TOGETHER)


def test_several_calls_that_deepseek_writes_within_one_tag_are_read() -> None:
    begin, end = "<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"
    each = [FORMS["DeepSeek V3.2"](call.name, call.arguments).strip() for call in TOGETHER]
    assert all(one.startswith(begin) and one.endswith(end) for one in each)
    within = begin + "\n".join(one.removeprefix(begin).removesuffix(end) for one in each) + end
    assert odds(tokens(within), *TOGETHER) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("end", ["</s>", "<seed:eos>", "[e~[", "<start_function_response>", "<|im_end|>"])
@pytest.mark.parametrize("form", FORMS)
def test_the_token_that_ends_a_turn_ends_no_call(form: str, end: str) -> None:
    text = "\n".join(FORMS[form](call.name, call.arguments) for call in TOGETHER)
    assert odds([*tokens(text), TokenLogprob(token=end, logprob=0.0)], *TOGETHER) == odds(tokens(text), *TOGETHER)
    assert odds(tokens(text), *TOGETHER) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("around", ["tool_calls", "TOOLCALL"])
@pytest.mark.parametrize("between", ["", "\n", "\n    "])
def test_a_list_of_calls_within_a_tag_is_read(around: str, between: str) -> None:
    """As Jamba, Hunyuan, Apriel and Nemotron write it."""
    calls = [*TOGETHER, ToolCall(name="look", arguments={})]
    for listed in (calls, calls[-1:]):
        objects = f",{between}".join(FORMS["object"](call.name, call.arguments) for call in listed)
        assert odds(tokens(f"<{around}>[{between}{objects}]</{around}>"), *listed) == [1.0] * len(listed)


NAMED = [form for form in FORMS if form not in ("Python's dictionary", "a comma too many", "by position", "elements")]


@pytest.mark.parametrize("arguments", [{"name": "Ann", "id": 7}, {"id": "A-17", "memo": ""}])
@pytest.mark.parametrize("form", NAMED)
def test_a_key_that_the_form_has_too_and_an_empty_text_are_read(form: str, arguments: dict[str, Any]) -> None:
    calls = [ToolCall(name="pay", arguments=arguments), *TOGETHER]
    for listed in (calls, [*TOGETHER, calls[0]], calls[:1]):
        text = "\n".join(FORMS[form](call.name, call.arguments) for call in listed)
        assert odds(tokens(text), *listed) == [1.0] * len(listed), text


@pytest.mark.parametrize("around", ["<tool_call><tool_call>", "<tool_call>", "<parameter><function>"])
def test_what_begins_before_a_copy_lets_no_more_end_behind_it(around: str) -> None:
    call, lent = ToolCall(name="pay", arguments={"to": "x", "memo": "b"}), []
    for form, line in itertools.product(BEGUN, LENT):
        own = tokens(FORMS[form]("pay", call.arguments))
        for at in range(1, len(own)):
            left = "".join(one.token for one in own[at:])
            found = (
                (0.0,)
                if "pay" in left
                else odds([*tokens(around + LINES[line]("pay", call.arguments)), *own[at:]], call)
            )
            if (found[0] or 0.0) >= FLOOR and '"x"' in left and not left.startswith("{"):
                lent.append((form, line, left))
    assert lent == []


def test_a_line_before_a_call_of_which_only_marks_are_left_vouches_for_none() -> None:
    """Cut behind its beginning, or without any word of its own, at the end or before another call."""
    beside, wait = ToolCall(name="send_email", arguments={"memo": "Trent", "order_id": 9117}), "but wait a moment " * 5
    arguments = {"to": "Mallory Smith", "amount": 500}
    call, vouched = ToolCall(name="pay", arguments=arguments), []
    for form, line in itertools.product(BEGUN, LENT[:-1]):
        own, whole = tokens(FORMS[form]("pay", arguments)), FORMS[form](beside.name, beside.arguments)
        words = own_words(FORMS[form]("pay", arguments), "pay", arguments)
        marks = "".join(one.token for number, one in enumerate(own) if number not in words)
        begun = "".join(one.token for one in own[: words[0]])
        for text in (f"{whole}\n{begun}\nDone.", f"{begun}pa\n", f"{marks}\n{whole}", f"{begun}\n{wait}\n{whole}"):
            calls = [call, beside][: 1 + (whole in text)]
            found = odds(tokens(LINES[line]("pay", arguments) + text), *calls)[0]
            if (found or 0.0) >= FLOOR:
                vouched.append((form, line, text))
    assert vouched == []


def test_a_line_behind_a_key_that_lost_its_tools_name_and_its_value_lends_it_neither() -> None:
    lent = []
    for form, behind, value in itertools.product(BEGUN, BEHIND, ("Mallory Smith", "A-17", "500")):
        arguments = {"ref": "A-17"} if value == "A-17" else {"to": "Mallory Smith", "amount": 500}
        own = FORMS[form]("pay", arguments)
        left = own[: own.index(value)].replace("pay", "", 1)
        (found,) = odds(tokens(left + BEHIND[behind]("pay", arguments)), ToolCall(name="pay", arguments=arguments))
        if (found or 0.0) >= FLOOR:
            lent.append((form, behind, left))
    assert lent == []


@given(TURNS)
def test_a_right_and_sure_call_is_not_held_for_a_line_before_it_that_names_its_values(turn: Turn) -> None:
    name, arguments, form, before = turn
    text = LINES[before](name, arguments) + FORMS[form](name, arguments)
    assert odds(tokens(text), ToolCall(name=name, arguments=arguments)) == [1.0]


@given(TURNS, NAMES, ARGUMENTS)
def test_two_right_and_sure_calls_of_one_turn_are_not_held(turn: Turn, other_name: str, more: dict[str, Any]) -> None:
    name, arguments, form, _ = turn
    calls = [ToolCall(name=name, arguments=arguments), ToolCall(name=other_name, arguments=more)]
    assume(calls[0] != calls[1])
    text = "\n".join(FORMS[form](call.name, call.arguments) for call in calls)
    assert odds(tokens(text), *calls) == [1.0, 1.0]


@given(TURNS, NAMES, ARGUMENTS, st.booleans(), st.sampled_from(["lost", "changed", "doubtful"]), st.data())
def test_of_two_calls_the_damaged_one_is_below_the_floor(
    turn: Turn, other_name: str, more: dict[str, Any], first: bool, damage: str, data: st.DataObject
) -> None:
    name, arguments, form, before = turn
    call, beside = ToolCall(name=name, arguments=arguments), ToolCall(name=other_name, arguments=more)
    assume(call != beside)
    assume(
        damage == "doubtful" or arguments
    )  # a changed name with two brackets is another call, a copy before it this one
    own, line = FORMS[form](name, arguments), LINES[before](name, arguments)
    at = data.draw(st.sampled_from(own_words(own, name, arguments)))
    left = damaged(tokens(own), at, damage)
    text = "".join(one.token for one in left)
    assume(damage == "doubtful" or (text != own and not _still_writes(text, call)))
    closing = "".join(one.token for one in tokens(own)[:at]).rpartition("<")[2].startswith("/")
    assume(damage == "doubtful" or name != other_name or not closing)  # the other call closes this one's element, too
    intact = [*tokens("\n"), *tokens(FORMS[form](other_name, more)), *tokens("\n")]
    found, _ = odds([*tokens(line), *left, *intact] if first else [*tokens(line), *intact, *left], call, beside)
    assert found is not None
    assert found < FLOOR


@pytest.mark.parametrize(
    "text",
    [
        'amount: 500\n{"name": "pay", "arguments": {"amount": }}',
        'pay amount=500\n{"name": "pay", "arguments": {"amount": 900}}',
        'pay: amount: 500\n{"name": "", "arguments": {"amount": 500}}',
        "pay\n<><amount>500</amount></>",
        'pay\n[TOOL_CALLS][ARGS]{"amount": 500}',
        'pay\nTool:\nInput: {"amount": 500}',
        'pay(amount=500)\n{"name": "refund", "arguments": {"order": 9}}',
        'The page says "pay": {"amount": 500}',
    ],
)
def test_what_a_line_lends_is_not_the_calls(text: str) -> None:
    (found,) = odds(tokens(text), ToolCall(name="pay", arguments={"amount": 500}))
    assert found == 0.0


def test_a_draft_without_marks_holds_a_call_beside_it_only_where_a_value_of_the_call_stands_in_it() -> None:
    call = ToolCall(name="pay", arguments={"to": "Mallory Smith", "amount": 500})
    wrong = []
    for form, value in itertools.product(FORMS, ("Mallory Smith", "500", "Trent Smith", "700")):
        for draft in (f"send({value}\n", f'{{"action": "give {value}"}}\n', f"transfer(of=that, {value}\n"):
            (found,) = odds(tokens(draft + FORMS[form]("pay", call.arguments)), call)
            holds = value in ("Mallory Smith", "500")
            if found != (0.0 if holds else 1.0) and (holds or form not in UNMARKED):
                wrong.append((form, draft, found))
    assert wrong == []
