"""The published method as it is: a logistic regression on all scores so far, one for each step."""

from __future__ import annotations

import math

import numpy as np

from grampus_uq.errors import ConfigurationError, MissingDependencyError
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.eprocess_scorers import PaperScorer

LEAST_OF_A_CLASS = 5
"""A step with fewer successes or failures than this keeps the ratio of the step before; step 1 has to have them."""


def fit_paper_scorer(runs: DetectorRuns) -> PaperScorer:
    """Fit Algorithm 2 with scikit-learn's defaults: scores standardised step by step, L2 penalty 1, lbfgs.

    The prior pi1 is the share of successes at step 1. Missing scores are not in the paper: the last score seen stands
    in for them, 0.5 before the first.

    Args:
        runs: labelled, one stream.

    Raises:
        ConfigurationError: several streams, or fewer than 5 successes or failures.
        MissingDependencyError: scikit-learn is not installed.
    """
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types
    except ImportError as error:
        raise MissingDependencyError.of("scikit-learn", "fit", "Fitting a detector") from error
    if len(runs.streams) != 1 or not all(runs.bounded):
        raise ConfigurationError.of("runs", "fit_paper", "of one stream of probabilities", runs.streams)
    success = runs.success
    if success is None or min(int(success.sum()), int((~success).sum())) < LEAST_OF_A_CLASS:
        rule = f"labelled, with at least {LEAST_OF_A_CLASS} successes and failures in the fitting half"
        found = None if success is None else (int(success.sum()), int((~success).sum()))
        raise ConfigurationError.of("runs", "fit_paper", rule, found)
    prefixes = _prefixes(runs)
    intercepts: list[float | None] = []
    weights: list[tuple[float, ...]] = []
    for step in range(1, prefixes.shape[1] + 1):
        here = runs.lengths >= step
        x, y = prefixes[here, :step], success[here]
        if min(int(y.sum()), int((~y).sum())) < LEAST_OF_A_CLASS:
            intercepts.append(None)
            weights.append(())
            continue
        scale = StandardScaler().fit(x)
        with threadpool_limits(limits=1):
            model = LogisticRegression(max_iter=200).fit(scale.transform(x), y)
        raw = model.coef_[0] / scale.scale_
        intercepts.append(float(model.intercept_[0] - raw @ scale.mean_))
        weights.append(tuple(raw.tolist()))
    while intercepts[-1] is None:  # steps after the last model need no entry: the ratio is kept there anyway
        intercepts.pop()
        weights.pop()
    prior = float(success.mean())
    return PaperScorer(
        intercepts=tuple(intercepts),
        weights=tuple(weights),
        prior_log_odds=math.log(prior) - math.log1p(-prior),
    )


def _prefixes(runs: DetectorRuns) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Scores as a rectangle, missing ones filled from the left; what lies beyond a run is 0 and not read."""
    result = np.zeros((len(runs), int(runs.lengths.max())))
    ends = np.cumsum(runs.lengths)
    for place, (end, length) in enumerate(zip(ends, runs.lengths, strict=True)):
        scores = runs.values[end - length : end, 0]
        seen = np.maximum.accumulate(np.where(np.isnan(scores), -1, np.arange(length)))
        result[place, :length] = np.where(seen < 0, 0.5, scores[np.maximum(seen, 0)])
    return result
