"""Evidence that never forgets, against an agent that is right whenever everything is asked about.

A call is exposed while it could go out unseen: its audit probability is below 1. Let q be the least audit rate, a
constant, x_t = 1 / q where exposed call t could go out, its draw was below q and it was wrong, else 0, and epsilon the
promised share: E[x_t | past] is at most that while so many are wrong, audited ones included. A call whose draw is below
q is asked about whatever its own audit probability is, so x_t is always known. On exposed calls alone, in their order
and across every new beginning of a permission, R_0 = 1 and

    R_t = (R_{t-1} + w_t) (1 + mu (x_t - epsilon)),   w_t = 1 / (1 + log t) - 1 / (1 + log(t + 1))

with mu = (ratio - 1) q: bets that begin with call 1, or with any later one. The w_t sum to 1, so R_t plus those to come
is a nonnegative supermartingale that begins at 2 while that holds: the mean of R_t / 2 over the K ratios ever reaches
100 with probability at most 1 % (Ville). Right answers while everything is asked about pay for nothing.

Against any agent, however it steers the audit probabilities: it must have reached 100 after n exposed calls of which k
had x_t > 0 where, for one ratio r,

    k log(1 + (r - 1)(1 - q epsilon)) + (n - k) log(1 - (r - 1) q epsilon) >= log(200 K)

and before the k-th of these no more wrong calls go out than there are tails before the k-th head of a coin with heads
q: the draw of an exposed wrong call is below q with that probability, whatever the agent knows but the draw. Bets and
weights with the audit probability of each call would not have this bound: at a higher one a right call would cost the
evidence more.

Sources: Shin, Ramdas and Rinaldo (2024), E-detectors, for the sum over beginnings; Waudby-Smith and Ramdas (2024) for
the bets.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from grampus_uq.stats.arrays import FloatArray

RATIOS: Final = np.array([1.5, 3.0, 6.0, 15.0])
"""Ratios of the actual to the promised share of wrong calls that the evidence bets on."""
LOG_SPENT: Final = math.log(100.0)
"""From which logarithm of the evidence on the permission is withdrawn for good."""


def log_begun(exposed: FloatArray, log_values: FloatArray) -> FloatArray:
    """log(R + w) for each ratio: the bets that begin with the next exposed call join those of before.

    `exposed`: exposed calls so far, shape (..., 1). `log_values`: log R, shape (..., K).
    """
    t = exposed + 1.0  # w = 1/a - 1/b = (b - a) / (a b), of which a difference would leave 0 after 10^13 calls
    log_w = np.log(np.log1p(1.0 / t)) - np.log1p(np.log(t)) - np.log1p(np.log(t + 1.0))
    joined: FloatArray = np.logaddexp(log_values, log_w)
    return joined


def log_evidence(log_values: FloatArray) -> FloatArray:
    """The logarithm of the mean of R / 2 over the ratios, shape (..., 1); at most 0 before the first exposed call."""
    total: FloatArray = np.logaddexp.reduce(log_values, axis=-1, keepdims=True) - math.log(2.0 * len(RATIOS))
    return total
