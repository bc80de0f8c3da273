"""Reads pydantic-ai's messages, and what a watched run leaves in their metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeGuard

from pydantic_core import to_jsonable_python

from grampus_uq import DataError, MissingDependencyError, ToolCall
from grampus_uq.integrations.model_turn import name_with_provider
from grampus_uq.wire import leading_system, read_arguments

with MissingDependencyError.unless("pydantic-ai-slim", "pydantic-ai", "watching pydantic-ai agents"):
    from pydantic_ai.messages import (
        BaseToolCallPart,
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelResponse,
        NativeToolCallPart,
        NativeToolReturnPart,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.tools import ToolDefinition

KEY = "grampus_uq"
"""Key of the state in a message's metadata."""


def as_messages(history: bytes | str | Sequence[ModelMessage]) -> list[ModelMessage]:
    """A history as messages, in a list of its own."""
    return ModelMessagesTypeAdapter.validate_json(history) if isinstance(history, bytes | str) else list(history)


def carried_by(messages: Sequence[ModelMessage]) -> dict[str, Any]:
    """The state in a history; raises DataError when it carries nothing."""
    carried = carried_in(messages)
    if carried is None:
        raise DataError("no run of an UncertaintyCapability", field="metadata")
    return carried


def carried_in(messages: Sequence[ModelMessage]) -> dict[str, Any] | None:
    """The state in the latest answer of the model that has one."""
    for message in reversed(messages):
        if isinstance(message, ModelResponse) and KEY in (message.metadata or {}):
            carried = (message.metadata or {})[KEY]
            if not isinstance(carried, dict):
                raise DataError(f"not an object: {type(carried).__name__}", field=f"metadata.{KEY}")
            return carried
    return None


def carries_latest(messages: Sequence[ModelMessage]) -> bool:
    """Return True if the latest answer of the model carries a state: no later answer came without one."""
    latest = _latest_answer(messages)
    return latest >= 0 and KEY in (messages[latest].metadata or {})


def carry(messages: list[ModelMessage], snapshot: dict[str, Any]) -> None:
    """Put a snapshot into the latest answer of the model, and take it out of earlier ones; messages are not changed."""
    latest = _latest_answer(messages)
    for place, message in enumerate(messages):
        if isinstance(message, ModelResponse) and (place == latest or KEY in (message.metadata or {})):
            rest = {name: value for name, value in (message.metadata or {}).items() if name != KEY}
            metadata = {**rest, KEY: snapshot} if place == latest else rest or None
            messages[place] = replace(message, metadata=metadata)


def _latest_answer(messages: Sequence[ModelMessage]) -> int:
    """The place of the latest answer of the model; -1 where there is none."""
    return next((n for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], ModelResponse)), -1)


