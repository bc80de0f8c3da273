"""A run that did not end by itself is left out whatever its label, and every promise says so: it may be false of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Outcome, StopReason, UncertaintyMonitor
from grampus_uq.cli import _group
from grampus_uq.learn.eligibility import about_the_others
from grampus_uq.learn.profiles import FitOptions, fit_profile
from tests.guarantees.worlds import BASE, FITTING, POLICY, Kept, Runs, World, _commit, live
from tests.sampling import crossed

OTHERWISE = [reason for reason in StopReason if reason.informative or reason is StopReason.MAX_STEPS]
AGENT = World(skill=(0.5, 0.9))


def record(path: Path, runs: Runs, ends: StopReason, name: str) -> int:
    """Every run has a label; four in five of those that fail end so. Says how many."""
    kept, rng, others = Kept(), np.random.default_rng(3), 0
    monitor = UncertaintyMonitor(policy=POLICY, processors=[kept], advisory=True)
    for i, success in enumerate(runs.success.tolist()):
        session = monitor.session(f"{name}{i}", "a", metadata={"task_id": f"{name}{i}"}, **FITTING)
        _commit(session, runs.stated[i], True)
        broken = not success and rng.random() < 0.8
        others += broken
        session.finish(Outcome(success=success, stop_reason=ends if broken else StopReason.CLEAN))
    path.write_bytes(kept.text())
    return others


@crossed(
    "ends,options",
    OTHERWISE,
    [FitOptions(wrong_releases=0.1), FitOptions(accuracy=0.8, assurance=0.0), FitOptions(pause_share=0.2)],
)
def test_each_promise_names_the_runs_that_did_not_end_by_themselves(
    tmp_path: Path, ends: StopReason, options: FitOptions
) -> None:
    others = record(tmp_path / "r.jsonl", AGENT.draw(np.random.default_rng(0), 160), ends, "r")
    fit = fit_profile(tmp_path, base=BASE, options=options)
    promises = [part.promise for part in fit.parts if part.promise]
    assert len(promises) == 2
    assert all(f"({ends.value} {others})" in promise for promise in promises)


@pytest.mark.slow
def test_of_all_runs_more_go_out_wrong_than_is_promised_of_the_others(tmp_path: Path) -> None:
    """What the sentence is there for: the failures that are left out are not in the budget."""
    for seed in range(3):
        rng = np.random.default_rng([5, seed])
        record(tmp_path / "r.jsonl", AGENT.draw(rng, 200), StopReason.TOOL_ERROR, f"c{seed}-")
        fit = fit_profile(tmp_path, base=BASE, options=FitOptions(wrong_releases=0.1, detector=False, seed=seed))
        fresh = AGENT.draw(rng, 300)
        told = live(fit.artifact, fresh, name=f"f{seed}")
        assert ((1.0 - fresh.chance) * told.released).mean() > 0.1


@given(st.dictionaries(st.sampled_from(["", "no_outcome", "superseded", "no_step_of_the_model"]), st.integers(0, 9)))
def test_runs_that_only_lack_a_label_or_a_step_are_not_said_to_be_left_out(reasons: dict[str, int]) -> None:
    assert about_the_others(reasons | {"tool_error": 0}) == ""
    assert "(tool_error 3)" in about_the_others(reasons | {"tool_error": 3})


def test_a_budget_says_how_many_of_its_runs_were_stopped_before_their_end(tmp_path: Path) -> None:
    """They count as far as they went, so that more are interrupted than a run that goes on would be."""
    kept = Kept()
    for number, advisory in enumerate([False] * 40 + [True] * 10):
        monitor = UncertaintyMonitor(policy=POLICY, processors=[kept], advisory=advisory)
        session = monitor.session(f"r{number}", "a", metadata={}, **FITTING)
        stopped, _ = _commit(session, [0.3], False)
        reason = StopReason.MONITOR_STOP if stopped else StopReason.CLEAN
        session.finish(Outcome(success=None, stop_reason=reason))
    (tmp_path / "r.jsonl").write_bytes(kept.text())
    done = CliRunner().invoke(
        _group, ["fit", str(tmp_path), "--budget", "0.1", "-o", str(tmp_path / "p.json"), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert "Of the recorded runs 40 were stopped before their end" in done.stdout
