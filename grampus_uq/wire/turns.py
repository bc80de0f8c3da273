"""The arguments of an observation, read at once: the parts of a step, and errors in the arguments.

What a model wrote badly (arguments that are not JSON, a log-probability that is null) is not an error of the caller: it
is kept marked, or missing with a reason. What nobody could read as what it should be is an error, returned and not
raised, because a session that only advises logs it and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.values import TokenUsage, ToolCall
from grampus_uq.wire.calls import read_call
from grampus_uq.wire.fields import kind_of
from grampus_uq.wire.logprobs import NO_TOKENS, TokenStream, read_logprobs
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates
from grampus_uq.wire.responses import ReadResponse, read_response
from grampus_uq.wire.usage import read_usage, states_usage

_OWNER: Final = "observe_llm_response"


_Turn = tuple[str, tuple[ToolCall, ...], TokenStream, TokenUsage | None, Sequence[ConfigurationError]]


def read_turn(response: Any, *, tool_calls: Any = (), logprobs: Any = None, usage: Any = None) -> _Turn:
    """Read a turn: its text, or a whole answer as a client returned it, of which each given keyword replaces its part.

    Text, calls, tokens, usage and errors, as a plain tuple: every step passes here. Never raises.
    """
    given = logprobs is not None or usage is not None or type(tool_calls) is not tuple or tool_calls
    if type(response) is str and not given:  # what most steps are
        text = response if response.isascii() else replace_lone_surrogates(response)
        return text, (), NO_TOKENS, None, ()
    errors: list[ConfigurationError] = []
    calls: tuple[ToolCall, ...] = ()
    stream, spent = NO_TOKENS, None
    if type(response) is str:
        text = replace_lone_surrogates(response)
    else:
        read = read_response(response)
        if not read.recognised:
            rule, way_out = "the model's text, or its answer as the client returned it", "Pass it whole, no chunks."
            errors.append(ConfigurationError.of("response_text", _OWNER, rule, kind_of(response), way_out))
            read = ReadResponse()
        text, calls, stream, spent = read.text, tuple(call.call for call in read.calls), read.logprobs, read.usage
    if tool_calls is not None and not (isinstance(tool_calls, (tuple, list)) and not tool_calls):
        calls = _calls(tool_calls, errors)
    if logprobs is not None:
        stream = logprobs if isinstance(logprobs, TokenStream) else read_logprobs(logprobs)
        if stream is not logprobs and stream.problem is not None and stream.problem.startswith("are no"):
            rule, way_out = "token log-probabilities", "Pass `choice.logprobs`, or None."
            errors.append(ConfigurationError.of("logprobs", _OWNER, rule, kind_of(logprobs), way_out))
    if usage is not None:
        spent = read_usage(usage)
        if not states_usage(usage):
            rule, way_out = "a usage with input and output tokens", "Pass `response.usage`, or None."
            errors.append(ConfigurationError.of("usage", _OWNER, rule, kind_of(usage), way_out))
    return text, calls, stream, spent, errors


def _calls(given: Any, errors: list[ConfigurationError]) -> tuple[ToolCall, ...]:
    if type(given) is tuple:
        for call in given:
            if type(call) is not ToolCall or not call.name.isascii() or not call.id.isascii():
                break
        else:  # an adapter's, which it has read
            return given
    found: list[ToolCall] = []
    way_out = "Pass `message.tool_calls`, or ToolCall(name=..., arguments={...})."
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        errors.append(ConfigurationError.of("tool_calls", _OWNER, "a list of tool calls", kind_of(given), way_out))
        return ()
    try:
        for value in given:
            call, error = read_proposed(value, "tool_calls", _OWNER)
            found.append(call)
            if error is not None:
                errors.append(error)
    except Exception:  # noqa: BLE001 (somebody else's list)
        errors.append(ConfigurationError.of("tool_calls", _OWNER, "a list of tool calls", kind_of(given), way_out))
    return tuple(found)


def read_proposed(value: Any, parameter: str, owner: str) -> tuple[ToolCall, ConfigurationError | None]:
    """One proposed call, or the name of one; with the error where it is neither. Never raises."""
    if type(value) is ToolCall and value.name.isascii() and value.id.isascii():
        return value, None
    if isinstance(value, ToolCall):
        return value.model_copy(
            update={"name": replace_lone_surrogates(value.name), "id": replace_lone_surrogates(value.id)}
        ), None
    if isinstance(value, str):
        return ToolCall(name=replace_lone_surrogates(value)), None
    read = read_call(value)
    if read.recognised and read.call.name:
        return read.call, None
    way_out = 'Pass ToolCall(name=..., arguments={...}), or {"name": ..., "arguments": {...}}.'
    return read.call, ConfigurationError.of(parameter, owner, "a tool call with a name", kind_of(value), way_out)


def read_name(value: Any, parameter: str, owner: str) -> tuple[str, ConfigurationError | None]:
    """A name (of a step, a session, an agent) as text that a store can hold; with the error where it is not text."""
    if isinstance(value, str):
        return replace_lone_surrogates(value), None
    error = ConfigurationError.of(parameter, owner, "text", kind_of(value), f"Pass str({parameter}).")
    return replace_lone_surrogates(kind_of(value)), error
