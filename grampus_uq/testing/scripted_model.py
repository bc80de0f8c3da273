"""A scripted model for tests of your own agents: it answers, fails, stalls and refuses on command.

>>> import anyio
>>> from grampus_uq.errors import RateLimitedError
>>> from grampus_uq.records.values import Role
>>> def echo(messages, options):
...     return messages[-1].content.upper()
>>> model = ScriptedModel(["Paris", RateLimitedError("slow down"), echo])
>>> async def ask(text):
...     return (await model.complete(messages=[Message(role=Role.USER, content=text)])).content
>>> anyio.run(ask, "Capital of France?")
'Paris'
>>> anyio.run(ask, "again")
Traceback (most recent call last):
grampus_uq.errors.RateLimitedError: slow down
>>> anyio.run(ask, "echo")
'ECHO'
>>> [call.messages[0].content for call in model.calls]
['Capital of France?', 'again', 'echo']
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import anyio

from grampus_uq.errors import ConfigurationError, UnsupportedByModelError
from grampus_uq.records.values import Message, ModelResponse, TokenLogprob, TokenUsage, ToolCall


class _Hang:
    """The type of `HANG`."""

    def __repr__(self) -> str:
        return "HANG"


HANG: Final = _Hang()
"""A reply that never comes: the call waits until it is cancelled."""

# What a parameter of `refuse` is called as an option of `complete`.
_OPTIONS = {
    "logprobs": ("top_logprobs", "logprobs"),
    "max_tokens": ("max_tokens",),
    "response_format": ("response_format",),
    "temperature": ("temperature",),
    "tools": ("tools",),
}


class ScriptExhaustedError(AssertionError):
    """A `ScriptedModel` was asked more often than its script has replies."""


class ScriptedCall(NamedTuple):
    """One call that a `ScriptedModel` received; `options` holds only what was not None."""

    messages: tuple[Message, ...]
    model: str
    options: dict[str, Any]


def answer(
    text: str = "",
    *,
    tool_calls: Iterable[ToolCall] = (),
    logprobs: Iterable[TokenLogprob] | None = None,
    usage: TokenUsage | tuple[int, int] = (10, 5),
    model: str = "scripted",
    stop_reason: str | None = None,
) -> ModelResponse:
    """Build a model's answer; `usage` may be given as (input tokens, output tokens).

    `stop_reason` is "tool_calls" when there are calls and "stop" when there are none, unless it is given.

    >>> answer("Paris", usage=(12, 1)).token_usage.total_tokens
    13
    """
    calls = tuple(tool_calls)
    if not isinstance(usage, TokenUsage):
        spent_in, spent_out = usage
        usage = TokenUsage(
            input_tokens=spent_in, output_tokens=spent_out, total_tokens=spent_in + spent_out, model=model
        )
    return ModelResponse(
        content=text,
        tool_calls=calls,
        token_usage=usage,
        model=model,
        stop_reason=stop_reason or ("tool_calls" if calls else "stop"),
        logprobs=None if logprobs is None else tuple(logprobs),
    )


def top_logprobs(probabilities: Mapping[str, float], *, chosen: str | None = None) -> TokenLogprob:
    """Build one generated token from probabilities, each in (0, 1] and together at most 1.

    The chosen token is the most probable one (the first of equals), unless `chosen` names another of them. The
    alternatives come in the order that servers use: most probable first.

    Raises `ConfigurationError` when a probability is outside (0, 1], the sum exceeds 1, or `chosen` is not there.

    >>> token = top_logprobs({"False": 0.25, "True": 0.5})
    >>> token.token, [name for name, _ in token.top]
    ('True', ['True', 'False'])
    """
    if not probabilities or not all(0.0 < p <= 1.0 for p in probabilities.values()):
        raise ConfigurationError.of("probabilities", "top_logprobs", "not empty, with values in (0, 1]", probabilities)
    if math.fsum(probabilities.values()) > 1.0 + 1e-9:
        raise ConfigurationError.of("probabilities", "top_logprobs", "at most 1 in sum", probabilities)
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    name = ranked[0][0] if chosen is None else chosen
    if name not in probabilities:
        raise ConfigurationError.of("chosen", "top_logprobs", f"one of {sorted(probabilities)}", chosen)
    top = tuple((token, math.log(p)) for token, p in ranked)
    return TokenLogprob(token=name, logprob=math.log(probabilities[name]), top=top)


class ScriptedModel:
    """A `ModelClient` that follows a script: for tests of agents, signals and monitors, on asyncio and on trio.

    `replies`, a list or an iterator, gives one reply a call, in the order in which the calls arrive; anything else is
    the reply to every call. A reply is

    - a string: the text of the answer (`answer(text)`);
    - a `ModelResponse`: returned as it is;
    - an exception (or a class of one): raised;
    - `HANG`: the call waits until it is cancelled;
    - a callable `(messages, options) -> reply`, which may be async;
    - anything else: returned as it is, so that nonsense can be scripted too.

    Each call takes `delay_s` seconds, at least 0, before it answers or raises. `refuse` names parameters that the model
    does not take: any of "logprobs", "max_tokens", "response_format", "temperature", "tools". A call that passes one
    (not None) raises `UnsupportedByModelError` and uses up no reply.

    `calls` holds every call received as `ScriptedCall(messages, model, options)`, refused ones too; `in_flight` and
    `most_in_flight` count those being answered now and the most at one time, `cancelled` those that were ended early.
    Safe to share between tasks and between threads. A script that runs out raises `ScriptExhaustedError`.
    """

    def __init__(self, replies: Any = (), *, delay_s: float = 0.0, refuse: Iterable[str] = ()) -> None:
        if not 0.0 <= delay_s < math.inf:
            raise ConfigurationError.of("delay_s", "ScriptedModel", "at least 0 and finite", delay_s)
        self._refused = tuple(sorted(set(refuse)))
        for parameter in self._refused:
            if parameter not in _OPTIONS:
                raise ConfigurationError.of("refuse", "ScriptedModel", f"among {sorted(_OPTIONS)}", parameter)
        self._script: Iterator[Any] = iter(replies) if isinstance(replies, list | tuple | Iterator) else repeat(replies)
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self.calls: list[ScriptedCall] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.cancelled = 0

    async def complete(self, *, messages: Sequence[Message], model: str = "", **options: Any) -> ModelResponse:
        """Record the call, then do what the script says."""
        given = {name: value for name, value in options.items() if value is not None}
        with self._lock:
            self.calls.append(ScriptedCall(tuple(messages), model, given))
            self._refuse(given)
            reply = self._next()
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await anyio.sleep(self._delay_s)  # also at 0: a real model always lets other tasks run
            return await _play(reply, messages, given)
        except anyio.get_cancelled_exc_class():
            with self._lock:
                self.cancelled += 1
            raise
        finally:
            with self._lock:
                self.in_flight -= 1

    def _refuse(self, given: Mapping[str, Any]) -> None:
        for parameter in self._refused:
            if any(option in given for option in _OPTIONS[parameter]):
                raise UnsupportedByModelError(
                    f"The scripted model does not take {parameter}.", parameter=parameter, status=400
                )

    def _next(self) -> Any:
        try:
            return next(self._script)
        except StopIteration:
            raise ScriptExhaustedError(
                f"The script has no reply to call number {len(self.calls)}: give ScriptedModel more replies."
            ) from None


async def _play(reply: Any, messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
    """Turn one reply of a script into what `complete` returns or raises."""
    while callable(reply) and not isinstance(reply, type):
        reply = reply(messages, options)
        if inspect.isawaitable(reply):
            reply = await reply
    if isinstance(reply, str):
        return answer(reply)
    if reply is HANG:
        await anyio.sleep_forever()
    if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
        raise reply
    scripted: ModelResponse = reply  # a script may also return nonsense, on purpose
    return scripted
