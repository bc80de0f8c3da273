"""Runs of unequal length, laid out so that one step of all runs is one contiguous block.

A statistic that is updated step by step can then be computed for thousands of runs with the very arithmetic of the
live update: one vectorised operation for each step instead of a Python call for each row, and no padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray, IntArray, numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBlocks:
    """Values of many runs, a block per step; within a block the runs stand in order of falling length.

    Attributes:
        values: shape (rows, streams); block t holds rows `starts[t]` to `starts[t + 1]`. NaN is a missing score.
        starts: shape (longest run + 1,).
        order: shape (runs,); `order[j]` is the caller's index of the j-th longest run.
        rows: shape (rows,); the caller's row of each row here.
    """

    values: FloatArray
    starts: IntArray
    order: IntArray
    rows: IntArray

    def __iter__(self) -> Iterator[tuple[int, slice]]:
        """Yield (step counted from 1, slice of rows); the block's j-th row belongs to run `order[j]`."""
        for step in range(1, len(self.starts)):
            yield step, slice(int(self.starts[step - 1]), int(self.starts[step]))


def step_blocks(values: npt.ArrayLike, lengths: npt.ArrayLike) -> StepBlocks:
    """Lay out runs that stand one after the other, each in order of its steps.

    `values`: shape (rows,) or (rows, streams), a row a step, finite, NaN where missing. `lengths`: shape (runs,), whole
    numbers of at least 1 that sum to the number of rows.

    >>> blocks = step_blocks([1.0, 2.0, 10.0, 20.0, 30.0], [2, 3])
    >>> [blocks.values[rows, 0].tolist() for _, rows in blocks]
    [[10.0, 1.0], [20.0, 2.0], [30.0]]
    """
    x = numbers("values", "step_blocks", values)
    x = x.reshape(-1, 1) if x.ndim == 1 else x
    size = np.asarray(lengths)
    if x.ndim != 2 or x.shape[1] < 1 or np.isinf(x).any():
        raise ConfigurationError.of(
            "values", "step_blocks", "finite or NaN, of shape (rows,) or (rows, streams)", values
        )
    if size.ndim != 1 or (size.size and (size.dtype.kind not in "iu" or size.min() < 1)) or size.sum() != len(x):
        raise ConfigurationError.of("lengths", "step_blocks", f"positive whole numbers that sum to {len(x)}", lengths)
    size = size.astype(np.intp)
    order = np.argsort(-size, kind="stable").astype(np.intp)
    first = np.concatenate([[0], np.cumsum(size)])[:-1][order]
    longest = int(size.max(initial=0))
    active = len(size) - np.searchsorted(np.sort(size), np.arange(1, longest + 1))  # runs that have a step t
    starts = np.concatenate([[0], np.cumsum(active)]).astype(np.intp)
    rows = np.empty(len(x), dtype=np.intp)
    for step in range(longest):
        rows[starts[step] : starts[step + 1]] = first[: active[step]] + step
    return StepBlocks(values=x[rows], starts=starts, order=order, rows=rows)


def in_caller_order(blocks: StepBlocks, column: FloatArray) -> FloatArray:
    """Bring one number per row from block order back to the order of the caller's rows."""
    result = np.empty_like(column)
    result[blocks.rows] = column
    return result


def run_maximum(blocks: StepBlocks, column: FloatArray) -> FloatArray:
    """Largest value of each run in the caller's order of runs; NaN is skipped, a run of NaN alone gives -inf."""
    peak = np.full(len(blocks.order), -np.inf)
    for _, rows in blocks:
        head = peak[: rows.stop - rows.start]
        np.fmax(head, column[rows], out=head)
    result = np.empty_like(peak)
    result[blocks.order] = peak
    return result


def first_step_where(blocks: StepBlocks, mask: BoolArray) -> IntArray:
    """Step (from 1) at which the mask first holds in each run, in the caller's order of runs; 0 where it never does."""
    first = np.zeros(len(blocks.order), dtype=np.intp)
    for step, rows in blocks:
        head = first[: rows.stop - rows.start]
        head[(head == 0) & mask[rows]] = step
    result = np.empty_like(first)
    result[blocks.order] = first
    return result


def run_of_row(blocks: StepBlocks) -> IntArray:
    """The caller's index of the run that each row belongs to, in block order."""
    return np.concatenate([blocks.order[: rows.stop - rows.start] for _, rows in blocks] or [blocks.order[:0]])


def step_of_row(blocks: StepBlocks) -> IntArray:
    """The step, counted from 1, of each row in block order."""
    return np.repeat(np.arange(1, len(blocks.starts), dtype=np.intp), np.diff(blocks.starts))
