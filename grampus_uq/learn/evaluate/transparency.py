"""The transparency table: every stream raw and recalibrated, the base rate, and the AUQ scalars, on one footing.

A stream is scored on the runs for which it has a forecast at every step; the others are counted. Recalibration is by
cross-fitted Platt maps: no run is calibrated by a map that saw it. Ranks and binned calibration read one scalar a run
(the front-weighted mean, AUQ's last, mean and min, or the forecast of the turn that proposed the first irreversible
call, which is what a decision on that call can read); those scalars have no proper score of the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from grampus_uq.learn.evaluate.censoring import Censoring
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns
from grampus_uq.learn.fit.fit_calibration import apply_fusion, cross_fit
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.halves import split_halves
from grampus_uq.stats.ranking import auprc, aurc, auroc
from grampus_uq.stats.reliability import decompose, trajectory_brier, trajectory_ece
from grampus_uq.stats.scoring import BRIER, LOG, ProperScore, beta_score
from grampus_uq.stats.trajectory_scores import (
    ForecastTraces,
    last_forecast,
    mean_forecast,
    min_forecast,
    step_weights,
    tps_exact,
    weighted_forecast,
)

BASE_RATE = "base rate"
SCHEDULE = "linear-front"
"""The weights of a trajectory's steps, as reports name them: `trajectory_scores.linear_front`."""
_AT_THE_CALL = "at the call"
_STREAM = "forecast"
SCORES: Mapping[str, ProperScore] = MappingProxyType(
    {"tps_log": LOG, "tps_brier": BRIER, "tps_beta24": beta_score(a=2, b=4)}
)
AUQ = MappingProxyType({"last": last_forecast, "mean": mean_forecast, "min": min_forecast})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredStream:
    """One stream on the runs that it can be scored on.

    kept: shape (n,), those runs. target: shape (kept,), their outcome, or the q of a censored one. complete: shape
    (kept,), outcome observed. raw, platt: their forecasts; platt is None where too few runs can be cross-fitted.
    missing: runs without a forecast at some step. unresolved: censored runs left out because censoring says so.
    """

    name: str
    kept: BoolArray
    target: FloatArray
    complete: BoolArray
    raw: ForecastTraces
    platt: ForecastTraces | None
    missing: int
    unresolved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row. runs: scored; known: those with an observed outcome, which the metrics of one number a run read;
    missing: skipped. Scores: at most 0, higher is better. auroc, auprc: failure-oriented, higher is better; aurc,
    t_ece, t_brier: lower is better. reliability (lower is better), resolution (higher), uncertainty: of the log
    score, over ten bins. None: undefined, or not a score of the process.
    """

    stream: str
    calibrated: bool
    scalar: str
    runs: int
    known: int
    missing: int
    tps_log: float | None = None
    tps_brier: float | None = None
    tps_beta24: float | None = None
    reliability: float | None = None
    resolution: float | None = None
    uncertainty: float | None = None
    auroc: float | None = None
    auprc: float | None = None
    aurc: float | None = None
    t_ece: float | None = None
    t_brier: float | None = None


def scored_streams(runs: ForecastRuns, censoring: Censoring) -> list[ScoredStream]:
    """Take each stream on the runs that it can be scored on, and recalibrate it."""
    target = censoring.targets(runs)
    usable = ~np.isnan(target)
    ids = np.array(runs.ids, dtype=object)
    found = []
    for name, traces in runs.streams.items():
        kept = usable & ~traces.missing
        raw, complete = traces.select(kept), ~runs.censored[kept]
        platt = _cross_fitted(raw, target[kept], complete, list(ids[kept]))
        found.append(
            ScoredStream(
                name=name,
                kept=kept,
                target=target[kept],
                complete=complete,
                raw=raw,
                platt=platt,
                missing=int((usable & traces.missing).sum()),
                unresolved=int((~usable).sum()),
            )
        )
    return found


def _cross_fitted(
    traces: ForecastTraces, target: FloatArray, complete: BoolArray, ids: list[str]
) -> ForecastTraces | None:
    """Calibrate each half by the other; censored runs, which neither map saw, by the mean of the two."""
    outcomes, names = target[complete], [name for name, known in zip(ids, complete, strict=True) if known]
    second = split_halves(outcomes, names)
    if not second.any() or second.all():
        return None
    fitted = cross_fit({_STREAM: traces.select(complete)}, outcomes, names)
    mapped = np.mean([apply_fusion(one, {_STREAM: traces.forecasts}) for one in fitted.fusions], axis=0)
    mapped[np.repeat(complete, traces.lengths)] = fitted.traces.forecasts
    return traces.with_forecasts(mapped)


def table_rows(streams: list[ScoredStream]) -> Iterator[TableRow]:
    """All rows: each stream raw and recalibrated, the base rate of its runs, and the AUQ scalars of both."""
    scored: set[bytes] = set()
    for stream in streams:
        yield _row(stream, stream.raw, calibrated=False)
        if stream.platt is not None:
            yield _row(stream, stream.platt, calibrated=True)
        if stream.kept.tobytes() not in scored:  # streams on the same runs share their base rate
            scored.add(stream.kept.tobytes())
            yield _row(stream, base_rate(stream), calibrated=False, scalar=BASE_RATE)
    for stream in streams:
        for calibrated, traces in ((False, stream.raw), (True, stream.platt)):
            for name, scalar in AUQ.items():
                if traces is not None:
                    yield TableRow(
                        stream=stream.name,
                        calibrated=calibrated,
                        scalar=name,
                        runs=int(stream.complete.sum()),
                        known=int(stream.complete.sum()),
                        missing=stream.missing,
                        **_scalar_metrics(stream, scalar(traces)),
                    )


def call_rows(runs: ForecastRuns) -> list[TableRow]:
    """Each stream at the turn that proposes a run's first irreversible call, the best first; none without such calls.

    Of the runs with an observed outcome and such a call those count whose stream has a value there, whatever it lacks
    at other steps.
    """
    asked = runs.asked & ~runs.censored
    rows = []
    for name in runs.streams:
        p = runs.at_the_call(name)[asked]
        there = ~np.isnan(p)
        if there.any():
            n = int(there.sum())
            metrics = _ranks(p[there], runs.outcomes[asked][there])
            missing = len(p) - n
            rows.append(
                TableRow(
                    stream=name, calibrated=False, scalar=_AT_THE_CALL, runs=n, known=n, missing=missing, **metrics
                )
            )
    return sorted(rows, key=lambda row: -1.0 if row.auroc is None else row.auroc, reverse=True)


def base_rate(stream: ScoredStream) -> ForecastTraces:
    """Forecast the success rate of the stream's own runs at every step: what knowing nothing else scores."""
    rate = float(stream.target.mean()) if len(stream.target) else float("nan")
    return stream.raw.with_forecasts(np.full_like(stream.raw.forecasts, rate))


