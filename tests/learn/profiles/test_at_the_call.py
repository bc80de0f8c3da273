"""What learns looks at the turn that proposes the first irreversible call; without such a call at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grampus_uq import Outcome, Reading, Step, ToolCall, UncertaintyMonitor
from grampus_uq.core.state import Profile
from grampus_uq.learn.evaluate import evaluate, read_recordings
from grampus_uq.learn.fit.fit_calibration import fit_fusion
from grampus_uq.learn.fit.task_draws import held_out_runs
from grampus_uq.learn.profiles import FitOptions, fit_profile
from grampus_uq.learn.profiles.labelled import labelled_runs
from grampus_uq.recording import RecordingProcessor
from grampus_uq.stats.trajectory_scores import ForecastTraces
from tests.learn.profiles.recorded import HASH, POLICY

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")

BASE = Profile(policy=POLICY)
CALL = ToolCall(name="send_mail")
FITTING: dict[str, Any] = {"model": "m", "prompt_hash": HASH, "tools_hash": HASH}


def play(monitor: UncertaintyMonitor, name: str, values: list[float], *, calls: bool = True, after: int = 0) -> Any:
    """A run that reads these values, one a turn; it calls after the last but `after` of them."""
    session = monitor.session(name, "a", **FITTING)
    asking, verdict = len(values) - 1 - after, None
    for index, value in enumerate(values):
        proposes = calls and index == asking
        step = Step(step_id=f"s{index}", kind="llm_call", time_s=0.0, tool_calls=(CALL,) if proposes else ())
        session.commit(step, [Reading(source="token_probability", value=value)])
        if proposes:
            verdict = session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(CALL,)), ())
    return session, verdict


def record(folder: Path, n: int = 120, *, early: int = 0, calls: bool = True, seed: int = 0) -> Path:
    """The last reading but one tells how a run ends; the last and the earlier ones (drawn from `early`) do not."""
    rng, other = np.random.default_rng(seed), np.random.default_rng(early)
    with RecordingProcessor(folder) as recorder:
        monitor = UncertaintyMonitor(policy=POLICY, processors=[recorder], advisory=True)
        for i in range(n):
            telling = float(rng.random())
            values = [*other.random(3).tolist(), telling, float(other.random())]
            session, _ = play(monitor, f"r{i}", values, calls=calls, after=1)
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
    assert (read_recordings(folder).asks == -1).all()  # the name alone: only the profile's policy tells
    runs = read_recordings(folder, profile=BASE)
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
