"""How the scores of single steps become the score g of a stretch of steps: sum, max, log-sum-exp.

All three are running folds, so that a prefix (or a suffix) grows by one step in O(1), and the same fold serves whole
batches (`prefix_scores`) and step-by-step evaluation (`grampus_uq.stats.lazy_sets`).

Orientation: a higher step score claims that the step is the decisive error; g of a longer stretch is not smaller
(*monotone*, eq. 2 of the source), provided that the scores satisfy `least_score`.

Source: Feng et al., "Conformal Agent Error Attribution" (2026), section 3.2 and appendix C.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

__all__ = [
    "Aggregation",
    "LogSumExpAggregation",
    "MaxAggregation",
    "RaggedBatch",
    "SumAggregation",
    "prefix_scores",
    "ragged",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """Rows of different length in one array: `values[i, :lengths[i]]` is row i, the rest is padding and never read.

    values: shape (n, longest); lengths: shape (n,), each at least 1.
    """

    values: FloatArray
    lengths: IntArray

    @property
    def valid(self) -> BoolArray:
        """Shape (n, longest), True where a value belongs to its row."""
        return np.asarray(np.arange(self.values.shape[1]) < self.lengths[:, None], dtype=np.bool_)

    def reversed(self) -> RaggedBatch:
        """Every row read from its end; the padding stays where it is. Its own inverse."""
        column = np.arange(self.values.shape[1])
        mirrored = self.lengths[:, None] - 1 - column
        index = np.where(mirrored >= 0, mirrored, column)
        return RaggedBatch(values=np.take_along_axis(self.values, index, axis=1), lengths=self.lengths)

    def row(self, i: int) -> FloatArray:
        """Row i without padding."""
        return self.values[i, : self.lengths[i]]


def ragged(rows: npt.ArrayLike | list[FloatArray] | list[list[float]], *, owner: str = "ragged") -> RaggedBatch:
    """Pack rows of step scores into a `RaggedBatch`.

    Args:
        rows: n >= 1 sequences of finite numbers, each with at least one entry.
        owner: who asks, for the error message.

    Returns:
        The batch; padding is 0.

    Raises:
        ConfigurationError: no row, an empty row, NaN or infinity. (A missing score has no number: fill it by a rule
            that is the same on calibration and new trajectories, before it comes here.)

    >>> ragged([[0.1, 0.2, 0.3], [0.4]]).lengths.tolist()
    [3, 1]
    """
    arrays = [np.asarray(row, dtype=np.float64) for row in rows]  # type: ignore[union-attr]  # scalars fail below
    if not arrays:
        raise ConfigurationError.of("rows", owner, "at least one trajectory", "none")
    for i, row in enumerate(arrays):
        if row.ndim != 1 or len(row) == 0:
            raise ConfigurationError.of("rows", owner, "sequences of at least one score", f"row {i}: shape {row.shape}")
        if not np.isfinite(row).all():
            place = int(np.flatnonzero(~np.isfinite(row))[0])
            raise ConfigurationError.of("rows", owner, "finite", f"row {i}, step {place}: {row[place]}")
    lengths = np.array([len(row) for row in arrays], dtype=np.int64)
    values = np.zeros((len(arrays), int(lengths.max())))
    for i, row in enumerate(arrays):
        values[i, : len(row)] = row
    return RaggedBatch(values=values, lengths=lengths)


class Aggregation(Protocol):
    """A fold over step scores: `g = finish(fold of lift(score), number of steps, trajectory length)`.

    `fold` is a binary ufunc (add, maximum, logaddexp) and `neutral` its neutral element; `least_score` is the smallest
    step score for which g is monotone.
    """

    @property
    def name(self) -> str:
        """Short name for tables and stored results."""
        ...

    @property
    def fold(self) -> np.ufunc:
        """The associative operation that takes in one more step."""
        ...

    @property
    def neutral(self) -> float:
        """What the fold of no step is."""
        ...

    @property
    def least_score(self) -> float:
        """Step scores at or above this make g monotone."""
        ...

    def lift(self, scores: npt.ArrayLike, length: npt.ArrayLike) -> FloatArray:
        """Bring step scores to the scale of the fold; `length` is that of the whole trajectory."""
        ...

    def finish(self, folded: npt.ArrayLike, count: npt.ArrayLike, length: npt.ArrayLike) -> FloatArray:
        """Bring the fold of `count` steps back to the scale of g."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SumAggregation:
    """Sum over the steps by the length of the trajectory: `g(c_j:k) = (1/L) sum_{i=j..k} s_i + lambda (k - j)/L`.

    Monotone for scores >= 0 and length_penalty (lambda) >= 0. Source: section 3.2; the penalty: table 8.
    """

    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        _check_penalty(self.length_penalty, "SumAggregation")

    @property
    def name(self) -> str:
        return "sum"

    @property
    def fold(self) -> np.ufunc:
        return np.add

    @property
    def neutral(self) -> float:
        return 0.0

    @property
    def least_score(self) -> float:
        return 0.0

    def lift(self, scores: npt.ArrayLike, length: npt.ArrayLike) -> FloatArray:
        return np.asarray(scores, dtype=np.float64)

    def finish(self, folded: npt.ArrayLike, count: npt.ArrayLike, length: npt.ArrayLike) -> FloatArray:
        # Divided once, at the end: 2/10 and 1/5 come out equal and tie, as they should.
        return np.asarray((np.asarray(folded) + self.length_penalty * (np.asarray(count) - 1)) / np.asarray(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxAggregation:
    """Greatest step score: `g(c_j:k) = max_{i=j..k} s_i + lambda (k - j)/L` (eq. 18).

    Monotone for any scores and length_penalty (lambda) >= 0.
    """

    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        _check_penalty(self.length_penalty, "MaxAggregation")

    @property
    def name(self) -> str:
        return "max"

    @property
    def fold(self) -> np.ufunc:
        return np.maximum

    @property
    def neutral(self) -> float:
        return -math.inf

    @property
    def least_score(self) -> float:
        return -math.inf

    def lift(self, scores: npt.ArrayLike, length: npt.ArrayLike) -> FloatArray:
        return np.asarray(scores, dtype=np.float64)

    def finish(self, folded: npt.ArrayLike, count: npt.ArrayLike, length: npt.ArrayLike) -> FloatArray:
        return np.asarray(np.asarray(folded) + self.length_penalty * (np.asarray(count) - 1) / np.asarray(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSumExpAggregation:
    """Smooth maximum: `g(c_j:k) = (1/beta) log sum_{i=j..k} exp(beta L s_i) - log L` (eq. 19), in natural logs.

    Monotone for any scores; may be negative. Large beta (> 0) goes to `L max s - log L`. (The paper says that beta
    near 0 goes to the mean; as printed it goes to `(1/beta) log(k - j + 1)`, the length of the stretch.)
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.beta < math.inf:
            raise ConfigurationError.of("beta", "LogSumExpAggregation", "positive and finite", self.beta)

    @property
    def name(self) -> str:
        return "log_sum_exp"

    @property
    def fold(self) -> np.ufunc:
        return np.logaddexp

    @property
    def neutral(self) -> float:
        return -math.inf

    @property
    def least_score(self) -> float:
        return -math.inf

    def lift(self, scores: npt.ArrayLike, length: npt.ArrayLike) -> FloatArray:
        return np.asarray(self.beta * np.asarray(length) * np.asarray(scores, dtype=np.float64))

    def finish(self, folded: npt.ArrayLike, count: npt.ArrayLike, length: npt.ArrayLike) -> FloatArray:
        return np.asarray(np.asarray(folded) / self.beta - np.log(length))


def prefix_scores(batch: RaggedBatch, aggregation: Aggregation) -> FloatArray:
    """Score every prefix: entry (i, k) is g of steps 0..k of trajectory i.

    Args:
        batch: step scores, higher = more suspect.
        aggregation: how a stretch is scored.

    Returns:
        Shape (n, longest); the padding is +inf.

    Raises:
        ConfigurationError: g overflows (scores times beta times length beyond the range of floats).
    """
    length = batch.lengths[:, None]
    with np.errstate(over="ignore", invalid="ignore"):  # refused below, with a message
        lifted = aggregation.lift(batch.values, length)
        folded = aggregation.fold.accumulate(np.where(batch.valid, lifted, 0.0), axis=1)
        scores = aggregation.finish(folded, np.arange(1, batch.values.shape[1] + 1), length)
    if not np.isfinite(scores[batch.valid]).all():
        raise ConfigurationError.of("scores", aggregation.name, "small enough for g to be finite", "an overflow")
    return np.where(batch.valid, scores, np.inf)


def _check_penalty(value: float, owner: str) -> None:
    if not 0.0 <= value < math.inf:
        raise ConfigurationError.of("length_penalty", owner, "finite and not negative", value)
