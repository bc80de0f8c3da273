"""Calibration maps: scikit-learn and scipy as authorities, honesty of cross-fitting, hostile streams."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from sklearn.linear_model import LogisticRegression

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.calibration import SD_FLOOR, PlattMap, cross_fit, fit_platt, split_halves, step_records
from grampus_uq.stats.logistic_fit import logistic
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.scoring import BRIER, EPSILON, LOG, BetaScore, expected_score, log_odds
from grampus_uq.stats.trajectory_scores import ForecastTraces, tps
from grampus_uq.stats.weight_schedules import LINEAR_FRONT
from tests.benchmarks.proper_scores import load
from tests.benchmarks.schedules import LINEAR_BACK

DENSE = np.linspace(0, 1, 501)


def records(seed: int, n: int = 400, sharpness: float = 3.0):
    """Overconfident forecasts: the true log-odds are a shifted third of the stated ones."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n) * sharpness
    y = (rng.random(n) < logistic(0.4 + z / 3)).astype(float)
    return logistic(z), y, rng.random(n) + 0.1


# -- the fits equal the libraries' ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("l2", [1.0, 0.05, 30.0])
def test_platt_equals_scikit_learns_penalised_logistic_regression(seed, l2):
    """App. D's objective is C = 1 / l2 on the standardised log-odds, intercept free of penalty."""
    p, y, w = records(seed)
    fitted = fit_platt(p, y, weights=w, l2=l2)
    x = log_odds(p)
    mean, sd = np.average(x, weights=w), np.sqrt(np.average((x - np.average(x, weights=w)) ** 2, weights=w))
    assert (fitted.mean, fitted.sd) == pytest.approx((mean, sd))
    model = LogisticRegression(C=1 / l2, solver="newton-cholesky", tol=1e-12)
    model.fit(((x - mean) / sd)[:, None], y, sample_weight=w)
    assert fitted.slope == pytest.approx(model.coef_[0, 0], abs=1e-8)
    assert fitted.intercept == pytest.approx(model.intercept_[0], abs=1e-8)
    expected = model.predict_proba(((log_odds(DENSE) - mean) / sd)[:, None])[:, 1]
    assert fitted(DENSE) == pytest.approx(np.clip(expected, EPSILON, 1 - EPSILON), abs=1e-8)


# -- minus TPS as the loss --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_a_general_optimiser_finds_no_better_map_than_the_fit(seed):
    """scipy's BFGS on the raw objective, from several starts."""
    p, y, w = records(seed, n=200)
    fitted = fit_platt(p, y, weights=w, l2=0.5)
    z = (log_odds(p) - fitted.mean) / fitted.sd

    def loss(beta):
        gain = w @ expected_score(LOG, logistic(beta[0] + beta[1] * z), y)
        return -gain + 0.25 * beta[1] ** 2

    found = min(
        (
            optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-9})
            for start in ([0, 0], [1, 2], [-1, 0.5])
        ),
        key=lambda result: result.fun,
    )
    assert loss([fitted.intercept, fitted.slope]) <= found.fun + 1e-10
    assert (fitted.intercept, fitted.slope) == pytest.approx(tuple(found.x), abs=1e-4)


