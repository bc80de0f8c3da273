"""Messages as LangChain and LangSmith store them: serialised constructors, `type` and `data`, or OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

from grampus_uq.importers.chat_messages import chat_messages
from grampus_uq.importers.record_fields import Refuse, object_or_none, role_of, text_or_none, token_count, tool_call
from grampus_uq.records.values import Message

__all__ = ["langchain_message", "shown", "usage_of"]


def langchain_message(value: Any, field: str, refuse: Refuse) -> Message:
    """Turn one message into a record. Raises what `refuse` makes, naming the first field that is wrong."""
    if not isinstance(value, dict):
        raise refuse(field, f"must be an object. Got {type(value).__name__}.")
    if isinstance(value.get("role"), str):
        return chat_messages([value], field, lambda place, reason: refuse(place.replace("[0]", "", 1), reason))[0]
    kind, data, place = value.get("type"), value, field
    if isinstance(
        value.get("kwargs"), dict
    ):  # {"lc": 1, "type": "constructor", "id": [..., "AIMessage"], "kwargs": {}}
        names, data, place = value.get("id"), value["kwargs"], f"{field}.kwargs"
        kind = names[-1] if isinstance(names, list) and names else data.get("type")
    elif isinstance(value.get("data"), dict):  # {"type": "ai", "data": {}}
        data, place = value["data"], f"{field}.data"
    calls = data.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise refuse(f"{place}.tool_calls", f"must be a list or null. Got {type(calls).__name__}.")
    return Message(
        role=role_of(kind, f"{field}.type", refuse),
        content=_content(data.get("content"), f"{place}.content", refuse),
        name=text_or_none(data.get("name"), f"{place}.name", refuse),
        tool_calls=tuple(tool_call(call, f"{place}.tool_calls[{i}]", refuse) for i, call in enumerate(calls or ())),
        tool_call_id=text_or_none(data.get("tool_call_id"), f"{place}.tool_call_id", refuse),
    )


def usage_of(value: Any, field: str, refuse: Refuse) -> tuple[int, int]:
    """The tokens that a message says it took, input and output; zeros where it says nothing."""
    data = value.get("kwargs", value) if isinstance(value, dict) else {}
    usage = object_or_none(data.get("usage_metadata") if isinstance(data, dict) else None, field, refuse) or {}
    return (
        token_count(usage.get("input_tokens"), f"{field}.input_tokens", refuse),
        token_count(usage.get("output_tokens"), f"{field}.output_tokens", refuse),
    )


def shown(value: Any) -> str:
    """What a tool returned, as text: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _content(value: Any, field: str, refuse: Refuse) -> str | None:
    """Text, or a list of texts and blocks of which the textual ones count."""
    if not isinstance(value, list):
        return text_or_none(value, field, refuse)
    texts = [part if isinstance(part, str) else part.get("text") for part in value if isinstance(part, str | dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
