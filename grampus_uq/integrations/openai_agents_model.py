"""Reads what a model of the OpenAI Agents SDK answered, and has it observed before the SDK acts on it."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from agents import Model, ModelProvider, ModelResponse

from grampus_uq import Message, Role, TokenUsage, ToolCall, wire
from grampus_uq.integrations.model_turn import ModelTurn, name_with_provider
from grampus_uq.wire import field, leading_system, read_call, read_response, text_field

_LOCAL = frozenset({"function_call", "custom_tool_call", "apply_patch_call", "mcp_approval_request"})
"""The kinds of calls that go through a gate; a shell's do where the shell is a local one."""
_CALLS = _LOCAL | {"shell_call", "local_shell_call", "computer_call"}
_SPELLINGS = {"timeoutMs": "timeout_ms", "timeout": "timeout_ms", "maxOutputLength": "max_output_length"}
_NOT_MEANT = frozenset({"ctx_wrapper"})


Before = Callable[["str | None", Any, "list[Any]"], "tuple[str | None, Any, list[Any]]"]
Observe = Callable[[Sequence[Any], Any, "str | None", Any, Sequence[Any], Mapping[str, Any]], Awaitable[None]]
"""Takes the output and the usage of an answer, the system instructions, the input, the tools, and what was sent."""


class WatchedModel(Model):
    """A model whose answers are observed; what it asks for is asked of the model inside, unchanged.

    `before` gives what it is asked with, from system instructions, input and tools, or raises for an aborted run.
    `owner` is the guard; `has`: whether an agent is its own; `name`: by which a provider was asked for the model. Two
    of one guard around one model are equal.
    """

    def __init__(
        self, inner: Model, observe: Observe, before: Before, owner: object, has: Callable[[Any], bool], name: str
    ) -> None:
        self.inner = inner
        self._asked_as = name
        self.owner = owner
        self._observe = observe
        self._before = before
        self.has = has

    @property  # type: ignore[misc]  # only read: the SDK treats models by their kind
    def __class__(self) -> Any:
        return type(self.inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WatchedModel) and other.owner is self.owner and bool(other.inner == self.inner)

    def __hash__(self) -> int:
        return hash((id(self.owner), self.inner))

    def __deepcopy__(self, memo: dict[int, Any]) -> WatchedModel:
        """The model inside is copied; the watch is the same guard's."""
        inner = copy.deepcopy(self.inner, memo)
        return WatchedModel(inner, self._observe, self._before, self.owner, self.has, self._asked_as)

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
        """The advice of the model inside."""
        return self.inner.get_retry_advice(request)

    async def get_response(
        self, system_instructions: str | None, input: Any, model_settings: Any, tools: Any, *rest: Any, **given: Any
    ) -> ModelResponse:
        """Ask the model inside, and observe its answer."""
        told, input, shown, sent = self._asked(system_instructions, input, tools, rest, given)
        given |= zip(("output_schema", "handoffs", "tracing"), rest, strict=False)
        response = await self.inner.get_response(  # by name, as the SDK: a model may take nothing else
            system_instructions=told, input=input, model_settings=model_settings, tools=shown, **given
        )
        await self._observe(response.output, response.usage, told, input, tools, sent)
        return response

    async def stream_response(
        self, system_instructions: str | None, input: Any, model_settings: Any, tools: Any, *rest: Any, **given: Any
    ) -> AsyncIterator[Any]:
        """Stream from the model inside; the whole answer is observed before its last event is passed on."""
        told, input, shown, sent = self._asked(system_instructions, input, tools, rest, given)
        done: list[Any] = []
        events = self.inner.stream_response(told, input, model_settings, shown, *rest, **given)
        try:
            async for event in events:
                kind = getattr(event, "type", "")
                if kind == "response.output_item.done":
                    done.append(event.item)  # type: ignore[union-attr]  # by type
                elif kind in ("response.completed", "response.incomplete"):
                    answer = event.response  # type: ignore[union-attr]  # by type
                    output = answer.output or done  # as the SDK: some services say the items once
                    await self._observe(output, answer.usage, told, input, tools, sent)
                yield event
        finally:
            with suppress(Exception):  # as the SDK: the answer, or what ended it, counts
                await _close(events)

    def _asked(
        self, system: str | None, items: Any, tools: list[Any], rest: Sequence[Any], given: Mapping[str, Any]
    ) -> tuple[str | None, Any, list[Any], dict[str, Any]]:
        """What the model is asked with, and that in the fields of a `ModelTurn`: also a provider's stored prompt."""
        told, items, shown = self._before(system, items, tools)
        shape = given.get("output_schema", rest[0] if rest else None)
        handoffs = given.get("handoffs", rest[1] if len(rest) > 1 else ())
        leading = leading_system(items)
        stored = [] if given.get("prompt") is None else [json.dumps(plain(given["prompt"]), sort_keys=True)]
        sent = {
            "requested": self._name(),
            "system": "\n\n".join([text for text in (system, leading) if text] + stored),
            "offered": [*map(tool_schema, shown), *map(_handoff_schema, handoffs)],
            "shape": None if shape is None or shape.is_plain_text() else shape,  # no JSON, and so unknown
        }
        with suppress(Exception):  # the user's own, and not every model asks it for its schema
            sent["shape"] = sent["shape"] and shape.json_schema()
        return told, items, shown, sent

    def _name(self) -> str:
        """The model's own name, behind the prefix by which a `MultiProvider` was asked for it: that is its provider."""
        name = str(getattr(self.inner, "model", None) or self._asked_as)
        provider = self._asked_as.removesuffix(f"/{name}")
        routed = provider == self._asked_as or provider in ("litellm", "any-llm")  # their names have it already
        return name if routed else name_with_provider(name, provider)


