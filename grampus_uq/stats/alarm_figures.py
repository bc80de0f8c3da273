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
    """Figures of one rule on one set of runs; None where there is nothing to divide by.

    Attributes:
        runs, failures: how many there were.
        false_alarm_rate: share of successes that alarm; lower is better.
        power: share of failures that alarm; higher is better.
        precision: share of failures among the runs that alarm.
        paused_share: share of all runs that alarm.
        alarm_position: mean of (step of the alarm)/(length) over failures that alarm; 1 is at the very end.
        cost_used: share of all steps run when an alarm ends its run (the alarming step is run).
        accuracy_kept: share of successes that are left alone.
        false_alarm_interval, power_interval, precision_interval, paused_interval: exact (Clopper-Pearson) intervals.
    """

    runs: int
    failures: int
    false_alarm_rate: float | None
    power: float | None
    precision: float | None
    paused_share: float | None
    alarm_position: float | None
    cost_used: float | None
    accuracy_kept: float | None
    false_alarm_interval: Interval | None
    power_interval: Interval | None
    precision_interval: Interval | None
    paused_interval: Interval | None


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
    false = int((rang & good).sum())
    counts = {
        "false_alarm": (false, int(good.sum())),
        "power": (int(caught.sum()), int((~good).sum())),
        "precision": (int(caught.sum()), int(rang.sum())),
        "paused": (int(rang.sum()), len(step)),
    }
    rates = {name: hits / of if of else None for name, (hits, of) in counts.items()}
    intervals = {name: binomial_interval(hits, of, level) if of else None for name, (hits, of) in counts.items()}
    return AlarmFigures(
        runs=len(step),
        failures=int((~good).sum()),
        false_alarm_rate=rates["false_alarm"],
        power=rates["power"],
        precision=rates["precision"],
        paused_share=rates["paused"],
        alarm_position=float((step[caught] / length[caught]).mean()) if caught.any() else None,
        cost_used=float(np.where(rang, step, length).sum() / length.sum()) if len(step) else None,
        accuracy_kept=None if rates["false_alarm"] is None else 1.0 - rates["false_alarm"],
        false_alarm_interval=intervals["false_alarm"],
        power_interval=intervals["power"],
        precision_interval=intervals["precision"],
        paused_interval=intervals["paused"],
    )
