"""What clients and frameworks return is one answer, whether it is an object, a dict, or part of either."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from grampus_uq.records.values import Message, ModelResponse, TokenLogprob, TokenUsage, ToolCall
from grampus_uq.records.vocabulary import Role
from grampus_uq.wire import read_call, read_logprobs, read_messages, read_response, read_usage
from tests.sampling import examples
from tests.wire.test_calls import VALUES, Hostile

TOKENS = (
    TokenLogprob(token="Pay", logprob=-0.5, top=(("Pay", -0.5), ("No", -1.5))),
    TokenLogprob(token="!", logprob=-1),
)
LISTED = [
    {
        "token": t.token,
        "logprob": t.logprob,
        "bytes": None,
        "top_logprobs": [{"token": n, "logprob": p} for n, p in t.top],
    }
    for t in TOKENS
]
CALL = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 5}'}}
COMPLETION: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-9",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": "Pay!", "tool_calls": [CALL]},
            "logprobs": {"content": LISTED, "refusal": None},
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
OBJECT = ChatCompletion.model_validate(COMPLETION)
RESPONSE: dict[str, Any] = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "gpt-9",
    "output": [
        {"type": "reasoning", "id": "rs", "summary": []},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Pay!", "annotations": [], "logprobs": LISTED}],
        },
        {"type": "function_call", "id": "f", "call_id": "c1", "name": "pay", "arguments": '{"amount": 5}'},
    ],
    "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
}


def _langchain() -> Any:
    pytest.importorskip("langchain_core")
    from langchain_core.messages import AIMessage

    return AIMessage(
        content="Pay!",
        tool_calls=[{"id": "c1", "name": "pay", "args": {"amount": 5}}],
        response_metadata={"logprobs": {"content": LISTED}, "model_name": "gpt-9"},
        usage_metadata={"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    )


def _pydantic_ai(*, of_the_text: Any = None, of_all: Any = None) -> Any:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai.messages import ModelResponse as Answer
    from pydantic_ai.messages import TextPart, ToolCallPart
    from pydantic_ai.usage import RequestUsage

    return Answer(
        parts=[TextPart("Pay!", provider_details=of_the_text), ToolCallPart("pay", '{"amount": 5}', "c1")],
        usage=RequestUsage(input_tokens=3, output_tokens=2),
        model_name="gpt-9",
        provider_details=of_all,
    )


CANDIDATES = {
    "chosen_candidates": [{"token": t.token, "log_probability": t.logprob, "token_id": 7} for t in TOKENS],
    "top_candidates": [{"candidates": [{"token": n, "log_probability": p} for n, p in t.top]} for t in TOKENS[:1]],
    "log_probability_sum": -1.5,
}


def _gemini() -> Any:
    """An answer as `google-genai` has it: `parts` is a property of it, of its first candidate's content."""
    call = SimpleNamespace(function_call=SimpleNamespace(id="c1", name="pay", args={"amount": 5}), text=None)
    parts = [SimpleNamespace(text="Bob?", thought=True, function_call=None), SimpleNamespace(text="Pay!"), call]
    usage = SimpleNamespace(prompt_token_count=3, candidates_token_count=2, total_token_count=5)
    candidate = SimpleNamespace(logprobs_result=SimpleNamespace(**CANDIDATES))
    return SimpleNamespace(parts=parts, candidates=[candidate], usage_metadata=usage, model="gpt-9")


ANSWERS = {
    "a chat completion": lambda: OBJECT,
    "the same dumped": OBJECT.model_dump,
    "the same as it travelled": lambda: COMPLETION,
    "a response of the responses API": lambda: Response.construct(**RESPONSE),
    "the same as it travelled over the wire": lambda: RESPONSE,
    "LangChain's message": _langchain,
    "LangChain's message dumped": lambda: _langchain().model_dump(),
    "pydantic-ai's answer": lambda: _pydantic_ai(of_the_text={"logprobs": LISTED}),
    "pydantic-ai's answer of a chat": lambda: _pydantic_ai(of_all={"logprobs": LISTED}),
    "pydantic-ai's answer of xAI": lambda: _pydantic_ai(of_the_text={"logprobs": {"content": LISTED}}),
    "pydantic-ai's answer of Gemini": lambda: _pydantic_ai(of_all={"logprobs": CANDIDATES, "avg_logprobs": -0.75}),
    "Gemini's answer": _gemini,
    "our own record": lambda: ModelResponse(
        content="Pay!",
        tool_calls=(ToolCall(id="c1", name="pay", arguments={"amount": 5}),),
        token_usage=TokenUsage(input_tokens=3, output_tokens=2, total_tokens=5),
        model="gpt-9",
        logprobs=TOKENS,
    ),
}


