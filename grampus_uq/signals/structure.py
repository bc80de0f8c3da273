"""Counts of what an agent does, as streams: read live in constant time, without a model and without log-probabilities.

Counted from the start of the run, at every step of the model: its turns and those of the user, calls, writing calls,
repeated calls, calls with unreadable arguments, changes of plan (a call of another tool than the call before), failed
tools, apologies, negations and corrections in the agent's own words (English), and characters of agent, tools and user.

A count says nothing by itself: which of them tell failures, and in which direction, differs from agent to agent (one
that apologises may be one that refuses rightly). A fit learns it, on runs of the same agent. Fusion by
the default weights leaves counts out: a count is not a confidence, and not evidence there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from pydantic import ConfigDict, JsonValue

from grampus_uq.errors import DataError
from grampus_uq.records.events import Event, ObservationEvent, SessionStarted, StepEvent
from grampus_uq.records.strict_json import snapshot_part
from grampus_uq.records.values import Reading, Step, ToolCall
from grampus_uq.signals.tool_outcome import REMEMBERED, digest_of, failed
from grampus_uq.signals.turn_events import READ_CHARACTERS, Observation, UserTurn, is_closing, turn_of_observation
from grampus_uq.stats.fusion import COUNT
from grampus_uq.wire.calls import is_unparsed

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
"""The counted quantities, in order; each reading is named `count_` plus this."""

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


@dataclass(slots=True, kw_only=True)
class StructureState:
    """The counts that a session keeps: bounded however long the run is, and no text; its owner alone changes them.

    `counts`: as `COUNTS`. `seen`: digests of earlier calls, and of calls with their ids, the oldest first. `open`:
    digests of the calls of the latest turn. `last_tool`: digest of the name of the tool that was called last.
    """

    counts: list[int] = field(default_factory=lambda: [0] * len(COUNTS))
    seen: dict[str, None] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    last_tool: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """Give the state as JSON values."""
        return {
            "counts": [*self.counts],
            "seen": [*self.seen],
            "open": [*sorted(self.open)],
            "last_tool": self.last_tool,
        }

    @classmethod
    def from_json(cls, values: object) -> StructureState:
        """Read what `to_json` gave; raises DataError naming the field."""
        stored = snapshot_part(_Stored, values, "a state of counts", "structure")
        if len(stored.counts) != len(COUNTS) or min(stored.counts) < 0:
            raise DataError(f"must be {len(COUNTS)} counts, none negative", field="structure.counts")
        return cls(
            counts=stored.counts, seen=dict.fromkeys(stored.seen), open=set(stored.open), last_tool=stored.last_tool
        )


@dataclass(slots=True, kw_only=True)
class _Stored:
    counts: list[int]
    seen: list[str]
    open: list[str]
    last_tool: str

    __pydantic_config__ = ConfigDict(extra="forbid")


def structure_step(state: StructureState, step: Step) -> None:
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
            _take_call(state, call, digest)
        return
    counts = state.counts
    counts[_AT["turns"]] += 1
    counts[_AT["agent_characters"]] += len(step.text)
    for place, count in _words(step.text[:READ_CHARACTERS]):
        counts[place] += count
    state.open.clear()
    for call in step.tool_calls:
        _take_call(state, call, _digest(call.canonical()))


def observe_structure(state: StructureState, event: ObservationEvent) -> None:
    """Count what a tool answered or the user said; a message that merely closes the run is none."""
    turn, counts = turn_of_observation(event), state.counts
    if isinstance(turn, Observation):
        counts[_AT["tool_characters"]] += len(turn.text)
        counts[_AT["tool_errors"]] += failed(turn)
    elif isinstance(turn, UserTurn) and not is_closing(turn.text):
        counts[_AT["user_turns"]] += 1
        counts[_AT["user_characters"]] += len(turn.text)


def structure_readings(state: StructureState) -> tuple[Reading, ...]:
    """Give the counts as readings: 1/(2 + count), whose log odds are -log(1 + count).

    >>> [reading.value for reading in structure_readings(StructureState())][:2]
    [0.5, 0.5]
    """
    return tuple(map(_reading, _SOURCES, state.counts))


@lru_cache(maxsize=4096)
def _reading(source: str, count: int) -> Reading:
    return Reading(source=source, value=1.0 / (2.0 + count))


def counted(events: Iterable[Event]) -> Iterator[Event]:
    """Yield recorded or imported events with the counts that a live session would have put among their readings.

    Steps that have them keep them. Needs the texts: a recording that kept hashes or nothing gives counts of calls, and
    of hashes. Sessions may be interleaved; one that is taken up from an older state is counted as if it went on.
    """
    states: dict[str, StructureState] = {}
    for event in events:
        state = states.setdefault(event.session_id, StructureState())
        if isinstance(event, SessionStarted) and not event.resumed:
            del states[event.session_id]
        elif isinstance(event, ObservationEvent):
            observe_structure(state, event)
        elif isinstance(event, StepEvent):
            structure_step(state, event.step)
            yield replace(event, readings=with_structure(event.readings, state, event.step))
            continue
        yield event


def with_structure(readings: Sequence[Reading], state: StructureState, step: Step) -> tuple[Reading, ...]:
    """Add the counts to the readings of a step of the model; counts that are there already stay as they are."""
    if step.kind == "tool_call":
        return tuple(readings)
    known = {reading.source for reading in readings}
    return (*readings, *(reading for reading in structure_readings(state) if reading.source not in known))


def _take_call(state: StructureState, call: ToolCall, digest: str) -> None:
    counts, tool = state.counts, _digest(call.name)
    counts[_AT["calls"]] += 1
    counts[_AT["writes"]] += _writes(call.name[:200])
    counts[_AT["repeated_calls"]] += digest in state.seen
    counts[_AT["unreadable_calls"]] += is_unparsed(call)
    counts[_AT["plan_changes"]] += state.last_tool not in ("", tool)
    state.last_tool = tool
    for known in (digest, _with_id(call, digest)) if call.id else (digest,):
        state.seen.setdefault(known)
        if len(state.seen) > REMEMBERED:
            del state.seen[next(iter(state.seen))]
    if len(state.open) < _OPEN_CALLS:
        state.open.add(digest)


def _with_id(call: ToolCall, digest: str) -> str:
    return _digest(f"{call.id[:200]}\n{digest}")


def _digest(text: str) -> str:
    return digest_of(text)[:16]  # enough to tell a run's calls apart, in a snapshot that is written at every step


@lru_cache(maxsize=1024)
def _writes(name: str) -> bool:
    """True if a tool's name says that it changes something: the first word that is known decides."""
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
