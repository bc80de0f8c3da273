"""Recorded runs as columns to fit on: the streams of every step of the model, the outcome, and the weight of the run.

What the streams are is what `advance` hands to a calibration: every reading by its source, `semantic_entropy`,
`trajectory_risk` where a profile has TRACER, `fused` and `propagated`. Numbers only: no text is kept.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from grampus_uq.core.decision import is_irreversible
from grampus_uq.core.engine import advance
from grampus_uq.core.risk import confidence_of_risk
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.learn.attribution.labelled_recordings import names_a_step
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.recording.copies import distinct_ids
from grampus_uq.recording.eligibility import NO_OUTCOME, SELECTED, SUPERSEDED, standing
from grampus_uq.recording.parallel import Backend
from grampus_uq.recording.parts import over_parts
from grampus_uq.recording.runs import Paths, Refused, Run
from grampus_uq.recording.trajectories import TASK, task_of
from grampus_uq.records.events import StepEvent
from grampus_uq.records.values import StepUncertainty
from grampus_uq.stats.trajectory_scores import ForecastTraces

__all__ = ["DERIVED", "NO_STEP", "LabelledRuns", "Unlabelled", "labelled_runs"]

DERIVED = ("fused", "propagated")
"""Streams that the engine makes out of the readings."""

NO_STEP = "no_step_of_the_model"
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unlabelled:
    """Runs with an irreversible call that nobody touched and that only lack a label.

    streams: one value a run, what was read at that call. uncalled: by task, the like of them without such a call.
    """

    ids: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    streams: Mapping[str, FloatArray] = field(default_factory=dict)
    uncalled: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledRuns:
    """Runs whose outcome is known and was not selected.

    ids: distinct names. paths: the file of each. success: shape (n,). weights: shape (n,), one over the chance that the
    outcome was seen. tasks: trials of one task share a name; untold, how many of these runs name none and count as a
    task each. streams: by name, one value a step of the model, NaN where missing. asks: shape (n,), which step of the
    model the first irreversible call followed (-1: none came before it; the last step where there was no call).
    has_call: whether there was one. excluded: runs left out, by reason; others, by task, those of them that have ended
    in a way that can have no label of its own. unlabelled: runs that could be used if they were labelled. Of all
    recorded runs, left out or not: recorded, how many; first_s, last_s, when the first and the last began; models,
    prompts, tools, what they were made with; errors_named, how many labels name the step of an error; watched, how many
    were watched with TRACER.
    """

    ids: tuple[str, ...]
    paths: tuple[str, ...]
    success: BoolArray
    weights: FloatArray
    tasks: tuple[str, ...]
    lengths: npt.NDArray[np.int64]
    streams: Mapping[str, FloatArray]
    asks: npt.NDArray[np.int64]
    has_call: BoolArray
    excluded: Mapping[str, int]
    others: Mapping[str, int] = field(default_factory=dict)
    untold: int = 0
    unlabelled: Unlabelled = field(default_factory=Unlabelled)
    first_s: float | None = None
    last_s: float | None = None
    recorded: int = 0
    models: frozenset[str] = frozenset()
    prompts: frozenset[str | None] = frozenset()
    tools: frozenset[str | None] = frozenset()
    errors_named: int = 0
    watched: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def counts(self) -> dict[str, int]:
        """Runs by kind: success, failure, and every exclusion by its reason."""
        good = int(self.success.sum())
        return {"success": good, "failure": len(self) - good, **self.excluded}

    @property
    def stopped(self) -> int:
        """Runs that are left out because somebody stopped them or decided on them: what is left is selected."""
        return sum(self.excluded.get(reason, 0) for reason in SELECTED)

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
        """A stream's value at the step that the first irreversible call followed, one a run; NaN where none did."""
        starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.intp)
        return np.where(self.asks < 0, math.nan, values[starts + np.maximum(self.asks, 0)])

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
            tasks=tuple(self.tasks[i] for i in order),
            others=dict(self.others),
            values=np.column_stack([column[rows] for column in columns.values()]),
            lengths=self.lengths[order].astype(np.intp),
            success=self.success[order],
            excluded=dict(self.excluded),
            weights=None if (weights == 1.0).all() else weights,
        )


