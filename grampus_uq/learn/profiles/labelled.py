"""Recorded runs as columns to fit on: the streams of every step of the model, the outcome, and the weight of the run.

What the streams are is what `advance` hands to a calibration: every reading by its source, `semantic_entropy`,
`trajectory_risk` where a profile has TRACER, `fused` and `propagated`. Numbers only: no text is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress

import numpy as np
import numpy.typing as npt

from grampus_uq.core.state import Profile
from grampus_uq.learn.attribution.labelled_recordings import names_a_step
from grampus_uq.learn.columns import Columns, RunRows, at_rows, other_trials, read_columns, recorded_rows
from grampus_uq.learn.eligibility import NO_OUTCOME, NO_STEP, Eligibility, about_the_others
from grampus_uq.learn.fit.detector_runs import DetectorRuns, detector_runs
from grampus_uq.learn.sensed import Sensed
from grampus_uq.recording.copies import distinct_ids
from grampus_uq.recording.runs import Paths, Refused, Run
from grampus_uq.records.vocabulary import TASK
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.trajectory_scores import ForecastTraces


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

    Attributes:
        ids: distinct names; paths: the file of each.
        success: shape (n,).
        weights: shape (n,), one over the probability that the outcome was seen; most: the largest that it can be.
        tasks: trials of one task share a name; without_task: how many name none, and count as a task each.
        streams: by name, one value a step of the model, NaN where missing.
        asks: shape (n,), the step of the model that proposed the first irreversible call (-1: the call came before any;
            the last step where there was no call); has_call: whether there was one; calls: of each run, the same of all
            its irreversible calls.
        excluded: runs left out, by reason; others: by task, those of them that can have no label of their own.
        unlabelled: runs that could be used if they were labelled.
        recorded: how many runs there were, left out or not; of all these: first_s and last_s, when the first and the
            last began; made_with, their models, prompts and tools; errors_named, how many labels name the step of
            an error; watched, how many were watched with TRACER; unreported, how many propose an irreversible call and
            report no call.
        sensed: what was read of the runs that are used.
    """

    ids: tuple[str, ...]
    paths: tuple[str, ...]
    success: BoolArray
    weights: FloatArray
    most: float
    tasks: tuple[str, ...]
    lengths: npt.NDArray[np.int64]
    streams: Mapping[str, FloatArray]
    asks: npt.NDArray[np.int64]
    has_call: BoolArray
    calls: tuple[tuple[int, ...], ...]
    excluded: Mapping[str, int]
    others: Mapping[str, int] = field(default_factory=dict)
    without_task: int = 0
    unlabelled: Unlabelled = field(default_factory=Unlabelled)
    first_s: float | None = None
    last_s: float | None = None
    recorded: int = 0
    made_with: frozenset[tuple[str, str | None, str | None]] = frozenset()
    errors_named: int = 0
    watched: int = 0
    unreported: int = 0
    sensed: frozenset[Sensed] = frozenset()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """The first step of each run, shape (n,)."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def counts(self) -> dict[str, int]:
        """Runs by kind: success, failure, and every exclusion by its reason."""
        good = int(self.success.sum())
        return {"success": good, "failure": len(self) - good, **self.excluded}

    @property
    def about_the_others(self) -> str:
        """The sentence on the runs that no promise is about, or nothing."""
        return about_the_others(self.excluded)

    @property
    def runs_per_day(self) -> float | None:
        """Recorded runs a day; None when they span less than an hour or have no times."""
        if self.first_s is None or self.last_s is None or self.last_s - self.first_s < 3600.0:
            return None
        return self.recorded / ((self.last_s - self.first_s) / 86400.0)

    @property
    def moments(self) -> BoolArray:
        """The steps that a run is judged by, shape (steps,): the one that asks, or every step where no call was."""
        rows = np.repeat(~self.has_call, self.lengths)
        asking = self.has_call & (self.asks >= 0)
        rows[(self.starts + self.asks)[asking]] = True
        return rows

    def taught_by(self, chosen: BoolArray) -> BoolArray:
        """Those of the chosen runs that have such a step."""
        return chosen & np.logical_or.reduceat(self.moments, self.starts) if len(self) else chosen

    def at_moments(self, name: str, chosen: BoolArray) -> ForecastTraces:
        """One stream of these runs (`taught_by`) at the steps that they are judged by, as forecasts."""
        lengths = np.where(self.has_call, 1, self.lengths)[chosen]
        return ForecastTraces(
            forecasts=self.streams[name][self.moments & np.repeat(chosen, self.lengths)], lengths=lengths
        )

    def at_ask(self, values: FloatArray) -> FloatArray:
        """A stream's value at the step that proposed the first irreversible call, one a run; NaN where none did."""
        return at_rows(values, self.lengths, [(ask,) for ask in self.asks])

    def detector_runs(self, columns: Mapping[str, FloatArray], *, at_calls: bool) -> DetectorRuns:
        """These streams for a detector, in the order that it wants: by id. With `at_calls` of the runs that call."""
        chosen = self.has_call if at_calls else np.ones(len(self), dtype=np.bool_)
        values = [at_rows(v, self.lengths, self.calls) if at_calls else v for v in columns.values()]
        lengths = np.array([len(own) for own in self.calls]) if at_calls else self.lengths
        others = Counter(self.others)
        others.update(task for task, there in zip(self.tasks, chosen, strict=True) if not there)
        found = detector_runs(
            ids=list(compress(self.ids, chosen)),
            lengths=lengths[chosen],
            scores=np.column_stack(values),
            outcomes=self.success[chosen],
            streams=tuple(columns),
            weights=self.weights[chosen],
            most=self.most,
            tasks=list(compress(self.tasks, chosen)),
        )
        return replace(found, excluded=dict(self.excluded), others=dict(others), at_calls=at_calls)


