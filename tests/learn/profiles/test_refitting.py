"""Refitting on runs that an acting monitor touched: what is left out, what counts how much, and that it sums up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grampus_uq import (
    Effect,
    Exploration,
    Outcome,
    Reading,
    Step,
    StopReason,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.core.state import Profile
from grampus_uq.learn.eligibility import eligibility
from grampus_uq.learn.fit.detector import fit_detector
from grampus_uq.learn.fit.streams import read_detector_runs
from grampus_uq.learn.profiles.labelled import labelled_runs
from grampus_uq.recording import RecordingProcessor, runs
from grampus_uq.stats.eprocess_thresholds import Mode

RHO = 0.25
POLICY = UncertaintyPolicy(irreversible_tool_names=["send"])


def live(folder: Path, n: int, *, let_through: float = RHO, seed: int = 0, **monitor: object) -> float:
    """Runs under an acting monitor, the worse ones often stopped at a step of the model; returns the true share."""
    rng = np.random.default_rng(seed)
    good = 0
    with RecordingProcessor(folder) as recorder:
        watch = UncertaintyMonitor(
            policy=POLICY, processors=[recorder], exploration=Exploration(let_through), **monitor
        )
        for number in range(n):
            chance = rng.random()
            success = bool(rng.random() < chance)
            good += success
            session = watch.session(f"r{number}")
            stopped = False
            for index in range(3):
                value = float(np.clip(0.3 + 0.9 * chance, 0.0, 1.0))
                step = Step(step_id=f"s{index}", kind="llm_call", time_s=0.0)
                stopped = stopped or session.commit(step, [Reading(source="verbalized", value=value)]).action.stops
            reason = StopReason.MONITOR_STOP if stopped else StopReason.CLEAN
            session.finish(Outcome(success=None if stopped else success, stop_reason=reason))
    return good / n


@pytest.mark.slow
def test_weighted_by_their_draw_the_runs_that_remain_stand_for_all_and_unweighted_they_flatter(tmp_path: Path) -> None:
    truth = live(tmp_path, 1500)
    read = labelled_runs(tmp_path, Profile(policy=POLICY))
    assert read.excluded["stopped_by_monitor"] > 200
    assert sum(read.counts.values()) == 1500
    assert set(np.unique(read.weights)) == {1.0, 1.0 / RHO}
    assert read.weights.sum() == pytest.approx(1500, rel=0.06)
    weighted = float(np.average(read.success, weights=read.weights))
    assert weighted == pytest.approx(truth, abs=0.04)
    assert read.success[read.weights == 1.0].mean() > truth + 0.1  # naive: what was let pass alone


def test_the_detector_is_fitted_on_the_same_runs_with_the_same_weights(tmp_path: Path) -> None:
    live(tmp_path, 150)
    columns, scored = labelled_runs(tmp_path, Profile(policy=POLICY)), read_detector_runs([str(tmp_path)], ["fused"])
    assert scored.excluded == columns.excluded
    assert sorted(scored.weights.tolist()) == sorted(columns.weights.tolist())
    assert int(scored.success.sum()) == int(columns.success.sum())


def test_a_rare_release_that_drew_nobody_promises_no_more_than_one_that_did(tmp_path: Path) -> None:
    """The runs that would have been stopped are missing either way: PAC, or a threshold of theirs, would be too low."""
    live(tmp_path, 80, let_through=1e-6)
    read, scored = labelled_runs(tmp_path, Profile(policy=POLICY)), read_detector_runs([str(tmp_path)], ["fused"])
    assert (read.weights == 1.0).all()
    assert read.excluded["stopped_by_monitor"] > 0
    for runs_of in (scored, read.detector_runs({"fused": read.streams["fused"]}, at_calls=False)):
        threshold = fit_detector(runs_of, rng=np.random.default_rng(0), alpha=0.2, delta=0.1).detector.threshold
        assert (threshold.mode, threshold.log_value) == (Mode.CONFORMAL, np.inf)
        assert threshold.shortage.startswith("4000000 ")


def test_without_a_random_release_nothing_is_weighted(tmp_path: Path) -> None:
    live(tmp_path, 80, let_through=0.0)
    read = labelled_runs(tmp_path, Profile(policy=POLICY))
    assert (read.weights == 1.0).all()
    assert read.excluded["stopped_by_monitor"] > 0


def test_advisory_runs_all_count_once_whatever_would_have_been_done(tmp_path: Path) -> None:
    live(tmp_path, 80, let_through=0.0, advisory=True)
    read = labelled_runs(tmp_path, Profile(policy=POLICY))
    assert len(read) == 80
    assert (read.weights == 1.0).all()


def one(folder: Path, name: str, *, value: float = 0.9, call: ToolCall | None = None, **given: object):
    """One run, and what it may be used for."""
    effect = given.pop("effect", None)
    decide = given.pop("decide", False)
    outcome = given.pop("outcome", Outcome(success=True))
    with RecordingProcessor(folder) as recorder:
        session = UncertaintyMonitor(policy=POLICY, processors=[recorder], **given).session(name)
        session.commit(Step(step_id="s", kind="llm_call", time_s=0.0), [Reading(source="verbalized", value=value)])
        if call is not None:
            session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(call,), effect=effect), ())
        if decide:
            session.record_decision("approve", principal="ana")
        if outcome is not None:
            session.finish(outcome)
    [run] = [run for run in runs(folder) if run.session_id == name]
    return eligibility(run)


@pytest.mark.parametrize(
    ("name", "given", "reason", "weight"),
    [
        ("clean", {"value": 1.0}, "", 1.0),
        ("stopped", {"value": 0.0}, "stopped_by_monitor", 1.0),
        ("drawn", {"value": 0.0, "exploration": Exploration(1.0)}, "", 1.0),
        ("at a call", {"value": 0.8, "call": ToolCall(name="send_mail")}, "stopped_at_call", 1.0),
        (
            "by effect",
            {"value": 0.8, "call": ToolCall(name="x"), "effect": Effect.IRREVERSIBLE},
            "stopped_at_call",
            1.0,
        ),
        (
            "drawn, at a call",
            {"value": 0.0, "call": ToolCall(name="send_mail"), "exploration": Exploration(1.0)},
            "stopped_at_call",
            1.0,
        ),
        ("decided", {"value": 1.0, "decide": True}, "human_decided", 1.0),
        ("open", {"value": 1.0, "outcome": None}, "no_outcome", 1.0),
        ("unknown", {"value": 1.0, "outcome": Outcome(success=None)}, "no_outcome", 1.0),
        (
            "budget",
            {"value": 1.0, "outcome": Outcome(success=None, stop_reason=StopReason.MAX_STEPS)},
            "max_steps",
            1.0,
        ),
        (
            "error",
            {"value": 1.0, "outcome": Outcome(success=False, stop_reason=StopReason.TOOL_ERROR)},
            "tool_error",
            1.0,
        ),
        ("advisory", {"value": 0.0, "advisory": True}, "", 1.0),
    ],
)
def test_every_run_is_kept_for_what_it_is_or_left_out_for_a_named_reason(
    tmp_path: Path, name: str, given: dict, reason: str, weight: float
) -> None:
    found = one(tmp_path, name, **given)
    assert (found.reason, found.weight) == (reason, weight)
    assert found.usable is (not reason)
