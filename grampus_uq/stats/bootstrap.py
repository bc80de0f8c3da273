"""Resampling whole trajectories as rows of counts: a bootstrap is array arithmetic.

A draw of n units with replacement is a multinomial vector of counts. A row statistic takes counts of shape (rows, n)
and returns shape (rows,), NaN where it is undefined; means, ratios and ranking metrics have one (`mean_rows`,
`ranking.auroc_rows`). Draws come in blocks of bounded memory; the result does not depend on the size of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import FloatArray, numbers

RowStatistic = Callable[[FloatArray], FloatArray]

BLOCK_CELLS = 1 << 20
"""Counts held at once (8 MiB as float64); a row statistic keeps a few arrays of that size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapInterval:
    """A statistic with its percentile interval.

    `estimate`: the statistic on the sample itself, None when undefined there. `low`, `high`: percentile interval;
    `sd`: standard deviation over draws (its bootstrap standard error); None when fewer than two draws are defined, and
    where all trajectories are of one task: every draw is then the sample, which says nothing of other tasks.
    `undefined_draws`: draws without a value (a resample with one class has no AUROC), left out of the interval.
    """

    estimate: float | None
    low: float | None
    high: float | None
    sd: float | None
    draws: int
    undefined_draws: int

    @property
    def z(self) -> float | None:
        """`estimate / sd`: a difference in standard errors; None when undefined or when no draw differs (sd = 0)."""
        return self.estimate / self.sd if self.estimate is not None and self.sd else None


def bootstrap(
    statistic: RowStatistic, n: int, *, rng: np.random.Generator, draws: int = 2000, tasks: Sequence[str] | None = None
) -> BootstrapInterval:
    """95 % percentile bootstrap of one statistic over trajectories; those of one task are drawn together.

    `statistic` maps counts (rows, n) to values (rows,), NaN where undefined; it is called on blocks of draws. `n` >= 1
    trajectories, `draws` >= 2. `tasks`: n names; trials of one task share one. None: all trajectories are independent;
    where they are trials of one task, the interval is then too short. Coverage is approximate (first-order), not a
    finite-sample guarantee: of means of normal tasks .94 with twenty tasks, .91 with ten, .80 with five.

    Source: Efron and Tibshirani (1993), ch. 13.

    >>> import numpy as np
    >>> got = bootstrap(mean_rows([0.0, 1.0, 1.0, 1.0]), 4, rng=np.random.default_rng(0))
    >>> got.estimate, got.low, got.high
    (0.75, 0.25, 1.0)
    """
    if draws < 2:
        raise ConfigurationError.of("draws", "bootstrap", "at least 2", draws)
    values = np.concatenate([statistic(counts) for counts in count_blocks(n, draws, rng, tasks)])
    estimate = float(statistic(np.ones((1, n)))[0])
    defined = values[~np.isnan(values)]
    low = high = sd = None
    if len(defined) >= 2 and len(set(tasks or range(n))) >= 2:
        low, high = np.quantile(defined, [0.025, 0.975]).tolist()
        sd = 0.0 if low == high and (defined == low).all() else float(defined.std(ddof=1))
    return BootstrapInterval(
        estimate=None if np.isnan(estimate) else estimate,
        low=low,
        high=high,
        sd=sd,
        draws=draws,
        undefined_draws=len(values) - len(defined),
    )


def paired_bootstrap(
    first: RowStatistic,
    second: RowStatistic,
    n: int,
    *,
    rng: np.random.Generator,
    draws: int = 2000,
    tasks: Sequence[str] | None = None,
) -> BootstrapInterval:
    """Bootstrap of `second - first`, both computed on the same resamples, so that what they share cancels.

    Arguments as `bootstrap`. A positive estimate means that the second is larger; `z` is the change over its standard
    error (the paired bootstrap of the Trajectory Proper Score paper, section 6.1).
    """

    def difference(counts: FloatArray) -> FloatArray:
        return second(counts) - first(counts)

    return bootstrap(difference, n, rng=rng, draws=draws, tasks=tasks)


def mean_rows(values: npt.ArrayLike) -> RowStatistic:
    """Make the row statistic "mean of these values": counts (rows, n) to counts @ values / counts.sum.

    `values`: shape (n,), finite; one number per trajectory, for example its proper score.
    """
    x = numbers("values", "mean_rows", values)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ConfigurationError.of("values", "mean_rows", "one-dimensional and finite", values)
    # Measured from one of the values: equal values then have one exact mean in every draw, and no spread of 1e-17.
    centre = float(x[0]) if len(x) else 0.0
    offsets = x - centre

    def mean(counts: FloatArray) -> FloatArray:
        return np.asarray(centre + (counts @ offsets) / counts.sum(axis=1), dtype=np.float64)

    return mean


def count_blocks(
    n: int, draws: int, rng: np.random.Generator, tasks: Sequence[str] | None = None
) -> Iterator[FloatArray]:
    """Yield the resampling counts in blocks of at most about `BLOCK_CELLS` numbers; shape (rows, n), whole numbers.

    `n` >= 1 trajectories; `draws`: rows over all blocks, which do not depend on the size of a block. `tasks`: as
    `bootstrap`; a task that is drawn is drawn with all its trajectories, so that rows need not sum to n.
    """
    if n < 1 or len(tasks or range(n)) != n:
        raise ConfigurationError.of("n", "count_blocks", "at least 1, with a task each, if any", n)
    names, member = np.unique(np.array(range(n) if tasks is None else tasks, dtype=object), return_inverse=True)
    units = len(names)
    rows_at_once = max(1, BLOCK_CELLS // n)
    for done in range(0, draws, rows_at_once):
        rows = min(rows_at_once, draws - done)
        picks = rng.integers(units, size=(rows, units)) + units * np.arange(rows)[:, None]
        counts = np.bincount(picks.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
        yield counts if units == n else counts[:, member]
