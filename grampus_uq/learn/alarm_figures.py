"""Figures of an alarm rule on recorded runs: false alarms, power, precision, pauses, position, steps used."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.ranks import binomial_interval, binomial_log_sf

_EFFECTIVELY_WHOLE = 1e-9  # an estimate times n is a whole number but for rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """An estimate with its 95 % interval over `of` runs; None where no run could show it."""

    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    of: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmFigures:
    """One rule on one set of runs; shares are in [0, 1], and empty without outcomes where they need them.

    false_alarms: of successes, alarmed. power: of failures, alarmed. precision: of alarmed, failures. paused: of all,
    alarmed. position: the median over alarmed runs of (step of the alarm / length); 1 is the end. cost_used: the mean
    share of steps that ran when an alarm ends its run.

    The intervals of shares and of the median are exact (binomial). That of the cost is the one of a share with its
    mean: shares of steps vary no more than a yes or no does, so it is wide where few runs alarm, as it should be. All
    take the runs to be independent.
    """

    false_alarms: Figure
    power: Figure
    precision: Figure
    paused: Figure
    position: Figure
    cost_used: Figure


def alarm_figures(alarm: npt.ArrayLike, lengths: npt.ArrayLike, success: npt.ArrayLike | None) -> AlarmFigures:
    """Summarise the first alarms of runs.

    `alarm`: step (from 1) of each run's first alarm, 0 for none; `lengths`: steps of each run; `success`: True where
    the run succeeded, None where outcomes are not known; all of shape (runs,).

    >>> seen = alarm_figures([0, 3, 1, 0], [4, 4, 2, 2], [True, True, False, False])
    >>> seen.false_alarms.estimate, seen.power.estimate, seen.precision.estimate, seen.position.estimate
    (0.5, 0.5, 0.5, 0.625)
    """
    step, length = np.asarray(alarm), np.asarray(lengths)
    good = np.zeros(len(step), dtype=np.bool_) if success is None else np.asarray(success, dtype=np.bool_)
    if step.ndim != 1 or step.shape != length.shape or step.shape != good.shape:
        raise ConfigurationError.of("alarm", "alarm_figures", "as long as lengths and success", step.shape)
    outside = (step < 0) | (step > length)
    if outside.any():
        raise ConfigurationError.of("alarm", "alarm_figures", "0 or a step of its run", step[outside])
    alarmed = step > 0
    used = np.where(alarmed, step, length) / length
    shares = {name: share(what, among) for name, (what, among) in alarm_shares(alarmed, good).items()}
    unknown = success is None
    return AlarmFigures(
        false_alarms=Figure() if unknown else shares["false_alarms"],
        power=Figure() if unknown else shares["failures_caught"],
        precision=Figure() if unknown else shares["precision"],
        paused=shares["paused"],
        position=_median(used[alarmed]),
        cost_used=_mean(used),
    )


def alarm_shares(alarmed: BoolArray, success: BoolArray) -> dict[str, tuple[BoolArray, BoolArray]]:
    """The shares that describe a rule, by name: which runs are counted, and among which; all of shape (runs,)."""
    return {
        "paused": (alarmed, np.ones_like(alarmed)),
        "false_alarms": (alarmed, success),
        "failures_caught": (alarmed, ~success),
        "precision": (~success, alarmed),
        "right_among_released": (success, ~alarmed),
    }


def share(what: BoolArray, among: BoolArray, weights: FloatArray | None = None) -> Figure:
    """The share of `what` in `among` with its exact interval; of the effective number of runs where weights differ."""
    w = np.ones(int(among.sum())) if weights is None else weights[among]
    total = float(w.sum())
    if total == 0.0:
        return Figure()
    estimate = float(w[what[among]].sum()) / total
    return _with_interval(estimate, max(1, round(total**2 / float(w @ w))), int(among.sum()))


def _with_interval(estimate: float, n: int, of: int) -> Figure:
    """The exact interval of so large a share of n; between two counts the wider one on either side."""
    low, _ = binomial_interval(math.floor(estimate * n + _EFFECTIVELY_WHOLE), n)
    _, high = binomial_interval(math.ceil(estimate * n - _EFFECTIVELY_WHOLE), n)
    return Figure(estimate=estimate, low=low, high=high, of=of)


def _median(values: FloatArray) -> Figure:
    """The median between the order statistics that hold it; with fewer than six values none do."""
    n = len(values)
    if n == 0:
        return Figure()
    fewer = 1.0 - np.exp(binomial_log_sf(n, 0.5))  # entry k: the chance that fewer than k of n lie below the median
    k = int(np.flatnonzero(fewer <= 0.025)[-1])
    low, high = (None, None) if k == 0 else np.sort(values)[[k - 1, n - k]].tolist()
    return Figure(estimate=float(np.median(values)), low=low, high=high, of=n)


def _mean(values: FloatArray) -> Figure:
    n = len(values)
    return _with_interval(float(values.mean()), n, n) if n else Figure()
