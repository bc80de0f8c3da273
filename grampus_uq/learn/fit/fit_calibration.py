"""Fits the live p_success: several confidence streams, missing ones included, into one calibrated probability.

Penalised logistic regression on standardised log-odds and presence indicators, by the weights of the Trajectory Proper
Score, so that it is fitted to what it will be judged by. What it is worth is read from the half that did not fit it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray, numbers
from grampus_uq.stats.fusion import FusedReading, LogisticFusion, is_count
from grampus_uq.stats.halves import split_halves
from grampus_uq.stats.logistic_fit import fit_logistic, logistic
from grampus_uq.stats.scoring import EPSILON, LOG, log_odds
from grampus_uq.stats.trajectory_scores import ForecastTraces, step_weights, tps

Streams = Mapping[str, ForecastTraces]

_SD_FLOOR = 1e-6
"""Least standard deviation of the log-odds: a saturated stream with one value would otherwise divide by 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossFit:
    """Runs calibrated by fusions that never saw them.

    traces: the calibrated forecasts; NaN where no reading was there. second_half: shape (n,). fusions: fitted on the
    first half, which calibrated the second, and on the second.
    """

    traces: ForecastTraces
    second_half: BoolArray
    fusions: tuple[LogisticFusion, LogisticFusion]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedSuccess:
    """A fusion fitted on all runs, and what it is worth.

    fusion: what goes into the profile. cross: the same with halves. score, base_score: mean log score of its forecasts,
    and of each half's success rate as the other half knew it, over the `scored` runs with a forecast at every step;
    higher is better, and a score that is not above the base's says that the readings are of no use here.
    """

    fusion: LogisticFusion
    cross: CrossFit
    score: float | None
    base_score: float | None
    scored: int


def cross_fit(
    streams: Streams, outcomes: npt.ArrayLike, ids: Sequence[str], *, run_weights: npt.ArrayLike | None = None
) -> CrossFit:
    """Calibrate every run by a fusion fitted on the other half (`split_halves`); its steps share the half.

    Deterministic, and independent of row order. With one stream this is cross-fitted Platt scaling.

    Args, raises: as `fit_success`.

    Source: "Proper Scoring Rules for Agentic Uncertainty Quantification", App. D and J.4; it prefers two halves to k
    folds, because maps from many small folds may contradict each other.
    """
    first = _same_runs(streams)
    y = numbers("outcomes", "cross_fit", outcomes)
    second = split_halves(y, ids)
    if len(y) != len(first):
        raise ConfigurationError.of("outcomes", "cross_fit", f"of shape ({len(first)},)", y.shape)
    counts = np.ones(len(first)) if run_weights is None else numbers("run_weights", "cross_fit", run_weights)
    forecasts = np.full(len(first.forecasts), np.nan)
    fusions = []
    for trained in (~second, second):
        taught = {name: traces.select(trained) for name, traces in streams.items()}
        fusions.append(fit_fusion(taught, y[trained], run_weights=counts[trained]))
        inside = np.repeat(~trained, first.lengths)
        forecasts[inside] = apply_fusion(fusions[-1], {name: t.forecasts[inside] for name, t in streams.items()})
    return CrossFit(traces=first.with_forecasts(forecasts), second_half=second, fusions=(fusions[0], fusions[1]))


def fit_success(
    streams: Streams, outcomes: npt.ArrayLike, ids: Sequence[str], *, run_weights: npt.ArrayLike | None = None
) -> FittedSuccess:
    """Fit the fusion, and judge it by cross-fitting.

    `streams`: by name, n complete runs with the same lengths; NaN is a missing reading. The names are those that a live
    step has: a source, `fused`, `propagated`, `semantic_entropy`. `outcomes`: shape (n,), 0 or 1; censored runs and
    informative stops have no place here. `ids`: n distinct, stable names. `run_weights`: shape (n,), > 0, one over the
    chance that a run's outcome was seen; None: 1 for all. They enter the fit; the score reported is that of the runs as
    they are. Raises ConfigurationError for streams of different runs, no stream, a half without any reading, an
    outcome other than 0 or 1, and repeated ids.
    """
    y = numbers("outcomes", "fit_success", outcomes)
    fusion = fit_fusion(streams, y, run_weights=run_weights)
    crossed = cross_fit(streams, y, ids, run_weights=run_weights)
    traces, second = crossed.traces, crossed.second_half
    kept = ~traces.missing
    rates = np.where(second, y[~second].mean(), y[second].mean())
    scores = tps(traces.select(kept), y[kept], score=LOG)
    base = tps(traces.with_forecasts(traces.spread(rates)).select(kept), y[kept], score=LOG)
    return FittedSuccess(
        fusion=fusion,
        cross=crossed,
        score=float(scores.mean()) if kept.any() else None,
        base_score=float(base.mean()) if kept.any() else None,
        scored=int(kept.sum()),
    )


