"""Reads what a model of the OpenAI Agents SDK answered, and has it observed before the SDK acts on it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grampus_uq import Message, MissingDependencyError, Role, TokenLogprob, TokenUsage, ToolCall

try:
    from agents import Model, ModelProvider, ModelResponse
except ImportError as error:
    raise MissingDependencyError.of("openai-agents", "openai-agents", "watching the OpenAI Agents SDK") from error

__all__ = [
    "Answer",
    "WatchedModel",
    "WatchedProvider",
    "item_call",
    "plain",
    "read_messages",
    "read_output",
    "tool_call",
]

_CALLS = {
    "function_call": "arguments",
    "mcp_approval_request": "arguments",
    "custom_tool_call": "input",
    "shell_call": "action",
    "local_shell_call": "action",
    "computer_call": "action",
    "apply_patch_call": "operation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of the model, in this package's words."""

    text: str
    calls: tuple[ToolCall, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    usage: TokenUsage
    written: tuple[tuple[ToolCall, str], ...] = ()
    """The calls of function tools, each with its arguments as the model wrote them."""


Observe = Callable[[Answer, str | None, Any, Sequence[Any]], Awaitable[None]]
"""Takes an answer, the system instructions, the input and the tools."""


class WatchedModel(Model):
    """A model whose answers are observed; what it asks for is asked of the model inside, unchanged.

    `before` is called before the model is asked (it may raise: a run that was aborted asks no more).
    """

    def __init__(self, inner: Model, observe: Observe, before: Callable[[], None], owner: object) -> None:
        self.inner = inner
        self.owner = owner
        self._observe = observe
        self._before = before

    def __getattr__(self, name: str) -> Any:
        """Whatever else the SDK or the user reads of the model inside."""
        if name == "inner":  # while it is being built or copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.inner._cleanup_on_run_end(owner)

    async def close(self) -> None:
        """Close the model inside."""
        await self.inner.close()

    def get_retry_advice(self, request: Any) -> Any:
        """What the model inside advises."""
        return self.inner.get_retry_advice(request)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002 (the SDK's name)
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **given: Any,
    ) -> ModelResponse:
        """Ask the model inside, and observe its answer."""
        self._before()
        response = await self.inner.get_response(
            system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **given
        )
        await self._observe(read_output(response.output, response.usage), system_instructions, input, tools)
        return response

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002 (the SDK's name)
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **given: Any,
    ) -> AsyncIterator[Any]:
        """Stream from the model inside; the whole answer is observed before its last event is passed on."""
        self._before()
        async for event in self.inner.stream_response(
            system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **given
        ):
            if getattr(event, "type", "") in ("response.completed", "response.incomplete"):
                answer = read_output(event.response.output, event.response.usage)  # type: ignore[union-attr]  # by type
                await self._observe(answer, system_instructions, input, tools)
            yield event


class WatchedProvider(ModelProvider):
    """Looks models up by name in the provider inside, and watches each."""

    def __init__(self, inner: ModelProvider, watch: Callable[[Model], Model]) -> None:
        self.inner = inner
        self._watch = watch

    def get_model(self, model_name: str | None) -> Model:
        """The model of this name, watched."""
        return self._watch(self.inner.get_model(model_name))

    async def aclose(self) -> None:
        """Close the provider inside."""
        await self.inner.aclose()


def plain(value: Any) -> Any:
    """A value of the SDK as JSON values; what is none becomes its text."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_unset=True, warnings=False)
    try:
        return json.loads(json.dumps(value, default=lambda other: getattr(other, "__dict__", None) or str(other)))
    except (TypeError, ValueError):
        return str(value)


def tool_call(call_id: str, name: str, arguments: Any) -> ToolCall:
    """A call as it was proposed; arguments that are no JSON object are kept as one text or value, under "input"."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            arguments = {"input": arguments}
    given = arguments if isinstance(arguments, Mapping) else {"input": plain(arguments)}
    try:
        return ToolCall(id=call_id, name=name, arguments=dict(given))
    except ValueError:  # NaN, infinity
        return ToolCall(id=call_id, name=name, arguments={"input": str(arguments)})


def _field(item: Any, name: str, default: Any = None) -> Any:
    """A field of an item of the SDK, which is one of its models or a plain dictionary."""
    return item.get(name, default) if isinstance(item, dict) else getattr(item, name, default)


def item_call(item: Any) -> ToolCall | None:
    """The call in an item of the model's output, None for an item that is no call."""
    kind = _field(item, "type", "")
    if kind not in _CALLS:
        return None
    call_id = _field(item, "call_id") or _field(item, "id") or ""
    given = _field(item, _CALLS[kind])
    if given is None and kind == "apply_patch_call":
        given = _field(item, "operations")
    return tool_call(call_id, _field(item, "name") or kind.removesuffix("_call"), given)


def read_output(output: Iterable[Any], usage: Any) -> Answer:
    """Text, calls, token log-probabilities and usage of one answer."""
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []
    calls: list[ToolCall] = []
    written: list[tuple[ToolCall, str]] = []
    for item in output:
        call = item_call(item)
        if call is not None:
            calls.append(call)
            if _field(item, "type") == "function_call":
                written.append((call, str(_field(item, "arguments"))))
        elif _field(item, "type", "") == "message":
            for part in _field(item, "content") or ():
                texts.append(_field(part, "text") or _field(part, "refusal") or "")
                logprobs.extend(_logprobs(_field(part, "logprobs") or ()))
    spent_in, spent_out = (getattr(usage, name, 0) or 0 for name in ("input_tokens", "output_tokens"))
    return Answer(
        text="\n".join(text for text in texts if text),
        calls=tuple(calls),
        logprobs=tuple(logprobs) or None,
        usage=TokenUsage(input_tokens=spent_in, output_tokens=spent_out, total_tokens=spent_in + spent_out),
        written=tuple(written),
    )


def _logprobs(tokens: Iterable[Any]) -> Iterable[TokenLogprob]:
    for token in tokens:
        top = tuple((str(_field(t, "token")), float(_field(t, "logprob"))) for t in _field(token, "top_logprobs") or ())
        yield TokenLogprob(token=str(_field(token, "token")), logprob=float(_field(token, "logprob")), top=top)


def read_messages(system: str | None, items: Any) -> list[Message]:
    """The prompt of one model call: what signals show to the model that they ask."""
    messages = [Message(role=Role.SYSTEM, content=system)] if system else []
    if isinstance(items, str):
        return [*messages, Message(role=Role.USER, content=items)]
    for item in items:
        call = item_call(item)
        if call is not None:
            messages.append(Message(role=Role.ASSISTANT, tool_calls=(call,)))
        elif "output" in item and "call_id" in item:
            messages.append(Message(role=Role.TOOL, content=_text(item["output"]), tool_call_id=str(item["call_id"])))
        elif "role" in item:
            role = {"assistant": Role.ASSISTANT, "user": Role.USER}.get(item["role"], Role.SYSTEM)
            messages.append(Message(role=role, content=_text(item.get("content"))))
    return messages


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(str(_field(part, "text", "") or "") for part in content)
    return "" if content is None else json.dumps(plain(content))
