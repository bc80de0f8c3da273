"""A signal's context over a scripted model, as the driver would build it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grampus_uq import Budget, Message, Role, Step, ToolCall
from grampus_uq.signals.driver import MeteredContext

QUESTION = (Message(role=Role.USER, content="What is the capital of France?"),)


def context(
    client: Any,
    *,
    messages: Sequence[Message] = QUESTION,
    timeout_s: float = 30.0,
    max_calls: int = 50,
    max_tokens: int | None = None,
) -> MeteredContext:
    """A context with a budget that is not in the way unless a test narrows it."""
    budget = Budget(timeout_s=timeout_s, max_calls=max_calls, max_tokens=max_tokens)
    return MeteredContext(messages=messages, client=client, model="m", budget=budget)


def said(text: str = "", *calls: ToolCall) -> Step:
    """A step of the model."""
    return Step(step_id="s", kind="llm_call", time_s=0.0, text=text, tool_calls=calls)
