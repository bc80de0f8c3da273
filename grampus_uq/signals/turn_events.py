"""One turn of a run as neutral values, and the text that represents it (TRACER's z(x) and z(o)).

A turn is an agent's message with the calls it proposes, a tool's observation, or a user's message. Any source of runs
(the live monitor, a recording, an imported file) is turned into these, so that all of them are read by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from grampus_uq.records.events import ObservationEvent
from grampus_uq.records.values import Step, TokenLogprob, ToolCall

READ_CHARACTERS: Final = 10_000
"""Characters of a turn that are embedded, compared and kept in a session's state; what follows is not read."""

SENTINELS: Final[tuple[str, ...]] = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""The words with which simulated users of the tau-bench family end a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurn:
    """A message of the agent: its text, the calls it proposes, and its tokens when the model reports them."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedCall:
    """A call that reached the monitor by itself; it belongs to the open agent turn, where it may be known already."""

    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A tool's answer to the call `call_id`; `is_error` is None if only the text tells whether it failed."""

    text: str
    call_id: str = ""
    is_error: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """A message of the user, with its tokens when the user is a model that reports them."""

    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Nothing follows: the open agent turn is complete as it is."""


TurnEvent = AgentTurn | ProposedCall | Observation | UserTurn | RunEnd


def agent_text(text: str, calls: Iterable[ToolCall]) -> str:
    """Give z(x) of an agent turn: its text and, a line each, the calls by name and canonical arguments.

    Keys are sorted at every depth, so calls that differ only in the order of keys read the same.

    >>> agent_text("", [ToolCall(name="refund", arguments={"order": 7, "amount": 5})])
    'refund({"amount":5,"order":7})'
    """
    parts = [text.strip(), *(call.canonical() for call in calls)]
    return "\n".join(part for part in parts if part)[:READ_CHARACTERS]


def observation_text(texts: Sequence[str]) -> str:
    """Give z(o) of a turn: the observations of its calls, in the order of the calls, a line each."""
    return "\n".join(text for text in texts if text.strip())[:READ_CHARACTERS]


def is_closing(text: str, sentinels: Sequence[str] = SENTINELS) -> bool:
    """Say whether a user's message ends the run by a sentinel; such a turn is not a step, without coordination gap."""
    return any(sentinel in text for sentinel in sentinels)


def turn_of_step(step: Step) -> tuple[TurnEvent, ...]:
    """Give the turn events of a recorded step: a tool step proposes its calls again, any other is a message."""
    if step.kind == "tool_call":
        return tuple(ProposedCall(call=call) for call in step.tool_calls)
    return (AgentTurn(text=step.text, calls=step.tool_calls, logprobs=step.logprobs),)


def turn_of_observation(event: ObservationEvent) -> TurnEvent:
    """Give the turn event of a recorded observation: what a tool answered, or what the user said.

    `is_error` false is also what an executor leaves that does not know, so the text is read then.
    """
    if event.kind == "user":
        return UserTurn(text=event.text)
    return Observation(text=event.text, call_id=event.call_id or "", is_error=True if event.is_error else None)
