"""Trajectory Proper Scores of real confidence streams, raw and recalibrated, beside what rank metrics say of them.

    python tests/benchmarks/proper_scores.py gsm8k.csv.gz hotpotqa.csv.gz --json

A FILE is a table of step-wise success probabilities: columns `uq_problem_idx`, `num_steps` (from 1),
`judge_probability`, `solved`. The rows are told apart by `panel`:

- `calibration`: the two cross-fitted Platt maps (App. D).
- `transparency`: one a stream, as App. F of the paper prints them. `auq_*` are scalars: no proper score of a trace
  exists for them. `delta_*_z` compare the recalibrated stream with the raw one, in paired bootstrap standard errors.
- `fixed_rank` (App. E): the scalar that rank metrics read is held fixed, only the probabilities are transformed.
- `artificial_censoring` (App. I): outcomes hidden at a stated rate, length-stratified, on the recalibrated stream.
- `speed`: what scoring and resampling cost.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.fit.fit_calibration import cross_fit
from grampus_uq.stats.bootstrap import BootstrapInterval, mean_rows, paired_bootstrap
from grampus_uq.stats.fusion import LogisticFusion
from grampus_uq.stats.ranking import auprc, aurc, auroc, auroc_rows
from grampus_uq.stats.reliability import trajectory_brier, trajectory_ece
from grampus_uq.stats.scoring import BRIER, LOG, beta_score
from grampus_uq.stats.trajectory_scores import (
    ForecastTraces,
    last_forecast,
    mean_forecast,
    min_forecast,
    tps,
    weighted_forecast,
)
from tests.benchmarks._report import emit, existing, positive, usage_errors
from tests.benchmarks.censored_scores import artificial_censoring, tps_simple, truncated
from tests.benchmarks.schedules import SCHEDULES
from tests.benchmarks.score_tables import read_score_table

Row = dict[str, Any]
SCORES = {"tps_log": LOG, "tps_brier": BRIER, "tps_beta24": beta_score(a=2, b=4)}
NO_DIFFERENCE: Row = {"delta_tps_z": None, "delta_auroc_z": None}
CENSORING_RATES = (0.2, 0.4, 0.6)
PRINTED_RATE = 0.4


def load(path: Path) -> tuple[ForecastTraces, np.ndarray, list[str]]:
    """Read a table; trajectories in order of first appearance, steps by number. Returns traces, outcomes, ids."""
    table = read_score_table(path)
    return ForecastTraces.of(table.scores), np.array(table.solved), table.ids


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=existing, metavar="FILE")
    parser.add_argument("--draws", type=positive, default=2000, help="paired bootstrap draws (default 2000)")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    rows: list[Row] = []
    with usage_errors(parser):
        for path in args.files:
            rows.extend(dataset_rows(path, args.draws, np.random.default_rng(args.seed)))
    rows.extend(speed_rows(np.random.default_rng(args.seed)))
    if args.json:
        emit("proper_scores", rows, as_json=True)
        return
    for panel in dict.fromkeys(row["panel"] for row in rows):
        emit(f"proper_scores: {panel}", [row for row in rows if row["panel"] == panel], as_json=False)


def dataset_rows(path: Path, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """All rows of one table."""
    traces, outcomes, ids = load(path)
    usable = ~traces.missing
    skipped = int((~usable).sum())
    traces, outcomes = traces.select(usable), outcomes[usable]
    ids = [name for name, kept in zip(ids, usable, strict=True) if kept]
    dataset = path.name.removesuffix(".gz").removesuffix(".csv")
    try:
        calibrated = cross_fit({"forecast": traces}, outcomes, ids)
    except ConfigurationError as error:
        raise DataError(f"too few runs to recalibrate either half on the other: {error}", path=str(path)) from error
    base = traces.with_forecasts(np.full_like(traces.forecasts, outcomes.mean()))
    common = {"dataset": dataset, "trajectories": len(traces), "skipped": skipped}
    for half, fitted in zip("AB", calibrated.fusions, strict=True):
        yield {
            "panel": "calibration",
            **common,
            "fitted_on": half,
            "flat": fitted.flat,
            "kind": "platt",
            **_platt(fitted),
        }
    for row in transparency(traces, calibrated.traces, base, outcomes, draws, rng):
        yield {"panel": "transparency", **common, **row}
    for row in fixed_rank(traces, calibrated.traces, outcomes):
        yield {"panel": "fixed_rank", **common, **row}
    for row in censoring(calibrated.traces, outcomes, rng):
        yield {"panel": "artificial_censoring", **common, **row}


def _platt(fitted: LogisticFusion) -> Row:
    """The fusion of one stream in the symbols of Platt scaling."""
    [reading] = fitted.readings.values()
    return {"mean": reading.mean, "sd": reading.sd, "intercept": fitted.intercept, "slope": reading.slope}


def transparency(
    raw: ForecastTraces,
    platt: ForecastTraces,
    base: ForecastTraces,
    outcomes: np.ndarray,
    draws: int,
    rng: np.random.Generator,
) -> Iterator[Row]:
    """App. F: streams with their proper scores, AUQ scalars without."""
    deltas = differences(raw, platt, outcomes, draws, rng)
    yield stream_row("judge_probability", False, raw, outcomes)
    yield stream_row("judge_probability", True, platt, outcomes) | deltas
    yield stream_row("base_rate", False, base, outcomes)
    for name, scalar in (("auq_last", last_forecast), ("auq_mean", mean_forecast), ("auq_min", min_forecast)):
        for calibrated, traces in ((False, raw), (True, platt)):
            metrics = scalar_metrics(scalar(traces), outcomes)
            yield {"stream": name, "calibrated": calibrated, **dict.fromkeys(SCORES), **metrics, **NO_DIFFERENCE}


def stream_row(stream: str, calibrated: bool, traces: ForecastTraces, outcomes: np.ndarray) -> Row:
    scores = {name: float(tps(traces, outcomes, score=score).mean()) for name, score in SCORES.items()}
    metrics = scalar_metrics(weighted_forecast(traces), outcomes)
    return {"stream": stream, "calibrated": calibrated, **scores, **metrics, **NO_DIFFERENCE}


def scalar_metrics(scalar: np.ndarray, outcomes: np.ndarray) -> Row:
    """Failure-oriented ranks (risk = 1 - scalar), calibration of the scalar."""
    return {
        "auroc": auroc(1.0 - scalar, ~outcomes),
        "auprc": auprc(1.0 - scalar, ~outcomes),
        "aurc": aurc(scalar, outcomes),
        "t_ece": trajectory_ece(scalar, outcomes),
        "t_brier": trajectory_brier(scalar, outcomes),
    }


def differences(
    raw: ForecastTraces, platt: ForecastTraces, outcomes: np.ndarray, draws: int, rng: np.random.Generator
) -> Row:
    """Recalibrated minus raw, on the same resamples of trajectories."""
    n = len(raw)
    score = paired_bootstrap(mean_rows(tps(raw, outcomes)), mean_rows(tps(platt, outcomes)), n, rng=rng, draws=draws)
    failed = (~outcomes).astype(np.float64)
    ranks = paired_bootstrap(
        partial(auroc_rows, 1.0 - weighted_forecast(raw), failed),
        partial(auroc_rows, 1.0 - weighted_forecast(platt), failed),
        n,
        rng=rng,
        draws=draws,
    )
    return {**_difference("tps", score), **_difference("auroc", ranks)}


def _difference(name: str, got: BootstrapInterval) -> Row:
    return {
        f"delta_{name}_z": got.z,
        f"delta_{name}": got.estimate,
        f"delta_{name}_low": got.low,
        f"delta_{name}_high": got.high,
    }


def fixed_rank(raw: ForecastTraces, platt: ForecastTraces, outcomes: np.ndarray) -> Iterator[Row]:
    """App. E: one scalar from the raw stream for every row. The affine constants are ours; the paper prints none."""
    scalar = weighted_forecast(raw)
    transforms: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "identity": lambda p: p,
        "affine .1 + .8 p": lambda p: 0.1 + 0.8 * p,
        "square root": np.sqrt,
        "square": np.square,
        "platt": lambda p: platt.forecasts,
    }
    rows = []
    for name, transform in transforms.items():
        changed = raw.with_forecasts(transform(raw.forecasts))
        ranks = {key: value for key, value in scalar_metrics(scalar, outcomes).items() if not key.startswith("t_")}
        rows.append({"transform": name, "tps_log": float(tps(changed, outcomes).mean()), **ranks})
    span = max(row["tps_log"] for row in rows) - min(row["tps_log"] for row in rows)
    for row in rows:
        yield {**row, "tps_log_span": span}


def length_stratified(lengths: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Stops: within each tenth of the lengths the same share is hidden, each after a step drawn from 1..T-1.

    Trajectories of one step cannot be stopped earlier and stay complete, so the realised rate may fall short.
    """
    stops = lengths.copy()
    for stratum in np.array_split(np.argsort(lengths, kind="stable"), 10):
        hidden = rng.permutation(stratum)[: round(rate * len(stratum))]
        hidden = hidden[lengths[hidden] > 1]
        stops[hidden] = rng.integers(1, lengths[hidden])
    return stops


