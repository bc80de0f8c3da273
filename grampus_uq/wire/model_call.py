"""One way to ask any model client: pass only the options it takes, parse whatever it returns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grampus_uq.errors import ModelError, UnsupportedByModelError
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse, TokenUsage
from grampus_uq.wire.fields import kind_of
from grampus_uq.wire.responses import ReadResponse, read_response
from grampus_uq.wire.usage import read_usage


async def ask_model(
    client: ModelClient,
    messages: Sequence[Message],
    model: str,
    options: Mapping[str, Any],
    *,
    refused: set[str] | None = None,
    on_refusal: Callable[[], None] = lambda: None,
    needed: str = "",
) -> ModelResponse:
    """Ask; each time the model refuses an option (logprobs, temperature, ...) ask again without it.

    Options whose value is None, or that the client's `complete` has no parameter for, are left out. So are those in
    `refused`, which takes up every further refusal, for the caller's next question; `on_refusal` is called for each.
    Raises what the client raises, also its refusal of the parameter that is `needed`, and ModelError when the reply is
    not a response at all.
    """
    refused = set() if refused is None else refused
    accepted = accepted_options(client)
    while True:
        wanted = {
            name: value
            for name, value in options.items()
            if value is not None and name not in refused and (accepted is None or name in accepted)
        }
        try:
            return parse_response(await client.complete(messages=list(messages), model=model, **wanted))
        except UnsupportedByModelError as refusal:
            named = refused_options(refusal.parameter)
            if named.isdisjoint(wanted) or refusal.parameter == needed:
                raise
            refused |= named
            on_refusal()


def recorded_model(client: ModelClient, model: str) -> str:
    """The model's name in recordings and profiles: the one it is asked by, unless the client knows a more exact one.

    A client may have `recorded_as(model)`: one name may stand for whatever file a machine runs.
    """
    known = getattr(client, "recorded_as", None)
    named = known(model) if callable(known) else model
    return named if isinstance(named, str) else model


def refused_options(parameter: str) -> frozenset[str]:
    """The options of `complete` that send a parameter which a model refused."""
    return frozenset(("top_logprobs", "logprobs")) if "logprobs" in parameter else frozenset((parameter,))


def accepted_options(client: ModelClient) -> frozenset[str] | None:
    """Names of the keywords that the client's `complete` takes; None when it takes any."""
    return _keywords(getattr(client.complete, "__func__", client.complete))


@functools.lru_cache(maxsize=256)
def _keywords(complete: Callable[..., Any]) -> frozenset[str] | None:
    try:
        parameters = inspect.signature(complete).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def parse_response(reply: Any) -> ModelResponse:
    """A client's reply, in any form that `wire.responses` reads, as a ModelResponse; ModelError where it breaks it.

    A missing usage is zero tokens; missing or broken log-probabilities are None, broken ones with the reason.
    """
    if isinstance(reply, ModelResponse):
        usage = read_usage(reply.token_usage)
        return reply if usage is reply.token_usage else reply.model_copy(update={"token_usage": usage})
    read = read_response(reply) if not isinstance(reply, str | None) else ReadResponse(problem="is no answer")
    if read.problem is not None:
        raise ModelError(f"The model client returned {kind_of(reply)}, which {read.problem}.")
    return to_response(read)


def to_response(read: ReadResponse) -> ModelResponse:
    """The record of an answer that was read without a problem."""
    return ModelResponse(
        content=read.text,
        tool_calls=tuple(call.call for call in read.calls),
        token_usage=read.usage or TokenUsage(),
        model=read.model,
        stop_reason=read.stop_reason,
        logprobs=read.logprobs.tokens,
        logprobs_problem=read.logprobs.problem,
    )
