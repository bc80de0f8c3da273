"""From scores to log M_t: the fitted or untrained log ratio, of one live run or of many at once, bit for bit the same.

    log M_t = log pi1 - log(1 - pi1) - logit f_t(S_1..S_t)        (eq. 3; f_t estimates P(success | scores so far))

`FeatureScorer` reads `prefix_features` in constant time and memory. `PaperScorer` is the paper's own model, a logistic
regression on the whole prefix for each step; its state grows up to the longest step that was fitted.

In fitting, calibration and live alike: a step beyond the longest fitted one is treated as that one (the paper's scorer
keeps its ratio, Algorithm 2, line 9); a step without any score keeps log M_t; a stated 0 or 1 is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.prefix_features import (
    EMPTY_STREAM,
    LARGEST,
    STREAM_FEATURES,
    StreamState,
    logit,
    logits,
    prefix_features,
    stream_features,
    stream_update,
)
from grampus_uq.stats.step_blocks import StepBlocks
from grampus_uq.stats.tree_ensemble import TreeEnsemble, evaluate_many, evaluate_one

Memory = tuple[tuple[float, ...], ...]
"""A scorer's state of one run: plain numbers."""

_LOGIT_LIMIT = math.log((1.0 - 1e-6) / 1e-6)
"""The bound of logit f_t: at estimated probabilities within 1e-6 of certainty."""

_MINIMUM_CLIP = 1e-6
"""Clip bound of probabilities before their logit in a running minimum; it preserves the order of runs."""

