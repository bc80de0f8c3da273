"""Logistic regression: scikit-learn and scipy as authorities, fractional outcomes, separable data."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from sklearn.linear_model import LogisticRegression

from grampus_uq.stats.logistic_fit import fit_logistic, logistic


def records(seed: int, n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A design of an intercept and two features, outcomes by a logistic law, and weights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)) * 3.0
    y = (rng.random(n) < logistic(0.4 + x[:, 0] / 3)).astype(float)
    return np.column_stack([np.ones(n), x]), y, rng.random(n) + 0.1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("l2", [1.0, 0.05, 30.0])
def test_it_equals_scikit_learns_penalised_logistic_regression(seed, l2):
    design, y, w = records(seed)
    beta = fit_logistic(design, y, w, l2=np.array([0.0, l2, l2]), start=np.zeros(3))
    model = LogisticRegression(C=1 / l2, solver="newton-cholesky", tol=1e-12).fit(design[:, 1:], y, sample_weight=w)
    assert beta == pytest.approx([model.intercept_[0], *model.coef_[0]], abs=1e-8)


@pytest.mark.parametrize("seed", range(2))
def test_a_general_optimiser_finds_nothing_better(seed):
    """scipy's BFGS on the raw objective, from several starts, with a penalty of its own for each coefficient."""
    design, y, w = records(seed, n=200)
    l2 = np.array([0.0, 0.5, 4.0])

    def loss(beta):
        p = logistic(design @ beta)
        return -(w @ (y * np.log(p) + (1 - y) * np.log(1 - p))) + 0.5 * l2 @ beta**2

    starts = ([0, 0, 0], [1, 2, 0], [-1, 0.5, 1])
    results = (scipy.optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-9}) for start in starts)
    found = min(results, key=lambda result: result.fun)
    beta = fit_logistic(design, y, w, l2=l2, start=np.zeros(3))
    assert loss(beta) <= found.fun + 1e-10
    assert beta == pytest.approx(found.x, abs=1e-4)


def test_a_fractional_outcome_is_a_success_of_weight_q_and_a_failure_of_one_minus_q():
    design, _, w = records(3, n=60)
    q = np.random.default_rng(0).random(60)
    options = {"l2": np.array([0.0, 1.0, 1.0]), "start": np.zeros(3)}
    split = fit_logistic(
        np.tile(design, (2, 1)), np.repeat([1.0, 0.0], 60), np.concatenate([w * q, w * (1 - q)]), **options
    )
    assert fit_logistic(design, q, w, **options) == pytest.approx(split, abs=1e-8)


def test_separable_data_stay_finite_even_without_a_penalty():
    design = np.column_stack([np.ones(4), [-2.0, -1.0, 1.0, 2.0]])
    beta = fit_logistic(design, np.array([0.0, 0.0, 1.0, 1.0]), np.ones(4), l2=np.zeros(2), start=np.zeros(2))
    assert np.isfinite(beta).all()
    assert logistic(design @ beta) == pytest.approx([0, 0, 1, 1], abs=0.01)


def test_a_constant_column_is_no_obstacle():
    design = np.column_stack([np.ones(4), np.ones(4)])
    beta = fit_logistic(design, np.array([0.0, 1.0, 1.0, 1.0]), np.ones(4), l2=np.zeros(2), start=np.zeros(2))
    assert logistic(design @ beta) == pytest.approx([0.75] * 4)
