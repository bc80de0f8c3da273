"""Recorded runs as columns: a row for each step of the model, a column for each confidence stream, NaN where missing.

The one reader of recordings for everything that learns or scores:

    columns = read_columns(paths, read_run)     part by part, with any number of workers
    columns.runs                                a `RunRow` for each run: task, outcome, eligibility, number of rows
    columns.stream("fused")                     shape (rows,): the runs one after the other

`read_run(run, eligibility)` says which rows a run contributes: `recorded_rows` takes the recorded assessments or, with
a profile, what that profile concludes from the recorded readings. A reader that needs further numbers of a step adds
them to the rows under names of its own (`RunRows.rows` are plain mappings). A tool call is the consequence of a step of
the model and has no row.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from grampus_uq.core.decision import is_irreversible
from grampus_uq.core.engine import advance
from grampus_uq.core.estimator import fuse_step
from grampus_uq.core.risk import confidence_of_risk
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.core.tally import tally_of
from grampus_uq.core.turn_evidence import placed, text_key
from grampus_uq.core.worst_case import UNAIDED, unaided_of
from grampus_uq.errors import DataError
from grampus_uq.learn.eligibility import NO_OUTCOME, SUPERSEDED, Eligibility, eligibility
from grampus_uq.learn.guarded import guarding_also
from grampus_uq.learn.sensed import Sensed, sensed_in
from grampus_uq.monitor.permit_basis import score_of
from grampus_uq.recording.parts import over_parts
from grampus_uq.recording.runs import Paths, Refused, Run, refuse_to
from grampus_uq.records.events import StepEvent
from grampus_uq.records.values import Outcome, StepUncertainty, ToolCall
from grampus_uq.records.vocabulary import TASK, UncertaintySource
from grampus_uq.stats.arrays import FloatArray

DERIVED: Final = ("fused", UNAIDED, "propagated", "p_success", "trajectory_risk")
"""Streams that the engine computes; every other stream is a reading under the name of its source."""

SCORE: Final = "confidence"
"""What a permit goes by if nothing else is said: the run's confidence, as `score_of` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRows:
    """The rows of one run: by stream name, the value at each step of the model; a missing value has no entry.

    calls: for each irreversible call, in their order, the row of the turn that proposed it (-1: it came before any
    row). Which calls are irreversible a profile's policy says, and what was recorded of their effect. unreported: a
    turn proposes one by name, and no step of the run is a call.
    """

    rows: Sequence[Mapping[str, float]]
    calls: tuple[int, ...] = ()
    unreported: bool = False


_ReadRun = Callable[[Run, Eligibility], RunRows | None]
"""Gives the rows of a run, or None when the run is only to be counted. May raise DataError: the run is then refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run: `length` rows of the columns (0: only counted), its task (None: it names none) and its outcome.

    started_s and made_with (model, prompt hash, tools hash) are None without a recorded beginning. watched: some step
    has a reading of the trajectory. sensed: what was read. calls, unreported: as in `RunRows`.
    """

    session_id: str
    path: str
    task: str | None
    outcome: Outcome | None
    eligibility: Eligibility
    length: int
    calls: tuple[int, ...]
    unreported: bool
    started_s: float | None
    made_with: tuple[str, str | None, str | None] | None
    watched: bool
    sensed: Sensed

    @property
    def first_call(self) -> int | None:
        """The row of the turn that proposed the first irreversible call; None for a run without one."""
        return self.calls[0] if self.calls else None

    @property
    def trial_of(self) -> str:
        """The task; a run that names none is a task of its own."""
        return self.task or f"run {self.session_id}"

    @property
    def success(self) -> bool:
        """True when the outcome is known and good."""
        return self.outcome is not None and self.outcome.success is True


