"""Orders of a conformance check to an agent's process, and its answers: values that travel as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from grampus_uq.testing.agent_script import AgentSetup
from grampus_uq.testing.agent_under_test import Decision, Ended, Failed, Paused


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One thing to do with one session; of a forgery `prompt` says what is forged."""

    do: Literal["run", "resume", "stream", "forge"]
    session: str
    prompt: str = ""
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Work of a child process: acts on an agent built from the setup, in sequence or all at once.

    With `hold` it then waits, everything still open, to be killed.
    """

    setup: AgentSetup
    acts: tuple[Act, ...]
    together: bool = False
    hold: bool = False
    answer: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Results of the acts in order, streamed output, and the framework's gaps as stated by the harness."""

    results: tuple[Ended | Paused | Failed, ...]
    pieces: tuple[str, ...] = ()
    lacks: dict[str, str]


ORDER = TypeAdapter(Order)
ANSWER = TypeAdapter(Answer)
