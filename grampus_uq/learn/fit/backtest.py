"""What a detector would have done on recorded runs, level by level: false alarms, power, precision, position, cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.eprocess import Detector, alarm_steps, score_rows
from grampus_uq.stats.eprocess_thresholds import tie_uniform
from grampus_uq.stats.ranks import binomial_interval, binomial_log_sf

__all__ = ["BacktestRow", "backtest"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestRow:
    """One threshold on all runs. Shares are in [0, 1] and None where no run could show them; intervals cover 95 %.

    `alarm_position` is the median over alarmed runs of (alarm step / length); `cost_used` the mean share of steps that
    ran when every alarm stops its run; `pauses_per_100` counts alarms over all runs, whatever became of them.

    The intervals of rates and of the median are exact (binomial); that of `cost_used` is the normal one of a mean. All
    of them take the runs to be independent.
    """

    mode: str
    alpha: float
    deployed: bool
    runs: int
    false_alarm_rate: float | None
    false_alarm_low: float | None
    false_alarm_high: float | None
    power: float | None
    power_low: float | None
    power_high: float | None
    precision: float | None
    precision_low: float | None
    precision_high: float | None
    alarm_position: float | None
    alarm_position_low: float | None
    alarm_position_high: float | None
    pauses_per_100: float | None
    pauses_low: float | None
    pauses_high: float | None
    cost_used: float | None
    cost_low: float | None
    cost_high: float | None
    guarantee: str
    shortage: str

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values."""
        return asdict(self)


def backtest(detector: Detector, runs: DetectorRuns) -> list[BacktestRow]:
    """Apply every threshold of a detector to recorded runs.

    Honest only on runs that served neither its fit nor its thresholds. Without outcomes the columns that need them are
    None. Raises ConfigurationError when the runs do not carry the detector's streams.
    """
    if runs.streams != detector.streams:
        raise ConfigurationError.of("runs", "backtest", f"of the streams {detector.streams}", runs.streams)
    blocks = runs.blocks
    log_m = score_rows(detector, blocks)
    ties = np.array([tie_uniform(name.rpartition("#")[0] or name, detector.salt) for name in runs.ids])
    rows = []
    for number, threshold in enumerate(detector.thresholds):
        at = alarm_steps(blocks, log_m, threshold, ties)
        alarmed = at > 0
        used = np.where(alarmed, at, runs.lengths) / runs.lengths
        success = runs.success
        good = None if success is None else alarmed[success]
        bad = None if success is None else alarmed[~success]
        rows.append(
            BacktestRow(
                mode=threshold.mode.value,
                alpha=threshold.alpha,
                deployed=number == detector.deployed,
                runs=len(runs),
                **_share("false_alarm", "false_alarm_rate", good),
                **_share("power", "power", bad),
                **_share("precision", "precision", None if success is None else ~success[alarmed]),
                **_position(used[alarmed]),
                **_share("pauses", "pauses_per_100", alarmed, unit=100.0),
                **_cost(used),
                guarantee=threshold.guarantee,
                shortage=threshold.shortage,
            )
        )
    return rows


def _share(prefix: str, name: str, hits: BoolArray | None, unit: float = 1.0) -> dict[str, Any]:
    """A share with its exact interval; None where there is no run of the kind."""
    if hits is None or len(hits) == 0:
        return {name: None, f"{prefix}_low": None, f"{prefix}_high": None}
    low, high = binomial_interval(int(hits.sum()), len(hits))
    return {name: unit * float(hits.mean()), f"{prefix}_low": unit * low, f"{prefix}_high": unit * high}


def _position(at: FloatArray) -> dict[str, float | None]:
    """The median with the order statistics that hold it; with fewer than six values none do, and the ends are None."""
    n = len(at)
    ordered = np.sort(at)
    found: dict[str, float | None] = {
        "alarm_position": float(np.median(at)) if n else None,
        "alarm_position_low": None,
        "alarm_position_high": None,
    }
    fewer = 1.0 - np.exp(binomial_log_sf(n, 0.5))  # entry k: the chance that fewer than k of n lie below the median
    k = int(np.flatnonzero(fewer <= 0.025)[-1])
    if k > 0:
        found |= {"alarm_position_low": float(ordered[k - 1]), "alarm_position_high": float(ordered[n - k])}
    return found


def _cost(used: FloatArray) -> dict[str, float | None]:
    if len(used) == 0:
        return {"cost_used": None, "cost_low": None, "cost_high": None}
    mean = float(used.mean())
    half = 1.96 * float(used.std(ddof=1)) / math.sqrt(len(used)) if len(used) > 1 else 1.0
    return {"cost_used": mean, "cost_low": max(0.0, mean - half), "cost_high": min(1.0, mean + half)}