@pytest.mark.parametrize("build", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_of_any_library_has_the_same_text_calls_log_probabilities_and_usage(build: Any) -> None:
    check_answer(build())


def check_answer(answer: Any) -> None:
    """The answer reads as `COMPLETION`."""
    read = read_response(answer)
    assert (read.problem, read.recognised) == (None, True)
    assert read.text == "Pay!"
    assert [call.call for call in read.calls] == [ToolCall(id="c1", name="pay", arguments={"amount": 5})]
    assert read.logprobs.tokens == TOKENS
    assert read.usage is not None
    assert (read.usage.input_tokens, read.usage.output_tokens) == (3, 2)
    assert read.model == "gpt-9"


CHOICE = OBJECT.choices[0]
assert CHOICE.logprobs is not None
STREAMS = {
    "a whole completion": OBJECT,
    "its first choice": CHOICE,
    "`choice.logprobs`": CHOICE.logprobs,
    "`choice.logprobs.content`": CHOICE.logprobs.content,
    "a dumped completion": COMPLETION,
    "a dumped choice": COMPLETION["choices"][0],
    "a dumped `choice.logprobs`": COMPLETION["choices"][0]["logprobs"],
    "a dumped `choice.logprobs.content`": LISTED,
    "LangChain's response_metadata": {"logprobs": {"content": LISTED}},
    "pydantic-ai's provider_details": {"logprobs": LISTED},
    "Gemini's": CANDIDATES,
    "Gemini's as they travelled": {
        "chosenCandidates": [{"token": t.token, "logProbability": t.logprob} for t in TOKENS],
        "topCandidates": [{"candidates": [{"token": n, "logProbability": p} for n, p in t.top]} for t in TOKENS],
    },
    "our own records": TOKENS,
    "our own records in a list": list(TOKENS),
    "our own records from a generator": (token for token in TOKENS),
    "the legacy form": {
        "tokens": ["Pay", "!"],
        "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{"Pay": -0.5, "No": -1.5}, None],
    },
}


@pytest.mark.parametrize("value", STREAMS.values(), ids=STREAMS)
def test_log_probabilities_are_the_same_in_every_form(value: Any) -> None:
    assert read_logprobs(value).tokens == TOKENS


@pytest.mark.parametrize(
    "value", [None, [], (), {"content": None}, {"logprobs": None}, {"choices": []}, {"content": []}]
)
def test_none_given_is_no_problem(value: Any) -> None:
    stream = read_logprobs(value)
    assert (stream.tokens, stream.problem) == (None, None)


BROKEN: list[Any] = [
    None, "-1", True, math.nan, math.inf, -math.inf, 0.5, 10**400, -(10**400), [], {}, "", b"", object(), Hostile(),
]  # fmt: skip


@pytest.mark.parametrize("place", [0, 1, 999])
@pytest.mark.parametrize("value", BROKEN, ids=range(len(BROKEN)))
def test_one_broken_log_probability_makes_the_stream_missing_and_says_which(value: Any, place: int) -> None:
    tokens: list[dict[str, Any]] = [{"token": "a", "logprob": -0.1} for _ in range(1000)]
    tokens[place]["logprob"] = value
    stream = read_logprobs({"content": tokens})
    assert stream.tokens is None
    assert stream.problem is not None
    assert stream.problem.startswith(f"token {place}: its logprob")
    assert len(stream.problem) < 400


NO_STREAMS = ["yes", 3, True, object(), {"a": 1}, b"x", [3], ["a"], [[]], [None], Hostile()]


@pytest.mark.parametrize("value", NO_STREAMS, ids=range(len(NO_STREAMS)))
def test_what_are_no_log_probabilities_has_a_reason(value: Any) -> None:
    stream = read_logprobs(value)
    assert stream.tokens is None
    assert stream.problem


def test_rounding_above_zero_is_zero_and_numbers_of_any_kind_are_floats() -> None:
    import numpy as np

    stream = read_logprobs([{"token": "a", "logprob": np.float32(-0.5)}, {"token": "b", "logprob": 1e-7}])
    assert stream.tokens == (TokenLogprob(token="a", logprob=-0.5), TokenLogprob(token="b", logprob=0.0))


@settings(max_examples=examples(400), deadline=None)
@given(VALUES)
def test_whatever_is_given_for_log_probabilities_is_sound_or_missing(value: Any) -> None:
    chosen = [{"token": "a", "log_probability": -0.1}]
    for form in (
        value,
        [value],
        {"content": [value]},
        [{"token": "a", "logprob": value}],
        {"logprobs": value},
        {"chosen_candidates": value, "top_candidates": [{"candidates": chosen}]},
        {"chosen_candidates": chosen, "top_candidates": value},
        {"chosen_candidates": chosen, "top_candidates": [{"candidates": [value]}]},
    ):
        stream = read_logprobs(form)
        for token in stream.tokens or ():
            values = [token.logprob, *(p for _, p in token.top)]
            assert all(type(p) is float and math.isfinite(p) and p <= 0.0 for p in values)
            token.token.encode()
        assert stream.tokens is None or stream.problem is None


@settings(max_examples=examples(400), deadline=None)
@given(VALUES, VALUES)
def test_whatever_is_given_for_an_answer_is_read_into_values_that_can_be_stored(value: Any, other: Any) -> None:
    forms = (
        value,
        {"choices": [{"message": {"content": value, "tool_calls": [other]}, "logprobs": other}], "usage": value},
        {"choices": value},
        {"output": [{"type": "message", "content": [value]}, {"type": "function_call", "name": other}]},
        {"parts": [value, {"part_kind": "text", "content": other}]},
        {"parts": [{"text": value}, {"function_call": other}], "candidates": [{"logprobs_result": value}]},
        SimpleNamespace(content=value, tool_calls=other, response_metadata=value, usage_metadata=other),
    )
    for form in forms:
        read = read_response(form)
        read.text.encode()
        for call in read.calls:
            call.call.model_dump_json().encode()
        if read.usage is not None:
            assert read.usage.total_tokens < 2**60


@settings(max_examples=examples(300), deadline=None)
@given(VALUES, VALUES)
def test_whatever_is_given_for_a_transcript_is_read_or_left_out(value: Any, other: Any) -> None:
    for form in (
        value,
        [value],
        [{"role": "user", "content": value}],
        {"role": other, "content": value},
        [(other, value)],
    ):
        for message in read_messages(form).messages:
            message.model_dump_json().encode()


@dataclass
class Slotted:
    __slots__ = ("logprob", "token")
    token: str
    logprob: float


def test_tokens_of_a_class_without_a_dict_are_read_too() -> None:
    assert read_logprobs([Slotted("a", -0.1)]).tokens == (TokenLogprob(token="a", logprob=-0.1),)


# -- messages ---------------------------------------------------------------------------------------------------------

EXPECTED = [
    Message(role=Role.SYSTEM, content="Be brief."),
    Message(role=Role.USER, content="Pay bob."),
    Message(role=Role.ASSISTANT, content="", tool_calls=(ToolCall(id="c1", name="pay", arguments={"amount": 5}),)),
    Message(role=Role.TOOL, content="paid", tool_call_id="c1"),
]


def _langchain_messages() -> list[Any]:
    pytest.importorskip("langchain_core")
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    return [
        SystemMessage("Be brief."),
        HumanMessage([{"type": "text", "text": "Pay bob."}]),
        AIMessage("", tool_calls=[{"id": "c1", "name": "pay", "args": {"amount": 5}}]),
        ToolMessage("paid", tool_call_id="c1"),
    ]


def _langchain_dumped() -> list[Any]:
    pytest.importorskip("langchain_core")
    from langchain_core.load import dumpd
    from langchain_core.messages import messages_to_dict

    found = _langchain_messages()
    return [*messages_to_dict(found[:2]), *(dumpd(message) for message in found[2:])]


def _pydantic_ai_messages() -> list[Any]:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai.messages import ModelRequest, SystemPromptPart, ToolCallPart, ToolReturnPart, UserPromptPart
    from pydantic_ai.messages import ModelResponse as Answer

    return [
        ModelRequest(parts=[SystemPromptPart("Be brief."), UserPromptPart("Pay bob.")]),
        Answer(parts=[ToolCallPart("pay", {"amount": 5}, "c1")]),
        ModelRequest(parts=[ToolReturnPart("pay", "paid", "c1")]),
    ]


TRANSCRIPTS = {
    "our own records": lambda: EXPECTED,
    "OpenAI's chat form": lambda: [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Pay bob."}]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "paid", "tool_call_id": "c1"},
    ],
    "the same with the client's own message in it": lambda: [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Pay bob."},
        CHOICE.message.model_copy(update={"content": ""}),
        {"role": "tool", "content": "paid", "tool_call_id": "c1"},
    ],
    "OpenAI's responses form": lambda: [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Pay bob."}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": '{"amount": 5}'},
        {"type": "function_call_output", "call_id": "c1", "output": "paid"},
    ],
    "LangChain's messages": _langchain_messages,
    "LangChain's messages dumped": _langchain_dumped,
    "pydantic-ai's messages": _pydantic_ai_messages,
    "Anthropic's form": lambda: [
        ("system", "Be brief."),
        {"role": "user", "content": "Pay bob."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "pay", "input": {"amount": 5}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "paid"}]},
    ],
    "Gemini's form": lambda: [
        ("system", "Be brief."),
        {"role": "user", "parts": [{"text": "Pay bob."}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "pay", "args": {"amount": 5}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "pay", "response": "paid"}}]},
    ],
}


