"""What learns looks at the turn that proposes the first irreversible call; without such a call at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grampus_uq import ConfigurationError, Outcome, Reading, SessionState, Step, ToolCall, UncertaintyMonitor
from grampus_uq.core.engine import advance
from grampus_uq.core.state import Profile
from grampus_uq.learn.evaluate import evaluate, read_recordings
from grampus_uq.learn.fit.fit_calibration import fit_fusion
from grampus_uq.learn.fit.streams import finished_in_recordings, read_detector_runs
from grampus_uq.learn.fit.task_draws import held_out_runs
from grampus_uq.learn.profiles import FitOptions, fit_profile
from grampus_uq.learn.profiles.labelled import labelled_runs
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording import runs as runs_in
from grampus_uq.stats.eprocess import log_peaks
from grampus_uq.stats.trajectory_scores import ForecastTraces
from tests.learn.profiles.recorded import HASH, POLICY

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")

BASE = Profile(policy=POLICY)
CALL = ToolCall(name="send_mail")
FITTING: dict[str, Any] = {"model": "m", "prompt_hash": HASH, "tools_hash": HASH}


def play(
    monitor: UncertaintyMonitor,
    name: str,
    values: list[float],
    *,
    calls: bool = True,
    after: int = 0,
    task: str | None = None,
) -> Any:
    """A run that reads these values, one a turn; it calls after the last but `after` of them."""
    session = monitor.session(name, "a", metadata={"task_id": task} if task else {}, **FITTING)
    asking, verdict = len(values) - 1 - after, None
    for index, value in enumerate(values):
        proposes = calls and index == asking
        step = Step(step_id=f"s{index}", kind="llm_call", time_s=0.0, tool_calls=(CALL,) if proposes else ())
        session.commit(step, [Reading(source="token_probability", value=value)])
        if proposes:
            verdict = session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(CALL,)), ())
    return session, verdict


def record(folder: Path, n: int = 120, *, early: int = 0, calls: bool = True, seed: int = 0, prefix: str = "r") -> Path:
    """The last reading but one tells how a run ends; the last and the earlier ones (drawn from `early`) do not."""
    rng, other = np.random.default_rng(seed), np.random.default_rng(early)
    with RecordingProcessor(folder) as recorder:
        monitor = UncertaintyMonitor(policy=POLICY, processors=[recorder], advisory=True)
        for i in range(n):
            telling = float(rng.random())
            values = [*other.random(3).tolist(), telling, float(other.random())]
            session, _ = play(monitor, f"{prefix}{i}", values, calls=calls, after=1)
            session.finish(Outcome(success=bool(rng.random() < (0.05 + 0.9 * telling))))
    return folder


def part(fit: Any, name: str) -> Any:
    (found,) = [part for part in fit.parts if part.name == name]
    return found


def test_what_a_call_is_released_by_is_learned_from_the_turns_that_propose_one(tmp_path: Path) -> None:
    """Steps around the call teach nothing: with other readings there the profile is the same to the last digit."""
    fits = [fit_profile(record(tmp_path / str(early), early=early), base=BASE) for early in (1, 2)]
    first, second = (fit.artifact.profile.calibration for fit in fits)
    assert first == second
    assert part(fits[0], "p_success").figures["auroc"] > 0.75
    taught = fits[0].splits["learn"]
    assert f"{taught} of them at the turn that proposes" in part(fits[0], "p_success").why
    assert part(fits[0], "stream token_probability").why == "It says more than the success rate does."


def test_runs_without_an_irreversible_call_teach_by_all_their_steps(tmp_path: Path) -> None:
    folder = record(tmp_path, calls=False)
    fit, runs = fit_profile(folder, base=BASE), labelled_runs(folder, BASE)
    learned = ~held_out_runs(runs.tasks, runs.success, FitOptions().held_out, np.random.default_rng(0))
    every = ForecastTraces(forecasts=runs.streams["token_probability"], lengths=runs.lengths).select(learned)
    assert fit.artifact.profile.calibration == fit_fusion({"token_probability": every}, runs.success[learned])
    assert "proposes" not in part(fit, "p_success").why


def test_each_run_teaches_by_what_it_is_judged_by_in_recordings_of_both_kinds(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(policy=POLICY, processors=[recorder], advisory=True)
        for name, calls in (("a", True), ("b", False)):
            session, _ = play(monitor, name, [0.1, 0.2, 0.3], calls=calls, after=1)
            session.finish(Outcome(success=calls))
    runs = labelled_runs(tmp_path, BASE)
    assert dict(zip(runs.ids, runs.has_call.tolist(), strict=True)) == {"a": True, "b": False}
    at = runs.at_moments("token_probability", np.ones(2, dtype=bool))
    by_run = dict(zip(runs.ids, np.split(at.forecasts, np.cumsum(at.lengths)[:-1]), strict=True))
    assert by_run["a"].tolist() == [0.2]
    assert by_run["b"].tolist() == [0.1, 0.2, 0.3]


def test_a_call_is_learned_from_the_turn_that_proposed_it_not_from_one_beside_it(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        session = UncertaintyMonitor(policy=POLICY, processors=[recorder], advisory=True).session("r", "a", **FITTING)
        mine, other = ToolCall(id="1", name="send_mail"), ToolCall(id="2", name="look")
        for name, call, value in (("s0", mine, 0.3), ("s1", other, 0.9)):
            step = Step(step_id=name, kind="llm_call", time_s=0.0, tool_calls=(call,))
            session.commit(step, [Reading(source="token_probability", value=value)])
        session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(mine,)), ())
        session.finish(Outcome(success=True))
    runs = labelled_runs(tmp_path, BASE)
    assert runs.at_ask(runs.streams["token_probability"]).tolist() == [0.3]


def test_an_evaluation_ranks_streams_at_the_call_where_the_recording_or_the_profile_tells_which_calls(
    tmp_path: Path,
) -> None:
    folder = record(tmp_path)
    runs = read_recordings(folder, profile=BASE)
    assert (read_recordings(folder).asks == runs.asks).all()  # the recording holds the policy that named the tool
    assert (runs.asks >= 0).all()
    found = evaluate(runs, rng=np.random.default_rng(0), draws=50)
    first = found.table[0]
    assert (first.scalar, first.runs) == ("at the call", 120)
    over_the_run = max(
        r.auroc for r in found.table if r.stream == "token_probability" and r.scalar == "front-weighted mean"
    )
    assert first.auroc > over_the_run + 0.1


def test_the_live_decision_reads_at_the_call_what_was_fitted_there(tmp_path: Path) -> None:
    """Recordings in, sessions live: a call goes ahead exactly where its turn's chance in the fit reaches the rule's."""
    folder = record(tmp_path / "fitted")
    fit = fit_profile(folder, base=BASE, options=FitOptions(pause_share=0.3, detector=False))
    profile = fit.artifact.profile
    assert profile.release is not None
    assert profile.calibration is not None
    rng = np.random.default_rng(5)
    monitor = UncertaintyMonitor(profile=fit.artifact)
    told = set()
    for i in range(60):
        values = np.round(rng.random(4), 1).tolist()
        _, verdict = play(monitor, f"live{i}", values)
        chance = profile.calibration({"token_probability": values[-1]})
        assert chance is not None
        told.add(verdict.action.stops)
        assert verdict.action.stops == (chance < profile.release.at_least)
    assert told == {True, False}


@pytest.mark.slow
def test_a_detector_looks_at_calls_where_half_of_the_runs_have_one_and_live_as_it_was_fitted(tmp_path: Path) -> None:
    """The evidence of each recorded run, taken live, is bit for bit that of its calls in the columns."""
    fit = fit_profile(record(tmp_path, 200), base=BASE, options=FitOptions(false_alarms=0.2))
    profile = fit.artifact.profile
    detector = profile.detector
    assert detector is not None
    assert detector.at_calls
    assert "of runs without one it says nothing" in part(fit, "detector").promise
    judged = profile.model_copy(update={"detector": None})
    data = read_detector_runs([str(tmp_path)], detector.streams, profile=judged, at_calls=True)
    peaks = dict(zip(data.ids, log_peaks(detector, data.blocks), strict=True))
    replayed, stopped = {}, {}
    for number, run in enumerate(runs_in(tmp_path)):
        state = SessionState(session_id=run.session_id)
        for event in run.steps:
            state, seen = advance(profile, state, event.step, event.readings)
            stopped[run.session_id] = stopped.get(run.session_id, False) or seen.rule == "detector"
            assert event.step.kind == "tool_call" or not seen.action.stops
        assert state.alarm is not None
        replayed[f"{run.session_id}#{number}"] = state.alarm.evidence.log_peak
    assert replayed == peaks
    good = {run.session_id: run.outcome.success for run in runs_in(tmp_path) if run.outcome is not None}
    bad = [stopped[name] for name, success in good.items() if not success]
    fine = [stopped[name] for name, success in good.items() if success]
    assert np.mean(bad) > np.mean(fine) + 0.25


@pytest.mark.parametrize(("gaps", "stream"), [(0, "call_probability"), (1, "unaided")])
def test_few_labels_rank_by_the_calls_own_probability_unless_a_call_lacks_it(
    tmp_path: Path, gaps: int, stream: str
) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(policy=POLICY, processors=[recorder], advisory=True)
        for i in range(20):
            session = monitor.session(f"r{i}", "a", **FITTING)
            own = [] if i < gaps else [Reading(source="call_probability", value=0.9 if i < 15 else 0.1)]
            spoken = Reading(source="token_probability", value=0.8 if i < 15 else 0.4)
            session.commit(Step(step_id="s0", kind="llm_call", time_s=0.0), [spoken])
            proposal = Step(step_id="s1", kind="llm_call", time_s=0.0, tool_calls=(CALL,))
            session.commit(proposal, [spoken, *own])
            session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(CALL,)), ())
            session.finish(Outcome(success=i < 15))
    options = FitOptions(wrong_releases=0.1, false_alarms=0.2, assurance=0.0)
    profile = fit_profile(tmp_path, base=BASE, options=options).artifact.profile
    assert profile.calibration is not None
    assert profile.detector is not None
    assert profile.calibration.moved_by == (stream,)
    assert profile.detector.streams == (stream,)


def test_runs_that_seldom_call_and_a_wish_keep_every_step_under_the_detectors_eye(tmp_path: Path) -> None:
    seldom = record(tmp_path / "seldom", 80, calls=False)
    record(tmp_path / "seldom", 30, seed=1, prefix="c")
    asked = record(tmp_path / "calls", 80)
    for folder, at, looks in ((seldom, None, False), (seldom, "calls", True), (asked, "steps", False)):
        options = FitOptions(false_alarms=0.3, assurance=0.0, detector_at=at)
        detector = fit_profile(folder, base=BASE, options=options).artifact.profile.detector
        assert detector is not None
        assert detector.at_calls is looks
    with pytest.raises(ConfigurationError, match="detector_at"):
        FitOptions(detector_at="turns")  # type: ignore[arg-type]


def test_a_run_that_calls_nothing_irreversible_takes_part_in_its_tasks_draw_and_in_nothing_else(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(policy=POLICY, processors=[recorder], advisory=True)
        for name, calls in (("a", True), ("b", False), ("c", True)):
            session, _ = play(monitor, name, [0.2, 0.6], calls=calls, task="t" if name != "c" else "u")
            session.finish(Outcome(success=True))
    data = read_detector_runs([str(tmp_path)], ["token_probability"], profile=BASE)
    assert data.at_calls
    assert data.values.ravel().tolist() == [0.6, 0.6]
    assert data.others == {"t": 1}
    every = labelled_runs(tmp_path, BASE)
    mine = every.detector_runs({"x": every.streams["token_probability"]}, at_calls=True)
    assert (mine.ids, mine.values.ravel().tolist(), mine.others) == (("a", "c"), [0.6, 0.6], {"t": 1})


def test_a_finished_run_without_a_call_is_none_of_those_that_the_watch_ranks(tmp_path: Path) -> None:
    detector = fit_profile(record(tmp_path / "f"), base=BASE, options=FitOptions(false_alarms=0.3)).artifact.profile
    record(tmp_path / "more", 3)
    record(tmp_path / "more", 4, calls=False, prefix="n")
    found = {run.run_id: run.log_peak for run in finished_in_recordings([tmp_path / "more"], detector)}
    assert set(found) == {"r0", "r1", "r2"}
    assert all(np.isfinite(peak) for peak in found.values())
