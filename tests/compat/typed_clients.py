"""Clients as users write them; `mypy --strict` must accept each where a protocol is asked for."""
# pyright: strict

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grampus_uq import Message, ModelResponse
from grampus_uq.records.protocols import ModelClient


class Guides:
    async def complete(self, *, messages: list[Message], model: str, temperature: float = 0.7) -> ModelResponse:
        return ModelResponse(content=f"{len(messages)} {model} {temperature}")


class TakesAnything:
    async def complete(self, *, messages: Sequence[Message], model: str = "", **options: Any) -> ModelResponse:
        return ModelResponse(content=f"{len(messages)} {model} {sorted(options)}")


@dataclass
class Reply:
    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    token_usage: None = None


class AnswersWithItsOwnClass:
    async def complete(self, *, messages: Sequence[Message], model: str, max_tokens: int | None = None) -> Reply:
        return Reply(content=f"{len(messages)} {model} {max_tokens}")


CLIENTS: list[ModelClient] = [Guides(), TakesAnything(), AnswersWithItsOwnClass()]
