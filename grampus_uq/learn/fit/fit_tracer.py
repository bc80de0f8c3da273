"""Fits TRACER to labelled runs by the pairwise logistic loss, and says how well the fit does on tasks not seen.

    L(theta) = 1/(|F||S|) sum_{i in F} sum_{j in S} ln(1 + exp(-(s_i - s_j)/tau))      (TRACER, A-G)

F are the failed runs and S the successes. The search is coarse to fine over (alpha, beta, gamma, k), then over w.
Signals are computed before, once a step; here everything is arithmetic on arrays. The fitted parameters come with
cross-validated figures only: folds hold whole tasks, and a run is scored by parameters that never saw its task.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.tail_sketch import tail_count
from grampus_uq.stats.trajectory_risk import Composite, StepComponents, TracerParameters, weighted_components

__all__ = ["TracerCrossValidation", "TracerFit", "TracerFitOptions", "cross_validate_tracer", "fit_tracer"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

_COARSE_WEIGHTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_COARSE_K: Final = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
_FINE_STEPS: Final = (0.125, 0.0625)
_FINE_K: Final = (0.75, 1.0, 1.33)
_W: Final = tuple(i / 20 for i in range(21))
_CELLS: Final = 4_000_000
"""Numbers held at once while a block of settings is scored (32 MB)."""

_UNWEIGHTED: Final = TracerParameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerFitOptions:
    """How to fit. `tau` > 0 is the temperature of the loss; `composite` says which variant of Table IV is fitted.

    `folds` >= 2 of the cross-validation. Where there are more than `max_pairs` pairs of a failure and a success, that
    many are drawn once, and every setting is judged on the same ones.
    """

    tau: float = 1.0
    composite: Composite = Composite.MAX
    folds: int = 5
    max_pairs: int = 200_000

    def __post_init__(self) -> None:
        if not 0.0 < self.tau < math.inf:
            raise ConfigurationError.of("tau", "TracerFitOptions", "a finite number > 0", self.tau)
        if self.folds < 2:
            raise ConfigurationError.of("folds", "TracerFitOptions", "at least 2", self.folds)
        if self.max_pairs < 1:
            raise ConfigurationError.of("max_pairs", "TracerFitOptions", "at least 1", self.max_pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerFit:
    """Fitted parameters and what they were fitted on; JSON-able. The losses are of the training runs themselves.

    `default_loss` is the loss of the unfitted defaults on the same pairs. Neither says how the fit does on other runs:
    that is `cross_validate_tracer`.
    """

    parameters: TracerParameters
    loss: float
    default_loss: float
    tau: float
    failures: int
    successes: int
    tasks: int
    settings_tried: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerCrossValidation:
    """How fitted parameters do on tasks that they were not fitted on; JSON-able.

    `auroc`: probability that a failure is scored above a success of the same fold, each scored by the parameters of the
    other folds, ties one half; higher is better, .5 says nothing. `default_auroc`: the same pairs, unfitted defaults.
    Both None when no fold holds a failure and a success. `fold_of` gives each run's fold, `parameters` each fold's fit,
    `scores` each run's held-out score as its rank among the scores of the runs it was fitted on, in [0, 1]: comparable
    over folds, higher is worse.
    """

    auroc: float | None
    default_auroc: float | None
    pairs: int
    parameters: tuple[TracerParameters, ...]
    fold_of: tuple[int, ...]
    scores: tuple[float, ...]


def fit_tracer(
    runs: Sequence[Sequence[StepComponents]],
    failed: Sequence[bool],
    *,
    rng: np.random.Generator,
    tasks: Sequence[Hashable] | None = None,
    options: TracerFitOptions | None = None,
) -> TracerFit:
    """Find the parameters that best separate failed runs from successes.

    `runs`: the components of every step of each run, at least one step each. `failed`: True for a failure; of both
    kinds there must be one. Leave out runs whose outcome was selected (stopped by the monitor or a human). `tasks`:
    only counted here. `rng` draws pairs when there are too many. The largest of the fitted weights is 1, none is
    negative; surprisal has weight 1 as in the paper. The loss depends on the scale of scores, so `tau` matters.

    Raises ConfigurationError for unequal lengths, an empty run, or runs of one kind only.
    """
    options = TracerFitOptions() if options is None else options
    table = _Table.of(runs, failed)
    groups = list(range(len(runs))) if tasks is None else list(tasks)
    if len(groups) != len(runs):
        raise ConfigurationError.of("tasks", "fit_tracer", f"one a run ({len(runs)})", len(groups))
    return _fit(table, np.arange(len(runs)), len(set(groups)), options, rng)


def cross_validate_tracer(
    runs: Sequence[Sequence[StepComponents]],
    failed: Sequence[bool],
    tasks: Sequence[Hashable],
    *,
    rng: np.random.Generator,
    options: TracerFitOptions | None = None,
) -> TracerCrossValidation:
    """Fit on all folds but one and score that one, for every fold; all runs of a task are in one fold.

    `tasks`: the task of each run; trials of one task share what makes it hard, so a split between them would leak.
    Tasks are dealt to folds at random by `rng`, the largest first, so that folds are about equal.

    Raises ConfigurationError when there are fewer tasks than folds, or when the runs outside of a fold are of one kind.
    """
    options = TracerFitOptions() if options is None else options
    table = _Table.of(runs, failed)
    if len(tasks) != len(runs):
        raise ConfigurationError.of("tasks", "cross_validate_tracer", f"one a run ({len(runs)})", len(tasks))
    fold_of = _folds(tasks, options.folds, rng)
    default = table.scores(replace(_UNWEIGHTED, composite=options.composite))
    scores = np.empty(len(runs))
    held_out = np.empty(len(runs))
    parameters = []
    for fold in range(options.folds):
        inside = np.flatnonzero(fold_of != fold)
        outside = np.flatnonzero(fold_of == fold)
        known = len({tasks[int(i)] for i in inside})
        fitted = _fit(table, inside, known, options, rng).parameters
        parameters.append(fitted)
        values = table.scores(fitted)
        held_out[outside] = values[outside]
        reference = np.sort(values[inside])
        below = np.searchsorted(reference, values[outside], "left") + np.searchsorted(
            reference, values[outside], "right"
        )
        scores[outside] = below / (2 * len(reference))
    wins, pairs = _concordance(held_out, table.failed, fold_of)
    default_wins, _ = _concordance(default, table.failed, fold_of)
    return TracerCrossValidation(
        auroc=wins / pairs if pairs else None,
        default_auroc=default_wins / pairs if pairs else None,
        pairs=pairs,
        parameters=tuple(parameters),
        fold_of=tuple(int(fold) for fold in fold_of),
        scores=tuple(float(score) for score in scores),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """The components of all runs as one padded array: shape (runs, longest, 4), absent ones 0, padding -1."""

    values: FloatArray
    lengths: IntArray
    failed: npt.NDArray[np.bool_]

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
        tails, worst = self._tails(weights, parameters.composite, [parameters.k])
        return np.asarray((1.0 - parameters.w) * tails[0, 0] + parameters.w * worst[0])

    def blocks(
        self, weights: FloatArray, composite: Composite, ks: Sequence[float]
    ) -> Iterator[tuple[int, FloatArray, FloatArray]]:
        """Yield (first setting, tail means (settings, ks, runs), worst steps (settings, runs)) in blocks that fit."""
        size = max(1, _CELLS // (self.values.shape[0] * self.values.shape[1]))
        for start in range(0, len(weights), size):
            yield (start, *self._tails(weights[start : start + size], composite, ks))

    def _tails(self, weights: FloatArray, composite: Composite, ks: Sequence[float]) -> tuple[FloatArray, FloatArray]:
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


def _fit(table: _Table, chosen: IntArray, tasks: int, options: TracerFitOptions, rng: np.random.Generator) -> TracerFit:
    table = _Table(table.values[chosen], table.lengths[chosen], table.failed[chosen])
    pairs = _pairs(table.failed, options.max_pairs, rng)
    default = replace(_UNWEIGHTED, composite=options.composite)
    grid = [weights for weights in product(_COARSE_WEIGHTS, repeat=3) if max(weights) == 1.0]
    best, tried = _search(table, pairs, options, grid, _COARSE_K, default), len(grid) * len(_COARSE_K)
    for step in _FINE_STEPS:
        grid = _neighbours(best[1], step)
        ks = sorted({min(1.0, round(best[1].k * factor, 6)) for factor in _FINE_K})
        best = min(best, _search(table, pairs, options, grid, ks, default), key=lambda found: found[0])
        tried += len(grid) * len(ks)
    parameters = best[1]
    losses = [(_loss(table.scores(replace(parameters, w=w)), pairs, options.tau), replace(parameters, w=w)) for w in _W]
    loss, parameters = min([best, *losses], key=lambda found: found[0])
    return TracerFit(
        parameters=parameters,
        loss=loss,
        default_loss=_loss(table.scores(default), pairs, options.tau),
        tau=options.tau,
        failures=int(table.failed.sum()),
        successes=int((~table.failed).sum()),
        tasks=tasks,
        settings_tried=tried + len(_W),
    )


def _search(
    table: _Table,
    pairs: tuple[IntArray, IntArray],
    options: TracerFitOptions,
    grid: Sequence[tuple[float, ...]],
    ks: Sequence[float],
    base: TracerParameters,
) -> tuple[float, TracerParameters]:
    """Try every weights with every k, at the default w; the first of equally good ones wins."""
    best: tuple[float, TracerParameters] | None = None
    for start, tails, worst in table.blocks(np.array(grid), options.composite, ks):
        for i, j in np.ndindex(*tails.shape[:2]):
            loss = _loss((1.0 - base.w) * tails[i, j] + base.w * worst[i], pairs, options.tau)
            if best is None or loss < best[0]:
                alpha, beta, gamma = grid[start + i]
                best = loss, replace(base, alpha=alpha, beta=beta, gamma=gamma, k=ks[j])
    if best is None:
        raise AssertionError("the grids are never empty")
    return best


def _neighbours(center: TracerParameters, step: float) -> list[tuple[float, ...]]:
    """Give the weights one step around, inside [0, 1], the largest of each being 1."""
    axes = [sorted({min(1.0, max(0.0, weight + move)) for move in (-step, 0.0, step)}) for weight in _weights(center)]
    return [weights for weights in product(*axes) if max(weights) == 1.0]


def _weights(parameters: TracerParameters) -> tuple[float, float, float]:
    return parameters.alpha, parameters.beta, parameters.gamma


def _pairs(failed: npt.NDArray[np.bool_], most: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
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


def _loss(scores: FloatArray, pairs: tuple[IntArray, IntArray], tau: float) -> float:
    """Average ln(1 + exp(-(s_i - s_j)/tau)) over the pairs, without overflow."""
    return float(np.logaddexp(0.0, (scores[pairs[1]] - scores[pairs[0]]) / tau).mean())


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


def _concordance(scores: FloatArray, failed: npt.NDArray[np.bool_], fold_of: IntArray) -> tuple[float, int]:
    """Count, over pairs of a failure and a success in one fold, those in the right order (ties one half), and all."""
    wins, pairs = 0.0, 0
    for fold in np.unique(fold_of):
        bad = scores[(fold_of == fold) & failed]
        good = np.sort(scores[(fold_of == fold) & ~failed])
        wins += 0.5 * float((np.searchsorted(good, bad, "left") + np.searchsorted(good, bad, "right")).sum())
        pairs += len(bad) * len(good)
    return wins, pairs