@pytest.mark.parametrize("build", TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_a_transcript_of_any_library_is_the_same_transcript(build: Any) -> None:
    read = read_messages(build())
    assert read.problem is None
    assert [(m.role, m.content or "", m.tool_calls, m.tool_call_id) for m in read.messages] == [
        (m.role, m.content or "", m.tool_calls, m.tool_call_id) for m in EXPECTED
    ]


def _of_anthropic(results: list[str], said: list[str]) -> dict[str, Any]:
    listed = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": text} for n, text in enumerate(results)]
    return {"role": "user", "content": [*listed, *({"type": "text", "text": text} for text in said)]}


def _of_gemini(results: list[str], said: list[str]) -> dict[str, Any]:
    listed = [{"function_response": {"id": f"c{n}", "response": text}} for n, text in enumerate(results)]
    return {"role": "user", "parts": [*listed, *({"text": text} for text in said)]}


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from((_of_anthropic, _of_gemini)),
    st.lists(st.text("abc"), min_size=1, max_size=4),
    st.lists(st.text("xyz", min_size=1), max_size=1),
)
def test_every_tool_result_of_a_message_is_read_and_what_the_user_said_beside_it(
    build: Any, results: list[str], said: list[str]
) -> None:
    read = read_messages([build(results, said)]).messages
    answers = [(Role.TOOL, text, f"c{n}") for n, text in enumerate(results)]
    assert [(m.role, m.content, m.tool_call_id) for m in read] == [*answers, *((Role.USER, x, None) for x in said)]


