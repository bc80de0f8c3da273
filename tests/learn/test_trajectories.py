"""Recorded runs as TRACER reads them, and a detector on its risk."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from click.testing import CliRunner

from grampus_uq import Outcome, Profile, TokenLogprob, ToolCall, UncertaintyMonitor
from grampus_uq.cli.backtest_command import command as backtest_command
from grampus_uq.cli.fit_command import command as fit_command
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.learn.fit.backtest import backtest
from grampus_uq.learn.fit.streams import read_detector_runs
from grampus_uq.learn.trajectories import labelled_trajectories, trajectory_of
from grampus_uq.recording import RecordingProcessor, runs
from grampus_uq.recording.artifacts import load, save
from grampus_uq.records.events import DecisionEvent, OutcomeEvent, StepEvent
from grampus_uq.records.vocabulary import StopReason
from grampus_uq.stats.trajectory_risk import TracerParameters
from tests.sampling import sampled

TRACER = TrajectoryRiskSettings()


async def one_run(monitor: UncertaintyMonitor, name: str, *, bad: bool, rng: np.random.Generator) -> None:
    """A run of a support desk; a bad one repeats a call that fails."""
    session = monitor.session(name, "desk", metadata={"task_id": f"task {int(name.split('-')[1]) % 12}"})
    session.observe_user(f"please change booking {name}")
    for turn in range(int(rng.integers(3, 7))):
        again = bad and turn > 1
        call = ToolCall(id=f"c{turn}", name="change", arguments={"booking": name, "n": 1 if again else turn})
        logprob = float(-rng.exponential(1.5 if bad else 0.9))
        tokens = (TokenLogprob(token=" change", logprob=logprob, top=((" change", logprob), (" keep", -2.0))),)
        said = "I will try the change once more" if again else f"Step {turn}: I look at item {int(rng.integers(99))}"
        await session.observe_llm_response(said, f"s{turn}", tool_calls=[call], logprobs=tokens)
        await session.observe_tool_call(call, f"t{turn}")
        session.observe_tool_result(
            call.id, "Error: not possible" if again and rng.random() < 0.7 else f"item {turn} ok"
        )
    session.finish(Outcome(success=not bad, labelled_by="test"))


def recorded(
    folder: Path, count: int, *, content: Any = "full", settings: TrajectoryRiskSettings | None = TRACER
) -> Path:
    rng = np.random.default_rng(11)
    with RecordingProcessor(folder, content=content) as recorder:
        monitor = UncertaintyMonitor(profile=Profile(trajectory_risk=settings, advisory=True), processors=[recorder])
        for number in range(count):
            anyio.run(partial(one_run, monitor, f"run-{number:03}", bad=bool(number % 2), rng=rng))
    return folder


def test_runs_that_were_touched_stopped_or_not_labelled_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "runs", 6)
    kept = list(runs(folder))
    stopped = [
        replace(e, outcome=Outcome(success=False, stop_reason=StopReason.TOOL_ERROR))
        if isinstance(e, OutcomeEvent)
        else e
        for e in kept[0].events
    ]
    unknown = [replace(e, outcome=Outcome(success=None)) if isinstance(e, OutcomeEvent) else e for e in kept[1].events]
    unread = [
        replace(e, trajectory=replace(e.trajectory, reason="timeout"))
        if isinstance(e, StepEvent) and e.trajectory
        else e
        for e in kept[2].events
    ]
    decided = DecisionEvent(session_id=kept[3].session_id, agent_id="desk", decision="approve", principal="ann")
    touched = [*kept[3].events[:4], decided, *kept[3].events[4:]]
    changed = [replace(kept[i], events=tuple(e)) for i, e in enumerate([stopped, unknown, unread, touched])]
    found = labelled_trajectories([*changed, *kept[4:]])
    assert found.excluded == {"human_decided": 1, "no_outcome": 1, "tool_error": 1, "unread_texts": 1}
    assert [run.run_id for run in found.runs] == [run.session_id for run in kept[4:]]


def test_a_trajectory_holds_every_step_of_the_run(tmp_path: Path) -> None:
    (run, *_) = runs(recorded(tmp_path, 1))
    got = trajectory_of(run)
    assert got is not None
    turns = [event for event in run.steps if event.step.kind != "tool_call"]
    assert [step.is_agent for step in got.steps] == [False, *[True] * len(turns)]
    assert all(step.agent_gap is not None for step in got.steps[1:])  # the last one's answer came before the end


@pytest.mark.slow
@sampled("n", [40], full=[120])
def test_a_detector_on_the_risk_brings_tracer_so_that_live_sessions_have_the_stream_too(tmp_path: Path, n: int) -> None:
    folder = recorded(tmp_path / "runs", n)
    out = tmp_path / "profile.json"
    given = [str(folder), "-o", str(out), "--stream", "trajectory_risk", "--false-alarms", "0.3"]
    done = CliRunner().invoke(fit_command, [*given, "--assurance", "0", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    monitor = UncertaintyMonitor(profile=load(out).profile)
    session = monitor.session("live")
    anyio.run(session.observe_llm_response, "hello", "a")
    step = session.belief().step_uncertainties[0]
    assert step.trajectory_risk is not None
    assert step.log_e_value is not None  # the detector had its stream
    own = TrajectoryRiskSettings(parameters=TracerParameters(k=1.0, w=0.0))  # a backtest judges by these
    profile = load(out).profile.model_copy(update={"trajectory_risk": own})
    save(load(out).model_copy(update={"profile": profile}), out)
    done = CliRunner().invoke(backtest_command, [str(out), str(folder), "--json"], catch_exceptions=False)
    assert profile.detector is not None
    for by, equal in ((profile.model_copy(update={"detector": None}), True), (None, False)):
        scores = read_detector_runs([str(folder)], profile.detector.streams, profile=by)
        expected = [json.loads(json.dumps(row.to_json())) for row in backtest(profile.detector, scores)]
        assert (json.loads(done.stdout)["rows"] == expected) == equal
