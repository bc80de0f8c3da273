"""From labelled runs to a frozen detector: rules on data, disjoint splits, faithful exports, choices, promises."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError, MissingDependencyError
from grampus_uq.learn.alarm_figures import alarm_figures
from grampus_uq.learn.fit import detector_runs as gathered
from grampus_uq.learn.fit.detector import choose, fit_budget, fit_detector, out_of_fold, power_at, powers
from grampus_uq.learn.fit.detector_bank import TRAINED, bank, fit_members
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.learn.fit.detector_split import least_to_learn, realised_rate, threshold_size
from grampus_uq.stats.eprocess import (
    Detector,
    alarm_steps,
    detector_from_json,
    detector_to_json,
    log_peaks,
    score_rows,
    start,
    update,
)
from grampus_uq.stats.eprocess_scorers import FeatureScorer
from grampus_uq.stats.eprocess_thresholds import Mode, pac_threshold, successes_needed, tie_uniform
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.ranks import binomial_interval
from grampus_uq.stats.step_blocks import in_caller_order, run_maximum, run_of_row, step_of_row
from grampus_uq.stats.tree_ensemble import evaluate_many
from tests.benchmarks.published_evaluator import fit_paper, fit_paper_scorer
from tests.binomial import binomial_ceiling
from tests.detector_rows import detector_runs, threshold_for

sklearn = pytest.importorskip("sklearn", reason="the extra 'fit' is not installed")

FloatArray = npt.NDArray[np.float64]


QUICK = ("running_minimum", "pooled_ewma", "per_step_logit")
"""Enough of the bank for tests that are not about the trees."""


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _rows(rng: np.random.Generator, runs: int, *, failure_rate: float = 0.5, missing: float = 0.0) -> dict[str, Any]:
    """Runs whose confidence sags at a random step when they will fail, stated in round numbers; lengths differ."""
    ids: list[str] = []
    steps: list[int] = []
    scores: list[float] = []
    outcomes = {}
    for i in range(runs):
        name, length = f"run-{i:04d}", int(rng.integers(2, 9))
        fails = bool(rng.random() < failure_rate)
        score: FloatArray = rng.beta(6, 2, length)
        if fails:
            score[rng.integers(0, length) :] -= 0.35
        score = np.round(np.clip(score, 0, 1), 2).astype(np.float64)
        score[rng.random(length) < missing] = np.nan
        ids += [name] * length
        steps += range(1, length + 1)
        scores += score.tolist()
        outcomes[name] = not fails
    return {"run_ids": ids, "steps": steps, "scores": scores, "outcomes": outcomes}


def _runs(seed: int, runs: int, **options: Any) -> DetectorRuns:
    return detector_runs(**_rows(_rng(seed), runs, **options))


def _figures(detector: Detector, runs: DetectorRuns, alpha: float, delta: float | None) -> Any:
    blocks = runs.blocks
    ties = np.array([tie_uniform(run, detector.salt) for run in runs.ids])
    alarm = alarm_steps(blocks, score_rows(detector, blocks), threshold_for(detector, alpha, delta), ties)
    return alarm_figures(alarm, runs.lengths, runs.success)  # type: ignore[arg-type]  # labelled


# --- rules on data ---------------------------------------------------------------------------------------------------


def test_no_result_depends_on_the_order_of_rows() -> None:
    rows = _rows(_rng(1), 120, missing=0.1)
    order = _rng(2).permutation(len(rows["run_ids"]))
    shuffled = {
        **{key: [rows[key][i] for i in order] for key in ("run_ids", "steps", "scores")},
        "outcomes": dict(reversed(rows["outcomes"].items())),
    }
    fits = [fit_detector(detector_runs(**data), rng=_rng(3), members=QUICK) for data in (rows, shuffled)]
    assert json.dumps(detector_to_json(fits[0].detector)) == json.dumps(detector_to_json(fits[1].detector))
    assert fits[0].report == fits[1].report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [0.5, math.inf, 0.5]}, "in \\[0, 1\\], or NaN"),
        ({"scores": [0.5, -0.1, 0.5]}, "in \\[0, 1\\], or NaN"),
        ({"lengths": [2]}, "at least one row"),
        ({"lengths": [3, 0]}, "at least one row"),
        ({"scores": [0.5, "high", 0.5]}, "numbers"),
        ({"scores": [0.5, 0.5]}, "of shape"),
        ({"streams": ("a", "b")}, "of shape"),
        ({"streams": ("a", "a")}, "different names"),
        ({"ids": ["a", "a"]}, "different"),
        ({"streams": ()}, "streams"),
    ],
)
def test_runs_that_break_a_rule_are_refused_with_the_way_out(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"ids": ["a", "b"], "lengths": [2, 1], "scores": [0.5, 0.6, math.nan]}
    assert gathered.detector_runs(**good).ids == ("a", "b")
    with pytest.raises(ConfigurationError, match=message):
        gathered.detector_runs(**{**good, **change})


# --- splits ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 400), st.integers(0, 60), st.floats(0.02, 0.5), st.floats(0.02, 0.5) | st.none())
def test_the_threshold_set_is_finite_exactly_when_enough_successes_exist(
    successes: int, failures: int, alpha: float, delta: float | None
) -> None:
    size = threshold_size(successes, failures, alpha, delta)
    assert (successes + 1) // 2 <= size <= successes
    needed = successes_needed(alpha, delta)
    assert (realised_rate(size, alpha, delta) > 0.0) == (successes >= needed)


def test_where_nothing_is_learned_all_successes_set_the_threshold_of_the_smallest_ewma() -> None:
    runs = _runs(60, 60)
    fitted = fit_detector(runs, rng=_rng(7))
    assert fitted.report.member == fitted.detector.scorer.name == "running_minimum_of_ewma_50"  # type: ignore[union-attr]  # learns nothing
    assert set(fitted.report.threshold_ids) == {run for run, good in zip(runs.ids, runs.success, strict=True) if good}  # type: ignore[arg-type]  # labelled
    assert fitted.report.power == {}


@given(st.integers(0, 2**32 - 1))
def test_whether_something_is_learned_does_not_depend_on_what_the_successes_look_like(seed: int) -> None:
    """Their number and the failures decide, so that a threshold set by all successes holds as if nothing had."""
    runs = _runs(9, 150)
    rng, success = _rng(seed), np.asarray(runs.success)
    owner = np.repeat(success, runs.lengths)
    values = np.where(owner[:, None], rng.random(runs.values.shape), runs.values)
    assert least_to_learn(replace(runs, values=values)) == least_to_learn(runs)
    longer = runs.lengths * np.where(success, rng.integers(1, 9), 1)
    assert least_to_learn(replace(runs, lengths=longer.astype(np.intp))) == least_to_learn(runs)
    assert least_to_learn(replace(runs, lengths=runs.lengths * 10)) > least_to_learn(runs)


@pytest.mark.parametrize("name", ["score", "count_calls"])
def test_a_count_may_point_either_way_where_a_statistic_is_learned(name: str) -> None:
    """Scores that are higher in runs that fail: a confidence is not turned around, a count is."""
    rows = _rows(_rng(12), 400)
    rows["scores"] = [1.0 - x for x in rows["scores"]]
    runs = detector_runs(**rows, streams=(name,))
    [boosted] = [member for member in bank(runs) if member.name == "boosted"]
    scorer = fit_members(runs, [boosted])["boosted"]
    peaks = run_maximum(runs.blocks, scorer.batch(runs.blocks))
    telling = auroc(peaks, ~np.asarray(runs.success))
    assert telling is not None
    assert (telling > 0.6) == (name == "count_calls")
    assert sum(member.name.startswith("running_minimum") for member in bank(runs)) == (
        1 if name == "count_calls" else 4
    )


def test_the_parts_are_disjoint_and_the_threshold_set_holds_successes_only() -> None:
    runs = _runs(6, 200, failure_rate=0.4)
    report = fit_detector(runs, rng=_rng(7), members=QUICK).report
    outcome = dict(zip(runs.ids, runs.success.tolist(), strict=True))  # type: ignore[union-attr]  # labelled
    assert not set(report.fit_ids) & set(report.threshold_ids)
    assert set(report.fit_ids) | set(report.threshold_ids) == set(runs.ids)
    assert all(outcome[run] for run in report.threshold_ids)
    assert {run for run, good in outcome.items() if not good} <= set(report.fit_ids)


def test_what_the_threshold_runs_look_like_changes_neither_choice_nor_statistic() -> None:
    rows = _rows(_rng(8), 200)
    first = fit_detector(detector_runs(**rows), rng=_rng(9), members=QUICK)
    held = set(first.report.threshold_ids)
    rows["scores"] = [0.01 if run in held else x for run, x in zip(rows["run_ids"], rows["scores"], strict=True)]
    second = fit_detector(detector_runs(**rows), rng=_rng(9), members=QUICK)
    assert second.report.power == first.report.power
    assert second.detector.scorer == first.detector.scorer
    assert second.detector.threshold.log_value > first.detector.threshold.log_value


def test_the_same_random_state_gives_the_same_detector_and_another_gives_another_split() -> None:
    runs = _runs(10, 150)
    first, again, other = (fit_detector(runs, rng=_rng(seed), members=QUICK) for seed in (1, 1, 2))
    assert again.detector == first.detector
    assert other.report.fit_ids != first.report.fit_ids


# --- the bank --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted_bank() -> tuple[DetectorRuns, dict[str, FeatureScorer]]:
    runs = _runs(11, 240, missing=0.1)
    return runs, fit_members(runs, bank(runs))


def test_every_member_learns_and_is_evaluated_alike_live_and_in_batch(
    fitted_bank: tuple[DetectorRuns, dict[str, FeatureScorer]],
) -> None:
    runs, members = fitted_bank
    assert set(members) == {member.name for member in bank(runs)}
    few = runs.take(np.arange(12))
    for scorer in members.values():
        template = fit_budget(few, rng=_rng()).detector
        detector = Detector(streams=runs.streams, scorer=scorer, thresholds=template.thresholds, deployed=0, salt="s")
        assert detector_from_json(json.loads(json.dumps(detector_to_json(detector), allow_nan=False))) == detector
        batch = in_caller_order(few.blocks, score_rows(detector, few.blocks)).tolist()
        row = 0
        for run, length in zip(few.ids, few.lengths.tolist(), strict=True):
            state = start(detector, run)
            for score in few.values[row : row + length, 0].tolist():
                state, log_m = update(detector, state, score)
                assert log_m == batch[row] or (log_m is None and math.isnan(batch[row]))
                row += 1


def test_a_stream_that_never_changes_teaches_nothing_and_warns_of_nothing() -> None:
    rows = _rows(_rng(42), 120)
    constant = detector_runs(**{**rows, "scores": [0.8] * len(rows["scores"])})
    members = fit_members(constant, bank(constant))
    assert set(members) == {member.name for member in bank(constant)}
    weights = members["pooled_three"].linear
    assert weights is not None
    assert max(map(abs, weights.weights[0])) < 1e-6


def test_when_only_successes_ever_gave_a_score_nothing_is_learned() -> None:
    rows = _rows(_rng(43), 200)
    rows["scores"] = [
        x if rows["outcomes"][run] else math.nan for run, x in zip(rows["run_ids"], rows["scores"], strict=True)
    ]
    fitted = fit_detector(detector_runs(**rows), rng=_rng(44), members=QUICK)
    assert fitted.report.member == "running_minimum"
    assert math.isfinite(fitted.detector.threshold.log_value)


def test_a_regression_a_step_is_scikit_learns_own(fitted_bank: tuple[DetectorRuns, dict[str, FeatureScorer]]) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    runs, members = fitted_bank
    scorer, blocks = members["per_step_logit"], runs.blocks
    x = scorer.features(blocks)[[0, 1, 2, 4, 5]].T  # last, previous, low, mean, EWMA .5
    success = runs.success[run_of_row(blocks)]  # type: ignore[index]  # labelled
    seen = ~np.isnan(blocks.values[:, 0])
    ours = scorer.prior_log_odds - scorer.batch(blocks)
    for step in range(1, scorer.longest + 1):
        here = (step_of_row(blocks) == step) & seen
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[here], success[here])
        np.testing.assert_allclose(ours[here], model.decision_function(x[here]), atol=1e-6)


def test_the_average_of_two_members_is_the_average_of_their_logits(
    fitted_bank: tuple[DetectorRuns, dict[str, FeatureScorer]],
) -> None:
    runs, members = fitted_bank
    both = [members[name].batch(runs.blocks) for name in ("per_step_logit", "boosted")]
    np.testing.assert_allclose(members["per_step_boosted"].batch(runs.blocks), np.mean(both, axis=0), atol=1e-9)


def test_long_runs_do_not_outvote_short_ones() -> None:
    """Three long failures and many short ones: repeating the rows of a run must not move a pooled fit."""
    rows = _rows(_rng(12), 120)
    runs = detector_runs(**rows)
    doubled: dict[str, Any] = {"run_ids": [], "steps": [], "scores": [], "outcomes": rows["outcomes"]}
    for run, step, score in zip(rows["run_ids"], rows["steps"], rows["scores"], strict=True):
        constant = run <= "run-0059"  # each step of these runs is stated twice as often, with the same score throughout
        for copy in range(2 if constant else 1):
            doubled["run_ids"].append(run)
            doubled["steps"].append(2 * step - 1 + copy if constant else step)
            doubled["scores"].append(0.8 if constant else score)
    once = {
        **rows,
        "scores": [0.8 if r <= "run-0059" else s for r, s in zip(rows["run_ids"], rows["scores"], strict=True)],
    }
    a, b = (fit_members(detector_runs(**data), bank(runs))["pooled_ewma"] for data in (once, doubled))
    assert a.linear is not None
    assert b.linear is not None
    np.testing.assert_allclose(a.linear.weights, b.linear.weights, rtol=1e-6)


def test_a_monotone_tree_score_never_falls_when_every_score_rises(
    fitted_bank: tuple[DetectorRuns, dict[str, FeatureScorer]],
) -> None:
    runs, members = fitted_bank
    scorer = members["boosted"]
    features = scorer.features(runs.blocks)
    assert scorer.trees is not None
    higher = features.copy()
    higher[:13] += 0.4
    assert (evaluate_many(scorer.trees, higher) >= evaluate_many(scorer.trees, features)).all()


# --- the choice ------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
    st.floats(0.01, 0.99),
)
def test_power_at_a_rate_is_the_interpolated_roc_curve(null: list[int], failing: list[int], rate: float) -> None:
    from sklearn.metrics import roc_curve

    label = np.repeat([0, 1], [len(null), len(failing)])
    x, y, _ = roc_curve(label, np.array(null + failing), drop_intermediate=False)
    top = np.append(np.diff(x) > 0, True)
    assert power_at(null, failing, [rate])[0] == pytest.approx(np.interp(rate, x[top], y[top]))


def test_out_of_fold_evidence_comes_from_models_that_never_saw_the_run() -> None:
    """With outcomes drawn at random nothing can be learned: out of fold the power is the false-alarm rate."""
    rows = _rows(_rng(13), 400)
    rng = _rng(14)
    rows["outcomes"] = {run: bool(rng.random() < 0.5) for run in rows["outcomes"]}
    runs = detector_runs(**rows)
    members = bank(runs)
    power = powers(runs.blocks, np.asarray(runs.success), out_of_fold(runs, members, rng))
    assert set(power) == {member.name for member in members}
    assert all(0.08 < value < 0.28 for value in power.values())  # RATES average .175
    assert choose(power, members) in power


def test_a_second_stream_that_knows_more_is_used() -> None:
    rows = _rows(_rng(21), 300)
    rng = _rng(22)
    good = [rows["outcomes"][run] for run in rows["run_ids"]]
    noise = rng.random(len(good))
    telling = [1.0 / (1.0 + math.exp(-rng.normal(1.0 if g else -1.0))) for g in good]
    both = detector_runs(
        **{
            **rows,
            "scores": np.column_stack([noise, telling]),
            "streams": ("noise", "telling"),
        }
    )
    fitted = fit_detector(both, rng=_rng(23), members=(*QUICK, "running_minimum:telling"))
    assert fitted.detector.streams == ("noise", "telling")
    assert fitted.report.power[fitted.report.member] > 0.8
    assert fitted.report.power["running_minimum:telling"] > fitted.report.power["running_minimum"]


# --- too little, one class, none -------------------------------------------------------------------------------------


def test_too_few_successes_give_a_silent_alarm_and_the_number_that_is_needed() -> None:
    fitted = fit_detector(_runs(24, 40, failure_rate=0.6), rng=_rng(), alpha=0.05, delta=0.1)
    successes = fitted.report.counts["success"]
    assert fitted.detector.threshold.log_value == math.inf
    assert f"45 held-out successful runs are needed for alpha=0.05, delta=0.1; there are {successes}" in (
        fitted.detector.threshold.shortage
    )
    json.dumps(asdict(fitted.report), allow_nan=False)


def test_successes_alone_are_enough_for_the_guarantee_and_failures_alone_are_not() -> None:
    rows = _rows(_rng(25), 60)
    for outcome, finite in ((True, True), (False, False)):
        runs = detector_runs(**{**rows, "outcomes": dict.fromkeys(rows["outcomes"], outcome)})
        fitted = fit_detector(runs, rng=_rng(), alpha=0.1, delta=0.1)
        assert (fitted.detector.threshold.log_value < math.inf) is finite
        assert fitted.report.member == "running_minimum_of_ewma_50"
        assert "Too few" in fitted.report.reason


def test_no_run_at_all_gives_a_silent_alarm_and_no_crash() -> None:
    runs = detector_runs(run_ids=[], steps=np.array([], dtype=int), scores=[], outcomes={})
    assert fit_detector(runs, rng=_rng()).detector.threshold.shortage.startswith("22 held-out")
    assert fit_budget(runs, rng=_rng(), share=0.1).detector.threshold.log_value == math.inf


def test_runs_without_any_score_are_carried_along() -> None:
    rows = _rows(_rng(26), 160)
    silent = {run for run in rows["outcomes"] if int(run[-4:]) % 10 == 0}
    rows["scores"] = [math.nan if run in silent else x for run, x in zip(rows["run_ids"], rows["scores"], strict=True)]
    fitted = fit_detector(detector_runs(**rows), rng=_rng(27), members=QUICK)
    assert fitted.detector.null_peaks[0][0] == -math.inf
    assert math.isfinite(fitted.detector.threshold.log_value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda runs: fit_detector(runs, rng=_rng(), alpha=10), "alpha.*0.1"),
        (lambda runs: fit_detector(runs, rng=_rng(), delta=0.0), "delta"),
        (lambda runs: fit_detector(runs, rng=_rng(), levels=[1.5]), "levels"),
        (lambda runs: fit_detector(runs, rng=_rng(), members=["oracle"]), "members.*running_minimum"),
        (lambda runs: fit_detector(runs, rng=_rng(), members=[]), "members"),
        (lambda runs: fit_paper(runs, rng=_rng(), fit_share=0.0), "fit_share"),
        (lambda runs: fit_paper(runs.take([0, 1, 2]), rng=_rng()), "at least 5"),
        (lambda runs: fit_budget(runs, rng=_rng(), share=2.0), "share|alpha"),
    ],
)
def test_wrong_arguments_name_the_parameter(call: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call(_runs(28, 30))


@pytest.mark.parametrize("fit", [fit_detector, fit_budget, fit_paper])
def test_a_detector_says_which_streams_no_step_of_its_runs_lacked(fit: Any) -> None:
    rows = _rows(_rng(1), 60)
    whole, broken = np.array(rows["scores"]), np.array(rows["scores"])
    broken[7] = math.nan
    for columns, always in ({"a": whole}, ("a",)), ({"a": broken}, ()), ({"a": broken, "b": whole}, ("b",)):
        if fit is fit_paper and len(columns) > 1:
            continue
        scores = np.column_stack(list(columns.values()))
        runs = detector_runs(**{**rows, "scores": scores}, streams=tuple(columns))
        given = {"members": QUICK} if fit is fit_detector else {}
        detector = fit(runs, rng=_rng(), **given).detector
        assert detector.without_gaps == detector.always_there == always
        assert detector_from_json(json.loads(json.dumps(detector_to_json(detector)))) == detector


def test_unlabelled_runs_are_sent_to_the_budget() -> None:
    rows = _rows(_rng(29), 20)
    del rows["outcomes"]
    with pytest.raises(ConfigurationError, match="fit_budget"):
        fit_detector(detector_runs(**rows), rng=_rng())


def test_without_scikit_learn_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = _runs(60, 240)
    for name in [name for name in sys.modules if name.split(".")[0] in ("sklearn", "threadpoolctl")]:
        monkeypatch.setitem(sys.modules, name, None)
    for fit in (fit_detector, fit_paper):
        with pytest.raises(MissingDependencyError, match=r"grampus-uq\[fit\]"):
            fit(runs, rng=_rng())
    assert fit_budget(runs, rng=_rng()).detector.scorer.name == "running_minimum_of_ewma_50"  # type: ignore[union-attr]  # learns nothing


# --- without labels --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_interruption_budget_needs_no_label_and_is_kept_on_average() -> None:
    share, paused, asked = 0.1, 0, 0
    for seed in range(40):
        known, fresh = _runs(100 + seed, 80, failure_rate=0.4), _runs(500 + seed, 60, failure_rate=0.4)
        unlabelled = detector_runs(**{**_rows(_rng(100 + seed), 80, failure_rate=0.4), "outcomes": None})
        detector = fit_budget(unlabelled, rng=_rng(seed), share=share).detector
        assert detector == fit_budget(known, rng=_rng(seed), share=share).detector
        paused += round(_figures(detector, fresh, share, None).paused.estimate * 60)
        asked += 60
    low, high = binomial_interval(paused, asked, 0.9999)
    assert low <= 8 / 81 + 0.01
    assert high >= 8 / 81 - 0.01  # (n + 1 - rank)/(n + 1) at n = 80


# --- the published method --------------------------------------------------------------------------------------------


def _published_log_ratio(runs: DetectorRuns) -> FloatArray:
    """e-valuator's Algorithm 2 written once more with scikit-learn's own predict_proba, row by row, in run order."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    success = np.asarray(runs.success)
    series = np.split(runs.values[:, 0], np.cumsum(runs.lengths)[:-1])
    prior = success.mean()
    ratio = np.ones(len(series))
    found = [np.empty(len(scores)) for scores in series]
    for step in range(1, max(map(len, series)) + 1):
        here = [i for i, scores in enumerate(series) if len(scores) >= step]
        x, y = np.array([series[i][:step] for i in here]), success[here]
        if min(y.sum(), (~y).sum()) >= 5:
            scale = StandardScaler().fit(x)
            p = LogisticRegression(max_iter=200).fit(scale.transform(x), y).predict_proba(scale.transform(x))
            p = np.clip(p, 1e-6, 1 - 1e-6)
            ratio[here] = p[:, 0] / p[:, 1] * prior / (1 - prior)
        for i in here:
            found[i][step - 1] = math.log(ratio[i])
    return np.concatenate(found)


