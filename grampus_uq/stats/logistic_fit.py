"""Logistic models fitted by maximising a proper score: logistic regression for the log score, the same for any other.

`maximise sum_i w_i s(sigma(x_i . beta), y_i) - sum_j l2_j k (beta_j - centre_j)^2 / 2`, where k, the score's density
on the logit scale at the base rate (1 for log), lets one l2 shrink alike under every score. A few steps of Fisher
scoring; the log case is concave and equals scikit-learn's `LogisticRegression`, the others start from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from grampus_uq.stats.scoring import LOG, LogScore, ProperScore, expected_score

__all__ = ["LogisticProblem", "logistic", "maximise"]

FloatArray = npt.NDArray[np.float64]

_MOST_STEPS = 200
_MOST_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogisticProblem:
    """What is maximised. Validated by the caller.

    design: shape (n, k). outcomes: shape (n,), in [0, 1]. weights: shape (n,), not negative, not all 0. l2, centre:
    shape (k,), penalty of each coefficient and where it pulls to; a penalty of 0 leaves separable data without a
    finite optimum.
    """

    design: FloatArray
    outcomes: FloatArray
    weights: FloatArray
    l2: FloatArray
    centre: FloatArray
    score: ProperScore = LOG

    @property
    def penalty(self) -> FloatArray:
        """l2, scaled to the score."""
        rate = np.array([self.weights @ self.outcomes / self.weights.sum()])
        return np.asarray(self.l2 * self.score.logit_density(np.clip(rate, 0.0, 1.0)), dtype=np.float64)

    def value(self, beta: FloatArray) -> float:
        """Return the penalised score."""
        z = self.design @ beta
        y = self.outcomes
        # The log score is taken from the log-odds, unclipped: a clipped one is flat where the gradient still points
        # on.
        gains = (
            -(y * np.logaddexp(0.0, -z) + (1.0 - y) * np.logaddexp(0.0, z))
            if isinstance(self.score, LogScore)
            else expected_score(self.score, logistic(z), y)
        )
        return float(self.weights @ gains - 0.5 * self.penalty @ np.square(beta - self.centre))

    def scoring_step(self, beta: FloatArray) -> FloatArray:
        """Return the Fisher scoring step: expected information (never negative) against the gradient."""
        p = logistic(self.design @ beta)
        density = self.weights * self.score.logit_density(p)
        gradient = self.design.T @ (density * (self.outcomes - p)) - self.penalty * (beta - self.centre)
        information = (self.design.T * (density * p * (1.0 - p))) @ self.design + np.diag(self.penalty)
        # Least squares: a constant column, or saturated forecasts, leave the information singular.
        step: FloatArray = np.linalg.lstsq(information, gradient, rcond=None)[0].astype(np.float64)
        return step


def maximise(problem: LogisticProblem, start: FloatArray) -> FloatArray:
    """Climb to the maximum; concave and unique for log, for other scores the hill on which the log solution stands.

    Args:
        problem: what is maximised.
        start: shape (k,), where to begin.

    Returns:
        Coefficients, shape (k,), accurate to about 1e-10; after 200 steps (separable data without a penalty) those
        reached so far, finite.
    """
    if not isinstance(problem.score, LogScore):
        start = maximise(replace(problem, score=LOG), start)
    beta, value = start, problem.value(start)
    for _ in range(_MOST_STEPS):
        step = problem.scoring_step(beta)
        for _ in range(_MOST_HALVINGS):
            reached = problem.value(beta + step)
            # Near the top the gain drowns in rounding while the step still corrects digits: hence the slack.
            if reached >= value - 1e-13 * abs(value):
                break
            step = step / 2.0
        else:
            return beta
        beta, value = beta + step, reached
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
