"""The choice of the bank's member to deploy, judged out of fold inside the fitting part alone.

By power: the mean share of failures caught at false-alarm rates from .05 to .30. The runs that later set the threshold
are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from grampus_uq.learn.fit.detector_bank import Member, fit_members
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.step_blocks import StepBlocks, in_caller_order, run_maximum

FOLDS = 3
RATES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""False-alarm rates over which power is averaged."""


def out_of_fold(runs: DetectorRuns, members: Sequence[Member], rng: np.random.Generator) -> dict[str, FloatArray]:
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
        fitted = fit_members(runs.take(~held), members)
        part = runs.take(held).blocks
        for name, scorer in fitted.items():
            column = result.setdefault(name, np.full(len(owner), np.nan)) if k == 0 else result.get(name)
            if column is not None:
                column[held[owner]] = in_caller_order(part, scorer.batch(part))
        result = {name: column for name, column in result.items() if name in fitted}
    return {name: column[blocks.rows] for name, column in result.items()}


def powers(blocks: StepBlocks, success: BoolArray, log_m: Mapping[str, FloatArray]) -> dict[str, float]:
    """The power of each member on the fitting runs: the mean share of failures caught at the false-alarm rates `RATES`.

    `log_m` is what `out_of_fold` gave for them.
    """
    peaks = {name: run_maximum(blocks, column) for name, column in log_m.items()}
    return {name: float(np.mean(power_at(top[success], top[~success], RATES))) for name, top in peaks.items()}


def choose(power: Mapping[str, float], members: Sequence[Member]) -> str:
    """Name of the member with the most power; at a tie the earlier in the bank."""
    return max((member.name for member in members if member.name in power), key=lambda name: power[name])


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
