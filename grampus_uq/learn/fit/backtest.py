"""Backtest of a detector on recorded runs, level by level: false alarms, power, precision, position, cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.alarm_figures import AlarmFigures, Figure, alarm_figures
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.eprocess import Detector, alarm_steps, score_rows
from grampus_uq.stats.eprocess_thresholds import Threshold, tie_uniform

_NAMES: Final = {
    "false_alarms": ("false_alarm_rate", "false_alarm_low", "false_alarm_high"),
    "power": ("power", "power_low", "power_high"),
    "precision": ("precision", "precision_low", "precision_high"),
    "position": ("alarm_position", "alarm_position_low", "alarm_position_high"),
    "paused": ("pauses_per_100", "pauses_low", "pauses_high"),
    "cost_used": ("cost_used", "cost_low", "cost_high"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestRow:
    """One threshold on all runs: what it did, and what it promises."""

    threshold: Threshold
    deployed: bool
    runs: int
    figures: AlarmFigures

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values; pauses are given for 100 runs."""
        row: dict[str, Any] = {
            "mode": self.threshold.mode.value,
            "alpha": self.threshold.alpha,
            "deployed": self.deployed,
            "runs": self.runs,
        }
        for figure, names in _NAMES.items():
            unit = 100.0 if figure == "paused" else 1.0
            found: Figure = getattr(self.figures, figure)
            for name, value in zip(names, (found.estimate, found.low, found.high), strict=True):
                row[name] = None if value is None else unit * value
        return {**row, "guarantee": self.threshold.guarantee, "shortage": self.threshold.shortage}


def backtest(detector: Detector, runs: DetectorRuns) -> list[BacktestRow]:
    """Apply every threshold of a detector to recorded runs.

    Honest only on runs that served neither its fit nor its thresholds. Without outcomes the figures that need them are
    empty. Raises ConfigurationError when the runs do not carry the detector's streams.
    """
    if runs.streams != detector.streams:
        raise ConfigurationError.of("runs", "backtest", f"of the streams {detector.streams}", runs.streams)
    blocks = runs.blocks
    log_m = score_rows(detector, blocks)
    ties = np.array([tie_uniform(name.rpartition("#")[0] or name, detector.salt) for name in runs.ids])
    return [
        BacktestRow(
            threshold=threshold,
            deployed=number == detector.deployed,
            runs=len(runs),
            figures=alarm_figures(alarm_steps(blocks, log_m, threshold, ties), runs.lengths, runs.success),
        )
        for number, threshold in enumerate(detector.thresholds)
    ]
