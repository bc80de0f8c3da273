"""Two profiles on the same runs: the same profile differs from itself by nothing, a better one by what it is worth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from grampus_uq import DataError, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.cli import _group
from grampus_uq.core.state import Profile
from grampus_uq.learn.profiles import FitOptions, counterfactual, fit_profile
from grampus_uq.learn.profiles.comparing import Comparison, compare_profiles
from grampus_uq.recording import RecordingProcessor, runs
from grampus_uq.recording.artifacts import ProfileArtifact, save
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.trajectory_scores import ForecastTraces, tps, weighted_forecast
from tests.learn.profiles.recorded import POLICY, one_run, record
from tests.learn.profiles.test_refitting import live
from tests.sampling import sampled

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")

GUIDE = Profile(policy=POLICY)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fit")
    record(path, 200, 21)
    return path


@pytest.fixture(scope="module")
def fitted(known: Path) -> ProfileArtifact:
    return fit_profile(known, base=GUIDE, options=FitOptions(accuracy=0.85, detector=False)).artifact


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fresh")
    record(path, 150, 22)
    return path


def compared(path: Path, first: Profile, second: Profile, draws: int = 300) -> Comparison:
    return compare_profiles(path, first, second, rng=np.random.default_rng(0), draws=draws)


@pytest.mark.slow
def test_a_profile_does_not_differ_from_itself(fitted: ProfileArtifact, fresh: Path) -> None:
    for row in compared(fresh, fitted.profile, fitted.profile).rows:
        assert row.first == row.second
        assert (row.delta, row.low, row.high) == (0.0, 0.0, 0.0)


def test_the_measures_are_those_of_the_library_on_the_same_runs(fitted: ProfileArtifact, fresh: Path) -> None:
    found = {row.measure: row for row in compared(fresh, GUIDE, fitted.profile).rows}
    scored = compared(fresh, fitted.profile, fitted.profile)
    kept = [run for run in runs(fresh) if run.outcome.success is not None]
    for side, profile in (("first", GUIDE), ("second", fitted.profile)):
        judged = [counterfactual(run, profile) for run in kept]
        held, good = np.array([one.paused for one in judged]), np.array([one.success for one in judged])
        assert getattr(found["share paused"], side) == pytest.approx(held.mean())
        assert getattr(found["false alarms (paused, of successes)"], side) == pytest.approx(held[good].mean())
        assert getattr(found["precision of pauses"], side) == pytest.approx((~good)[held].mean())
        assert getattr(found["right among the rest"], side) == pytest.approx(good[~held].mean())
    judged = [counterfactual(run, fitted.profile) for run in kept]
    traces = ForecastTraces.of([one.p_success for one in judged])
    rows = {row.measure: row.first for row in scored.rows}
    assert rows["TPS log of p_success"] == pytest.approx(tps(traces, good).mean())
    assert rows["AUROC of p_success"] == pytest.approx(auroc(weighted_forecast(traces), good))
    assert not any("p_success" in measure for measure in found)  # the guide's profile has none: nothing to pair


def test_a_profile_that_is_better_is_told_from_the_guide_and_the_interval_holds_the_estimate(
    fitted: ProfileArtifact, fresh: Path
) -> None:
    found = {row.measure: row for row in compared(fresh, GUIDE, fitted.profile).rows}
    row = found["false alarms (paused, of successes)"]
    assert row.delta < 0
    assert row.high < 0
    for row in found.values():
        assert row.low <= row.delta <= row.high


@sampled("n", [200], full=[600])
def test_runs_that_were_let_through_at_random_count_by_their_weight(tmp_path: Path, n: int) -> None:
    live(tmp_path / "acting", n, seed=4)
    live(tmp_path / "advisory", n, seed=4, let_through=0.0, advisory=True)
    truth = {row.measure: row.first for row in compared(tmp_path / "advisory", GUIDE, GUIDE, 2).rows}
    seen = {row.measure: row.first for row in compared(tmp_path / "acting", GUIDE, GUIDE, 2).rows}
    assert seen["share paused"] == pytest.approx(truth["share paused"], abs=0.08)


def test_the_command_compares_artifacts_and_says_when_files_served_a_fit(
    fitted: ProfileArtifact, fresh: Path, tmp_path: Path
) -> None:
    one, two = str(tmp_path / "guide.json"), str(tmp_path / "fitted.json")
    save(ProfileArtifact(profile=GUIDE), one)
    save(fitted, two)
    asked = ["compare", one, two, str(fresh), "--draws", "50"]
    told = json.loads(CliRunner().invoke(_group, [*asked, "--json"], catch_exceptions=False).stdout)
    assert told["profiles"][1] == fitted.fingerprint
    assert told["files_used_in_a_fit"] == 0
    assert told["counts"]["success"] + told["counts"]["failure"] + told["counts"]["max_steps"] == 150
    shown = CliRunner().invoke(_group, asked, catch_exceptions=False)
    assert "share paused" in shown.stdout
    assert "CAUTION" not in shown.stderr


def test_a_kept_p_success_brings_the_runs_that_taught_it_and_one_learned_anew_does_not(
    fitted: ProfileArtifact, known: Path, fresh: Path, tmp_path: Path
) -> None:
    save(ProfileArtifact(profile=GUIDE), tmp_path / "guide.json")
    for keep in (True, False):
        options = FitOptions(keep_p_success=keep, detector=False)
        save(fit_profile(fresh, base=fitted, options=options).artifact, tmp_path / "later.json")
        for folder, used in ((known, 200 if keep else 0), (fresh, 150)):
            asked = ["compare", str(tmp_path / "guide.json"), str(tmp_path / "later.json"), str(folder), "--draws", "2"]
            told = json.loads(CliRunner().invoke(_group, [*asked, "--json"], catch_exceptions=False).stdout)
            assert told["files_used_in_a_fit"] == used


def test_equal_trials_of_a_task_leave_the_interval_as_wide_as_one_of_each(tmp_path: Path) -> None:
    """Taken for independent, four equal trials would halve it."""
    for trials in (1, 4):
        with RecordingProcessor(tmp_path / str(trials)) as recorder:
            watch = UncertaintyMonitor(processors=[recorder], advisory=True, policy=POLICY)
            for task in range(10, 60):
                for trial in range(trials):
                    one_run(watch, f"{task}-{trial}", np.random.default_rng(task), steps=3, task=task)
    lax, strict = (
        Profile(policy=UncertaintyPolicy(low_threshold=high, medium_threshold=high, high_threshold=high))
        for high in (0.4, 0.75)
    )
    one, four = (compared(tmp_path / trials, lax, strict).rows for trials in ("1", "4"))
    assert one[0].low != one[0].high
    for single, many in zip(one, four, strict=True):
        assert (many.delta, many.low, many.high) == pytest.approx((single.delta, single.low, single.high))


def test_runs_without_an_outcome_of_their_own_compare_nothing(tmp_path: Path) -> None:
    record(tmp_path, 3, 1, monitor={"policy": POLICY.model_copy(update={"low_threshold": 1.0, "high_threshold": 1.0})})
    with pytest.raises(DataError, match="outcome"):
        compared(tmp_path, GUIDE, GUIDE)
