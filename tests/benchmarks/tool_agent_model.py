"""A client that makes a tool-calling agent of any chat model: calls are JSON text, held to the tools' schemas.

The tools stand in the system prompt; results go back as text. Greedy unless a temperature is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse, ToolCall
from grampus_uq.records.vocabulary import Role
from grampus_uq.wire.model_call import ask_model, recorded_model

DONE: Final = "done"
_MAX_TOKENS: Final = 160
_ALTERNATIVES: Final = 5


class JsonCalls:
    """Answers requests with tools by one call, or by the end of the run; others are passed on as they are.

    With `one_call` every answer before the first result is a call, and the first result ends the run. `open_tools`
    names those of the tools that may be called now, all unless given; the grammar keeps the others out, and where none
    is left the run ends. `examples` are shown as turns of the same chat, which a small model follows better than a
    description: "Mail: ", "Result: " and calls, a line each.
    `turns` keeps what the agent itself was asked, and its reply.
    """

    def __init__(
        self,
        client: ModelClient,
        *,
        one_call: bool = False,
        open_tools: Callable[[], Collection[str]] | None = None,
        examples: str = "",
    ) -> None:
        self._client = client
        self._one_call = one_call
        self._open_tools = open_tools
        self.examples = examples
        self.turns: list[tuple[list[Message], ModelResponse]] = []

    def recorded_as(self, model: str) -> str:
        """The name that the client itself gives to what it runs."""
        return recorded_model(self._client, model)

    async def complete(
        self, *, messages: Sequence[Message], model: str = "", tools: Any = None, **options: Any
    ) -> ModelResponse:
        """Answer the messages; with `tools` by a call or the end."""
        if not tools:
            return await ask_model(self._client, messages, model, options)
        if self._one_call and messages[-1].role is Role.TOOL:
            return ModelResponse(content=DONE)
        sampled = bool(options.get("temperature"))
        may = [
            one for one in functions_of(tools) if sampled or not self._open_tools or one["name"] in self._open_tools()
        ]
        if not may:
            return ModelResponse(content=DONE)
        shown = as_chat(messages, tools, self.examples)
        wanted = {"temperature": 0.0, "max_tokens": _MAX_TOKENS} | {k: v for k, v in options.items() if v is not None}
        wanted |= {"response_format": one_of(may, may_end=not self._one_call), "top_logprobs": _ALTERNATIVES}
        reply = as_turn(await ask_model(self._client, shown, model, wanted))
        if not sampled:
            self.turns.append((list(messages), reply))
        return reply


def as_chat(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], examples: str = "") -> list[Message]:
    """The same conversation without tool messages; before it the tools, and examples."""
    functions = functions_of(tools)
    listed = "\n".join(
        json.dumps({key: one[key] for key in ("name", "description", "parameters")}) for one in functions
    )
    form = f'Answer with one call of a tool, {{"name": ..., "arguments": {{...}}}}. Tools:\n{listed}'
    shown = [Message(role=Role.SYSTEM, content=form)]
    for message in messages:
        if message.role is Role.SYSTEM and len(shown) == 1:
            shown = [Message(role=Role.SYSTEM, content=f"{message.content}\n\n{form}"), *_turns(examples)]
        elif message.tool_calls:
            shown.append(Message(role=Role.ASSISTANT, content=written(message.tool_calls[0])))
        elif message.role is Role.TOOL:
            shown.append(Message(role=Role.USER, content=f"Result: {message.content}"))
        else:
            shown.append(Message(role=message.role, content=message.content))
    return shown


def _turns(examples: str) -> list[Message]:
    lines = [line.removeprefix("Mail: ") for line in examples.splitlines() if line]
    return [Message(role=Role.ASSISTANT if line.startswith("{") else Role.USER, content=line) for line in lines]


def written(call: ToolCall) -> str:
    """A call as the model writes it."""
    return json.dumps({"name": call.name, "arguments": call.arguments})


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Name, description and parameters of each tool."""
    return [tool.get("function", tool) for tool in tools]


def one_of(functions: Sequence[Mapping[str, Any]], *, may_end: bool) -> dict[str, Any]:
    """The response format of one call of any of these functions, or of the end."""
    forms = [_form(name={"const": one["name"]}, arguments=one["parameters"]) for one in functions]
    forms += [_form(answer={"const": DONE})] if may_end else []
    return {"type": "json_schema", "json_schema": {"name": "turn", "schema": {"anyOf": forms}}}


def _form(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def as_turn(reply: ModelResponse) -> ModelResponse:
    """The reply with its call; one that is cut off or no call stays text, and so ends the run."""
    try:
        found = json.loads(reply.content)
        if "answer" in found:
            return reply.model_copy(update={"content": str(found["answer"])})
        call = ToolCall(id="", name=found["name"], arguments=found["arguments"])
    except (ValueError, KeyError, TypeError):
        return reply
    return reply.model_copy(update={"content": "", "tool_calls": (call,)})
