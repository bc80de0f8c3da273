"""Recorded runs as columns to fit on: the streams of every step of the model, the outcome, and the weight of the run.

What the streams are is what `advance` hands to a calibration: every reading by its source, `semantic_entropy`,
`trajectory_risk` where a profile has TRACER, `fused` and `propagated`. Numbers only: no text is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.decision import is_irreversible
from grampus_uq.engine import Profile, SessionState, advance
from grampus_uq.fit.detector_runs import DetectorRuns
from grampus_uq.recording.runs import Run
from grampus_uq.recording.standing import standing
from grampus_uq.risk import confidence_of_risk
from grampus_uq.stats.trajectory_scores import ForecastTraces

__all__ = ["DERIVED", "LabelledRuns", "labelled_runs"]

DERIVED = ("fused", "propagated")
"""Streams that the engine makes out of the readings."""

TASK = "task_id"
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledRuns:
    """Runs whose outcome is known and was not selected.

    ids: distinct names. success: shape (n,). weights: shape (n,), one over the chance that the outcome was seen.
    tasks: trials of one task share a name. streams: by name, one value a step of the model, NaN where missing. asks:
    shape (n,), which step of the model the first irreversible call followed (the last step where there was none).
    has_call: whether there was one. excluded: runs left out, by reason. first_s, last_s: when the first and the last
    recorded run (left out or not) began; recorded: how many there are.
    """

    ids: tuple[str, ...]
    success: BoolArray
    weights: FloatArray
    tasks: tuple[str, ...]
    lengths: npt.NDArray[np.int64]
    streams: Mapping[str, FloatArray]
    asks: npt.NDArray[np.int64]
    has_call: BoolArray
    excluded: Mapping[str, int]
    first_s: float | None = None
    last_s: float | None = None
    recorded: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def counts(self) -> dict[str, int]:
        """Runs by kind: success, failure, and every exclusion by its reason."""
        good = int(self.success.sum())
        return {"success": good, "failure": len(self) - good, **self.excluded}

    @property
    def runs_per_day(self) -> float | None:
        """Recorded runs a day; None when they span less than an hour or have no times."""
        if self.first_s is None or self.last_s is None or self.last_s - self.first_s < 3600.0:
            return None
        return self.recorded / ((self.last_s - self.first_s) / 86400.0)

    def traces(self, name: str) -> ForecastTraces:
        """One stream as forecasts."""
        return ForecastTraces(forecasts=self.streams[name], lengths=self.lengths)

    def at_ask(self, values: FloatArray) -> FloatArray:
        """A stream's value at the step that the first irreversible call followed, one a run."""
        starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        return values[starts + self.asks]

    def detector_runs(self, columns: Mapping[str, FloatArray]) -> DetectorRuns:
        """These streams for a detector, in the order that it wants: by id."""
        order = np.argsort(np.array(self.ids, dtype=object), kind="stable")
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order]) if len(order) else order
        weights = self.weights[order]
        return DetectorRuns(
            streams=tuple(columns),
            bounded=(True,) * len(columns),
            ids=tuple(self.ids[i] for i in order),
            values=np.column_stack([column[rows] for column in columns.values()]),
            lengths=self.lengths[order].astype(np.intp),
            success=self.success[order],
            excluded=dict(self.excluded),
            weights=None if (weights == 1.0).all() else weights,
        )


def labelled_runs(recorded: Iterable[Run], profile: Profile, *, task_key: str = TASK) -> LabelledRuns:
    """Read runs, one at a time, as `profile` (fusion, propagation, TRACER, irreversible tools) would see them.

    `task_key` names the metadata that says which task a run belongs to; without it every run is a task of its own.
    """
    seer = profile.model_copy(update={"detector": None, "calibration": None, "release": None, "advisory": True})
    found = _Columns()
    for run in recorded:
        found.count(run)
        stands = standing(run)
        reason = stands.reason or ("" if found.take(run, seer, stands.weight, task_key) else "no_step_of_the_model")
        if reason:
            found.excluded[reason] = found.excluded.get(reason, 0) + 1
    return found.assembled()


class _Columns:
    """What was read so far."""

    def __init__(self) -> None:
        self.excluded: dict[str, int] = {}
        self.recorded = 0
        self._times: list[float] = []
        self._ids: dict[str, None] = {}
        self._rows: list[tuple[bool, float, str, int, int, bool]] = []
        self._values: dict[str, list[float]] = {}
        self._n = 0

    def count(self, run: Run) -> None:
        """Count a run, whatever it may be used for."""
        self.recorded += 1
        if run.start is not None:
            times = [*self._times, run.start.time_s]
            self._times = [min(times), max(times)]

    def take(self, run: Run, profile: Profile, weight: float, task_key: str) -> bool:
        """Add a run's steps; False when it has no step of the model."""
        state = SessionState(session_id=run.session_id)
        length, asks = 0, None
        for event in run.steps:
            state, seen = advance(profile, state, event.step, event.readings, event.trajectory)
            if event.step.kind == "tool_call":
                name = event.step.tool_name
                if asks is None and length and is_irreversible(profile.policy, name, event.step.effect):
                    asks = length - 1
                continue
            values = {str(one.source): one.value for one in event.readings if one.value is not None}
            if not (seen.missing_reason or "").endswith("no reading on this step"):
                values |= {"fused": seen.fused_confidence, "propagated": seen.propagated_confidence}
            risk = confidence_of_risk(seen.trajectory_risk)
            if risk is not None:
                values["trajectory_risk"] = risk
            for source in values.keys() - self._values.keys():
                self._values[source] = [math.nan] * self._n
            for source, column in self._values.items():
                column.append(values.get(source, math.nan))
            self._n += 1
            length += 1
        if not length:
            return False
        outcome = run.outcome
        name = run.session_id
        while name in self._ids:
            name = f"{name}'"
        self._ids[name] = None
        task = run.start.metadata.get(task_key, name) if run.start else name
        good = outcome is not None and outcome.success is True
        self._rows.append((good, weight, task, length, length - 1 if asks is None else asks, asks is not None))
        return True

    def assembled(self) -> LabelledRuns:
        """Everything, as arrays."""
        good, weights, tasks, lengths, asks, has_call = zip(*self._rows, strict=True) if self._rows else ((),) * 6
        return LabelledRuns(
            ids=tuple(self._ids),
            success=np.array(good, dtype=np.bool_),
            weights=np.array(weights, dtype=np.float64),
            tasks=tuple(tasks),
            lengths=np.array(lengths, dtype=np.int64),
            streams={name: np.array(self._values[name]) for name in sorted(self._values)},
            asks=np.array(asks, dtype=np.int64),
            has_call=np.array(has_call, dtype=np.bool_),
            excluded=dict(sorted(self.excluded.items())),
            first_s=self._times[0] if self._times else None,
            last_s=self._times[1] if self._times else None,
            recorded=self.recorded,
        )
