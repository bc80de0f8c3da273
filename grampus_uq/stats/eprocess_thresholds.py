"""Thresholds for the running maximum of log M, each with its guarantee.

A run's evidence is the pair (largest log M so far, one uniform number drawn for the run). Pairs are compared in
lexicographic order and strictly: the draw separates runs with equal evidence (models say round numbers), so that a
threshold keeps its exact level. Ville's threshold is compared with `>=`, as in its theorem.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray, numbers
from grampus_uq.stats.ranks import check_level, conformal_rank, pac_rank, smallest_n_for_pac
from grampus_uq.stats.stored_values import STORED, Extended

_ONCE = "one run of each, a run that names none being one of its own"


class Mode(StrEnum):
    """The theorem behind a threshold."""

    PAC = "pac"
    CONFORMAL = "conformal"
    VILLE = "ville"
    BONFERRONI = "bonferroni"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A level of evidence with its guarantee.

    Attributes:
        mode: the theorem.
        alpha: in (0, 1): the false-alarm probability promised (for `budget`, the share of all runs).
        delta: in (0, 1) for `pac`: the probability that calibration was unlucky; None otherwise.
        log_value: natural log of the threshold; +inf never alarms.
        tie: in [0, 1]: at equal evidence only runs with a larger draw alarm.
        runs: number of calibration runs behind it, 0 for `ville` and `bonferroni`.
        rank: which of them it is, from the smallest; None where none is.
        guarantee: the guarantee in a sentence, with its assumptions.
        shortage: why the threshold is +inf and how many runs are needed; empty otherwise.
    """

    mode: Mode
    alpha: float
    delta: float | None
    log_value: Extended
    tie: float
    runs: int
    rank: int | None
    guarantee: str
    shortage: str = ""

    __pydantic_config__ = STORED

    def __post_init__(self) -> None:
        for name, level in (("alpha", self.alpha), ("delta", 0.5 if self.delta is None else self.delta)):
            check_level(name, "Threshold", level)
        if math.isnan(self.log_value) or (self.log_value == -math.inf and self.runs == 0):
            raise ConfigurationError.of("log_value", "Threshold", "a number or +inf", self.log_value)
        if not 0.0 <= self.tie <= 1.0:
            raise ConfigurationError.of("tie", "Threshold", "in [0, 1]", self.tie)
        if (self.mode is Mode.PAC) != (self.delta is not None):
            raise ConfigurationError.of("delta", "Threshold", "given for 'pac' and only there", self.delta)


def pac_threshold(log_peaks: npt.ArrayLike, ties: npt.ArrayLike, alpha: float, delta: float) -> Threshold:
    """Set the threshold that holds for this very calibration set (Algorithm 3): `P(Bin(n, 1 - alpha) >= k) <= delta`.

    Guarantee: if the n calibration runs and the new one are independent draws of the successful runs and none of the
    n served the fit of the statistic, then with probability at least 1 - delta over the n, a new successful run
    exceeds the threshold at any step with probability at most alpha. No assumption on the statistic. What breaks it:
    runs that served the fit or the choice of the model, selected runs, a population that moved.

    `log_peaks`: shape (n,), largest log M of each held-out *successful* run; -inf for a run without a reading. `ties`:
    shape (n,), the uniform draw of each of these runs (`tie_uniform`). `alpha`, `delta` in (0, 1): allowed false-alarm
    probability, and allowed probability of an unlucky calibration. Returns the threshold; +inf with a message when
    n < log(delta) / log(1 - alpha).

    >>> pac_threshold(range(100), [0.5] * 100, 0.05, 0.1).log_value
    98.0
    >>> print(pac_threshold([1.0] * 44, [0.5] * 44, 0.05, 0.1).shortage)
    45 held-out successful runs are needed for alpha=0.05, delta=0.1; there are 44. The alarm stays off.
    """
    check_level("delta", "pac_threshold", delta)
    peaks, draws = _pairs("pac_threshold", log_peaks, ties)
    rank, needed = pac_rank(len(peaks), alpha, delta), smallest_n_for_pac(alpha, delta)
    sentence = (
        f"With probability at least {percent(1.0 - delta)} over the {len(peaks)} held-out successful runs that set "
        f"it, at most {percent(alpha)} of runs that would have succeeded ever raise this alarm, at whichever step it "
        f"is looked at. This assumes independent tasks of one distribution, {_ONCE}; a changed agent, task mix or "
        "verifier breaks it."
    )
    return _at_rank(Mode.PAC, alpha, peaks, draws, rank, sentence, needed, delta)