def fit_fusion(
    streams: Streams, outcomes: npt.ArrayLike, *, run_weights: npt.ArrayLike | None = None
) -> LogisticFusion:
    """Maximise `sum w ln P(y | p) - (|slopes|^2 + |offsets|^2) / 2` over slopes >= 0 (of counts: any).

    A stream whose slope would be negative is refitted without it (slope 0): a signal that points the wrong way is not
    turned around. Counts (`stats.fusion.is_count`) may have either sign. A stream that is never missing, or always
    missing beside others, has offset 0: its presence says nothing. Steps without any reading are not fitted on. With
    one stream that is never missing, and no count, this is Platt scaling.

    Args, raises: as `fit_success`. Flat at the success rate when nothing usable was found or all outcomes agree.
    """
    first = _same_runs(streams)
    y = numbers("outcomes", "fit_fusion", outcomes)
    if y.shape != (len(first),) or not np.isin(y, (0.0, 1.0)).all():
        raise ConfigurationError.of("outcomes", "fit_fusion", f"{len(first)} of 0 or 1", outcomes)
    values = np.column_stack([traces.forecasts for traces in streams.values()])
    read = ~np.isnan(values).all(axis=1)
    if not read.any():
        raise ConfigurationError.of("streams", "fit_fusion", "with at least one reading", list(streams))
    counts = np.ones(len(first)) if run_weights is None else numbers("run_weights", "fit_fusion", run_weights)
    if counts.shape != y.shape or not (np.isfinite(counts) & (counts > 0.0)).all():
        raise ConfigurationError.of("run_weights", "fit_fusion", f"{len(first)} finite numbers > 0", run_weights)
    w, targets = (step_weights(first) * first.spread(counts))[read], first.spread(y)[read]
    present, x = ~np.isnan(values[read]), log_odds(values[read], EPSILON)
    mean, sd = _standard(x, present, w)
    z = np.where(present, (np.nan_to_num(x) - mean) / sd, 0.0)
    either_sign = np.array([is_count(name) for name in streams])
    beta = _constrained(z, present, targets, w, either_sign)
    k = len(streams)
    return LogisticFusion(
        readings={
            name: FusedReading(
                mean=float(mean[i]), sd=float(sd[i]), slope=float(beta[1 + i]), offset=float(beta[1 + k + i])
            )
            for i, name in enumerate(streams)
        },
        intercept=float(beta[0]),
        epsilon=EPSILON,
    )


def apply_fusion(fusion: LogisticFusion, values: Mapping[str, FloatArray]) -> FloatArray:
    """Fuse many steps at once, as `LogisticFusion` does one; arrays of one shape, NaN = missing, NaN where all are."""
    found = [values[name] for name in fusion.readings if name in values]
    if not found:
        raise ConfigurationError.of("values", "apply_fusion", f"some of {list(fusion.readings)}", list(values))
    z = np.full(found[0].shape, fusion.intercept)
    seen = np.zeros(found[0].shape, dtype=np.bool_)
    for name, reading in fusion.readings.items():
        if name in values:
            there = ~np.isnan(values[name])
            scaled = (log_odds(values[name], fusion.epsilon) - reading.mean) / reading.sd
            z += np.where(there, reading.offset + reading.slope * scaled, 0.0)
            seen |= there
    p = np.clip(logistic(z), fusion.epsilon, 1.0 - fusion.epsilon)
    return np.where(seen, p, np.nan)


def apply_exactly(fusion: LogisticFusion, values: Mapping[str, FloatArray]) -> FloatArray:
    """As `apply_fusion`, by the fusion itself, one step after the other: bit for bit what a live step is told.

    A threshold is set on such numbers only: where a model says round ones, all runs lie on it, and the last bit would
    decide for all of them.
    """
    names = [name for name in fusion.readings if name in values]
    rows = zip(*(values[name].tolist() for name in names), strict=True)
    probabilities = (fusion({n: None if math.isnan(v) else v for n, v in zip(names, row, strict=True)}) for row in rows)
    return np.array([math.nan if p is None else p for p in probabilities], dtype=np.float64)


def _standard(x: FloatArray, present: BoolArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weighted mean and standard deviation of each stream where it is there; (0, 1) for one that never is."""
    mass = w @ present
    safe = np.where(mass > 0.0, mass, 1.0)
    filled = np.where(present, np.nan_to_num(x), 0.0)
    mean = (w @ filled) / safe
    variance = (w @ np.where(present, np.square(filled - mean), 0.0)) / safe
    return mean, np.where(mass > 0.0, np.maximum(np.sqrt(variance), _SD_FLOOR), 1.0)


def _constrained(z: FloatArray, present: BoolArray, y: FloatArray, w: FloatArray, either_sign: BoolArray) -> FloatArray:
    """Coefficients (intercept, slopes, offsets), fitted again until no slope is negative but those that may be."""
    k = z.shape[1]
    rate = float(w @ y / w.sum())
    flat = np.zeros(1 + 2 * k)
    flat[0] = float(log_odds(rate, EPSILON))
    if not 0.0 < rate < 1.0:
        return flat
    design = np.column_stack([np.ones(len(y)), z, present.astype(np.float64)])
    sometimes = present.any(axis=0) & ~present.all(axis=0)
    free = np.concatenate([[True], (z != 0.0).any(axis=0), sometimes])
    while True:
        beta, penalty = np.zeros_like(flat), np.ones(int(free.sum()))
        penalty[0] = 0.0
        beta[free] = fit_logistic(design[:, free], y, w, l2=penalty, start=flat[free])
        slopes = np.where(either_sign, 0.0, beta[1 : 1 + k])
        if (slopes >= 0.0).all():
            return beta
        free[1 + int(slopes.argmin())] = False


def _same_runs(streams: Streams) -> ForecastTraces:
    first = next(iter(streams.values()), None)
    if first is None or not all(np.array_equal(t.lengths, first.lengths) for t in streams.values()):
        raise ConfigurationError.of("streams", "fit_fusion", "one or more, of the same runs and steps", list(streams))
    return first
