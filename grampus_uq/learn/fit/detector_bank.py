"""The bank of statistics that a detector is chosen from: each learns log M_t from labelled runs, or learns nothing.

Members: a logistic regression a step on {last, low, mean, EWMA .5, previous}; gradient boosting with monotone
constraints (none on counts, which point neither way) on all prefix features of all steps; one logistic regression on
EWMA .5; one on {last, EWMA .5, EWMA .2}; averages of their logits; and, untrained, the running minima of the scores and
of their EWMAs. Probabilities enter the trained members as logits (held within [.001, .999]), and the regressions a step
also as they are, which serves coarse scores better.

Pooled members see every step of a run with weight 1/length, so that long runs do not outvote short ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import MissingDependencyError
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.arrays import BoolArray, FloatArray, known_mean
from grampus_uq.stats.eprocess_scorers import MINIMA_OF, FeatureScorer, LinearScore, running_minimum
from grampus_uq.stats.fusion import is_count
from grampus_uq.stats.prefix_features import STREAM_FEATURES
from grampus_uq.stats.step_blocks import run_of_row, step_of_row
from grampus_uq.stats.tree_ensemble import TreeEnsemble

_LOGIT_CLIP = 1e-3
"""The bound at which a stated probability is clipped before its logit enters a trained member."""

LEAST_OF_A_CLASS = 10
"""A step gets a logistic regression of its own when at least this many successes and failures reach it."""

_BINS = 63
_PER_STEP = ("last", "low", "mean", "ewma_50", "previous")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Features, outcomes and weights of the rows that a component is fitted on."""

    streams: tuple[str, ...]
    frame: FeatureScorer
    features: FloatArray
    success: BoolArray
    weight: FloatArray
    step: npt.NDArray[np.intp]


