"""Fits TRACER to labelled runs by the pairwise logistic loss, and says how well the fit does on tasks not seen.

    L(theta) = 1/(|F||S|) sum_{i in F} sum_{j in S} ln(1 + exp(-(s_i - s_j)/tau))      (TRACER, A-G)

F are the failed runs and S the successes. The search is coarse to fine over (alpha, beta, gamma, k), then over w.
Signals are computed before, once a step; here everything is arithmetic on arrays. The fitted parameters come with
cross-validated figures only: folds hold whole tasks, and a run is scored by parameters that never saw its task.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.trajectories import Trajectories
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.tail_sketch import tail_count
from grampus_uq.stats.trajectory_risk import Composite, StepComponents, TracerParameters, weighted_components

IntArray = npt.NDArray[np.intp]

_COARSE_WEIGHTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_COARSE_K: Final = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
_FINE_STEPS: Final = (0.125, 0.0625)
_FINE_K: Final = (0.75, 1.0, 1.33)
_W: Final = tuple(i / 20 for i in range(21))
_CELLS: Final = 4_000_000
"""Numbers held at once while a block of settings is scored (32 MB)."""

_TAU: Final = 1.0
"""Temperature of the loss."""
_FOLDS: Final = 5
_MAX_PAIRS: Final = 200_000
"""Of more pairs of a failure and a success so many are drawn once, and every setting is judged on the same ones."""

_UNWEIGHTED: Final = TracerParameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerFit:
    """Fitted parameters and what they were fitted on; JSON-able. The losses are of the training runs themselves.

    `default_loss` is the loss of the unfitted defaults on the same pairs. Neither says how the fit does on other runs:
    that is `cross_validate_tracer`.
    """

    parameters: TracerParameters
    loss: float
    default_loss: float
    failures: int
    successes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerCrossValidation:
    """The worth of fitted parameters on tasks that they were not fitted on; JSON-able.

    `auroc`: probability that a failure is scored above a success of the same fold, each scored by the parameters of the
    other folds, ties one half; higher is better, .5 says nothing. `default_auroc`: the same pairs, unfitted defaults.
    Both None when no fold holds a failure and a success. `fold_of`: each run's fold. `parameters`: each fold's fit.
    """

    auroc: float | None
    default_auroc: float | None
    parameters: tuple[TracerParameters, ...]
    fold_of: tuple[int, ...]


def fit_tracer(
    runs: Sequence[Sequence[StepComponents]],
    failed: Sequence[bool],
    *,
    rng: np.random.Generator,
    composite: Composite = Composite.MAX,
) -> TracerFit:
    """Find the parameters that best separate failed runs from successes.

    The largest of the fitted weights is 1, none is negative; surprisal has weight 1 as in the paper.

    `runs`: the components of every step of each run, at least one step each; without runs whose outcome was selected
    (stopped by the monitor or a human). `failed`: of both kinds there must be one. `rng` draws pairs when there are too
    many. `composite`: which variant of Table IV is fitted.
    """
    return _fit(_Table.of(runs, failed), np.arange(len(runs)), composite, rng)


def cross_validate_tracer(
    runs: Sequence[Sequence[StepComponents]],
    failed: Sequence[bool],
    tasks: Sequence[Hashable],
    *,
    rng: np.random.Generator,
    composite: Composite = Composite.MAX,
) -> TracerCrossValidation:
    """Fit on all folds but one and score that one, for every fold; all runs of a task are in one fold.

    `tasks`: the task of each run; trials of one task share what makes it hard, so a split between them would leak.
    Tasks are dealt to folds at random by `rng`, the largest first, so that folds are about equal.

    Raises ConfigurationError when there are fewer tasks than folds, or when the runs outside of a fold are of one kind.
    """
    table = _Table.of(runs, failed)
    if len(tasks) != len(runs):
        raise ConfigurationError.of("tasks", "cross_validate_tracer", f"one a run ({len(runs)})", len(tasks))
    fold_of = _folds(tasks, _FOLDS, rng)
    default = table.scores(replace(_UNWEIGHTED, composite=composite))
    held_out = np.empty(len(runs))
    parameters = []
    for fold in range(_FOLDS):
        outside = fold_of == fold
        fitted = _fit(table, np.flatnonzero(~outside), composite, rng).parameters
        parameters.append(fitted)
        held_out[outside] = table.scores(fitted)[outside]
    return TracerCrossValidation(
        auroc=_concordance(held_out, table.failed, fold_of),
        default_auroc=_concordance(default, table.failed, fold_of),
        parameters=tuple(parameters),
        fold_of=tuple(fold_of.tolist()),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """The components of all runs as one padded array: shape (runs, longest, 4), absent ones 0, padding -1."""

    values: FloatArray
    lengths: IntArray
    failed: BoolArray

    @classmethod
    def of(cls, runs: Sequence[Sequence[StepComponents]], failed: Sequence[bool]) -> _Table:
        if len(failed) != len(runs):
            raise ConfigurationError.of("failed", "fit_tracer", f"one a run ({len(runs)})", len(failed))
        lengths = np.array([len(run) for run in runs], np.intp)
        if not len(runs) or lengths.min() < 1:
            raise ConfigurationError.of("runs", "fit_tracer", "runs with at least one step each", lengths.tolist())
        values = np.full((len(runs), int(lengths.max()), 4), -1.0)
        for row, run in zip(values, runs, strict=True):
            row[: len(run)] = [weighted_components(step, _UNWEIGHTED)[:4] for step in run]
        return cls(values, lengths, np.array(failed, bool))

    def scores(self, parameters: TracerParameters) -> FloatArray:
        """Score every run by one setting."""
        weights = np.array([[parameters.alpha, parameters.beta, parameters.gamma]])
        tails, worst = self.tails(weights, parameters.composite, [parameters.k])
        return np.asarray((1.0 - parameters.w) * tails[0, 0] + parameters.w * worst[0])

    def tails(self, weights: FloatArray, composite: Composite, ks: Sequence[float]) -> tuple[FloatArray, FloatArray]:
        """Return the tail means, (settings, ks, runs), and the worst steps, (settings, runs)."""
        factors = np.concatenate([np.ones((len(weights), 1)), weights], axis=1)  # surprisal has weight 1
        if composite is Composite.SEPARATE:
            channels = [self._sorted_tails(self.values[None, :, :, c], ks) for c in range(4)]
            tails = sum(factors[:, c, None, None] * channels[c][0] for c in range(4))
            worst = sum(factors[:, c, None] * channels[c][1] for c in range(4))
            return np.asarray(tails), np.asarray(worst)
        # Padding stays below every risk: the sort then puts it last, and a tail is never longer than its run.
        risks = np.where(self.values[None, :, :, 0] < 0.0, -1.0, _composed(self.values, factors, composite))
        return self._sorted_tails(risks, ks)

    def _sorted_tails(self, risks: FloatArray, ks: Sequence[float]) -> tuple[FloatArray, FloatArray]:
        ordered = -np.sort(-risks, axis=-1)
        sums = np.cumsum(ordered, axis=-1)
        rows = np.arange(len(self.lengths))
        tails = []
        for k in ks:
            counts = np.array([tail_count(int(length), k) for length in self.lengths])
            tails.append(sums[:, rows, counts - 1] / counts)
        return np.stack(tails, axis=1), np.asarray(ordered[:, :, 0])


def _composed(values: FloatArray, factors: FloatArray, composite: Composite) -> FloatArray:
    """Combine weighted components, (runs, steps, 4) and (settings, 4), to step risks (settings, runs, steps)."""
    risks: FloatArray = np.zeros((len(factors), *values.shape[:2]))
    for channel in range(4):
        part = factors[:, channel, None, None] * np.maximum(values[None, :, :, channel], 0.0)
        if composite is Composite.MAX:
            np.maximum(risks, part, out=risks)
        elif composite is Composite.ADDITIVE:
            risks += part
        else:
            risks += np.log1p(part)
    return np.expm1(risks) if composite is Composite.MULTIPLICATIVE else risks


def _fit(table: _Table, chosen: IntArray, composite: Composite, rng: np.random.Generator) -> TracerFit:
    table = _Table(table.values[chosen], table.lengths[chosen], table.failed[chosen])
    pairs = _pairs(table.failed, _MAX_PAIRS, rng)
    default = replace(_UNWEIGHTED, composite=composite)
    grid = [weights for weights in product(_COARSE_WEIGHTS, repeat=3) if max(weights) == 1.0]
    best = _search(table, pairs, grid, _COARSE_K, default)
    for step in _FINE_STEPS:
        ks = sorted({min(1.0, round(best[1].k * factor, 6)) for factor in _FINE_K})
        best = min(best, _search(table, pairs, _neighbours(best[1], step), ks, default), key=lambda found: found[0])
    parameters = best[1]
    losses = [(_loss(table.scores(replace(parameters, w=w)), pairs), replace(parameters, w=w)) for w in _W]
    loss, parameters = min([best, *losses], key=lambda found: found[0])
    return TracerFit(
        parameters=parameters,
        loss=loss,
        default_loss=_loss(table.scores(default), pairs),
        failures=int(table.failed.sum()),
        successes=int((~table.failed).sum()),
    )


def _search(
    table: _Table,
    pairs: tuple[IntArray, IntArray],
    grid: Sequence[tuple[float, ...]],
    ks: Sequence[float],
    base: TracerParameters,
) -> tuple[float, TracerParameters]:
    """Try every weights with every k, at the default w; the first of equally good ones wins."""
    best = (math.inf, base)
    size = max(1, _CELLS // (table.values.shape[0] * table.values.shape[1]))
    for block in (grid[start : start + size] for start in range(0, len(grid), size)):
        tails, worst = table.tails(np.array(block), base.composite, ks)
        for i, j in np.ndindex(*tails.shape[:2]):
            loss = _loss((1.0 - base.w) * tails[i, j] + base.w * worst[i], pairs)
            if loss < best[0]:
                alpha, beta, gamma = block[i]
                best = loss, replace(base, alpha=alpha, beta=beta, gamma=gamma, k=ks[j])
    return best


def _neighbours(center: TracerParameters, step: float) -> list[tuple[float, ...]]:
    """Give the weights one step around, inside [0, 1], the largest of each being 1."""
    weights = (center.alpha, center.beta, center.gamma)
    axes = [sorted({min(1.0, max(0.0, weight + move)) for move in (-step, 0.0, step)}) for weight in weights]
    return [found for found in product(*axes) if max(found) == 1.0]


def _pairs(failed: BoolArray, most: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Give the indices of every pair of a failure and a success, or of `most` of them drawn with replacement."""
    failures, successes = np.flatnonzero(failed), np.flatnonzero(~failed)
    if not len(failures) or not len(successes):
        rule = "runs of both kinds, failures and successes"
        raise ConfigurationError.of(
            "failed", "fit_tracer", rule, f"{len(failures)} failures, {len(successes)} successes"
        )
    if len(failures) * len(successes) <= most:
        return np.repeat(failures, len(successes)), np.tile(successes, len(failures))
    return rng.choice(failures, most), rng.choice(successes, most)