def _row(
    stream: ScoredStream, traces: ForecastTraces, *, calibrated: bool, scalar: str = "front-weighted mean"
) -> TableRow:
    scores: dict[str, float] = {}
    if len(traces):
        for name, score in SCORES.items():
            scores[name] = float(tps_exact(traces, stream.target, score=score).mean())
        weights = step_weights(traces)
        parts = decompose(traces.forecasts, traces.spread(stream.target), LOG, bins=10, weights=weights)
        scores |= {name: getattr(parts, name) for name in ("reliability", "resolution", "uncertainty")}
    return TableRow(
        stream=stream.name,
        calibrated=calibrated,
        scalar=scalar,
        runs=len(traces),
        known=int(stream.complete.sum()),
        missing=stream.missing,
        **scores,
        **_scalar_metrics(stream, weighted_forecast(traces)),
    )


def _scalar_metrics(stream: ScoredStream, scalar: FloatArray) -> dict[str, float | None]:
    """Ranks and calibration of one scalar a run, on the runs whose outcome was observed."""
    return _ranks(scalar[stream.complete], stream.target[stream.complete])


def _ranks(p: FloatArray, outcomes: FloatArray) -> dict[str, float | None]:
    return {
        "auroc": auroc(1.0 - p, 1.0 - outcomes),
        "auprc": auprc(1.0 - p, 1.0 - outcomes) if (outcomes == 0.0).any() else None,
        "aurc": aurc(p, outcomes),
        "t_ece": trajectory_ece(p, outcomes),
        "t_brier": trajectory_brier(p, outcomes),
    }
