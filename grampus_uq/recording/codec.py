"""One event as one line of JSON, exactly: the recording format, version 1.

A line is an object that starts with `"v"` (the version), `"type"` (which event) and `"content"` (how much of the free
text it holds), followed by the event's fields under their own names. Numbers are written with as many digits as give
the same float back; a number that is not finite, or a text that is not Unicode, is refused rather than changed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from grampus_uq.errors import DataError
from grampus_uq.records.events import (
    CallAsked,
    DecisionEvent,
    Event,
    LookEvent,
    ObservationEvent,
    OutcomeEvent,
    ProfileChanged,
    SessionStarted,
    StepEvent,
)
from grampus_uq.records.strict_json import check_version, json_object, validated

VERSION: Final = 1
MAX_LINE_BYTES: Final = 16 * 2**20
"""The longest line that is read, in bytes; the writer never writes a longer one."""
MAX_DEPTH: Final = 64
"""The deepest nesting of a tool call's arguments; deeper ones could be written but not be read back everywhere."""

Content = Literal["full", "hashed", "none"]

_TYPES: Final[dict[str, type]] = {
    "session": SessionStarted,
    "step": StepEvent,
    "observation": ObservationEvent,
    "asked": CallAsked,
    "look": LookEvent,
    "decision": DecisionEvent,
    "outcome": OutcomeEvent,
    "profile": ProfileChanged,
}
_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {name: TypeAdapter(kind) for name, kind in _TYPES.items()}
_NAMES: Final = {kind: name for name, kind in _TYPES.items()}
# The head of a line as `encode` writes it. Any other order of keys is read too, only more slowly.
_HEAD: Final = re.compile(rb'\{"v":1,"type":"([a-z]+)","content":"(?:full|hashed|none)",(?=")')


def encode(event: Event, *, content: Content = "full") -> bytes:
    """Write an event as one line of JSON in UTF-8, without a newline inside and with one at its end.

    `content` is noted in the line and changes nothing; `redact` is what takes the content away. Raises DataError,
    naming the field, when the event holds a number that is not finite, text with lone surrogates, or arguments nested
    deeper than `MAX_DEPTH`.

    >>> from grampus_uq.records.events import SessionStarted
    >>> encode(SessionStarted(session_id="s1", agent_id="a", time_s=0.1))[:66]
    b'{"v":1,"type":"session","content":"full","session_id":"s1","agent_'
    """
    name = _NAMES[type(event)]
    _check(event)
    try:
        body = _ADAPTERS[name].dump_json(event)
    except PydanticSerializationError as error:
        raise DataError(f"cannot be written as JSON: {error}", field=name) from error
    return b'{"v":1,"type":"%b","content":"%b",%b\n' % (name.encode(), content.encode(), body[1:])


def decode(line: bytes, *, path: str = "", number: int | None = None) -> Event:
    """Read one line back into the event that `encode` was given.

    `path` and `number` (from 1) only name the place in an error. Raises DataError for a line that is not JSON, that has
    a newer version or an unknown type, or in which a field is missing, out of its domain, or in some parts unknown.
    """
    head = _HEAD.match(line)
    if head is None or b"NaN" in line or b"Infinity" in line:
        kind, body = _open(line, path, number)
    else:
        kind, body = head[1].decode(), b"{" + line[head.end() :]
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        raise DataError(f"unknown type {kind!r}; known: {', '.join(_ADAPTERS)}.", path=path, line=number, field="type")
    event: Event = validated(adapter, body, path=path, line=number)
    try:
        _check(event)
    except DataError as error:  # 1e999 is JSON, and infinite
        raise DataError(error.reason, path=path, line=number, field=error.field) from error
    return event


def _open(line: bytes, path: str, number: int | None) -> tuple[str, bytes]:
    """Take a line apart that was not written by `encode`, or that may hold NaN: its type, and its fields as JSON."""
    value = json_object(line, path=path, line=number)
    check_version(value.pop("v", None), VERSION, path=path, line=number)
    kind = value.pop("type", None)
    if not isinstance(kind, str):
        raise DataError(f"must be a string. Got {kind!r:.50}.", path=path, line=number, field="type")
    if value.pop("content", "full") not in ("full", "hashed", "none"):
        raise DataError("must be full, hashed or none.", path=path, line=number, field="content")
    return kind, json.dumps(value).encode("ascii")


def _check(event: Event) -> None:
    """Refuse what is read or written and no record checks when it is built."""
    for field, number in _unchecked_numbers(event):
        if number is not None and not math.isfinite(number):
            raise DataError(f"must be a finite number. Got {number!r}.", field=field)
    if isinstance(event, StepEvent):
        for index, call in enumerate(event.step.tool_calls):
            _check_json(call.arguments, f"step.tool_calls.{index}.arguments", MAX_DEPTH)
    elif isinstance(event, LookEvent) and event.call is not None:
        _check_json(event.call.arguments, "call.arguments", MAX_DEPTH)


def _unchecked_numbers(event: Event) -> Iterator[tuple[str, float | None]]:
    """The floats that no record checks when it is built."""
    if isinstance(event, StepEvent):
        yield "step.time_s", event.step.time_s
        for index, token in enumerate(event.step.logprobs or ()):
            yield f"step.logprobs.{index}.logprob", token.logprob
            for _, logprob in token.top:
                yield f"step.logprobs.{index}.top", logprob
    elif isinstance(event, OutcomeEvent):
        yield "outcome.time_s", event.outcome.time_s
    elif isinstance(event, SessionStarted):
        yield "time_s", event.time_s
        yield "release_probability", event.release_probability
    elif isinstance(event, LookEvent):
        for name in ("time_s", "seconds", "own", "probability"):
            yield name, getattr(event, name)
    else:
        yield "time_s", event.time_s


def _check_json(value: object, field: str, depth: int) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DataError(f"must be a finite number. Got {value!r}.", field=field)
    elif isinstance(value, dict | list):
        if depth == 0:
            raise DataError(f"is nested deeper than {MAX_DEPTH}.", field=field)
        for item in value.values() if isinstance(value, dict) else value:
            _check_json(item, field, depth - 1)
