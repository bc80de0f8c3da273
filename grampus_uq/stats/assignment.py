"""The assignment of rows to columns, each to one, with the least sum of costs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from grampus_uq.stats.arrays import FloatArray


def assignment(cost: FloatArray) -> npt.NDArray[np.intp]:
    """The permutation p with the least `sum(cost[i, p[i]])`, by shortest augmenting paths: O(n^3).

    `cost`: finite, shape (n, n); an impossible pair costs more than n times the dearest possible one. Returns for each
    row its column, shape (n,); with several best permutations one of them.

    Source: Jonker and Volgenant (1987), without their initialisation; `scipy.optimize.linear_sum_assignment` is the
    same method, and its extra need not be installed where drills are made.

    >>> assignment(np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])).tolist()
    [1, 0, 2]
    """
    n = len(cost)
    rows, columns = np.zeros(n), np.zeros(n + 1)  # the prices
    row_of = np.full(n + 1, -1)  # column n stands for the row that is placed now
    for row in range(n):
        row_of[n], column = row, n
        best, before, done = np.full(n, np.inf), np.full(n, n), np.zeros(n + 1, dtype=bool)
        while row_of[column] >= 0:
            done[column] = True
            found = cost[row_of[column]] - rows[row_of[column]] - columns[:n]
            nearer = ~done[:n] & (found < best)
            best[nearer], before[nearer] = found[nearer], column
            following = int(np.argmin(np.where(done[:n], np.inf, best)))
            step = best[following]
            rows[row_of[done]] += step
            columns[done] -= step
            best[~done[:n]] -= step
            column = following
        while column != n:
            row_of[column] = row_of[before[column]]
            column = int(before[column])
    return np.argsort(row_of[:n])
