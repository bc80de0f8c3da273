"""The common part of chat clients: parameters, one deadline, and refused parameters, which are left out and learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import anyio

from grampus_uq.errors import ConfigurationError, ModelTimeoutError
from grampus_uq.models.chat_format import CallOptions, Prices
from grampus_uq.models.refusals import Capabilities, RefusalMemory, send_without_refused
from grampus_uq.records.values import Message, ModelResponse


class WarmModel:
    """A client that `async with` warms up and closes."""

    async def warmup(self) -> None:
        """Load what the first call would wait for."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Release what is open; the client may be used again."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.warmup()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class ChatClient(WarmModel):
    """A client of the chat format; a subclass sends one request."""

    def __init__(self, model: str, timeout_s: float, prices: Prices | None) -> None:
        owner = type(self).__name__
        self._model = model
        self._timeout_s = checked_timeout(timeout_s, owner)
        self._prices = _checked_prices(prices, owner)
        self._memory = RefusalMemory()

    def capabilities(self, model: str = "") -> Capabilities:
        """The parameters that the model (default: this client's) refused so far."""
        return self._memory.of(model or self._model)

    async def complete(
        self,
        *,
        messages: Sequence[Message],
        model: str = "",
        temperature: float | None = None,
        max_tokens: int | None = None,
        top_logprobs: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **extra: Any,
    ) -> ModelResponse:
        """Answer the messages.

        `messages` is the transcript, oldest first; `model` and `timeout_s` take the place of the client's.
        `temperature`, `max_tokens`, `tools`, `response_format` and `extra` (seed, stop, top_p) are as in the chat
        format; None is not sent, and a tool may also be a bare function (name, description, parameters). With
        `top_logprobs` the log-probability of every generated token is asked for and this many alternatives, 0 for none;
        the answer's `logprobs` is None when the model reports none.

        Raises `ModelTimeoutError` when the deadline passed, `RateLimitedError` on status 429, `UnsupportedByModelError`
        when the model refuses a parameter that cannot be left out, `ModelError` on everything else that gave no usable
        answer, `ConfigurationError` when a parameter cannot be right.
        """
        options = CallOptions(
            temperature=temperature,
            max_tokens=max_tokens,
            top_logprobs=top_logprobs,
            tools=tools,
            response_format=response_format,
            extra=extra,
        )
        name = model or self._model
        limit_s = self._timeout_s if timeout_s is None else checked_timeout(timeout_s, "complete")

        async def send(trying: CallOptions) -> ModelResponse:
            return await self._send(name, messages, trying, limit_s)

        with anyio.move_on_after(limit_s):
            return await send_without_refused(self._memory, name, options, send)
        raise ModelTimeoutError(f"{self._where(name)} did not answer within {limit_s:g} s.", retryable=True)

    async def _send(
        self, model: str, messages: Sequence[Message], options: CallOptions, limit_s: float
    ) -> ModelResponse:
        """Send one request; raises `UnsupportedByModelError` when the model refuses a parameter."""
        raise NotImplementedError

    def _where(self, model: str) -> str:
        """The subject of a message about a call that failed."""
        raise NotImplementedError


def checked_timeout(timeout_s: float, owner: str) -> float:
    """The deadline, if it is a positive number of seconds."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0.0 < timeout_s < float("inf"):
        raise ConfigurationError.of("timeout_s", owner, "a positive finite number of seconds", timeout_s)
    return float(timeout_s)


def _checked_prices(prices: Prices | None, owner: str) -> Prices | None:
    """The prices, if they are two numbers that a token can cost."""
    if prices is None:
        return None
    if len(prices) != 2 or not all(0.0 <= price < 1.0 for price in prices):
        raise ConfigurationError.of(
            "prices", owner, "US dollars for one input and one output token", prices, "per token, not per million"
        )
    return (float(prices[0]), float(prices[1]))
