"""Causal features of a run so far: thirteen numbers per score stream and the step, updated in constant time and memory.

`stream_update` and `stream_features` (one live run, plain Python) agree to the last bit with `prefix_features` (many
recorded runs, NumPy): the same additions in the same order, and logarithms by `math.log`, because NumPy's may differ in
the last place.

A missing score changes nothing but the step. Before the first score of a stream its features hold the neutral value
(the mean of that stream in the fitting runs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grampus_uq.stats.arrays import FloatArray
from grampus_uq.stats.step_blocks import StepBlocks

StreamState = tuple[float, ...]

STREAM_FEATURES = (
    "last",  # the newest score
    "previous",  # the one before it; the first score stands in for what came before the run
    "low",  # smallest so far
    "high",  # largest so far
    "mean",
    "ewma_50",  # exponentially weighted mean, weight .5 on the newest
    "ewma_20",
    "ewma_10",
    "first",
    "low_ewma_50",  # smallest of ewma_50 so far
    "low_ewma_20",
    "recent",  # mean of the last three
    "fall",  # last minus high: 0 at the top, negative below
)
"""Names of a stream's features in order. All increase with the scores, so a fit may be monotone in them."""

LARGEST = 1e100
"""Bound on scores that are not probabilities: no feature can then overflow."""

EMPTY_STREAM: StreamState = (0.0,) * 13
"""The state of a stream before its first score."""

_FEATURES = len(STREAM_FEATURES)
_STATE_NAMES = (
    *("n", "first", "last", "previous", "older", "low", "high", "total"),
    *("ewma_50", "ewma_20", "ewma_10", "low_ewma_50", "low_ewma_20"),
)


def stream_update(state: StreamState, x: float) -> StreamState:
    """Add one score to a stream's state; missing scores are not passed.

    `state`: (n, first, last, previous, older, low, high, total, ewma 50, 20, 10, low of ewma 50, of ewma 20). `x`: the
    score on the scale of the model, finite.

    >>> stream_update(stream_update(EMPTY_STREAM, 0.8), 0.4)[:8]
    (2.0, 0.8, 0.4, 0.8, 0.8, 0.4, 0.8, 1.2000000000000002)
    """
    n, first, last, previous, _, low, high, total, fast, middle, slow, low_fast, low_middle = state
    if n == 0.0:
        return (1.0, x, x, x, x, x, x, x, x, x, x, x, x)
    fast = 0.5 * x + 0.5 * fast
    middle = 0.2 * x + 0.8 * middle
    slow = 0.1 * x + 0.9 * slow
    return (
        n + 1.0,
        first,
        x,
        last,
        previous,
        x if x < low else low,
        x if x > high else high,
        total + x,
        fast,
        middle,
        slow,
        fast if fast < low_fast else low_fast,
        middle if middle < low_middle else low_middle,
    )


def stream_features(state: StreamState, neutral: float) -> tuple[float, ...]:
    """Return the thirteen features of `STREAM_FEATURES`; all neutral (and no fall) before the first score.

    >>> stream_features(stream_update(EMPTY_STREAM, 0.8), 0.5)[:3], stream_features(EMPTY_STREAM, 0.5)[11:]
    ((0.8, 0.8, 0.8), (0.5, 0.0))
    """
    n, first, last, previous, older, low, high, total, fast, middle, slow, low_fast, low_middle = state
    if n == 0.0:
        return (neutral,) * 12 + (0.0,)
    recent = (last + previous + older) / 3.0
    mean = total / n
    return (last, previous, low, high, mean, fast, middle, slow, first, low_fast, low_middle, recent, last - high)


def prefix_features(blocks: StepBlocks, neutral: Sequence[float], columns: Sequence[int] | None = None) -> FloatArray:
    """Compute the features of every prefix of every run.

    `blocks`: scores on the scale of the model, NaN missing. `neutral`: one value a stream. `columns`: which features,
    `13 * stream + place in STREAM_FEATURES`; None: all. Returns shape (columns, rows), a feature a line, rows in block
    order; the step is not among them.
    """
    streams = blocks.values.shape[1]
    chosen = range(_FEATURES * streams) if columns is None else columns
    result = np.empty((len(chosen), len(blocks.values)))
    for stream in range(streams):
        states = np.zeros((len(EMPTY_STREAM), len(blocks.order)))
        lines = [(line, column % _FEATURES) for line, column in enumerate(chosen) if column // _FEATURES == stream]
        for _, rows in blocks:
            head = states[:, : rows.stop - rows.start]
            _update_many(head, blocks.values[rows, stream])
            for line, feature in lines:
                _feature_many(head, feature, neutral[stream], result[line, rows])
    return result


def logit(p: float, clip: float) -> float:
    """Log odds of a probability clipped within [clip, 1 - clip], so that a stated 0 or 1 stays finite.

    >>> logit(0.5, 0.001), round(logit(1.0, 0.001), 6)
    (0.0, 6.906755)
    """
    top = 1.0 - clip
    clipped = clip if p < clip else top if p > top else p
    return math.log(clipped / (1.0 - clipped))


def logits(p: FloatArray, clip: float) -> FloatArray:
    """The same for an array, to the last bit; NaN stays NaN.

    >>> float(logits(np.array([0.2]), 0.001)[0]) == logit(0.2, 0.001)
    True
    """
    known = ~np.isnan(p)
    clipped = np.clip(p[known], clip, 1.0 - clip)
    result = np.full(p.shape, np.nan)
    result[known] = np.fromiter(
        map(math.log, (clipped / (1.0 - clipped)).tolist()), dtype=np.float64, count=len(clipped)
    )
    return result


def _update_many(states: FloatArray, x: FloatArray) -> None:
    """`stream_update` for a block of runs, in place."""
    unseen = np.isnan(x)
    some_unseen = bool(unseen.any())
    kept = states[:, unseen] if some_unseen else None
    fresh = states[0] == 0.0
    n, _, last, previous, older, low, high, total, fast, middle, slow, low_fast, low_middle = states
    n += 1.0
    older[:] = previous
    previous[:] = last
    last[:] = x
    np.minimum(low, x, out=low)
    np.maximum(high, x, out=high)
    total += x
    for average, weight, rest in ((fast, 0.5, 0.5), (middle, 0.2, 0.8), (slow, 0.1, 0.9)):
        average *= rest
        average += weight * x
    np.minimum(low_fast, fast, out=low_fast)
    np.minimum(low_middle, middle, out=low_middle)
    if fresh.any():
        states[1:, fresh] = x[fresh]
    if kept is not None:
        states[:, unseen] = kept


def _feature_many(states: FloatArray, feature: int, neutral: float, out: FloatArray) -> None:
    """One of `stream_features` for a block of runs, written into `out`."""
    n, last, previous, older, high, total = (states[line] for line in (0, 2, 3, 4, 6, 7))
    match STREAM_FEATURES[feature]:
        case "mean":
            np.divide(total, np.maximum(n, 1.0), out=out)
        case "recent":
            np.divide(last + previous + older, 3.0, out=out)
        case "fall":
            np.subtract(last, high, out=out)
        case name:
            out[:] = states[_STATE_NAMES.index(name)]
    empty = n == 0.0
    if empty.any():
        out[empty] = 0.0 if STREAM_FEATURES[feature] == "fall" else neutral
