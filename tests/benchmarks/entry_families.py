"""Families of error sets that the paper has and the product does not offer: two-way filtration, and CRSVP on a tree."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray, IntArray, RaggedBatch
from grampus_uq.stats.entry_thresholds import EntryThresholds, left_filtration_entry, right_filtration_entry


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

    Args:
        batch: step scores.
        draws: shape (n,), independent uniforms in [0, 1), one per trajectory (u in the paper).

    Returns:
        Entry thresholds with the leaf as fallback. The tree halves every node (the left half is the longer one); the
        paper's heap numbering gives the same tree for powers of two and nodes with gaps otherwise.
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
