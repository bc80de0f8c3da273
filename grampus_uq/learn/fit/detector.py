"""Labelled runs in, a frozen detector out: the statistic, its thresholds, what they promise, and what was done.

`fit_detector` learns or picks the statistic; `fit_budget` needs no outcomes. A run that was paused, stopped or changed
by somebody has a selected outcome: refitting on what a monitor let through lifts false alarms (.10 to .16 - .36 in
simulation), so `detector_runs` leaves such runs out, and so should you.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.detector_bank import Member, bank, fit_members, untrained
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.learn.fit.detector_split import Split, split, split_at
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_scorers import FeatureScorer, PaperScorer
from grampus_uq.stats.eprocess_thresholds import (
    Threshold,
    budget_threshold,
    conformal_threshold,
    pac_threshold,
    tie_uniform,
    weighted_threshold,
)
from grampus_uq.stats.ranks import check_level
from grampus_uq.stats.step_blocks import StepBlocks, in_caller_order, run_maximum

LEVELS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Levels that every fit lists, besides the one asked for."""

_BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Interruption budgets that every label-free fit lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """The account of a fit, JSON-able by `asdict`.

    Attributes:
        counts: runs by kind: success, failure, and every exclusion by its reason.
        fit_ids, threshold_ids: which runs did what; disjoint.
        member: the statistic that was chosen.
        reason: why that one.
        power: of the members, out of fold; empty when nothing was chosen.
    """

    counts: Mapping[str, int]
    fit_ids: tuple[str, ...]
    threshold_ids: tuple[str, ...]
    member: str
    reason: str
    power: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorFit:
    """A detector and the account of how it came about."""

    detector: Detector
    report: FitReport


def fit_detector(
    runs: DetectorRuns,
    *,
    rng: np.random.Generator,
    alpha: float = 0.1,
    delta: float | None = 0.1,
    levels: Sequence[float] = LEVELS,
    members: Sequence[str] | None = None,
    held_out: Collection[str] | None = None,
) -> DetectorFit:
    """Fit, choose and calibrate a detector on labelled runs.

    Guarantee: that of `pac_threshold` (or, with delta None, of `conformal_threshold`) for the deployed threshold and
    singly for each listed one. The statistic is learned and chosen on all failures and the other successes, by 3-fold
    cross-validation; the threshold set serves nothing else. It holds one run of each task, drawn from `rng`, and no
    other trial of these tasks teaches anything. What breaks it: trials of one task without a common name, runs selected
    by a monitor, and any change after the fit.

    `runs`: from `detector_runs`, with outcomes; with weights, only conformal thresholds are set, and weighted. `rng`
    draws the split, the folds and the salt; the same state gives the same detector. `alpha`: allowed probability that
    a run that would have succeeded ever alarms; `delta`: that of an unlucky calibration, None deploys the conformal
    threshold; both in (0, 1). `levels`: further levels to list. `members`: names of the statistics to choose from
    (`detector_bank.bank`), by default all; without the boosted ones a live step takes a few microseconds whatever is
    chosen. `held_out`: ids of the runs that may set the threshold; None: as `detector_split.split` draws them.

    With too few successes the threshold is +inf, and says how many are needed. Raises MissingDependencyError without
    scikit-learn.
    """
    labels = runs.labels
    _check_levels(alpha, delta, levels)
    candidates = _members(runs, members)
    parts = split(runs, alpha, delta, rng) if held_out is None else split_at(runs, held_out, rng)
    scorer, reason, power = _statistic(runs, parts, rng, candidates)
    detector = set_thresholds(
        runs, parts.threshold, scorer, salt=rng.bytes(12).hex(), delta=delta, alpha=alpha, levels=levels
    )
    successes = int(labels.sum())
    report = FitReport(
        counts={"success": successes, "failure": len(runs) - successes, **runs.excluded},
        fit_ids=tuple(runs.ids[i] for i in parts.fit),
        threshold_ids=tuple(runs.ids[i] for i in parts.threshold),
        member=scorer.name,
        reason=reason,
        power=power,
    )
    return DetectorFit(detector=detector, report=report)


def fit_budget(
    runs: DetectorRuns, *, rng: np.random.Generator, share: float = 0.05, shares: Sequence[float] = _BUDGETS
) -> DetectorFit:
    """Set an interruption budget: "pause at most a share b of runs", from recorded runs without any label.

    Guarantee: that of `budget_threshold`, for one run of each task. The statistic is a running minimum of the first
    stream, which learns nothing; outcomes, if there are any, are not looked at. `rng` draws the salt, and one run of
    each task. `share` is the budget to deploy, `shares` are further ones to list, all in (0, 1).
    """
    _check_levels(share, None, shares)
    scorer = untrained(replace(runs, success=None))
    salt = rng.bytes(12).hex()
    fitted, runs = runs, runs.take(runs.drawn(rng))
    peaks, ties = _evidence(runs, scorer, salt)
    wanted = sorted({share, *shares})
    thresholds = [budget_threshold(peaks, ties, b) for b in wanted]
    return DetectorFit(
        detector=_detector(fitted, scorer, thresholds, wanted.index(share), salt, peaks, ties),
        report=FitReport(
            counts={"run": len(runs)},
            fit_ids=(),
            threshold_ids=runs.ids,
            member=scorer.name,
            reason="Without outcomes nothing is learned.",
        ),
    )


