"""LangChain's messages in this package's words, and the answer of a model client in LangChain's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grampus_uq import Message, ModelResponse, Session, ToolCall
from grampus_uq.integrations.judged_turns import ModelTurn
from grampus_uq.wire import read_call as read
from grampus_uq.wire import read_logprobs, read_messages, read_usage

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage, AnyMessage, BaseMessage

__all__ = ["as_ai_message", "last_answer", "observe_between", "read_call", "read_message", "read_turn"]


def last_answer(messages: Sequence[AnyMessage]) -> int | None:
    """Where the model's latest message stands; None when it has said nothing."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].type == "ai":
            return index
    return None


def read_turn(messages: Sequence[AnyMessage], index: int, *, with_prompt: bool) -> ModelTurn:
    """The model's message at this place; the prompt is converted only for a monitor that asks a model."""
    message: Any = messages[index]
    metadata = message.response_metadata or {}
    return ModelTurn(
        text=str(message.text),
        calls=[read_call(call, f"{message.id}-{n}") for n, call in enumerate(message.tool_calls)],
        prompt=read_messages(messages[:index]).messages if with_prompt else (),
        logprobs=read_logprobs(metadata.get("logprobs")),
        usage=read_usage(message.usage_metadata),
        model=str(metadata.get("model_name") or ""),
    )


def read_call(call: Any, stand_in_id: str = "") -> ToolCall:
    """A proposed call. Arguments that are no JSON are shown as text, so that they can be judged and told apart."""
    return read(call, stand_in_id=stand_in_id).call


def read_message(message: BaseMessage) -> Message:
    """One message of the transcript."""
    return read_messages(message).messages[0]


def observe_between(session: Session, messages: Sequence[AnyMessage], index: int) -> None:
    """Tell the session what users and tools said since the model's turn before the one at `index`."""
    start = index
    while start > 0 and messages[start - 1].type != "ai":
        start -= 1
    for message in messages[start:index]:
        spoken: Any = message
        if spoken.type == "tool":
            session.observe_tool_result(spoken.tool_call_id, str(spoken.text), is_error=spoken.status == "error")
        elif spoken.type == "human":
            session.observe_user(str(spoken.text))


def as_ai_message(response: ModelResponse) -> AIMessage:
    """The answer of one of this package's model clients, for a graph or a chat model that is built on one."""
    from langchain_core.messages import AIMessage

    usage = response.token_usage
    metadata: dict[str, Any] = {"model_name": response.model}
    if response.logprobs is not None:
        content = [
            {"token": t.token, "logprob": t.logprob, "top_logprobs": [{"token": n, "logprob": p} for n, p in t.top]}
            for t in response.logprobs
        ]
        metadata["logprobs"] = {"content": content}
    return AIMessage(
        content=response.content,
        tool_calls=[{"name": c.name, "args": dict(c.arguments), "id": c.id} for c in response.tool_calls],
        response_metadata=metadata,
        usage_metadata={
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    )
