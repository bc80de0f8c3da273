"""One answer of a framework's model, as an adapter reads it, and its observation by the session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grampus_uq import Message, Session, StepUncertainty, TokenUsage, ToolCall, UncertaintyAction
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.wire import TokenStream


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """One answer of the model, the prompt before it, and the agent's tools.

    `content`: the text, or an answer that `Session.observe_llm_response` reads. `ungated`: calls that run without
    asking, each with its result, if there. `tools`: the agent's, by name or schema; `schemas`: for signals' models.
    """

    content: Any
    calls: Sequence[ToolCall] = ()
    ungated: Sequence[tuple[ToolCall, Any]] = ()
    prompt: Sequence[Message] = ()
    logprobs: TokenStream | None = None
    usage: TokenUsage | None = None
    model: str = ""
    tools: Collection[Mapping[str, Any] | str] = ()
    schemas: Sequence[Mapping[str, Any]] = ()


async def observe_turn(
    session: Session, settings: AdapterSettings, turn: ModelTurn, step_id: str
) -> tuple[StepUncertainty, UncertaintyAction]:
    """Sense and commit a turn of the model (`Session.observe_llm_response`)."""
    if turn.tools and not session.tools_declared:
        session.declare_tools(turn.tools)
    return await session.observe_llm_response(
        turn.content,
        step_id,
        prompt_messages=turn.prompt,
        model_client=settings.model_client,
        model_id=settings.model_id or turn.model,
        tool_calls=turn.calls,
        logprobs=turn.logprobs,
        usage=turn.usage,
        tools=turn.schemas or None,
    )
