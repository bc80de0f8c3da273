"""What the monitor wrote down about each step, turned into step scores: confidence drops, risk components, tool errors.

Plain arrays in, so that any source serves; `grampus_uq.learn.attribution.from_recording` fills them from a recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.failed_trajectory import Trajectory
from grampus_uq.learn.attribution.scorers import StepScore, StepScores

FloatArray = npt.NDArray[np.float64]

__all__ = ["MonitorRecord", "MonitorRecordScorer", "record_features"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorRecord:
    """Per-step readings of one trajectory, each of shape (L,); NaN where there was no reading.

    confidence: in [0, 1], higher is better. tool_error: 1 where the step reports a failed tool, 0 where a tool
    succeeded. risk: by component name, >= 0, higher is worse.
    """

    confidence: FloatArray
    tool_error: FloatArray
    risk: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        length = len(self.confidence)
        for name, values in {"confidence": self.confidence, "tool_error": self.tool_error, **self.risk}.items():
            if values.shape != (length,) or np.isinf(values).any():
                raise ConfigurationError.of(name, "MonitorRecord", f"finite or NaN, of shape ({length},)", values)
            if (values < 0.0).any() or (name not in self.risk and (values > 1.0).any()):
                domain = "not negative" if name in self.risk else "in [0, 1]"
                raise ConfigurationError.of(name, "MonitorRecord", domain, values)


def record_features(record: MonitorRecord) -> tuple[tuple[str, ...], FloatArray]:
    """Turn a record into columns, each >= 0 and higher = more suspect.

    Columns: `confidence_drop`, how far confidence fell below the last reading before the step, max(0, c_before - c);
    `low_confidence`, 1 - c; `tool_error`; `next_tool_error`, the step that follows reports a failed tool (the call was
    made here); then the risk components by name. A missing entry takes the mean of its column in the same trajectory,
    0 when the whole column is missing: it neither accuses nor clears the step.

    Args:
        record: L steps.

    Returns:
        Names (F,) and values of shape (L, F), finite.
    """
    confidence, errors = record.confidence, record.tool_error
    columns = {
        "confidence_drop": np.maximum(0.0, _last_before(confidence) - confidence),
        "low_confidence": 1.0 - confidence,
        "tool_error": errors,
        "next_tool_error": np.append(errors[1:], np.nan),
        **{name: record.risk[name] for name in sorted(record.risk)},
    }
    return tuple(columns), np.stack([_filled(column) for column in columns.values()], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorRecordScorer:
    """Scores a step by the weighted sum of its record's columns (`record_features`): `s_j = sum_f w_f x_jf >= 0`.

    records: by trajectory id. weights: by column, >= 0; a column without a weight takes `other_weight`. The record
    exists already, so nothing is saved by being lazy.
    """

    records: Mapping[str, MonitorRecord]
    weights: Mapping[str, float] = field(default_factory=dict)
    other_weight: float = 1.0
    name: str = "monitor_record"

    def __post_init__(self) -> None:
        for column, weight in {**self.weights, "other_weight": self.other_weight}.items():
            if not 0.0 <= weight < np.inf:
                raise ConfigurationError.of(column, "MonitorRecordScorer", "finite and not negative", weight)

    def score(self, trajectory: Trajectory, /) -> StepScores:
        """Score every step; ConfigurationError without a record of the trajectory, or with one of another length."""
        record = self.records.get(trajectory.trajectory_id)
        if record is None or len(record.confidence) != len(trajectory):
            found = None if record is None else len(record.confidence)
            rule = f"a record of {len(trajectory)} steps for {trajectory.trajectory_id!r}"
            raise ConfigurationError.of("records", "MonitorRecordScorer", rule, found)
        names, columns = record_features(record)
        weights = np.array([self.weights.get(name, self.other_weight) for name in names])
        parts = columns * weights
        return StepScores(
            steps=tuple(StepScore(value=float(row.sum()), why=_told(names, row, row.sum())) for row in parts)
        )


def _last_before(values: FloatArray) -> FloatArray:
    """The latest reading before each step; NaN where there was none."""
    known = np.where(np.isnan(values), -1, np.arange(len(values)))
    latest = np.concatenate([[-1], np.maximum.accumulate(known)[:-1]]).astype(np.int64)
    return np.where(latest >= 0, values[latest], np.nan)


def _filled(column: FloatArray) -> FloatArray:
    missing = np.isnan(column)
    stand_in = 0.0 if missing.all() else float(column[~missing].mean())
    return np.where(missing, stand_in, column)


def _told(names: tuple[str, ...], parts: FloatArray, total: float) -> str:
    """The columns that make up the score, the largest first."""
    order = [int(i) for i in np.argsort(-parts, kind="stable")[:3] if parts[i] > 0.0]
    if total <= 0.0:
        return ""
    return ", ".join(f"{names[i].replace('_', ' ')} {parts[i]:.2f}" for i in order)