def censoring(traces: ForecastTraces, outcomes: np.ndarray, rng: np.random.Generator) -> Iterator[Row]:
    """App. I.1 over families and schedules; `largest_error` is that of the closed form over all rates."""
    plans = {rate: length_stratified(traces.lengths, rate, rng) for rate in CENSORING_RATES}
    for score in SCORES.values():
        for name, schedule in SCHEDULES.items():
            complete = tps(traces, outcomes, score=score, schedule=schedule)
            errors = []
            for rate, stops in plans.items():
                observed = np.where(stops < traces.lengths, np.nan, outcomes)
                direct = tps_simple(
                    truncated(traces, stops), observed, score=score, schedule=schedule, full_lengths=traces.lengths
                )
                closed = artificial_censoring(traces, outcomes, stops, score=score, schedule=schedule).shift
                errors.append(float(np.abs(direct - complete - closed).max()))
                if rate == PRINTED_RATE:
                    row = {
                        "score": score.name,
                        "schedule": name,
                        "censoring_rate": float((stops < traces.lengths).mean()),
                        "tps_complete": float(complete.mean()),
                        "shift": float(closed.mean()),
                        "shift_failures": float(closed[~outcomes].mean()) if not outcomes.all() else None,
                        "shift_successes": float(closed[outcomes].mean()) if outcomes.any() else None,
                    }
            yield {**row, "largest_error": max(errors)}


