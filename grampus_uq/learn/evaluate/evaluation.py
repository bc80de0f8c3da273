"""One evaluation of a set of runs as plain values: audit, assumptions, table and differences."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.core.state import Profile
from grampus_uq.core.worst_case import UNAIDED
from grampus_uq.errors import DataError
from grampus_uq.learn.columns import RunRow, RunRows, is_model_step, read_columns, recorded_rows
from grampus_uq.learn.eligibility import NO_OUTCOME, SELECTED, SUPERSEDED, Eligibility
from grampus_uq.learn.evaluate.censoring import ASSUMPTIONS, Censoring
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns, StopRow, Use, stop_rows
from grampus_uq.learn.evaluate.transparency import (
    BASE_RATE,
    SCHEDULE,
    ScoredStream,
    TableRow,
    base_rate,
    call_rows,
    scored_streams,
    table_rows,
)
from grampus_uq.learn.evaluate.verdict import EvaluationVerdict, judge
from grampus_uq.recording.copies import distinct_ids
from grampus_uq.recording.runs import Paths, Refused, Run
from grampus_uq.records.events import ObservationEvent, StepEvent
from grampus_uq.records.vocabulary import TASK, StopReason, quantity
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.bootstrap import RowStatistic, mean_rows, paired_bootstrap
from grampus_uq.stats.calibration_watch import WatchStatus
from grampus_uq.stats.ranking import auroc_rows
from grampus_uq.stats.trajectory_scores import ForecastTraces, tps_exact, weighted_forecast

FEATURES = ("log steps so far", "share of tool calls", "share of failed results", "log agent tokens a step")
"""Facts of a prefix that no confidence stream enters: what `plug_in` predicts from."""

_WHY = {
    SUPERSEDED: "its session id was used again",
    NO_OUTCOME: "not labelled",
    "human_decided": "a human decided on a step",
    "stopped_at_call": "the monitor stopped a call",
    "stopped_by_monitor": "the monitor stopped a step",
    "no_beginning": "let through at random, and its beginning is missing",
}
SELECTED_WHYS = frozenset(_WHY[reason] for reason in SELECTED)
"""Why runs are left out that somebody stopped or decided on: no label makes these worth scoring."""


def read_recordings(
    paths: Paths,
    *,
    profile: Profile | None = None,
    task_key: str = TASK,
    workers: int = 1,
    on_runs: Callable[[int], None] | None = None,
    on_refused: Refused | None = None,
) -> ForecastRuns:
    """Read every run under files and folders: the runs that may be scored, and the audit of all.

    Holds eight bytes for every forecast and every fact of a step, and the ids. The result is the same with any number
    of workers; the other arguments as `read_columns`.

    `profile` judges the runs anew from their recorded readings, so that `fused`, `propagated` and `p_success` are its
    own; its policy says which calls are irreversible. None: as they were recorded.
    """
    read_run = partial(_rows, profile)
    columns = read_columns(paths, read_run, task_key=task_key, workers=workers, on_runs=on_runs, on_refused=on_refused)
    uses = [_use(run) for run in columns.runs]
    scored = [run for run, (use, _) in zip(columns.runs, uses, strict=True) if use != "left out"]
    lengths = np.array([run.length for run in scored], dtype=np.int64)
    names = sorted(columns.streams.keys() - {*FEATURES, UNAIDED})
    ids = distinct_ids([run.session_id for run in scored])
    return ForecastRuns(
        ids=ids,
        outcomes=np.array(
            [math.nan if run.eligibility.reason == StopReason.MAX_STEPS else float(run.success) for run in scored],
            dtype=np.float64,
        ),
        streams={name: ForecastTraces(forecasts=columns.stream(name), lengths=lengths) for name in names},
        features=np.column_stack([columns.stream(name) for name in FEATURES]),
        asks=np.array([-1 if run.first_call is None else run.first_call for run in scored], dtype=np.int64),
        audit=stop_rows(_audited(run, use, why) for run, (use, why) in zip(columns.runs, uses, strict=True)),
        tasks=tuple(run.task or f"run {name}" for run, name in zip(scored, ids, strict=True)),
    )


def _use(run: RunRow) -> tuple[Use, str]:
    """Use of a run, and why."""
    reason = run.eligibility.reason
    if reason and reason != StopReason.MAX_STEPS:
        return "left out", _WHY.get(reason, "informative stop")
    if not run.length:
        return "left out", "no step of the model"
    if reason:
        return "censored", "reached its budget: administrative censoring"
    if run.outcome is not None and run.outcome.stop_reason is StopReason.MAX_STEPS:
        return "scored", "reached its budget; labelled by hand"
    return "scored", "outcome observed"


def _audited(run: RunRow, use: Use, why: str) -> tuple[str, Use, str, bool | None]:
    stop = run.outcome.stop_reason.value if run.outcome else "unfinished"
    return stop, use, why, run.outcome.success if run.outcome and use != "censored" else None


def _rows(profile: Profile | None, run: Run, eligibility: Eligibility) -> RunRows | None:
    """The streams and the prefix facts of each step of the model; None for a run that is not scored."""
    if not eligibility.usable and eligibility.reason != StopReason.MAX_STEPS:
        return None
    rows = []
    belief = math.nan  # the propagated confidence stays where it is on a step without a reading
    found = recorded_rows(run, eligibility, profile=profile)
    for streams, facts in zip(found.rows, _prefix_facts(run), strict=True):
        belief = streams.get("propagated", belief)
        rows.append({**streams, "propagated": belief, **dict(zip(FEATURES, facts, strict=True))})
    return RunRows(rows=rows, calls=found.calls)


def _prefix_facts(run: Run) -> Iterator[tuple[float, ...]]:
    """The facts of `FEATURES` at each step of the model."""
    steps = calls = results = failed = tokens = 0
    kept = {id(event) for event in run.steps}
    for event in run.events:
        if isinstance(event, ObservationEvent) and event.kind == "tool_result":
            results += 1
            failed += event.is_error
        elif isinstance(event, StepEvent) and id(event) in kept:
            steps += 1
            tokens += event.step.input_tokens + event.step.output_tokens
            if is_model_step(event):
                calls += len(event.step.tool_calls)
                failed_share = failed / results if results else 0.0
                yield math.log(steps), calls / steps, failed_share, math.log1p(tokens / steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """`second` minus `first` in one metric ("tps_log", "auroc"; of both, more is better), over `runs` shared runs."""

    first: str
    second: str
    metric: str
    runs: int
    delta: float | None
    low: float | None
    high: float | None
    z: float | None
    undefined_draws: int


def difference_rows(
    streams: list[ScoredStream], tasks: Sequence[str], *, rng: np.random.Generator, draws: int
) -> Iterator[DifferenceRow]:
    """Compare: each stream recalibrated with itself raw and with its base rate; the best one with every other.

    `streams` come from `scored_streams` of runs with these tasks; each comparison takes `draws` resamples of tasks.
    """
    best = _best(streams)
    trials = np.array(tasks, dtype=object)
    compare = partial(_compare, rng=rng, draws=draws)
    for stream in streams:
        if stream.platt is None:
            continue
        named, known = f"{stream.name}, recalibrated", (stream.target, stream.complete, trials[stream.kept])
        yield from compare(*known, (stream.name, stream.raw), (named, stream.platt))
        yield from compare(*known, (BASE_RATE, base_rate(stream)), (named, stream.platt))
        if best is not None and best is not stream and best.platt is not None:
            both = stream.kept & best.kept
            if both.any():
                mine, its = both[stream.kept], both[best.kept]
                known = (stream.target[mine], stream.complete[mine], trials[both])
                other = (f"{best.name}, recalibrated", best.platt.select(its))
                yield from compare(*known, (named, stream.platt.select(mine)), other)


def _best(streams: list[ScoredStream]) -> ScoredStream | None:
    """The recalibrated stream of the highest mean log score over its base rate's: runs differ between streams."""

    def gain(stream: ScoredStream) -> float:
        if stream.platt is None:
            return -np.inf
        gained = tps_exact(stream.platt, stream.target) - tps_exact(base_rate(stream), stream.target)
        return float(gained.mean())

    return max(streams, key=gain, default=None)


