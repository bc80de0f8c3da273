"""Reads pydantic-ai's messages, and what a watched run leaves in their metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grampus_uq import DataError, MissingDependencyError, ToolCall
from grampus_uq.wire import read_arguments

try:
    from pydantic_ai.messages import (
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelResponse,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.tools import ToolDefinition
except ImportError as error:
    raise MissingDependencyError.of("pydantic-ai-slim", "pydantic-ai", "watching pydantic-ai agents") from error

__all__ = [
    "KEY",
    "as_messages",
    "carried_by",
    "carried_in",
    "carry",
    "find_part",
    "open_calls",
    "proposed_call",
    "tool_schema",
    "with_arguments",
    "written_arguments",
]

KEY = "grampus_uq"
"""Where in a message's metadata it is."""


def as_messages(history: bytes | str | Sequence[ModelMessage]) -> list[ModelMessage]:
    """A history as messages, in a list of its own."""
    return ModelMessagesTypeAdapter.validate_json(history) if isinstance(history, bytes | str) else list(history)


def carried_by(messages: Sequence[ModelMessage]) -> dict[str, Any]:
    """What a history carries; raises DataError when it carries nothing."""
    carried = carried_in(messages)
    if carried is None:
        raise DataError("no run of an UncertaintyCapability", field="metadata")
    return carried


def carried_in(messages: Sequence[ModelMessage]) -> dict[str, Any] | None:
    """What the latest answer of the model that carries anything carries."""
    for message in reversed(messages):
        if isinstance(message, ModelResponse) and KEY in (message.metadata or {}):
            carried = (message.metadata or {})[KEY]
            if not isinstance(carried, dict):
                raise DataError(f"not an object: {type(carried).__name__}", field=f"metadata.{KEY}")
            return carried
    return None


def carry(messages: list[ModelMessage], snapshot: dict[str, Any]) -> None:
    """Put a snapshot into the latest answer of the model, and take it out of earlier ones; messages are not changed."""
    latest = True
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if not isinstance(message, ModelResponse):
            continue
        if latest:
            messages[place] = replace(message, metadata={**(message.metadata or {}), KEY: snapshot})
            latest = False
        elif KEY in (message.metadata or {}):
            rest = {name: value for name, value in (message.metadata or {}).items() if name != KEY}
            messages[place] = replace(message, metadata=rest or None)


def open_calls(messages: Sequence[ModelMessage]) -> set[str]:
    """Ids of the latest answer's calls that have no result yet."""
    done: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            return {part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)} - done
        done |= {part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)}
    return set()


def written_arguments(part: ToolCallPart) -> dict[str, Any]:
    """A call's arguments as the model wrote them; what is no JSON object is kept as one text, and marked."""
    return read_arguments(part.args).values


def proposed_call(part: ToolCallPart) -> ToolCall:
    """A call as the model wrote it."""
    return ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=written_arguments(part))


def find_part(messages: Sequence[ModelMessage], call: ToolCallPart) -> ToolCallPart:
    """The call as the model proposed it: what the framework hands over may already hold a human's arguments."""
    for message in reversed(messages):
        parts = message.parts if isinstance(message, ModelResponse) else ()
        same_id = [p for p in parts if isinstance(p, ToolCallPart) and p.tool_call_id == call.tool_call_id]
        if same_id:  # more than one where the model repeats its ids
            return next((p for p in same_id if p.tool_name == call.tool_name and p.args == call.args), same_id[0])
    return call


def with_arguments(messages: list[ModelMessage], part: ToolCallPart, arguments: dict[str, Any]) -> None:
    """Write a human's arguments into the call in the transcript; messages are not changed."""
    for place, message in enumerate(messages):
        if isinstance(message, ModelResponse) and any(p is part for p in message.parts):
            changed = [replace(p, args=json.dumps(arguments)) if p is part else p for p in message.parts]
            messages[place] = replace(message, parts=changed)


def tool_schema(tool: ToolDefinition) -> dict[str, Any]:
    """A tool as a JSON schema."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
    return {"type": "function", "function": function}
