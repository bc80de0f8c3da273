"""One number per step: the entry threshold E_j, the smallest q at which step j enters the prediction set.

Every method of error attribution is a nested family of sets F(x; q), growing with q, so `E_j = inf{q : j in F(x; q)}`
says everything about it: the set at threshold q is `{j : E_j <= q}` and the conformity score of a labelled trajectory
is E at the true step (eq. 4 and 6 of the source). `grampus_uq.stats.conformal` takes it from there.

Step scores: higher = more suspect. Entry thresholds: lower = enters earlier.

Source: Feng et al., "Conformal Agent Error Attribution" (2026), section 3.1 and appendix B.
"""

from __future__ import annotations

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import RaggedBatch


def vanilla_entry(batch: RaggedBatch) -> RaggedBatch:
    """Vanilla conformal prediction (VCP): every step alone, `E_j = -s_j`. Sets need not be contiguous.

    The paper writes `1 - s_j`; the order is the same and the sign alone loses no digits of small scores. Calibrated, as
    every method, on the *true* step's value, never on the best-scored one. Every step needs its score: L evaluations.
    """
    return RaggedBatch(values=np.where(batch.valid, -batch.values, np.inf), lengths=batch.lengths)


def right_filtration_entry(batch: RaggedBatch) -> RaggedBatch:
    """Right filtration (RF): the longest prefix with g <= q, so `E_j = min_{k >= j} g(c_0:k)`; sets are prefixes.

    `g(c_j:k) = (1/L) sum_{i=j..k} s_i` (section 3.2). For scores >= 0 g is monotone, and the minimum is g(c_0:j)
    itself (proposition 1). The paper sets g of the whole trajectory to infinity, an atom that breaks its upper bound on
    coverage; here it is the formula's. Not decreasing along a trajectory; q may be any real number.
    """
    length = batch.lengths[:, None]
    with np.errstate(over="ignore", invalid="ignore"):  # refused below, with a message
        # Divided once, at the end: 2/10 and 1/5 come out equal and tie, as they should.
        scores = np.cumsum(np.where(batch.valid, batch.values, 0.0), axis=1) / length
    if not np.isfinite(scores[batch.valid]).all():
        raise ConfigurationError.of("batch", "an entry threshold", "scores with a finite sum", "a sum that overflows")
    scores = np.where(batch.valid, scores, np.inf)
    running = np.minimum.accumulate(scores[:, ::-1], axis=1)[:, ::-1]
    return RaggedBatch(values=running, lengths=batch.lengths)


def left_filtration_entry(batch: RaggedBatch) -> RaggedBatch:
    """Left filtration (LF): the longest suffix with g <= q, so `E_j = min_{i <= j} g(c_i:L-1)` (eq. 3 and 4).

    Sets are suffixes: what a rollback wants. Otherwise as `right_filtration_entry`, mirrored.
    """
    return right_filtration_entry(batch.reversed()).reversed()
