"""What an alarm rule did on runs whose outcome is known: false alarms, power, precision, how early, at what cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.ranks import binomial_interval

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmFigures:
    """Figures of one rule on one set of runs, None where there is nothing to divide by; intervals computed when read.

    Attributes:
        runs, failures: how many there were.
        alarms, caught: runs that alarm, and failures among them.
        alarm_position: mean of (step of the alarm)/(length) over failures that alarm; 1 is at the very end.
        cost_used: share of all steps run when an alarm ends its run (the alarming step is run).
        level: coverage of the intervals.
    """

    runs: int
    failures: int
    alarms: int
    caught: int
    alarm_position: float | None
    cost_used: float | None
    level: float = 0.95

    @property
    def false_alarm_rate(self) -> float | None:
        """Share of successes that alarm; lower is better."""
        return _rate(self.alarms - self.caught, self.runs - self.failures)

    @property
    def power(self) -> float | None:
        """Share of failures that alarm; higher is better."""
        return _rate(self.caught, self.failures)

    @property
    def precision(self) -> float | None:
        """Share of failures among the runs that alarm."""
        return _rate(self.caught, self.alarms)

    @property
    def paused_share(self) -> float | None:
        """Share of all runs that alarm."""
        return _rate(self.alarms, self.runs)

    @property
    def accuracy_kept(self) -> float | None:
        """Share of successes that are left alone."""
        return None if self.false_alarm_rate is None else 1.0 - self.false_alarm_rate

    @property
    def false_alarm_interval(self) -> Interval | None:
        """Exact (Clopper-Pearson) interval of the false-alarm rate."""
        return self._interval(self.alarms - self.caught, self.runs - self.failures)

    @property
    def power_interval(self) -> Interval | None:
        """Exact interval of the power."""
        return self._interval(self.caught, self.failures)

    @property
    def precision_interval(self) -> Interval | None:
        """Exact interval of the precision."""
        return self._interval(self.caught, self.alarms)

    @property
    def paused_interval(self) -> Interval | None:
        """Exact interval of the share of paused runs."""
        return self._interval(self.alarms, self.runs)

    def _interval(self, hits: int, of: int) -> Interval | None:
        return binomial_interval(hits, of, self.level) if of else None


def _rate(hits: int, of: int) -> float | None:
    return hits / of if of else None


def alarm_figures(
    alarm: npt.ArrayLike, lengths: npt.ArrayLike, success: npt.ArrayLike, *, level: float = 0.95
) -> AlarmFigures:
    """Summarise first alarms.

    Args:
        alarm: shape (runs,), step (from 1) of each run's first alarm, 0 for none.
        lengths: shape (runs,), number of steps of each run.
        success: shape (runs,), True where the run succeeded.
        level: coverage of the intervals, in (0, 1).

    Raises:
        ConfigurationError: shapes that differ, an alarm after the end of its run.

    >>> seen = alarm_figures([0, 3, 1, 0], [4, 4, 2, 2], [True, True, False, False])
    >>> seen.false_alarm_rate, seen.power, seen.precision, seen.alarm_position, round(seen.cost_used, 4)
    (0.5, 0.5, 0.5, 0.5, 0.8333)
    """
    step, length, good = np.asarray(alarm), np.asarray(lengths), np.asarray(success, dtype=np.bool_)
    if step.ndim != 1 or step.shape != length.shape or step.shape != good.shape:
        raise ConfigurationError.of("alarm", "alarm_figures", "as long as lengths and success", step.shape)
    if ((step < 0) | (step > length)).any():
        raise ConfigurationError.of(
            "alarm", "alarm_figures", "0 or a step of its run", step[(step < 0) | (step > length)]
        )
    rang = step > 0
    caught = rang & ~good
    return AlarmFigures(
        runs=len(step),
        failures=int((~good).sum()),
        alarms=int(rang.sum()),
        caught=int(caught.sum()),
        alarm_position=float((step[caught] / length[caught]).mean()) if caught.any() else None,
        cost_used=float(np.where(rang, step, length).sum() / length.sum()) if len(step) else None,
        level=level,
    )
