"""Whatever a client takes and returns: options it has no parameter for, replies of any shape, hostile arguments."""

from __future__ import annotations

import functools
import json
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Message, ModelResponse, Role, TokenLogprob, TokenUsage, ToolCall
from grampus_uq.errors import ModelError, UnsupportedByModelError
from grampus_uq.testing import ScriptedModel, answer
from grampus_uq.wire.calls import MAX_ARGUMENT_CHARACTERS, read_call
from grampus_uq.wire.model_call import ask_model, parse_response

MESSAGES = (Message(role=Role.USER, content="Hello?"),)
OPTIONS = {"temperature": 0.0, "max_tokens": 5, "top_logprobs": 3, "tools": None}


# -- asking --


@pytest.mark.anyio
async def test_options_without_a_value_are_left_out():
    model = ScriptedModel("hi")
    await ask_model(model, MESSAGES, "m", OPTIONS)
    assert model.calls[0].options == {"temperature": 0.0, "max_tokens": 5, "top_logprobs": 3}
    assert model.calls[0].messages == MESSAGES
    assert model.calls[0].model == "m"


def clients():
    seen = []

    class Plain:
        async def complete(self, *, messages, model):
            seen.append(set())
            return answer("hi")

    class Warm:
        async def complete(self, *, messages, model, temperature=1.0):
            seen.append({"temperature"})
            return answer("hi")

    class Any:
        async def complete(self, **given):
            seen.append(set(given) - {"messages", "model"})
            return answer("hi")

    async def function(*, messages, model, max_tokens=None):
        seen.append({"max_tokens"})
        return answer("hi")

    async def partial(_first, *, messages, model, max_tokens=None):
        return await function(messages=messages, model=model, max_tokens=max_tokens)

    async def unsigned(**given):
        return await Any().complete(**given)

    unsigned.__signature__ = "as little as some C functions have"
    everything = {"temperature", "max_tokens", "top_logprobs"}
    return seen, [
        (Plain(), set()),
        (Warm(), {"temperature"}),
        (Any(), everything),
        (SimpleNamespace(complete=function), {"max_tokens"}),
        (SimpleNamespace(complete=functools.partial(partial, 1)), {"max_tokens"}),
        (SimpleNamespace(complete=unsigned), everything),
    ]


@pytest.mark.anyio
async def test_a_client_is_given_only_what_its_complete_has_a_parameter_for():
    seen, found = clients()
    for client, takes in found:
        assert (await ask_model(client, MESSAGES, "m", OPTIONS)).content == "hi"
        assert seen.pop() == takes


@pytest.mark.anyio
async def test_refused_options_are_left_out_one_after_the_other_and_remembered_by_the_caller():
    model = ScriptedModel("hi", refuse=["logprobs", "temperature"])
    refused, heard = set(), []
    for _ in range(2):
        reply = await ask_model(model, MESSAGES, "m", OPTIONS, refused=refused, on_refusal=lambda: heard.append(1))
        assert reply.content == "hi"
    assert refused == {"logprobs", "top_logprobs", "temperature"}
    assert (len(model.calls), len(heard)) == (4, 2)


@pytest.mark.anyio
async def test_a_refusal_of_what_was_not_given_is_the_callers():
    model = ScriptedModel(UnsupportedByModelError("no", parameter="seed"))
    with pytest.raises(UnsupportedByModelError):
        await ask_model(model, MESSAGES, "m", OPTIONS)
    assert len(model.calls) == 1


# -- replies --


def reply(**fields):
    return SimpleNamespace(**({"content": "hi", "tool_calls": None, "token_usage": None} | fields))


def test_a_response_is_taken_as_it_is():
    response = answer("hi")
    assert parse_response(response) is response


def test_a_reply_needs_nothing_but_content():
    parsed = parse_response(SimpleNamespace(content=None))
    assert (parsed.content, parsed.tool_calls, parsed.logprobs, parsed.token_usage) == ("", (), None, TokenUsage())


