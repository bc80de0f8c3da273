"""The number of successful runs that set the threshold, decided from counts alone, never from their content.

All failures and the successes that are left fit the statistic; the threshold set serves nothing else. With few
successes the order statistic is coarse, so the share held out moves within [1/2, 7/10] to where it wastes least, and
stays clear of sizes that use up delta to the last: a backtest adds noise of its own and should still bear it out.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from grampus_uq.learn.fit.detector_runs import DetectorRuns, IntArray
from grampus_uq.stats.arrays import BoolArray
from grampus_uq.stats.eprocess_thresholds import successes_needed
from grampus_uq.stats.ranks import binomial_log_sf, conformal_rank, pac_rank

_LEAST_TO_LEARN = 20
"""With fewer fitting runs of a class nothing is learned and nothing chosen: a running minimum, untrained, is used."""

_SPENT = 0.8  # share of delta that the threshold of the wished level may use up
_FINE = 2000  # beyond this many successes half of them is fine enough, and looking for better takes time
_NEAR_BEST = 0.97  # a threshold set this near the best realised rate is large enough; more successes are left to fit on


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The runs of each part: disjoint indices, ascending.

    Attributes:
        fit: runs that fit and choose the statistic; empty when it is untrained.
        threshold: successful runs that set the thresholds and do nothing else.
    """

    fit: tuple[int, ...]
    threshold: tuple[int, ...]


def realised_rate(n: int, alpha: float, delta: float | None) -> float:
    """Expected false-alarm rate of a threshold set by n runs: (n + 1 - rank)/(n + 1); 0 where it is +infinity.

    >>> realised_rate(59, 0.1, 0.1), round(realised_rate(78, 0.1, 0.1), 4), realised_rate(10, 0.1, 0.1)
    (0.05, 0.0633, 0.0)
    """
    rank = conformal_rank(n, alpha) if delta is None else pac_rank(n, alpha, delta)
    return 0.0 if rank is None else (n + 1 - rank) / (n + 1)


def least_to_learn(runs: DetectorRuns) -> int:
    """Fitting runs of each class below which nothing is learned: 20, and one more for every two steps of a failure.

    A run alarms by its highest evidence, and the noise of a learned statistic has more steps to reach high in the
    longer a run is. The failures' lengths decide, and nothing of a success: they set no threshold, so that a threshold
    set by all successes holds as if nothing had been decided.
    """
    failed = runs.lengths[~runs.labels]
    return _LEAST_TO_LEARN + (math.ceil(failed.mean() / 2.0) if len(failed) else 0)


def threshold_size(
    successes: int, failures: int, alpha: float, delta: float | None, least: int = _LEAST_TO_LEARN
) -> int:
    """The number of successes that set the threshold; all when fewer than `least` would be left to learn from.

    >>> threshold_size(118, 104, 0.1, 0.1), threshold_size(1000, 200, 0.1, 0.1), threshold_size(40, 30, 0.1, 0.1)
    (82, 509, 40)
    """
    if failures < least:
        return successes
    half, most = (successes + 1) // 2, math.floor(0.7 * successes)
    if successes > _FINE:
        return half
    rates = {n: realised_rate(n, alpha, delta) for n in range(half, most + 1)}
    if delta is not None:
        risks = {n: _risk(n, alpha, delta) for n, rate in rates.items() if rate > 0.0}
        allowed = max(_SPENT * delta, min(risks.values(), default=0.0))
        rates = {n: rates[n] for n, risk in risks.items() if risk <= allowed}
    best = max(rates.values(), default=0.0)
    if best == 0.0:
        size = successes_needed(alpha, delta)
    else:
        size = next(n for n, rate in rates.items() if rate >= _NEAR_BEST * best)
    return size if successes - size >= least else successes


def _risk(n: int, alpha: float, delta: float) -> float:
    """Probability that a threshold set by n runs is too low: at most delta, and for most n well below it."""
    rank = pac_rank(n, alpha, delta)
    return 1.0 if rank is None else math.exp(binomial_log_sf(n, 1.0 - alpha)[rank])


def split(runs: DetectorRuns, alpha: float, delta: float | None, rng: np.random.Generator) -> Split:
    """Draw the threshold set at random among the successes of labelled runs, one run a task; other tasks fit."""
    one = runs.drawn(rng)
    good = np.flatnonzero(runs.labels & one)
    size = threshold_size(len(good), int((~runs.labels).sum()), alpha, delta, least_to_learn(runs))
    return _split(runs, rng.permutation(good)[:size], np.ones(len(runs), dtype=np.bool_), otherwise=good)


def split_at(runs: DetectorRuns, held_out: Collection[str], rng: np.random.Generator) -> Split:
    """The successes among `held_out` set the threshold, one run a task; other tasks fit, where there are enough."""
    held = np.array([name in held_out for name in runs.ids], dtype=np.bool_)
    threshold = np.flatnonzero(held & runs.labels & runs.drawn(rng))
    return _split(runs, threshold, ~(held & runs.labels), otherwise=threshold)


def _split(runs: DetectorRuns, threshold: IntArray, may_fit: BoolArray, *, otherwise: IntArray) -> Split:
    """Fit on what may, of tasks without a part in the threshold; set it by `otherwise` where that is not enough."""
    tasks = runs.ids if runs.tasks is None else runs.tasks
    taken = {tasks[place] for place in threshold}
    fit = may_fit & np.array([task not in taken for task in tasks], dtype=np.bool_)
    if min(int((fit & runs.labels).sum()), int((fit & ~runs.labels).sum())) < least_to_learn(runs):
        threshold, fit = otherwise, np.zeros(len(runs), dtype=np.bool_)
    return Split(fit=tuple(np.flatnonzero(fit).tolist()), threshold=tuple(np.sort(threshold).tolist()))
