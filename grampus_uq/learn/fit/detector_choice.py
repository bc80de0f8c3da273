"""Which member of the bank to deploy, judged out of fold inside the fitting part alone.

By power: the mean share of failures caught at false-alarm rates from .05 to .30. Or by cost: what missed failures,
false alarms and steps cost together at the best level. The runs that later set the threshold are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.detector_bank import Member, fit_members
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.step_blocks import StepBlocks, first_step_where, in_caller_order, run_lengths, run_maximum

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

FOLDS = 3
RATES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""False-alarm rates over which power is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What things cost, in one unit of your own (money, minutes): a cost-aware fit minimises their expected sum a run.

    Attributes:
        missed_failure: a run that fails without an alarm.
        false_alarm: an alarm in a run that would have succeeded.
        step: running one step (tokens, time); an alarm ends the run.
    """

    missed_failure: float
    false_alarm: float
    step: float = 0.0

    def __post_init__(self) -> None:
        for name in ("missed_failure", "false_alarm", "step"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise ConfigurationError.of(name, "Costs", "finite and at least 0", getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a member did out of fold.

    Attributes:
        power: mean share of failures caught at the false-alarm rates `RATES`.
        cost: expected cost a run at the best level; None without costs.
        alpha: that level; None without costs.
    """

    power: float
    cost: float | None = None
    alpha: float | None = None


def out_of_fold(
    runs: DetectorRuns, members: Sequence[Member], rng: np.random.Generator, *, sees_last: bool = False
) -> dict[str, FloatArray]:
    """log M_t of every row by a model that did not see its run: shape (rows,) in block order, a member each.

    Members that one of the folds cannot support are left out.
    """
    assert runs.success is not None  # noqa: S101 (for the type checker; callers have labelled runs)
    fold = np.empty(len(runs), dtype=np.intp)
    for outcome in (False, True):
        same = rng.permutation(np.flatnonzero(runs.success == outcome))
        fold[same] = np.arange(len(same)) % FOLDS
    owner = np.repeat(np.arange(len(runs)), runs.lengths)
    blocks = runs.blocks
    result: dict[str, FloatArray] = {}
    for k in range(FOLDS):
        held = fold == k
        fitted = fit_members(runs.take(~held), members, sees_last=sees_last)
        part = runs.take(held).blocks
        for name, scorer in fitted.items():
            column = result.setdefault(name, np.full(len(owner), np.nan)) if k == 0 else result.get(name)
            if column is not None:
                column[held[owner]] = in_caller_order(part, scorer.batch(part))
        result = {name: column for name, column in result.items() if name in fitted}
    return {name: column[blocks.rows] for name, column in result.items()}


def estimates(
    blocks: StepBlocks,
    success: BoolArray,
    log_m: Mapping[str, FloatArray],
    *,
    costs: Costs | None = None,
    failure_rate: float = 0.5,
    levels: Mapping[float, float] | None = None,
) -> dict[str, Estimate]:
    """Judge out-of-fold evidence by power and, with costs, by expected cost.

    Args:
        blocks, success: the fitting runs.
        log_m: what `out_of_fold` gave for them.
        failure_rate: share of failures among runs as they come; the fitting part holds more of them.
        levels: levels among which the cheapest is looked for, each with the false-alarm rate that its threshold will
            have on average; `RATES` themselves by default.
    """
    result = {}
    for name, column in log_m.items():
        peaks = run_maximum(blocks, column)
        power = float(np.mean(power_at(peaks[success], peaks[~success], RATES)))
        cost = alpha = None
        if costs is not None:
            rates = {rate: rate for rate in RATES} if levels is None else levels
            options = [
                (_expected_cost(blocks, success, column, peaks, rate, costs, failure_rate), level)
                for level, rate in rates.items()
            ]
            cost, alpha = min(options, default=(None, None))
        result[name] = Estimate(power=power, cost=cost, alpha=alpha)
    return result


def choose(judged: Mapping[str, Estimate], members: Sequence[Member]) -> str:
    """Name of the member with the least cost, or, without costs, the most power; at a tie the earlier in the bank."""
    available = [member.name for member in members if member.name in judged]
    by_cost = {name: cost for name in available if (cost := judged[name].cost) is not None}
    return min(by_cost, key=by_cost.__getitem__) if by_cost else max(available, key=lambda name: judged[name].power)


def power_at(null_peaks: npt.ArrayLike, failure_peaks: npt.ArrayLike, rates: Sequence[float]) -> FloatArray:
    """Share of failures above the threshold that a given share of successes exceeds: the ROC curve, interpolated.

    Ties are split as a random draw would split them on average.

    >>> power_at([0.0, 1.0, 2.0, 3.0], [1.5, 2.5, 3.5, 4.5], [0.25, 0.5]).tolist()
    [0.75, 1.0]
    """
    null, failing = np.sort(np.asarray(null_peaks)), np.sort(np.asarray(failure_peaks))
    cuts = np.unique(np.concatenate([null, failing]))[::-1]
    alarms_null = (len(null) - np.searchsorted(null, cuts, side="left")) / len(null)
    alarms_failing = (len(failing) - np.searchsorted(failing, cuts, side="left")) / len(failing)
    x, y = np.concatenate([[0.0], alarms_null]), np.concatenate([[0.0], alarms_failing])
    top = np.flatnonzero(np.append(np.diff(x) > 0.0, True))  # at equal false alarms, the most power
    return np.asarray(np.interp(np.asarray(rates), x[top], y[top]), dtype=np.float64)


def _expected_cost(
    blocks: StepBlocks,
    success: BoolArray,
    log_m: FloatArray,
    peaks: FloatArray,
    rate: float,
    costs: Costs,
    failure_rate: float,
) -> float:
    cut = float(np.quantile(peaks[success], 1.0 - rate, method="higher"))
    alarm = first_step_where(blocks, log_m > cut)
    used = np.where(alarm > 0, alarm, run_lengths(blocks))
    weight = np.where(success, (1.0 - failure_rate) / success.sum(), failure_rate / (~success).sum())
    harm = np.where(success, costs.false_alarm * (alarm > 0), costs.missed_failure * (alarm == 0))
    return float(weight @ (harm + costs.step * used))