async def _close(events: Any) -> None:
    """Close a model's stream by the method that it has, as the SDK does."""
    close = getattr(events, "aclose", None) or getattr(events, "close", None)
    if close is not None:
        await awaited(close())


async def awaited(result: Any) -> Any:
    """The result of a call that may have to be awaited."""
    return await result if isinstance(result, Awaitable) else result


class WatchedProvider(ModelProvider):
    """Looks models up by name in the provider inside, and watches each."""

    def __init__(self, inner: ModelProvider, watch: Callable[[Model, str], Model]) -> None:
        self.inner = inner
        self._watch = watch

    def get_model(self, model_name: str | None) -> Model:
        """The model of this name, watched."""
        return self._watch(self.inner.get_model(model_name), model_name or "")

    async def aclose(self) -> None:
        """Close the provider inside."""
        await self.inner.aclose()


def tool_schema(tool: Any) -> dict[str, Any]:
    """A tool as the model is offered it; of one that is no function, the settings that are JSON values."""
    function = {"name": getattr(tool, "name", type(tool).__name__), "description": getattr(tool, "description", "")}
    kind, parameters = "function", getattr(tool, "params_json_schema", {})
    if is_dataclass(tool) and not hasattr(tool, "params_json_schema"):
        given = {one.name: getattr(tool, one.name) for one in fields(tool)}
        kind, parameters = function["name"], {name: plain(value) for name, value in given.items() if _is_json(value)}
    return {"type": kind, "function": {**function, "parameters": parameters}}


def _is_json(value: Any) -> bool:
    """Return True for JSON values and the SDK's models of them: what they say is the same in every process."""
    try:
        json.dumps(value, default=lambda other: other.model_dump(mode="json"))
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _handoff_schema(handoff: Any) -> dict[str, Any]:
    function = {"name": handoff.tool_name, "description": handoff.tool_description}
    return {"type": "function", "function": {**function, "parameters": handoff.input_json_schema}}


def plain(value: Any) -> Any:
    """A value of the SDK as JSON values; what is none becomes its text."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_unset=True, warnings=False)
    try:
        return json.loads(json.dumps(value, default=lambda other: getattr(other, "__dict__", None) or str(other)))
    except (TypeError, ValueError):
        return str(value)


def item_call(item: Any) -> ToolCall | None:
    """The call in an item of the model's output, None for an item that is not a call."""
    return read_call(item).call if text_field(item, "type") in _CALLS else None


