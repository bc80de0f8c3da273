"""The e-valuator as published, to compare with: a logistic regression on all scores so far, one for each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grampus_uq.errors import ConfigurationError, MissingDependencyError
from grampus_uq.learn.fit.detector import LEVELS, DetectorFit, FitReport, set_thresholds
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.eprocess_scorers import PaperScorer
from grampus_uq.stats.eprocess_thresholds import Mode, Threshold, ville_threshold
from grampus_uq.stats.ranks import check_level

LEAST_OF_A_CLASS = 5
"""A step with fewer successes or failures than this keeps the ratio of the step before; step 1 has to have them."""


def fit_paper(
    runs: DetectorRuns,
    *,
    rng: np.random.Generator,
    alpha: float = 0.1,
    delta: float = 0.1,
    levels: Sequence[float] = LEVELS,
    fit_share: float = 0.5,
) -> DetectorFit:
    """Fit the e-valuator as published: a random half for the logistic regressions, the other's successes for Alg. 3.

    Thresholds: PAC, and beside it 1/alpha and Bonferroni, which promise nothing for this learned ratio. With
    `fit_share` 1 all runs fit the ratio, as the paper's 1/alpha variant does, and PAC has no runs left (+inf).

    Args and errors as `fit_detector`; fit_share in (0, 1]. The share of successes is not held fixed, as published.

    Source: e-valuator, Algorithms 2 and 3, with scikit-learn's defaults (8.3.1) on standardised scores.
    """
    if runs.success is None or not len(runs):
        raise ConfigurationError.of("runs", "fit_paper", "labelled, at least one", len(runs))
    if not 0.0 < fit_share <= 1.0:
        raise ConfigurationError.of("fit_share", "fit_paper", "in (0, 1]", fit_share)
    order = rng.permutation(len(runs))
    size = max(1, math.floor(len(runs) * fit_share))
    fit, rest = np.sort(order[:size]), np.sort(order[size:])
    threshold = rest[runs.success[rest]]
    scorer = fit_paper_scorer(runs.take(fit))
    detector = set_thresholds(
        runs, tuple(threshold.tolist()), scorer, salt=rng.bytes(12).hex(), delta=delta, alpha=alpha, levels=levels
    )
    wanted = sorted({alpha, *levels})
    longest = int(runs.lengths.max())
    extra = [ville_threshold(a) for a in wanted]
    extra += [bonferroni_threshold(a, longest) for a in wanted]
    successes = int(runs.success.sum())
    return DetectorFit(
        detector=replace(detector, thresholds=(*detector.thresholds, *extra)),
        report=FitReport(
            counts={"success": successes, "failure": len(runs) - successes, **runs.excluded},
            fit_ids=tuple(runs.ids[i] for i in fit),
            threshold_ids=tuple(runs.ids[i] for i in threshold),
            member="paper",
            reason="The published method was asked for.",
        ),
    )


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
    if len(runs.streams) != 1:
        raise ConfigurationError.of("runs", "fit_paper", "of one stream", runs.streams)
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


def bonferroni_threshold(alpha: float, longest: int) -> Threshold:
    """Set the baseline longest/alpha: a Markov bound at every step, split over the steps of the longest run.

    Guarantee: as `ville_threshold`, and only for runs of at most `longest` steps; always more conservative.

    >>> bonferroni_threshold(0.1, 10).log_value == math.log(100.0)
    True
    """
    check_level("alpha", "bonferroni_threshold", alpha)
    if longest < 1 or longest != int(longest):
        raise ConfigurationError.of("longest", "bonferroni_threshold", "a whole number of at least 1", longest)
    sentence = (
        f"If M is the true likelihood ratio, at most {100.0 * alpha:.6g} % of runs that would have succeeded within "
        f"{longest} steps ever raise this alarm. For a ratio learned from data this is not a guarantee."
    )
    return Threshold(
        mode=Mode.BONFERRONI,
        alpha=alpha,
        delta=None,
        log_value=math.log(longest / alpha),
        tie=0.0,
        runs=0,
        rank=None,
        guarantee=sentence,
    )
