"""A run of the OpenAI Agents SDK that waits for a human, as the one text that another process needs to go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grampus_uq import ApprovalRequest, DataError, ToolCall
from grampus_uq.integrations.openai_agents_model import item_call, plain

__all__ = ["VERSION", "PausedRun", "interrupted_call", "read_paused"]

VERSION = 2
_READABLE = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedRun:
    """A run that waits: what for, and everything that another process needs to go on, as one JSON text."""

    session_id: str
    requests: tuple[ApprovalRequest, ...]
    text: str


def interrupted_call(item: Any) -> ToolCall:
    """The call of one interruption."""
    call = item_call(item.raw_item)
    if call is not None and item.tool_name:
        return call.model_copy(update={"name": item.tool_name})
    return call or ToolCall(name=item.tool_name or "", arguments={"input": plain(item.raw_item)})


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "session_id": lambda value: isinstance(value, str),
    "agent_id": lambda value: isinstance(value, str),
    "model": lambda value: isinstance(value, str),
    "calls": lambda value: isinstance(value, dict),
    "run_state": lambda value: isinstance(value, dict),
}


def read_paused(text: str) -> dict[str, Any]:
    """What `pause` wrote; raises DataError, naming the field."""
    try:
        envelope = json.loads(text)
    except ValueError as failure:
        raise DataError(f"not a paused run: {failure}") from failure
    if not isinstance(envelope, dict) or envelope.get("v") not in _READABLE:
        raise DataError(f"not a paused run of version {VERSION}", field="v")
    for name, holds in _FIELDS.items():
        if not holds(envelope.get(name)):
            raise DataError("missing or of another type", field=name)
    return envelope
