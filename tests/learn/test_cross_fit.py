"""Cross-fitted recalibration of one stream: honesty, robustness to the order of rows, hostile streams."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.fit_calibration import apply_fusion, cross_fit, fit_fusion, fit_success
from grampus_uq.stats.fusion import LogisticFusion
from grampus_uq.stats.halves import split_halves
from grampus_uq.stats.logistic_fit import logistic
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.scoring import BRIER, EPSILON, LOG, beta_score
from grampus_uq.stats.trajectory_scores import ForecastTraces, tps
from tests.benchmarks.proper_scores import load
from tests.sampling import examples, sampled

DENSE = np.linspace(0, 1, 501)
HALF = {"forecast": 0.5}


def ragged(seed: int, n: int = 600) -> tuple[ForecastTraces, np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    skill = rng.normal(size=n)
    y = (rng.random(n) < logistic(skill)).astype(float)
    rows = [
        np.round(logistic(3 * (skill[i] + 0.7 * rng.normal(size=rng.integers(1, 9)))), 2).tolist() for i in range(n)
    ]
    return ForecastTraces.of(rows), y, [f"run-{i:04d}" for i in range(n)]


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
    before = cross_fit({"forecast": traces}, y, ids)
    changed = traces.forecasts.copy()
    changed[: traces.lengths[0]] = 0.01
    after = cross_fit({"forecast": traces.with_forecasts(changed)}, y, ids)
    own, other = (0, 1) if before.second_half[0] else (1, 0)
    assert after.fusions[own] == before.fusions[own]
    assert after.fusions[other] != before.fusions[other]
    calibrated = [apply_fusion(fusion, {"forecast": traces.forecasts}) for fusion in before.fusions]
    expected = np.where(np.repeat(before.second_half, traces.lengths), *calibrated)
    assert before.traces.forecasts.tolist() == expected.tolist()


def test_cross_fitting_ignores_row_order():
    traces, y, ids = ragged(5, n=60)
    straight = cross_fit({"forecast": traces}, y, ids)
    order = np.random.default_rng(0).permutation(60)
    rows = [traces.forecasts[traces.starts[i] : traces.starts[i] + traces.lengths[i]].tolist() for i in order]
    shuffled = cross_fit({"forecast": ForecastTraces.of(rows)}, y[order], [ids[i] for i in order])
    for got, expected in zip(shuffled.fusions, straight.fusions, strict=True):
        assert got(HALF) == pytest.approx(expected(HALF), rel=1e-9)


@pytest.mark.parametrize("score", [LOG, BRIER, beta_score(a=2, b=4)], ids=lambda score: score.name)
def test_recalibration_repairs_an_overconfident_stream_on_runs_it_never_saw(score):
    traces, y, ids = ragged(6, n=1500)
    gain = tps(cross_fit({"forecast": traces}, y, ids).traces, y, score=score) - tps(traces, y, score=score)
    assert gain.mean() / (gain.std() / np.sqrt(len(y))) > 3


def test_sabotage_fitting_and_judging_on_the_same_runs_flatters_noise():
    """Streams without any information: on average they beat the base rate in sample, not cross-fitted."""
    rng = np.random.default_rng(7)
    y, ids = (rng.random(60) < 0.5).astype(float), [f"{i:03d}" for i in range(60)]
    flattered, honest = [], []
    for _ in range(40):
        traces = ForecastTraces(forecasts=rng.random(60), lengths=np.ones(60, dtype=np.int64))
        base = tps(traces.with_forecasts(np.full(60, y.mean())), y).mean()
        in_sample = apply_fusion(fit_fusion({"p": traces}, y), {"p": traces.forecasts})
        flattered.append(tps(traces.with_forecasts(in_sample), y).mean() - base)
        honest.append(tps(cross_fit({"forecast": traces}, y, ids).traces, y).mean() - base)
    assert np.mean(flattered) > 0.001
    assert np.mean(honest) < 0


def test_a_missing_forecast_stays_missing():
    rows = [[0.9, 0.8], [0.2], [0.7, None], [0.3], [0.6], [0.4], [None], [0.1]]
    y, ids = np.array([1, 0, 1, 0, 1, 0, 1, 0.0]), list("abcdefgh")
    got = cross_fit({"forecast": ForecastTraces.of(rows)}, y, ids)
    assert got.traces.missing.tolist() == [row.count(None) > 0 for row in rows]


@sampled("name", ["gsm8k"], full=["gsm8k", "hotpotqa", "chessgames"])
def test_cross_fitted_platt_raises_the_score_of_real_verifiers(name):
    root = os.environ.get("GRAMPUS_UQ_DATA")
    if not root:
        pytest.skip("GRAMPUS_UQ_DATA is not set: real verifier scores are needed")
    traces, outcomes, ids = load(Path(root) / "verifier_scores" / f"{name}.csv.gz")
    gain = tps(cross_fit({"forecast": traces}, outcomes, ids).traces, outcomes) - tps(traces, outcomes)
    assert gain.mean() / (gain.std() / np.sqrt(len(gain))) > 3


def on_single_steps(p: np.ndarray, y: np.ndarray, w: np.ndarray | None = None) -> LogisticFusion:
    traces = ForecastTraces(forecasts=p, lengths=np.ones(len(p), dtype=np.int64))
    return fit_fusion({"p": traces}, np.asarray(y, dtype=float), run_weights=w)


@settings(max_examples=examples(40))
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1e-300, 0.3, 0.5, 0.9, 1.0]), st.booleans(), st.sampled_from([1.0, 1e-9])),
        min_size=1,
        max_size=12,
    )
)
def test_every_map_is_monotone_finite_and_inside_its_clipping(rows):
    p, y, w = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    mapped = apply_fusion(on_single_steps(p, y, w), {"p": DENSE})
    assert np.isfinite(mapped).all()
    assert (np.diff(mapped) >= -1e-15).all()
    assert mapped.min() >= EPSILON
    assert mapped.max() <= 1 - EPSILON


def test_a_signal_that_points_the_wrong_way_is_flattened_to_the_base_rate_not_turned_around():
    rng = np.random.default_rng(8)
    z = rng.normal(size=400)
    y = rng.random(400) < logistic(z)
    fitted = on_single_steps(logistic(-z), y)
    assert fitted.flat
    assert fitted({"p": 0.123}) == fitted({"p": 0.987}) == pytest.approx(y.mean())
    right = on_single_steps(logistic(z), y)
    assert auroc(apply_fusion(right, {"p": logistic(z)}), y) == pytest.approx(auroc(z, y), abs=1e-12)


def test_a_saturated_stream_keeps_the_base_rate():
    """App. D, limitations: one unique value."""
    fitted = on_single_steps(np.full(50, 1.0), np.arange(50) < 20)
    assert fitted.flat
    assert fitted({"p": 1.0}) == pytest.approx(0.4)


@pytest.mark.parametrize("label", [0, 1])
def test_outcomes_of_one_class_give_a_flat_clipped_map(label):
    fitted = on_single_steps(np.linspace(0.1, 0.9, 9), np.full(9, label))
    assert fitted.flat
    assert fitted({"p": 0.5}) == pytest.approx(EPSILON if label == 0 else 1 - EPSILON)


def test_unusable_splits_are_refused():
    traces = ForecastTraces.of([[0.5], [0.6]])
    with pytest.raises(ConfigurationError, match="distinct"):
        cross_fit({"forecast": traces}, [0, 1], ["a", "a"])
    with pytest.raises(ConfigurationError, match="observed"):
        cross_fit({"forecast": traces}, [0, np.nan], ["a", "b"])
    with pytest.raises(ConfigurationError, match="at least one reading"):
        cross_fit({"forecast": traces}, [0, 1], ["a", "b"])  # one of each label: the second half is empty
    for weights in ([1.0], [1.0, 0.0], [1.0, np.inf]):
        with pytest.raises(ConfigurationError, match="run_weights"):
            fit_success({"forecast": traces}, [0, 1], ["a", "b"], run_weights=weights)