_Named = tuple[str, ForecastTraces]


def _compare(
    target: FloatArray,
    complete: BoolArray,
    tasks: npt.NDArray[np.object_],
    one: _Named,
    other: _Named,
    *,
    rng: np.random.Generator,
    draws: int,
) -> Iterator[DifferenceRow]:
    first, both = one[0], (one[1], other[1])
    failed = 1.0 - target[complete]
    scored = [mean_rows(tps_exact(traces, target)) for traces in both]
    metrics: dict[str, tuple[BoolArray, list[RowStatistic]]] = {"tps_log": (np.ones_like(complete), scored)}
    if first != BASE_RATE and len(failed):  # a constant has no rank
        ranked: list[RowStatistic] = [
            partial(auroc_rows, 1.0 - weighted_forecast(traces)[complete], failed) for traces in both
        ]
        metrics["auroc"] = (complete, ranked)
    for metric, (among, (mine, its)) in metrics.items():
        runs = int(among.sum())
        got = paired_bootstrap(mine, its, runs, rng=rng, draws=draws, tasks=tasks[among].tolist())
        yield DifferenceRow(
            first=first,
            second=other[0],
            metric=metric,
            runs=runs,
            delta=got.estimate,
            low=got.low,
            high=got.high,
            z=got.z,
            undefined_draws=got.undefined_draws,
        )


_FEW_RUNS = 100
"""Below this many scored runs of different tasks the report says that its numbers are rough."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """The results. `streams` hold the forecasts behind the rows, for the charts; they do not go into JSON."""

    audit: tuple[StopRow, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    censoring: str
    censored_runs: int
    draws: int
    table: tuple[TableRow, ...]
    differences: tuple[DifferenceRow, ...]
    streams: tuple[ScoredStream, ...]
    verdict: EvaluationVerdict
    watch: tuple[WatchStatus, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: everything that the report prints, without forecasts or ids."""
        rows: dict[str, list[Mapping[str, Any]]] = {
            name: [dataclasses.asdict(row) for row in getattr(self, name)] for name in ("audit", "table", "differences")
        }
        return {
            "verdict": dataclasses.asdict(self.verdict),
            "censoring": self.censoring,
            "censored_runs": self.censored_runs,
            "schedule": SCHEDULE,
            "draws": self.draws,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "watch": [status.to_json() for status in self.watch],
            **rows,
        }


