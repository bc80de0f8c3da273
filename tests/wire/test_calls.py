"""A proposed call is read alike in every form, and what cannot be read is kept as text and marked."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.records.values import ToolCall
from grampus_uq.wire.calls import MAX_ARGUMENT_CHARACTERS, UNPARSED, is_unparsed, read_arguments, read_call
from tests.sampling import examples

PAY = ToolCall(id="c1", name="pay", arguments={"amount": 5})
TEXT = '{"amount": 5}'
FORMS: list[tuple[str, Any]] = [
    ("our own record", PAY),
    ("an OpenAI chat call", {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": TEXT}}),
    ("the same with an object", {"id": "c1", "function": {"name": "pay", "arguments": {"amount": 5}}}),
    (
        "an OpenAI responses item",
        {"type": "function_call", "call_id": "c1", "id": "fc", "name": "pay", "arguments": TEXT},
    ),
    ("a LangChain call", {"id": "c1", "name": "pay", "args": {"amount": 5}, "type": "tool_call"}),
    ("a LangChain call that is invalid", {"id": "c1", "name": "pay", "args": TEXT, "type": "invalid_tool_call"}),
    ("a pydantic-ai part", SimpleNamespace(tool_name="pay", args=TEXT, tool_call_id="c1", part_kind="tool-call")),
    ("an Anthropic block", {"type": "tool_use", "id": "c1", "name": "pay", "input": {"amount": 5}}),
    ("a Gemini part", {"id": "c1", "functionCall": {"name": "pay", "args": {"amount": 5}}}),
    ("a call of Cohere or Llama", {"id": "c1", "name": "pay", "parameters": {"amount": 5}}),
    ("a GenAI part", {"type": "tool_call", "id": "c1", "name": "pay", "arguments": {"amount": 5}}),
    (
        "an object of a client",
        SimpleNamespace(id="c1", type="function", function=SimpleNamespace(name="pay", arguments=TEXT)),
    ),
]


@pytest.mark.parametrize("value", [value for _, value in FORMS], ids=[name for name, _ in FORMS])
def test_every_form_of_a_call_is_the_same_call(value: Any) -> None:
    read = read_call(value)
    assert (read.call, read.problem, read.recognised) == (PAY, None, True)


def test_the_text_of_a_custom_tool_is_its_input_and_never_parsed() -> None:
    item = {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": '{"a": 1}'}
    chat = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": '{"a": 1}'}}
    expected = ToolCall(id="c1", name="shell", arguments={"input": '{"a": 1}'})
    assert read_call(item).call == read_call(chat).call == expected


def test_a_built_in_tool_is_named_by_its_kind_and_has_its_action_as_arguments() -> None:
    item = {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["rm", "-rf", "x"]}}
    assert read_call(item).call == ToolCall(id="c1", name="local_shell", arguments={"command": ["rm", "-rf", "x"]})


UNREADABLE: list[Any] = [
    "[]",
    '"x"',
    "3",
    "{",
    "{'a': 1}",
    '{"a": 1} {"b": 2}',
    '{"a": NaN}',
    '{"a": [-Infinity]}',
    '{"a": 1e999}',
    "[" * 100_000,
    '{"a":' * 500,
    '{"a":' * 400 + "1" + "}" * 400,
    '{"a": ' + "9" * 10_000 + "}",
    "x" * (MAX_ARGUMENT_CHARACTERS + 1),
    [1],
    3,
    True,
    b"{}",
    {"a": object()},
    {"a": math.nan},
    {"a": {1, 2}},
    {"a": 10**5000},
    {1: 2},
    dict.fromkeys(["a\ud83d", "a\udc00"], 1),
]


@pytest.mark.parametrize("value", UNREADABLE, ids=range(len(UNREADABLE)))
def test_arguments_that_are_no_json_object_are_kept_as_text_and_marked(value: Any) -> None:
    read = read_call({"id": "c", "function": {"name": "pay", "arguments": value}})
    assert read.problem is not None
    assert read.problem.startswith("has arguments that ")
    assert read.recognised
    assert read.call.name == "pay"
    assert is_unparsed(read.call)
    text = read.call.arguments[UNPARSED]
    assert isinstance(text, str)
    assert len(text) < 17_000
    if isinstance(value, str) and len(value) < 10_000:
        assert text == value
    read.call.digest()
    read.call.model_dump_json().encode()


def test_unreadable_arguments_that_differ_anywhere_are_different_calls() -> None:
    long = "x" * 50_000
    texts = ["{", "{ ", long, long + "y", long + "z", {"a": object, "b": long}, {"a": object, "b": long + "y"}]
    digests = {ToolCall(name="pay", arguments=read_arguments(text).values).digest() for text in texts}
    assert len(digests) == len(texts)


@pytest.mark.parametrize("value", [None, 5, "pay", [], {}, object(), {"role": "user"}, SimpleNamespace(a=1)])
def test_what_has_no_place_for_a_name_is_no_call(value: Any) -> None:
    read = read_call(value)
    assert not read.recognised
    assert read.problem is not None
    assert read.problem.startswith("is not a tool call")


@pytest.mark.parametrize("name", ["", 3, ["f"], {"x": 1}])
def test_a_call_whose_name_is_no_text_has_none_and_says_so(name: Any) -> None:
    read = read_call({"name": name, "arguments": "{}"})
    assert (read.call.name, read.problem) == ("", "has no name")


def test_half_an_emoji_is_mended_in_every_text_of_a_call() -> None:
    read = read_call({"id": "i\ud83d", "name": "pay\ud83d", "args": {"k\ud83d": ["\ud83d\ude00", "\ude00"]}})
    assert read.call == ToolCall(id="i\ufffd", name="pay\ufffd", arguments={"k\ufffd": ["\U0001f600", "\ufffd"]})


class Hostile:
    """Every attribute raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError


