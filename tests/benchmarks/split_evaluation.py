"""Coverage, removal rate and cost of prediction sets over many random splits.

Source of the measures: Feng et al., "Conformal Agent Error Attribution" (2026), eq. 9 and table 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import FloatArray, IntArray, RaggedBatch
from grampus_uq.stats.conformal import coverage_rank
from grampus_uq.stats.entry_thresholds import EntryThresholds

__all__ = ["SplitEvaluation", "conformity_at", "evaluate_splits", "random_splits", "with_fallback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitEvaluation:
    """What sets were worth on test trajectories, a row a split and a column a level; every array is (splits, levels).

    coverage: share of test trajectories whose set holds the true step. removal_rate: mean of 1 - |C|/L (eq. 9), higher
    is better. empty_share: share of sets that came out empty (before any fallback). size: mean |C|.
    lazy_evaluations: mean of min(|C| + 1, L), what right or left filtration needs (L for any other method).
    """

    levels: tuple[float, ...]
    coverage: FloatArray
    removal_rate: FloatArray
    empty_share: FloatArray
    size: FloatArray
    lazy_evaluations: FloatArray


def random_splits(
    n: int, splits: int, rng: np.random.Generator, *, labelled: int | None = None
) -> tuple[IntArray, IntArray]:
    """Draw random splits of n trajectories into a labelled and a test part.

    Args:
        n: number of trajectories, at least 2.
        splits: number of splits.
        rng: source of randomness.
        labelled: size of the labelled part; None halves (the odd one is tested).

    Returns:
        Two index arrays, (splits, labelled) and (splits, n - labelled).

    Raises:
        ConfigurationError: a part would be empty.
    """
    size = n // 2 if labelled is None else labelled
    if not 1 <= size < n:
        raise ConfigurationError.of("labelled", "random_splits", "at least 1 and less than n", (size, n))
    order = rng.permuted(np.tile(np.arange(n, dtype=np.int64), (splits, 1)), axis=1)
    return order[:, :size], order[:, size:]


def conformity_at(entry: EntryThresholds, true_step: npt.ArrayLike) -> FloatArray:
    """Return the conformity score of each trajectory: E at its true step.

    Args:
        entry: entry thresholds of n trajectories.
        true_step: shape (n,), 0-based index of the decisive error.

    Returns:
        Shape (n,); higher = the method finds the error later.

    Raises:
        ConfigurationError: an index outside its trajectory.
    """
    steps = _checked_true_steps(entry, true_step, "conformity_at")
    return np.asarray(entry.values[np.arange(len(steps)), steps])


def with_fallback(entry: EntryThresholds, batch: RaggedBatch) -> EntryThresholds:
    """Let an empty set become the single best-scored step, as the paper does for TWF (appendix A.3).

    Calibration is untouched, so coverage can only rise: its upper bound becomes `k/(n+1) + P(empty)`. `keep_first`
    puts the stand-in inside the nested family and keeps coverage exact.
    """
    return replace(entry, fallback=np.argmax(np.where(batch.valid, batch.values, -np.inf), axis=1))


def evaluate_splits(
    entry: EntryThresholds,
    true_step: npt.ArrayLike,
    calibration: IntArray,
    test: IntArray,
    levels: Sequence[float],
    draws: npt.ArrayLike | None = None,
) -> SplitEvaluation:
    """Calibrate and test on every split at every level, in a handful of array operations.

    Args:
        entry: entry thresholds of all N trajectories (rows may repeat a trajectory scored by another fit: splits only
            index into them).
        true_step: shape (N,).
        calibration: shape (splits, n), row indices of each split's calibration part.
        test: shape (splits, m), row indices of each split's test part; no overlap with calibration (the caller's duty).
        levels: wanted coverages, each in (0, 1).
        draws: tie draws, shape (N,) or (splits, N); None leaves ties unbroken.

    Returns:
        The figures, split by split; means and deviations over axis 0 are the caller's.

    Raises:
        ConfigurationError: shapes or levels that do not fit.
    """
    steps = _checked_true_steps(entry, true_step, "evaluate_splits")
    conformity = conformity_at(entry, steps)
    if calibration.ndim != 2 or test.ndim != 2 or len(calibration) != len(test):
        raise ConfigurationError.of("calibration", "evaluate_splits", "(splits, n), as test", calibration.shape)
    u = np.broadcast_to(
        np.full(len(steps), -np.inf) if draws is None else np.asarray(draws, dtype=np.float64),
        (len(calibration), len(steps)),
    )
    q, q_draw = _split_thresholds(
        conformity[calibration], np.take_along_axis(u, calibration, axis=1), levels, broken=draws is not None
    )
    u_test = np.take_along_axis(u, test, axis=1)[:, None, :]
    lets_ties_in = u_test <= q_draw[:, :, None]
    below, upto = _counts(entry, test[:, None, :], q[:, :, None])
    size = below + lets_ties_in * (upto - below)
    score = conformity[test][:, None, :]
    covered = (score < q[:, :, None]) | ((score == q[:, :, None]) & lets_ties_in)
    empty = size == 0
    if entry.fallback is not None:
        covered |= empty & (entry.fallback == steps)[test][:, None, :]
        size = np.maximum(size, 1)
    length = entry.lengths[test][:, None, :]
    return SplitEvaluation(
        levels=tuple(levels),
        coverage=covered.mean(axis=2),
        removal_rate=1.0 - (size / length).mean(axis=2),
        empty_share=empty.mean(axis=2),
        size=size.mean(axis=2),
        lazy_evaluations=np.minimum(size + 1, length).mean(axis=2),
    )


def _split_thresholds(
    scores: FloatArray, draws: FloatArray, levels: Sequence[float], *, broken: bool
) -> tuple[FloatArray, FloatArray]:
    """Threshold and tie draw of each split (rows) at each level (columns), from one sort a split."""
    splits, n = scores.shape
    order = np.lexsort((draws, scores), axis=1)
    value, draw = np.full((splits, len(levels)), np.inf), np.full((splits, len(levels)), np.inf)
    for column, level in enumerate(levels):
        rank = coverage_rank(n, level)
        if rank is None:
            continue
        place = order[:, rank - 1 : rank]
        value[:, column] = np.take_along_axis(scores, place, axis=1)[:, 0]
        if broken:
            draw[:, column] = np.take_along_axis(draws, place, axis=1)[:, 0]
    return value, draw


def _counts(entry: EntryThresholds, rows: IntArray, q: FloatArray) -> tuple[IntArray, IntArray]:
    """How many entry thresholds of each row lie below q, and how many do not exceed it.

    All rows in one binary search: entry thresholds are replaced by their ranks among the distinct ones, and row i's
    ranks are shifted by i times their number, which makes one sorted array of all rows.
    """
    asked, inverse = np.unique(rows, return_inverse=True)  # rows that only calibrate cost nothing
    lengths, valid = entry.lengths[asked], entry.valid[asked]
    distinct, rank = np.unique(entry.values[asked][valid], return_inverse=True)
    stride = len(distinct) + 1
    keys = np.sort(np.repeat(np.arange(len(asked)), lengths) * stride + rank.reshape(-1))
    place = inverse.reshape(rows.shape)
    start = np.concatenate([[0], np.cumsum(lengths)[:-1]])[place]
    below = np.searchsorted(keys, place * stride + np.searchsorted(distinct, q, side="left")) - start
    upto = np.searchsorted(keys, place * stride + np.searchsorted(distinct, q, side="right")) - start
    return below, upto


def _checked_true_steps(entry: EntryThresholds, true_step: npt.ArrayLike, owner: str) -> IntArray:
    """Return the true steps as integers, or refuse the first that lies outside its trajectory."""
    steps = np.asarray(true_step)
    if steps.shape != entry.lengths.shape or not np.issubdtype(steps.dtype, np.integer):
        raise ConfigurationError.of("true_step", owner, "one whole number a trajectory", steps.shape)
    outside = (steps < 0) | (steps >= entry.lengths)
    if outside.any():
        place = int(np.flatnonzero(outside)[0])
        rule = f"inside its trajectory (0..{entry.lengths[place] - 1})"
        raise ConfigurationError.of("true_step", owner, rule, f"row {place}: {steps[place]}")
    return steps.astype(np.int64)
