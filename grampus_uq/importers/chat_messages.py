"""Messages in the form of OpenAI's chat API, checked field by field."""

from __future__ import annotations

from typing import Any

from grampus_uq.importers.record_fields import Refuse, role_of, text_or_none, tool_call
from grampus_uq.records.values import Message

__all__ = ["chat_messages"]


def chat_messages(value: Any, field: str, refuse: Refuse) -> tuple[Message, ...]:
    """Turn a list of chat messages into records. Raises what `refuse` makes, naming the first field that is wrong."""
    if not isinstance(value, list):
        raise refuse(field, f"must be a list of messages. Got {type(value).__name__}.")
    return tuple(_message(item, f"{field}[{index}]", refuse) for index, item in enumerate(value))


def _message(value: Any, field: str, refuse: Refuse) -> Message:
    if not isinstance(value, dict):
        raise refuse(field, f"must be an object. Got {type(value).__name__}.")
    calls = value.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise refuse(f"{field}.tool_calls", f"must be a list or null. Got {type(calls).__name__}.")
    return Message(
        role=role_of(value.get("role"), f"{field}.role", refuse),
        content=_content(value.get("content"), f"{field}.content", refuse),
        name=text_or_none(value.get("name"), f"{field}.name", refuse),
        tool_calls=tuple(tool_call(call, f"{field}.tool_calls[{i}]", refuse) for i, call in enumerate(calls or ())),
        tool_call_id=text_or_none(value.get("tool_call_id"), f"{field}.tool_call_id", refuse),
    )


def _content(value: Any, field: str, refuse: Refuse) -> str | None:
    """Text, null, or a list of parts of which the textual ones count."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise refuse(field, f"must be text, null or a list of parts. Got {type(value).__name__}.")
    texts = [part["text"] for part in value if isinstance(part.get("text"), str)]
    return "\n".join(texts)
