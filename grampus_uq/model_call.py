"""One way to ask any model client: pass only the options it takes, parse whatever it returns."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from grampus_uq.errors import ModelError, UnsupportedByModelError
from grampus_uq.protocols import ModelClient
from grampus_uq.records import Message, ModelResponse, TokenLogprob, TokenUsage, ToolCall
from grampus_uq.wire.calls import read_call

__all__ = ["ask_model", "parse_response", "parse_tool_call"]


async def ask_model(
    client: ModelClient,
    messages: Sequence[Message],
    model: str,
    options: Mapping[str, Any],
    *,
    refused: set[str] | None = None,
    on_refusal: Callable[[], None] = lambda: None,
) -> ModelResponse:
    """Ask; each time the model refuses an option (logprobs, temperature, ...) ask again without it.

    Options whose value is None, or that the client's `complete` has no parameter for, are left out. So are those in
    `refused`, which takes up every further refusal, for the caller's next question; `on_refusal` is called for each.
    Raises what the client raises, and ModelError when the reply is not a response at all.
    """
    refused = set() if refused is None else refused
    accepted = _accepted_options(getattr(client.complete, "__func__", client.complete))
    while True:
        wanted = {
            name: value
            for name, value in options.items()
            if value is not None and name not in refused and (accepted is None or name in accepted)
        }
        try:
            return parse_response(await client.complete(messages=list(messages), model=model, **wanted))
        except UnsupportedByModelError as refusal:
            named = _refused_options(refusal.parameter)
            if named.isdisjoint(wanted):
                raise
            refused |= named
            on_refusal()


def _refused_options(parameter: str) -> frozenset[str]:
    return frozenset(("top_logprobs", "logprobs")) if "logprobs" in parameter else frozenset((parameter,))


@functools.lru_cache(maxsize=256)
def _accepted_options(complete: Callable[..., Any]) -> frozenset[str] | None:
    """Names of the keywords that `complete` takes; None when it takes any."""
    try:
        parameters = inspect.signature(complete).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def parse_response(reply: Any) -> ModelResponse:
    """Turn a client's reply into a ModelResponse, field by field; anything that is not of the right kind is refused.

    Raises ModelError naming the field. A missing usage counts as zero tokens, missing logprobs stay None.
    """
    if isinstance(reply, ModelResponse):
        return reply
    content = getattr(reply, "content", _MISSING)
    if content is _MISSING:
        raise ModelError(f"The model client returned {type(reply).__name__}, which has no `content`.")
    if content is not None and not isinstance(content, str):
        raise ModelError(f"The model client returned a `content` of type {type(content).__name__}; expected text.")
    calls = getattr(reply, "tool_calls", None) or ()
    if not isinstance(calls, Iterable):
        raise ModelError(f"The model client returned `tool_calls` of type {type(calls).__name__}; expected a list.")
    return ModelResponse(
        content=content or "",
        tool_calls=tuple(parse_tool_call(call) for call in calls),
        token_usage=_parse_usage(getattr(reply, "token_usage", None)),
        model=_text_or(getattr(reply, "model", ""), ""),
        stop_reason=_text_or(getattr(reply, "stop_reason", None), None),
        logprobs=_parse_logprobs(getattr(reply, "logprobs", None)),
    )


_MISSING = object()


def _text_or(value: Any, default: Any) -> Any:
    return value if isinstance(value, str) else default


def parse_tool_call(call: Any) -> ToolCall:
    """Turn a tool call of any form that `wire.calls` reads into a ToolCall; raises ModelError saying what is wrong."""
    read = read_call(call)
    if read.problem is not None:
        raise ModelError(f"The proposed tool call {read.call.name!r:.80} {read.problem}.")
    return read.call


def _field(value: Any, name: str) -> Any:
    """A key of a mapping or an attribute of an object; None when it is not there."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _parse_usage(usage: Any) -> TokenUsage:
    if usage is None:
        return TokenUsage()
    if isinstance(usage, TokenUsage):
        return usage
    inputs, outputs = _count(_field(usage, "input_tokens")), _count(_field(usage, "output_tokens"))
    cost = _field(usage, "cost_usd")
    if not isinstance(cost, int | float) or isinstance(cost, bool) or not math.isfinite(cost):
        cost = None
    return TokenUsage(
        input_tokens=inputs,
        output_tokens=outputs,
        total_tokens=_count(_field(usage, "total_tokens")) or inputs + outputs,
        cost_usd=cost,
        model=_text_or(_field(usage, "model"), ""),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _parse_logprobs(value: Any) -> tuple[TokenLogprob, ...] | None:
    """Keep well-formed token logprobs; one broken token makes the whole stream missing rather than half true."""
    if value is None or not isinstance(value, Iterable):
        return None
    tokens = tuple(value)
    return tokens if tokens and all(isinstance(token, TokenLogprob) for token in tokens) else None