def _loss(scores: FloatArray, pairs: tuple[IntArray, IntArray]) -> float:
    """Average ln(1 + exp(-(s_i - s_j)/tau)) over the pairs, without overflow."""
    return float(np.logaddexp(0.0, (scores[pairs[1]] - scores[pairs[0]]) / _TAU).mean())


def _folds(tasks: Sequence[Hashable], folds: int, rng: np.random.Generator) -> IntArray:
    """Deal whole tasks to folds: in random order, the largest first, each to the fold that has fewest runs."""
    members: dict[Hashable, list[int]] = {}
    for index, task in enumerate(tasks):
        members.setdefault(task, []).append(index)
    if len(members) < folds:
        raise ConfigurationError.of("folds", "cross_validate_tracer", f"at most the {len(members)} tasks", folds)
    groups = list(members.values())
    order = sorted(rng.permutation(len(groups)), key=lambda group: -len(groups[group]))
    sizes = [0] * folds
    fold_of = np.empty(len(tasks), np.intp)
    for group in order:
        fold = min(range(folds), key=lambda candidate: sizes[candidate])
        fold_of[groups[group]] = fold
        sizes[fold] += len(groups[group])
    return fold_of


def _concordance(scores: FloatArray, failed: BoolArray, fold_of: IntArray) -> float | None:
    """The share of pairs of a failure and a success in one fold that are in the right order, ties one half."""
    wins, pairs = 0.0, 0
    for fold in np.unique(fold_of):
        bad = scores[(fold_of == fold) & failed]
        good = np.sort(scores[(fold_of == fold) & ~failed])
        wins += 0.5 * float((np.searchsorted(good, bad, "left") + np.searchsorted(good, bad, "right")).sum())
        pairs += len(bad) * len(good)
    return wins / pairs if pairs else None