def conformal_threshold(log_peaks: npt.ArrayLike, ties: npt.ArrayLike, alpha: float) -> Threshold:
    """Set the split-conformal threshold: the pair at rank `ceil((n + 1)(1 - alpha))`.

    Guarantee: if the n held-out successful runs and the new one are exchangeable, a new successful run exceeds the
    threshold at any step with probability at most alpha, on average over the calibration too; with the draws at least
    alpha - 1/(n + 1). What breaks it: as `pac_threshold`.

    Args and errors as `pac_threshold`, without delta. +inf when n < 1/alpha - 1.

    >>> conformal_threshold([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], 0.25).log_value
    3.0
    """
    peaks, draws = _pairs("conformal_threshold", log_peaks, ties)
    rank = conformal_rank(len(peaks), alpha)
    sentence = (
        f"A run that would have succeeded ever raises this alarm with probability at most {percent(alpha)}, on "
        f"average over draws of the {len(peaks)} held-out successful runs that set it. This assumes exchangeable "
        f"tasks, {_ONCE}; a changed agent, task mix or verifier breaks it."
    )
    return _at_rank(Mode.CONFORMAL, alpha, peaks, draws, rank, sentence, successes_needed(alpha))


def weighted_threshold(
    log_peaks: npt.ArrayLike, ties: npt.ArrayLike, weights: npt.ArrayLike, alpha: float, *, most: float = 1.0
) -> Threshold:
    """Set the conformal threshold from runs observed with known probabilities 1/w: the smallest pair at which

        sum of w_i over runs up to it  >=  (1 - alpha) (sum of all w_i + w),   w = max(most, the largest w_i).

    Guarantee: if the successful runs and the new one are exchangeable before some of them were stopped, and each was
    seen with probability 1/w_i, which depends on the run alone, then a new successful run that could have been seen
    exceeds the threshold at any step with probability at most alpha, on average over the calibration too. What breaks
    it: runs that no draw could show (stopped at an irreversible call), wrong probabilities, a population that moved,
    `most` below the largest weight that a run can have: a rare draw may have shown none of those that weigh most.

    Args and errors as `conformal_threshold`; weights: shape (n,), finite, >= 1. With equal weights it is the same.
    `most`: the largest weight that a new run can have, finite, >= 1.

    Source: weighted split conformal prediction, Tibshirani et al. 2019, theorem 2, with the largest weight standing for
    the new run's, which is not known.

    >>> weighted_threshold([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [1.0, 1.0, 1.0], 0.25).log_value
    3.0
    """
    peaks, draws = _pairs("weighted_threshold", log_peaks, ties)
    w = numbers("weights", "weighted_threshold", weights)
    if w.shape != peaks.shape or not (np.isfinite(w) & (w >= 1.0)).all():
        raise ConfigurationError.of("weights", "weighted_threshold", f"of shape {peaks.shape}, finite, >= 1", weights)
    if not 1.0 <= most < math.inf:
        raise ConfigurationError.of("most", "weighted_threshold", "finite, >= 1", most)
    check_level("alpha", "weighted_threshold", alpha)
    rank, largest = None, max(most, float(w.max(initial=1.0)))
    if len(w):
        order = np.lexsort((draws, peaks))
        reached = np.cumsum(w[order]) >= (1.0 - alpha) * (w.sum() + largest) - 1e-9
        rank = int(np.argmax(reached)) + 1 if reached.any() else None
    sentence = (
        f"A run that would have succeeded ever raises this alarm with probability at most {percent(alpha)}, on "
        f"average over draws of the {len(peaks)} held-out successful runs that set it, of which those let through at "
        f"random count one over the probability of their draw. This assumes exchangeable tasks, {_ONCE}, and holds for "
        "runs that such a draw can show; a changed agent, task mix or verifier breaks it."
    )
    needed = math.ceil(largest * successes_needed(alpha))
    return _at_rank(Mode.CONFORMAL, alpha, peaks, draws, rank, sentence, needed)


def budget_threshold(log_peaks: npt.ArrayLike, ties: npt.ArrayLike, share: float) -> Threshold:
    """Set the interruption budget: the conformal quantile over *all* recorded runs, whatever their outcome.

    Guarantee: if the n recorded runs and the new one are exchangeable, the new run is interrupted with probability at
    most `share`. Needs no label, and promises nothing about which runs are interrupted.

    Args and errors as `conformal_threshold`; log_peaks of all runs, share in (0, 1).

    >>> budget_threshold([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], 0.5).log_value
    2.0
    """
    peaks, draws = _pairs("budget_threshold", log_peaks, ties)
    rank = conformal_rank(len(peaks), share)
    sentence = (
        f"At most {percent(share)} of runs, whatever their outcome, are interrupted by this alarm, on average over "
        f"draws of the {len(peaks)} recorded runs that set it. This assumes exchangeable tasks, {_ONCE}, and says "
        "nothing about how many of the interrupted runs would have failed."
    )
    return _at_rank(Mode.BUDGET, share, peaks, draws, rank, sentence, successes_needed(share))


