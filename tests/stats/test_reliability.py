"""Binned calibration error with ties, Brier loss, and decompositions that sum exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.reliability import (
    decompose,
    quantile_bins,
    reliability_bins,
    trajectory_brier,
    trajectory_ece,
)
from grampus_uq.stats.scoring import BRIER, LOG, beta_score, expected_score
from grampus_uq.stats.trajectory_scores import ForecastTraces, step_weights, tps
from tests.benchmarks.schedules import SCHEDULES
from tests.sampling import examples

SCORES = [LOG, BRIER, beta_score(a=2, b=4), beta_score(a=4, b=1)]
every_score = pytest.mark.parametrize("score", SCORES, ids=[score.name for score in SCORES])
forecast = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 0.8, 0.9, 1.0]), st.floats(0, 1))
samples = st.lists(st.tuples(forecast, st.booleans()), min_size=1, max_size=80)


def split(rows):
    return np.array([p for p, _ in rows]), np.array([y for _, y in rows], dtype=float)


# -- bins, T-ECE, T-Brier ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(samples, st.integers(1, 15), st.randoms(use_true_random=False))
def test_ties_share_a_bin_and_row_order_does_not_matter(rows, bins, random):
    p, _ = split(rows)
    member = quantile_bins(p, bins)
    assert set(member) == set(range(member.max() + 1))
    assert member.max() + 1 <= bins
    for a, b in zip(p, member, strict=True):
        assert (member[p == a] == b).all()
    assert (np.diff(member[np.argsort(p, kind="stable")]) >= 0).all()
    order = list(range(len(p)))
    random.shuffle(order)
    assert quantile_bins(p[order], bins).tolist() == member[order].tolist()


@settings(max_examples=examples(40))
@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_without_ties_the_bins_are_equally_full(bins, size, seed):
    p = np.random.default_rng(seed).permutation(bins * size) / (bins * size)
    assert np.bincount(quantile_bins(p, bins)).tolist() == [size] * bins


def test_what_does_not_divide_leaves_the_last_bins_smaller():
    """Edges at ranks ceil(5/3) = 2 and ceil(10/3) = 4; a forecast on an edge belongs below it."""
    assert quantile_bins([0.1, 0.2, 0.3, 0.4, 0.5], bins=3).tolist() == [0, 0, 1, 1, 2]


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_without_ties_the_bins_are_scikit_learns(seed, bins):
    rng = np.random.default_rng(seed)
    p = rng.random(bins * 20)
    y = rng.random(len(p)) < p
    rates, means = calibration_curve(y, p, n_bins=bins, strategy="quantile")
    got = reliability_bins(p, y, bins)
    assert [group.success_rate for group in got] == pytest.approx(rates.tolist())
    assert [group.mean_forecast for group in got] == pytest.approx(means.tolist())
    assert trajectory_ece(p, y, bins) == pytest.approx(np.mean(np.abs(rates - means)))


def test_a_saturated_stream_by_hand():
    """Ten verbal confidences, seven of them 1: edges at ranks 1, 2, ..., 9 fall on .2, .6, .9 and then on 1."""
    p = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.6, 0.2]
    y = [1, 1, 0, 0, 1, 1, 1, 1, 0, 0]
    groups = reliability_bins(p, y)
    assert [(g.low, g.high, g.count) for g in groups] == [(0.2, 0.2, 1), (0.6, 0.6, 1), (0.9, 0.9, 1), (1.0, 1.0, 7)]
    assert trajectory_ece(p, y) == pytest.approx((0.2 + 0.6 + 0.1 + 7 * (2 / 7)) / 10)


def test_splitting_ties_by_row_would_have_reported_another_error():
    """What tie-aware means: the same forecast in two bins, sorted by luck, invents miscalibration."""
    p, y = np.full(20, 0.5), np.repeat([1.0, 0.0], 10)
    assert trajectory_ece(p, y, bins=2) == 0
    halves = [abs(0.5 - y[:10].mean()), abs(0.5 - y[10:].mean())]
    assert np.mean(halves) == 0.5


def test_the_base_rate_has_no_calibration_error():
    """App. F: the base-rate rows print T-ECE 0.000 and T-Brier p (1 - p)."""
    y = np.arange(201) < 89
    constant = np.full(201, y.mean())
    assert trajectory_ece(constant, y) == pytest.approx(0, abs=1e-15)
    assert round(trajectory_brier(constant, y), 3) == 0.247


@settings(max_examples=examples(40))
@given(samples)
def test_trajectory_brier_is_scikit_learns(rows):
    p, y = split(rows)
    assert trajectory_brier(p, y) == pytest.approx(brier_score_loss(y, p, labels=[0, 1], pos_label=1), abs=1e-15)


def test_nothing_to_summarise_is_undefined():
    assert reliability_bins([], []) == []
    assert trajectory_ece([], []) is None
    assert trajectory_brier([], []) is None
    assert decompose([], [], LOG) is None
    assert decompose([], [], LOG, bins=10) is None


# -- decompositions ---------------------------------------------------------------------------------------------------


@every_score
@settings(max_examples=examples(20))
@given(samples, st.integers(0, 2**32 - 1))
def test_reliability_resolution_and_uncertainty_sum_exactly(score, rows, seed):
    p, y = split(rows)
    weights = np.random.default_rng(seed).random(len(p)) + 0.01
    for w in (None, weights):
        parts = decompose(p, y, score, weights=w)
        assert parts.score == pytest.approx(np.average(expected_score(score, p, y), weights=w), abs=1e-12)
        assert parts.resolution - parts.reliability - parts.uncertainty == pytest.approx(parts.score, abs=1e-12)
        assert parts.resolution >= -1e-12
        assert parts.reliability >= -1e-12
        assert parts.uncertainty >= 0


@every_score
@settings(max_examples=examples(20))
@given(samples, st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_binned_parts_sum_exactly_with_the_terms_within_bins(score, rows, bins, seed):
    p, y = split(rows)
    weights = np.random.default_rng(seed).random(len(p)) * (np.arange(len(p)) % 5 > 0) + (np.arange(len(p)) == 0)
    for w in (None, weights):
        parts = decompose(p, y, score, bins=bins, weights=w)
        total = parts.resolution - parts.reliability - parts.uncertainty - parts.spread + parts.covariance
        assert total == pytest.approx(parts.score, abs=1e-12)
        assert parts.score == pytest.approx(np.average(expected_score(score, p, y), weights=w), abs=1e-12)
        assert parts.resolution >= -1e-12
        assert parts.reliability >= -1e-12


def test_for_brier_the_parts_are_murphys_and_stephensons():
    """Murphy (1973): reliability = mean (p - rate)^2, resolution = mean (rate - base)^2, uncertainty = base (1 - base).

    Stephenson, Coelho and Jolliffe (2008): within bins the variance and twice the covariance.
    """
    rng = np.random.default_rng(4)
    p, q = rng.random(300).round(1), rng.random(300)
    y = (rng.random(300) < p).astype(float)
    rates = np.array([y[p == value].mean() for value in p])
    parts = decompose(p, y, BRIER)
    assert parts.reliability == pytest.approx(np.mean((p - rates) ** 2), abs=1e-14)
    assert parts.resolution == pytest.approx(np.mean((rates - y.mean()) ** 2), abs=1e-14)
    assert parts.uncertainty == pytest.approx(y.mean() * (1 - y.mean()), abs=1e-14)
    member = quantile_bins(q, 7)
    means = np.array([q[member == b].mean() for b in member])
    rates = np.array([y[member == b].mean() for b in member])
    binned = decompose(q, y, BRIER, bins=7)
    assert binned.spread == pytest.approx(np.mean((q - means) ** 2), abs=1e-14)
    assert binned.covariance == pytest.approx(2 * np.mean((q - means) * (y - rates)), abs=1e-14)


@every_score
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_the_mean_trajectory_score_decomposes_over_its_steps(score, schedule):
    rng = np.random.default_rng(8)
    traces = ForecastTraces.of([rng.random(k).round(1).tolist() for k in rng.integers(1, 9, 200)])
    y = (rng.random(200) < 0.6).astype(float)
    parts = decompose(traces.forecasts, traces.spread(y), score, weights=step_weights(traces, schedule))
    assert parts.score == pytest.approx(tps(traces, y, score=score, schedule=schedule).mean(), abs=1e-12)
    assert parts.resolution - parts.reliability - parts.uncertainty == pytest.approx(parts.score, abs=1e-12)
    base = y.mean()
    assert parts.uncertainty == pytest.approx(-float(expected_score(score, base, base)), abs=1e-12)


def test_recalibration_moves_reliability_and_leaves_resolution():
    rng = np.random.default_rng(5)
    truth = rng.integers(1, 10, 4000) / 10
    y = rng.random(4000) < truth
    honest, squared = decompose(truth, y, LOG), decompose(truth**2, y, LOG)
    assert squared.resolution == pytest.approx(honest.resolution, abs=1e-12)
    assert squared.reliability > honest.reliability + 0.05


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: quantile_bins([0.5, np.nan]), "NaN"),
        (lambda: quantile_bins([0.5], bins=0), "bins"),
        (lambda: quantile_bins([0.5], bins=2.5), "bins"),
        (lambda: trajectory_ece([0.5, 85], [0, 1]), "forecasts"),
        (lambda: trajectory_brier([0.5], [0, 1]), "outcomes"),
        (lambda: reliability_bins([0.5], [np.nan]), "outcomes"),
        (lambda: decompose([0.5], [1], LOG, weights=[0]), "weights"),
        (lambda: decompose([0.5, 0.1], [1, 0], LOG, bins=10, weights=[1, -1]), "weights"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, says):
    with pytest.raises(ConfigurationError, match=says):
        call()
