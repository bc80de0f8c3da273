"""Thresholds: the right order statistic, ties told apart, too few runs said so, and every promise in words."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.eprocess_thresholds import (
    Mode,
    bonferroni_threshold,
    budget_threshold,
    conformal_threshold,
    exceeds,
    exceeds_many,
    pac_threshold,
    successes_needed,
    threshold_from_json,
    threshold_to_json,
    ville_threshold,
)

LEVEL = st.floats(0.005, 0.9)
PAIRS = st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 1)), min_size=1, max_size=120)


@given(PAIRS, LEVEL, LEVEL)
def test_so_many_calibration_runs_pass_as_the_binomial_tail_of_algorithm_3_allows(
    pairs: list[tuple[int, float]], alpha: float, delta: float
) -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="the extra 'fit' is not installed")
    peaks, ties = np.array(pairs, dtype=float).T
    n = len(pairs)
    threshold = pac_threshold(peaks, ties, alpha, delta)
    tail = scipy_stats.binom.sf(np.arange(n), n, 1 - alpha)  # P(Bin(n, 1 - alpha) >= k), k = 1..n
    if (np.abs(tail - delta) < 1e-9).any():
        return  # on the edge either answer is right
    allowed = np.flatnonzero(tail <= delta)
    if not len(allowed):
        assert threshold.log_value == math.inf
        return
    rank = allowed[0] + 1
    assert threshold.rank == rank
    above = exceeds_many(threshold, peaks, ties).sum()
    assert above <= n - rank
    if len(set(pairs)) == n:
        assert above == n - rank


@given(PAIRS, LEVEL)
def test_the_conformal_threshold_leaves_out_at_most_alpha_of_the_runs_and_a_new_one(
    pairs: list[tuple[int, float]], alpha: float
) -> None:
    peaks, ties = np.array(pairs, dtype=float).T
    threshold = conformal_threshold(peaks, ties, alpha)
    above = exceeds_many(threshold, peaks, ties).sum()
    if threshold.rank is None:
        assert above == 0
        assert (len(pairs) + 1) * alpha < 1.0 + 1e-6
    else:
        assert above <= (len(pairs) + 1) * alpha + 1e-6
        assert len(pairs) + 1 - (threshold.rank - 1) > (len(pairs) + 1) * alpha - 1e-6  # no smaller rank would do


@given(PAIRS, LEVEL, st.integers(-4, 4), st.floats(0, 1))
def test_one_comparison_and_many_agree(pairs: list[tuple[int, float]], alpha: float, peak: int, tie: float) -> None:
    peaks, ties = np.array(pairs, dtype=float).T
    thresholds = (conformal_threshold(peaks, ties, alpha), ville_threshold(alpha), bonferroni_threshold(alpha, 3))
    for threshold in thresholds:
        one = exceeds(threshold, float(peak), tie)
        assert exceeds_many(threshold, np.array([float(peak)]), np.array([tie])).tolist() == [one]


def test_missing_evidence_never_exceeds() -> None:
    threshold = conformal_threshold([0.0] * 20, [0.5] * 20, 0.5)
    assert exceeds_many(threshold, np.array([np.nan]), np.array([0.9])).tolist() == [False]


def test_ties_are_told_apart_by_the_draw_and_only_villes_threshold_includes_equality() -> None:
    draws = np.arange(100) / 100
    threshold = conformal_threshold([1.0] * 100, draws, 0.2)
    assert exceeds_many(threshold, np.ones(100), draws).mean() == pytest.approx(0.2, abs=0.011)
    known = ville_threshold(0.25)
    assert exceeds(known, known.log_value, 0.0)
    assert exceeds(bonferroni_threshold(0.5, 2), math.log(4.0), 0.0)


@pytest.mark.parametrize(
    ("threshold", "needed"),
    [
        (pac_threshold([], [], 0.05, 0.1), 45),  # log(.1)/log(.95) = 44.9
        (pac_threshold([1.0] * 44, [0.5] * 44, 0.05, 0.1), 45),
        (conformal_threshold([1.0] * 18, [0.5] * 18, 0.05), 19),
        (budget_threshold([], [], 0.1), 9),
    ],
)
def test_too_few_runs_give_an_alarm_that_never_rings_and_say_how_many_are_needed(threshold: Any, needed: int) -> None:
    assert threshold.log_value == math.inf
    assert threshold.rank is None
    assert f"{needed} " in threshold.shortage
    assert not exceeds(threshold, 1e300, 1.0)
    assert not exceeds(threshold, math.inf, 1.0)


@given(st.sampled_from([Mode.PAC, Mode.CONFORMAL]), LEVEL, LEVEL)
def test_the_number_said_to_be_needed_is_the_least_that_suffices(mode: Mode, alpha: float, delta: float) -> None:
    needed = successes_needed(mode, alpha, delta)

    def finite(n: int) -> bool:
        runs = ([1.0] * n, [0.5] * n)
        threshold = pac_threshold(*runs, alpha, delta) if mode is Mode.PAC else conformal_threshold(*runs, alpha)
        return threshold.log_value < math.inf

    assert finite(needed)
    assert needed <= 1 or not finite(needed - 1)


def test_villes_and_bonferronis_thresholds_are_the_papers() -> None:
    assert ville_threshold(0.05).log_value == pytest.approx(math.log(20))
    assert bonferroni_threshold(0.05, 7).log_value == pytest.approx(math.log(140))
    assert successes_needed(Mode.VILLE, 0.05) == 0


def test_every_threshold_says_what_it_promises_and_what_breaks_it() -> None:
    runs = ([1.0] * 60, [0.5] * 60)
    pac = pac_threshold(*runs, 0.05, 0.1).guarantee
    assert all(part in pac for part in ("at least 90 %", "at most 5 %", "60 held-out", "breaks it"))
    assert "at most 5 %" in conformal_threshold(*runs, 0.05).guarantee
    assert "whatever their outcome" in budget_threshold(*runs, 0.05).guarantee
    assert "not a guarantee" in ville_threshold(0.05).guarantee
    assert "not a guarantee" in bonferroni_threshold(0.05, 3).guarantee


@pytest.mark.parametrize(
    "threshold",
    [
        pac_threshold([1.0] * 60, [0.5] * 60, 0.05, 0.1),
        pac_threshold([], [], 0.05, 0.1),
        budget_threshold([-math.inf] * 60, [0.5] * 60, 0.05),
        ville_threshold(0.3),
    ],
)
def test_json_gives_back_an_equal_threshold_infinite_ones_too(threshold: Any) -> None:
    assert threshold_from_json(json.loads(json.dumps(threshold_to_json(threshold), allow_nan=False))) == threshold


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pac_threshold([1.0], [0.5], 1.5, 0.1), "alpha"),
        (lambda: pac_threshold([1.0], [0.5], 0.1, 0.0), "delta"),
        (lambda: pac_threshold([math.nan], [0.5], 0.1, 0.1), "NaN"),
        (lambda: conformal_threshold([1.0], [0.5, 0.5], 0.1), "ties"),
        (lambda: conformal_threshold([1.0], [1.5], 0.1), "ties"),
        (lambda: budget_threshold([[1.0]], [0.5], 0.1), "one-dimensional"),
        (lambda: bonferroni_threshold(0.1, 0), "longest"),
        (lambda: ville_threshold(0.0), "alpha"),
        (lambda: successes_needed(Mode.PAC, 0.1), "delta"),
        (lambda: threshold_from_json(None), "mapping"),
    ],
)
def test_wrong_input_names_the_parameter(call: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call()
