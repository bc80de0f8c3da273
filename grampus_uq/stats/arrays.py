"""Array types, and rows of unequal length in one array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def numbers(parameter: str, owner: str, values: npt.ArrayLike | Sequence[float | None]) -> FloatArray:
    """The values as floats, None as NaN; raises ConfigurationError where one is no number."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigurationError.of(parameter, owner, "numbers", values) from error


def truths(parameter: str, owner: str, values: npt.ArrayLike) -> BoolArray:
    """The values as booleans; raises ConfigurationError for one that is neither, nor 0 or 1."""
    found = numbers(parameter, owner, values)
    if not np.isin(found, (0.0, 1.0)).all():
        raise ConfigurationError.of(parameter, owner, "booleans or 0/1", found[~np.isin(found, (0.0, 1.0))][0])
    return found.astype(np.bool_)


def finite(value: float | None) -> float | None:
    """The value, or None for one that is not finite, which JSON does not have."""
    return None if value is None or not math.isfinite(value) else float(value)


def known_mean(values: FloatArray) -> float:
    """The mean of the values that are not missing (NaN); 0 where all are."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


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
        """Every row reversed, padding in place; its own inverse."""
        column = np.arange(self.values.shape[1])
        mirrored = self.lengths[:, None] - 1 - column
        index = np.where(mirrored >= 0, mirrored, column)
        return RaggedBatch(values=np.take_along_axis(self.values, index, axis=1), lengths=self.lengths)

    def row(self, i: int) -> FloatArray:
        """Row i without padding."""
        return self.values[i, : self.lengths[i]]


def ragged(rows: npt.ArrayLike | list[FloatArray] | list[list[float]], *, owner: str = "ragged") -> RaggedBatch:
    """Pack n >= 1 rows of at least one finite step score each; the padding is 0.

    Raises ConfigurationError in the name of `owner` otherwise. Fill a missing score beforehand, by one rule for
    calibration and new trajectories.

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
