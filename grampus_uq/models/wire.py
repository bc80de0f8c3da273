"""The chat format of OpenAI-compatible servers, both ways, as pure functions.

What comes back is hostile until it was read: `parse_completion` takes only what has the promised type, refuses tool
arguments that are no JSON object, and never lets a NaN, a positive log-probability or half a surrogate pair through.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.records import Message, ModelResponse, Role, TokenLogprob, TokenUsage, ToolCall
from grampus_uq.wire.calls import read_call
from grampus_uq.wire.whole_text import whole, whole_text

__all__ = [
    "CallOptions",
    "Prices",
    "parse_completion",
    "read_completion",
    "request_body",
    "wire_messages",
]

Prices = tuple[float, float]
"""US dollars for one input token and for one output token."""

# Log-probabilities are computed in floating point, and certain tokens come back as +1e-7: that much counts as 0.
_ROUNDING = 1e-4
# A server states more output tokens than this only by mistake; TokenUsage must stay addable and storable.
_MOST_TOKENS = 2**53

# What the answer's form depends on is never taken from outside.
_OWN = frozenset({"logprobs", "max_completion_tokens", "messages", "n", "stream", "stream_options"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What one call asks for beside its messages; None means: not sent.

    `max_tokens_name` is "max_tokens", or "max_completion_tokens" for the models that take only that. `extra` holds
    further parameters of the chat format (seed, stop, top_p), sent as they are.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_logprobs: int | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    response_format: Mapping[str, Any] | None = None
    n: int | None = None
    max_tokens_name: str = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rules = (
            ("temperature", self.temperature, 0.0, math.inf, "a finite number, at least 0"),
            ("max_tokens", self.max_tokens, 1, math.inf, "a whole number, at least 1"),
            ("top_logprobs", self.top_logprobs, 0, 100, "a whole number in [0, 100]"),
            ("n", self.n, 1, 1_000, "a whole number in [1, 1000]"),
        )
        for name, value, least, most, rule in rules:
            if value is None:
                continue
            kinds: type | tuple[type, ...] = (int, float) if name == "temperature" else int
            if (
                isinstance(value, bool)
                or not isinstance(value, kinds)
                or not least <= value <= most
                or value == math.inf
            ):
                raise ConfigurationError.of(name, "complete", rule, value)
        for name in self.extra:
            if name in _OWN:
                raise ConfigurationError.of(name, "complete", "left to this client", self.extra[name])

    def sent(self) -> frozenset[str]:
        """Names of the parameters that this call sends."""
        given = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "logprobs": self.top_logprobs,
            "tools": self.tools,
            "response_format": self.response_format,
            "n": self.n,
        }
        return frozenset(name for name, value in {**given, **self.extra}.items() if value is not None)

    def keywords(self) -> dict[str, Any]:
        """The parameters as the chat format names them."""
        body = {name: value for name, value in self.extra.items() if value is not None}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            body[self.max_tokens_name] = self.max_tokens
        if self.top_logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.tools:
            body["tools"] = [_wire_tool(tool) for tool in self.tools]
        if self.response_format is not None:
            body["response_format"] = dict(self.response_format)
        if self.n is not None:
            body["n"] = self.n
        return body


def request_body(messages: Sequence[Message], model: str, options: CallOptions) -> bytes:
    """Write a request to `/chat/completions`.

    Raises `ConfigurationError` when a tool or a response format cannot be written as JSON.
    """
    body: dict[str, Any] = {"messages": wire_messages(messages), **options.keywords()}
    if model:
        body["model"] = model
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"The request cannot be written as JSON: {error}") from error


def wire_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Write a transcript in the chat format.

    The format demands an id for every tool call: a call without one gets one made from its place, and the tool messages
    without one that follow are taken as the answers, in order.
    """
    written: list[dict[str, Any]] = []
    unanswered: list[str] = []
    for place, message in enumerate(messages):
        entry: dict[str, Any] = {"role": message.role.value, "content": whole_text(message.content or "")}
        if message.name:
            entry["name"] = message.name
        if message.tool_calls:
            made = [call.id or f"call_{place}_{i}" for i, call in enumerate(message.tool_calls)]
            unanswered = [name for name, call in zip(made, message.tool_calls, strict=True) if not call.id]
            entry["content"] = entry["content"] or None
            entry["tool_calls"] = [_wire_call(call, name) for call, name in zip(message.tool_calls, made, strict=True)]
        if message.role is Role.TOOL:
            entry["tool_call_id"] = message.tool_call_id or (unanswered.pop(0) if unanswered else "")
        written.append(entry)
    return written


def _wire_call(call: ToolCall, call_id: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(call.arguments, allow_nan=False)},
    }