def test_the_paper_scorer_is_the_published_method_to_rounding() -> None:
    runs = _runs(35, 150)
    scorer = fit_paper_scorer(runs)
    ours = in_caller_order(runs.blocks, scorer.batch(runs.blocks))
    np.testing.assert_allclose(ours, _published_log_ratio(runs), atol=1e-9)


def test_the_paper_fit_lists_its_three_thresholds_and_keeps_its_halves_apart() -> None:
    fitted = fit_paper(_runs(36, 200), rng=_rng(37), alpha=0.1, delta=0.1)
    modes = {threshold.mode for threshold in fitted.detector.thresholds}
    assert {Mode.PAC, Mode.VILLE, Mode.BONFERRONI} <= modes
    assert len(fitted.report.fit_ids) == 100
    assert not set(fitted.report.fit_ids) & set(fitted.report.threshold_ids)
    everything = fit_paper(_runs(36, 200), rng=_rng(37), fit_share=1.0)
    assert everything.detector.threshold.log_value == math.inf


# --- the promise, end to end -----------------------------------------------------------------------------------------


def test_reusing_the_fitting_runs_for_the_threshold_would_break_the_promise() -> None:
    """Why the parts are disjoint. Thirty streams of pure noise: whatever a fit sees in them is overfitted."""
    rng, streams = _rng(38), tuple(f"noise-{k}" for k in range(30))
    names = [f"r{i:04d}" for i in range(2200)]
    outcomes = {name: bool(rng.random() < 0.5) for name in names}
    steps, scores = np.ones(2200, dtype=int), rng.random(size=(2200, 30))
    runs = detector_runs(run_ids=names, steps=steps, scores=scores, outcomes=outcomes, streams=streams)
    known, fresh = runs.take(np.arange(200)), runs.take(np.arange(200, 2200))
    template = fit_budget(known, rng=_rng(39)).detector

    def rate(fitting: DetectorRuns, threshold_set: DetectorRuns) -> float:
        scorer = fit_members(fitting, TRAINED[:1])["pooled_ewma"]
        detector = replace(template, scorer=scorer)
        peaks = log_peaks(detector, threshold_set.take(np.asarray(threshold_set.success)).blocks)
        threshold = pac_threshold(peaks, np.full(len(peaks), 0.5), 0.1, 0.1)
        return float(
            _figures(replace(detector, thresholds=(threshold,), deployed=0), fresh, 0.1, 0.1).false_alarms.estimate
        )

    half = known.take(np.arange(100)), known.take(np.arange(100, 200))
    assert rate(half[0], half[1]) <= 0.1
    assert rate(half[0], half[0]) > 0.2