def evaluate(
    runs: ForecastRuns,
    *,
    rng: np.random.Generator,
    censoring: Censoring | None = None,
    draws: int = 2000,
    watch: Sequence[WatchStatus] = (),
) -> Evaluation:
    """Judge every confidence stream of a set of runs, as `read_recordings` returns them.

    The same state of `rng`, source of the bootstrap, gives the same report. `censoring` scores runs at their step
    budget; None leaves them out. `draws` are the resamples of each paired bootstrap, at least 2. An alarm of `watch`,
    the watch on a deployed calibration, becomes the first warning. Raises `DataError` for no run that may be scored, or
    none with a forecast.
    """
    how = censoring or Censoring()
    streams = scored_streams(runs, how)
    if not any(len(stream.raw) for stream in streams):
        raise DataError(_nothing(runs))
    return Evaluation(
        audit=runs.audit,
        assumptions=(*(ASSUMPTIONS[how.mode] if runs.censored.any() else ()), *how.notes),
        warnings=(*(s.sentence for s in watch if s.alarmed), *_warnings(runs, streams, how)),
        censoring=how.mode,
        censored_runs=int(runs.censored.sum()),
        draws=draws,
        table=(*call_rows(runs), *table_rows(streams)),
        differences=tuple(
            difference_rows([s for s in streams if len(s.raw)], runs.tasks or runs.ids, rng=rng, draws=draws)
        ),
        streams=tuple(streams),
        verdict=judge(runs, streams),
        watch=tuple(watch),
    )


def _warnings(runs: ForecastRuns, streams: list[ScoredStream], censoring: Censoring) -> list[str]:
    found = []
    scored = ~np.isnan(censoring.targets(runs))
    if (units := len(set(compress(runs.tasks or runs.ids, scored)))) < _FEW_RUNS:
        what = "runs" if units == scored.sum() else "tasks"
        found.append(f"Only {units} {what} are scored: intervals are rough, and T-ECE is biased upwards on few runs.")
    if runs.tasks is not None and (tasks := len(set(runs.tasks))) < len(runs):
        found.append(
            f"The {len(runs)} runs are trials of {tasks} tasks: the verdict is about one run of each, drawn at random, "
            "and intervals of differences draw whole tasks."
        )
    known = runs.outcomes[~runs.censored]
    if len(known) and (known == known[0]).all():
        what = "succeeded" if known[0] else "failed"
        found.append(f"Every run with a known outcome {what}: nothing can be ranked, and recalibration is flat.")
    left_out = sum(row.runs for row in runs.audit if row.use == "left out")
    total = sum(row.runs for row in runs.audit)
    if 4 * left_out > total:
        found.append(f"{left_out} of {total} runs are left out: the rest may not stand for all.")
    faults: dict[str, list[str]] = {}
    for stream in streams:
        if stream.missing:
            skipped = f"{quantity(stream.missing, 'run')} skipped, a forecast is missing at some step."
            faults.setdefault(skipped, []).append(stream.name)
        if len(stream.raw) and stream.platt is None:
            faults.setdefault("too few runs for cross-fitted recalibration.", []).append(stream.name)
    found.extend(f"{', '.join(names)}: {fault}" for fault, names in faults.items())
    if streams and streams[0].unresolved and censoring.mode == "exact":
        found.append(f"{streams[0].unresolved} censored runs have no q and are left out.")
    return found


def _nothing(runs: ForecastRuns) -> str:
    """The error text for runs of which no stream can be scored: what they lack, and the way out."""
    ends = "; ".join(f"{row.runs} {row.stop_reason}: {row.why}" for row in runs.audit) or "no run was found"
    if len(runs.ids) and runs.censored.all():
        return (
            f"nothing can be scored ({ends}). Runs that reached their step budget are scored with --censoring simple "
            "(as failures) or exact, or once they are labelled: grampus-uq runs label FOLDER --from FILE.csv."
        )
    if len(runs.ids):
        return (
            f"nothing can be scored ({ends}). {len(runs.ids)} runs may be, and none of their steps has a reading. "
            "Watch runs with a monitor; import logs anew, so that what the agent did is counted (grampus-uq runs "
            "import; --embedder adds what TRACER reads); or pass a fitted profile that reads what they have."
        )
    whys = {row.why for row in runs.audit}
    ways_out = ["Label runs with: grampus-uq runs label FOLDER --from FILE.csv."] if whys - SELECTED_WHYS else []
    if whys & SELECTED_WHYS:
        ways_out.append(
            "A run that was held or decided on does not show what the agent alone would have done, whatever its label: "
            "record with UncertaintyMonitor(advisory=True), which holds nothing."
        )
    return " ".join([f"nothing can be scored ({ends}).", *ways_out])