_Component = Callable[[Training], FeatureScorer | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A named statistic: the average of the logits of its components, all on one scale of the scores."""

    name: str
    parts: tuple[str, ...]
    logits: bool = True


TRAINED: tuple[Member, ...] = (
    Member(name="pooled_ewma", parts=("ewma",)),
    Member(name="pooled_three", parts=("three",)),
    Member(name="per_step", parts=("per_step",), logits=False),
    Member(name="per_step_logit", parts=("per_step",)),
    Member(name="boosted", parts=("boosted",)),
    Member(name="per_step_boosted", parts=("per_step", "boosted")),
    Member(name="three_boosted", parts=("three", "boosted")),
)
"""The learners, the simpler ones first."""


def bank(runs: DetectorRuns) -> tuple[Member, ...]:
    """Return the members for these streams, in order of preference: at equal estimated power the earlier is chosen."""
    minima = [
        Member(name=untrained(runs, stream, of).name + (f":{name}" if stream else ""), parts=(f"{of}:{stream}",))
        for stream, name in enumerate(runs.streams)
        for of in (MINIMA_OF if not is_count(name) and not runs.at_calls else ("low",))
    ]
    return (*minima, *TRAINED)


def untrained(runs: DetectorRuns, stream: int = 0, of: str | None = None) -> FeatureScorer:
    """Return a running minimum of a stream, on the prior of the runs where they have outcomes of both kinds.

    At calls it is that of the stream itself: a call that was sure says nothing for a later one, so none is smoothed.
    """
    of = of or ("low" if runs.at_calls else MINIMA_OF[0])
    rate = float(runs.success.mean()) if runs.success is not None and len(runs) else 0.5
    return running_minimum(
        bounded=(True,) * len(runs.streams),
        neutral=tuple(map(known_mean, runs.values.T)),
        stream=stream,
        prior_log_odds=math.log(rate) - math.log1p(-rate) if 0.0 < rate < 1.0 else 0.0,
        of=of,
    )


def fit_members(runs: DetectorRuns, members: Iterable[Member]) -> dict[str, FeatureScorer]:
    """Fit every member on runs with outcomes of both kinds; one that these runs cannot support is left out.

    Raises MissingDependencyError without scikit-learn.
    """
    training = cache(partial(_training, runs))

    @cache
    def fitted(part: str, logits: bool) -> FeatureScorer | None:
        of, _, stream = part.partition(":")
        if stream:
            return untrained(runs, int(stream), of)
        known = training(logits)
        one_kind = known.success.all() or not known.success.any()  # the others never gave a score
        return None if one_kind else _COMPONENTS[part](known)

    result: dict[str, FeatureScorer] = {}
    with _one_thread():
        for member in members:
            parts = [found for part in member.parts if (found := fitted(part, member.logits)) is not None]
            if len(parts) == len(member.parts):
                result[member.name] = replace(average(parts), name=member.name)
    return result


def average(scorers: list[FeatureScorer]) -> FeatureScorer:
    """Average the logits of scorers that share scale, streams and prior into one scorer."""
    if len(scorers) == 1:
        return scorers[0]
    share = 1.0 / len(scorers)
    linear = [scorer.linear for scorer in scorers if scorer.linear is not None]
    trees = [scorer for scorer in scorers if scorer.trees is not None]  # at most one
    return replace(
        scorers[0],
        longest=max(scorer.longest for scorer in scorers),
        name="+".join(scorer.name for scorer in scorers),
        linear=_sum_linear(linear, share) if linear else None,
        trees=trees[0].trees if trees else None,
        tree_share=share * trees[0].tree_share if trees else 1.0,
    )


def _frame(runs: DetectorRuns, *, logits: bool, longest: int) -> FeatureScorer:
    """The scale of the scores and what stands in for missing ones; its linear part is only a placeholder."""
    return FeatureScorer(
        name="frame",
        clips=(_LOGIT_CLIP if logits else None,) * len(runs.streams),
        neutral=tuple(map(_logit_mean if logits else known_mean, runs.values.T)),
        longest=longest,
        linear=LinearScore(columns=(0,), intercepts=(0.0,), weights=((1.0,),)),
    )


def _logit_mean(x: FloatArray) -> float:
    held = np.clip(x, _LOGIT_CLIP, 1.0 - _LOGIT_CLIP)
    return known_mean(np.log(held / (1.0 - held)))


def _training(runs: DetectorRuns, logits: bool) -> Training:
    success = runs.labels
    blocks = runs.blocks
    frame = _frame(runs, logits=logits, longest=int(runs.lengths.max()))
    prior = float(success.mean())
    frame = replace(frame, prior_log_odds=math.log(prior) - math.log1p(-prior))
    features = frame.features(blocks)
    owner = run_of_row(blocks)
    seen = ~np.isnan(blocks.values).all(axis=1)  # a step without any score repeats the one before it
    return Training(
        streams=runs.streams,
        frame=frame,
        features=features[:-1, seen],
        success=success[owner][seen],
        weight=(1.0 / runs.lengths[owner])[seen],
        step=step_of_row(blocks)[seen],
    )


def _columns(training: Training, names: Iterable[str]) -> tuple[int, ...]:
    streams, width = len(training.frame.neutral), len(STREAM_FEATURES)
    return tuple(sorted(width * stream + STREAM_FEATURES.index(name) for stream in range(streams) for name in names))


def _fit_pooled(names: Sequence[str], training: Training) -> FeatureScorer:
    columns = _columns(training, names)
    intercept, weights = _logistic(training.features[list(columns)], training.success, training.weight)
    linear = LinearScore(columns=columns, intercepts=(intercept,), weights=(weights,))
    return replace(training.frame, linear=linear, longest=1)


def _fit_per_step(training: Training) -> FeatureScorer | None:
    """One regression a step as long as both classes are common enough; later steps use the last one."""
    columns = _columns(training, _PER_STEP)
    rows = []
    for step in range(1, int(training.step.max()) + 1):
        here = training.step == step
        successes = int(training.success[here].sum())
        if min(successes, int(here.sum()) - successes) < LEAST_OF_A_CLASS:
            break
        rows.append(_logistic(training.features[list(columns)][:, here], training.success[here], None))
    if not rows:
        return None
    linear = LinearScore(columns=columns, intercepts=tuple(b for b, _ in rows), weights=tuple(w for _, w in rows))
    return replace(training.frame, linear=linear, longest=len(rows))


def _fit_boosted(training: Training) -> FeatureScorer:
    trees = boosted_trees(training.features, training.success, training.weight, _monotone(training))
    return replace(training.frame, linear=None, trees=trees)


def _monotone(training: Training) -> list[int]:
    own = len(STREAM_FEATURES)
    signs = [0 if is_count(name) else 1 for name in training.streams for _ in range(own)]
    return signs + [0] * (len(training.features) - len(signs))


_COMPONENTS: dict[str, _Component] = {
    "ewma": partial(_fit_pooled, ["ewma_50"]),
    "three": partial(_fit_pooled, ["last", "ewma_50", "ewma_20"]),
    "per_step": _fit_per_step,
    "boosted": _fit_boosted,
}


def _logistic(x: FloatArray, success: BoolArray, weight: FloatArray | None) -> tuple[float, tuple[float, ...]]:
    """scikit-learn's logistic regression with its defaults on standardised features, in plain units."""
    from sklearn.linear_model import LogisticRegression

    centre = np.average(x, axis=1, weights=weight)
    spread = np.sqrt(np.average((x - centre[:, None]) ** 2, axis=1, weights=weight))
    spread[spread <= 1e-9 * np.maximum(1.0, np.abs(centre))] = 1.0  # a constant, but for rounding
    model = LogisticRegression(max_iter=1000)
    model.fit(((x - centre[:, None]) / spread[:, None]).T, success, sample_weight=weight)
    weights = model.coef_[0] / spread
    return float(model.intercept_[0] - weights @ centre), tuple(weights.tolist())


def boosted_trees(x: FloatArray, success: BoolArray, weight: FloatArray, monotone: list[int]) -> TreeEnsemble:
    """Fit scikit-learn's histogram gradient boosting and read its trees out as plain arrays.

    `x`: shape (features, rows), finite; `weight`: positive; `monotone`: for each feature 1 when f may only rise with
    it, else 0. The ensemble's value is the model's decision function (log odds of success).

    The model sees the number of the bin that a value falls into, which spares it most of its time: it would look for
    the edges one quantile after the other.
    """
    edges = [_bin_edges(column, weight) for column in x]
    bins = np.stack([np.searchsorted(between, column) for between, column in zip(edges, x, strict=True)])
    trees = read_trees(fit_boosting(bins.astype(np.float64), success, weight, monotone))
    nodes = zip(trees.feature, trees.threshold, strict=True)
    return replace(trees, threshold=tuple(0.0 if at < 0 else float(edges[at][math.floor(cut)]) for at, cut in nodes))


def _bin_edges(column: FloatArray, weight: FloatArray) -> FloatArray:
    """Upper edges of all bins but the last: between distinct values, of which each gets a bin where they are few; else
    the quantiles that part the weight evenly (one that falls between two values is their mean)."""
    distinct = np.unique(column)
    if len(distinct) <= _BINS:
        return (distinct[:-1] + distinct[1:]) / 2.0
    order = np.argsort(column)
    sums = np.cumsum(weight[order])
    wanted = np.linspace(0.0, 1.0, _BINS + 1)[1:-1] * sums[-1]
    at = np.minimum(np.searchsorted(sums, wanted), len(sums) - 1)
    after = np.where(sums[at] - wanted > 1e-12 * sums[-1], at, np.minimum(at + 1, len(sums) - 1))
    return np.unique((column[order][at] + column[order][after]) / 2.0)


def fit_boosting(x: FloatArray, success: BoolArray, weight: FloatArray, monotone: list[int]) -> Any:
    """Return the fitted scikit-learn model itself."""
    with _one_thread():
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(
            max_iter=60,
            max_bins=_BINS,
            max_depth=3,
            learning_rate=0.1,
            min_samples_leaf=20,
            l2_regularization=1.0,
            monotonic_cst=monotone,
            early_stopping=False,
            random_state=0,
        )
        return model.fit(x.T, success, sample_weight=weight)


def _one_thread() -> AbstractContextManager[Any]:
    """These fits are small: threads cost more than they bring, and very much more beside other work.

    Raises MissingDependencyError without scikit-learn.
    """
    with MissingDependencyError.unless("scikit-learn", "fit", "Fitting a detector"):
        import sklearn  # noqa: F401 (what runs inside needs it)
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types
    limits: AbstractContextManager[Any] = threadpool_limits(limits=1)
    return limits


def read_trees(model: Any) -> TreeEnsemble:
    """Read the trees of a fitted binary HistGradientBoostingClassifier.

    scikit-learn offers no public way to the nodes of this estimator; a test compares with its predictions to 1e-9.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ("feature", "threshold", "left", "right", "value")}
    roots: list[int] = []
    for [predictor] in model._predictors:
        first = len(columns["feature"])
        roots.append(first)
        for node in predictor.nodes:
            leaf = bool(node["is_leaf"])
            columns["feature"].append(-1 if leaf else int(node["feature_idx"]))
            columns["threshold"].append(0.0 if leaf else float(node["num_threshold"]))
            columns["left"].append(0 if leaf else first + int(node["left"]))
            columns["right"].append(0 if leaf else first + int(node["right"]))
            columns["value"].append(float(node["value"]) if leaf else 0.0)
    frozen = {name: tuple(column) for name, column in columns.items()}
    return TreeEnsemble(baseline=float(np.ravel(model._baseline_prediction)[0]), roots=tuple(roots), **frozen)


def _sum_linear(parts: list[LinearScore], share: float) -> LinearScore:
    """Add linear scores times `share`; a shorter table goes on with its last row."""
    columns = tuple(sorted({column for part in parts for column in part.columns}))
    steps = max(len(part.intercepts) for part in parts)
    intercepts = np.zeros(steps)
    weights = np.zeros((steps, len(columns)))
    for part in parts:
        held = np.minimum(np.arange(steps), len(part.intercepts) - 1)
        intercepts += share * np.asarray(part.intercepts)[held]
        places = [columns.index(column) for column in part.columns]
        weights[:, places] += share * np.asarray(part.weights)[held]
    return LinearScore(
        columns=columns, intercepts=tuple(intercepts.tolist()), weights=tuple(tuple(row) for row in weights.tolist())
    )