@pytest.mark.parametrize(
    "repeats", [pytest.param(20, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.promises)]
)
def test_fitted_detectors_keep_their_promise_and_see_failures(repeats: int) -> None:
    alpha, delta, unlucky, alarmed, power = 0.1, 0.1, 0, 0.0, 0.0
    fresh = _runs(41, 6000, failure_rate=0.4)
    for seed in range(repeats):
        fitted = fit_detector(_runs(1000 + seed, 200, failure_rate=0.4), rng=_rng(seed), alpha=alpha, delta=delta)
        pac, conformal = (_figures(fitted.detector, fresh, alpha, d) for d in (delta, None))
        unlucky += pac.false_alarms.estimate > alpha
        alarmed += conformal.false_alarms.estimate / repeats
        power += pac.power.estimate / repeats
    assert unlucky <= binomial_ceiling(repeats, delta)
    assert alarmed <= alpha + 0.015 * (60 / repeats) ** 0.5  # standard error of the mean over 60 calibrations: .005
    assert power > 0.5


PAPER = {"gsm8k": (0.081, 0.203), "hotpotqa": (0.085, 0.520), "chessgames": (0.059, 0.200)}
"""False alarms and power of the published method at alpha = delta = .1, 20 % calibration (METHODS, section 5)."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "gsm8k" else pytest.mark.promises) for name in PAPER],
)
def test_the_papers_figures_come_out_on_the_papers_data(name: str) -> None:
    if "GRAMPUS_UQ_DATA" not in os.environ:
        pytest.skip("GRAMPUS_UQ_DATA is not set: it names the folder that holds verifier_scores/")
    from tests.benchmarks.evaluator import load, split_rows

    runs = load(Path(os.environ["GRAMPUS_UQ_DATA"]) / "verifier_scores" / f"{name}.csv.gz")
    rows = [
        row
        for seed in range(50)
        for row in split_rows(seed, runs=runs, fraction=0.2, alphas=[0.1], delta=0.1, methods=["paper_pac"])
    ]
    false_alarms, power = PAPER[name]
    assert np.mean([row["false_alarm_rate"] for row in rows]) == pytest.approx(false_alarms, abs=0.02)
    assert np.mean([row["power"] for row in rows]) == pytest.approx(power, abs=0.02)
