"""The chat format, both ways: what is sent is what servers read, what comes back is read strictly."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.models.chat_format import CallOptions, parse_completion, request_body, wire_messages
from grampus_uq.records.values import Message, ModelResponse, Role, TokenLogprob, ToolCall
from tests.models.loopback import chat, tokens
from tests.sampling import examples

# What llama.cpp's server (build of xllamacpp 2026.10.11549) answered to "Capital of France?", SmolLM2-135M, two tokens.
LLAMA_CPP = (
    b'{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant","content":"I\'m"},"logprobs":{"content":'
    b'[{"id":57,"token":"I","bytes":[73],"logprob":-4.577110767364502,"top_logprobs":[{"id":15319,"token":"La","bytes":'
    b'[76,97],"logprob":-1.974138617515564},{"id":60,"token":"L","bytes":[76],"logprob":-2.2532408237457275}]},{"id":5248,'
    b'"token":"\'m","bytes":[39,109],"logprob":-1.0730866193771362,"top_logprobs":[{"id":744,"token":" am","bytes":'
    b'[32,97,109],"logprob":-0.9962300062179565},{"id":5248,"token":"\'m","bytes":[39,109],"logprob":-1.0730866193771362}]}]}'
    b'}],"created":1795237443,"model":"smollm2","system_fingerprint":"b0-unknown","object":"chat.completion","usage":'
    b'{"completion_tokens":2,"prompt_tokens":34,"total_tokens":36,"prompt_tokens_details":{"cached_tokens":0}},'
    b'"id":"chatcmpl-NcoELL0UXCuIUEJ8qyS6pdYSnHODQXgM","timings":{"cache_n":0,"prompt_n":34}}'
)


def parse(body: Any, **options: Any) -> ModelResponse:
    return parse_completion(json.dumps(body).encode(), **options)


def calling(arguments: Any) -> dict[str, Any]:
    return chat(
        None, tool_calls=[{"id": "c1", "type": "function", "function": {"name": "pay", "arguments": arguments}}]
    )


def test_a_real_servers_answer_is_read_number_by_number() -> None:
    response = parse_completion(LLAMA_CPP, prices=(1e-6, 2e-6))
    assert (response.content, response.model, response.stop_reason) == ("I'm", "smollm2", "length")
    assert (response.token_usage.input_tokens, response.token_usage.output_tokens) == (34, 2)
    assert response.token_usage.cost_usd == pytest.approx(38e-6)
    assert response.logprobs == (
        TokenLogprob(
            token="I", logprob=-4.577110767364502, top=(("La", -1.974138617515564), ("L", -2.2532408237457275))
        ),
        TokenLogprob(
            token="'m", logprob=-1.0730866193771362, top=((" am", -0.9962300062179565), ("'m", -1.0730866193771362))
        ),
    )


def test_a_transcript_with_tool_calls_is_written_as_servers_expect_it() -> None:
    transcript = [
        Message(role=Role.SYSTEM, content="Be brief."),
        Message(role=Role.USER, content="Pay 5", name="ann"),
        Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="c1", name="pay", arguments={"b": 1, "a": "é"}),)),
        Message(role=Role.TOOL, content="paid", tool_call_id="c1", metadata={"kept": "here"}),
    ]
    assert wire_messages(transcript) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Pay 5", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": '{"b": 1, "a": "\\u00e9"}'}}
            ],
        },
        {"role": "tool", "content": "paid", "tool_call_id": "c1"},
    ]


def test_calls_without_ids_get_one_and_their_results_are_paired_in_order() -> None:
    calls = (ToolCall(name="a"), ToolCall(id="own", name="b"), ToolCall(name="c"))
    written = wire_messages(
        [
            Message(role=Role.ASSISTANT, content="", tool_calls=calls),
            Message(role=Role.TOOL, content="1"),
            Message(role=Role.TOOL, content="2", tool_call_id="own"),
            Message(role=Role.TOOL, content="3"),
        ]
    )
    ids = [call["id"] for call in written[0]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [entry["tool_call_id"] for entry in written[1:]] == ids


def test_only_what_was_asked_for_is_sent() -> None:
    plain = json.loads(request_body([Message(role=Role.USER, content="x")], "", CallOptions()))
    assert plain == {"messages": [{"role": "user", "content": "x"}]}
    full = CallOptions(
        temperature=0.0,
        max_tokens=7,
        top_logprobs=0,
        response_format={"type": "json_object"},
        tools=[{"name": "f"}],
    )
    body = json.loads(request_body([], "m", full))
    assert body == {
        "messages": [],
        "model": "m",
        "temperature": 0.0,
        "max_tokens": 7,
        "logprobs": True,
        "top_logprobs": 0,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "response_format": {"type": "json_object"},
    }
    assert full.sent() == {"temperature", "max_tokens", "logprobs", "response_format", "tools"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", True),
        ("max_tokens", 0),
        ("max_tokens", 2.5),
        ("top_logprobs", -1),
        ("top_logprobs", "5"),
    ],
)
def test_impossible_options_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}'"):
        CallOptions(**{name: value})


def test_a_tool_that_is_no_json_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
        request_body([], "", CallOptions(tools=[{"type": "function", "function": {"default": math.nan}}]))


def test_half_a_surrogate_pair_never_travels_in_either_direction() -> None:
    sent = request_body([Message(role=Role.USER, content="a\ud83d b \ud83d\ude00")], "", CallOptions())
    assert json.loads(sent)["messages"][0]["content"] == "a\ufffd b \U0001f600"
    raw = (
        rb'{"choices": [{"message": {"content": "x\ud800", "tool_calls": [{"function": '
        rb'{"name": "f", "arguments": "{\"k\\udc00\": [\"\\ud83d\"]}"}}]}}]}'
    )
    response = parse_completion(raw)
    assert response.content == "x\ufffd"
    assert response.tool_calls[0].arguments == {"k\ufffd": ["\ufffd"]}
    response.model_dump_json().encode()


@pytest.mark.parametrize("arguments", ['{"amount": 5}', {"amount": 5}])
def test_tool_arguments_are_an_object_written_as_text_or_not(arguments: Any) -> None:
    assert parse(calling(arguments)).tool_calls == (ToolCall(id="c1", name="pay", arguments={"amount": 5}),)


@pytest.mark.parametrize("arguments", ["", "  ", "null", None, {}])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    assert parse(calling(arguments)).tool_calls[0].arguments == {}


@pytest.mark.parametrize(
    "arguments",
    [
        "[1]",
        '"x"',
        "5",
        "true",
        "{",
        "{'a': 1}",
        '{"a": 1} {"b": 2}',
        [1],
        5,
        "[" * 100_000,
        '{"a":' * 500,
    ],
)
def test_tool_arguments_that_are_no_json_object_are_refused(arguments: Any) -> None:
    with pytest.raises(ModelError, match="has arguments that are n"):
        parse(calling(arguments))


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": [-Infinity]}', '{"a":' * 400 + "1" + "}" * 400])
def test_tool_arguments_that_no_file_can_hold_are_refused(arguments: str) -> None:
    with pytest.raises(ModelError, match="has arguments that"):
        parse(calling(arguments))


@pytest.mark.parametrize(
    "logprobs",
    [
        tokens(("a", math.nan)),
        tokens(("a", math.inf)),
        tokens(("a", -math.inf)),
        tokens(("a", 0.5)),
        tokens(("a", True)),
        tokens(("ok", -0.5), ("a", 3.0)),
        tokens(("a", -0.1), top=[("b", math.nan)]),
        tokens(("a", -0.1), top=[("b", 0.7)]),
        {"content": [{"token": "a"}]},
        {"content": [{"logprob": -1.0}]},
        {"content": [{"token": 5, "logprob": -1.0}]},
        {"content": [{"token": "a", "logprob": "-1"}]},
        {"content": [{"token": "a", "logprob": -1, "top_logprobs": {"b": -2}}]},
        {"content": [{"token": "a", "logprob": -(10**400)}]},
        {"content": ["a"]},
        {"content": []},
        {"content": "a"},
        [],
        "yes",
        {},
    ],
)
def test_log_probabilities_that_break_their_rule_are_missing_and_the_answer_stays(logprobs: Any) -> None:
    response = parse(chat("fine", logprobs=logprobs))
    assert response.content == "fine"
    assert response.logprobs is None


def test_rounding_above_zero_is_zero_and_impossible_alternatives_are_left_out() -> None:
    response = parse(chat(logprobs=tokens(("a", 1e-7), top=[("a", 1e-7), ("b", -math.inf)])))
    assert response.logprobs == (TokenLogprob(token="a", logprob=0.0, top=(("a", 0.0),)),)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "text",
        {},
        {"choices": None},
        {"choices": []},
        {"choices": {}},
        {"choices": ["x"]},
        {"choices": [{}]},
        {"choices": [{"message": "hi"}]},
        {"choices": [{"message": {"content": 5}}]},
        {"choices": [{"message": {"content": {"a": 1}}}]},
        {"choices": [{"message": {"tool_calls": "x"}}]},
        {"choices": [{"message": {"tool_calls": ["x"]}}]},
        {"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]},
        {"choices": [{"message": {"tool_calls": [{"function": {"name": "", "arguments": "{}"}}]}}]},
        {"error": {"message": "overloaded"}},
        {f"key {i}": "x" * 10_000 for i in range(100)},
    ],
)
def test_what_is_no_chat_completion_is_a_model_error_that_shows_some_of_it(body: Any) -> None:
    with pytest.raises(ModelError, match="answer") as caught:
        parse(body)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<html>502</html>",
        b"{",
        b"\xff\xfe\x00",
        b"[" * 200_000,
        b"1" * 10_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"data: {}\n\n",
    ],
)
def test_bytes_that_are_no_json_are_a_model_error(raw: bytes) -> None:
    with pytest.raises(ModelError):
        parse_completion(raw)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, (3, 2, 5)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 9}, (3, 2, 9)),
        ({"prompt_tokens": -3, "completion_tokens": True, "total_tokens": "x"}, (0, 0, 0)),
        ({"prompt_tokens": 10**30, "completion_tokens": 1.5}, (0, 0, 0)),
        ([], (0, 0, 0)),
        ("many", (0, 0, 0)),
    ],
)
def test_only_whole_counts_are_tokens(usage: Any, expected: tuple[int, int, int]) -> None:
    read = parse(chat(usage=usage), prices=(1.0e-6, 1.0e-6)).token_usage
    assert (read.input_tokens, read.output_tokens, read.total_tokens) == expected
    assert (read.cost_usd is None) == (expected[0] == 0)


def test_a_missing_usage_has_no_cost_even_when_prices_are_known() -> None:
    body = chat()
    del body["usage"]
    assert parse(body, prices=(1e-6, 1e-6)).token_usage.cost_usd is None


def test_of_several_choices_the_first_counts() -> None:
    body = chat("one")
    body["choices"].append({"message": {"content": "two"}})
    response = parse_completion(json.dumps(body).encode())
    assert (response.content, response.token_usage.total_tokens) == ("one", 15)


def test_parts_of_a_content_are_joined_and_a_refusal_is_text() -> None:
    parts: Any = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert parse(chat(parts)).content == "ab"
    assert parse(chat(None, refusal="I cannot.")).content == "I cannot."


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ODD_TOKENS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "token": JSON,
            "logprob": st.floats() | JSON,
            "top_logprobs": st.lists(st.fixed_dictionaries({"token": st.text(), "logprob": st.floats()})) | JSON,
        },
    )
)
ODD_BODIES = st.fixed_dictionaries(
    {},
    optional={
        "model": JSON,
        "usage": JSON,
        "choices": st.lists(
            st.fixed_dictionaries(
                {"message": st.fixed_dictionaries({}, optional={"content": JSON, "tool_calls": JSON, "refusal": JSON})},
                optional={"finish_reason": JSON, "logprobs": st.fixed_dictionaries({"content": ODD_TOKENS}) | JSON},
            )
            | JSON,
            max_size=3,
        ),
    },
)


@settings(max_examples=examples(300), deadline=None)
@given(body=ODD_BODIES | JSON)
def test_any_json_is_either_refused_or_read_into_values_that_hold_their_rules(body: Any) -> None:
    try:
        response = parse_completion(json.dumps(body).encode())
    except ModelError:
        return
    response.model_dump_json().encode()
    for token in response.logprobs or ():
        values = [token.logprob, *(value for _, value in token.top)]
        assert all(math.isfinite(value) and value <= 0.0 for value in values)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_either_refused_or_read(raw: bytes) -> None:
    with pytest.raises(ModelError):
        parse_completion(raw)


@settings(max_examples=examples(200), deadline=None)
@given(text=st.text(), arguments=st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=3))
def test_what_is_written_is_read_back(text: str, arguments: dict[str, Any]) -> None:
    call = ToolCall(id="c", name="f", arguments=arguments)
    written = wire_messages([Message(role=Role.ASSISTANT, content=text, tool_calls=(call,))])[0]
    read = parse({"choices": [{"message": written}]})
    assert (read.content, read.tool_calls) == (text, (call,))