def _wire_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the chat format; a bare function (name, description, parameters) is wrapped."""
    return dict(tool) if "type" in tool or "name" not in tool else {"type": "function", "function": dict(tool)}


def parse_completion(raw: bytes, *, model: str = "", prices: Prices | None = None) -> tuple[ModelResponse, ...]:
    """Read the body of an answer: one response a choice, at least one.

    Parameters
    ----------
    raw
        The body, as received.
    model
        The name to report when the server states none.
    prices
        What a token costs; without prices, or without a usage in the answer, `cost_usd` is None.

    Returns the choices in the server's order. The usage of the request is on the first one, so that a sum over all is
    right. Log-probabilities that break their rule (not finite, positive) are left out as a whole: `logprobs` is None.

    Raises `ModelError` when the body is no chat completion.
    """
    return read_completion(_load(raw), model=model, prices=prices)


def read_completion(
    body: dict[str, Any], *, model: str = "", prices: Prices | None = None
) -> tuple[ModelResponse, ...]:
    """Read a body that was parsed already; as `parse_completion`."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        _refuse("has no choices", body)
    stated = body.get("model")
    name = stated if isinstance(stated, str) and stated else model
    usage = _usage(body.get("usage"), name, prices)
    nothing = TokenUsage(model=name)
    return tuple(_choice(choice, name, usage if i == 0 else nothing) for i, choice in enumerate(choices))


def _load(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        start = raw[:120].decode("utf-8", "replace")
        raise ModelError(f"The answer is not JSON ({_short(error)}). It begins: {start!r}", retryable=True) from None
    if not isinstance(body, dict):
        _refuse("is not a JSON object", body)
    # Only an escape can bring half a surrogate pair, so most answers need no second look.
    return whole(body) if b"\\ud" in raw or b"\\uD" in raw else body


def _choice(choice: Any, model: str, usage: TokenUsage) -> ModelResponse:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        _refuse("has a choice without a message", choice)
    reason = choice.get("finish_reason")
    try:
        return ModelResponse(
            content=_content(message),
            tool_calls=tuple(_tool_call(call) for call in _list(message.get("tool_calls"), "tool_calls")),
            token_usage=usage,
            model=model,
            stop_reason=reason if isinstance(reason, str) else None,
            logprobs=_logprobs(choice.get("logprobs")),
        )
    except (ValueError, RecursionError) as error:  # pydantic refuses what nests too deeply or holds NaN
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"The answer breaks the chat format: {_short(error)}", retryable=True) from None


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    if content is None:
        refusal = message.get("refusal")
        return refusal if isinstance(refusal, str) else ""
    if not isinstance(content, str):
        _refuse("has a content that is no text", content)
    return content


def _tool_call(call: Any) -> ToolCall:
    read = read_call(call)
    if read.problem is not None:
        _refuse(f"has a tool call {read.call.name!r:.100} that {read.problem}", call)
    return read.call


def _list(value: Any, field: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        _refuse(f"has {field} that are no list", value)
    return value


def _usage(usage: Any, model: str, prices: Prices | None) -> TokenUsage:
    if not isinstance(usage, dict):
        return TokenUsage(model=model)
    spent_in, spent_out = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    total = _count(usage.get("total_tokens"))
    known = spent_in is not None and spent_out is not None
    return TokenUsage(
        input_tokens=spent_in or 0,
        output_tokens=spent_out or 0,
        total_tokens=total if total is not None else (spent_in or 0) + (spent_out or 0),
        cost_usd=(spent_in or 0) * prices[0] + (spent_out or 0) * prices[1] if prices and known else None,
        model=model,
    )


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < _MOST_TOKENS else None


def _logprobs(value: Any) -> tuple[TokenLogprob, ...] | None:
    """The tokens of a choice; None when there are none, or when one of them breaks the rule."""
    entries = value.get("content") if isinstance(value, dict) else None
    if not isinstance(entries, list) or not entries:
        return None
    tokens = [_token(entry) for entry in entries]
    good = [token for token in tokens if token is not None]
    return tuple(good) if len(good) == len(tokens) else None


def _token(entry: Any) -> TokenLogprob | None:
    """One token, or None when it breaks the rule; an alternative of probability 0 is left out."""
    if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
        return None
    logprob = _log_probability(entry.get("logprob"))
    alternatives = entry.get("top_logprobs") or []
    if logprob is None or logprob == -math.inf or not isinstance(alternatives, list):
        return None
    top: list[tuple[str, float]] = []
    for alternative in alternatives:
        name = alternative.get("token") if isinstance(alternative, dict) else None
        value = _log_probability(alternative.get("logprob")) if isinstance(alternative, dict) else None
        if not isinstance(name, str) or value is None:
            return None
        if value > -math.inf:
            top.append((name, value))
    return TokenLogprob(token=entry["token"], logprob=logprob, top=tuple(top))


def _log_probability(value: Any) -> float | None:
    """A natural log-probability in [-inf, 0], or None when it is none; rounding above 0 is clipped to 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return min(number, 0.0) if number <= _ROUNDING else None  # also refuses NaN


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _refuse(what: str, value: Any) -> NoReturn:
    # reprlib looks only so deep and so far, which `repr` does not: the value may be huge.
    raise ModelError(f"The model's answer {what}: {reprlib.repr(value):.200}", retryable=True)
