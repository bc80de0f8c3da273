"""What a detector would have done on recorded runs, level by level: false alarms, power, precision, position, cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.fit.detector_runs import DetectorRuns
from grampus_uq.stats.eprocess import Detector, alarm_steps, score_rows
from grampus_uq.stats.eprocess_thresholds import tie_uniform
from grampus_uq.stats.ranks import binomial_interval

__all__ = ["BacktestRow", "backtest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestRow:
    """One threshold on all runs. Shares are in [0, 1] and None where no run could show them; intervals are exact, 95 %.

    `alarm_position` is the median over alarmed runs of (alarm step / length); `cost_used` the mean share of steps that
    ran when every alarm stops its run; `pauses_per_100` counts alarms over all runs, whatever became of them.
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
    alarm_position: float | None
    pauses_per_100: float
    cost_used: float
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
                precision=None if bad is None or not alarmed.any() else float(bad.sum() / alarmed.sum()),
                alarm_position=float(np.median(used[alarmed])) if alarmed.any() else None,
                pauses_per_100=float(100.0 * alarmed.mean()),
                cost_used=float(used.mean()),
                guarantee=threshold.guarantee,
                shortage=threshold.shortage,
            )
        )
    return rows


def _share(prefix: str, name: str, alarmed: Any) -> dict[str, Any]:
    """A share with its exact interval; None where there is no run of the kind."""
    if alarmed is None or len(alarmed) == 0:
        return {name: None, f"{prefix}_low": None, f"{prefix}_high": None}
    low, high = binomial_interval(int(alarmed.sum()), len(alarmed))
    return {name: float(alarmed.mean()), f"{prefix}_low": low, f"{prefix}_high": high}
