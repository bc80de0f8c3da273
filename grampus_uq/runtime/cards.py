"""A card: what a person is shown of one request before they decide, as one value for terminal, pages and archive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import Field, JsonValue

from grampus_uq.core.turn_evidence import doubt_about
from grampus_uq.errors import DataError
from grampus_uq.gate.requests import ApprovalRequest, RequestFields
from grampus_uq.monitor.snapshot import read_snapshot
from grampus_uq.records.call_parts import CallDoubt
from grampus_uq.records.values import Message, StepUncertainty
from grampus_uq.records.visible_text import short
from grampus_uq.records.vocabulary import Role, UncertaintySource
from grampus_uq.runtime.run_state import AgentState

_MOST_MESSAGES: Final = 20
_MOST_CHARACTERS: Final = 2_000
_MOST_IN_ALL: Final = 60_000


class Card(RequestFields):
    """A request as it is shown. It authorises nothing: a decision is bound to the request that has this `digest`.

    `readings`, `doubt` (how sure the model was of the call, and of its weakest part) and `thresholds` are as stored,
    unchecked; `unread` says why there are none. `messages` are the end of the transcript and what the user said last,
    long ones cut.
    """

    digest: str
    call_id: str = ""
    tool: str | None = None
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    readings: dict[str, float] = Field(default_factory=dict)
    doubt: CallDoubt | None = None
    thresholds: tuple[float, float, float] | None = None
    unread: str | None = None
    messages: tuple[Message, ...] = ()


def card(request: ApprovalRequest, state: AgentState | None = None) -> Card:
    """The card of a request, with the readings and the transcript of its session where that is given."""
    call = request.call
    shown = request.model_dump(exclude={"call"})
    if call is not None:
        shown |= {"call_id": call.id, "tool": call.name, "arguments": call.arguments}
    if state is not None:
        shown |= _read(state, request) | {"messages": end_of(state.messages)}
    return Card(digest=request.digest(), **shown)


def _read(state: AgentState, request: ApprovalRequest) -> dict[str, Any]:
    """Return the readings of the proposing turn and the thresholds, as stored, unchecked."""
    if state.belief is None:
        return {}
    try:
        session, history = read_snapshot(state.belief)
    except DataError as error:
        return {"unread": f"the stored belief cannot be read: {error}"}
    step_id, read = request.step_id, dict[str, float]()
    turn = next((turn for turn in session.turns if turn.step == step_id), None)
    doubt = None if turn is None or request.call is None else doubt_about(session.turns, turn, request.call)
    for step in history.steps:
        if step.step_id == step_id:
            read |= _kept_readings(step)
    read |= dict([turn.lowest] if turn is not None and turn.lowest is not None else [])
    stored = state.belief.get("thresholds")
    three = stored if isinstance(stored, list) and len(stored) == 3 else []
    finite = all(type(value) is float and math.isfinite(value) for value in three)
    doubt = None if doubt is None else replace(doubt, call="")  # this call's, whatever its id
    return {"readings": read, "doubt": doubt, "thresholds": tuple(three) if three and finite else None}


def _kept_readings(step: StepUncertainty) -> dict[str, float]:
    """The readings that an assessment keeps under a field of its own."""
    fields = {
        UncertaintySource.VERBALIZED: step.verbalized_confidence,
        UncertaintySource.P_TRUE: step.p_true_confidence,
        UncertaintySource.TOKEN_PROBABILITY: step.token_probability,
        UncertaintySource.TOKEN_ENTROPY: step.token_entropy,
        UncertaintySource.SEMANTIC_ENTROPY: step.semantic_confidence,
    }
    return {source.value: value for source, value in fields.items() if source in step.sources and value is not None}


def end_of(messages: Sequence[Message], most: int = _MOST_MESSAGES) -> tuple[Message, ...]:
    """The last messages, each cut, as many as are within the bounds; before them the user's latest, if it is none of
    these: a model that proposes long or many calls does not hide what it was asked for."""
    kept: list[Message] = []
    size = 0
    for message in map(_cut, reversed(messages[-most:])):
        size += len(message.model_dump_json())
        if size > _MOST_IN_ALL and kept:
            break
        kept.append(message)
    asked = next((message for message in reversed(messages) if message.role is Role.USER), None)
    if asked is not None and all(message.role is not Role.USER for message in kept):
        kept.append(_cut(asked))
    return tuple(reversed(kept))


def _cut(message: Message) -> Message:
    content = message.content or ""
    if len(content) <= _MOST_CHARACTERS:
        return message
    return message.model_copy(update={"content": short(content, _MOST_CHARACTERS)})
