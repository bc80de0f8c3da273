"""A step scorer that is fitted: softmax within the trajectory over cheap features, with a ridge penalty.

`p_j = exp(w . z_j) / sum_l exp(w . z_l)`, where z are the features standardised on the fitting part, and the step score
is `v_j = L p_j`: how many times as likely as an average step, comparable between short and long trajectories.

Fitted by Newton's method on the concave penalised likelihood, on labelled trajectories that serve nothing else.
(Conditional logit: McFadden, 1974. Not in the attribution paper, whose scorers are language models.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory, Trajectory
from grampus_uq.learn.attribution.features import FEATURE_WORDS, cheap_features
from grampus_uq.learn.attribution.scorers import StepScore
from grampus_uq.stats.arrays import FloatArray

_RIDGE = 30.0
"""Default penalty on half the squared weights; strong, because labelled failures are few."""

_SCALE_FLOOR = 1e-6  # a feature with less spread than this is constant: it is centred, not blown up


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalLogit:
    """The fitted numbers: a name, a mean, a scale (> 0) and a weight for each feature.

    fitted_on: ids of the trajectories that served the fit; calibration refuses them.
    """

    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    ridge: float
    fitted_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "weights"):
            values = getattr(self, name)
            if len(values) != len(self.features) or not all(map(math.isfinite, values)):
                rule = f"{len(self.features)} finite numbers"
                raise ConfigurationError.of(name, "ConditionalLogit", rule, values)
        if not all(scale > 0.0 for scale in self.scale):
            raise ConfigurationError.of("scale", "ConditionalLogit", "positive", self.scale)

    def standardised(self, values: FloatArray) -> FloatArray:
        """Bring features of shape (L, F) to the scale of the fit."""
        return np.asarray((values - np.array(self.mean)) / np.array(self.scale))

    def probabilities(self, values: FloatArray) -> FloatArray:
        """Return p_j of one trajectory from its features of shape (L, F): in (0, 1), summing to 1."""
        return _softmax(self.standardised(values) @ np.array(self.weights))


def fit_conditional_logit(
    features: Sequence[FloatArray],
    error_steps: Sequence[Sequence[int]],
    names: Sequence[str],
    *,
    ridge: float = _RIDGE,
    fitted_on: Sequence[str] = (),
) -> ConditionalLogit:
    """Fit the weights: maximise `sum_i mean_{j in errors_i} log p_ij - (ridge/2) |w|^2`.

    Args:
        features: n >= 1 arrays of shape (L_i, F), finite.
        error_steps: n sequences of indices; several errors in one trajectory share its weight.
        names: F feature names.
        ridge: penalty on standardised weights, > 0 (which also makes the maximum unique).
        fitted_on: ids to remember, so that calibration can refuse them.

    Returns:
        The fit. Features are standardised by mean and deviation over all steps of the fitting part; a constant
        feature gets the weight 0.

    Raises:
        ConfigurationError: nothing to fit, shapes that differ, values that are not finite, ridge <= 0.
    """
    if not 0.0 < ridge < math.inf:
        raise ConfigurationError.of("ridge", "fit_conditional_logit", "positive and finite", ridge)
    if not features or len(features) != len(error_steps):
        rule = "at least one trajectory, each with its errors"
        raise ConfigurationError.of("features", "fit_conditional_logit", rule, (len(features), len(error_steps)))
    for i, values in enumerate(features):
        if values.ndim != 2 or values.shape[1] != len(names) or not np.isfinite(values).all():
            rule = f"finite, of shape (L, {len(names)})"
            raise ConfigurationError.of("features", "fit_conditional_logit", rule, f"row {i}: {values.shape}")
    stacked = np.concatenate(list(features))
    mean, spread = stacked.mean(axis=0), stacked.std(axis=0)
    scale = np.where(spread < _SCALE_FLOOR, 1.0, spread)
    lengths = np.array([len(values) for values in features])
    targets = np.concatenate([_shares(len(f), errors) for f, errors in zip(features, error_steps, strict=True)])
    weights = _newton((stacked - mean) / scale, targets, lengths, ridge)
    return ConditionalLogit(
        features=tuple(names),
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(weights.tolist()),
        ridge=ridge,
        fitted_on=tuple(fitted_on),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalLogitScorer:
    """Scores a trajectory with a fit over `cheap_features`: `v_j = L p_j`."""

    model: ConditionalLogit
    name: str = "conditional_logit"

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """Ids of the trajectories that the fit has seen."""
        return self.model.fitted_on

    def score(self, trajectory: Trajectory, /) -> Sequence[StepScore]:
        """Score every step, each with the features that speak most against it.

        Raises ConfigurationError when the fit is over other features.
        """
        names, values = cheap_features(trajectory)
        if names != self.model.features:
            rule = f"fitted on the {len(names)} features of `cheap_features`"
            raise ConfigurationError.of("model", "ConditionalLogitScorer", rule, self.model.features)
        p = self.model.probabilities(values)
        z = self.model.standardised(values)
        above = z - z.mean(axis=0)
        weights = np.array(self.model.weights)
        return [
            StepScore(value=float(len(p) * share), why=_reasons(names, row, row * weights))
            for share, row in zip(p, above, strict=True)
        ]


def fit_step_scorer(labelled: Sequence[LabelledTrajectory]) -> ConditionalLogitScorer:
    """Fit a `ConditionalLogitScorer` on labelled trajectories; they must serve nothing else (calibration refuses them).

    Raises:
        ConfigurationError: no trajectory.
    """
    rows = [cheap_features(item.trajectory)[1] for item in labelled]
    model = fit_conditional_logit(
        rows,
        [item.error_steps for item in labelled],
        tuple(FEATURE_WORDS),
        fitted_on=[item.trajectory.trajectory_id for item in labelled],
    )
    return ConditionalLogitScorer(model=model)


def _newton(z: FloatArray, targets: FloatArray, lengths: npt.NDArray[np.int64], ridge: float) -> FloatArray:
    """Maximise the penalised likelihood; steps are halved until they do not lose, so it cannot run away."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    owner = np.repeat(np.arange(len(lengths)), lengths)

    def at(w: FloatArray) -> tuple[float, FloatArray]:
        scores = z @ w
        top = np.maximum.reduceat(scores, starts)
        weights = np.exp(scores - top[owner])
        total = np.add.reduceat(weights, starts)
        log_p = scores - (top + np.log(total))[owner]
        return float(targets @ log_p - ridge / 2.0 * (w @ w)), weights / total[owner]

    w = np.zeros(z.shape[1])
    value, p = at(w)
    for _ in range(100):
        gradient = z.T @ (targets - p) - ridge * w
        means = np.add.reduceat(p[:, None] * z, starts)
        hessian = (p[:, None] * z).T @ z - means.T @ means + ridge * np.eye(len(w))
        step = np.linalg.solve(hessian, gradient)
        if float(gradient @ step) < 1e-18 * max(1.0, abs(value)):  # twice the gain that is left
            break
        new_value, new_p = at(w + step)
        while new_value < value and float(np.abs(step).max()) > 1e-12:
            step = step / 2.0
            new_value, new_p = at(w + step)
        w, value, p = w + step, new_value, new_p
    return w


def _shares(length: int, errors: Sequence[int]) -> FloatArray:
    shares = np.zeros(length)
    if not errors or not all(0 <= step < length for step in errors):
        rule = f"indices in 0..{length - 1}, at least one"
        raise ConfigurationError.of("error_steps", "fit_conditional_logit", rule, list(errors))
    shares[list(errors)] = 1.0 / len(set(errors))
    return shares


def _softmax(scores: FloatArray) -> FloatArray:
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def _reasons(names: Sequence[str], above: FloatArray, parts: FloatArray) -> str:
    """The three features that raise the step most above the run's average, in log-odds."""
    reasons = []
    for i in np.argsort(-parts, kind="stable")[:3]:
        if parts[i] >= 0.01:
            high, low = FEATURE_WORDS[names[i]]
            reasons.append(f"{high if above[i] > 0.0 else low} (+{parts[i]:.2f})")
    return ", ".join(reasons)
