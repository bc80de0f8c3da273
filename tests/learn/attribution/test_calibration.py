"""From labelled failures to the set of a new one: the promise holds, and cheating is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution import (
    METHODS,
    AttributionMethod,
    FunctionScorer,
    LabelledTrajectory,
    Plan,
    StepScore,
    Trajectory,
    TrajectoryStep,
    attribute,
    calibrate,
    fit_and_calibrate,
    locate,
)
from grampus_uq.learn.attribution.attribute import part_labelled
from grampus_uq.learn.attribution.conditional_logit import fit_step_scorer
from grampus_uq.learn.attribution.labelled_recordings import labelled_recordings
from grampus_uq.recording import runs as runs_of
from grampus_uq.stats.arrays import RaggedBatch
from grampus_uq.stats.entry_thresholds import (
    EntryThresholds,
    two_way_entry,
)
from grampus_uq.stats.eprocess_thresholds import successes_needed
from tests.benchmarks.split_evaluation import with_fallback
from tests.binomial import binomial_ceiling
from tests.guarantees.afterwards import recorded_failures
from tests.learn.attribution.runs import ASSUMING, CONSTANT, failures, trajectory
from tests.sampling import sampled

MANY = failures(30, 3)


def variant(name: str, entry: Callable[[RaggedBatch], EntryThresholds]) -> AttributionMethod:
    return AttributionMethod(name=name, shape="any", thresholds=entry)


TRIED = [
    *METHODS.values(),
    variant("twf empty", two_way_entry),
    variant("twf best", lambda batch: with_fallback(two_way_entry(batch), batch)),
]


@pytest.mark.parametrize("method", TRIED, ids=lambda m: m.name)
@sampled("worlds", [20], full=[150])
def test_misses_stay_within_the_binomial_ceiling_from_end_to_end(method: AttributionMethod, worlds: int) -> None:
    """Worlds of 9 calibration failures and 4 new ones each, through the public functions only."""
    misses, trials = 0, 0
    for world in range(worlds):
        runs = failures(10, 1000 + world, signal=0.7)
        calibrated = calibrate(runs[:9], ASSUMING, Plan(method=method, level=0.8, seed=world))
        found = locate(runs[9].trajectory, calibrated)
        misses += runs[9].error_steps[0] not in found.set_steps
        trials += 1
    assert misses <= binomial_ceiling(trials, 0.2, 0.9999)


def test_ties_are_broken_so_that_coverage_is_not_more_than_promised_either() -> None:
    """Equal scores tie everybody at the threshold: the draws alone decide, and 20 % of the sets are empty."""
    plan = Plan(method=METHODS["vcp"], level=0.8)
    held = 0
    for world in range(200):
        runs = failures(10, 4000 + world)
        calibrated = calibrate(runs[:9], CONSTANT, replace(plan, seed=world))
        held += bool(locate(runs[9].trajectory, calibrated).set_steps)
    assert 200 - held <= binomial_ceiling(200, 0.2, 0.999)
    assert held <= binomial_ceiling(200, 0.8, 0.999)


def test_the_same_failures_in_another_world_of_labels_are_not_covered() -> None:
    """The sabotage: calibration labels that point one step too early break exchangeability, and it shows."""
    misses = 0
    for world in range(150):
        runs = failures(10, 2000 + world)
        spoiled = [LabelledTrajectory(trajectory=r.trajectory, error_steps=(0,)) for r in runs[:9]]
        found = locate(runs[9].trajectory, calibrate(spoiled, ASSUMING, Plan(method=METHODS["rf"], seed=world)))
        misses += runs[9].error_steps[0] not in found.set_steps
    assert misses > binomial_ceiling(150, 0.2, 0.9999)


def test_a_good_scorer_leaves_most_of_the_run_out() -> None:
    calibrated = calibrate(failures(79, 1), ASSUMING, Plan(level=0.8))
    removed = [locate(r.trajectory, calibrated).removal_rate for r in failures(60, 2)]
    assert np.mean(removed) > 0.5


def test_a_run_may_not_be_held_against_a_threshold_that_it_helped_to_set() -> None:
    runs = failures(5, 7)
    calibrated = calibrate(runs, CONSTANT)
    with pytest.raises(ConfigurationError, match="helped to set"):
        locate(runs[2].trajectory, calibrated)


def test_calibrating_on_the_runs_that_fitted_the_scorer_is_refused() -> None:
    runs = failures(6, 8)
    with pytest.raises(ConfigurationError, match="has not seen"):
        calibrate(runs[3:], fit_step_scorer(runs[:4]))


def test_a_repeated_run_is_refused() -> None:
    runs = failures(3, 9)
    with pytest.raises(ConfigurationError, match="repeated ids"):
        calibrate([*runs, runs[0]], CONSTANT)


def test_too_few_failures_give_the_whole_run_and_say_how_many_are_needed() -> None:
    found = attribute(failures(1, 10)[0].trajectory, failures(3, 11), scorer=CONSTANT, plan=Plan(level=0.8))
    assert found.set_steps == tuple(range(len(found.steps)))
    assert "3 calibration failures are too few" in found.coverage
    assert f"at least {successes_needed(1.0 - 0.8)}" in found.coverage


def test_an_empty_set_is_explained_and_gives_no_place_to_restart() -> None:
    loud = FunctionScorer(name="loud", function=lambda run: [9.0 if "!" in s.text else 1.0 for s in run.steps])
    labelled = [
        LabelledTrajectory(trajectory=trajectory(f"r{i}", ["quiet", "wrong!"]), error_steps=(1,)) for i in range(9)
    ]
    found = attribute(trajectory("new", ["quiet", "quiet"]), labelled, scorer=loud, plan=Plan(method=METHODS["vcp"]))
    assert found.set_steps == ()
    assert found.first_step is None
    assert found.contiguous
    assert any("empty" in note for note in found.notes)


def test_the_sentence_names_level_rank_size_and_what_breaks_it() -> None:
    calibrated = calibrate(failures(19, 14), CONSTANT, Plan(level=0.9))
    sentence = locate(failures(1, 15)[0].trajectory, calibrated).coverage
    for part in ("at least 90%", "rank 18 of 19 + 1: 90.0%", "the decisive error", "exchangeable", "break"):
        assert part in sentence


@sampled("worlds", [50], full=[150])
def test_several_errors_are_promised_by_their_recall(worlds: int) -> None:
    plan = Plan(method=METHODS["envelope"], level=0.8, recall=0.5)
    enough = 0
    for world in range(worlds):
        runs = failures(10, 3000 + world, several=True)
        found = locate(runs[9].trajectory, calibrate(runs[:9], ASSUMING, replace(plan, seed=world)))
        held = len(set(found.set_steps) & set(runs[9].error_steps)) / len(runs[9].error_steps)
        enough += held >= 0.5
    assert worlds - enough <= binomial_ceiling(worlds, 0.2, 0.9999)
    assert "at least 50% of the run's errors" in found.coverage


def test_the_order_of_the_labelled_runs_changes_nothing() -> None:
    runs = failures(30, 17)
    one, other = fit_and_calibrate(runs), fit_and_calibrate(runs[::-1])
    assert other.threshold.value == pytest.approx(one.threshold.value, abs=1e-9)
    assert set(other.calibrated_on) == set(one.calibrated_on)
    new = failures(1, 18)[0].trajectory
    assert locate(new, other).set_steps == locate(new, one).set_steps


@given(st.lists(st.sampled_from(["", "a", "b", "c", "d", "e"]), min_size=2, max_size=30), st.integers(0, 3))
def test_trials_of_a_task_stay_in_one_part_and_one_of_them_counts(tasks: list[str], seed: int) -> None:
    runs = [replace(run, trial_of=task) for run, task in zip(MANY, tasks, strict=False)]
    if len({task or number for number, task in enumerate(tasks)}) < 2:
        with pytest.raises(ConfigurationError, match="two tasks"):
            part_labelled(runs, 0.8, seed=seed)
        return
    parts = part_labelled(runs, 0.8, seed=seed)
    fitting, calibrating = (
        {run.trial_of for run in part if run.trial_of} for part in (parts.fitting, parts.calibration)
    )
    assert not fitting & calibrating
    assert len(parts.fitting) + len(parts.calibration) == len(runs)
    counted = calibrate(runs, ASSUMING, Plan(seed=seed)).calibrated_on
    named = [task for task, run in zip(tasks, runs, strict=True) if task and run.trajectory.trajectory_id in counted]
    assert sorted(named) == sorted(set(tasks) - {""})
    assert len(counted) == len(named) + tasks.count("")
    again = calibrate(runs[::-1], ASSUMING, Plan(seed=seed)).calibrated_on
    assert set(again) == set(counted)


def test_recordings_say_which_failures_are_trials_of_one_task(tmp_path: Path) -> None:
    place = tmp_path / "failed.jsonl"
    meant = recorded_failures(place, np.random.default_rng(0), 12, "f", trials=4)
    labelled = labelled_recordings(runs_of(place), lambda error: None)
    assert [item.error_steps for item in labelled] == [(step,) for step in meant.values()]
    assert [item.trial_of for item in labelled] == [f"f{number // 4}" for number in range(12)]


def test_parts_do_not_overlap_and_waste_no_rank() -> None:
    runs = failures(63, 19)
    parts = part_labelled(runs, 0.8)
    fitting = {r.trajectory.trajectory_id for r in parts.fitting}
    calibrating = {r.trajectory.trajectory_id for r in parts.calibration}
    assert not fitting & calibrating
    assert len(fitting) + len(calibrating) == 63
    assert (len(calibrating) + 1) * 0.8 == pytest.approx(round((len(calibrating) + 1) * 0.8))
    assert len(fitting) >= 0.5 * 63
    for n in range(2, 12):
        small = part_labelled(runs[:n], 0.8)
        assert len(small.fitting) >= 1
        assert len(small.calibration) >= min(n - 1, successes_needed(1.0 - 0.8))


def test_a_high_level_takes_failures_from_the_fit_before_every_set_becomes_the_whole_run() -> None:
    parts = part_labelled(failures(30, 20), 0.95)
    assert (len(parts.fitting), len(parts.calibration)) == (11, 19)


@pytest.mark.parametrize("call", [lambda: part_labelled(failures(1, 20), 0.8), lambda: calibrate([], CONSTANT)])
def test_no_failures_no_calibration(call: object) -> None:
    with pytest.raises(ConfigurationError):
        call()  # type: ignore[operator]  # a list of thunks


@pytest.mark.parametrize("change", [{"level": 80.0}, {"level": 1.0}, {"recall": 0.0}, {"recall": 1.1}])
def test_a_plan_outside_its_domain_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        Plan(**change)  # type: ignore[arg-type]  # floats by name


class Wrong:
    name = "wrong"

    def score(self, run: Trajectory, /) -> list[StepScore]:
        return [1.0] * len(run)  # type: ignore[return-value]  # the mistake that is tested


def test_a_scorer_that_gives_something_else_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="wrong: list"):
        calibrate(failures(4, 24), Wrong())
    short = FunctionScorer(name="short", function=lambda run: [1.0])
    with pytest.raises(ConfigurationError, match="short"):
        calibrate(failures(4, 25), short)


@pytest.mark.parametrize(
    "thresholds",
    [
        lambda batch: EntryThresholds(values=batch.values[:, :1], lengths=np.ones(1, dtype=np.int64)),
        lambda batch: EntryThresholds(values=batch.values, lengths=batch.lengths - 1),
        lambda batch: batch.values,
        lambda batch: None,
    ],
)
def test_a_method_that_gives_no_threshold_for_some_step_is_refused_by_name(thresholds: Any) -> None:
    short = Plan(method=AttributionMethod(name="short", shape="one step", thresholds=thresholds))
    scorer = fit_step_scorer(failures(8, 32))
    with pytest.raises(ConfigurationError, match=r"'method' parameter.*short"):
        calibrate(failures(9, 33), scorer, short)
    with pytest.raises(ConfigurationError, match=r"'method' parameter.*short"):
        locate(failures(1, 34)[0].trajectory, replace(calibrate(failures(9, 33), scorer), plan=short))


def test_a_result_is_plain_json() -> None:
    calibrated = fit_and_calibrate(failures(30, 26))
    found = locate(failures(1, 27)[0].trajectory, calibrated)
    stored = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert stored["set_steps"] == list(found.set_steps)
    assert stored["first_step"] == found.first_step
    assert [s["inside"] for s in stored["steps"]] == [i in found.set_steps for i in range(len(found.steps))]
    whole = attribute(failures(1, 28)[0].trajectory, failures(2, 29), scorer=CONSTANT)
    assert json.loads(json.dumps(whole.to_json(), allow_nan=False))["threshold"] is None


def test_constant_scores_accuse_no_step() -> None:
    found = attribute(failures(1, 30)[0].trajectory, failures(19, 31), scorer=CONSTANT)
    assert found.most_suspect is None
    assert any("same score" in line for line in found.why)


@pytest.mark.parametrize("errors", [(), (5,), (-1,), (1, 1), (2, 1)])
def test_labels_that_point_nowhere_are_refused(errors: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="error_steps"):
        LabelledTrajectory(trajectory=trajectory("x", ["a", "b", "c"]), error_steps=errors)


def test_a_trajectory_needs_steps_with_unique_ids() -> None:
    with pytest.raises(ConfigurationError, match="at least one step"):
        Trajectory(trajectory_id="x", steps=())
    twice = TrajectoryStep(step_id="a", speaker="s", text="t")
    with pytest.raises(ConfigurationError, match="unique ids"):
        Trajectory(trajectory_id="x", steps=(twice, twice))
