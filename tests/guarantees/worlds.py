"""Agents whose chance of success is known, recorded and watched through the public path.

A run states a confidence in one or more steps, may then call something irreversible, and succeeds with a known chance.
`record` writes many runs into one file by a monitor that only advises; `live` takes fresh ones through a profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grampus_uq import Exploration, Outcome, Reading, Step, StopReason, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.core.state import Profile
from grampus_uq.monitor.session import Session
from grampus_uq.recording.artifacts import ProfileArtifact
from grampus_uq.recording.codec import encode
from grampus_uq.records.events import Event

POLICY = UncertaintyPolicy(irreversible_tool_names=["send"])
BASE = Profile(policy=POLICY)
FITTING = {"model": "m", "prompt_hash": "0" * 64, "tools_hash": "0" * 64}
CALL = ToolCall(name="send_mail")

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """stated: shape (n, steps). chance: of success given what was stated, and the task. calls: sends something.

    tokens: shape (n,), a reading beside what is stated, at each step of the run; None: nothing else is read.
    """

    stated: FloatArray
    chance: FloatArray
    success: BoolArray
    calls: BoolArray
    task: npt.NDArray[np.int64]
    told: bool = True
    tokens: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.success)

    def token(self, place: int) -> float | None:
        """The reading beside what one run states."""
        return None if self.tokens is None else float(self.tokens[place])

    def take(self, chosen: npt.ArrayLike) -> Runs:
        at = np.asarray(chosen)
        parts = {name: getattr(self, name)[at] for name in ("stated", "chance", "success", "calls", "task")}
        return replace(self, **parts, tokens=None if self.tokens is None else self.tokens[at])


@dataclass(frozen=True, kw_only=True)
class World:
    """An agent that states s in [0, 1] and succeeds with a chance that rises from skill[0] at s = 0 to skill[1] at 1.

    others: the same of runs that call nothing irreversible (None: as all others). calls: share of runs that call. shy:
    runs that call state u ** shy, u uniform, the others u. trials: runs a task. alike: with this chance a task decides
    for all its trials: statement, call and outcome. prone: every other task always calls, and mostly fails; the rest
    calls in one of four trials, and mostly succeeds. digits: to which it rounds what it states: models say round
    numbers. cut: where the chance jumps at once, None: it rises. steps: of the model, before the call; all but the last
    state s and a little noise. told: whether the recording names the task. tokens: they are read too, s with this much
    noise.
    """

    skill: tuple[float, float] = (0.35, 0.95)
    others: tuple[float, float] | None = None
    calls: float = 1.0
    shy: float = 1.0
    trials: int = 1
    alike: float = 0.0
    prone: bool = False
    steps: int = 1
    digits: int = 6
    cut: float | None = None
    told: bool = True
    tokens: float | None = None

    def draw(self, rng: np.random.Generator, n: int) -> Runs:
        """n runs, the trials of a task one after the other."""
        tasks = -(-n // self.trials)
        task = np.repeat(np.arange(tasks), self.trials)[:n]
        shared = (rng.random(tasks) < self.alike)[task]

        def uniform() -> FloatArray:
            return np.where(shared, rng.random(tasks)[task], rng.random(n))

        bad = rng.random(tasks)[task] < 0.5
        u, sends = uniform(), uniform() < (np.where(bad, 1.0, 0.25) if self.prone else self.calls)
        s = np.round(np.where(sends, u**self.shy, u), self.digits)
        chance = self.chance(s, sends)
        if self.prone:
            chance = np.where(bad, 0.5, 1.0) * (1.0 - 0.05 * (1.0 - s))
        noise = rng.normal(0.0, 0.02, (n, self.steps - 1))
        stated = np.column_stack([np.clip(s[:, None] + noise, 0.0, 1.0), s])
        success = uniform() < chance
        read = None if self.tokens is None else np.clip(s + rng.normal(0.0, self.tokens, n), 0.0, 1.0)
        return Runs(stated=stated, chance=chance, success=success, calls=sends, task=task, told=self.told, tokens=read)

    def chance(self, s: FloatArray, sends: BoolArray) -> FloatArray:
        """The chance of success of runs that state s."""
        low, high = np.where(sends[:, None], self.skill, self.others or self.skill).T
        return low + (high - low) * (s if self.cut is None else s >= self.cut)


class Kept:
    """A processor that keeps what a recording would hold."""

    def __init__(self) -> None:
        self.lines: list[str | bytes] = []

    def on_event(self, event: Event) -> None:
        self.lines.append(encode(event, content="full"))

    def text(self) -> bytes:
        """The recording."""
        return b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in self.lines)


def _commit(session: Session, stated: Sequence[float], calls: bool, tokens: float | None = None) -> tuple[bool, bool]:
    """Take a run's steps; whether it was stopped before it could call or by an alarm at it; and whether it called."""
    stopped = False
    beside = [] if tokens is None else [Reading(source="token_probability", value=tokens)]
    for index, value in enumerate(stated):
        step = Step(step_id=f"s{index}", kind="llm_call", time_s=0.0)
        stopped |= session.commit(step, [Reading(source="verbalized", value=float(value)), *beside]).action.stops
    if not calls:
        return stopped, False
    seen = session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(CALL,)), ())
    return stopped or seen.rule == "detector", not seen.action.stops


def record(path: Path, runs: Runs, labelled: npt.ArrayLike | None = None, name: str = "r") -> Path:
    """Write runs as a monitor that only advises records them; those that are not labelled have ended, no more."""
    known = np.ones(len(runs), dtype=bool) if labelled is None else np.asarray(labelled)
    kept = Kept()
    monitor = UncertaintyMonitor(policy=POLICY, processors=[kept], advisory=True)
    for i in range(len(runs)):
        told = {"task_id": f"{name}{runs.task[i]}"} if runs.told else {}
        session = monitor.session(f"{name}-{i}", "a", metadata=told, **FITTING)
        _commit(session, runs.stated[i], bool(runs.calls[i]), runs.token(i))
        session.finish(Outcome(success=bool(runs.success[i]) if known[i] else None))
    path.write_bytes(kept.text())
    return path


def act(profile: ProfileArtifact, path: Path, runs: Runs, *, let_through: float, seed: int) -> Path:
    """Record runs under a profile that acts: what it stops has no outcome, what is let through at random has one."""
    kept = Kept()
    monitor = UncertaintyMonitor(profile=profile, processors=[kept], exploration=Exploration(let_through, seed=seed))
    for i in range(len(runs)):
        session = monitor.session(f"acted-{seed}-{i}", "a", **FITTING)
        stopped, _ = _commit(session, runs.stated[i], False, runs.token(i))
        reason = StopReason.MONITOR_STOP if stopped else StopReason.CLEAN
        session.finish(Outcome(success=None if stopped else bool(runs.success[i]), stop_reason=reason))
    path.write_bytes(kept.text())
    return path


@dataclass(frozen=True, kw_only=True)
class Live:
    """What a profile did with fresh runs: paused before the call or by an alarm at it, let the call go ahead."""

    paused: BoolArray
    released: BoolArray


def live(profile: ProfileArtifact | Profile, runs: Runs, name: str = "live") -> Live:
    """Take fresh runs through sessions under a profile that acts."""
    monitor = UncertaintyMonitor(profile=profile)
    told = []
    for i in range(len(runs)):
        session = monitor.session(f"{name}-{i}", "a", **FITTING)
        told.append(_commit(session, runs.stated[i], bool(runs.calls[i]), runs.token(i)))
    paused, released = np.array(told, dtype=bool).reshape(-1, 2).T
    return Live(paused=paused, released=released)
