"""Ranking metrics of one scalar per trajectory: AUROC, AUPRC and AURC, exact under ties.

None of these reads the probability scale: they are unchanged by any strictly increasing transform of the scalar. They
stand beside a proper score (`grampus_uq.stats.trajectory_scores`) and never replace it.

Orientation is in the argument names. `auroc(risk, failed)` and `auprc(risk, failed)`: a higher score claims the
positive class. `aurc(confidence, correct)`: a higher score is kept longer.

`auroc_rows` takes one row of weights for each resample, so that a bootstrap is one array operation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import FloatArray, numbers, truths


def auroc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float | None:
    """Probability that a positive is scored above a negative, a tie counting one half.

    `AUROC = P(s+ > s-) + P(s+ = s-) / 2` (Mann-Whitney), the area under the trapezoidal ROC curve; equal to
    scikit-learn's `roc_auc_score`.

    `scores`: shape (n,), any real scale, infinities allowed; higher claims the positive class. `positive`: shape (n,),
    booleans or 0/1. The reports of this package are failure-oriented: pass risk and "failed". In [0, 1], 1 is best, .5
    is chance or a constant score; None without either class. Source: Hanley and McNeil (1982).

    >>> auroc([0.1, 0.4, 0.4, 0.9], [0, 0, 1, 1])
    0.875
    """
    scores, positive = _scores_and_labels("auroc", scores=scores, positive=positive)
    return _known(auroc_rows(scores, positive, np.ones((1, len(scores)))))


def auprc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float | None:
    """Average precision: the precision at each distinct score, averaged over the recall it adds.

    `AP = sum_g (R_g - R_{g-1}) P_g` over distinct scores from the highest, without interpolation; equal to
    scikit-learn's `average_precision_score`. Tied trajectories enter together.

    Arguments are as in `auroc`. In (0, 1], 1 is best; a constant score gives the share of positives, and so does one
    class that is all positive (1). None without a positive (scikit-learn warns there and returns 0).

    >>> round(auprc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 4)
    0.8333
    """
    scores, positive = _scores_and_labels("auprc", scores=scores, positive=positive)
    if len(scores) == 0:
        return None
    hits, misses = _grouped(np.ones((1, len(scores))), positive, *_tie_groups(-scores))
    found = np.cumsum(hits, axis=1)
    precision = found / (found + np.cumsum(misses, axis=1))
    return _known(_ratio((hits * precision).sum(axis=1), hits.sum(axis=1)))


def aurc(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> float | None:
    """Area under the risk-coverage curve: the error rate among the k most confident, averaged over k = 1..n.

    `AURC = (1/n) sum_k errors(k most confident) / k`. Within tied confidences the order is random and the
    *expectation over all orders* is returned, in closed form, so the value depends neither on row order nor on a
    seed; a constant confidence gives the error rate.

    `confidence`: shape (n,), any real scale, infinities allowed; higher is kept longer. `correct`: shape (n,), booleans
    or 0/1; 1 = the trajectory succeeded. In [0, 1], *lower is better*; None for no trajectory. One trajectory gives its
    own error, one class 0 or 1. There are no fractional weights: "the k most confident" counts trajectories.

    Source: Geifman and El-Yaniv (2017), risk-coverage; the golden rows are the base-rate rows of the Trajectory
    Proper Score paper, App. F.

    >>> round(aurc([0.9, 0.8, 0.1], [1, 1, 0]), 4)
    0.1111
    """
    risk = _coverage_risk("aurc", confidence, correct)
    return float(risk.mean()) if len(risk) else None


def risk_coverage(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Draw the risk-coverage curve: coverage k/n and the expected error rate among the k most confident, k = 1..n.

    Arguments are as in `aurc`. Both arrays have shape (n,): coverage, ascending in (0, 1], and risk in [0, 1], whose
    mean is `aurc`. Within ties the risk is its expectation over random order.
    """
    risk = _coverage_risk("risk_coverage", confidence, correct)
    return np.arange(1, len(risk) + 1) / max(len(risk), 1), risk


def auroc_rows(scores: FloatArray, positive: FloatArray, weights: FloatArray) -> FloatArray:
    """Return `auroc` once for each row of weights; shape (rows, n) in, (rows,) out, NaN where a class has no weight."""
    if len(scores) == 0:
        return np.full(len(weights), np.nan)
    order, starts = _tie_groups(scores)
    hits, misses = _grouped(weights, positive, order, starts)
    below = np.cumsum(misses, axis=1) - misses
    pairs = hits.sum(axis=1) * misses.sum(axis=1)
    return _ratio((hits * (below + misses / 2.0)).sum(axis=1), pairs)


def _coverage_risk(owner: str, confidence: npt.ArrayLike, correct: npt.ArrayLike) -> FloatArray:
    """Expected error rate among the k most confident, k = 1..n."""
    scores, labels = _scores_and_labels(owner, confidence=confidence, correct=correct)
    if len(scores) == 0:
        return np.empty(0)
    order, starts = _tie_groups(-scores)
    sizes = np.diff(np.append(starts, len(scores)))
    errors = np.repeat(np.add.reduceat(1.0 - labels[order], starts) / sizes, sizes)
    return np.asarray(np.cumsum(errors) / np.arange(1, len(scores) + 1), dtype=np.float64)


def _tie_groups(keys: FloatArray) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Ascending stable order of the keys and the position where each run of equal keys starts."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    # Compared, not subtracted: inf - inf is NaN and would split a tie of infinities.
    return order, np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))


def _grouped(
    weights: FloatArray, labels: FloatArray, order: npt.NDArray[np.intp], starts: npt.NDArray[np.intp]
) -> tuple[FloatArray, FloatArray]:
    """Weight of the ones and of the zeros in each tied group, shape (rows, groups)."""
    ordered = weights[:, order]
    ones = np.add.reduceat(ordered * labels[order], starts, axis=1)
    zeros = np.add.reduceat(ordered * (1.0 - labels[order]), starts, axis=1)
    return ones, zeros


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    out = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=out, where=denominator > 0)
    return out


def _known(one: FloatArray) -> float | None:
    return None if np.isnan(one[0]) else float(one[0])


def _scores_and_labels(owner: str, **given: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Validate both, by name, once at the edge; labels come back as 0.0 and 1.0."""
    (name, scores), (label, labels) = given.items()
    s, y = numbers(name, owner, scores), truths(label, owner, labels).astype(np.float64)
    if s.ndim != 1 or s.shape != y.shape:
        raise ConfigurationError.of(name, owner, f"one-dimensional and as long as '{label}'", (s.shape, y.shape))
    if np.isnan(s).any():
        hint = "leave the trajectories without a forecast out and report their number"
        raise ConfigurationError.of(name, owner, "free of NaN", int(np.flatnonzero(np.isnan(s))[0]), hint)
    return s, y
