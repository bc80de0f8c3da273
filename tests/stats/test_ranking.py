"""Ranking metrics: scikit-learn is the outside authority for AUROC and AUPRC, brute force over orders for AURC."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.ranking import (
    auprc,
    aurc,
    auroc,
    auroc_rows,
    risk_coverage,
)
from tests.sampling import examples

# Scores on a coarse grid: ties are the rule, as with models that say .9.
tied_scores = st.sampled_from([-np.inf, -1.0, 0.0, 0.25, 0.5, 0.9, 1.0, 3e200, np.inf])
samples = st.lists(st.tuples(tied_scores, st.booleans()), min_size=1, max_size=60)
both_classes = samples.filter(lambda rows: len({label for _, label in rows}) == 2)


def split(rows):
    return np.array([s for s, _ in rows]), np.array([y for _, y in rows])


def finite(scores):
    """scikit-learn refuses infinities, and their order is all that counts."""
    return np.clip(scores, -1e300, 1e300)


@settings(max_examples=examples(60))
@given(both_classes)
def test_auroc_and_auprc_equal_scikit_learn_on_ties(rows):
    scores, labels = split(rows)
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, finite(scores)), abs=1e-12)
    assert auprc(scores, labels) == pytest.approx(average_precision_score(labels, finite(scores)), abs=1e-12)


@settings(max_examples=examples(60))
@given(both_classes, st.data())
def test_weighted_auroc_equals_scikit_learn(rows, data):
    scores, labels = split(rows)
    weights = np.array(data.draw(st.lists(st.floats(0.01, 50), min_size=len(rows), max_size=len(rows))))
    zeroed = data.draw(st.integers(0, len(rows) - 1))
    if len(set(np.delete(labels, zeroed))) == 2:
        weights[zeroed] = 0.0
    (found,) = auroc_rows(scores, labels.astype(float), weights[None])
    assert found == pytest.approx(roc_auc_score(labels, finite(scores), sample_weight=weights), abs=1e-12)


def test_large_random_samples_equal_scikit_learn():
    rng = np.random.default_rng(7)
    scores, labels = rng.random(20_000).round(3), rng.random(20_000) < 0.1
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert auprc(scores, labels) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("label", [0, 1])
def test_one_class_and_single_points_agree_with_scikit_learn_or_are_none_where_it_warns(n, label):
    scores, labels = np.linspace(0.1, 0.9, n), np.full(n, label)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        area, precision = roc_auc_score(labels, scores), average_precision_score(labels, scores)
    assert np.isnan(area)
    assert auroc(scores, labels) is None
    if label == 1:
        assert auprc(scores, labels) == precision == 1.0
    else:
        assert any("No positive class" in str(w.message) for w in caught)
        assert auprc(scores, labels) is None
    assert aurc(scores, labels) == 1 - label


def test_nothing_to_rank_is_undefined_everywhere():
    assert (auroc([], []), auprc([], []), aurc([], [])) == (None, None, None)
    assert [len(part) for part in risk_coverage([], [])] == [0, 0]


def test_zero_weight_on_one_class_is_the_same_as_its_absence():
    assert np.isnan(
        auroc_rows(np.array([0.1, 0.5, 0.9]), np.array([0.0, 1, 1]), np.array([[0.0, 1, 1], [0, 0, 0]]))
    ).all()


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_aurc_is_the_mean_over_every_order_of_the_tied_trajectories(rows):
    """Brute force: all permutations that sort by confidence, each scored by the definition."""
    areas = []
    for order in itertools.permutations(rows):
        confidences = [c for c, _ in order]
        if all(a >= b for a, b in itertools.pairwise(confidences)):
            errors = np.cumsum([not ok for _, ok in order])
            areas.append(np.mean(errors / np.arange(1, len(rows) + 1)))
    confidence, correct = split(rows)
    assert aurc(confidence, correct) == pytest.approx(np.mean(areas), abs=1e-12)
    coverage, risk = risk_coverage(confidence, correct)
    assert risk.mean() == pytest.approx(np.mean(areas), abs=1e-12)
    assert coverage[-1] == 1.0
    assert risk[-1] == pytest.approx(1 - correct.mean())


@pytest.mark.parametrize(
    ("successes", "n", "printed_auprc", "printed_aurc"),
    # Trajectory Proper Score paper, App. F, "Base-rate constant" rows of StrategyQA, Tau2-Bench and HotpotQA, on 2,229
    # (84.2 %), 201 (44.3 %) and 1,529 (58.3 %) trajectories: AUROC .500, AUPRC and AURC .158, .557, .417.
    [(1877, 2229, 0.158, 0.158), (89, 201, 0.557, 0.557), (892, 1529, 0.417, 0.417)],
)
def test_a_constant_forecast_has_the_base_rate_row_of_the_paper(successes, n, printed_auprc, printed_aurc):
    correct = np.arange(n) < successes
    constant = np.full(n, successes / n)
    assert auroc(1 - constant, ~correct) == 0.5
    assert auprc(1 - constant, ~correct) == pytest.approx(printed_auprc, abs=5e-4)
    assert aurc(constant, correct) == pytest.approx(printed_aurc, abs=5e-4)


@settings(max_examples=examples(60))
@given(both_classes, st.randoms(use_true_random=False))
def test_row_order_and_increasing_transforms_change_nothing(rows, random):
    scores, labels = split(rows)
    shuffled = rows[:]
    random.shuffle(shuffled)
    other_scores, other_labels = split(shuffled)
    warped = np.arctan(finite(other_scores) / 7) * 3 - 5
    ranks = np.unique(other_scores, return_inverse=True)[1].astype(float)
    for metric in (auroc, auprc, aurc):
        assert metric(other_scores, other_labels) == pytest.approx(metric(scores, labels), abs=1e-12)
        if len(np.unique(warped)) == len(np.unique(other_scores)):
            assert metric(warped, other_labels) == metric(other_scores, other_labels)
        assert metric(ranks, other_labels) == metric(other_scores, other_labels)


@settings(max_examples=examples(60))
@given(both_classes)
def test_turning_scores_and_labels_around_keeps_the_auroc(rows):
    scores, labels = split(rows)
    assert auroc(-scores, ~labels) == pytest.approx(auroc(scores, labels), abs=1e-12)
    assert auroc(-scores, labels) == pytest.approx(1 - auroc(scores, labels), abs=1e-12)


@settings(max_examples=examples(60))
@given(both_classes, st.integers(0, 2**32 - 1))
def test_a_row_of_counts_is_the_sample_written_out(rows, seed):
    """What the bootstrap relies on: weighting by counts equals repeating the trajectories."""
    scores, labels = split(rows)
    counts = np.random.default_rng(seed).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=5).astype(float)
    y = labels.astype(float)
    by_rows = auroc_rows(scores, y, counts)
    for got, row in zip(by_rows, counts.astype(int), strict=True):
        repeated, repeated_labels = np.repeat(scores, row), np.repeat(labels, row)
        expected = auroc(repeated, repeated_labels)
        if expected is None:
            assert np.isnan(got)
        else:
            assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [auroc, auprc, aurc, risk_coverage])
@pytest.mark.parametrize(
    ("scores", "labels", "says"),
    [
        ([0.1, np.nan], [0, 1], "free of NaN"),
        ([0.1, 0.2], [0, 2], "0/1"),
        ([0.1, 0.2], [0, np.nan], "0/1"),
        ([0.1, 0.2, 0.3], [0, 1], "as long as"),
        ([[0.1, 0.2]], [[0, 1]], "one-dimensional"),
    ],
)
def test_hostile_input_is_refused_by_name(metric, scores, labels, says):
    with pytest.raises(ConfigurationError, match=says) as refused:
        metric(scores, labels)
    assert f"`{metric.__name__}`" in str(refused.value)
