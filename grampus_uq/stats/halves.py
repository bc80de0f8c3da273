"""Two halves of labelled trajectories: what is fitted on one is judged on the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, numbers


def split_halves(outcomes: npt.ArrayLike, ids: Sequence[str]) -> BoolArray:
    """Split trajectories into two halves, stratified by outcome, ordered by id and alternated.

    `outcomes`: shape (n,), 0 or 1. `ids`: n distinct, stable names; their order as text decides, not the order of rows.
    True marks the second half; within each outcome the halves differ by at most one.
    """
    y, names = numbers("outcomes", "split_halves", outcomes), [str(name) for name in ids]
    if y.shape != (len(names),) or not np.isin(y, (0.0, 1.0)).all():
        raise ConfigurationError.of("outcomes", "split_halves", f"{len(names)} observed outcomes, 0 or 1", outcomes)
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError.of("ids", "split_halves", "distinct", repeated)
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.intp)
    second = np.zeros(len(names), dtype=np.bool_)
    for label in (0.0, 1.0):
        second[order[y[order] == label][1::2]] = True
    return second
