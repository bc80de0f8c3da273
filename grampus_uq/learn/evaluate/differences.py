"""Paired differences between streams on the same resampled runs: recalibrated against raw, base rate, and each other.

Comparisons between two streams use the runs that both can be scored on. Each interval stands alone: with many streams
some exclude 0 by chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from grampus_uq.learn.evaluate.transparency import BASE_RATE, ScoredStream, base_rate, tps_of
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.bootstrap import BootstrapInterval, mean_rows, paired_bootstrap
from grampus_uq.stats.ranking import auroc_rows
from grampus_uq.stats.scoring import LOG
from grampus_uq.stats.trajectory_scores import ForecastTraces, weighted_forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """`second` minus `first` in one metric ("tps_log", "auroc"; of both, more is better), over `runs` shared runs."""

    first: str
    second: str
    metric: str
    runs: int
    delta: float | None
    low: float | None
    high: float | None
    z: float | None
    undefined_draws: int


def difference_rows(
    streams: list[ScoredStream],
    *,
    rng: np.random.Generator,
    draws: int = 2000,
) -> Iterator[DifferenceRow]:
    """Compare: each stream recalibrated with itself raw and with its base rate; the best one with every other.

    Args:
        streams: as `scored_streams` returns them.
        rng: source of the resamples.
        draws: resamples a comparison.
    """
    best = _best(streams)
    for stream in streams:
        if stream.platt is None:
            continue
        named = f"{stream.name}, recalibrated"
        compare = partial(_compare, stream.target, stream.complete, rng=rng, draws=draws)
        yield from compare(stream.name, stream.raw, named, stream.platt)
        yield from compare(BASE_RATE, base_rate(stream), named, stream.platt)
        if best is not None and best is not stream and best.platt is not None:
            both = stream.kept & best.kept
            if both.any():
                mine, its = both[stream.kept], both[best.kept]
                yield from _compare(
                    stream.target[mine],
                    stream.complete[mine],
                    named,
                    stream.platt.select(mine),
                    f"{best.name}, recalibrated",
                    best.platt.select(its),
                    rng=rng,
                    draws=draws,
                )


def _best(streams: list[ScoredStream]) -> ScoredStream | None:
    """The recalibrated stream of the highest mean log score over its base rate's: runs differ between streams."""

    def gain(stream: ScoredStream) -> float:
        if stream.platt is None:
            return -np.inf
        gained = tps_of(stream.platt, stream.target, LOG) - tps_of(base_rate(stream), stream.target, LOG)
        return float(gained.mean())

    return max(streams, key=gain, default=None)


def _compare(
    target: FloatArray,
    complete: BoolArray,
    first: str,
    one: ForecastTraces,
    second: str,
    other: ForecastTraces,
    *,
    rng: np.random.Generator,
    draws: int,
) -> Iterator[DifferenceRow]:
    scores = [mean_rows(tps_of(traces, target, LOG)) for traces in (one, other)]
    got = paired_bootstrap(scores[0], scores[1], len(target), rng=rng, draws=draws)
    yield _row(first, second, "tps_log", len(target), got)
    failed = 1.0 - target[complete]
    if first == BASE_RATE or len(failed) == 0:
        return  # a constant has no rank
    ranks = [partial(auroc_rows, 1.0 - weighted_forecast(traces)[complete], failed) for traces in (one, other)]
    got = paired_bootstrap(ranks[0], ranks[1], len(failed), rng=rng, draws=draws)
    yield _row(first, second, "auroc", len(failed), got)


def _row(first: str, second: str, metric: str, runs: int, got: BootstrapInterval) -> DifferenceRow:
    return DifferenceRow(
        first=first,
        second=second,
        metric=metric,
        runs=runs,
        delta=got.estimate,
        low=got.low,
        high=got.high,
        z=got.z,
        undefined_draws=got.undefined_draws,
    )
