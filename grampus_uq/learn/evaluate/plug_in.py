"""The plug-in continuation weight: a model of the end of a stopped run, which sees no forecast.

Logistic regression on facts of the prefix (`from_recordings.FEATURES`), fitted on the prefixes at which runs with a
known outcome were still going. It is fitted apart from the streams that are judged: a q learned from a forecast would
favour that forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns
from grampus_uq.stats.calibration import split_halves
from grampus_uq.stats.logistic_fit import fit_logistic, logistic
from grampus_uq.stats.scoring import log_odds

__all__ = ["PlugIn", "plug_in"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlugIn:
    """Estimates of the model.

    q: chance of success by the id of each censored run: the mean of two models, neither of which saw it. brier,
    brier_of_base: its loss on prefixes of runs whose outcome is known, each predicted by the model of the other half,
    and that of the success rate alone; when the first is not lower, q is no better than the rate. None: no run with a
    known outcome went on for more than a step, and q is the success rate.
    """

    q: Mapping[str, float]
    brier: float | None
    brier_of_base: float | None


def plug_in(runs: ForecastRuns, *, l2: float = 1.0) -> PlugIn:
    """Estimate the chance of success of every censored run from the facts of its prefix.

    Assumes that runs which reached the budget are like runs with the same facts which were still going at that step
    and ended later. What breaks it: a budget below the length of nearly all runs, facts that miss what matters.

    Args:
        runs: with both censored runs and runs of known outcome.
        l2: penalty on the standardised coefficients, at least 0.

    Raises:
        DataError: no run of known outcome.
        ConfigurationError: l2 below 0.

    Source: Trajectory Proper Score paper, App. H (plug-in estimation with cross-fitting).
    """
    if not 0.0 <= l2 < np.inf:
        raise ConfigurationError.of("l2", "plug_in", "at least 0", l2)
    known = ~runs.censored
    if not known.any() or not runs.streams:
        raise DataError("no run has a known outcome: nothing says how censored ones would have ended.")
    lengths = next(iter(runs.streams.values())).lengths
    rate = float(runs.outcomes[known].mean())
    stopped = [name for name, open_ in zip(runs.ids, runs.censored, strict=True) if open_]
    going = np.repeat(known, lengths) & (_steps(lengths) < np.repeat(lengths, lengths))
    if runs.features is None or not going.any():
        return PlugIn(q=dict.fromkeys(stopped, rate), brier=None, brier_of_base=None)
    second = np.zeros(len(runs), dtype=np.bool_)
    second[known] = split_halves(runs.outcomes[known], [n for n, k in zip(runs.ids, known, strict=True) if k])
    in_second = np.repeat(second, lengths)
    weights = 1.0 / np.repeat(np.maximum(lengths - 1, 1), lengths)
    outcomes = np.repeat(runs.outcomes, lengths)
    models = [
        _fit(runs.features[half], outcomes[half], weights[half], l2, rate)
        for half in (going & ~in_second, going & in_second)
    ]
    predicted = [_predict(model, runs.features) for model in models]
    last = (np.cumsum(lengths) - 1)[~known]
    q = dict(zip(stopped, np.mean([p[last] for p in predicted], axis=0).tolist(), strict=True))
    apart = np.where(in_second, predicted[0], predicted[1])[going]
    y, w = outcomes[going], weights[going] / weights[going].sum()
    return PlugIn(q=q, brier=float(w @ np.square(apart - y)), brier_of_base=float(w @ np.square(float(w @ y) - y)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Model:
    mean: FloatArray
    sd: FloatArray
    beta: FloatArray


def _steps(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.arange(1, int(lengths.sum()) + 1) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _fit(features: FloatArray, outcomes: FloatArray, weights: FloatArray, l2: float, rate: float) -> _Model:
    """Fit one half; with outcomes of one class, or no prefix, the overall rate."""
    k = features.shape[1]
    flat = _Model(mean=np.zeros(k), sd=np.ones(k), beta=np.concatenate([[float(log_odds(rate))], np.zeros(k)]))
    if len(outcomes) == 0 or (outcomes == outcomes[0]).all():
        return flat
    mean = features.mean(axis=0)
    sd = np.maximum(features.std(axis=0), 1e-9)
    design = np.column_stack([np.ones(len(features)), (features - mean) / sd])
    penalty = np.full(k + 1, l2)
    penalty[0] = 0.0
    return _Model(mean=mean, sd=sd, beta=fit_logistic(design, outcomes, weights, l2=penalty, start=flat.beta))


def _predict(model: _Model, features: FloatArray) -> FloatArray:
    scaled = (features - model.mean) / model.sd
    return logistic(model.beta[0] + scaled @ model.beta[1:])
