"""Trees as plain arrays: scikit-learn's own predictions, one row and many rows alike, and no malformed forest."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.detector_bank import boosted_trees, fit_boosting, read_trees
from grampus_uq.stats.stored_values import from_json, to_json
from grampus_uq.stats.tree_ensemble import TreeEnsemble, evaluate_many, evaluate_one

STUMP: dict[str, Any] = {
    "baseline": 0.5,
    "roots": [0],
    "feature": [0, -1, -1],
    "threshold": [0.2, 0.0, 0.0],
    "left": [1, 0, 0],
    "right": [2, 0, 0],
    "value": [0.0, -1.0, 1.0],
}


@pytest.fixture(scope="module")
def boosted() -> tuple[Any, np.ndarray[Any, np.dtype[np.float64]]]:
    pytest.importorskip("sklearn", reason="the extra 'fit' is not installed")
    rng = np.random.default_rng(3)
    x = np.round(rng.normal(size=(5, 900)), 1)  # round numbers fall on split thresholds
    y = x[0] + 0.5 * x[1] ** 2 + rng.normal(size=900) > 0.4
    return fit_boosting(x, y, rng.uniform(0.1, 1.0, 900), [1, 0, 0, 0, 0]), x


def test_the_library_and_the_exported_trees_agree_to_1e_9(boosted: tuple[Any, Any]) -> None:
    model, x = boosted
    fresh = np.round(np.random.default_rng(4).normal(size=(5, 2000)) * 2, 1)
    trees = read_trees(model)
    for rows in (x, fresh):
        np.testing.assert_allclose(evaluate_many(trees, rows), model.decision_function(rows.T), rtol=0, atol=1e-9)


def test_trees_on_bins_are_the_library_s_own_where_each_value_has_one() -> None:
    pytest.importorskip("sklearn", reason="the extra 'fit' is not installed")
    rng = np.random.default_rng(5)
    x = np.clip(np.round(rng.normal(size=(3, 900)), 1), -3.0, 3.0)  # 61 values at most
    y, weight = x[0] * x[1] + rng.normal(size=900) > 0.2, rng.uniform(0.1, 1.0, 900)
    assert boosted_trees(x, y, weight, [1, 0, 0]) == read_trees(fit_boosting(x, y, weight, [1, 0, 0]))


@pytest.mark.parametrize("digits", [1, 2, 9])
def test_many_values_are_parted_where_the_weight_is_and_fall_on_the_side_that_was_learned(digits: int) -> None:
    pytest.importorskip("sklearn", reason="the extra 'fit' is not installed")
    rng = np.random.default_rng(digits)
    x, weight = np.round(rng.exponential(size=(2, 4000)) * 3.0, digits), rng.uniform(0.1, 1.0, 4000)
    cut = np.quantile(x[0], 0.8)
    y = x[0] <= cut
    sure = evaluate_many(boosted_trees(x, y, weight, [0, 0]), x)
    near = np.abs(np.argsort(np.argsort(x[0])) - 3200) < 3 * 4000 // 63  # a bin or two beside the cut
    assert ((sure > 0.0) == y)[~near].all()


def test_one_row_and_many_rows_agree_to_the_last_bit(boosted: tuple[Any, Any]) -> None:
    model, x = boosted
    trees = read_trees(model)
    assert evaluate_many(trees, x).tolist() == [evaluate_one(trees, row) for row in x.T.tolist()]


def test_a_monotone_feature_never_lowers_the_sum(boosted: tuple[Any, Any]) -> None:
    model, x = boosted
    trees = read_trees(model)
    higher = x.copy()
    higher[0] += 0.7
    assert (evaluate_many(trees, higher) >= evaluate_many(trees, x)).all()


def test_json_gives_back_an_equal_ensemble(boosted: tuple[Any, Any]) -> None:
    trees = read_trees(boosted[0])
    assert from_json(TreeEnsemble, json.loads(json.dumps(to_json(trees), allow_nan=False)), "trees") == trees


@pytest.mark.parametrize(
    "change",
    [
        {"left": [0, 0, 0]},  # a loop
        {"left": [9, 0, 0]},
        {"right": [-1, 0, 0]},
        {"roots": [3]},
        {"value": [0.0, 1.0]},
        {"value": [0.0, float("nan"), 1.0]},
        {"threshold": [float("inf"), 0.0, 0.0]},
        {"baseline": "0"},
        {"feature": [0.5, -1, -1]},
        {"feature": [True, -1, -1]},
        {"extra": []},
    ],
)
def test_a_malformed_forest_is_refused_before_it_is_walked(change: dict[str, Any]) -> None:
    assert evaluate_one(from_json(TreeEnsemble, STUMP, "trees"), [0.2]) == -0.5
    with pytest.raises(ConfigurationError):
        from_json(TreeEnsemble, {**STUMP, **change}, "trees")


def test_an_ensemble_without_trees_is_its_baseline() -> None:
    empty = TreeEnsemble(baseline=0.25, roots=(), feature=(), threshold=(), left=(), right=(), value=())
    assert evaluate_one(empty, []) == 0.25
    assert evaluate_many(empty, np.zeros((1, 2))).tolist() == [0.25, 0.25]