def labelled_runs(
    paths: Paths,
    profile: Profile,
    *,
    task_key: str = TASK,
    workers: int = 1,
    backend: Backend = "local",
    on_runs: Callable[[int], None] | None = None,
    on_refused: Refused | None = None,
) -> LabelledRuns:
    """Read recordings, part by part, as `profile` (fusion, propagation, TRACER, irreversible tools) would see them.

    `task_key` names the metadata that says which task a run belongs to; without it every run is a task of its own. The
    result does not depend on `workers` and `backend` (`parallel.in_order`). `on_runs` is told how many runs each part
    had, `on_refused` what is wrong with a file, whose rest is left out. Holds eight bytes a reading, and the ids.
    """
    cleared = {"detector": None, "calibration": None, "release": None, "advisory": True}
    work = partial(_columns_of_part, profile.model_copy(update=cleared), task_key)
    found = _Columns()
    for part in over_parts(work, paths, workers=workers, backend=backend, on_refused=on_refused):
        found.add(part)
        if on_runs is not None:
            on_runs(part.recorded)
    return found.assembled()


def _columns_of_part(profile: Profile, task_key: str, runs: Iterator[Run], refuse: Refused | None) -> _Columns:
    found = _Columns()
    for run in runs:
        found.count(run)
        stands = standing(run)
        task = task_of(run, task_key)
        if stands.usable and found.take(run, profile, stands.weight, task):
            continue
        found.leave_out(stands.reason or NO_STEP)
        if stands.reason == NO_OUTCOME:
            found.keep_unlabelled(run, profile, task)
        elif stands.reason not in ("", SUPERSEDED) and task is not None:
            found.others[task] += 1
    return found