def ragged(seed: int, n: int = 600) -> tuple[ForecastTraces, np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    skill = rng.normal(size=n)
    y = (rng.random(n) < logistic(skill)).astype(float)
    rows = [
        np.round(logistic(3 * (skill[i] + 0.7 * rng.normal(size=rng.integers(1, 9)))), 2).tolist() for i in range(n)
    ]
    return ForecastTraces.of(rows), y, [f"run-{i:04d}" for i in range(n)]


@pytest.mark.parametrize("schedule", [LINEAR_FRONT, LINEAR_BACK], ids=lambda schedule: schedule.name)
def test_the_weighted_loss_is_minus_the_trajectory_score(schedule):
    """App. J.4: no other map of the family has a higher TPS on the data it was fitted to (penalty all but off)."""
    traces, y, _ = ragged(2)
    p, target, w = step_records(traces, y, schedule)
    assert w @ expected_score(LOG, p, target) == pytest.approx(tps(traces, y, schedule=schedule).sum(), abs=1e-9)
    fitted = fit_platt(p, target, weights=w, l2=1e-9)
    best = tps(traces.with_forecasts(fitted(traces.forecasts)), y, schedule=schedule).mean()
    for nudge in ({"slope": fitted.slope * 1.1}, {"slope": fitted.slope * 0.9}, {"intercept": fitted.intercept + 0.1}):
        other = replace(fitted, **nudge)(traces.forecasts)
        assert tps(traces.with_forecasts(other), y, schedule=schedule).mean() < best


def test_censored_prefixes_enter_with_their_probability():
    """Fractional outcomes: splitting a record into a success of weight q and a failure of 1 - q is the same fit."""
    p, _, w = records(3, n=60)
    q = np.random.default_rng(0).random(60)
    split = fit_platt(np.tile(p, 2), np.repeat([1.0, 0.0], 60), weights=np.concatenate([w * q, w * (1 - q)]))
    whole = fit_platt(p, q, weights=w)
    assert (whole.slope, whole.intercept) == pytest.approx((split.slope, split.intercept), abs=1e-8)


# -- cross-fitting ----------------------------------------------------------------------------------------------------


def test_halves_are_stratified_alternate_by_id_and_ignore_row_order():
    ids = [f"t{i}" for i in (3, 1, 4, 9, 5, 2, 6)]
    y = np.array([1, 1, 0, 1, 0, 1, 0])
    second = split_halves(y, ids)
    by_name = dict(zip(ids, second.tolist(), strict=True))
    assert by_name == {"t1": False, "t2": True, "t3": False, "t9": True, "t4": False, "t5": True, "t6": False}
    order = np.array([6, 2, 0, 5, 1, 3, 4])
    assert split_halves(y[order], [ids[i] for i in order]).tolist() == second[order].tolist()


def test_no_trajectory_is_calibrated_by_a_map_that_saw_it():
    """Change one trajectory's outcome and steps: its own map must stay."""
    traces, y, ids = ragged(4, n=80)
    before = cross_fit(traces, y, ids)
    changed = traces.forecasts.copy()
    changed[: traces.lengths[0]] = 0.01
    after = cross_fit(traces.with_forecasts(changed), y, ids)
    own, other = (0, 1) if before.second_half[0] else (1, 0)
    assert after.maps[own] == before.maps[own]
    assert after.maps[other] != before.maps[other]
    for i in range(len(traces)):
        inside = slice(traces.starts[i], traces.starts[i] + traces.lengths[i])
        expected = before.maps[0 if before.second_half[i] else 1](traces.forecasts[inside])
        assert before.traces.forecasts[inside].tolist() == expected.tolist()


def test_cross_fitting_ignores_row_order():
    traces, y, ids = ragged(5, n=60)
    straight = cross_fit(traces, y, ids)
    order = np.random.default_rng(0).permutation(60)
    rows = [traces.forecasts[traces.starts[i] : traces.starts[i] + traces.lengths[i]].tolist() for i in order]
    shuffled = cross_fit(ForecastTraces.of(rows), y[order], [ids[i] for i in order])
    for got, expected in zip(shuffled.maps, straight.maps, strict=True):
        assert (got.slope, got.intercept) == pytest.approx((expected.slope, expected.intercept), rel=1e-9)


@pytest.mark.parametrize("score", [LOG, BRIER, BetaScore(a=2, b=4)], ids=lambda score: score.name)
def test_recalibration_repairs_an_overconfident_stream_on_runs_it_never_saw(score):
    traces, y, ids = ragged(6, n=1500)
    gain = tps(cross_fit(traces, y, ids).traces, y, score=score) - tps(traces, y, score=score)
    assert gain.mean() / (gain.std() / np.sqrt(len(y))) > 3


def test_sabotage_fitting_and_judging_on_the_same_runs_flatters_noise():
    """Streams without any information: on average they beat the base rate in sample, not cross-fitted."""
    rng = np.random.default_rng(7)
    y, ids = (rng.random(60) < 0.5).astype(float), [f"{i:03d}" for i in range(60)]
    flattered, honest = [], []
    for _ in range(40):
        traces = ForecastTraces(forecasts=rng.random(60), lengths=np.ones(60, dtype=np.int64))
        base = tps(traces.with_forecasts(np.full(60, y.mean())), y).mean()
        in_sample = fit_platt(*step_records(traces, y)[:2], l2=0.0)
        flattered.append(tps(traces.with_forecasts(in_sample(traces.forecasts)), y).mean() - base)
        honest.append(tps(cross_fit(traces, y, ids).traces, y).mean() - base)
    assert np.mean(flattered) > 0.001
    assert np.mean(honest) < 0


def test_a_missing_forecast_is_left_out_of_the_fit_and_stays_missing():
    rows = [[0.9, 0.8], [0.2], [0.7, None], [0.3], [0.6], [0.4], [None], [0.1]]
    y, ids = np.array([1, 0, 1, 0, 1, 0, 1, 0.0]), list("abcdefgh")
    got = cross_fit(ForecastTraces.of(rows), y, ids)
    assert got.traces.missing.tolist() == [row.count(None) > 0 for row in rows]
    kept = [i for i, row in enumerate(rows) if None not in row and not got.second_half[i]]
    p, target, weights = step_records(ForecastTraces.of([rows[i] for i in kept]), y[kept])
    assert got.maps[0] == fit_platt(p, target, weights=weights)


@pytest.mark.parametrize("name", ["gsm8k", "hotpotqa", "chessgames"])
def test_cross_fitted_platt_raises_the_score_of_real_verifiers(name):
    root = os.environ.get("GRAMPUS_UQ_DATA")
    if not root:
        pytest.skip("GRAMPUS_UQ_DATA is not set: real verifier scores are needed")
    traces, outcomes, ids = load(Path(root) / "verifier_scores" / f"{name}.csv.gz")
    gain = tps(cross_fit(traces, outcomes, ids).traces, outcomes) - tps(traces, outcomes)
    assert gain.mean() / (gain.std() / np.sqrt(len(gain))) > 3


# -- hostile streams --------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1e-300, 0.3, 0.5, 0.9, 1.0]), st.booleans(), st.sampled_from([0.0, 1.0, 1e-9])),
        min_size=1,
        max_size=12,
    ).filter(lambda rows: any(w > 0 for _, _, w in rows))
)
def test_every_map_is_monotone_finite_and_inside_its_clipping(rows):
    p, y, w = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    mapped = fit_platt(p, y, weights=w)(DENSE)
    assert np.isfinite(mapped).all()
    assert (np.diff(mapped) >= -1e-15).all()
    assert mapped.min() >= EPSILON
    assert mapped.max() <= 1 - EPSILON


