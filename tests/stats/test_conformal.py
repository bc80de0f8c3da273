"""Thresholds, sets and their vectorised evaluation agree with each other and refuse what they cannot mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import ragged
from grampus_uq.stats.conformal import (
    conformal_threshold,
    coverage_rank,
    prediction_sets,
    recall_conformity,
    whole_rank_size,
)
from grampus_uq.stats.entry_thresholds import (
    EntryThresholds,
    keep_first,
    right_filtration_entry,
    two_way_entry,
    vanilla_entry,
)
from tests.benchmarks.split_evaluation import conformity_at, evaluate_splits, random_splits, with_fallback


def small_world(seed: int, n: int = 23) -> tuple[list[list[float]], np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 5, rng.integers(1, 8)).astype(float).tolist() for _ in range(n)]
    return rows, np.array([rng.integers(len(row)) for row in rows]), rng


def with_infinities(entry: EntryThresholds) -> EntryThresholds:
    values = entry.values.copy()
    values[np.arange(len(values)), entry.lengths - 1] = np.inf
    return EntryThresholds(values=values, lengths=entry.lengths)


@pytest.mark.parametrize("ties_broken", [True, False])
@pytest.mark.parametrize("family", ["vcp", "rf with infinities", "twf with fallback", "twf kept"])
def test_a_thousand_splits_at_once_equal_one_split_at_a_time(family: str, ties_broken: bool) -> None:
    rows, true_step, rng = small_world(3)
    batch = ragged(rows)
    entry = {
        "vcp": lambda: vanilla_entry(batch),
        "rf with infinities": lambda: with_infinities(right_filtration_entry(batch)),
        "twf with fallback": lambda: with_fallback(two_way_entry(batch), batch),
        "twf kept": lambda: keep_first(two_way_entry(batch)),
    }[family]()
    levels = (0.1, 0.5, 0.8, 0.95)
    calibration, test = random_splits(len(rows), 30, rng)
    draws = rng.random((30, len(rows)))
    result = evaluate_splits(entry, true_step, calibration, test, levels, draws if ties_broken else None)
    for s in range(30):
        for column, level in enumerate(levels):
            part = calibration[s]
            scores = conformity_at(entry, true_step)[part]
            threshold = conformal_threshold(scores, level, draws[s, part] if ties_broken else None)
            sets = prediction_sets(entry, threshold, draws[s] if ties_broken else None)[test[s]]
            size = sets.sum(axis=1)
            assert result.coverage[s, column] == sets[np.arange(len(test[s])), true_step[test[s]]].mean()
            assert result.size[s, column] == size.mean()
            assert result.removal_rate[s, column] == pytest.approx((1 - size / batch.lengths[test[s]]).mean())
            lazy = np.minimum(size + 1, batch.lengths[test[s]]).mean()
            assert result.lazy_evaluations[s, column] == lazy
            if entry.fallback is None:
                assert result.empty_share[s, column] == (size == 0).mean()


def test_splits_may_use_rows_that_hold_another_fit_of_the_same_trajectories() -> None:
    """Two fits stacked as rows, one split each: the same as evaluating each fit on its own."""
    rows, true_step, rng = small_world(4)
    first, second = vanilla_entry(ragged(rows)), vanilla_entry(ragged([[-s for s in row] for row in rows]))
    stacked = EntryThresholds(
        values=np.concatenate([first.values, second.values]), lengths=np.concatenate([first.lengths, second.lengths])
    )
    calibration, test = random_splits(len(rows), 2, rng)
    shift = np.array([[0], [len(rows)]])
    both = evaluate_splits(stacked, np.tile(true_step, 2), calibration + shift, test + shift, (0.7,))
    for s, entry in enumerate((first, second)):
        alone = evaluate_splits(entry, true_step, calibration[s : s + 1], test[s : s + 1], (0.7,))
        assert both.coverage[s].tolist() == alone.coverage[0].tolist()
        assert both.size[s].tolist() == alone.size[0].tolist()


@given(
    st.lists(st.integers(0, 3).map(float), min_size=1, max_size=12),
    st.integers(0, 2**32 - 1),
    st.floats(0.05, 0.95),
)
def test_exactly_k_calibration_scores_enter_by_their_own_threshold(
    scores: list[float], seed: int, level: float
) -> None:
    """However tied the scores are, the draws order them, and the k-th is the last to enter."""
    draws = np.random.default_rng(seed).random(len(scores))
    threshold = conformal_threshold(scores, level, draws)
    entry = vanilla_entry(ragged([[-s] for s in scores]))
    entered = prediction_sets(entry, threshold, draws).sum()
    assert entered == (len(scores) if threshold.rank is None else threshold.rank)


def test_too_few_calibration_trajectories_give_the_whole_trajectory() -> None:
    threshold = conformal_threshold([0.1, 0.2, 0.3], 0.9, [0.5, 0.5, 0.5])
    assert (threshold.value, threshold.rank, threshold.expected_coverage) == (math.inf, None, 1.0)
    entry = with_infinities(right_filtration_entry(ragged([[1.0, 2.0], [3.0]])))
    assert prediction_sets(entry, threshold, [0.9, 0.9]).tolist() == [[True, True], [True, False]]
    assert conformal_threshold([], 0.5).value == math.inf


def test_the_rank_is_not_pushed_up_by_rounding() -> None:
    assert [coverage_rank(n, level) for n, level in ((9, 0.7), (99, 0.29), (19, 0.9), (9, 0.9))] == [7, 29, 18, 9]


def test_a_percentage_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigurationError, match=r"A percentage\? Use 0.8"):
        conformal_threshold([0.1], 80)


@given(
    st.lists(st.tuples(st.integers(0, 6).map(float), st.booleans()), min_size=1, max_size=9),
    st.floats(0.01, 1.0),
)
def test_recall_conformity_is_the_least_threshold_that_reaches_the_recall(
    steps: list[tuple[float, bool]], recall: float
) -> None:
    entries = [e for e, _ in steps]
    errors = [wrong for _, wrong in steps]
    if not any(errors):
        errors[-1] = True
    entry = EntryThresholds(values=np.array([entries]), lengths=np.array([len(entries)]))
    score = recall_conformity(entry, np.array([errors]), recall)[0]

    def reached(q: float) -> bool:
        found = sum(e <= q for e, wrong in zip(entries, errors, strict=True) if wrong)
        return found >= recall * sum(errors) - 1e-9

    assert score == min(q for q in entries if reached(q))


def test_recall_with_one_error_is_the_ordinary_score_even_at_infinity() -> None:
    entry = with_infinities(right_filtration_entry(ragged([[1.0, 2.0, 1.0], [4.0]])))
    errors = np.array([[False, False, True], [True, False, False]])
    assert recall_conformity(entry, errors, 0.3).tolist() == conformity_at(entry, [2, 0]).tolist() == [math.inf] * 2


@pytest.mark.parametrize(
    ("errors", "recall", "message"),
    [
        ([[True, False], [False, False]], 1.0, "row 1"),
        ([[True, False], [True, True]], 1.0, "False in the padding"),
        ([[1, 0], [1, 0]], 1.0, "booleans"),
        ([[True], [True]], 1.0, "shape"),
        ([[True, False], [True, False]], 0.0, "recall"),
        ([[True, False], [True, False]], 1.5, "recall"),
    ],
)
def test_recall_refuses_labels_that_mean_nothing(errors: list[list[bool]], recall: float, message: str) -> None:
    entry = vanilla_entry(ragged([[1.0, 2.0], [3.0]]))
    with pytest.raises(ConfigurationError, match=message):
        recall_conformity(entry, np.array(errors), recall)


@pytest.mark.parametrize("true_step", [[0, 1], [-1, 0], [2, 0], [0.0, 0.0], [0]])
def test_a_true_step_outside_its_trajectory_is_refused(true_step: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="true_step"):
        conformity_at(vanilla_entry(ragged([[1.0, 2.0], [3.0]])), true_step)


def test_nan_scores_and_draws_of_another_length_are_refused() -> None:
    entry = vanilla_entry(ragged([[1.0]]))
    threshold = conformal_threshold([1.0], 0.4)
    for call in (
        lambda: conformal_threshold([math.nan], 0.5),
        lambda: conformal_threshold([0.1], 0.5, [0.1, 0.2]),
        lambda: prediction_sets(entry, threshold, [0.1, 0.2]),
        lambda: evaluate_splits(entry, [0], np.array([0]), np.array([0]), (0.5,)),
        lambda: random_splits(1, 3, np.random.default_rng(0)),
    ):
        with pytest.raises(ConfigurationError):
            call()


@given(st.integers(0, 300), st.sampled_from([0.5, 0.7, 0.8, 0.9, 0.95, 0.777]))
def test_the_whole_rank_size_wastes_nothing_or_leaves_the_size_alone(n: int, level: float) -> None:
    m = whole_rank_size(n, level)
    assert n // 2 - 1 <= m <= n
    rank = coverage_rank(m, level)
    if m != n:
        assert rank is not None
        assert rank / (m + 1) == pytest.approx(level)


def test_random_splits_part_the_trajectories_without_loss() -> None:
    calibration, test = random_splits(7, 50, np.random.default_rng(0), labelled=3)
    assert np.sort(np.concatenate([calibration, test], axis=1), axis=1).tolist() == [list(range(7))] * 50
    assert len({tuple(row) for row in calibration.tolist()}) > 20
