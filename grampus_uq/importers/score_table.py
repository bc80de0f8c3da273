"""Step-wise scores of many runs as arrays: one row of scores a run, in the order of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ScoreTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """`scores[starts[i]:starts[i + 1]]` are the scores of run `ids[i]`, step 1 first; `solved[i]` is its outcome.

    `scores` is float64 of shape (rows,), in [0, 1] unless another domain was read, higher is better, NaN where a score
    was missing and that was allowed; `starts` is int64 of shape (runs + 1,); `solved` is bool of shape (runs,).
    """

    ids: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    solved: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of steps of each run, at least 1."""
        return np.diff(self.starts)

    def run(self, index: int) -> npt.NDArray[np.float64]:
        """The scores of one run, a view."""
        return self.scores[self.starts[index] : self.starts[index + 1]]

    def padded(self) -> npt.NDArray[np.float64]:
        """A new array of shape (runs, longest): the scores of a run from the left, NaN behind its end.

        A NaN may also be a missing score: `lengths` says which is which.
        """
        lengths = self.lengths
        filled = np.full((len(self), int(lengths.max(initial=0))), np.nan)
        filled[np.arange(filled.shape[1]) < lengths[:, None]] = self.scores
        return filled