def labelled_runs(
    paths: Paths,
    profile: Profile,
    *,
    task_key: str = TASK,
    workers: int = 1,
    on_runs: Callable[[int], None] | None = None,
    on_refused: Refused | None = None,
) -> LabelledRuns:
    """Read recordings, part by part, as `profile` (fusion, propagation, TRACER, irreversible tools) would see them.

    `task_key` names the metadata that says which task a run belongs to; without it every run is a task of its own.
    `workers`, `on_runs` and `on_refused` as in `read_columns`. Holds eight bytes a reading, and the ids.
    """
    cleared = {"detector": None, "calibration": None, "release": None, "advisory": True}
    found = read_columns(
        paths,
        partial(_rows_to_fit, profile.model_copy(update=cleared)),
        task_key=task_key,
        workers=workers,
        on_runs=on_runs,
        on_refused=on_refused,
    )
    return _labelled(found)


def _rows_to_fit(profile: Profile, run: Run, decided: Eligibility) -> RunRows | None:
    """All rows of a run that may be used; of one that only lacks a label, the row before its irreversible call."""
    if not decided.usable and decided.reason != NO_OUTCOME:
        return None
    found = recorded_rows(run, decided, profile=profile)
    if decided.usable:
        return found
    if not found.calls or not found.rows:
        return replace(found, rows=())
    first = found.calls[0]
    return replace(found, rows=(found.rows[first] if first >= 0 else {},))


def _labelled(columns: Columns) -> LabelledRuns:
    runs = columns.runs
    usable = [run for run in runs if run.eligibility.usable and run.length]
    reasons = Counter(run.eligibility.reason or NO_STEP for run in runs if not (run.eligibility.usable and run.length))
    rows = np.repeat([run.eligibility.usable for run in runs], columns.lengths).astype(np.bool_)
    streams = {name: columns.stream(name)[rows] for name in sorted(columns.streams)}
    times = [run.started_s for run in runs if run.started_s is not None]
    return LabelledRuns(
        ids=distinct_ids([run.session_id for run in usable]),
        paths=tuple(run.path for run in usable),
        success=np.array([run.success for run in usable], dtype=np.bool_),
        weights=np.array([run.eligibility.weight for run in usable], dtype=np.float64),
        most=max((run.eligibility.most for run in usable), default=1.0),
        tasks=tuple(run.trial_of for run in usable),
        lengths=np.array([run.length for run in usable], dtype=np.int64),
        streams={name: values for name, values in streams.items() if not np.isnan(values).all()},
        asks=np.array([run.calls[0] if run.calls else run.length - 1 for run in usable], dtype=np.int64),
        has_call=np.array([bool(run.calls) for run in usable], dtype=np.bool_),
        calls=tuple(run.calls for run in usable),
        excluded=dict(sorted(reasons.items())),
        others=other_trials(runs),
        without_task=sum(run.task is None for run in usable),
        unlabelled=_unlabelled(columns, ~rows),
        first_s=min(times, default=None),
        last_s=max(times, default=None),
        recorded=len(runs),
        made_with=frozenset(run.made_with for run in runs if run.made_with is not None),
        errors_named=sum(names_a_step(run.outcome) for run in runs),
        watched=sum(run.watched for run in runs),
        unreported=sum(run.unreported for run in runs),
        sensed=frozenset(run.sensed for run in usable),
    )


def _unlabelled(columns: Columns, rows: BoolArray) -> Unlabelled:
    """The runs that only lack a label; each has one row, or none."""
    lacking = [run for run in columns.runs if run.eligibility.reason == NO_OUTCOME]
    asked = [run for run in lacking if run.length]
    return Unlabelled(
        ids=tuple(run.session_id for run in asked),
        tasks=tuple(run.trial_of for run in asked),
        streams={name: columns.stream(name)[rows] for name in sorted(columns.streams)},
        uncalled=Counter(run.task for run in lacking if run.first_call is None and run.task is not None),
    )