def test_a_text_is_what_the_user_said_and_one_message_is_a_transcript() -> None:
    assert read_messages("Hi").messages == (Message(role=Role.USER, content="Hi"),)
    assert read_messages({"role": "user", "content": "Hi"}).messages == (Message(role=Role.USER, content="Hi"),)


NO_MESSAGES = [[3], [object()], [{}], [{"role": "critic", "content": "x"}], 3, [("user",)], Hostile()]


@pytest.mark.parametrize("value", NO_MESSAGES, ids=range(len(NO_MESSAGES)))
def test_what_is_no_message_is_left_out_and_named(value: Any) -> None:
    read = read_messages(value)
    assert read.messages == ()
    assert read.problem


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (OBJECT.usage, (3, 2, 5)),
        ({"input_tokens": 3, "output_tokens": 2}, (3, 2, 5)),
        ({"prompt_tokens": 10**400, "completion_tokens": 2}, (0, 2, 2)),
        ({"prompt_tokens": -1, "completion_tokens": math.nan}, (0, 0, 0)),
        (TokenUsage(input_tokens=10**30), (0, 0, 0)),
        (None, (0, 0, 0)),
        ("many", (0, 0, 0)),
        (Hostile(), (0, 0, 0)),
    ],
    ids=range(8),
)
def test_only_counts_that_can_be_added_and_stored_are_tokens(usage: Any, expected: tuple[int, int, int]) -> None:
    read = read_usage(usage)
    assert (read.input_tokens, read.output_tokens, read.total_tokens) == expected


def test_a_call_of_the_client_is_read_like_its_dict() -> None:
    (call,) = CHOICE.message.tool_calls or ()
    assert read_call(call) == read_call(CALL)
