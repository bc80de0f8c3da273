"""Recordings of an agent whose chance of success is known: two streams of worth, one of noise, and a last call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from grampus_uq import Outcome, Reading, Step, StopReason, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.recording import RecordingProcessor

POLICY = UncertaintyPolicy(irreversible_tool_names=["send"])
HASH = "0" * 64


def record(
    folder: Path, n: int, seed: int, *, steps: int = 3, tasks: int | None = None, monitor: dict[str, Any] | None = None
) -> list[str]:
    """Record n advisory runs (or with the monitor given) and return their ids; one in twelve reached its budget."""
    rng = np.random.default_rng(seed)
    with RecordingProcessor(folder) as recorder:
        watch = UncertaintyMonitor(processors=[recorder], **(monitor or {"advisory": True, "policy": POLICY}))
        every = range(n)
        return [one_run(watch, f"r{seed}-{i}", rng, steps=steps, task=i % (tasks or n + 1)) for i in every]


def one_run(watch: UncertaintyMonitor, name: str, rng: np.random.Generator, *, steps: int, task: int) -> str:
    """One run: the worse its chance the lower what it states; then it sends, if the monitor lets it."""
    chance = 0.08 if rng.random() < 0.5 else 0.97
    success = bool(rng.random() < chance)
    session = watch.session(name, "a", model="m", prompt_hash=HASH, tools_hash=HASH, metadata={"task_id": f"t{task}"})
    stopped = False
    for index in range(steps):
        stated = float(np.clip(0.55 + 0.4 * chance + rng.normal(0.0, 0.08), 0.0, 1.0))
        drawn = float(np.clip(chance + rng.normal(0.0, 0.35), 0.0, 1.0))
        readings = [Reading(source="verbalized", value=stated), Reading(source="noise", value=rng.random())]
        if rng.random() < 0.8:
            readings.append(Reading(source="token_probability", value=drawn))
        step = Step(step_id=f"s{index}", kind="llm_call", time_s=float(index))
        stopped = stopped or session.commit(step, readings).action.stops
        if stopped:
            break
    if not stopped:
        call = ToolCall(name="send_mail")
        said = session.commit(Step(step_id="t", kind="tool_call", time_s=9.0, tool_calls=(call,)), ())
        stopped = said.action.stops
    reason = StopReason.MONITOR_STOP if stopped else StopReason.MAX_STEPS if rng.random() < 1 / 12 else StopReason.CLEAN
    session.finish(Outcome(success=success if reason is StopReason.CLEAN else None, stop_reason=reason))
    return name