def form_of(given: Any) -> dict[str, Any]:
    """The input of a shell, apply-patch or custom tool, or the model's call of it, in the one form that both have.

    The SDK reads two spellings of a shell's limits, and takes none and zero for none.
    """
    names = [one.name for one in fields(given)] if is_dataclass(given) and not isinstance(given, type) else None
    values = given if names is None else {name: getattr(given, name) for name in names if name not in _NOT_MEANT}
    values = plain(values)
    values = {"input": values} if isinstance(values, str) else values if isinstance(values, dict) else {"given": values}
    named = {_SPELLINGS.get(name, name): value for name, value in sorted(values.items(), reverse=True)}
    return {name: value for name, value in named.items() if value not in (None, 0)}


def with_arguments(given: Any, arguments: Mapping[str, Any]) -> Any:
    """The input of such a tool once a human changed its arguments; raises TypeError on names that it does not have."""
    if isinstance(given, str):
        return str(arguments["input"])
    kept = {name: getattr(given, name) for name in _NOT_MEANT if hasattr(given, name)}
    return type(given)(**form_of(dict(arguments)), **kept)


def answered_calls(items: Any) -> Iterator[tuple[str, ToolCall | None, Any]]:
    """The answers to calls in the input of a model: the call's id, the call where it stands before it, and the item."""
    known: dict[str, ToolCall] = {}
    for item in () if isinstance(items, str) else items:
        kind = text_field(item, "type")
        if kind in _CALLS and (call := item_call(item)) is not None:
            known[call.id] = call
        elif kind.endswith("_output"):
            yield text_field(item, "call_id"), known.get(text_field(item, "call_id")), item
        elif kind == "mcp_approval_response" and field(item, "approve") is False:
            call_id = text_field(item, "approval_request_id")
            yield call_id, known.get(call_id), item


def hosted_requests(output: Sequence[Any], labels: Collection[str]) -> set[str]:
    """Ids of the requests in an answer for calls of the hosted servers with these labels."""
    asked = [item for item in output if labels and text_field(item, "type") == "mcp_approval_request"]
    return {text_field(item, "id") for item in asked if text_field(item, "server_label") in labels}


Written = dict[tuple[str, str, str], ToolCall]
"""The calls of function tools, by id, name and arguments as the model wrote them."""


def read_output(output: Sequence[Any], usage: Any, tools: Iterable[Any] = ()) -> tuple[ModelTurn, Written]:
    """One answer of a model that was given these tools."""
    read = read_response({"output": list(output), "usage": usage})
    calls = tuple(call.call for call in read.calls)
    kinds = [(text_field(item, "type"), item) for item in output]
    made = [(kind, item) for kind, item in kinds if kind.endswith("_call") or kind in _CALLS]
    written = {
        (call.id, call.name, text_field(item, "arguments")): call
        for (kind, item), call in zip(made, calls, strict=False)
        if kind == "function_call"
    }
    ungated = () if all(kind == "function_call" for kind, _ in made) else tuple(_ungated(made, calls, tools))
    usage = read.usage or TokenUsage()
    return ModelTurn(content=read.text, calls=calls, ungated=ungated, logprobs=read.logprobs, usage=usage), written


def _ungated(made: Sequence[tuple[str, Any]], calls: Sequence[ToolCall], tools: Iterable[Any]) -> Iterator[Any]:
    """The calls that run without asking anybody, each with what came of it."""
    shells = [tool for tool in tools if getattr(tool, "type", "") == "shell"]
    hosted = any(getattr(shell, "executor", None) is None for shell in shells)
    gated = _LOCAL if hosted else _LOCAL | {"shell_call"}
    for (kind, item), call in zip(made, calls, strict=False):
        if kind not in gated and field(item, "approval_request_id") is None:  # with one, its request was the step
            found = field(item, "output", "error", "results", "outputs")
            yield call, None if found is None else plain(found)


def read_messages(system: str | None, items: Any) -> list[Message]:
    """The prompt of one model call: what signals show to the model that they ask."""
    instructions = [Message(role=Role.SYSTEM, content=system)] if system else []
    return [*instructions, *wire.read_messages(items).messages]
