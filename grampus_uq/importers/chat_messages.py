"""Messages in the form of OpenAI's chat API, checked field by field.

Arguments of a call that are no JSON object refuse nothing: they are the model's own words, and runs that hold some fail
more often than others. Their text is kept and marked (`grampus_uq.wire.calls.UNPARSED`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grampus_uq.errors import DataError
from grampus_uq.records import Message, ToolCall
from grampus_uq.vocabulary import Role
from grampus_uq.wire.calls import read_arguments

__all__ = ["Refuse", "chat_messages"]

Refuse = Callable[[str, str], DataError]
"""Makes the error of a field and a reason, with the place of the element it belongs to."""

_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}


def chat_messages(value: Any, field: str, refuse: Refuse) -> tuple[Message, ...]:
    """Turn a list of chat messages into records. Raises what `refuse` makes, naming the first field that is wrong."""
    if not isinstance(value, list):
        raise refuse(field, f"must be a list of messages. Got {type(value).__name__}.")
    return tuple(_message(item, f"{field}[{index}]", refuse) for index, item in enumerate(value))


def _message(value: Any, field: str, refuse: Refuse) -> Message:
    if not isinstance(value, dict):
        raise refuse(field, f"must be an object. Got {type(value).__name__}.")
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise refuse(f"{field}.role", f"must be one of {', '.join(_ROLES)}. Got {role!r:.50}.")
    calls = value.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise refuse(f"{field}.tool_calls", f"must be a list or null. Got {type(calls).__name__}.")
    return Message(
        role=_ROLES[role],
        content=_content(value.get("content"), f"{field}.content", refuse),
        name=_text(value.get("name"), f"{field}.name", refuse),
        tool_calls=tuple(_call(call, f"{field}.tool_calls[{i}]", refuse) for i, call in enumerate(calls or ())),
        tool_call_id=_text(value.get("tool_call_id"), f"{field}.tool_call_id", refuse),
    )


def _content(value: Any, field: str, refuse: Refuse) -> str | None:
    """Text, null, or a list of parts of which the textual ones count."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise refuse(field, f"must be text, null or a list of parts. Got {type(value).__name__}.")
    texts = [part["text"] for part in value if isinstance(part.get("text"), str)]
    return "\n".join(texts)


def _text(value: Any, field: str, refuse: Refuse) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise refuse(field, f"must be text or null. Got {type(value).__name__}.")


def _call(value: Any, field: str, refuse: Refuse) -> ToolCall:
    if not isinstance(value, dict):
        raise refuse(field, f"must be an object. Got {type(value).__name__}.")
    function = value.get("function")
    if not isinstance(function, dict):
        raise refuse(f"{field}.function", f"must be an object. Got {type(function).__name__}.")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise refuse(f"{field}.function.name", f"must be the name of a tool. Got {name!r:.50}.")
    identity = _text(value.get("id"), f"{field}.id", refuse) or ""
    return ToolCall(id=identity, name=name, arguments=read_arguments(function.get("arguments")).values)
