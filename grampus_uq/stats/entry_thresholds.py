"""One number per step: the entry threshold E_j, the smallest q at which step j enters the prediction set.

Every method of error attribution is a nested family of sets F(x; q), growing with q, so `E_j = inf{q : j in F(x; q)}`
says everything about it: the set at threshold q is `{j : E_j <= q}` and the conformity score of a labelled trajectory
is E at the true step (eq. 4 and 6 of the source). `grampus_uq.stats.conformal` takes it from there.

Step scores: higher = more suspect. Entry thresholds: lower = enters earlier.

Source: Feng et al., "Conformal Agent Error Attribution" (2026), section 3.1 and appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray, IntArray, RaggedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryThresholds:
    """Entry thresholds of n trajectories, and the fallback step of an empty set.

    values: shape (n, longest), padding +inf (+inf is also a legal threshold: `lengths` tells them apart). NaN never.
    lengths: shape (n,), at least 1. fallback: shape (n,), a step index, or None when an empty set stays empty.
    """

    values: FloatArray
    lengths: IntArray
    fallback: IntArray | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.lengths.shape != self.values.shape[:1]:
            raise ConfigurationError.of("values", "EntryThresholds", "of shape (n, longest)", self.values.shape)
        if np.isnan(self.values).any():
            raise ConfigurationError.of("values", "EntryThresholds", "free of NaN", "NaN")
        if len(self.lengths) and not 1 <= self.lengths.min() <= self.lengths.max() <= self.values.shape[1]:
            raise ConfigurationError.of("lengths", "EntryThresholds", "between 1 and the width", self.lengths)

    @property
    def valid(self) -> BoolArray:
        """Shape (n, longest), True where a step exists."""
        return np.asarray(np.arange(self.values.shape[1]) < self.lengths[:, None], dtype=np.bool_)


def vanilla_entry(batch: RaggedBatch) -> EntryThresholds:
    """Vanilla conformal prediction (VCP): every step alone, `E_j = -s_j`. Sets need not be contiguous.

    The paper writes `1 - s_j`; the order is the same and the sign alone loses no digits of small scores. Calibrated, as
    every method, on the *true* step's value, never on the best-scored one. Every step needs its score: L evaluations.
    """
    return EntryThresholds(values=np.where(batch.valid, -batch.values, np.inf), lengths=batch.lengths)


def right_filtration_entry(batch: RaggedBatch) -> EntryThresholds:
    """Right filtration (RF): the longest prefix with g <= q, so `E_j = min_{k >= j} g(c_0:k)`; sets are prefixes.

    `g(c_j:k) = (1/L) sum_{i=j..k} s_i` (section 3.2). For scores >= 0 g is monotone, and the minimum is g(c_0:j)
    itself (proposition 1). The paper sets g of the whole trajectory to infinity, an atom that breaks its upper bound on
    coverage; here it is the formula's. Not decreasing along a trajectory; q may be any real number.
    """
    length = batch.lengths[:, None]
    with np.errstate(over="ignore", invalid="ignore"):  # refused below, with a message
        # Divided once, at the end: 2/10 and 1/5 come out equal and tie, as they should.
        scores = np.cumsum(np.where(batch.valid, batch.values, 0.0), axis=1) / length
    _refuse_overflow(scores[batch.valid])
    scores = np.where(batch.valid, scores, np.inf)
    running = np.minimum.accumulate(scores[:, ::-1], axis=1)[:, ::-1]
    return EntryThresholds(values=running, lengths=batch.lengths)


def left_filtration_entry(batch: RaggedBatch) -> EntryThresholds:
    """Left filtration (LF): the longest suffix with g <= q, so `E_j = min_{i <= j} g(c_i:L-1)` (eq. 3 and 4).

    Sets are suffixes: what a rollback wants. Otherwise as `right_filtration_entry`, mirrored.
    """
    mirrored = right_filtration_entry(batch.reversed())
    values = RaggedBatch(values=mirrored.values, lengths=batch.lengths).reversed().values
    return EntryThresholds(values=values, lengths=batch.lengths)


def two_way_entry(batch: RaggedBatch) -> EntryThresholds:
    """Two-way filtration (TWF): suffix and prefix intersected, so `E_j = max(E_LF_j, E_RF_j)` (eq. 7).

    Sets are intervals, and may be empty: see `keep_first`.
    """
    right, left = right_filtration_entry(batch), left_filtration_entry(batch)
    return EntryThresholds(values=np.maximum(left.values, right.values), lengths=batch.lengths)


def hierarchical_entry(batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
    """CRSVP on the binary tree over the steps: the set is one node, found by climbing from the best-scored leaf.

    With the leaf v_0 (highest score, the first of equals) and its ancestors v_1 .. root, a step that first appears in
    v_i has `E = g(v_i) - u (g(v_i) - g(v_{i-1}))`, and `E = g(v_0)` for the leaf itself (eq. 16). g is replaced by its
    running maximum along the path, which changes nothing when g is monotone.

    Appendix B takes the lower quantile floor((n+1) alpha) of these values, which under-covers; the upper one, rank
    ceil((n+1)(1-alpha)), is what makes `E <= q` a conformal set, and the only one offered. The leaf is always in the
    set (it is the fallback), so coverage has the lower bound but no upper one.

    `draws`: shape (n,), independent uniforms in [0, 1), one per trajectory (u in the paper). Returns entry thresholds
    with the leaf as fallback. The tree halves every node (the left half is the longer one); the paper's heap numbering
    gives the same tree for powers of two and nodes with gaps otherwise.
    """
    u = np.asarray(draws, dtype=np.float64)
    if u.shape != batch.lengths.shape or not ((u >= 0.0) & (u <= 1.0)).all():
        raise ConfigurationError.of("draws", "hierarchical_entry", "one number in [0, 1] a trajectory", u)
    leaf = np.argmax(np.where(batch.valid, batch.values, -np.inf), axis=1).astype(np.int64)
    nodes = _path_to_leaf(leaf, batch.lengths)
    g = _node_scores(batch, nodes)
    for depth in range(len(nodes) - 2, -1, -1):
        g[depth] = np.maximum(g[depth], g[depth + 1])
    values = np.where(nodes[-1], g[-1][:, None], np.inf)
    for depth in range(len(nodes) - 1):
        # The maximum guards against a rounding step below g of the inner node.
        entry = np.maximum(g[depth] - u * (g[depth] - g[depth + 1]), g[depth + 1])
        values = np.where(nodes[depth] & ~nodes[depth + 1], entry[:, None], values)
    return EntryThresholds(values=values, lengths=batch.lengths, fallback=leaf)


def keep_first(entry: EntryThresholds) -> EntryThresholds:
    """Put the step that would enter first into every set: its E becomes -inf, in calibration and prediction alike.

    The sets stay nested and intervals stay intervals, so the guarantee is that of any nested family, and nothing is
    empty. Coverage is exactly k/(n+1) for as long as the kept step alone is right in fewer than k of the n calibration
    trajectories; when it is right more often the threshold is -inf, the set is that one step, and covers more. Of
    several first steps the earliest is kept.
    """
    first = np.argmin(np.where(entry.valid, entry.values, np.inf), axis=1)
    values = entry.values.copy()
    values[np.arange(len(values)), first] = -np.inf
    return EntryThresholds(values=values, lengths=entry.lengths, fallback=first)


def _path_to_leaf(leaf: IntArray, lengths: IntArray) -> list[BoolArray]:
    """Members of the nodes from the root down to the leaf; a leaf reached early is repeated."""
    column = np.arange(int(lengths.max()))
    low, high = np.zeros_like(lengths), lengths.copy()
    path = []
    while True:
        path.append((column >= low[:, None]) & (column < high[:, None]))
        if (high - low == 1).all():
            return path
        middle = (low + high + 1) // 2
        goes_left = leaf < middle
        low, high = np.where(goes_left | (high - low == 1), low, middle), np.where(goes_left, middle, high)


def _node_scores(batch: RaggedBatch, nodes: list[BoolArray]) -> FloatArray:
    """g of every node, shape (depth, n)."""
    with np.errstate(over="ignore", invalid="ignore"):  # refused below, with a message
        scores = np.stack([np.sum(batch.values, axis=1, where=node) / batch.lengths for node in nodes])
    _refuse_overflow(scores)
    return scores


def _refuse_overflow(g: FloatArray) -> None:
    if not np.isfinite(g).all():
        raise ConfigurationError.of("batch", "an entry threshold", "scores with a finite sum", "a sum that overflows")
