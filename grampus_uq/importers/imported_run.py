"""A run from elsewhere: its messages, how it ended, and the same run as the steps and events of this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from grampus_uq.core.engine import advance
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.records.events import Event, ObservationEvent, OutcomeEvent, SessionStarted, StepEvent
from grampus_uq.records.protocols import InstantSignal
from grampus_uq.records.values import Message, Outcome, Reading, Step, TokenLogprob
from grampus_uq.records.vocabulary import Role
from grampus_uq.signals.driver import read_instant, read_tokens
from grampus_uq.signals.verbalized import VerbalizedConfidence


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """Facts beside a message's text, as far as the format has them.

    `time_s` is seconds since 1970, None where the format has none; the tokens are the agent's own.
    """

    time_s: float | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    is_error: bool = False


_NO_FACTS: Final = MessageFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """One run of a foreign format. What only an evaluator knows is in `outcome` and nowhere else.

    `shape` says what a step is: in a `chat` a message of the assistant (the others are observations), in a `log` every
    message, its speaker in `name`. `task_id` groups the runs of one task: they are not independent samples of it.
    `facts` are kept by the number of the message; `model` and `agent_id` are empty where the format names none.
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
    facts: Mapping[int, MessageFacts] = field(default_factory=dict)
    model: str = ""
    agent_id: str = ""

    @property
    def n_steps(self) -> int:
        """The number of steps of the agent or, in a log, of all speakers."""
        return sum(self.shape == "log" or message.role is Role.ASSISTANT for message in self.messages)


def turns(run: ImportedRun, *, start_s: float = 0.0) -> Iterator[Step | ObservationEvent]:
    """Yield the run as a monitor would have seen it: steps of the agent, and between them what tools and users said.

    In a chat an assistant's message, its text and its proposed calls, is a step of kind `llm_call`. A step's id is the
    number of its message, from 0. Where the format carries no times, message k is given the time `start_s` + k seconds.
    System messages are part of the prompt, not of the run.
    """
    for index, message in enumerate(run.messages):
        facts = run.facts.get(index, _NO_FACTS)
        time_s = start_s + index if facts.time_s is None else facts.time_s
        if run.shape == "log" or message.role is Role.ASSISTANT:
            yield Step(
                step_id=str(index),
                kind="llm_call",
                time_s=time_s,
                text=message.content or "",
                tool_calls=message.tool_calls,
                logprobs=facts.logprobs,
                input_tokens=facts.input_tokens,
                output_tokens=facts.output_tokens,
            )
        elif message.role is not Role.SYSTEM:
            yield ObservationEvent(
                session_id=run.run_id,
                agent_id="",
                kind="tool_result" if message.role is Role.TOOL else "user",
                text=message.content or "",
                call_id=message.tool_call_id,
                is_error=facts.is_error,
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
) -> Iterator[Event]:
    """Yield the recording that a monitor with this profile and these signals would have made of the run.

    The stated confidence of each message of the assistant is read, and its log-probabilities where it has them; one of
    `signals` with the same source takes the place of a reading. Each call of a tool that the profile guards by name is
    a step after its message, as it is live. Signals that ask a model cannot be run on a finished run; one that raises
    gives a missing reading, as it does live. What the profile would have stopped is recorded as stopped only if
    `profile.advisory` is not set: set it, since the run really went on. The default is the default tiers, advisory. The
    session's metadata names the task (`task_id`); what TRACER reads is added by `trajectory_watch.filled_in`.
    """
    profile = profile if profile is not None else Profile(advisory=True)
    agent_id, model = agent_id or run.agent_id, model or run.model
    state = SessionState(session_id=run.run_id, agent_id=agent_id)
    first = run.facts.get(0, _NO_FACTS).time_s
    yield SessionStarted(
        session_id=run.run_id,
        agent_id=agent_id,
        time_s=start_s if first is None else first,
        model=model,
        advisory=profile.advisory,
        metadata={} if run.task_id is None else {"task_id": run.task_id},
        thresholds=profile.policy.thresholds,
        irreversible_tools=tuple(profile.policy.irreversible_tool_names),
        always_ask_tools=tuple(profile.policy.always_ask_tool_names),
    )
    for turn in turns(run, start_s=start_s):
        if isinstance(turn, ObservationEvent):
            yield replace(turn, agent_id=agent_id)
            continue
        guarded = [call for call in turn.tool_calls if profile.policy.is_irreversible(call.name)]
        calls = (
            Step(step_id=f"{turn.step_id}.{number}", kind="tool_call", time_s=turn.time_s, tool_calls=(call,))
            for number, call in enumerate(guarded)
        )
        for step, readings in ((turn, tuple(_readings(run, turn, signals))), *((call, ()) for call in calls)):
            state, assessment = advance(profile, state, step, readings)
            yield StepEvent(
                session_id=run.run_id,
                agent_id=agent_id,
                step=step,
                readings=readings,
                assessment=assessment,
                started_ns=0,
                ended_ns=0,
            )
    yield OutcomeEvent(session_id=run.run_id, agent_id=agent_id, outcome=run.outcome)


def _readings(run: ImportedRun, step: Step, signals: Sequence[InstantSignal]) -> Iterator[Reading]:
    """The readings of a step that need no model; whoever is not the assistant states nothing about its answers."""
    at = int(step.step_id)
    own = [signal.source for signal in signals]
    if run.messages[at].role is Role.ASSISTANT and VerbalizedConfidence.source not in own:
        yield read_instant(VerbalizedConfidence(), step)
    yield from (read_instant(signal, step) for signal in signals)
    if step.logprobs is not None:
        yield from (one for one in read_tokens(step, run.messages[:at]) if one.source not in own)
