"""Fields of foreign records, checked one by one: a value of the right kind, or the error that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from grampus_uq.errors import DataError
from grampus_uq.importers.chat_messages import Refuse
from grampus_uq.importers.records import parsed
from grampus_uq.records import TokenLogprob, ToolCall
from grampus_uq.wire.calls import read_arguments

__all__ = [
    "decoded",
    "iso_time_s",
    "logprobs",
    "number_or_none",
    "object_or_none",
    "text_or_none",
    "token_count",
    "tool_call",
    "unix_time_s",
]

_LATEST_S: Final = 253_402_300_799.0  # the end of the year 9999: no clock says more
_MOST_TOKENS: Final = 2**53


def text_or_none(value: Any, field: str, refuse: Refuse) -> str | None:
    """A text, or None."""
    if value is None or isinstance(value, str):
        return value
    raise refuse(field, f"must be text or null. Got {type(value).__name__}.")


def object_or_none(value: Any, field: str, refuse: Refuse) -> Mapping[str, Any] | None:
    """An object, or None."""
    if value is None or isinstance(value, dict):
        return value
    raise refuse(field, f"must be an object or null. Got {type(value).__name__}.")


def number_or_none(value: Any, field: str, refuse: Refuse) -> float | None:
    """A finite number, or None; a whole number that no float holds is refused."""
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise refuse(field, f"must be a finite number or null. Got {value!r:.50}.")
    return number


def token_count(value: Any, field: str, refuse: Refuse) -> int:
    """A number of tokens, 0 where none is given; formats write it as 12 or as 12.0."""
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer() and abs(value) <= _MOST_TOKENS:
        value = int(value)
    if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
        raise refuse(field, f"must be a number of tokens. Got {value!r:.50}.")
    return value


def unix_time_s(value: Any, field: str, refuse: Refuse) -> float | None:
    """Seconds since 1970, or None."""
    number = number_or_none(value, field, refuse)
    if number is not None and not 0.0 <= number <= _LATEST_S:
        raise refuse(field, f"must be seconds since 1970. Got {value!r:.50}.")
    return number


def iso_time_s(value: Any, field: str, refuse: Refuse) -> float | None:
    """An ISO 8601 time as seconds since 1970 (UTC where it names no zone), or None."""
    text = text_or_none(value, field, refuse)
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
        found = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise refuse(field, f"must be a time as in 2026-01-31T12:00:00Z. Got {text!r:.50}.") from error
    return unix_time_s(found, field, refuse)


def decoded(value: Any, field: str, refuse: Refuse) -> Any:
    """What a text of JSON says; any other value as it is: formats write structures either way."""
    if not isinstance(value, str):
        return value
    try:
        return parsed(value, "", None)
    except DataError as error:
        raise refuse(field, error.reason) from error


def tool_call(value: Any, field: str, refuse: Refuse, *, given: str = "arguments") -> ToolCall:
    """A call as `{id, name, arguments}`, as most formats but OpenAI's write it; `given` names the last one.

    Arguments that are no JSON object are kept as text and marked, as `read_arguments` does.
    """
    if not isinstance(value, dict):
        raise refuse(field, f"must be an object. Got {type(value).__name__}.")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise refuse(f"{field}.name", f"must be the name of a tool. Got {name!r:.50}.")
    identity = text_or_none(value.get("id"), f"{field}.id", refuse) or ""
    return ToolCall(id=identity, name=name, arguments=read_arguments(value.get(given)).values)


def logprobs(value: Any, field: str, refuse: Refuse) -> tuple[TokenLogprob, ...] | None:
    """Token log-probabilities as OpenAI writes them: a list of `{token, logprob, top_logprobs}`, or None."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise refuse(field, f"must be a list or null. Got {type(value).__name__}.")
    found = []
    for number, item in enumerate(value):
        place = f"{field}[{number}]"
        token, logprob = _token(item, place, refuse)
        top = item.get("top_logprobs")
        if top is not None and not isinstance(top, list):
            raise refuse(f"{place}.top_logprobs", f"must be a list or null. Got {type(top).__name__}.")
        others = tuple(_token(one, f"{place}.top_logprobs[{i}]", refuse) for i, one in enumerate(top or ()))
        found.append(TokenLogprob(token=token, logprob=logprob, top=others))
    return tuple(found)


def _token(item: Any, place: str, refuse: Refuse) -> tuple[str, float]:
    if not isinstance(item, dict) or not isinstance(item.get("token"), str):
        raise refuse(f"{place}.token", f"must be text. Got {item!r:.50}.")
    logprob = number_or_none(item.get("logprob"), f"{place}.logprob", refuse)
    if logprob is None:
        raise refuse(f"{place}.logprob", "is missing.")
    return item["token"], logprob
