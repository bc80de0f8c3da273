"""LangChain's messages, calls and tools in this package's words, and what goes back in LangChain's."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grampus_uq import Message, ModelResponse, Session, ToolCall
from grampus_uq.gate.call import CallPhase, CallRecord
from grampus_uq.integrations.judged_turns import ModelTurn
from grampus_uq.wire import read_call as read
from grampus_uq.wire import read_logprobs, read_messages, read_usage

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage, AnyMessage, BaseMessage

__all__ = [
    "answered_for",
    "as_ai_message",
    "last_answer",
    "observe_between",
    "plain_call",
    "read_call",
    "read_message",
    "read_turn",
    "schema_of",
    "with_arguments",
    "with_ids",
]


def last_answer(messages: Sequence[Any]) -> int | None:
    """Where the model's latest message stands; None when it has said nothing."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].type == "ai":
            return index
    return None


def read_turn(message: Any, prompt: Sequence[AnyMessage] = ()) -> ModelTurn:
    """The model's message, and what it had been asked."""
    metadata = message.response_metadata or {}
    return ModelTurn(
        text=message.content if isinstance(message.content, str) else str(message.text),
        calls=[read_call(call, f"{message.id}-{n}") for n, call in enumerate(message.tool_calls)],
        prompt=read_messages(prompt).messages if prompt else (),
        logprobs=read_logprobs(metadata.get("logprobs")),
        usage=read_usage(message.usage_metadata) if message.usage_metadata else None,
        model=str(metadata.get("model_name") or ""),
    )


def read_call(call: Any, stand_in_id: str = "") -> ToolCall:
    """A proposed call. Arguments that are no JSON are shown as text, so that they can be judged and told apart."""
    return read(call, stand_in_id=stand_in_id).call


def plain_call(call: Any) -> ToolCall:
    """A call as it stands, unread: to be held against one that was read."""
    return ToolCall.model_construct(id=call["id"] or "", name=call["name"], arguments=call["args"])


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


def schema_of(tool: Any) -> Mapping[str, Any]:
    """The JSON schema of the arguments that a model, or a human, may give to a LangChain tool."""
    schema = tool.tool_call_schema
    return schema if isinstance(schema, Mapping) else dict(schema.model_json_schema())


def with_ids(message: Any) -> Any:
    """The model's message with an id of its own for each call: an empty or repeated one names no call."""
    ids = [call["id"] for call in message.tool_calls]
    if all(ids) and len(set(ids)) == len(ids):
        return message
    calls = [
        call if call["id"] and ids.index(call["id"]) == place else {**call, "id": f"call-{uuid.uuid4().hex}"}
        for place, call in enumerate(message.tool_calls)
    ]
    return message.model_copy(update={"tool_calls": calls})


def with_arguments(message: Any, records: Iterable[CallRecord]) -> Any:
    """The model's message with the arguments that humans gave."""
    edited = {record.proposed.id: dict(record.call.arguments) for record in records if record.edited}
    calls = [{**call, "args": edited.get(call["id"], call["args"])} for call in message.tool_calls]
    return message.model_copy(update={"tool_calls": calls})


def answered_for(records: Iterable[CallRecord]) -> list[Any]:
    """Tool results for calls that were answered for without running."""
    from langchain_core.messages import ToolMessage

    return [
        ToolMessage(
            record.text or "",
            tool_call_id=record.proposed.id,
            name=record.proposed.name,
            status="error" if record.is_error else "success",
        )
        for record in records
        if record.phase is CallPhase.SETTLED
    ]


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