def _returned(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    """What calls returned since the latest answer."""
    since = messages[_latest_answer(messages) + 1 :]
    return [part for message in since for part in message.parts if isinstance(part, ToolReturnPart)]


def answered_parts(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """The calls in the latest answer of the model."""
    latest = _latest_answer(messages)
    return [part for part in (messages[latest].parts if latest >= 0 else ()) if isinstance(part, ToolCallPart)]


def open_calls(messages: Sequence[ModelMessage]) -> set[str]:
    """Ids of the latest answer's calls that have no result yet."""
    done = {part.tool_call_id for part in _returned(messages)}
    return {part.tool_call_id for part in answered_parts(messages)} - done


def denied_parts(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """The latest answer's calls that the framework denied, so that they never came to a gate."""
    denied = {part.tool_call_id for part in _returned(messages) if getattr(part, "outcome", None) == "denied"}
    return [part for part in answered_parts(messages) if part.tool_call_id in denied]


def without_result(messages: list[ModelMessage], call_id: str) -> None:
    """Take out what the framework answered to a call of the latest answer; messages are not changed."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, ModelResponse):
            return
        parts = [p for p in message.parts if not (isinstance(p, ToolReturnPart) and p.tool_call_id == call_id)]
        messages[place : place + 1] = [replace(message, parts=parts)] if parts else []


def proposed_call(part: BaseToolCallPart) -> ToolCall:
    """A call as the model wrote it; arguments that are not a JSON object are kept as one text, and marked."""
    return ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=read_arguments(part.args).values)


def native_calls(response: ModelResponse) -> list[tuple[ToolCall, str | None]]:
    """The calls that the provider ran itself, each with its result as far as the answer holds it."""
    parts = response.parts
    results = {p.tool_call_id: str(plain(p.content)) for p in parts if isinstance(p, NativeToolReturnPart)}
    calls = [proposed_call(part) for part in parts if isinstance(part, NativeToolCallPart)]
    return [(call, results.get(call.id)) for call in calls]


def find_part(messages: Sequence[ModelMessage], call_id: str, name: str) -> ToolCallPart | None:
    """The call in the transcript, by its id, under the tool's name; None where no answer of the model holds it."""
    for message in reversed(messages):
        parts = message.parts if isinstance(message, ModelResponse) else ()
        same_id = [p for p in parts if isinstance(p, ToolCallPart) and p.tool_call_id == call_id]
        if same_id:  # more than one where the model repeats its ids
            args: Any = same_id[0].args
            return next((p for p in same_id if p.tool_name == name), ToolCallPart(name, args, tool_call_id=call_id))
    return None


def with_arguments(messages: list[ModelMessage], call: ToolCall, arguments: dict[str, Any]) -> None:
    """Write a human's arguments into an open call in the transcript; messages are not changed."""
    latest = _latest_answer(messages)
    answer = messages[latest] if call.id in open_calls(messages) else None
    if isinstance(answer, ModelResponse):
        parts = [replace(p, args=dict(arguments)) if _is(p, call) else p for p in answer.parts]
        messages[latest] = replace(answer, parts=parts)


def _is(part: Any, call: ToolCall) -> TypeGuard[ToolCallPart]:
    return isinstance(part, ToolCallPart) and proposed_call(part) == call


def standing_instructions(messages: Sequence[ModelMessage], parameters: Any) -> str:
    """The system prompt at the beginning of the history, and the instructions of the request that is about to go."""
    parts = getattr(parameters, "instruction_parts", None)
    latest = getattr(messages[-1], "instructions", None) if parts is None else "\n".join(one.content for one in parts)
    return "\n\n".join([leading_system(messages), latest or ""])


def name_of(model: Any, response: ModelResponse) -> str:
    """The name of the model as it was asked, or of the one that answered where any of several may have."""
    if isinstance(getattr(model, "models", None), Sequence):  # a `FallbackModel`, also one that is wrapped
        return name_with_provider(response.model_name or "", response.provider_name)
    return name_with_provider(str(getattr(model, "model_name", None) or ""), getattr(model, "system", None))


def plain(value: Any) -> Any:
    """A value of the framework or of a tool as JSON values."""
    return to_jsonable_python(value, fallback=lambda other: getattr(other, "__dict__", None) or repr(other))


OTHER: Final = object()
"""Said of values that are another call's."""


def meant(args: Any, arguments: Any, validator: Any, ctx: Any, *, of_output: bool = False) -> Any:
    """The values to run where `args` are what these arguments are validated to; `OTHER` where they are not.

    A default that differs at each validation (a random key, the time) is made once more, here, so that what runs is
    validated from these arguments alone. Of an output function's only argument `args` is the value alone.
    """
    try:
        given = plain(args)
        text = _text(given)
        if _alike(text, arguments, of_output):
            return args
        if validator is None:
            return OTHER
        once, again = (validator.validate_json(_text(arguments), context=ctx.validation_context) for _ in range(2))
        first, second = plain(once), plain(again)
        if _alike(text, first, of_output):
            return args
        if of_output or not all(isinstance(values, dict) for values in (given, first, second)):
            return OTHER
        anew = {n: value for n, value in first.items() if n not in arguments and value != second.get(n)}
        return once if anew and _alike(_text({**given, **anew}), first, False) else OTHER
    except (TypeError, ValueError, RecursionError):  # not valid, or no JSON
        return OTHER


_text = json.JSONEncoder(sort_keys=True).encode


def _alike(text: str, values: Any, of_output: bool) -> bool:
    inner = list(values.values()) if of_output and isinstance(values, dict) and len(values) == 1 else []
    return any(_text(value) == text for value in (values, *inner))


def tool_schema(tool: ToolDefinition) -> dict[str, Any]:
    """A tool as a JSON schema."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
    return {"type": "function", "function": function}
