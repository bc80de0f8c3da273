"""The ceiling that tests of a guarantee hold violations to."""

from __future__ import annotations

import scipy


def binomial_ceiling(n: int, p: float, level: float = 0.999) -> int:
    """Largest count that n independent trials of probability p still explain: the `level` quantile of Bin(n, p).

    More violations than this among n refute "probability at most p" at 1 - level.
    """
    return int(scipy.stats.binom.ppf(level, n, p))
