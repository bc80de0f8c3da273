"""Counts of what an agent does, as streams: read live in constant time, without a model and without log-probabilities.

Counted from the start of the run, at every step of the model: its turns and those of the user, calls, writing calls,
repeated calls, calls with unreadable arguments, changes of plan (a call of another tool than the call before), failed
tools, apologies, negations and corrections in the agent's own words (English), and characters of agent, tools and user.

A count says nothing by itself: which of them tell failures, and in which direction, differs from agent to agent (one
that apologises may be one that refuses rightly). A fit learns it, on runs of the same agent. What a count is of no use
for is fusion by the guide's weights: it is no confidence, and it is no evidence there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

from pydantic import ConfigDict, JsonValue, TypeAdapter

from grampus_uq.errors import DataError
from grampus_uq.events import Event, ObservationEvent, SessionStarted, StepEvent
from grampus_uq.records import Reading, Step, ToolCall
from grampus_uq.signals.text import READ_CHARACTERS, Observation, UserTurn, is_closing, turn_of_observation
from grampus_uq.signals.tool_outcome import digest_of, failed, remembered
from grampus_uq.stats.fusion import COUNT
from grampus_uq.wire.calls import is_unparsed

__all__ = [
    "COUNTS",
    "StructureState",
    "counted",
    "observe_structure",
    "structure_readings",
    "structure_step",
    "with_structure",
]

COUNTS: Final = (
    "turns",
    "user_turns",
    "calls",
    "writes",
    "repeated_calls",
    "unreadable_calls",
    "plan_changes",
    "tool_errors",
    "apologies",
    "negations",
    "corrections",
    "agent_characters",
    "tool_characters",
    "user_characters",
)
"""What is counted, in order; the reading of each is named `count_` and this."""

_AT: Final = {name: place for place, name in enumerate(COUNTS)}
_SOURCES: Final = tuple(COUNT + name for name in COUNTS)
_OPEN_CALLS: Final = 256  # calls of the latest turn that are told apart

_WORD: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_APOLOGIES: Final = frozenset({"sorry", "apology", "apologies", "apologise", "apologize", "regret", "unfortunately"})
_NEGATIONS: Final = frozenset(
    {"not", "no", "never", "cannot", "unable", "without", "none", "nothing", "neither", "nor"}
)
_CORRECTIONS: Final = frozenset(
    {"actually", "instead", "correct", "correction", "corrected", "mistake", "mistaken", "wrong", "however", "again"}
)
_WRITES: Final = frozenset(
    _WORD.findall(
        "add apply assign book buy cancel change charge close commit create debit delete deploy disable drop edit "
        "enable exchange execute insert issue make merge modify move order pay place post publish purchase push put "
        "refund remove rename reset return revoke save schedule send set start stop submit transfer update upload "
        "upsert write"
    )
)
_READS: Final = frozenset(
    _WORD.findall(
        "calculate check compare count describe fetch find get inspect is list load look lookup query read retrieve "
        "search show summarize think validate verify view"
    )
)
_NAME_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureState:
    """What a session keeps of its counts: JSON-able, bounded however long the run is, and no text.

    `counts`: as `COUNTS`. `seen`: digests of earlier calls, and of calls with their ids. `open`: digests of the calls
    of the latest turn. `last_tool`: digest of the name of the tool that was called last.
    """

    counts: tuple[int, ...] = (0,) * len(COUNTS)
    seen: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    last_tool: str = ""

    __pydantic_config__ = ConfigDict(extra="forbid")

    def to_json(self) -> dict[str, JsonValue]:
        """Give the state as JSON values."""
        values: dict[str, JsonValue] = _states().dump_python(self, mode="json")
        return values

    @classmethod
    def from_json(cls, values: object) -> StructureState:
        """Read what `to_json` gave; raises DataError naming the field."""
        try:
            state = _states().validate_python(values)
        except ValueError as error:
            raise DataError(f"not a state of counts: {error!s:.200}", field="structure") from error
        if len(state.counts) != len(COUNTS) or min(state.counts) < 0:
            raise DataError(f"must be {len(COUNTS)} counts, none negative", field="structure.counts")
        return state


@cache
def _states() -> TypeAdapter[StructureState]:
    return TypeAdapter(StructureState)


def structure_step(state: StructureState, step: Step) -> StructureState:
    """Count a step: a message of the model with its calls, or a call that is about to run.

    A call that its turn proposed already, or that is known by its id and arguments, is counted once.
    """
    if step.kind == "tool_call":
        for call in step.tool_calls:
            digest = _digest(call.canonical())
            if digest in state.open or (call.id and _with_id(call, digest) in state.seen):
                continue
            if not call.arguments and state.open and _digest(call.name) == state.last_tool:
                continue  # told by its name alone
            state = _with_call(state, call, digest)
        return state
    counts = list(state.counts)
    counts[_AT["turns"]] += 1
    counts[_AT["agent_characters"]] += len(step.text)
    for place, count in _words(step.text[:READ_CHARACTERS]):
        counts[place] += count
    state = replace(state, counts=tuple(counts), open=())
    for call in step.tool_calls:
        state = _with_call(state, call, _digest(call.canonical()))
    return state


def observe_structure(state: StructureState, event: ObservationEvent) -> StructureState:
    """Count what a tool answered or the user said; a message that merely closes the run is none."""
    turn = turn_of_observation(event)
    counts = list(state.counts)
    if isinstance(turn, Observation):
        counts[_AT["tool_characters"]] += len(turn.text)
        counts[_AT["tool_errors"]] += failed(turn)
    elif isinstance(turn, UserTurn) and not is_closing(turn.text):
        counts[_AT["user_turns"]] += 1
        counts[_AT["user_characters"]] += len(turn.text)
    return replace(state, counts=tuple(counts))


def structure_readings(state: StructureState) -> tuple[Reading, ...]:
    """Give the counts as readings: 1/(2 + count), whose log odds are -log(1 + count).

    >>> [reading.value for reading in structure_readings(StructureState())][:2]
    [0.5, 0.5]
    """
    return tuple(
        Reading(source=source, value=1.0 / (2.0 + count)) for source, count in zip(_SOURCES, state.counts, strict=True)
    )


def counted(events: Iterable[Event]) -> Iterator[Event]:
    """Yield recorded or imported events with the counts that a live session would have put among their readings.

    Steps that have them keep them. Needs the texts: a recording that kept hashes or nothing gives counts of calls, and
    of hashes. Sessions may be interleaved; one that is taken up from an older state is counted as if it went on.
    """
    states: dict[str, StructureState] = {}
    for event in events:
        state = states.get(event.session_id, StructureState())
        if isinstance(event, SessionStarted) and not event.resumed:
            states.pop(event.session_id, None)
        elif isinstance(event, ObservationEvent):
            states[event.session_id] = observe_structure(state, event)
        elif isinstance(event, StepEvent):
            state = states[event.session_id] = structure_step(state, event.step)
            yield replace(event, readings=with_structure(event.readings, state, event.step))
            continue
        yield event


def with_structure(readings: Sequence[Reading], state: StructureState, step: Step) -> tuple[Reading, ...]:
    """Add the counts to the readings of a step of the model; counts that are there already stay as they are."""
    if step.kind == "tool_call":
        return tuple(readings)
    known = {reading.source for reading in readings}
    return (*readings, *(reading for reading in structure_readings(state) if reading.source not in known))


def _with_call(state: StructureState, call: ToolCall, digest: str) -> StructureState:
    counts = list(state.counts)
    tool = _digest(call.name)
    counts[_AT["calls"]] += 1
    counts[_AT["writes"]] += _writes(call.name[:200])
    counts[_AT["repeated_calls"]] += digest in state.seen
    counts[_AT["unreadable_calls"]] += is_unparsed(call)
    counts[_AT["plan_changes"]] += state.last_tool not in ("", tool)
    seen = remembered(state.seen, digest)
    return StructureState(
        counts=tuple(counts),
        seen=remembered(seen, _with_id(call, digest)) if call.id else seen,
        open=(*state.open, digest)[-_OPEN_CALLS:],
        last_tool=tool,
    )


def _with_id(call: ToolCall, digest: str) -> str:
    return _digest(f"{call.id[:200]}\n{digest}")


def _digest(text: str) -> str:
    return digest_of(text)[:16]  # enough to tell a run's calls apart, in a snapshot that is written at every step


@lru_cache(maxsize=1024)
def _writes(name: str) -> bool:
    """Whether a tool's name says that it changes something: the first word that is known decides."""
    for word in _NAME_WORD.findall(name):
        known = word.lower()
        if known in _WRITES or known in _READS:
            return known in _WRITES
    return False


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Places in the counts, and what an agent's words add there: a turn apologises or corrects once, negates often."""
    words = _WORD.findall(text.lower())
    known = set(words)
    yield _AT["apologies"], not known.isdisjoint(_APOLOGIES)
    yield _AT["corrections"], not known.isdisjoint(_CORRECTIONS)
    yield _AT["negations"], sum(word in _NEGATIONS or word.endswith(("n't", "n’t")) for word in words)
