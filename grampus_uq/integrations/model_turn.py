"""One answer of a framework's model, as an adapter reads it, and its observation by the session."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grampus_uq import Message, Outcome, Session, StepUncertainty, StopReason, TokenUsage, ToolCall, UncertaintyAction
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.recording import prompt_hash, tools_hash
from grampus_uq.wire import TokenStream, said_by_users


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """One answer of the model, the prompt before it, and the agent's tools.

    `content`: the text, or an answer that `Session.observe_llm_response` reads. `ungated`: calls that run without
    asking, each with its result, if there. `tools`: the agent's, by name or schema; `schemas`: for signals' models.
    `requested`, `system`, `offered`: the model's name (`name_with_provider`), its standing instructions and the tools
    as they were sent; "" or None where nobody can tell. `shape`: the schema that the answer must have; None for free
    text. `heard` tells the session what users and tools said before the answer.
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
    requested: str = ""
    system: str | None = None
    offered: Iterable[Mapping[str, Any]] | None = None
    shape: Any = None
    heard: Callable[[Session], None] = lambda session: None


def name_with_provider(model: str, provider: str | None) -> str:
    """The name by which profiles and permits know a model: bare of `openai`, as others may serve another by it."""
    return model if not model or provider in (None, "", "openai") else f"{provider}/{model}"


def hear_users(session: Session, messages: Any) -> None:
    """Tell the session what users said after the model's last answer, of the messages that the model was sent."""
    for said in said_by_users(messages) if session.observes else ():
        session.observe_user(said)


def say_made_with(
    session: Session, turn: ModelTurn, *, model: str = "", prompt: str | None = None, tools: str | None = None
) -> None:
    """Tell the session what an answer is made with: by the names that the user gave, else by what was sent."""
    shape = [] if turn.shape is None else [{"answer": turn.shape}]
    session.made_with(
        model=model or turn.requested or turn.model,
        prompt_hash=prompt or _hashed(_known_prompt_hash, turn.system),
        tools_hash=tools or _hashed(tools_hash, None if turn.offered is None else [*turn.offered, *shape]),
    )


_known_prompt_hash = functools.lru_cache(maxsize=16)(prompt_hash)


def _hashed(digest: Callable[[Any], str], sent: Any) -> str | None:
    """The hash of what was sent; None where that is unknown, or no JSON."""
    try:
        return None if sent is None else digest(sent)
    except (TypeError, ValueError, RecursionError):
        return None


async def observe_turn(
    session: Session, settings: AdapterSettings, turn: ModelTurn, step_id: str
) -> tuple[StepUncertainty, UncertaintyAction]:
    """Sense and commit a turn of the model (`Session.observe_llm_response`)."""
    say_made_with(session, turn, model=settings.model, prompt=settings.prompt_hash, tools=settings.tools_hash)
    turn.heard(session)
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


def end_aborted(session: Session) -> None:
    """Record that the policy ended the run; whether it would have succeeded is unknown."""
    session.finish(Outcome(success=None, stop_reason=StopReason.MONITOR_STOP, time_s=time.time()))