@pytest.mark.parametrize(
    "bad", [None, 3, "text", {}, object(), reply(content=3), reply(content=b"x"), reply(tool_calls=3)]
)
def test_what_is_no_reply_is_a_model_error(bad):
    with pytest.raises(ModelError, match="The model client returned"):
        parse_response(bad)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, (0, 0, 0, None)),
        (SimpleNamespace(input_tokens=3, output_tokens=4), (3, 4, 7, None)),
        ({"input_tokens": 3, "output_tokens": 4, "total_tokens": 9, "cost_usd": 0.5}, (3, 4, 9, 0.5)),
        ({"input_tokens": -3, "output_tokens": True, "cost_usd": math.nan}, (0, 0, 0, None)),
        ({"input_tokens": "3", "output_tokens": 1.5, "cost_usd": "free"}, (0, 0, 0, None)),
        ({"cost_usd": True}, (0, 0, 0, None)),
        (3, (0, 0, 0, None)),
    ],
)
def test_usage_is_read_where_it_is_sound_and_zero_where_it_is_not(usage, tokens):
    found = parse_response(reply(token_usage=usage)).token_usage
    assert (found.input_tokens, found.output_tokens, found.total_tokens, found.cost_usd) == tokens


def test_one_broken_token_makes_the_whole_stream_missing():
    fine = TokenLogprob(token="a", logprob=-0.1)
    assert parse_response(reply(logprobs=[fine, fine])).logprobs == (fine, fine)
    for broken in ([fine, None], [], 3, "ab"):
        assert parse_response(reply(logprobs=broken)).logprobs is None


def test_names_that_are_no_text_are_left_out():
    parsed = parse_response(reply(model=3, stop_reason=["stop"]))
    assert (parsed.model, parsed.stop_reason) == ("", None)


# -- tool calls --

arguments = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5), max_size=4
)


@given(arguments, st.sampled_from(["text", "mapping"]), st.sampled_from(["flat", "nested", "object", "args"]))
def test_every_wire_form_of_a_call_is_the_same_call(given, written, form):
    value = json.dumps(given) if written == "text" else given
    call = {
        "flat": {"id": "c", "name": "f", "arguments": value},
        "nested": {"id": "c", "function": {"name": "f", "arguments": value}},
        "object": SimpleNamespace(id="c", name="f", arguments=value),
        "args": {"id": "c", "name": "f", "args": value},
    }[form]
    assert read_call(call).call == ToolCall(id="c", name="f", arguments=given)


@pytest.mark.parametrize("value", [None, "", "  ", "null", {}])
def test_a_call_may_have_no_arguments(value):
    assert read_call({"name": "f", "arguments": value}).call == ToolCall(name="f")


@pytest.mark.parametrize(
    "value",
    [
        "[]",
        '"x"',
        "3",
        "{",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e999}',
        "[" * 100_000,
        '{"a": ' * 5000,
        '{"a": ' + "[" * 500 + "]" * 500 + "}",
        '{"a": ' + "9" * 10_000 + "}",
        "x" * (MAX_ARGUMENT_CHARACTERS + 1),
        [1],
        3,
        {"a": object()},
        {"a": math.nan},
        {1: 2},
    ],
)
def test_arguments_that_are_no_json_object_have_a_problem(value):
    assert read_call({"name": "f", "arguments": value}).problem is not None


@pytest.mark.parametrize("name", [None, "", 3, ["f"]])
def test_a_call_needs_a_name(name):
    assert read_call({"name": name, "arguments": {}}).problem == "has no name"


def test_the_last_of_duplicated_keys_counts_as_json_says():
    assert read_call({"name": "f", "arguments": '{"a": 1, "a": 2}'}).call.arguments == {"a": 2}


def test_calls_of_a_reply_are_parsed_too():
    parsed = parse_response(reply(content=None, tool_calls=[{"name": "f", "arguments": "{}"}]))
    assert isinstance(parsed, ModelResponse)
    assert parsed.tool_calls == (ToolCall(name="f"),)
    with pytest.raises(ModelError):
        parse_response(reply(tool_calls=[{"name": "f", "arguments": "["}]))
