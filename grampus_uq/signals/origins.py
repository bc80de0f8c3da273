"""Doubt that a value brings along: an order found for a doubtful customer is a doubtful order, five steps later.

    p(value) = p of where it first came from: 1 in a request; in a call, the least of its arguments and of what their
               values had brought along; in a tool's result, that of the call that asked for it
    origin_probability of a call = the least p(value) over the values of its arguments that were there before

A least along the way, never a mean: sure steps in between lift nothing. Values are words with a digit (ids, amounts,
dates); a name alone is none. Which tool was called first is no doubt about what it answered. Kept are digests of 512
values and 128 calls; what is known of none of them is as doubtful as the most doubtful one that was dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pydantic import JsonValue

from grampus_uq.records.call_parts import TOOL_NAME, CallPart, Unit
from grampus_uq.records.events import ObservationEvent
from grampus_uq.records.strict_json import snapshot_part
from grampus_uq.records.values import Message, Reading, Step, ToolCall
from grampus_uq.records.vocabulary import Role, UncertaintySource
from grampus_uq.signals.call_support import MAX_CHARACTERS, words_with_digits
from grampus_uq.signals.tool_outcome import digest_of
from grampus_uq.stats.stored_values import STORED

MAX_VALUES: Final = 512
MAX_CALLS: Final = 128
_MOST_READ: Final = 256  # values of one text
_LATEST: Final = 16  # messages of a prompt, beside its first two
_OF_CALLS = UncertaintySource.CALL_PROBABILITY


@dataclass(slots=True)
class OriginState:
    """Certainty of each value's origin, by digest, and of each call, with the values it built on.

    `dropped` is the least of what is kept no more: values and calls that nothing is known of may be those.
    """

    values: dict[str, Unit] = field(default_factory=dict)
    calls: dict[str, Unit] = field(default_factory=dict)
    dropped: Unit = 1.0

    __pydantic_config__ = STORED

    @property
    def worst(self) -> float:
        """The least of all that is kept or was."""
        return min([self.dropped, *self.values.values()])

    def to_json(self) -> dict[str, JsonValue]:
        """The state as JSON values."""
        return {"values": {**self.values}, "calls": {**self.calls}, "dropped": self.dropped}

    @classmethod
    def from_json(cls, values: object) -> OriginState:
        """Read what `to_json` gave; raises DataError for anything else."""
        return snapshot_part(cls, values, "a state of origins", "origins")


def origins_of_prompt(state: OriginState, messages: Sequence[Message]) -> None:
    """Take what rules and users say: values that are first named there are certain."""
    for message in (*messages[:2], *messages[2:][-_LATEST:]):
        if message.content and message.role in (Role.USER, Role.SYSTEM):
            _first_seen(state, message.content, 1.0)


def origins_of_observation(state: OriginState, event: ObservationEvent) -> None:
    """Take what a tool answered, as sure as the call that asked for it; or what a user said."""
    sure = state.calls.get(_digest(event.call_id or ""), state.dropped) if event.kind == "tool_result" else 1.0
    _first_seen(state, event.text, sure)


def with_origins(readings: Sequence[Reading], state: OriginState, step: Step) -> Sequence[Reading]:
    """Add to the readings of a step with calls what their values bring along; then take up the calls' own values."""
    if step.kind == "tool_call" or not step.tool_calls:
        return readings
    parts = next((one.parts for one in readings if one.source == _OF_CALLS), ())
    found = [_of_call(state, number, call, parts) for number, call in enumerate(step.tool_calls[:MAX_CALLS])]
    if len(step.tool_calls) > MAX_CALLS:
        found.append(state.worst)
    known = [sure for sure in found if sure is not None]
    if not known or any(one.source == UncertaintySource.ORIGIN_PROBABILITY for one in readings):
        return readings
    return (*readings, Reading(source=UncertaintySource.ORIGIN_PROBABILITY, value=min(known)))


def _of_call(state: OriginState, number: int, call: ToolCall, parts: Sequence[CallPart]) -> float | None:
    """Return the least certainty among the origins of a call's values; keep the call and its new values."""
    keys, whole = _keys("\n".join(map(str, call.arguments.values())))
    found = [state.values.get(key, state.dropped) for key in keys if key in state.values or state.dropped < 1.0]
    if not whole:
        found.append(state.worst)
    own = [part.probability for part in parts if part.call == number and part.name != TOOL_NAME]
    sure = min([*found, *(one for one in own if one is not None)], default=1.0)
    for key in keys:
        _keep(state, state.values, key, sure, MAX_VALUES)
    if call.id:
        key = _digest(call.id)
        _keep(state, state.calls, key, sure, MAX_CALLS)
        state.calls[key] = min(state.calls.get(key, 1.0), sure)  # an id may come twice
    return min(found, default=None)


def _first_seen(state: OriginState, text: str, sure: float) -> None:
    keys, whole = _keys(text)
    for key in keys:
        _keep(state, state.values, key, sure, MAX_VALUES)
    if not whole:
        state.dropped = min(state.dropped, sure)


def _keys(text: str) -> tuple[list[str], bool]:
    """Digests of the values of a text, and whether these are all of them."""
    found = [_digest(word) for word in islice(words_with_digits(text[:MAX_CHARACTERS]), _MOST_READ + 1)]
    return found[:_MOST_READ], len(found) <= _MOST_READ and len(text) <= MAX_CHARACTERS


def _keep(state: OriginState, known: dict[str, float], key: str, sure: float, most: int) -> None:
    known.setdefault(key, sure)
    if len(known) > most:
        state.dropped = min(state.dropped, known.pop(next(iter(known))))


def _digest(word: str | float) -> str:
    return digest_of(str(word))[:16]
