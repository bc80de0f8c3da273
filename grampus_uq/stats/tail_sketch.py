"""The mean of the largest K = max(1, floor(kN)) of N risks (TRACER, eq. 21-22): a stream in bounded memory.

Every value comes with a bound on its error.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from grampus_uq.errors import ConfigurationError

MAX_RISK: Final = 1e100
"""Largest accepted risk: below it no sum of risks overflows, so a mean is finite whenever its inputs are."""

_FLOOR_SLACK: Final = 1e-9
"""Added before rounding down: .29 * 100 is 28.999999999999996 in binary, and its tail is 29 steps, not 28."""

_FLOOR: Final = 1e-9
"""Risks below it share one bucket, so they are known to within 1e-9 and not to within a ratio."""

_Bucket = tuple[int, int, float]
"""Index, number of risks, their sum."""


def tail_count(n: int, k: float) -> int:
    """Return the number of steps in the tail, K = max(1, floor(k n + 1e-9)) (eq. 21; the slack undoes binary rounding).

    `n` >= 1 steps, tail fraction `k` in (0, 1]; an integer in 1..n.

    >>> tail_count(100, 0.29), tail_count(3, 0.1)
    (29, 1)
    """
    check_fraction(k, "tail_count")
    if n < 1:
        raise ConfigurationError.of("n", "tail_count", "at least 1", n)
    return max(1, math.floor(k * n + _FLOOR_SLACK))


def check_fraction(k: float, owner: str) -> None:
    """Refuse a tail fraction outside (0, 1]."""
    if not 0.0 < k <= 1.0:
        raise ConfigurationError.of("k", owner, "in (0, 1]", k, "A percentage? Use 0.1 for 10 %.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSketchState:
    """A `TailSketch` as a JSON-able value: `buckets` holds (index, number of risks, their sum), ascending."""

    k: float
    accuracy: float
    worst: float
    buckets: tuple[_Bucket, ...]


class TailSketch:
    """The tail mean of a growing run in bounded memory; `accuracy` bounds its error in advance, `error` afterwards.

    Risks are counted and summed in buckets whose upper edge is (1 + 2 accuracy) times the lower one. Whole buckets of
    the tail enter with their exact sum; of the one that the tail cuts through, m of c risks are taken, and edges and
    sum bound what those can be. `mean` is the middle of that interval and `error` half its width:

        |mean - TM_k| <= error <= accuracy * TM_k + 1e-9 / 2        (rounding apart, about 1e-16 a step)

    The worst risk is exact. Memory does not grow with the run: at accuracy .005 there are at most 2,400 buckets for
    risks in [1e-9, 20], and a run occupies those it has met. An update costs O(buckets of the tail), tens of
    microseconds at worst.

    >>> sketch = TailSketch(0.5, values=[0.5, 0.1, 0.9, 0.7])
    >>> abs(sketch.mean - 0.8) <= sketch.error + 1e-12, sketch.error <= 0.005 * 0.8
    (True, True)
    """

    __slots__ = ("_accuracy", "_buckets", "_k", "_keys", "_log_ratio", "_n", "_worst")

    def __init__(self, k: float, values: Iterable[float] = (), *, accuracy: float = 0.005) -> None:
        check_fraction(k, "TailSketch")
        if not 1e-6 <= accuracy <= 0.5:
            raise ConfigurationError.of("accuracy", "TailSketch", "in [1e-6, 0.5]", accuracy)
        self._k = k
        self._accuracy = accuracy
        self._log_ratio = math.log1p(2.0 * accuracy)
        self._n = 0
        self._worst = 0.0
        self._keys: list[int] = []  # ascending
        self._buckets: dict[int, _Bucket] = {}  # states share them: a run of many states holds each bucket once
        for value in values:
            self.update(value)

    @property
    def count(self) -> int:
        """The number of risks so far, N."""
        return self._n

    @property
    def mean(self) -> float | None:
        """The tail mean of the run so far, to within `error`; None before the first risk."""
        return self._middle(*self._bounds(None)) if self._n else None

    @property
    def worst(self) -> float | None:
        """The largest risk so far, exactly; None before the first risk."""
        return self._worst if self._n else None

    @property
    def error(self) -> float:
        """Bound on |mean - TM_k| for the run so far, beyond rounding; 0 before the first risk."""
        if not self._n:
            return 0.0
        lower, upper = self._bounds(None)
        return (upper - lower) / 2.0

    def update(self, risk: float) -> float:
        """Add one risk, a finite number in [0, 1e100], and give the tail mean of the longer run."""
        key = self._key(risk)
        if key not in self._buckets:
            insort(self._keys, key)
        _, count, total = self._buckets.get(key, (key, 0, 0.0))
        self._buckets[key] = (key, count + 1, total + risk)
        self._n += 1
        self._worst = max(self._worst, risk)
        return self._middle(*self._bounds(None))

    def peek(self, risk: float) -> float:
        """Give the tail mean that `update(risk)` would give, and change nothing."""
        return self._middle(*self._bounds(risk))

    def state(self) -> TailSketchState:
        """Give the whole sketch as a value; `TailSketch.restore` continues from it exactly as this one would."""
        buckets = tuple(self._buckets[key] for key in self._keys)
        return TailSketchState(k=self._k, accuracy=self._accuracy, worst=self._worst, buckets=buckets)

    @classmethod
    def restore(cls, state: TailSketchState) -> TailSketch:
        """Build the sketch that a stored state describes.

        Raises ConfigurationError when the state is none that a sketch can reach: keys out of order, empty buckets, sums
        outside their bucket's edges, or a worst risk that is in no bucket.
        """
        sketch = cls(state.k, accuracy=state.accuracy)
        for bucket in state.buckets:
            key, count, total = bucket
            lower, upper = sketch._edges(key)
            if (
                count < 1
                or key < 0
                or (sketch._keys and key <= sketch._keys[-1])
                or not lower * count * (1 - 1e-9) <= total <= upper * count * (1 + 1e-9)
            ):
                rule = "ascending buckets of at least one risk each, with sums inside their edges"
                raise ConfigurationError.of("buckets", "TailSketch.restore", rule, (key, count, total))
            sketch._keys.append(key)
            sketch._buckets[key] = bucket
            sketch._n += count
        last = sketch._keys[-1] if sketch._keys else None
        if (last is None and state.worst != 0.0) or (last is not None and sketch._key(state.worst) != last):
            raise ConfigurationError.of("worst", "TailSketch.restore", "in the highest bucket", state.worst)
        sketch._worst = state.worst
        return sketch

    def _key(self, risk: float) -> int:
        """Index the bucket of a risk: 0 for [0, 1e-9), i >= 1 for [1e-9 ratio^(i-1), 1e-9 ratio^i).

        Raises ConfigurationError for a risk that is not a finite number in [0, 1e100]; NaN has no place in any order.
        """
        if not 0.0 <= risk <= MAX_RISK:
            raise ConfigurationError.of("risk", "TailSketch", f"a finite number in [0, {MAX_RISK:g}]", risk)
        return 0 if risk < _FLOOR else 1 + math.floor(math.log(risk / _FLOOR) / self._log_ratio)

    def _edges(self, key: int) -> tuple[float, float]:
        if key <= 0:
            return 0.0, _FLOOR
        highest = math.log(MAX_RISK / _FLOOR)
        lower = _FLOOR * math.exp(min((key - 1) * self._log_ratio, highest))
        return lower, _FLOOR * math.exp(min(key * self._log_ratio, highest))

    def _bounds(self, extra: float | None) -> tuple[float, float]:
        """Bound the tail mean from both sides, for the run so far or for the run with one more risk."""
        tail = tail_count(self._n + (extra is not None), self._k)
        extra_key = None if extra is None else self._key(extra)
        keys = self._keys
        if extra_key is not None and extra_key not in self._buckets:
            keys = sorted([*keys, extra_key])
        whole = 0.0
        left = tail
        for key in reversed(keys):
            _, count, total = self._buckets.get(key, (key, 0, 0.0))
            if extra is not None and key == extra_key:
                count, total = count + 1, total + extra
            if count >= left:
                lower, upper = self._cut(key, count, total, left)
                return (whole + lower) / tail, (whole + upper) / tail
            whole += total
            left -= count
        raise AssertionError("the tail is never longer than the run")  # tail_count <= N

    def _cut(self, key: int, count: int, total: float, taken: int) -> tuple[float, float]:
        """Bound the sum of the largest `taken` of a bucket's risks by its edges and its sum."""
        if taken == count:
            return total, total
        low, high = self._edges(key)
        lower = total * taken / count  # the largest average at least as much as all
        upper = min(taken * high, total - (count - taken) * low)
        return lower, max(lower, upper)

    @staticmethod
    def _middle(lower: float, upper: float) -> float:
        return lower + (upper - lower) / 2.0