@dataclass(slots=True)
class Columns:
    """Runs in the order in which they were read, eight bytes a number; `rows` is the sum of their lengths."""

    runs: list[RunRow] = field(default_factory=list)
    rows: int = 0
    streams: dict[str, array[float]] = field(default_factory=dict)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Rows of each run; shape (runs,)."""
        return np.array([run.length for run in self.runs], dtype=np.int64)

    def at_calls(self, name: str) -> FloatArray:
        """One column at the irreversible calls of the runs, in order: the value of the turn that proposed each."""
        return at_rows(self.stream(name), self.lengths, [run.calls for run in self.runs])

    def stream(self, name: str) -> FloatArray:
        """One column, shape (rows,), all NaN for an unknown name. Shares memory: add no run while it is in use."""
        values = self.streams.get(name)
        return np.full(self.rows, math.nan) if not values else np.frombuffer(values, dtype=np.float64)

    def add(self, run: RunRow, rows: Iterable[Mapping[str, float]]) -> None:
        """Append one run."""
        self.runs.append(run)
        for row in rows:
            for name in row.keys() - self.streams.keys():
                self.streams[name] = _missing(self.rows)
            for name, column in self.streams.items():
                column.append(row.get(name, math.nan))
            self.rows += 1

    def extend(self, other: Columns) -> None:
        """Append the runs of another part."""
        self.runs += other.runs
        for name in sorted(self.streams.keys() | other.streams.keys()):
            column = self.streams.setdefault(name, _missing(self.rows))
            column.extend(other.streams.get(name, _missing(other.rows)))
        self.rows += other.rows


def read_columns(
    paths: Paths,
    read_run: _ReadRun,
    *,
    task_key: str = TASK,
    workers: int = 1,
    on_runs: Callable[[int], None] | None = None,
    on_refused: Refused | None = None,
) -> Columns:
    """Read recordings part by part; the result does not depend on `workers` (`parallel.in_order`).

    `paths`: files and folders, packed ones too; a run that lies in two files counts once. `read_run`: as `_ReadRun`; a
    function of a module or a partial of one, since it is sent to other processes. `task_key`: the metadata that names a
    run's task. `on_runs` is called with the number of runs of each part, `on_refused` with what is wrong with a file,
    whose rest is left out, or with a run; without it a damaged recording, a second copy of a run, or what `read_run`
    raises is raised (DataError).
    """
    found = Columns()
    work = partial(_columns_of_part, read_run, task_key)
    for part in over_parts(work, paths, workers=workers, on_refused=on_refused):
        found.extend(part)
        if on_runs is not None:
            on_runs(len(part.runs))
    return found


def columns_of(
    runs: Iterable[Run], read_run: _ReadRun, *, task_key: str = TASK, on_refused: Refused | None = None
) -> Columns:
    """Gather runs that were read already, as `read_columns` does."""
    found = Columns()
    for run in runs:
        decided = eligibility(run)
        try:
            read = read_run(run, decided) or RunRows(rows=())
        except DataError as error:
            refuse_to(on_refused, error)
            continue
        found.add(_row(run, decided, read, task_key), read.rows)
    return found


def recorded_rows(
    run: Run,
    eligibility: Eligibility,
    *,
    profile: Profile | None = None,
    streams: Sequence[str] | None = None,
    tool: str | None = None,
    scored: bool = False,
) -> RunRows:
    """Every step of the model of a run, eligible or not; with `streams`, only these.

    With a `profile` the recorded readings are fused, propagated and calibrated anew, as that profile would; without,
    the assessments are those recorded, and the tools that its monitor guarded by name are the irreversible ones. With a
    `tool` its calls are the ones, whatever their effect. `scored`: the rows hold `SCORE` alone, at the turns
    of calls: that of the first call, and no more than was recorded where no profile is given.
    """
    rows: list[Mapping[str, float]] = []
    calls: list[int] = []
    proposed, reported = False, False
    places: dict[str, int] = {}
    policy = (profile or Profile()).policy
    if profile is None and run.start is not None:
        policy = guarding_also(policy, run.start)
    for event, assessment, state in _assessed(run, profile, replayed=scored or profile is not None):
        step = event.step
        if is_model_step(event):
            places[text_key(step.step_id)] = len(rows)
            proposed |= any(policy.is_irreversible(call.name) for call in step.tool_calls)
            row = {} if scored else _step_streams(event, assessment, profile)
            rows.append(row if streams is None else {name: row[name] for name in streams if name in row})
            continue
        reported = True
        if is_irreversible(policy, step.tool_name, step.effect) if tool is None else step.tool_name == tool:
            call = step.tool_calls[0] if step.tool_calls else None
            turn = placed(state.turns, call, step.step_id)[1]
            place = places.get(turn.step, len(rows) - 1)
            calls.append(place)
            if scored and place >= 0 and not rows[place]:
                score = score_of(state, SCORE, call or ToolCall(name=step.tool_name or ""), step.step_id)
                most = 1.0 if profile is not None else assessment.propagated_confidence
                rows[place] = {} if score is None else {SCORE: min(score, most)}
    return RunRows(rows=rows, calls=tuple(calls), unreported=proposed and not reported)


def _step_streams(event: StepEvent, assessment: StepUncertainty, profile: Profile | None) -> dict[str, float]:
    """The streams of one step, those without a value left out, as the engine gives them to a calibration or a detector.

    All are in [0, 1], higher is better; the trajectory risk as 1/(1 + risk). A reading that bears the name of a derived
    stream never takes its place. `fused` and `propagated` exist only where the step was read, `unaided` where it was
    judged by a profile too.
    """
    streams = {str(r.source): r.value for r in event.readings if r.value is not None and r.source not in DERIVED}
    if assessment.was_read:
        streams |= {"fused": assessment.fused_confidence, "propagated": assessment.propagated_confidence}
        if profile is not None:
            unaided = _unaided(event, profile) if UncertaintySource.VERBALIZED in streams else streams["fused"]
            streams |= {} if unaided is None else {UNAIDED: unaided}
    if assessment.p_success is not None:
        streams["p_success"] = assessment.p_success
    risk = confidence_of_risk(assessment.trajectory_risk)
    return streams if risk is None else {**streams, "trajectory_risk": risk}


def _unaided(event: StepEvent, profile: Profile) -> float | None:
    seen = tally_of(event.readings)
    return unaided_of(fuse_step(profile.estimator, profile.propagator, seen.values, seen.semantic))


def at_rows(values: FloatArray, lengths: npt.NDArray[np.int64], rows: Sequence[Sequence[int]]) -> FloatArray:
    """The values at some rows of each run, counted from its start; NaN for row -1, which is before any."""
    starts = np.cumsum(lengths) - lengths
    at = np.array([-1 if row < 0 else int(start) + row for start, own in zip(starts, rows, strict=True) for row in own])
    return np.append(values, math.nan)[at.astype(np.intp)]


def looks_at_calls(calls: Sequence[Sequence[int]]) -> bool:
    """True if a detector for these runs looks at their irreversible calls alone: at least half of them have one.

    The steps that gather facts before a call say little of it, and their worst one hides what the call's own turn says.
    """
    return 2 * sum(bool(own) for own in calls) >= len(calls) > 0


def is_model_step(event: StepEvent) -> bool:
    """Return True for a step with a row: any step but a tool call."""
    return event.step.kind != "tool_call"


def task_of(run: Run, task_key: str = TASK) -> str | None:
    """The task that a run's metadata names; None where it names none."""
    return run.start.metadata.get(task_key) if run.start else None


