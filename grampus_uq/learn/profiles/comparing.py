"""Two profiles on the same recorded runs: what each would have done, and the difference with its interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.learn.alarm_figures import alarm_shares
from grampus_uq.learn.columns import task_of
from grampus_uq.learn.eligibility import eligibility
from grampus_uq.learn.profiles.expected import Counterfactual, counterfactual
from grampus_uq.recording.parts import over_parts
from grampus_uq.recording.runs import Paths, Refused, Run
from grampus_uq.records.vocabulary import TASK
from grampus_uq.stats.arrays import BoolArray, FloatArray, finite
from grampus_uq.stats.bootstrap import RowStatistic, paired_bootstrap
from grampus_uq.stats.ranking import auroc_rows
from grampus_uq.stats.scoring import BRIER, LOG, ProperScore
from grampus_uq.stats.trajectory_scores import ForecastTraces, tps, weighted_forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measure under both profiles; `low` and `high` bound the difference second - first (percentile bootstrap).

    `better` says which way is better. `runs`: how many enter. Values are None where a measure is undefined.
    """

    measure: str
    better: str
    first: float | None
    second: float | None
    delta: float | None
    low: float | None
    high: float | None
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All measures, and which runs they are over: used, and left out by reason."""

    rows: tuple[Compared, ...]
    counts: dict[str, int] = field(default_factory=dict)
    level: float = 0.95


def compare_profiles(
    paths: Paths,
    first: Profile,
    second: Profile,
    *,
    rng: np.random.Generator,
    draws: int = 2000,
    task_key: str = TASK,
    workers: int = 1,
    on_runs: Callable[[int], None] | None = None,
    on_refused: Refused | None = None,
) -> Comparison:
    """Take recorded readings through both profiles, and compare what they would have done.

    Runs are paired: both are judged on the same ones, and resampled together. Only runs whose outcome is known and was
    not selected enter, those that were let through at random by their weight; the trials of a task (metadata
    `task_key`) are resampled together. Honest only on runs that neither was fitted on.

    Raises `DataError` for no run that may be used, and a damaged recording, unless `on_refused` takes it.
    """
    replayed: list[tuple[Counterfactual, Counterfactual, str]] = []
    left_out: Counter[str] = Counter()
    work = partial(_under_both, first, second, task_key)
    for judged, others in over_parts(work, paths, workers=workers, on_refused=on_refused):
        replayed += judged
        left_out += others
        if on_runs is not None:
            on_runs(len(judged) + others.total())
    if not replayed:
        why = ", ".join(f"{n} {reason}" for reason, n in left_out.items()) or "there is no run"
        raise DataError(f"no run with an outcome of its own ({why}).")
    good = np.array([one.success for one, _, _ in replayed], dtype=np.bool_)
    w = np.array([one.weight for one, _, _ in replayed])
    sides, tasks = ([run[0] for run in replayed], [run[1] for run in replayed]), [run[2] for run in replayed]
    measures = [*_shares(good, w), *_scores(sides, good, w)]
    rows = [_compared(measure, sides, tasks, rng, draws) for measure in measures]
    used = {"success": int(good.sum()), "failure": int((~good).sum())}
    return Comparison(rows=tuple(rows), counts={**used, **dict(sorted(left_out.items()))})


def _under_both(
    first: Profile, second: Profile, task_key: str, runs: Iterator[Run], refuse: Refused | None
) -> tuple[list[tuple[Counterfactual, Counterfactual, str]], Counter[str]]:
    """The runs of a part under both profiles with their tasks, and how many are left out, by reason."""
    found: list[tuple[Counterfactual, Counterfactual, str]] = []
    left_out: Counter[str] = Counter()
    for run in runs:
        decided = eligibility(run)
        if not decided.usable or not run.steps:
            left_out[decided.reason or "no_step"] += 1
        else:
            one, other = (replace(counterfactual(run, of), weight=decided.weight) for of in (first, second))
            task = task_of(run, task_key) or f"run {run.path}:{run.line}"  # others may have its session id
            found.append((one, other, task))
    return found, left_out


_Side = Sequence[Counterfactual]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """`of` gives a row statistic of one side; `runs` enter it."""

    name: str
    better: str
    of: Callable[[_Side], RowStatistic]
    runs: int


_SHARES = {
    "paused": ("share paused", "lower"),
    "false_alarms": ("false alarms (paused, of successes)", "lower"),
    "failures_caught": ("failures caught (paused, of failures)", "higher"),
    "precision": ("precision of pauses", "higher"),
    "right_among_released": ("right among the rest", "higher"),
}


def _shares(good: BoolArray, w: FloatArray) -> list[_Measure]:
    def of(key: str, side: _Side) -> RowStatistic:
        paused = np.array([one.paused for one in side], dtype=np.bool_)
        what, among = alarm_shares(paused, good)[key]
        return _ratio((what & among) * w, among * w)

    named = _SHARES.items()
    return [_Measure(name=name, better=way, of=partial(of, key), runs=len(good)) for key, (name, way) in named]


def _scores(sides: tuple[_Side, _Side], good: BoolArray, w: FloatArray) -> list[_Measure]:
    """Scores of p_success, on the runs where both have one at every step."""
    whole = np.array(
        [
            bool(one.p_success) and not any(map(math.isnan, (*one.p_success, *other.p_success)))
            for one, other in zip(*sides, strict=True)
        ],
        dtype=np.bool_,
    )
    if not whole.any():
        return []
    outcomes = good[whole].astype(np.float64)

    def forecasts(side: _Side) -> ForecastTraces:
        return ForecastTraces.of([one.p_success for one, kept in zip(side, whole, strict=True) if kept])

    def mean(score: ProperScore, side: _Side) -> RowStatistic:
        values = np.zeros(len(good))
        values[whole] = tps(forecasts(side), good[whole], score=score)
        return _ratio(values * w * whole, w * whole)

    def rank(side: _Side) -> RowStatistic:
        scalar = weighted_forecast(forecasts(side))
        return lambda counts: auroc_rows(scalar, outcomes, (counts * w)[:, whole])

    n = len(outcomes)
    return [
        _Measure(name="TPS log of p_success", better="higher", of=partial(mean, LOG), runs=n),
        _Measure(name="TPS Brier of p_success", better="higher", of=partial(mean, BRIER), runs=n),
        _Measure(name="AUROC of p_success", better="higher", of=rank, runs=n),
    ]


def _compared(
    measure: _Measure, sides: tuple[_Side, _Side], tasks: Sequence[str], rng: np.random.Generator, draws: int
) -> Compared:
    first, second = (measure.of(side) for side in sides)
    difference = paired_bootstrap(first, second, len(tasks), rng=rng, draws=draws, tasks=tasks)
    once = np.ones((1, len(tasks)))
    return Compared(
        measure=measure.name,
        better=measure.better,
        first=finite(float(first(once)[0])),
        second=finite(float(second(once)[0])),
        delta=difference.estimate,
        low=difference.low,
        high=difference.high,
        runs=measure.runs,
    )


def _ratio(above: FloatArray, below: FloatArray) -> RowStatistic:
    def rows(counts: FloatArray) -> FloatArray:
        total = counts @ below
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(total > 0.0, (counts @ above) / total, np.nan))

    return rows
