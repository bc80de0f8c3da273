"""An exact e-process from learned densities, for scores that are independent and alike within a run.

Universal inference: the null (the run's scores come from the law of successful runs, whatever it is) is fitted jointly,
by maximum likelihood, to calibration successes and the new run; the numerator may be learned from anything else.

    E_t = a(D) q(S_1..S_t) / max over laws p of  p(D) p(S_1..S_t)

Scores enter through bins, so the laws are all probabilities on the bins and the maximum is the observed shares.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UniversalModel:
    """What was learned once.

    Attributes:
        edges: ascending inner edges of the bins; a score equal to an edge belongs to the higher bin.
        anchors: calibration successes that the null has to explain together with the run (D), by bin.
        log_anchor_reference: log a(D), a a law learned from the other successes.
        log_failure: log q of each bin, learned from failures.
    """

    edges: tuple[float, ...]
    anchors: tuple[int, ...]
    log_anchor_reference: float
    log_failure: tuple[float, ...]


class UniversalState(NamedTuple):
    """The new run so far: its scores by bin, and log q of them."""

    counts: tuple[int, ...]
    log_numerator: float


def fit_universal(
    success_scores: npt.ArrayLike,
    failure_scores: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    bins: int = 6,
    anchor_share: float = 0.25,
) -> UniversalModel:
    """Learn the numerator, and set calibration successes aside as anchors of the null.

    Args:
        success_scores: scores of successful runs, all steps together, finite; a random part becomes anchors, the rest
            chooses bins and a.
        failure_scores: scores of failed runs, which learn q.
        bins: at most this many, >= 2; each costs about half a nat of evidence.
        anchor_share: share of the successes set aside, in (0, 1); many more anchors than a run has steps keep the null
            from bending to the run.

    Raises:
        ConfigurationError: fewer than 4 successes or no failure, a score that is not finite.
    """
    good, bad = (np.asarray(x, dtype=np.float64) for x in (success_scores, failure_scores))
    if good.ndim != 1 or bad.ndim != 1 or len(good) < 4 or not len(bad):
        rule = "one-dimensional, at least 4 successes and 1 failure"
        raise ConfigurationError.of("success_scores", "fit_universal", rule, (good.shape, bad.shape))
    if not (np.isfinite(good).all() and np.isfinite(bad).all()):
        raise ConfigurationError.of("success_scores", "fit_universal", "finite", "NaN or infinity", "leave missing out")
    if bins < 2 or not 0.0 < anchor_share < 1.0:
        raise ConfigurationError.of("bins", "fit_universal", "at least 2, with a share in (0, 1)", (bins, anchor_share))
    order = rng.permutation(len(good))
    size = min(max(1, round(anchor_share * len(good))), len(good) - 1)
    anchor, learn = good[order[:size]], good[order[size:]]
    parts = np.arange(1, bins) / bins
    both = np.concatenate([np.quantile(learn, parts), np.quantile(bad, parts)])  # either kind has its say
    edges = np.unique(np.quantile(both, parts, method="nearest"))
    anchors, learned, failed = (_counts(x, edges) for x in (anchor, learn, bad))
    log_a, log_q = (np.log((n + 0.5) / (n + 0.5).sum()) for n in (learned, failed))
    return UniversalModel(
        edges=tuple(edges.tolist()),
        anchors=tuple(anchors.tolist()),
        log_anchor_reference=float(anchors @ log_a),
        log_failure=tuple(log_q.tolist()),
    )


def universal_start(model: UniversalModel) -> UniversalState:
    """State of a run before its first score."""
    return UniversalState((0,) * len(model.anchors), 0.0)


def universal_update(model: UniversalModel, state: UniversalState, score: float | None) -> tuple[UniversalState, float]:
    """Take one score and return log E_t; compare it with `ville_threshold`.

    Guarantee: if the anchors and the run's scores are independent with one law, whichever it is, `P(E_t >= 1/alpha for
    some t) <= alpha`, however long the run, on average over the calibration: E_t is at most a test martingale under
    each law. No law has to be known. What breaks it: scores that depend on each other within a run, or on the step.

    Args:
        score: finite; None is missing and changes nothing.

    Raises:
        ConfigurationError: a score that is not finite.
    """
    if score is not None:
        if not math.isfinite(score):
            raise ConfigurationError.of("score", "universal_update", "finite or None", score)
        place = bisect_right(model.edges, score)
        counts = state.counts
        counts = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
        state = UniversalState(counts, state.log_numerator + model.log_failure[place])
    together = [a + k for a, k in zip(model.anchors, state.counts, strict=True)]
    total = sum(together)
    log_null = sum(n * math.log(n / total) for n in together if n)
    return state, model.log_anchor_reference + state.log_numerator - log_null


def _counts(values: FloatArray, edges: FloatArray) -> npt.NDArray[np.intp]:
    return np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
