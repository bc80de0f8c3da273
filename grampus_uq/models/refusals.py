"""Errors of a server as exceptions, and a memory of the parameters that each model refuses.

A refusal is remembered only after the same call succeeded without the parameter. So an error text that merely mentions
"temperature", or a server that fails for another reason, teaches nothing.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from grampus_uq.errors import ModelError, ModelTimeoutError, RateLimitedError, UnsupportedByModelError
from grampus_uq.models.chat_format import CallOptions
from grampus_uq.records.latest import Latest
from grampus_uq.records.values import ModelResponse
from grampus_uq.records.visible_text import without_controls

_REMEMBERED_MODELS = 256
# Many services that do report alternatives report at most five.
_MODEST_LOGPROBS = 5
_REFUSING = frozenset({400, 403, 422, 501})
_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_NAMES = {
    "logprobs": re.compile(r"\b(?:top_)?log_?probs?\b", re.IGNORECASE),
    "temperature": re.compile(r"\btemperature\b", re.IGNORECASE),
    "max_tokens": re.compile(r"\bmax_(?:completion_)?tokens\b", re.IGNORECASE),
    "response_format": re.compile(r"\bresponse_format\b|\bjson_schema\b|\bjson_object\b", re.IGNORECASE),
    "tools": re.compile(r"\btools?\b|\btool_choice\b|\bfunction calling\b", re.IGNORECASE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Parameters that a model has refused; empty until the first refusal.

    `refused` maps a parameter ("logprobs", "temperature", "max_tokens") to the server's words. `most_logprobs` is the
    number of alternatives that is asked for instead of more, or None while nothing limits it. A refused "max_tokens" is
    sent as "max_completion_tokens"; the other refused parameters are not sent.
    """

    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    most_logprobs: int | None = None

    def applied_to(self, options: CallOptions) -> CallOptions:
        """The options without what the model refuses."""
        top = options.top_logprobs
        if top is not None and self.most_logprobs is not None:
            top = min(top, self.most_logprobs)
        return replace(
            options,
            temperature=None if "temperature" in self.refused else options.temperature,
            top_logprobs=None if "logprobs" in self.refused else top,
            max_tokens_name="max_completion_tokens" if "max_tokens" in self.refused else options.max_tokens_name,
        )

    def after(self, refusal: UnsupportedByModelError, options: CallOptions) -> Capabilities | None:
        """The support to assume when `options` were refused; None when there is nothing left to leave out."""
        words = str(refusal)[:300]
        if refusal.parameter == "logprobs" and (options.top_logprobs or 0) > _MODEST_LOGPROBS:
            return replace(self, most_logprobs=_MODEST_LOGPROBS)
        takes_less = {
            "logprobs": options.top_logprobs is not None,
            "temperature": options.temperature is not None,
            "max_tokens": options.max_tokens_name == "max_tokens",
        }
        if not takes_less.get(refusal.parameter, False):
            return None
        return replace(self, refused=MappingProxyType({**self.refused, refusal.parameter: words}))


class RefusalMemory:
    """The refusals of each model, for the models used last; shared by tasks and threads."""

    def __init__(self) -> None:
        self._known: Latest[str, Capabilities] = Latest(_REMEMBERED_MODELS)
        self._lock = threading.Lock()

    def of(self, model: str) -> Capabilities:
        """The known refusals of the model."""
        with self._lock:
            return self._known.get(model, Capabilities())

    def learn(self, model: str, capabilities: Capabilities) -> None:
        """Remember refusals after a successful call without these parameters."""
        with self._lock:
            known = self._known.get(model, Capabilities())
            limits = [limit for limit in (known.most_logprobs, capabilities.most_logprobs) if limit is not None]
            merged = MappingProxyType({**known.refused, **capabilities.refused})
            self._known[model] = Capabilities(refused=merged, most_logprobs=min(limits, default=None))


