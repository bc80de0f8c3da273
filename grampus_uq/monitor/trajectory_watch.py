"""A session's turns for the trajectory risk: kept as they come, their texts compared off the event loop.

Taking a turn is arithmetic on a small value; reading texts may be slow and may fail, and then costs one step's
components and never the run. What is read leaves as numbers (`TrajectoryReading`), so that a replay needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy.typing as npt
from pydantic import JsonValue

from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.models.own_threads import OwnThreads
from grampus_uq.records.events import (
    Event,
    ObservationEvent,
    OutcomeEvent,
    SessionStarted,
    StepEvent,
    TrajectoryReading,
)
from grampus_uq.records.protocols import Embedder
from grampus_uq.records.strict_json import snapshot_part
from grampus_uq.records.values import Step
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.components import ObservedStep, needs_embedding, sense_steps, unsensed
from grampus_uq.signals.driver import Budget, within
from grampus_uq.signals.embedding import CachedEmbedder, CallableEmbedder, HashingEmbedder
from grampus_uq.signals.trajectory import ComponentState, advance
from grampus_uq.signals.turn_events import RunEnd, TurnEvent, turn_of_observation, turn_of_step
from grampus_uq.stats.stored_values import STORED, to_json

MAX_WAITING: Final = 64
"""Steps that may be complete and not yet read; a user who goes on writing without an answer is not counted further."""

_threads: Final = OwnThreads("embedding", 8)
"""A model that hangs holds these and no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMemory:
    """A session's memory of its turns, bounded JSON of the run's own text; `waiting`: complete, not yet read."""

    state: ComponentState = field(default_factory=ComponentState)
    waiting: tuple[ObservedStep, ...] = ()

    __pydantic_config__ = STORED

    def to_json(self) -> dict[str, JsonValue]:
        """Give the memory as JSON values."""
        return to_json(self)

    @classmethod
    def from_json(cls, values: object) -> TurnMemory:
        """Read what `to_json` gave; raises DataError naming the field."""
        return snapshot_part(cls, values, "a memory of turns", "turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The memory after an event, the steps to be read now, and the one that is still open."""

    memory: TurnMemory
    pending: ObservedStep | None

    @property
    def read(self) -> TurnMemory:
        """The memory once its waiting steps were read."""
        return replace(self.memory, waiting=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectorySensor:
    """How the turns of a session are read; immutable, shared by all sessions of a monitor.

    `instant`: the embedder needs about a millisecond a text, so that what is left when a run ends may be read at once.
    """

    settings: TrajectoryRiskSettings
    embedder: Embedder
    timeout_s: float
    instant: bool

    @classmethod
    def of(
        cls,
        settings: TrajectoryRiskSettings,
        embedder: Embedder | Callable[[list[str]], npt.ArrayLike] | None = None,
        *,
        timeout_s: float = Budget().timeout_s,
    ) -> TrajectorySensor:
        """Wire an embedder: the hashing one, one of your own (`embed`), or any function from texts to a matrix."""
        if embedder is None:
            embedder = HashingEmbedder()
        elif not isinstance(embedder, HashingEmbedder):
            embedder = CallableEmbedder(embedder.embed if isinstance(embedder, Embedder) else embedder)
        instant = isinstance(embedder, HashingEmbedder)
        cached = CachedEmbedder(embedder, capacity=1024)
        return cls(settings=settings, embedder=cached, timeout_s=timeout_s, instant=instant)

    def step(self, memory: TurnMemory, step: Step) -> Turns:
        """Take a step of the session."""
        return self._take(memory, turn_of_step(step))

    def observation(self, memory: TurnMemory, event: ObservationEvent) -> TurnMemory:
        """Take what a tool answered or the user said."""
        return self._take(memory, (turn_of_observation(event),)).memory

    def end(self, memory: TurnMemory) -> Turns:
        """Take the run as ended: the open turn is complete as it is."""
        return self._take(memory, (RunEnd(),))

    def _take(self, memory: TurnMemory, events: Iterable[TurnEvent]) -> Turns:
        state, waiting, pending = memory.state, memory.waiting, None
        for event in events:
            moved = advance(state, event, self.settings)
            state, pending = moved.state, moved.pending
            waiting += tuple(_lean(step) for step in moved.completed)
        return Turns(memory=TurnMemory(state=state, waiting=waiting[:MAX_WAITING]), pending=pending)

    async def read(self, turns: Turns, step: Step | None = None) -> TrajectoryReading:
        """Read what a step completed and what it opened, off the event loop; raises nothing but cancellation."""
        steps = _steps_of(turns)
        if not needs_embedding(steps):
            return _reading(turns, sense_steps(steps, self.embedder), step)
        work = partial(sense_steps, steps, self.embedder)
        components, reason = await within(
            UncertaintySource.TRAJECTORY_RISK, partial(_threads.run, work), self.timeout_s
        )
        if components is None:
            return self.unread(turns, reason or MissingReason.SIGNAL_ERROR, step)
        return _reading(turns, components, step)

    def read_now(self, turns: Turns, step: Step | None = None) -> TrajectoryReading:
        """Read in the calling thread. What the embedder raises goes through."""
        return _reading(turns, sense_steps(_steps_of(turns), self.embedder), step)

    def unread(self, turns: Turns, reason: str, step: Step | None = None) -> TrajectoryReading:
        """Give what needs no reading of texts, and why they were not read."""
        return replace(_reading(turns, [unsensed(one) for one in _steps_of(turns)], step), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTurns:
    """A step as it was read, and the memory that it was read from."""

    before: TurnMemory
    after: TurnMemory
    reading: TrajectoryReading


class TrajectoryWatch:
    """The turns of one session: what a `Session` holds and changes under its lock."""

    __slots__ = ("_ending", "_sensor", "memory")

    def __init__(self, sensor: TrajectorySensor, memory: TurnMemory) -> None:
        self._sensor = sensor
        self.memory = memory
        self._ending: ReadTurns | None = None

    async def read(self, step: Step) -> ReadTurns:
        """Read a step from where the turns stand now; changes nothing. Needs no lock."""
        before = self.memory
        turns = self._sensor.step(before, step)
        return ReadTurns(before=before, after=turns.read, reading=await self._sensor.read(turns, step))

    def take(self, read: ReadTurns) -> bool:
        """Take a step that was read; False when something else came meanwhile: then it has to be read again."""
        if self.memory is not read.before:
            return False
        self.memory = read.after
        return True

    def take_unread(self, step: Step) -> TrajectoryReading:
        """Take a step without reading its texts."""
        turns = self._sensor.step(self.memory, step)
        self.memory = turns.read
        return self._sensor.unread(turns, MissingReason.NOT_SENSED, step)

    def observe(self, event: ObservationEvent) -> None:
        """Take what a tool answered or the user said; it is read with the next step."""
        self.memory = self._sensor.observation(self.memory, event)

    async def settle(self) -> None:
        """Read what would be complete if the run ended now, for `ending`."""
        before = self.memory
        turns = self._sensor.end(before)
        self._ending = ReadTurns(before=before, after=turns.read, reading=await self._sensor.read(turns))

    def ending(self) -> TrajectoryReading:
        """The steps complete if the run ended here; without `settle` only an instant embedder is asked."""
        if self._ending is not None and self._ending.before is self.memory:
            return self._ending.reading
        turns = self._sensor.end(self.memory)
        if self._sensor.instant or not needs_embedding(turns.memory.waiting):
            return self._sensor.read_now(turns)
        return self._sensor.unread(turns, MissingReason.NOT_SENSED)


def _lean(step: ObservedStep) -> ObservedStep:
    """Drop the text of a step that is compared with nothing: it is not embedded and need not be kept."""
    return step if step.is_agent or step.counterpart is not None else replace(step, text="")


def _steps_of(turns: Turns) -> tuple[ObservedStep, ...]:
    return turns.memory.waiting if turns.pending is None else (*turns.memory.waiting, turns.pending)


def _reading(turns: Turns, components: Sequence[Any], step: Step | None) -> TrajectoryReading:
    completed = len(turns.memory.waiting)
    pending = components[completed] if turns.pending is not None else None
    why = None
    if pending is not None and pending.surprisal is None and step is not None and step.kind != "tool_call":
        why = MissingReason.INVALID_VALUE if step.logprobs else MissingReason.NO_LOGPROBS
    return TrajectoryReading(completed=tuple(components[:completed]), pending=pending, no_surprisal=why)


def filled_in(events: Iterable[Event], sensor: TrajectorySensor) -> Iterator[Event]:
    """Yield recorded or imported events with the components that a live session would have put into them.

    Needs the texts, which `content` may have left out. Sessions may be interleaved; one taken up from an older state is
    read as if it went on. What the embedder raises goes through.
    """
    memories: dict[str, TurnMemory] = {}
    for event in events:
        name = event.session_id
        memory = memories.get(name, TurnMemory())
        if isinstance(event, SessionStarted) and not event.resumed:
            memories.pop(name, None)
        elif isinstance(event, StepEvent):
            turns = sensor.step(memory, event.step)
            memories[name] = turns.read
            yield replace(event, trajectory=sensor.read_now(turns, event.step))
            continue
        elif isinstance(event, ObservationEvent):
            memories[name] = sensor.observation(memory, event)
        elif isinstance(event, OutcomeEvent):
            yield replace(event, trajectory=sensor.read_now(sensor.end(memory)))
            continue
        yield event