def speed_rows(rng: np.random.Generator) -> Iterator[Row]:
    """One million steps scored; 2,000 paired draws over 2,000 trajectories. Medians of five, and the slowest."""
    lengths = 1 + rng.multinomial(900_000, np.full(100_000, 1e-5))
    forecasts, outcomes = rng.random(1_000_000), rng.random(100_000) < 0.5

    def score() -> None:
        tps(ForecastTraces(forecasts=forecasts, lengths=lengths), outcomes)

    yield _timed("score 1,000,000 steps in 100,000 ragged trajectories (log, linear-front)", 0.25, score)
    first, second = rng.random((2, 2000))
    failed = (rng.random(2000) < 0.5).astype(np.float64)

    def resample_means() -> None:
        paired_bootstrap(mean_rows(first), mean_rows(second), 2000, rng=rng, draws=2000)

    def resample_ranks() -> None:
        paired_bootstrap(
            partial(auroc_rows, first, failed), partial(auroc_rows, second, failed), 2000, rng=rng, draws=2000
        )

    yield _timed("2,000 paired bootstrap draws over 2,000 trajectories: mean TPS", 2.0, resample_means)
    yield _timed("2,000 paired bootstrap draws over 2,000 trajectories: AUROC", 2.0, resample_ranks)


def _timed(what: str, limit_s: float, work: Callable[[], None]) -> Row:
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return {
        "panel": "speed",
        "what": what,
        "median_s": float(np.median(taken)),
        "slowest_s": max(taken),
        "limit_s": limit_s,
        "within_limit": max(taken) <= limit_s,
    }


if __name__ == "__main__":
    main()
