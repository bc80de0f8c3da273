"""Takes a LangGraph thread back to before a step of the model, and says what the discarded part really did.

    fork = fork_before(app, config, attribution, note="It paid the wrong person.")      # or the number of a step
    app.invoke(fork.command, fork.config)

The history keeps everything: the fork is a new branch from an old checkpoint, whose belief is the one that was held
there. What tools did is not undone by it: irreversible calls of the discarded part wait when the new branch proposes
exactly them again, whatever the policy says. A call that a human rejected there stays rejected.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grampus_uq import ConfigurationError, Effect, MissingDependencyError, ToolCall
from grampus_uq.gate.call import CallPhase, CallRecord, against
from grampus_uq.gate.carried import read_decided, read_record
from grampus_uq.gate.starts import by_itself
from grampus_uq.integrations.carried_states import FORKED, REJECTED
from grampus_uq.integrations.langgraph_steps import AWAITING, BLOCKING, Way, to_its_end
from grampus_uq.integrations.langgraph_threads import KEY
from grampus_uq.monitor.snapshot import alarmed_in
from grampus_uq.records.events import ALARMED, BRANCH

with MissingDependencyError.unless("langgraph", "langgraph", "Forking a thread"):
    from langchain_core.messages import HumanMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.types import Command, StateSnapshot


_STEP = re.compile(r"llm_(\d+)(?:/|$)")


class Suspects(Protocol):
    """A prediction set over a recorded run, such as `grampus_uq.learn.attribution.Attribution`."""

    @property
    def steps(self) -> Sequence[Any]:
        """The run's steps, each with a `step_id`."""
        ...

    @property
    def set_steps(self) -> Sequence[int]:
        """Ascending indices of the suspected steps."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Start of a new branch, and the command that begins it.

    `executed` are the calls that the discarded part ran, or may have run, with the arguments that they ran with, except
    those that only read; nobody undid them. Sub-graphs with a state of their own keep theirs to themselves.
    """

    config: RunnableConfig
    command: Command[Any]
    step: int
    executed: tuple[ToolCall, ...]


def fork_before(
    app: Any, config: RunnableConfig, at: int | Suspects, *, note: str | None = None, messages_key: str = "messages"
) -> Fork:
    """Find the checkpoint before a step of the model, counted from 0, or before the first step of a prediction set.

    Args:
        app: a compiled graph with the guard, or an agent with the middleware; with a checkpointer.
        config: of the thread, at its end or at the checkpoint to look back from.
        at: the step's number (the N of "llm_N"), or the set.
        note: what the model is told, after what it knew then.
        messages_key: as in `uncertainty_guard`.

    Raises:
        ConfigurationError: an empty set, or a step that this branch did not make.
    """
    return to_its_end(_forked(app.get_state, config, at, note, messages_key, BLOCKING))


async def afork_before(
    app: Any, config: RunnableConfig, at: int | Suspects, *, note: str | None = None, messages_key: str = "messages"
) -> Fork:
    """`fork_before`, awaited."""
    return await _forked(app.aget_state, config, at, note, messages_key, AWAITING)


async def _forked(get: Any, config: RunnableConfig, at: int | Suspects, note: str | None, key: str, way: Way) -> Fork:
    step, walk = _first(at), _Walk(key)
    snapshot: StateSnapshot | None = await way.call(get, config)
    while snapshot is not None and not walk.found(snapshot, step):
        snapshot = await way.call(get, snapshot.parent_config) if snapshot.parent_config else None
    return walk.fork(snapshot, step, note)


def _first(at: int | Suspects) -> int:
    if isinstance(at, int):
        return at
    if not at.set_steps:
        hint = "the set is empty; look at the most suspect step and give its number"
        raise ConfigurationError.of("at", "fork_before", "a set with a step", at.set_steps, hint)
    step_id = str(at.steps[at.set_steps[0]].step_id)
    number = _STEP.match(step_id)
    if number is None:
        raise ConfigurationError.of("at", "fork_before", "over steps of a recording of this thread: llm_N", step_id)
    return int(number[1])


class _Walk:
    """Back along a branch, newest checkpoint first: the turns that are left behind, each as it stood last."""

    def __init__(self, messages_key: str) -> None:
        self._key = messages_key
        self._turns: dict[str, list[CallRecord]] = {}
        self._answered: set[str] | None = None
        self._made = 0
        self._alarmed = False
        self._rejected: set[str] = set()
        self._repeats: set[str] = set()  # what earlier forks left behind stands on no way back from here

    def found(self, snapshot: StateSnapshot, step: int) -> bool:
        """True at the checkpoint from which the model makes this step."""
        held = snapshot.values.get(KEY) or {}
        messages = snapshot.values.get(self._key) or []
        if self._answered is None:
            self._answered = {m.tool_call_id for m in messages if m.type == "tool"}
        belief = held.get("belief") or {}
        turns = belief.get("turns", 0)
        self._alarmed = self._alarmed or ALARMED in held.get(FORKED, ()) or alarmed_in(belief.get("session"))
        self._made = max(self._made, turns)
        decided = [read_decided(item) for item in held.get("decided", ())]
        noes = filter(None, map(against, decided))
        self._rejected |= {*noes, *belief.get("rejected", ()), *held.get(FORKED, {}).get(REJECTED, ())}
        self._repeats |= {*belief.get("repeats", ()), *held.get("repeats", ())}
        if turns > step and held.get("turn") is not None:
            records = [read_record(entry) for entry in held["turn"]["calls"]]
            self._turns.setdefault(held["turn"]["step_id"], [*records, *decided])
        return bool(turns == step < self._made and messages and messages[-1].type != "ai")

    def fork(self, snapshot: StateSnapshot | None, step: int, note: str | None) -> Fork:
        """The branch from the checkpoint that was found."""
        if snapshot is None:
            rule = f"one of the {self._made} steps that this branch made, counted from 0"
            raise ConfigurationError.of("at", "fork_before", rule, step)
        ran = [record for record in self._ran() if record.effect is not Effect.READ]
        done = [record.call.likeness() for record in ran if record.effect is Effect.IRREVERSIBLE]
        before = snapshot.values.get(KEY) or {"belief": None, "turn": None}
        # Beside what is sealed: the judge takes it into the belief with the next turn.
        repeats = sorted({*self._repeats, *done})
        forked: dict[str, Any] = {BRANCH: uuid.uuid4().hex, REJECTED: sorted(self._rejected)}
        forked |= {ALARMED: "true"} if self._alarmed else {}
        update: dict[str, Any] = {KEY: {**before, "repeats": repeats, FORKED: forked}}
        if note:
            update[self._key] = [HumanMessage(note)]
        return Fork(
            config=snapshot.config,
            command=Command(update=update),
            step=step,
            executed=tuple(record.call for record in ran),
        )

    def _ran(self) -> Iterator[CallRecord]:
        for records in reversed(self._turns.values()):
            latest = {record.proposed.id: record for record in records}  # what a human decided stands last
            effects = {record.proposed.id: record.effect for record in reversed(records)}
            for call_id, record in latest.items():
                # What runs once may have begun without an end.
                ended = call_id in (self._answered or ()) or not by_itself(record)
                if record.began_before or (record.phase is CallPhase.CLEARED and ended):
                    yield record.change(effect=effects[call_id])
