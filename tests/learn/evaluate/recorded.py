"""Recordings of runs whose confidence is known, for the tests and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from grampus_uq.core.engine import advance
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.recording import encode
from grampus_uq.records.events import Event, ObservationEvent, OutcomeEvent, SessionStarted, StepEvent
from grampus_uq.records.values import Outcome, Reading, Step, ToolCall
from grampus_uq.records.vocabulary import StopReason

SECRET = "a sentence that only the model and the user may know"


def events(
    session_id: str,
    steps: Sequence[Mapping[str, float | None]],
    success: bool | None,
    *,
    stop: StopReason = StopReason.CLEAN,
    labelled_by: str | None = None,
    profile: Profile | None = None,
    tools: bool = False,
    failed_tools: bool = False,
    ended: bool = True,
) -> list[Event]:
    """One run: a mapping of readings a step of the model (None: missing), each perhaps followed by its tool call."""
    profile = profile or Profile(advisory=True)
    state = SessionState(session_id=session_id, agent_id="a")
    found: list[Event] = [
        SessionStarted(session_id=session_id, agent_id="a", time_s=0.0, model="m", advisory=profile.advisory)
    ]
    call = ToolCall(id="c", name="search", arguments={"q": SECRET})
    for number, values in enumerate(steps):
        readings = tuple(
            Reading(source=source, value=value, reason=None if value is not None else "timeout")
            for source, value in values.items()
        )
        said = Step(step_id=f"s{number}", kind="llm_call", time_s=1.0 + number, text=SECRET, tool_calls=(call,) * tools)
        for step, read in [(said, readings)] + [(Step(step_id="t", kind="tool_call", time_s=2.0), ())] * tools:
            state, assessment = advance(profile, state, step, read)
            found.append(
                StepEvent(
                    session_id=session_id,
                    agent_id="a",
                    step=step,
                    readings=read,
                    assessment=assessment,
                    started_ns=0,
                    ended_ns=1,
                )
            )
        if tools:
            found.append(
                ObservationEvent(
                    session_id=session_id,
                    agent_id="a",
                    kind="tool_result",
                    text=SECRET,
                    call_id="c",
                    is_error=failed_tools,
                )
            )
    if ended:
        outcome = Outcome(success=success, stop_reason=stop, labelled_by=labelled_by)
        found.append(OutcomeEvent(session_id=session_id, agent_id="a", outcome=outcome))
    return found


def write(path: Path, *runs: Sequence[Event]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode(event) for run in runs for event in run))


def many(n: int, rng: np.random.Generator, names: Sequence[str] = ("verbalized", "p_true")) -> list[list[Event]]:
    """n labelled runs: the first stream knows something, the others are noise; one in eight reached its budget."""
    found = []
    for number in range(n):
        chance = rng.random()
        success = bool(rng.random() < chance)
        steps = []
        for _ in range(1 + int(rng.integers(5))):
            values: dict[str, float | None] = {
                name: float(np.clip(chance + rng.normal(0, 0.15), 0, 1)) if i == 0 else float(np.round(rng.random(), 1))
                for i, name in enumerate(names)
            }
            steps.append(values)
        capped = number % 8 == 0
        found.append(
            events(
                f"run-{number:04}",
                steps,
                None if capped else success,
                stop=StopReason.MAX_STEPS if capped else StopReason.CLEAN,
                tools=True,
                failed_tools=not success,
            )
        )
    return found