def ville_threshold(alpha: float) -> Threshold:
    """Set Ville's threshold 1/alpha, for a *known* likelihood ratio only; compared with `>=`.

    Guarantee: if M_t is the true ratio p0/p1 of the scores so far (or any e-process for success), it reaches 1/alpha at
    any step of a successful run, however long, with probability at most alpha (Proposition 1). What breaks it: a
    learned ratio, even a slightly wrong one.

    >>> round(ville_threshold(0.05).log_value, 6)
    2.995732
    """
    check_level("alpha", "ville_threshold", alpha)
    sentence = (
        f"If M is the true likelihood ratio, at most {percent(alpha)} of runs that would have succeeded ever raise "
        "this alarm, however long they run. For a ratio learned from data this is not a guarantee."
    )
    return Threshold(
        mode=Mode.VILLE,
        alpha=alpha,
        delta=None,
        log_value=-math.log(alpha),
        tie=0.0,
        runs=0,
        rank=None,
        guarantee=sentence,
    )


def exceeds(threshold: Threshold, log_peak: float, tie: float) -> bool:
    """Return True if a run whose evidence peaked at `log_peak` alarms.

    >>> at = pac_threshold([0.0] * 30, [i / 30 for i in range(30)], 0.1, 0.1)
    >>> exceeds(at, 0.0, 0.99), exceeds(at, 0.0, 0.9), exceeds(at, 1e-9, 0.0)
    (True, False, True)
    """
    if threshold.mode in (Mode.VILLE, Mode.BONFERRONI):
        return log_peak >= threshold.log_value
    if log_peak == threshold.log_value:
        return math.isfinite(log_peak) and tie > threshold.tie  # a run without a reading has no evidence to alarm on
    return log_peak > threshold.log_value


def exceeds_many(threshold: Threshold, log_values: FloatArray, ties: FloatArray) -> BoolArray:
    """`exceeds` for arrays of equal shape; NaN never exceeds."""
    if threshold.mode in (Mode.VILLE, Mode.BONFERRONI):
        return log_values >= threshold.log_value
    level = threshold.log_value
    above: BoolArray = log_values > level
    return above | ((log_values == level) & (ties > threshold.tie)) if math.isfinite(level) else above


def tie_uniform(session_id: str, salt: str) -> float:
    """Draw a run's number in (0, 1) from its id: the same in every process.

    The salt is the detector's own, so that the draws of two detectors are independent and an id cannot be chosen to
    win its ties without knowing it.

    >>> round(tie_uniform("run-1", "a"), 6)
    0.892814
    """
    digest = hashlib.blake2b(
        session_id.encode("utf-8", "surrogatepass"), digest_size=8, key=salt.encode()[:64]
    ).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53 + 2.0**-54


def successes_needed(alpha: float, delta: float | None = None) -> int:
    """Least number of held-out runs for which a PAC threshold is finite; without delta, a conformal or budget one.

    >>> successes_needed(0.05, 0.1), successes_needed(0.05)
    (45, 19)
    """
    if delta is not None:
        return smallest_n_for_pac(alpha, delta)
    close = max(0, math.floor(1.0 / alpha) - 2)
    return next(n for n in range(close, close + 4) if conformal_rank(n, alpha) is not None)


def _at_rank(
    mode: Mode,
    alpha: float,
    peaks: FloatArray,
    ties: FloatArray,
    rank: int | None,
    sentence: str,
    needed: int,
    delta: float | None = None,
) -> Threshold:
    place = None if rank is None else np.lexsort((ties, peaks))[rank - 1]
    what = "recorded runs" if mode is Mode.BUDGET else "held-out successful runs"
    levels = f"a budget of {alpha:g}" if mode is Mode.BUDGET else f"alpha={alpha:g}"
    levels += "" if delta is None else f", delta={delta:g}"
    lacking = f"{needed} {what} are needed for {levels}; there are {len(peaks)}. The alarm stays off."
    return Threshold(
        mode=mode,
        alpha=alpha,
        delta=delta,
        log_value=math.inf if place is None else float(peaks[place]),
        tie=1.0 if place is None else float(ties[place]),
        runs=len(peaks),
        rank=rank,
        guarantee=sentence,
        shortage=lacking if rank is None else "",
    )


def _pairs(owner: str, log_peaks: npt.ArrayLike, ties: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    peaks, draws = numbers("log_peaks", owner, log_peaks), numbers("ties", owner, ties)
    if peaks.ndim != 1 or np.isnan(peaks).any():
        raise ConfigurationError.of("log_peaks", owner, "one-dimensional and free of NaN", log_peaks)
    if draws.shape != peaks.shape or not ((draws >= 0.0) & (draws <= 1.0)).all():
        raise ConfigurationError.of("ties", owner, "one draw in [0, 1] for each peak", ties)
    return peaks, draws


def percent(share: float) -> str:
    """A share as promises write it."""
    return f"{100.0 * share:.6g} %"
