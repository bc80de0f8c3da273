"""An OpenAI-compatible endpoint with the embedded model behind it, for clients that know nothing of it.

The model is too small to choose a tool by itself: the grammar of the tool's schema holds it to the next call of a plan,
and what it fills in and what it answers at the end is its own. The same request is answered the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from grampus_uq.models import LocalModel
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role


@dataclass
class SmallModel:
    """`plan`: for each turn of a task the end of a tool's name and the schema of its arguments; then it answers."""

    model: LocalModel
    plan: Sequence[tuple[str, dict[str, Any]]]
    told: list[str] = field(default_factory=list)
    """What tools returned, as the client gave it to the model."""
    said: list[str] = field(default_factory=list)
    _known: dict[str, str] = field(default_factory=dict)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self._serve, methods=["POST"])])

    async def _serve(self, request: Request) -> StreamingResponse:
        body = await request.json()
        message = await self._next(body["messages"], body.get("tools") or [])
        return StreamingResponse(_events(message), media_type="text/event-stream")

    async def _next(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        results = [_text(message) for message in messages if message["role"] == "tool"]
        request = next(_text(message) for message in messages if message["role"] == "user")
        if not tools:  # it wants a title
            return {"role": "assistant", "content": "A note"}
        self.told[:] = results
        if len(results) < len(self.plan):
            end, schema = self.plan[len(results)]
            name = next(tool["function"]["name"] for tool in tools if tool["function"]["name"].endswith(end))
            called = {"name": name, "arguments": await self._written(request, results, schema)}
            call = {"index": 0, "id": f"call_{len(results)}", "type": "function", "function": called}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        self.said.append(await self._written(request, results, None))
        return {"role": "assistant", "content": self.said[-1]}

    async def _written(self, request: str, results: list[str], schema: dict[str, Any] | None) -> str:
        prompt = "\n".join([request, *(f"A tool said: {result[:300]}" for result in results)])
        key = json.dumps([prompt, schema])
        if key not in self._known:
            form = {"type": "json_schema", "json_schema": {"name": "arguments", "schema": schema}}
            options = {} if schema is None else {"response_format": form}
            messages = [Message(role=Role.USER, content=prompt)]
            answer = await self.model.complete(
                messages=messages, temperature=0.0, max_tokens=80 if schema is None else 400, timeout_s=240.0, **options
            )
            self._known[key] = answer.content or ""
        return self._known[key]


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or ())


def _events(message: dict[str, Any]) -> Iterator[bytes]:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    for delta, reason in ((message, None), ({}, finish)):
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "small", "choices": [choice]}
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"
