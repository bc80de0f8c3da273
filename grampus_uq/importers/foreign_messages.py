"""A message of a foreign transcript as a record, checked field by field, in the forms that files keep.

OpenAI's chat form (`role`), and LangChain's: serialised constructors (`kwargs`), or `type` and `data`. What clients and
frameworks hand over live is read by `grampus_uq.wire`, which refuses nothing.
"""

from __future__ import annotations

import json
from typing import Any

from grampus_uq.importers.record_fields import Refuse, listed, object_of, role_of, text_or_none, tool_call
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role
from grampus_uq.wire.messages import answers_in, proposed_in


def messages_of(value: Any, field: str, refuse: Refuse) -> tuple[Message, ...]:
    """Turn a list of messages into records. Raises what `refuse` makes, naming the first field that is wrong."""
    if not isinstance(value, list):
        raise refuse(field, f"must be a list of messages. Got {type(value).__name__}.")
    found: list[Message] = []
    for index, item in enumerate(value):
        message = message_of(item, f"{field}[{index}]", refuse)
        answers = answers_in(item) if message.role is Role.USER else []
        found += [*answers, message] if message.content or not answers else answers
    return tuple(found)


def message_of(value: Any, field: str, refuse: Refuse) -> Message:
    """Turn one message into a record. Raises what `refuse` makes, naming the first field that is wrong."""
    data, place = object_of(value, field, refuse), field
    role, named = data.get("role"), f"{field}.role"
    if not isinstance(role, str) and ("type" in data or "kwargs" in data):
        role, named = data.get("type"), f"{field}.type"
        if isinstance(value.get("kwargs"), dict):  # {"lc": 1, "type": "constructor", "id": [..., "AIMessage"], ...}
            names, data, place = value.get("id"), value["kwargs"], f"{field}.kwargs"
            role = names[-1] if isinstance(names, list) and names else data.get("type")
        elif isinstance(value.get("data"), dict):  # {"type": "ai", "data": {}}
            data, place = value["data"], f"{field}.data"
    listed(data.get("tool_calls"), f"{place}.tool_calls", refuse)
    calls, content = proposed_in(data), "content" if data.get("content") is not None else "refusal"
    return Message(
        role=role_of(role, named, refuse),
        content=_content(data.get(content), f"{place}.{content}", refuse),
        name=text_or_none(data.get("name"), f"{place}.name", refuse),
        tool_calls=tuple(tool_call(call, f"{place}.tool_calls[{i}]", refuse) for i, call in enumerate(calls)),
        tool_call_id=text_or_none(data.get("tool_call_id"), f"{place}.tool_call_id", refuse),
    )


def shown(value: Any) -> str:
    """A tool's result as text: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _content(value: Any, field: str, refuse: Refuse) -> str | None:
    """Text, null, or a list of texts and parts of which the textual ones count."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(part, str | dict) for part in value):
        raise refuse(field, f"must be text, null or a list of parts. Got {type(value).__name__}.")
    texts = [part if isinstance(part, str) else part.get("text", part.get("refusal")) for part in value]
    return "\n".join(text for text in texts if isinstance(text, str))