def other_trials(runs: Iterable[RunRow]) -> Counter[str]:
    """By task, the excluded runs that take part in the draw of one run of each task: no label could include them."""
    out = ("", NO_OUTCOME, SUPERSEDED)
    return Counter(run.task for run in runs if run.task is not None and run.eligibility.reason not in out)


def _columns_of_part(read_run: _ReadRun, task_key: str, runs: Iterator[Run], refused: Refused | None) -> Columns:
    return columns_of(runs, read_run, task_key=task_key, on_refused=refused)


def _assessed(
    run: Run, profile: Profile | None, *, replayed: bool
) -> Iterator[tuple[StepEvent, StepUncertainty, SessionState]]:
    """Each step, what is concluded or, without a profile, was, and the state before it: an empty one if not replayed,
    the default profile's where none is given."""
    state, judge = SessionState(session_id=run.session_id), profile or Profile()
    for event in run.steps:
        before, assessment = state, event.assessment
        if replayed:
            state, assessment = advance(judge, state, event.step, event.readings, event.trajectory)
        yield event, event.assessment if profile is None else assessment, before


def _row(run: Run, decided: Eligibility, read: RunRows, task_key: str) -> RunRow:
    start = run.start
    return RunRow(
        session_id=run.session_id,
        path=run.path,
        task=task_of(run, task_key),
        outcome=run.outcome,
        eligibility=decided,
        length=len(read.rows),
        calls=read.calls,
        unreported=read.unreported,
        started_s=None if start is None else start.time_s,
        made_with=run.made_with,
        watched=any(event.trajectory is not None for event in run.steps),
        sensed=sensed_in(run),
    )


def _missing(rows: int) -> array[float]:
    return array("d", [math.nan]) * rows
