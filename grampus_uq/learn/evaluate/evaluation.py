"""One evaluation of a set of runs as plain values: audit, assumptions, table and differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from grampus_uq.errors import DataError
from grampus_uq.learn.evaluate.censoring import ASSUMPTIONS, Censoring
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns, StopRow
from grampus_uq.learn.evaluate.from_recordings import SELECTED_WHYS
from grampus_uq.learn.evaluate.transparency import (
    BASE_RATE,
    ScoredStream,
    TableRow,
    base_rate,
    call_rows,
    scored_streams,
    table_rows,
    tps_of,
)
from grampus_uq.learn.evaluate.verdict import EvaluationVerdict, judge
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.bootstrap import BootstrapInterval, mean_rows, paired_bootstrap
from grampus_uq.stats.calibration_watch import WatchStatus
from grampus_uq.stats.ranking import auroc_rows
from grampus_uq.stats.scoring import LOG
from grampus_uq.stats.trajectory_scores import ForecastTraces, weighted_forecast
from grampus_uq.stats.weight_schedules import LINEAR_FRONT


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
    streams: list[ScoredStream],
    *,
    rng: np.random.Generator,
    draws: int = 2000,
) -> Iterator[DifferenceRow]:
    """Compare: each stream recalibrated with itself raw and with its base rate; the best one with every other.

    Args:
        streams: as `scored_streams` returns them.
        rng: source of the resamples.
        draws: resamples a comparison.
    """
    best = _best(streams)
    for stream in streams:
        if stream.platt is None:
            continue
        named = f"{stream.name}, recalibrated"
        compare = partial(_compare, stream.target, stream.complete, rng=rng, draws=draws)
        yield from compare(stream.name, stream.raw, named, stream.platt)
        yield from compare(BASE_RATE, base_rate(stream), named, stream.platt)
        if best is not None and best is not stream and best.platt is not None:
            both = stream.kept & best.kept
            if both.any():
                mine, its = both[stream.kept], both[best.kept]
                yield from _compare(
                    stream.target[mine],
                    stream.complete[mine],
                    named,
                    stream.platt.select(mine),
                    f"{best.name}, recalibrated",
                    best.platt.select(its),
                    rng=rng,
                    draws=draws,
                )


def _best(streams: list[ScoredStream]) -> ScoredStream | None:
    """The recalibrated stream of the highest mean log score over its base rate's: runs differ between streams."""

    def gain(stream: ScoredStream) -> float:
        if stream.platt is None:
            return -np.inf
        gained = tps_of(stream.platt, stream.target, LOG) - tps_of(base_rate(stream), stream.target, LOG)
        return float(gained.mean())

    return max(streams, key=gain, default=None)


def _compare(
    target: FloatArray,
    complete: BoolArray,
    first: str,
    one: ForecastTraces,
    second: str,
    other: ForecastTraces,
    *,
    rng: np.random.Generator,
    draws: int,
) -> Iterator[DifferenceRow]:
    scores = [mean_rows(tps_of(traces, target, LOG)) for traces in (one, other)]
    got = paired_bootstrap(scores[0], scores[1], len(target), rng=rng, draws=draws)
    yield _row(first, second, "tps_log", len(target), got)
    failed = 1.0 - target[complete]
    if first == BASE_RATE or len(failed) == 0:
        return  # a constant has no rank
    ranks = [partial(auroc_rows, 1.0 - weighted_forecast(traces)[complete], failed) for traces in (one, other)]
    got = paired_bootstrap(ranks[0], ranks[1], len(failed), rng=rng, draws=draws)
    yield _row(first, second, "auroc", len(failed), got)


def _row(first: str, second: str, metric: str, runs: int, got: BootstrapInterval) -> DifferenceRow:
    return DifferenceRow(
        first=first,
        second=second,
        metric=metric,
        runs=runs,
        delta=got.estimate,
        low=got.low,
        high=got.high,
        z=got.z,
        undefined_draws=got.undefined_draws,
    )


_FEW_RUNS = 100
"""Below this many scored runs the report says that its numbers are rough."""


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
            "schedule": LINEAR_FRONT.name,
            "draws": self.draws,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "watch": [
                {**dataclasses.asdict(status), "variant": status.variant.value, "sentence": status.sentence}
                for status in self.watch
            ],
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
    """Judge every confidence stream of a set of runs.

    Args:
        runs: as `read_recordings` returns them.
        rng: source of the bootstrap; the same state gives the same report.
        censoring: how runs at their step budget are scored; None leaves them out.
        draws: resamples of each paired bootstrap.
        watch: how the watch on a deployed calibration stands; an alarm of it becomes the first warning.

    Returns:
        `Evaluation`.

    Raises:
        DataError: no run that may be scored, or none with a forecast.
        ConfigurationError: draws below 2.
    """
    how = censoring or Censoring()
    streams = scored_streams(runs, how)
    if not any(len(stream.raw) for stream in streams):
        raise DataError(_nothing(runs))
    return Evaluation(
        audit=runs.audit,
        assumptions=(*ASSUMPTIONS[how.mode], *how.notes),
        warnings=(*(s.sentence for s in watch if s.alarmed), *_warnings(runs, streams, how)),
        censoring=how.mode,
        censored_runs=int(runs.censored.sum()),
        draws=draws,
        table=(*call_rows(runs), *table_rows(streams)),
        differences=tuple(difference_rows([s for s in streams if len(s.raw)], rng=rng, draws=draws)),
        streams=tuple(streams),
        verdict=judge(runs, streams),
        watch=tuple(watch),
    )


def _warnings(runs: ForecastRuns, streams: list[ScoredStream], censoring: Censoring) -> list[str]:
    found = []
    scored = int((~np.isnan(censoring.targets(runs))).sum())
    if scored < _FEW_RUNS:
        found.append(f"Only {scored} runs are scored: intervals are wide, and T-ECE is biased upwards on few runs.")
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
            skipped = f"{stream.missing} runs skipped, a forecast is missing at some step."
            faults.setdefault(skipped, []).append(stream.name)
        if len(stream.raw) and stream.platt is None:
            faults.setdefault("too few runs for cross-fitted recalibration.", []).append(stream.name)
        elif stream.flat:
            flat = "recalibration found no usable signal and answers the base rate."
            faults.setdefault(flat, []).append(stream.name)
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
            "(as failures) or exact, or once they are labelled: grampus-uq runs label."
        )
    if len(runs.ids):
        return (
            f"nothing can be scored ({ends}). {len(runs.ids)} runs may be, and none of their steps has a reading. "
            "Watch runs with a monitor; import logs anew, so that what the agent did is counted (grampus-uq runs "
            "import; --embedder adds what TRACER reads); or pass a fitted profile that reads what they have."
        )
    whys = {row.why for row in runs.audit}
    ways_out = ["Label runs with: grampus-uq runs label."] if not whys or whys - SELECTED_WHYS else []
    if whys & SELECTED_WHYS:
        ways_out.append(
            "A run that was held or decided on does not show what the agent alone would have done, whatever its label: "
            "record with UncertaintyMonitor(advisory=True), which holds nothing."
        )
    return f"nothing can be scored ({ends}). {' '.join(ways_out)}"