MINIMA_OF = ("ewma_50", "low", "ewma_20", "ewma_10")
"""Features that a running minimum may use, best first (untrained, on published runs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScore:
    """A linear function of some features: one row of weights per step, the last row for all later steps.

    Attributes:
        columns: features used, ascending; `13 * stream + place`, then the step, then 0.
        intercepts: one per step; a single one serves every step.
        weights: for each of them, one weight per column.
        terms: (derived) pairs of column and weight, what a live step walks through.
    """

    columns: tuple[int, ...]
    intercepts: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    terms: tuple[tuple[tuple[int, float], ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.intercepts or len(self.intercepts) != len(self.weights):
            raise ConfigurationError.of("weights", "LinearScore", "one row for each intercept", len(self.weights))
        if any(len(row) != len(self.columns) for row in self.weights) or min(self.columns, default=0) < 0:
            raise ConfigurationError.of("columns", "LinearScore", "as many as each row has weights", self.columns)
        if not all(abs(x) <= LARGEST for row in ((*self.intercepts,), *self.weights) for x in row):
            raise ConfigurationError.of("weights", "LinearScore", f"within +-{LARGEST:g}", self.weights)
        terms = tuple(tuple(zip(self.columns, row, strict=True)) for row in self.weights)
        object.__setattr__(self, "terms", terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureScorer:
    """logit f_t as a linear score, a sum of trees, or both, over the prefix features.

    Attributes:
        name: which member of the bank this is.
        clips: one per stream: its scores are probabilities and enter as logits held within [clip, 1 - clip]; None takes
            them as they are.
        neutral: one value per stream, on the scale of the model: stands in until the stream's first score.
        longest: longest fitted step.
        linear: the linear part, already times its share; None without one.
        trees: the trees; None without any.
        tree_share: what their sum is multiplied by.
        prior_log_odds: log(pi1 / (1 - pi1)) of the fitting runs; 0 for an untrained score.
        limit: |logit f_t| is held below this; None for scores that are not probabilities.
        sees_last: True when a further feature is read that is 0: in older fits the flag "this is the last step".
    """

    name: str
    clips: tuple[float | None, ...]
    neutral: tuple[float, ...]
    longest: int
    linear: LinearScore | None
    trees: TreeEnsemble | None = None
    tree_share: float = 1.0
    prior_log_odds: float = 0.0
    limit: float | None = _LOGIT_LIMIT
    sees_last: bool = False
    kind: Literal["features"] = "features"

    def __post_init__(self) -> None:
        width = len(STREAM_FEATURES) * len(self.neutral) + 1 + self.sees_last
        used = [*(self.linear.columns if self.linear else ()), *(self.trees.feature if self.trees else ())]
        numbers = (*self.neutral, self.tree_share, self.prior_log_odds)
        if not self.neutral or not all(abs(x) <= LARGEST for x in numbers):
            rule = f"one number a stream, within +-{LARGEST:g}"
            raise ConfigurationError.of("neutral", "FeatureScorer", rule, self.neutral)
        if not used or max(used) >= width:
            raise ConfigurationError.of("linear", "FeatureScorer", f"on features 0..{width - 1}", used)
        if len(self.clips) != len(self.neutral) or not all(c is None or 0.0 < c < 0.5 for c in self.clips):
            raise ConfigurationError.of("clips", "FeatureScorer", "None or in (0, 0.5), one a stream", self.clips)
        if self.longest < 1 or (self.limit is not None and not self.limit > 0.0):
            raise ConfigurationError.of("longest", "FeatureScorer", "at least 1, with a positive limit", self.longest)

    def start(self) -> Memory:
        """Memory of a run before its first step: one empty state per stream."""
        return (EMPTY_STREAM,) * len(self.neutral)

    def advance(self, memory: Memory, scores: Sequence[float | None], step: int) -> tuple[Memory, float]:
        """Take the scores of a step, at least one of them present; return the new memory and log M_t.

        Constant time and memory whatever the step.
        """
        states: list[StreamState] = []
        features: list[float] = []
        for state, score, clip, neutral in zip(memory, scores, self.clips, self.neutral, strict=True):
            if score is not None:
                state = stream_update(state, score if clip is None else logit(score, clip))
            states.append(state)
            features += stream_features(state, neutral)
        held = step if step < self.longest else self.longest
        features += (float(held), 0.0)
        total, linear, limit = 0.0, self.linear, self.limit
        if linear is not None:
            place = (held if held < len(linear.terms) else len(linear.terms)) - 1
            total = linear.intercepts[place]
            for column, weight in linear.terms[place]:
                total += weight * features[column]
        if self.trees is not None:
            total += self.tree_share * evaluate_one(self.trees, features)
        if limit is not None:
            total = -limit if total < -limit else limit if total > limit else total
        return tuple(states), self.prior_log_odds - total

    def batch(self, blocks: StepBlocks) -> FloatArray:
        """log M_t of every row, in block order; NaN before the first score of a run."""
        features = self.features(blocks, self._columns())
        total = np.zeros(len(blocks.values))
        if (linear := self.linear) is not None:
            for step, rows in blocks:
                place = min(step, self.longest, len(linear.intercepts)) - 1
                block = total[rows]
                block[:] = linear.intercepts[place]
                for column, weight in linear.terms[place]:
                    block += weight * features[column, rows]
        if self.trees is not None:
            total += self.tree_share * evaluate_many(self.trees, features)
        if self.limit is not None:
            np.clip(total, -self.limit, self.limit, out=total)
        return _keep_where_missing(blocks, self.prior_log_odds - total)

    def features(self, blocks: StepBlocks, columns: Sequence[int] | None = None) -> FloatArray:
        """All features of all rows, shape (features, rows); only the lines in `columns` are computed."""
        streams = len(self.neutral)
        pairs = zip(blocks.values.T, self.clips, strict=True)
        blocks = replace(blocks, values=np.column_stack([x if c is None else logits(x, c) for x, c in pairs]))
        own = len(STREAM_FEATURES) * streams
        chosen = range(own) if columns is None else sorted({column for column in columns if column < own})
        result = np.empty((own + 2, len(blocks.values)))
        result[chosen] = prefix_features(blocks, self.neutral, chosen)
        result[own + 1] = 0.0
        for step, rows in blocks:
            result[own, rows] = float(min(step, self.longest))
        return result

    def _columns(self) -> list[int]:
        return [
            *(self.linear.columns if self.linear else ()),
            *(feature for feature in (self.trees.feature if self.trees else ()) if feature >= 0),
        ]


def running_minimum(
    *,
    bounded: tuple[bool, ...],
    neutral: tuple[float, ...],
    stream: int = 0,
    prior_log_odds: float = 0.0,
    of: str = "low",
) -> FeatureScorer:
    """Take the smallest score of one stream so far as the probability of success in eq. 3; nothing is learned.

    Or the smallest running mean: one low score is often noise, several in a row are not. A detector alarms at the
    highest evidence so far, which is what makes a running minimum out of `of`. A stream that is not a probability
    enters as it is: `log M_t = -min`, evidence on the stream's own scale.

    `bounded`: True for each stream whose scores are probabilities. `neutral`: one raw score per stream, which stands in
    while only other streams have given one. `stream`: which one counts. `prior_log_odds`: log(pi1 / (1 - pi1)) where
    the success rate is known; moves the scale, never an alarm. `of`: "low" for the scores themselves, or "ewma_50",
    "ewma_20", "ewma_10": exponentially weighted means of their log odds with weight .5, .2, .1 on the newest,
    half-lives of 1, 3 and 7 steps.
    """
    column = len(STREAM_FEATURES) * stream + STREAM_FEATURES.index(of)
    return FeatureScorer(
        name="running_minimum" if of == "low" else f"running_minimum_of_{of}",
        clips=tuple(_MINIMUM_CLIP if inside else None for inside in bounded),
        neutral=tuple(logit(x, _MINIMUM_CLIP) if inside else x for x, inside in zip(neutral, bounded, strict=True)),
        longest=1,
        linear=LinearScore(columns=(column,), intercepts=(0.0,), weights=((1.0,),)),
        prior_log_odds=prior_log_odds if bounded[stream] else 0.0,
        limit=_LOGIT_LIMIT if bounded[stream] else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperScorer:
    """The paper's model: at step t a logistic regression on S_1..S_t; at a step without a model the ratio is kept.

    A missing score keeps the ratio too, and the last score seen stands in for it in later prefixes.

    Attributes:
        intercepts: one per step up to the longest fitted one; None where no model was fitted.
        weights: t weights at step t, none where no model was fitted.
        prior_log_odds: log(pi1 / (1 - pi1)), pi1 the share of successes among the fitting runs at step 1.
        fill: stands in for scores missing before the first one.
    """

    intercepts: tuple[float | None, ...]
    weights: tuple[tuple[float, ...], ...]
    prior_log_odds: float
    fill: float = 0.5
    limit: float = _LOGIT_LIMIT
    kind: Literal["paper"] = "paper"

    def __post_init__(self) -> None:
        sizes = [0 if intercept is None else step for step, intercept in enumerate(self.intercepts, start=1)]
        if not sizes or sizes[0] != 1 or [len(row) for row in self.weights] != sizes:
            raise ConfigurationError.of("weights", "PaperScorer", "t numbers at step t, from step 1 on", self.weights)
        numbers = [x for x in (*self.intercepts, self.prior_log_odds, self.fill) if x is not None]
        if not all(abs(x) <= LARGEST for row in (numbers, *self.weights) for x in row) or not self.limit > 0.0:
            raise ConfigurationError.of("weights", "PaperScorer", f"within +-{LARGEST:g}", self.weights)

    def start(self) -> Memory:
        """log M so far, then the scores so far."""
        return ((0.0,),)

    def advance(self, memory: Memory, scores: Sequence[float | None], step: int) -> tuple[Memory, float]:
        """Take the score of a step; time and memory grow with the step, up to the longest fitted one."""
        [[log_m, *prefix]] = memory
        fitted = len(self.intercepts)
        if step > fitted or scores[0] is None:
            return memory, log_m
        prefix.extend([prefix[-1] if prefix else self.fill] * (step - 1 - len(prefix)))
        prefix.append(scores[0])
        intercept = self.intercepts[step - 1]
        if intercept is not None:
            total = intercept
            for weight, value in zip(self.weights[step - 1], prefix, strict=True):
                total += weight * value
            log_m = self.prior_log_odds - max(-self.limit, min(self.limit, total))
        return ((log_m, *prefix),), log_m

    def batch(self, blocks: StepBlocks) -> FloatArray:
        """log M_t of every row, in block order; NaN before the first score of a run."""
        result = np.empty(len(blocks.values))
        memories = [self.start()] * len(blocks.order)
        for step, rows in blocks:
            for run, score in enumerate(blocks.values[rows, 0].tolist()):
                seen = None if math.isnan(score) else score
                memories[run], result[rows.start + run] = self.advance(memories[run], [seen], step)
        return _keep_where_missing(blocks, result)


def _keep_where_missing(blocks: StepBlocks, log_m: FloatArray) -> FloatArray:
    """Carry log M over steps without any score, in place; NaN until the first."""
    missing: BoolArray = np.logical_and.reduce(np.isnan(blocks.values), axis=1)
    if missing.any():
        before = slice(0, 0)
        for _, rows in blocks:
            here = np.flatnonzero(missing[rows])
            log_m[rows.start + here] = np.nan if rows.start == 0 else log_m[before.start + here]
            before = rows
    return log_m