def test_a_signal_that_points_the_wrong_way_is_flattened_to_the_base_rate_not_turned_around():
    p, y, w = records(8)
    rate = np.average(y, weights=w)
    fitted = fit_platt(1 - p, y, weights=w)
    assert fitted.flat
    assert fitted(0.123) == fitted(0.987) == pytest.approx(rate)


def test_a_saturated_stream_meets_the_floor_and_keeps_the_base_rate():
    """App. D, limitations: one unique value."""
    fitted = fit_platt(np.full(50, 1.0), np.arange(50) < 20)
    assert fitted.sd == SD_FLOOR
    assert fitted.flat
    assert fitted(1.0) == pytest.approx(0.4)


@pytest.mark.parametrize("label", [0, 1])
def test_outcomes_of_one_class_give_a_flat_clipped_map(label):
    p = np.linspace(0.1, 0.9, 9)
    end = EPSILON if label == 0 else 1 - EPSILON
    fitted = fit_platt(p, np.full(9, label))
    assert fitted.flat
    assert fitted(0.5) == pytest.approx(end)


def test_separable_data_stay_finite_even_without_a_penalty():
    p, y = np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1])
    fitted = fit_platt(p, y, l2=0.0)
    assert fitted(0.2) < 0.01
    assert fitted(0.8) > 0.99


def test_the_penalty_shrinks_a_handful_of_trajectories_and_hardly_touches_a_thousand():
    few, many = records(9, n=6), records(9, n=6000)
    assert fit_platt(*few[:2], l2=1.0).slope < 0.7 * fit_platt(*few[:2], l2=1e-6).slope
    assert fit_platt(*many[:2], l2=1.0).slope == pytest.approx(fit_platt(*many[:2], l2=1e-6).slope, rel=0.01)


@pytest.mark.parametrize(
    ("args", "weights", "says"),
    [
        (([], []), None, "one or more"),
        (([0.5, np.nan], [0, 1]), None, "none missing"),
        (([0.5, 0.4], [0, np.nan]), None, "outcomes"),
        (([50, 40], [0, 1]), None, "forecasts"),
        (([0.5], [0, 1]), None, "as many"),
        (([0.5, 0.4], [0, 1]), [0, 0], "not all 0"),
        (([0.5, 0.4], [0, 1]), [1, -1], "not negative"),
    ],
)
def test_unusable_records_are_refused_by_name(args, weights, says):
    with pytest.raises(ConfigurationError, match=says) as refused:
        fit_platt(*args, weights=weights)
    assert "`fit_platt`" in str(refused.value)


def test_unusable_splits_are_refused():
    traces = ForecastTraces.of([[0.5], [0.6]])
    with pytest.raises(ConfigurationError, match="distinct"):
        cross_fit(traces, [0, 1], ["a", "a"])
    with pytest.raises(ConfigurationError, match="observed"):
        cross_fit(traces, [0, np.nan], ["a", "b"])
    with pytest.raises(ConfigurationError, match="both halves"):
        cross_fit(traces, [0, 1], ["a", "b"])  # one of each label: the second half is empty
    with pytest.raises(ConfigurationError, match="l2"):
        fit_platt([0.5], [1], l2=-1)


def test_a_map_refuses_what_is_no_forecast_and_keeps_what_is_missing():
    fitted = PlattMap(mean=0.3, sd=1.7, intercept=-0.1, slope=0.9)
    assert np.isnan(fitted([0.7, np.nan])).tolist() == [False, True]
    for bad in (1.0001, -0.1, [0.5, 2.0]):
        with pytest.raises(ConfigurationError, match="PlattMap"):
            fitted(bad)


def test_recalibration_by_one_map_keeps_the_ranks():
    p, y, w = records(10)
    fitted = fit_platt(p, y, weights=w)
    assert auroc(fitted(p), y) == pytest.approx(auroc(p, y), abs=1e-12)