def _members(runs: DetectorRuns, names: Sequence[str] | None) -> tuple[Member, ...]:
    members = bank(runs)
    known = {member.name for member in members}
    if names is not None and (not names or not set(names) <= known):
        raise ConfigurationError.of("members", "fit_detector", f"some of {sorted(known)}", names)
    return tuple(member for member in members if names is None or member.name in names)


def _statistic(
    runs: DetectorRuns, parts: Split, rng: np.random.Generator, members: Sequence[Member]
) -> tuple[FeatureScorer, str, dict[str, float]]:
    """Choose by cross-validation inside the fitting part, then fit the choice on all of it."""
    if not parts.fit:
        return untrained(runs), "Too few labelled runs to learn from: all successes set the threshold.", {}
    fitting = runs.take(np.array(parts.fit))
    power = powers(fitting.blocks, fitting.labels, out_of_fold(fitting, members, rng))
    name = choose(power, members)
    scorer = fit_members(fitting, [member for member in members if member.name == name])[name]
    return scorer, "It had the most power out of fold, among the fitting runs alone.", power


def set_thresholds(
    runs: DetectorRuns,
    threshold: Sequence[int],
    scorer: FeatureScorer | PaperScorer,
    *,
    salt: str,
    delta: float | None,
    alpha: float,
    levels: Sequence[float],
) -> Detector:
    """Set PAC and conformal thresholds at every level on the successes held out for it."""
    held_out = runs.take(np.array(threshold, dtype=np.intp))
    peaks, ties = _evidence(held_out, scorer, salt)
    wanted = sorted({alpha, *levels})
    if held_out.weights is not None:  # seen with unequal chances: no exact count, so no PAC statement
        weights, most, delta = held_out.weights, held_out.most, None
        conformal = [weighted_threshold(peaks, ties, weights, a, most=most) for a in wanted]
    else:
        conformal = [conformal_threshold(peaks, ties, a) for a in wanted]
    pac = [] if delta is None else [pac_threshold(peaks, ties, a, delta) for a in wanted]
    return _detector(runs, scorer, [*pac, *conformal], wanted.index(alpha), salt, peaks, ties)


def _detector(
    runs: DetectorRuns,
    scorer: FeatureScorer | PaperScorer,
    thresholds: Sequence[Threshold],
    deployed: int,
    salt: str,
    peaks: FloatArray,
    ties: FloatArray,
) -> Detector:
    """The detector; its thresholds say where they look and which runs they are about."""
    more = " It looks at irreversible calls alone, and of runs without one it says nothing." if runs.at_calls else ""
    if runs.cut:
        more += (
            f" Of the recorded runs {runs.cut} were stopped before their end and count as far as they went: if new "
            "ones go further, more are interrupted."
        )
    return Detector(
        streams=runs.streams,
        scorer=scorer,
        thresholds=tuple(replace(one, guarantee=one.guarantee + more) for one in thresholds),
        deployed=deployed,
        salt=salt,
        null_peaks=tuple(sorted(zip(peaks.tolist(), ties.tolist(), strict=True))),
        without_gaps=runs.without_gaps,
        at_calls=runs.at_calls,
    )


def _evidence(runs: DetectorRuns, scorer: FeatureScorer | PaperScorer, salt: str) -> tuple[FloatArray, FloatArray]:
    """The largest log M of each run, and its draw."""
    blocks = runs.blocks
    return run_maximum(blocks, scorer.batch(blocks)), np.array([tie_uniform(run, salt) for run in runs.ids])


def _check_levels(alpha: float, delta: float | None, levels: Sequence[float]) -> None:
    for name, level in [("alpha", alpha), ("delta", 0.5 if delta is None else delta), *(("levels", a) for a in levels)]:
        check_level(name, "fit_detector", level)


FOLDS = 3
RATES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""False-alarm rates over which power is averaged."""


def out_of_fold(runs: DetectorRuns, members: Sequence[Member], rng: np.random.Generator) -> dict[str, FloatArray]:
    """log M_t of every row by a model that did not see its run: shape (rows,) in block order, a member each.

    Members that one of the folds cannot support are left out.
    """
    fold = np.empty(len(runs), dtype=np.intp)
    for outcome in (False, True):
        same = rng.permutation(np.flatnonzero(runs.labels == outcome))
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
