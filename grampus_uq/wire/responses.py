"""Whole answers of a model, as clients return them: text, calls, log-probabilities and usage in one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from grampus_uq.records.values import ModelResponse, TokenUsage
from grampus_uq.wire.calls import ReadCall, read_call
from grampus_uq.wire.fields import field, fields_of, kind_of, text_field
from grampus_uq.wire.logprobs import NO_TOKENS, TokenStream, joined_logprobs, read_logprobs
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates
from grampus_uq.wire.messages import calls_of, text_of
from grampus_uq.wire.usage import read_usage

_CALL_KINDS: Final = frozenset({"mcp_approval_request", "tool_use", "tool-call"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResponse:
    """An answer as far as it could be read; `problem` says what of it breaks its form.

    `recognised` is False for a value that is not an answer in any known form. `usage` is None where none is stated.
    """

    text: str = ""
    calls: tuple[ReadCall, ...] = ()
    logprobs: TokenStream = NO_TOKENS
    usage: TokenUsage | None = None
    model: str = ""
    stop_reason: str | None = None
    problem: str | None = None
    recognised: bool = True


def read_response(value: Any) -> ReadResponse:
    """Read an answer. Never raises.

    Known are a text; a chat completion, one of its choices, or the choice's message; a response of the responses API;
    an Anthropic message; LangChain's AIMessage; pydantic-ai's ModelResponse; an answer of Gemini's client, or its
    content; our own `ModelResponse`, and any object with a `content`. Of several choices the first counts.

    >>> read_response({"choices": [{"message": {"content": "Paris"}}], "usage": {"completion_tokens": 1}}).text
    'Paris'
    """
    try:
        return _read(value)
    except Exception as error:  # noqa: BLE001 (somebody else's object)
        return ReadResponse(problem=f"cannot be read ({type(error).__name__})", recognised=False)


def read_choices(completion: Any) -> tuple[ReadResponse, ...]:
    """Every choice of a chat completion, without the usage; an empty tuple when it has none."""
    choices = field(completion, "choices")
    return tuple(_choice(choice) for choice in choices) if isinstance(choices, list | tuple) else ()


def _read(value: Any) -> ReadResponse:
    if isinstance(value, ModelResponse):
        return ReadResponse(
            text=replace_lone_surrogates(value.content),
            calls=tuple(read_call(call) for call in value.tool_calls),
            logprobs=stream_of(value),
            usage=read_usage(value.token_usage),
            model=value.model,
            stop_reason=value.stop_reason,
        )
    if value is None or isinstance(value, str):
        return ReadResponse(text=text_of(value))
    usage, model = _usage(value), text_field(value, "model", "model_name")
    if isinstance(field(value, "choices"), list | tuple):
        choices = read_choices(value)
        return _with(choices[0], usage, model) if choices else ReadResponse(usage=usage, model=model)
    if field(value, "message") is not None:
        return _choice(value)
    for listed, inner in (("output", "content"), ("parts", "parts")):
        if isinstance(items := field(value, listed), list | tuple):
            return _with(_items(items, inner, value), usage, model)
    return _with(_message(value), usage, model)


def stream_of(response: ModelResponse) -> TokenStream:
    """The tokens of an answer, or why those that came could not be read."""
    if response.logprobs is None and response.logprobs_problem is not None:
        return TokenStream(problem=response.logprobs_problem)
    return read_logprobs(response.logprobs)


def _usage(value: Any) -> TokenUsage | None:
    stated = field(value, "token_usage", "usage_metadata", "usage")
    return None if stated is None or callable(stated) else read_usage(stated)


def _with(read: ReadResponse, usage: TokenUsage | None, model: str) -> ReadResponse:
    return replace(read, usage=usage, model=model or read.model)


def _choice(choice: Any) -> ReadResponse:
    message, legacy = field(choice, "message"), field(choice, "text")
    reason = text_field(choice, "finish_reason") or None
    logprobs = read_logprobs(field(choice, "logprobs"))
    if message is None and isinstance(legacy, str):
        return ReadResponse(text=text_of(legacy), logprobs=logprobs, stop_reason=reason)
    read = _message(message)
    problem = None if read.recognised else f"has a choice without a message: {kind_of(choice)}"
    return replace(read, logprobs=logprobs, stop_reason=reason, problem=problem or read.problem, recognised=True)


def _message(message: Any) -> ReadResponse:
    """A message, or any object with a `content`."""
    if isinstance(message, str | bytes | list | tuple) or not _has(message, "content", "tool_calls", "function_call"):
        return ReadResponse(problem=f"is not a model response: {kind_of(message)}", recognised=False)
    content, listed = field(message, "content"), field(message, "tool_calls")
    problem = None
    if content is not None and not isinstance(content, str | list | tuple):
        problem = f"has content that is not text: {kind_of(content)}"
    elif listed is not None and not isinstance(listed, list | tuple):
        problem = f"has tool_calls that are not a list: {kind_of(listed)}"
    metadata = field(message, "response_metadata")
    calls = calls_of(message)
    broken = next((call.problem for call in calls if call.problem is not None), None)
    return ReadResponse(
        text=text_of(content if content is not None else field(message, "refusal")),
        calls=calls,
        logprobs=read_logprobs(field(message, "logprobs") or field(metadata, "logprobs")),
        model=text_field(metadata, "model_name"),
        stop_reason=text_field(message, "stop_reason") or None,
        problem=problem or (f"has a tool call that {broken}" if broken else None),
    )


def _has(value: Any, *names: str) -> bool:
    fields = fields_of(value) or {}
    return any(name in fields or field(value, name) is not None for name in names)


def _items(items: Sequence[Any], inner: str, whole: Any) -> ReadResponse:
    """The items of the responses API, or the parts of an answer of pydantic-ai or of Gemini."""
    texts: list[str] = []
    calls: list[ReadCall] = []
    first = next(iter(field(whole, "candidates") or ()), None)  # Gemini's
    streams: list[Any] = [field(first, "logprobs_result") or field(field(whole, "provider_details"), "logprobs")]
    for item in items:
        kind = text_field(item, "type", "part_kind")
        if kind.endswith("_call") or kind in _CALL_KINDS or field(item, "function_call", "functionCall") is not None:
            calls.append(read_call(item))
            continue
        parts = field(item, inner) if inner == "content" else [item]
        says = kind in ("message", "text") or (not kind and inner == "parts" and field(item, "thought") is not True)
        for part in parts if isinstance(parts, list | tuple) and says else ():
            texts.append(text_of([part]))
            streams.append(field(part, "logprobs") or field(field(part, "provider_details"), "logprobs"))
    return ReadResponse(
        text="\n".join(text for text in texts if text), calls=tuple(calls), logprobs=joined_logprobs(streams)
    )
