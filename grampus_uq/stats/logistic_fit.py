"""Weighted, penalised logistic regression with fractional outcomes: `fit_logistic`, and the logistic function."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from grampus_uq.stats.arrays import FloatArray

_MOST_STEPS = 200
_MOST_HALVINGS = 40


def fit_logistic(
    design: FloatArray, outcomes: FloatArray, weights: FloatArray, *, l2: FloatArray, start: FloatArray
) -> FloatArray:
    """Maximise `sum_i w_i [y_i ln p_i + (1 - y_i) ln(1 - p_i)] - sum_j l2_j beta_j^2 / 2`, `p = sigma(design beta)`.

    Newton's method with halved steps; equal to scikit-learn's `LogisticRegression`, which takes no fractional
    outcomes and no penalty for each coefficient.

    Shapes: `design` (n, k), `outcomes` (n,) in [0, 1], `weights` (n,) not negative, not all 0, `l2` and `start` (k,),
    each coefficient's penalty and where it begins; the caller has checked them. Coefficients are accurate to about
    1e-10; separable data without a penalty have no finite optimum: then those reached after 200 steps.
    """

    def value(beta: FloatArray) -> float:
        # From the log-odds, unclipped: a clipped score is flat where the gradient still points on.
        z = design @ beta
        gains = -(outcomes * np.logaddexp(0.0, -z) + (1.0 - outcomes) * np.logaddexp(0.0, z))
        return float(weights @ gains - 0.5 * l2 @ np.square(beta))

    def newton_step(beta: FloatArray) -> FloatArray:
        p = logistic(design @ beta)
        gradient = design.T @ (weights * (outcomes - p)) - l2 * beta
        information = (design.T * (weights * p * (1.0 - p))) @ design + np.diag(l2)
        # Least squares: a constant column, or saturated forecasts, leave the information singular.
        step: FloatArray = np.linalg.lstsq(information, gradient, rcond=None)[0].astype(np.float64)
        return step

    beta, best = start, value(start)
    for _ in range(_MOST_STEPS):
        step = newton_step(beta)
        for _ in range(_MOST_HALVINGS):
            reached = value(beta + step)
            # Near the top the gain drowns in rounding while the step still corrects digits: hence the slack.
            if reached >= best - 1e-13 * abs(best):
                break
            step = step / 2.0
        else:
            return beta
        beta, best = beta + step, reached
        if (np.abs(step) <= 1e-12 * (1.0 + np.abs(beta))).all():
            return beta
    return beta


def logistic(z: npt.ArrayLike) -> FloatArray:
    """Return `sigma(z) = 1 / (1 + exp(-z))` to full relative precision at both ends, without overflow; NaN stays NaN.

    >>> logistic([-800.0, 0.0, 800.0]).tolist()
    [0.0, 0.5, 1.0]
    """
    x = np.asarray(z, dtype=np.float64)
    small = np.exp(-np.abs(x))
    return np.where(x >= 0.0, 1.0, small) / (1.0 + small)
