"""Fields of foreign records, checked one by one: a value of the right kind, or the error that names the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from grampus_uq.errors import DataError
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import TokenLogprob, ToolCall
from grampus_uq.records.vocabulary import Role
from grampus_uq.wire import read_call, read_logprobs
from grampus_uq.wire.messages import ROLES

Refuse = Callable[[str, str], DataError]
"""Makes the error of a field and a reason, with the place of the element it belongs to."""

_LATEST_S: Final = 253_402_300_799.0  # the end of the year 9999: no clock says more
_MOST_TOKENS: Final = 2**53


def text_or_none(value: Any, field: str, refuse: Refuse) -> str | None:
    """A text, or None."""
    if value is None or isinstance(value, str):
        return value
    raise refuse(field, f"must be text or null. Got {type(value).__name__}.")


def task_and_trial(record: Mapping[str, Any], default: int | None, refuse: Refuse) -> tuple[str, int]:
    """The name of a task, and the number of the trial; `default` where that is null."""
    task_id, trial = record.get("task_id"), record.get("trial")
    if isinstance(task_id, bool) or not isinstance(task_id, int | str):
        raise refuse("task_id", f"must be a number or a name. Got {task_id!r:.50}.")
    trial = default if trial is None else trial
    if type(trial) is not int or trial < 0:
        raise refuse("trial", f"must be a number from 0. Got {trial!r:.50}.")
    return str(task_id), trial


def object_of(value: Any, field: str, refuse: Refuse) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise refuse(field, f"must be an object. Got {type(value).__name__}.")
    return value


def listed(value: Any, field: str, refuse: Refuse) -> list[Any]:
    """A list; none where there is null."""
    if value is not None and not isinstance(value, list):
        raise refuse(field, f"must be a list or null. Got {type(value).__name__}.")
    return value or []


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
    """The value of a JSON text; any other value as it is: formats write structures either way."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, unique_names=True)
    except ValueError as error:
        raise refuse(field, str(error)) from error


def tool_call(value: Any, field: str, refuse: Refuse) -> ToolCall:
    """A call in any form that `wire` knows, with the name of a tool.

    Arguments that are not a JSON object refuse nothing: they are the model's own words, and runs that hold some fail
    more often than others. Their text is kept and marked (`grampus_uq.wire.calls.UNPARSED`).
    """
    place = f"{field}.function" if "function" in object_of(value, field, refuse) else field
    name = object_of(value.get("function", value), place, refuse).get("name")
    if not isinstance(name, str) or not name:
        raise refuse(f"{place}.name", f"must be the name of a tool. Got {name!r:.50}.")
    text_or_none(value.get("id"), f"{field}.id", refuse)
    return read_call(value).call


def role_of(value: Any, field: str, refuse: Refuse) -> Role:
    """The role of a message, by any of the names that `wire` knows."""
    if not isinstance(value, str) or value not in ROLES:
        raise refuse(field, f"must be one of {', '.join(ROLES)}. Got {value!r:.50}.")
    return ROLES[value]


def logprobs(value: Any, field: str, refuse: Refuse) -> tuple[TokenLogprob, ...] | None:
    """Token log-probabilities in any form that `wire` knows, or None."""
    read = read_logprobs(value)
    if read.problem is not None:
        raise refuse(field, f"{read.problem}.")
    return read.tokens
