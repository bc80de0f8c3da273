"""The plug-in continuation weight: a model of the end of a stopped run, which sees no forecast.

Logistic regression on facts of the prefix (`evaluation.FEATURES`), fitted on the prefixes at which runs with a
known outcome were still going. It is fitted apart from the streams that are judged: a q learned from a forecast would
favour that forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grampus_uq.errors import DataError
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.halves import split_halves
from grampus_uq.stats.logistic_fit import fit_logistic, logistic
from grampus_uq.stats.scoring import log_odds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlugIn:
    """Estimates of the model.

    q: probability of success by the id of each censored run: the mean of two models, neither of which saw it. brier,
    brier_of_base: its loss on prefixes of runs whose outcome is known, each predicted by the model of the other half,
    and that of the success rate alone; when the first is not lower, q is no better than the rate. None: no run with a
    known outcome went on for more than a step, and q is the success rate.
    """

    q: Mapping[str, float]
    brier: float | None
    brier_of_base: float | None


def plug_in(runs: ForecastRuns) -> PlugIn:
    """Estimate the probability of success of every censored run from the facts of its prefix.

    Assumes that runs which reached the budget are like runs with the same facts which were still going at that step
    and ended later. What breaks it: a budget below the length of nearly all runs, facts that miss what matters.

    `runs`: both censored ones and runs of known outcome. Raises DataError where there is none of the latter.

    Source: Trajectory Proper Score paper, App. H (plug-in estimation with cross-fitting).
    """
    known = ~runs.censored
    if not known.any() or not runs.streams:
        raise DataError("no run has a known outcome: nothing says how censored ones would have ended.")
    traces = next(iter(runs.streams.values()))
    lengths = traces.lengths
    rate = float(runs.outcomes[known].mean())
    stopped = [name for name, is_censored in zip(runs.ids, runs.censored, strict=True) if is_censored]
    going = np.repeat(known, lengths) & (traces.steps < np.repeat(lengths, lengths))
    if runs.features is None or not going.any():
        return PlugIn(q=dict.fromkeys(stopped, rate), brier=None, brier_of_base=None)
    second = np.zeros(len(runs), dtype=np.bool_)
    second[known] = split_halves(runs.outcomes[known], [n for n, k in zip(runs.ids, known, strict=True) if k])
    in_second = np.repeat(second, lengths)
    weights = 1.0 / np.repeat(np.maximum(lengths - 1, 1), lengths)
    outcomes = np.repeat(runs.outcomes, lengths)
    predicted = [
        _predicted(runs.features, outcomes, weights, half, rate) for half in (going & ~in_second, going & in_second)
    ]
    last = (np.cumsum(lengths) - 1)[~known]
    q = dict(zip(stopped, np.mean([p[last] for p in predicted], axis=0).tolist(), strict=True))
    apart = np.where(in_second, predicted[0], predicted[1])[going]
    y, w = outcomes[going], weights[going] / weights[going].sum()
    return PlugIn(q=q, brier=float(w @ np.square(apart - y)), brier_of_base=float(w @ np.square(float(w @ y) - y)))


def _predicted(
    features: FloatArray, outcomes: FloatArray, weights: FloatArray, half: BoolArray, rate: float
) -> FloatArray:
    """Fit one half of the prefixes and predict all; the overall rate where the half has outcomes of one class only."""
    if len(np.unique(outcomes[half])) < 2:
        return np.full(len(features), rate)
    k = features.shape[1]
    scaled = (features - features[half].mean(axis=0)) / np.maximum(features[half].std(axis=0), 1e-9)
    design = np.column_stack([np.ones(len(features)), scaled])
    start = np.append(float(log_odds(rate)), np.zeros(k))
    penalty = np.append(0.0, np.ones(k))
    beta = fit_logistic(design[half], outcomes[half], weights[half], l2=penalty, start=start)
    return logistic(design @ beta)
