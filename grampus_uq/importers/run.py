"""A run from elsewhere: its messages, how it ended, and the same run as the steps and events of this package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from grampus_uq.engine import Profile, SessionState, advance
from grampus_uq.events import Event, ObservationEvent, OutcomeEvent, SessionStarted, StepEvent
from grampus_uq.protocols import InstantSignal
from grampus_uq.records import Message, Outcome, Step
from grampus_uq.vocabulary import Role

__all__ = ["ImportedRun", "events", "turns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """One run of a foreign format. What only an evaluator knows is in `outcome` and nowhere else.

    `shape` says what a step is: in a `chat` a message of the assistant (the others are observations), in a `log` every
    message, its speaker in `name`. `task_id` groups the runs of one task: they are no independent samples of it.
    """

    run_id: str
    path: str
    line: int
    messages: tuple[Message, ...]
    outcome: Outcome
    shape: Literal["chat", "log"] = "chat"
    task_id: str | None = None
    trial: int | None = None
    reward: float | None = None

    @property
    def n_steps(self) -> int:
        """How many steps of the agent or, in a log, of all speakers."""
        return sum(self.shape == "log" or message.role is Role.ASSISTANT for message in self.messages)


def turns(run: ImportedRun, *, start_s: float = 0.0, tool_steps: bool = False) -> Iterator[Step | ObservationEvent]:
    """Yield the run as a monitor would have seen it: steps of the agent, and between them what tools and users said.

    In a chat an assistant's message, its text and its proposed calls, is a step of kind `llm_call`; with `tool_steps`
    each call follows as a step of kind `tool_call`. A step's id is the number of its message, from 0. The formats carry
    no times: message k is given the time `start_s` + k seconds. System messages are part of the prompt, not of the run.
    """
    for index, message in enumerate(run.messages):
        time_s = start_s + index
        if run.shape == "log" or message.role is Role.ASSISTANT:
            step_id = str(index)
            text = message.content or ""
            yield Step(step_id=step_id, kind="llm_call", time_s=time_s, text=text, tool_calls=message.tool_calls)
            for number, call in enumerate(message.tool_calls if tool_steps else ()):
                yield Step(step_id=f"{step_id}.{number}", kind="tool_call", time_s=time_s, tool_calls=(call,))
        elif message.role is not Role.SYSTEM:
            yield ObservationEvent(
                session_id=run.run_id,
                agent_id="",
                kind="tool_result" if message.role is Role.TOOL else "user",
                text=message.content or "",
                call_id=message.tool_call_id,
                time_s=time_s,
            )


def events(
    run: ImportedRun,
    *,
    profile: Profile | None = None,
    signals: Sequence[InstantSignal] = (),
    agent_id: str = "",
    model: str = "",
    start_s: float = 0.0,
    tool_steps: bool = False,
) -> Iterator[Event]:
    """Yield the recording that a monitor with this profile and these signals would have made of the run.

    Signals that ask a model cannot be run on a finished run; a step without readings is recorded as one without
    evidence. What the profile would have stopped is recorded as stopped only if `profile.advisory` is not set: set it,
    since the run really went on. The default profile is the guide's, advisory. The session's metadata names the task
    (`task_id`); what TRACER reads is added by `trajectory_watch.filled_in`.
    """
    profile = profile if profile is not None else Profile(advisory=True)
    state = SessionState(session_id=run.run_id, agent_id=agent_id)
    yield SessionStarted(
        session_id=run.run_id,
        agent_id=agent_id,
        time_s=start_s,
        model=model,
        advisory=profile.advisory,
        metadata={} if run.task_id is None else {"task_id": run.task_id},
    )
    for turn in turns(run, start_s=start_s, tool_steps=tool_steps):
        if isinstance(turn, ObservationEvent):
            yield turn
            continue
        readings = tuple(signal.read(turn) for signal in signals) if turn.kind != "tool_call" else ()
        state, assessment = advance(profile, state, turn, readings)
        yield StepEvent(
            session_id=run.run_id,
            agent_id=agent_id,
            step=turn,
            readings=readings,
            assessment=assessment,
            started_ns=0,
            ended_ns=0,
        )
    yield OutcomeEvent(session_id=run.run_id, agent_id=agent_id, outcome=run.outcome)
