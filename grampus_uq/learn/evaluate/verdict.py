"""The verdict of an evaluation: the best signal, the gain of holding by it, and whether the runs are enough to say.

Where enough runs propose an irreversible call, that first call is held if the forecast of the turn that proposes it is
below a limit. Elsewhere a run is held once its forecast falls below a limit: each run counts with its least forecast.
Signal and limit are chosen on one half of the runs and tried on the other, and the other way round: nothing is chosen
on the runs that are reported. Of the trials of a task one counts, drawn before anything is asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from grampus_uq.learn.alarm_figures import Figure, share
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns
from grampus_uq.learn.evaluate.transparency import ScoredStream
from grampus_uq.learn.fit.task_draws import one_a_task
from grampus_uq.learn.sensed import DERIVED
from grampus_uq.records.vocabulary import in_words
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.halves import split_halves
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.trajectory_scores import min_forecast

_FEW_OF_A_KIND = 20
"""With fewer successes or failures than this nothing is said of the best signal."""
_ENOUGH_RUNS = 100
_LIMITS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRow:
    """One signal: the runs that it can be judged on, and its AUROC by least forecast, in [0, 1], higher is better.

    AUROC is the probability that a failure has a lower least forecast than a success, ties one half; None where the
    runs all ended alike. `at_the_call` is the same of the forecast at the turn that proposes the first irreversible
    call, over the runs that have one.
    """

    name: str
    runs: int
    auroc: float | None
    at_the_call: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationVerdict:
    """The verdict in words, and the numbers behind it; figures are None where too little is known.

    at_the_call: it is about first irreversible calls, not runs. held: share of them held. right_of_rest: share of the
    others that succeed; right_of_all: of all. signals: the best one of each half. rows: every signal, the best first,
    at the call where most runs have one.
    """

    sentences: tuple[str, ...]
    rows: tuple[SignalRow, ...]
    at_the_call: bool = False
    signals: tuple[str, ...] = ()
    held: Figure = field(default_factory=Figure)
    right_of_rest: Figure = field(default_factory=Figure)
    right_of_all: Figure = field(default_factory=Figure)


def judge(runs: ForecastRuns, streams: Sequence[ScoredStream]) -> EvaluationVerdict:
    """Say which signal to hold by, on runs with an observed outcome; `streams` are `scored_streams` of `runs`."""
    least = _least(streams, len(runs))
    at_call = {name: runs.at_the_call(name) for name in runs.streams} if runs.asked.any() else {}
    mostly_calls = runs.asks is not None and 2 * runs.asked.sum() >= len(runs)
    drawn = one_a_task(runs.tasks or runs.ids, np.random.default_rng(0))
    only_there = [name for name, found in at_call.items() if name not in least and not np.isnan(found).all()]
    nowhere_else = np.full(len(runs), np.nan)  # read of calls alone, such as the probability of a call's tokens
    every = [
        _row(name, least.get(name, nowhere_else), at_call.get(name), runs.outcomes) for name in (*least, *only_there)
    ]
    rows = tuple(sorted(every, key=_best_at_the_call if mostly_calls else _best_first))
    for values, about_calls in ((at_call, True), (least, False)):
        there = np.array([~np.isnan(found) for found in values.values()]).reshape(-1, len(runs)).any(axis=0)
        known = there & ~runs.censored & drawn
        succeeded = runs.outcomes[known]
        if min((succeeded == 1.0).sum(), (succeeded == 0.0).sum()) >= _FEW_OF_A_KIND:
            names = [str(name) for name, there in zip(runs.ids, known, strict=True) if there]
            verdict = _held({name: found[known] for name, found in values.items()}, succeeded, names)
            verdict = replace(verdict, rows=rows, at_the_call=about_calls)
            return replace(verdict, sentences=_in_words(verdict, len(succeeded)))
    return EvaluationVerdict(sentences=_too_few(succeeded), rows=rows)


def _held(values: Mapping[str, FloatArray], succeeded: FloatArray, names: Sequence[str]) -> EvaluationVerdict:
    second = split_halves(succeeded, names)
    held, chosen = np.zeros(len(succeeded), dtype=np.bool_), []
    for half in (second, ~second):
        name, limit = _chosen(values, succeeded, half)
        chosen.append(name)
        held |= ~half & (values[name] < limit)  # what has no forecast is not held by it
    return EvaluationVerdict(
        sentences=(),
        rows=(),
        signals=tuple(dict.fromkeys(chosen)),
        held=share(held, np.ones_like(held)),
        right_of_rest=share(succeeded == 1.0, ~held),
        right_of_all=share(succeeded == 1.0, np.ones_like(held)),
    )


def _least(streams: Sequence[ScoredStream], n: int) -> dict[str, FloatArray]:
    """The least forecast of each run by stream; NaN where the stream lacks one, or the outcome was not observed."""
    least = {}
    for stream in streams:
        if len(stream.raw):
            least[stream.name] = np.full(n, np.nan)
            places = np.flatnonzero(stream.kept)[stream.complete]
            least[stream.name][places] = min_forecast(stream.raw)[stream.complete]
    return least


def _row(name: str, least: FloatArray, at_call: FloatArray | None, outcomes: FloatArray) -> SignalRow:
    runs, ranks = _ranks(least, outcomes)
    return SignalRow(
        name=name, runs=runs, auroc=ranks, at_the_call=None if at_call is None else _ranks(at_call, outcomes)[1]
    )


def _ranks(values: FloatArray, outcomes: FloatArray) -> tuple[int, float | None]:
    there = ~np.isnan(values) & ~np.isnan(outcomes)
    return int(there.sum()), auroc(-values[there], 1.0 - outcomes[there])


def _best_first(row: SignalRow) -> tuple[float, bool, str]:
    return (2.0 if row.auroc is None else -row.auroc, row.name in DERIVED, row.name)


def _best_at_the_call(row: SignalRow) -> tuple[float, float, bool, str]:
    return (2.0 if row.at_the_call is None else -row.at_the_call, *_best_first(row))


def _chosen(values: Mapping[str, FloatArray], succeeded: FloatArray, half: BoolArray) -> tuple[str, float]:
    """The signal and the limit that gain most on one half: share of failures held less share of successes held."""
    best = ("", -np.inf, -np.inf)
    for name, found in sorted(values.items(), key=lambda item: item[0] in DERIVED):
        mine = found[half]
        limits = np.unique(mine[~np.isnan(mine)])
        for limit in limits[:: 1 + len(limits) // _LIMITS]:
            below = mine < limit
            gain = below[succeeded[half] == 0.0].mean() - below[succeeded[half] == 1.0].mean()
            if gain > best[1]:
                best = (name, gain, limit)
    return best[0], float(best[2])


def _in_words(verdict: EvaluationVerdict, n: int) -> tuple[str, ...]:
    held, rest, whole = verdict.held, verdict.right_of_rest, verdict.right_of_all
    named = " on one half of the runs, ".join(map(_with_words, verdict.signals))
    named += " on the other" if len(verdict.signals) > 1 else ""
    what = "first irreversible calls" if verdict.at_the_call else "runs"
    found = [f"Best signal: {named}."]
    if rest.estimate is None or rest.low is None or held.estimate is None or whole.estimate is None:
        found.append(f"It would hold all {what}.")
        return tuple(found)
    of_rest = f"{_percent(rest.estimate)} % succeed [{_percent(rest.low)}, {_percent(rest.high or 1.0)}]"
    found.append(
        f"With it you would hold {_percent(held.estimate)} % of the {what}. Of the rest {of_rest}, against "
        f"{_percent(whole.estimate)} % of all."
    )
    if rest.low <= whole.estimate:
        found.append("That may be chance: hold by it only after more runs.")
    if n < _ENOUGH_RUNS:
        found.append(f"Too few runs to promise: the outcomes of {n} are known.")
    else:
        found.append("This is an estimate; a promise is what grampus-uq fit makes.")
    return tuple(found)


def _with_words(name: str) -> str:
    return name if in_words(name) == name.replace("_", " ") else f"{name} ({in_words(name)})"


def _too_few(succeeded: FloatArray) -> tuple[str, ...]:
    right = int(succeeded.sum())
    wrong = len(succeeded) - right
    need = f"{_FEW_OF_A_KIND} of each are needed for a comparison."
    return (f"Too few runs to say which signal is best: {right} succeeded and {wrong} failed. {need}",)


def _percent(share_of_runs: float) -> str:
    return f"{100 * share_of_runs:.0f}"