LEAST_OF_EACH = 10
"""Failures, and successes, below which parameters are noise: the defaults are better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerRunsFit:
    """Fitted settings, ready for `Profile.trajectory_risk`; what they were fitted on; and their worth on other tasks.

    `cross_validation` is None when there are fewer tasks than folds, or a fold leaves runs of one kind only: then
    nobody knows what the fit is worth. `counts`: runs used and, by reason, left out.
    """

    settings: TrajectoryRiskSettings
    fit: TracerFit
    cross_validation: TracerCrossValidation | None
    counts: Mapping[str, int]


def fit_tracer_settings(
    trajectories: Trajectories, *, rng: np.random.Generator, base: TrajectoryRiskSettings | None = None
) -> TracerRunsFit:
    """Fit (alpha, beta, gamma, k, w) on labelled trajectories, and cross-validate the fit with whole tasks in folds.

    `base`: the settings that the runs were watched with; its other constants stay. The parameters hold for the same
    embedder. Whatever is calibrated on the risk afterwards (a detector's threshold) needs other runs than these.

    Raises ConfigurationError with fewer than `LEAST_OF_EACH` failures or successes.
    """
    base = TrajectoryRiskSettings() if base is None else base
    composite = base.parameters.composite
    runs = trajectories.runs
    failures = sum(run.failed for run in runs)
    successes = len(runs) - failures
    if min(failures, successes) < LEAST_OF_EACH:
        rule = f"at least {LEAST_OF_EACH} failures and {LEAST_OF_EACH} successes that were watched with TRACER"
        got = f"{failures} failures, {successes} successes; left out: {dict(trajectories.excluded)}"
        raise ConfigurationError.of("trajectories", "fit_tracer_settings", rule, got)
    steps, failed, tasks = [run.steps for run in runs], [run.failed for run in runs], [run.task for run in runs]
    validated = None
    with suppress(ConfigurationError):  # fewer tasks than folds, or runs of one kind only outside of one
        validated = cross_validate_tracer(steps, failed, tasks, rng=rng, composite=composite)
    fit = fit_tracer(steps, failed, rng=rng, composite=composite)
    return TracerRunsFit(
        settings=base.model_copy(update={"parameters": fit.parameters}),
        fit=fit,
        cross_validation=validated,
        counts={"failures": failures, "successes": successes, **trajectories.excluded},
    )
