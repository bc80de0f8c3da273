"""LangChain's messages, calls and tools in this package's words, and what goes back in LangChain's."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from grampus_uq import Message, MissingDependencyError, ModelResponse, Session, ToolCall
from grampus_uq.gate.call import CallPhase, CallRecord
from grampus_uq.integrations.carried_states import Carried
from grampus_uq.integrations.judged_turns import TurnJudge
from grampus_uq.integrations.model_turn import ModelTurn, name_with_provider
from grampus_uq.wire import read_call, read_logprobs, read_messages, read_usage

with MissingDependencyError.unless("langchain-core", "langgraph", "Reading LangChain's messages"):
    from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, SystemMessage, ToolMessage


def last_answer(messages: Sequence[Any]) -> int | None:
    """The place of the model's latest message; None when it has said nothing."""
    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], AIMessage):  # a chunk of one too: LangGraph makes a message of it
            return index
    return None


def read_turn(
    message: Any, prompt: Sequence[AnyMessage] = (), tools: Collection[Mapping[str, Any] | str] = (), **more: Any
) -> ModelTurn:
    """The model's message, the prompt before it, the agent's tools, and `more` fields of the turn."""
    metadata = message.response_metadata or {}
    model = str(metadata.get("model_name") or "")
    more["requested"] = more.get("requested") or name_with_provider(model, metadata.get("model_provider"))
    calls = message.tool_calls
    return ModelTurn(
        content=_text_of(message),
        calls=tuple([read_call(c, stand_in_id=f"{message.id}-{n}").call for n, c in enumerate(calls)]) if calls else (),
        prompt=read_messages(prompt).messages if prompt else (),
        logprobs=None if metadata.get("logprobs") is None else read_logprobs(metadata["logprobs"]),
        usage=read_usage(message.usage_metadata) if message.usage_metadata else None,
        model=model,
        tools=tools,
        **more,
    )


def _text_of(message: Any) -> str:
    return message.content if isinstance(message.content, str) else str(message.text)


def find_record(carried: Carried, call: Any) -> tuple[CallRecord | None, ToolCall]:
    """The record of a call as it stands in a message, and the call as a `ToolCall`."""
    record, known = carried.find(call["id"] or "", call["name"], call["args"])
    if known is not None:
        return record, known
    read = read_call(call).call
    return carried.find(read.id, read.name, read.arguments)[0], read


def read_message(message: BaseMessage) -> Message:
    """One message of the transcript."""
    return read_messages(message).messages[0]


def observe_between(session: Session, messages: Sequence[AnyMessage], index: int) -> None:
    """Tell the session what users and tools said since the model's turn before the one at `index`."""
    if not session.observes:
        return
    start = index
    while start > 0 and messages[start - 1].type != "ai":
        start -= 1
    for message in messages[start:index]:
        spoken: Any = message
        if spoken.type == "tool":
            session.observe_tool_result(spoken.tool_call_id, _text_of(spoken), is_error=spoken.status == "error")
        elif spoken.type == "human":
            session.observe_user(_text_of(spoken))


def schema_of(tool: Any) -> Mapping[str, Any]:
    """The JSON schema of the arguments that a model, or a human, may give to a LangChain tool."""
    schema = tool.tool_call_schema
    return schema if isinstance(schema, Mapping) else dict(schema.model_json_schema())


def injected_into(tool: Any) -> set[str]:
    """Names of a LangChain tool's arguments that the framework gives, and the model never does."""
    declared = getattr(tool.args_schema, "model_fields", None) or {}
    return {*declared, *getattr(tool, "_injected_args_keys", ())} - {*schema_of(tool).get("properties", ())}


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
    """The model's message with the arguments of these calls as they run, or as it gave them: an edit may be void."""
    now = {record.proposed.id: dict(record.call.arguments) for record in records}
    calls = [{**call, "args": now.get(call["id"], call["args"])} for call in message.tool_calls]
    return message.model_copy(update={"tool_calls": calls})


def answers_of(records: Iterable[CallRecord]) -> list[Any]:
    """Tool results for calls that were answered for without running."""
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


def unrun(call: Any, why: str) -> ToolMessage:
    """The answer to a call that may not run."""
    return ToolMessage(why, tool_call_id=call["id"], name=call["name"], status="error")


def messages_beside(judge: TurnJudge, carried: Carried) -> list[Any]:
    """The messages beside a judged turn: results of calls that were answered for, or a word to think again."""
    if (carried.turn or {}).get("reflect") and not carried.records:
        return [SystemMessage(judge.settings.monitor.get_reflection_message().content or "")]
    return answers_of(carried.records) if carried.records else []


def shown(carried: Carried) -> dict[str, Any]:
    """The streamed part of a judged turn; no content, only names and numbers."""
    turn = carried.turn or {}
    found: dict[str, Any] = {"session_id": carried.session.session_id}
    for key in ("step_id", "action", "level", "confidence", "rule", "reason", "guarantee", "stopped"):
        found[key] = turn[key]
    found["calls"] = [{"id": r.proposed.id, "name": r.proposed.name, "phase": r.phase._value_} for r in carried.records]
    return found


def answer_of(review: Mapping[str, Any]) -> str | None:
    """The text for the agent when a human did not accept its answer; None for an approval."""
    kind, message = review["kind"], review.get("message")
    if kind == "approve":
        return None
    return f"A human rejected this answer. {message or ''}".strip() if kind == "reject" else message or ""


def as_ai_message(response: ModelResponse) -> AIMessage:
    """The answer of one of this package's model clients, for a graph or a chat model that is built on one."""
    usage = response.token_usage
    metadata: dict[str, Any] = {"model_name": response.model}
    if response.logprobs is not None:
        content = [
            {"token": t.token, "logprob": t.logprob, "top_logprobs": [{"token": n, "logprob": p} for n, p in t.top]}
            for t in response.logprobs
        ]
        metadata["logprobs"] = {"content": content}
    elif response.logprobs_problem is not None:  # they came and cannot be read, and whoever reads this must see that
        metadata["logprobs"] = {"content": [{"token": response.logprobs_problem, "logprob": None}]}
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
