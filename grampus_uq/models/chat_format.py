"""The chat format of OpenAI-compatible servers, both ways, as pure functions.

What comes back is hostile until it was read: `parse_completion` reads it with `grampus_uq.wire`, and refuses what
breaks the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.records.values import Message, ModelResponse, Role, TokenUsage, ToolCall
from grampus_uq.wire.fields import shown, text_field
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates
from grampus_uq.wire.model_call import to_response
from grampus_uq.wire.responses import read_choices
from grampus_uq.wire.usage import read_counts, read_usage

Prices = tuple[float, float]
"""US dollars for one input token and for one output token."""

# What the answer's form depends on is never taken from outside.
_OWN = frozenset({"logprobs", "max_completion_tokens", "messages", "n", "stream", "stream_options"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The parameters of one call beside its messages; None means: not sent.

    `max_tokens_name` is "max_tokens", or "max_completion_tokens" for the models that take only that. `extra` holds
    further parameters of the chat format (seed, stop, top_p), sent as they are.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_logprobs: int | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    response_format: Mapping[str, Any] | None = None
    max_tokens_name: str = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rules = (
            ("temperature", self.temperature, 0.0, math.inf, "a finite number, at least 0"),
            ("max_tokens", self.max_tokens, 1, math.inf, "a whole number, at least 1"),
            ("top_logprobs", self.top_logprobs, 0, 100, "a whole number in [0, 100]"),
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
        named = {"max_completion_tokens": "max_tokens", "top_logprobs": "logprobs"}
        return frozenset(named.get(name, name) for name in self.keywords())

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
        entry: dict[str, Any] = {"role": message.role.value, "content": replace_lone_surrogates(message.content or "")}
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


def parse_completion(raw: bytes, *, model: str = "", prices: Prices | None = None) -> ModelResponse:
    """Read the body of an answer, as received; of several choices the first counts.

    `model`: the name to report when the server states none. `prices`: what a token costs; without them, or without a
    usage in the answer, `cost_usd` is None. Log-probabilities that break their rule (not finite, positive) are left out
    as a whole: `logprobs` is None. Raises `ModelError` when the body is not a chat completion.
    """
    return read_completion(_load(raw), model=model, prices=prices)


def read_completion(body: dict[str, Any], *, model: str = "", prices: Prices | None = None) -> ModelResponse:
    """Read a body that was parsed already; as `parse_completion`."""
    choices = read_choices(body)
    if not choices:
        _refuse("has no choices", body)
    read = choices[0]
    if read.problem is not None:
        _refuse(read.problem, read.text or [call.call.name for call in read.calls])
    name = text_field(body, "model") or model
    usage = _usage(body.get("usage"), name, prices)
    return to_response(read).model_copy(update={"token_usage": usage, "model": name})


def _load(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        start, why = raw[:120].decode("utf-8", "replace"), " ".join(str(error).split())[:200]
        raise ModelError(f"The answer is not JSON ({why}). It begins: {start!r}", retryable=True) from None
    if not isinstance(body, dict):
        _refuse("is not a JSON object", body)
    # Only an escape can bring half a surrogate pair, so most answers need no second look.
    return replace_lone_surrogates(body) if b"\\ud" in raw or b"\\uD" in raw else body


def _usage(usage: Any, model: str, prices: Prices | None) -> TokenUsage:
    read = read_usage(usage, model=model)
    spent_in, spent_out, _ = read_counts(usage)
    cost = None
    if prices and spent_in is not None and spent_out is not None:
        cost = spent_in * prices[0] + spent_out * prices[1]
    return read.model_copy(update={"cost_usd": cost, "model": model})


def _refuse(what: str, value: Any) -> NoReturn:
    raise ModelError(f"The model's answer {what}: {shown(value)}", retryable=True)
