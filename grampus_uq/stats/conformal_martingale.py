"""A conformal test martingale over finished runs, in bounded memory: does a calibration still describe them?

Every finished run is ranked against the calibration runs and all runs before it. If all of them are exchangeable, the
ranks are independent and uniform, and bets against that seldom win:

    S_n = S_(n-1) * mean over accounts of f_i(p_n),    P(S ever reaches 1/level) <= level   (Ville)

A large capital S means that the calibration no longer describes the runs. Ranks against the fixed calibration set alone
would depend on each other: long histories would alarm falsely almost surely.

Past runs are kept as counts in bins. Their edges are calibration runs drawn at random and left out of the counts;
binning is a function of each run alone, so the ranks (randomised within a bin) stay exactly uniform.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import FloatArray
from grampus_uq.stats.stored_values import STORED, Extended

JUMP_RATES = (0.0, 1e-3, 1e-2, 1e-1)
"""Shares of the capital that are redistributed at every run: none for small changes, fast for late and large ones."""

_EDGES = 31
# f(p) = 1 + e (2p - 1): e < 0 wins when runs look stranger than before, e > 0 when less strange. Small stakes without
# redistribution win under a small change, which moves few ranks far; full stakes lose on the other ranks.
_LINEAR = (-1.0, -0.6, -0.3, 0.3, 0.6, 1.0)
_BEFORE = (3, (-1.0, 1.0))  # rows and stakes of watches that were stored before there were small ones
_TAILS = (0.05, 0.2)  # f(p) = 2 for p <= a, less above: wins when the strangest ranks become twice as frequent


@dataclass(frozen=True, slots=True, kw_only=True)
class MartingaleState:
    """The state of one martingale: bounded however many runs it has seen.

    Attributes:
        edges: ascending; a statistic above an edge belongs to a higher bin.
        counts: past runs, by bin.
        shares: how the capital is spread over the accounts, jump rate by jump rate; sums to 1.
        log_capital: natural log of S_n; 0 at the start.
        log_peak: its maximum so far, what an alarm looks at.
        runs: how many finished runs were watched.
    """

    edges: tuple[Extended, ...]
    counts: tuple[int, ...]
    shares: tuple[float, ...]
    log_capital: float = 0.0
    log_peak: float = 0.0
    runs: int = 0

    __pydantic_config__ = STORED

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", _all_accounts(self.shares))
        if list(self.edges) != sorted(self.edges) or len(self.counts) != len(self.edges) + 1:
            raise ConfigurationError.of("edges", "MartingaleState", "ascending, one fewer than counts", self.edges)
        if any(math.isnan(edge) for edge in self.edges) or min(self.counts) < 0 or self.runs < 0:
            raise ConfigurationError.of("counts", "MartingaleState", "not negative", self.counts)
        if len(self.shares) != len(JUMP_RATES) * ACCOUNTS or min(self.shares) < 0.0:
            raise ConfigurationError.of("shares", "MartingaleState", "one for each jump rate and account", self.shares)
        if not abs(sum(self.shares) - 1.0) < 1e-6 or not self.log_capital <= self.log_peak < math.inf:
            raise ConfigurationError.of("shares", "MartingaleState", "shares that sum to 1", sum(self.shares))


ACCOUNTS = 1 + len(_LINEAR) + len(_TAILS)
"""The first account never bets: it preserves capital until a change."""


def martingale_start(peaks: Sequence[float], rng: np.random.Generator) -> MartingaleState:
    """Begin with calibration runs.

    `peaks`: their statistics, no NaN (`Detector.null_peaks`, or `capped` peaks of all kinds of runs for the variant
    without labels), of runs that served neither fit nor choice of the statistic. May be empty: only later changes are
    then detected. `rng` draws which of them become edges (at most 31, at most a third).
    """
    values = np.asarray(peaks, dtype=np.float64)
    if values.ndim != 1 or np.isnan(values).any():
        raise ConfigurationError.of("peaks", "martingale_start", "one-dimensional and free of NaN", peaks)
    order = rng.permutation(len(values))
    size = min(_EDGES, len(values) // 3)
    edges = tuple(sorted(values[order[:size]].tolist()))
    bins = [bisect_left(edges, value) for value in values[order[size:]].tolist()]
    accounts = len(JUMP_RATES) * ACCOUNTS
    return MartingaleState(
        edges=edges,
        counts=tuple(np.bincount(bins, minlength=size + 1).tolist()) if bins else (0,) * (size + 1),
        shares=(1.0 / accounts,) * accounts,
    )


def martingale_update(state: MartingaleState, peak: float, draw: float) -> tuple[MartingaleState, float]:
    """Take one finished run: rank it against the past runs, bet, and count it among them.

    Guarantee: if calibration runs and later runs are exchangeable, `P(exp(log_peak) ever >= 1/level) <= level`,
    whenever it is inspected. Late labels may come in any order that does not depend on the statistics; runs without a
    label are left out. What breaks it: comparing only the runs that a monitor did not stop with calibration runs that
    it did not filter (use `capped`, or leave alarmed runs out on both sides).

    `peak`: the run's statistic; larger is stranger; -inf for a run without readings. `draw`: its own uniform number in
    [0, 1] (`tie_uniform`), independent of the statistic. Returns the new state, and the rank p in [0, 1] that was bet
    on: small when the run is stranger than those before it.
    """
    if math.isnan(peak) or not 0.0 <= draw <= 1.0:
        raise ConfigurationError.of("peak", "martingale_update", "a number, with a draw in [0, 1]", (peak, draw))
    place = bisect_left(state.edges, peak)
    above, same, bag = sum(state.counts[place + 1 :]), state.counts[place], sum(state.counts)
    p = (above + draw * (same + 1)) / (bag + 1)
    shares, growth = bet(np.array(state.shares), np.array(p))
    log_capital = state.log_capital + math.log(float(growth))
    counts = list(state.counts)
    counts[place] += 1
    fresh = MartingaleState(
        edges=state.edges,
        counts=tuple(counts),
        shares=tuple(shares.tolist()),
        log_capital=log_capital,
        log_peak=max(state.log_peak, log_capital),
        runs=state.runs + 1,
    )
    return fresh, p


def capped(log_peak: float, log_threshold: float) -> float:
    """Cut the statistic at the threshold: what a run would have done after its alarm is unknown.

    For the variant without labels; calibration runs are capped alike.

    >>> capped(3.0, 2.0), capped(1.0, 2.0)
    (2.0, 1.0)
    """
    return min(log_peak, log_threshold)


def bet(shares: FloatArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bet the capital on ranks, redistribute it, and return the new shares and the factor by which it grew.

    Works on many martingales at once: `shares` has shape (..., jump rates * accounts), p the leading shape.
    """
    x = np.asarray(p)[..., None]
    linear = [1.0 + e * (2.0 * x - 1.0) for e in _LINEAR]
    tails = [np.where(x <= a, 2.0, (1.0 - 2.0 * a) / (1.0 - a)) for a in _TAILS]
    factors = np.concatenate([np.ones_like(x), *linear, *tails], axis=-1)
    split = shares.reshape(*shares.shape[:-1], len(JUMP_RATES), ACCOUNTS) * factors[..., None, :]
    growth = split.sum(axis=(-2, -1))
    split /= growth[..., None, None]
    rates = np.array(JUMP_RATES)[:, None]
    dealt = (1.0 - rates) * split + rates * split.mean(axis=-1, keepdims=True)
    return dealt.reshape(shares.shape), growth


def _all_accounts(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Bring the shares of a state stored by an older version to today's accounts.

    Any division of the capital before a bet is valid, so the guarantee holds on.
    """
    rows, stakes = _BEFORE
    width = 1 + len(stakes) + len(_TAILS)
    if len(shares) != rows * width:
        return shares
    found = np.zeros((len(JUMP_RATES), ACCOUNTS))
    places = [0, *(1 + _LINEAR.index(stake) for stake in stakes), *range(1 + len(_LINEAR), ACCOUNTS)]
    found[-rows:, places] = np.reshape(shares, (rows, width))
    return tuple(found.ravel().tolist())