async def send_without_refused(
    memory: RefusalMemory, model: str, options: CallOptions, send: Callable[[CallOptions], Awaitable[ModelResponse]]
) -> ModelResponse:
    """Send a call; if a parameter is refused send it again without, and remember the refusal if that succeeds.

    Only "logprobs", "temperature" and "max_tokens" can be left out, each once, so a call is sent at most five times.
    Every other refusal is raised as it came.
    """
    known = memory.of(model)
    assumed = known
    while True:
        trying = assumed.applied_to(options)
        try:
            result = await send(trying)
        except UnsupportedByModelError as refusal:
            weaker = assumed.after(refusal, trying)
            if weaker is None:
                raise
            assumed = weaker
        else:
            if assumed is not known:
                memory.learn(model, assumed)
            return result


def error_of(
    status: int, body: bytes, *, sent: Iterable[str], secrets: Iterable[str] = (), retry_after_s: float | None = None
) -> ModelError:
    """Turn an HTTP error into an exception of this package.

    `body` is what the server said, read up to some bound; `sent` the parameters of the call (`CallOptions.sent`);
    `secrets` are cut out of the message.
    """
    text, parameter = _explain(body)
    who = f"The model's server answered {status}{_phrase(status)}"
    return error_from(status, text, parameter, who=who, sent=sent, secrets=secrets, retry_after_s=retry_after_s)


def error_from(
    status: int | None,
    text: str,
    parameter: str = "",
    *,
    who: str,
    sent: Iterable[str],
    secrets: Iterable[str] = (),
    retry_after_s: float | None = None,
) -> ModelError:
    """The exception for a status, the words that came with it and the parameter that it named ("" for none)."""
    words = f"{who}: {scrubbed(text, secrets) or 'nothing else'}"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        wait = "" if retry_after_s is None else f" (it asks to wait {retry_after_s:g} s)"
        return RateLimitedError(words + wait, status=status, retry_after_s=retry_after_s)
    if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.GATEWAY_TIMEOUT):
        return ModelTimeoutError(words, retryable=True, status=status)
    refused = _refused(text, parameter, frozenset(sent)) if status in _REFUSING else None
    if refused is not None:
        return UnsupportedByModelError(words, parameter=refused, status=status)
    return ModelError(words, retryable=status in _RETRYABLE, status=status)


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


def _explain(body: bytes) -> tuple[str, str]:
    """The server's words, and the parameter that it names in a field of its own ("" when it names none)."""
    plain = " ".join(body.decode("utf-8", "replace").split())
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return plain, ""
    error: Any = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    if isinstance(error, str):
        return error, ""
    if not isinstance(error, dict):
        return plain, ""
    parameter = error.get("param")
    message = error.get("message")
    detail = error.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict) and isinstance(detail[0].get("loc"), list):
        parameter = parameter or ".".join(str(part) for part in detail[0]["loc"])
    return (message if isinstance(message, str) else plain), (parameter if isinstance(parameter, str) else "")


def _refused(text: str, parameter: str, sent: frozenset[str]) -> str | None:
    """Return the sent parameter that the server refuses; its error field takes precedence over its message."""
    if parameter:
        named = parameter.replace("[", ".").split(".")
        for name in sorted(sent):
            if any(part == name or _pattern(name).fullmatch(part) for part in named):
                return name
    # The words may quote the prompt: the earliest name counts, and only what then helps is remembered.
    places = {name: match.start() for name in sent if (match := _pattern(name).search(text[:2_000]))}
    return min(places, key=lambda name: (places[name], name)) if places else None


def _pattern(name: str) -> re.Pattern[str]:
    return _NAMES.get(name) or re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """The text without any of the secrets and without control characters, on one line, at most 300 characters."""
    for secret in sorted((secret for secret in secrets if secret), key=len, reverse=True):
        text = text.replace(secret, "***")
    return " ".join(without_controls(text[:2_000]).split())[:300]


def retry_after(value: str | None) -> float | None:
    """Seconds to wait according to a `Retry-After` header (seconds or an HTTP date), None when it says nothing usable.

    >>> retry_after("2.5")
    2.5
    >>> retry_after("soon") is None
    True
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
        except (ValueError, TypeError, OverflowError):
            return None
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        seconds = max(0.0, (aware - datetime.now(UTC)).total_seconds())
    return seconds if 0.0 <= seconds <= 86_400.0 else None