@dataclass(slots=True)
class _Columns:
    """What was read so far; of a part, or of all parts up to one."""

    recorded: int = 0
    excluded: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    prompts: set[str | None] = field(default_factory=set)
    tools: set[str | None] = field(default_factory=set)
    errors_named: int = 0
    watched: int = 0
    others: Counter[str] = field(default_factory=Counter)
    untold: int = 0
    uncalled: Counter[str] = field(default_factory=Counter)
    unlabelled: list[tuple[str, str, dict[str, float]]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    rows: list[tuple[str, bool, float, str, int, int, bool]] = field(default_factory=list)
    values: dict[str, array[float]] = field(default_factory=dict)
    n: int = 0

    def count(self, run: Run) -> None:
        """Count a run, whatever it may be used for."""
        self.recorded += 1
        self.errors_named += names_a_step(run)
        self.watched += any(event.trajectory is not None for event in run.steps)
        start = run.start
        if start is not None:
            times = [*self.times, start.time_s]
            self.times = [min(times), max(times)]
            self.models.add(start.model)
            self.prompts.add(start.prompt_hash)
            self.tools.add(start.tools_hash)

    def leave_out(self, reason: str) -> None:
        """Count a run that is not used."""
        self.excluded[reason] += 1

    def take(self, run: Run, profile: Profile, weight: float, task: str | None) -> bool:
        """Add a run's steps; False when it has no step of the model."""
        steps, asks = _walked(run, profile)
        if not steps:
            return False
        for values in steps:
            self._step(values)
        good = run.outcome is not None and run.outcome.success is True
        length = len(steps)
        self.untold += task is None
        self.ids.append(run.session_id)
        at, called = (length - 1, False) if asks is None else (asks, True)
        self.rows.append((run.path, good, weight, task or f"run {run.session_id}", length, at, called))
        return True

    def keep_unlabelled(self, run: Run, profile: Profile, task: str | None) -> None:
        """Keep what was read at the first irreversible call of a run without a label, if it has one."""
        steps, asks = _walked(run, profile)
        if asks is None and task is not None:
            self.uncalled[task] += 1
        if steps and asks is not None:
            self.unlabelled.append((run.session_id, task or f"run {run.session_id}", steps[asks] if asks >= 0 else {}))

    def _step(self, values: Mapping[str, float]) -> None:
        for source in values.keys() - self.values.keys():
            self.values[source] = array("d", [math.nan]) * self.n
        for source, column in self.values.items():
            column.append(values.get(source, math.nan))
        self.n += 1

    def add(self, part: _Columns) -> None:
        """Take in what the next part holds."""
        self.recorded += part.recorded
        self.excluded += part.excluded
        self.times = [pick([*self.times, *part.times]) for pick in (min, max)] if self.times or part.times else []
        self.models |= part.models
        self.prompts |= part.prompts
        self.tools |= part.tools
        self.errors_named += part.errors_named
        self.watched += part.watched
        self.others += part.others
        self.untold += part.untold
        self.unlabelled += part.unlabelled
        self.uncalled += part.uncalled
        self.ids += part.ids
        self.rows += part.rows
        for source in sorted(self.values.keys() | part.values.keys()):
            column = self.values.setdefault(source, array("d", [math.nan]) * self.n)
            column.extend(part.values.get(source, array("d", [math.nan]) * part.n))
        self.n += part.n

    def assembled(self) -> LabelledRuns:
        """Everything, as arrays."""
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * 7
        paths, good, weights, tasks, lengths, asks, has_call = columns
        return LabelledRuns(
            ids=distinct_ids(self.ids),
            paths=tuple(paths),
            others=dict(self.others),
            untold=self.untold,
            unlabelled=self._unlabelled(),
            success=np.array(good, dtype=np.bool_),
            weights=np.array(weights, dtype=np.float64),
            tasks=tuple(tasks),
            lengths=np.array(lengths, dtype=np.int64),
            streams={name: np.frombuffer(self.values[name]) for name in sorted(self.values)},
            asks=np.array(asks, dtype=np.int64),
            has_call=np.array(has_call, dtype=np.bool_),
            excluded=dict(sorted(self.excluded.items())),
            first_s=self.times[0] if self.times else None,
            last_s=self.times[1] if self.times else None,
            recorded=self.recorded,
            models=frozenset(self.models),
            prompts=frozenset(self.prompts),
            tools=frozenset(self.tools),
            errors_named=self.errors_named,
            watched=self.watched,
        )

    def _unlabelled(self) -> Unlabelled:
        ids, tasks, read = zip(*self.unlabelled, strict=True) if self.unlabelled else ((),) * 3
        names = sorted({name for one in read for name in one})
        streams = {name: np.array([one.get(name, math.nan) for one in read]) for name in names}
        return Unlabelled(ids=tuple(ids), tasks=tuple(tasks), streams=streams, uncalled=dict(self.uncalled))


def _walked(run: Run, profile: Profile) -> tuple[list[dict[str, float]], int | None]:
    """The streams of each step of the model, and which of these the first irreversible call followed: -1 when it came
    before any, None when there was no such call."""
    state = SessionState(session_id=run.session_id)
    steps: list[dict[str, float]] = []
    asks: int | None = None
    for event in run.steps:
        state, seen = advance(profile, state, event.step, event.readings, event.trajectory)
        if event.step.kind != "tool_call":
            steps.append(_streams(event, seen))
        elif asks is None and is_irreversible(profile.policy, event.step.tool_name, event.step.effect):
            asks = len(steps) - 1
    return steps, asks


def _streams(event: StepEvent, seen: StepUncertainty) -> dict[str, float]:
    """What a calibration may read at a step, as `advance` hands it over."""
    values = {str(one.source): one.value for one in event.readings if one.value is not None}
    if not (seen.missing_reason or "").endswith("no reading on this step"):
        values |= {"fused": seen.fused_confidence, "propagated": seen.propagated_confidence}
    risk = confidence_of_risk(seen.trajectory_risk)
    return values if risk is None else {**values, "trajectory_risk": risk}
