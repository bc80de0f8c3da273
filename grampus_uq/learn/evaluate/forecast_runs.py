"""Runs as an evaluator sees them: an outcome, a stop reason, and one forecast a step from every stream.

Which runs may be scored is decided here, once. A clean end with a known outcome is scored. A run that reached its step
budget is administratively censored: its outcome is not observed. Every other stop depends on how the run went; so does
the outcome of a run that the monitor stopped or a human decided on. Scored as if they were ordinary, they would bend
the scores, so they are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.trajectory_scores import ForecastTraces

Use = Literal["scored", "censored", "left out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRow:
    """One line of the stop-reason audit: how runs ended, what is done with them and why, and how many there are."""

    stop_reason: str
    use: Use
    why: str
    runs: int
    successes: int
    failures: int

    @property
    def unknown(self) -> int:
        """Runs whose outcome nobody knows."""
        return self.runs - self.successes - self.failures


def stop_rows(found: Iterable[tuple[str, Use, str, bool | None]]) -> tuple[StopRow, ...]:
    """Count runs by (stop reason, use, why), with the outcome of each; most frequent first."""
    counts: dict[tuple[str, Use, str], list[int]] = {}
    for stop_reason, use, why, success in found:
        row = counts.setdefault((stop_reason, use, why), [0, 0, 0])
        row[0] += 1
        if success is not None:
            row[1 if success else 2] += 1
    rows = [
        StopRow(stop_reason=stop_reason, use=use, why=why, runs=n, successes=good, failures=bad)
        for (stop_reason, use, why), (n, good, bad) in counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.runs, row.stop_reason, row.use, row.why)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastRuns:
    """n runs that may be scored.

    ids: distinct names. outcomes: shape (n,), 1 = success, 0 = failure, NaN = censored at a step budget. streams: by
    name, the forecasts of all n runs in the same order with the same lengths, NaN = missing. features: shape (steps,
    k), facts of each prefix that are not forecasts (for a model of how a stopped run would have gone on), or None.
    audit: every run that was found, these n and the others. asks: shape (n,), the step (from 0) that proposed the first
    irreversible call, -1 where there was none; None: no run has one. tasks: one a run, trials of one task share a name;
    None: each run is a task of its own.
    """

    ids: tuple[str, ...]
    outcomes: FloatArray
    streams: Mapping[str, ForecastTraces]
    audit: tuple[StopRow, ...]
    features: FloatArray | None = None
    asks: npt.NDArray[np.int64] | None = None
    tasks: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        n = len(self.ids)
        if len(set(self.ids)) != n:
            raise ConfigurationError.of("ids", "ForecastRuns", "distinct", sorted(self.ids)[:5])
        if self.outcomes.shape != (n,) or not (np.isnan(self.outcomes) | np.isin(self.outcomes, (0.0, 1.0))).all():
            raise ConfigurationError.of("outcomes", "ForecastRuns", f"{n} of 0, 1 or NaN", self.outcomes)
        first = next(iter(self.streams.values()), None)
        for name, traces in self.streams.items():
            if first is None or len(traces) != n or not np.array_equal(traces.lengths, first.lengths):
                raise ConfigurationError.of("streams", "ForecastRuns", "of the same runs and steps", name)
        if self.tasks is not None and len(self.tasks) != n:
            raise ConfigurationError.of("tasks", "ForecastRuns", "one a run", len(self.tasks))
        if self.features is not None and first is not None and len(self.features) != len(first.forecasts):
            raise ConfigurationError.of("features", "ForecastRuns", "one row a step", self.features.shape)

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.ids)

    @property
    def asked(self) -> BoolArray:
        """Runs with an irreversible call; shape (n,)."""
        return np.zeros(len(self), dtype=np.bool_) if self.asks is None else self.asks >= 0

    def at_the_call(self, name: str) -> FloatArray:
        """A stream at the turn that proposes a run's first irreversible call, shape (n,); NaN without one."""
        found = np.full(len(self), np.nan)
        if self.asks is not None:
            traces, asked = self.streams[name], self.asked
            found[asked] = traces.forecasts[traces.starts[asked] + self.asks[asked]]
        return found

    @property
    def censored(self) -> BoolArray:
        """Runs without an observed outcome; shape (n,)."""
        return np.isnan(self.outcomes)