def test_an_object_whose_attributes_raise_is_no_call() -> None:
    assert not read_call(Hostile()).recognised
    assert read_call({"name": "pay", "args": {"a": Hostile()}}).problem is not None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec=None), max_size=6) | st.integers(), inner, max_size=4)
        | st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                ["id", "call_id", "type", "name", "tool_name", "function", "custom", "arguments", "args"], inner
            ),
        )
    ),
    max_leaves=12,
)


@settings(max_examples=examples(400), deadline=None)
@given(VALUES)
def test_whatever_is_handed_over_becomes_a_call_that_can_be_stored_and_told_apart(value: Any) -> None:
    for given_value in (value, SimpleNamespace(**value) if _names(value) else value):
        read = read_call(given_value)
        read.call.model_dump_json().encode()
        read.call.digest()
        again = read_call({"id": read.call.id, "name": read.call.name, "args": read.call.arguments})
        assert again.call == read.call


def _names(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) and name.isidentifier() for name in value)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())))
def test_arguments_are_the_same_as_text_and_as_an_object(values: dict[str, Any]) -> None:
    assert read_arguments(json.dumps(values)) == read_arguments(values)
    assert read_arguments(values).problem is None


_names_and_ids = st.sampled_from(["", "c1", "pay", "look_up", "x_call", "é", "\ud83d"]) | VALUES


@settings(max_examples=examples(400), deadline=None)
@given(_names_and_ids, _names_and_ids, VALUES, st.sampled_from(["tool_call", "custom", "shell_call", None, 7, ""]))
def test_a_call_of_langchain_is_read_as_one_with_a_field_more(name: Any, call_id: Any, args: Any, kind: Any) -> None:
    call = {"name": name, "args": args, "id": call_id, "type": kind}
    one, other = read_call(call, stand_in_id="m-0"), read_call({**call, "index": 0}, stand_in_id="m-0")
    assert (one.problem, one.recognised) == (other.problem, other.recognised)
    if one.recognised and "cannot be shown" not in str(one.call.arguments):
        assert one.call == other.call
        assert one.call.model_fields_set == other.call.model_fields_set


@pytest.mark.parametrize("place", ["params", "kwargs", "tool_kwargs", "tool_input", "arguments_json", "whatever"])
@pytest.mark.parametrize("name", ["name", "tool_name"])
@pytest.mark.parametrize("shape", [dict, lambda call: SimpleNamespace(**call)])
def test_arguments_in_a_place_that_is_not_known_are_kept_and_differ(place: str, name: str, shape: Any) -> None:
    for write in (json.dumps, dict):
        five, more = (read_call(shape({"id": "c1", name: "pay", place: write({"amount": a})})) for a in (5, 5000))
        assert is_unparsed(five.call)
        assert five.problem
        assert five.call.digest() != more.call.digest()
        assert "arguments" in five.call.model_fields_set


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c1", "name": "pay", "extra_content": {"google": {"thought_signature": "x"}}},
        {"id": "c1", "name": "pay", "args": None, "metadata": {"a": 1}},
        {"type": "file_search_call", "id": "c1", "queries": ["a"], "results": {"b": 1}},
    ],
)
def test_what_stands_beside_a_call_is_no_argument(call: dict[str, Any]) -> None:
    assert "arguments" not in read_call(call).call.model_fields_set
