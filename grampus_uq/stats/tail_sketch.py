"""The mean of the largest K = max(1, floor(kN)) of N risks (TRACER, eq. 21-22): a stream in bounded memory.

Every value comes with a bound on its error.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter
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
class TailSketch:
    """The tail mean of a growing run in bounded memory; `accuracy` bounds its error in advance, `error` afterwards.

    Risks are counted and summed in buckets whose upper edge is (1 + 2 accuracy) times the lower one; `buckets` holds
    (index, number of risks, their sum), ascending. Whole buckets of the tail enter with their exact sum; of the one
    that the tail cuts through, m of c risks are taken, and edges and sum bound what those can be. `mean` is the middle
    of that interval and `error` half its width:

        |mean - TM_k| <= error <= accuracy * TM_k + 1e-9 / 2        (rounding apart, about 1e-16 a step)

    The `worst` risk is exact; 0 before the first. Memory does not grow with the run: at accuracy .005 there are at most
    2,400 buckets for risks in [1e-9, 20], and a run occupies those it has met; sketches of one run share them. An
    update costs O(buckets), tens of microseconds at worst.

    >>> sketch = TailSketch.of(0.5, [0.5, 0.1, 0.9, 0.7])
    >>> abs(sketch.mean - 0.8) <= sketch.error + 1e-12, sketch.error <= 0.005 * 0.8
    (True, True)
    """

    k: float
    accuracy: float
    worst: float
    buckets: tuple[_Bucket, ...]

    @classmethod
    def of(cls, k: float, values: Iterable[float] = (), *, accuracy: float = 0.005) -> TailSketch:
        """The sketch of these risks. Raises ConfigurationError for a `k` or an `accuracy` outside its range."""
        check_fraction(k, "TailSketch")
        if not 1e-6 <= accuracy <= 0.5:
            raise ConfigurationError.of("accuracy", "TailSketch", "in [1e-6, 0.5]", accuracy)
        return reduce(tail_update, values, cls(k=k, accuracy=accuracy, worst=0.0, buckets=()))

    @property
    def count(self) -> int:
        """The number of risks so far, N."""
        return sum(map(itemgetter(1), self.buckets))

    @property
    def mean(self) -> float | None:
        """The tail mean of the run so far, to within `error`; None before the first risk."""
        if not self.buckets:
            return None
        lower, upper = self._bounds()
        return lower + (upper - lower) / 2.0

    @property
    def error(self) -> float:
        """Bound on |mean - TM_k| for the run so far, beyond rounding; 0 before the first risk."""
        if not self.buckets:
            return 0.0
        lower, upper = self._bounds()
        return (upper - lower) / 2.0

    def check(self) -> None:
        """Refuse a stored sketch that no run can reach.

        Raises ConfigurationError for keys out of order, empty buckets, sums outside their bucket's edges, or a worst
        risk that is in no bucket.
        """
        TailSketch.of(self.k, accuracy=self.accuracy)
        last = -1
        for key, count, total in self.buckets:
            lower, upper = _edges(self.accuracy, key)
            if count < 1 or key <= last or not lower * count * (1 - 1e-9) <= total <= upper * count * (1 + 1e-9):
                rule = "ascending buckets of at least one risk each, with sums inside their edges"
                raise ConfigurationError.of("buckets", "TailSketch", rule, (key, count, total))
            last = key
        if self.worst != 0.0 if last < 0 else _key(self.accuracy, self.worst) != last:
            raise ConfigurationError.of("worst", "TailSketch", "in the highest bucket", self.worst)

    def _bounds(self) -> tuple[float, float]:
        """Bound the tail mean from both sides."""
        left = tail = tail_count(self.count, self.k)
        whole = 0.0
        for key, count, total in reversed(self.buckets):
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
        low, high = _edges(self.accuracy, key)
        lower = total * taken / count  # the largest average at least as much as all
        upper = min(taken * high, total - (count - taken) * low)
        return lower, max(lower, upper)


def tail_update(sketch: TailSketch, risk: float) -> TailSketch:
    """Add one risk, a finite number in [0, 1e100]."""
    key, buckets = _key(sketch.accuracy, risk), sketch.buckets
    at = bisect_left(buckets, (key,))
    known = at < len(buckets) and buckets[at][0] == key
    _, count, total = buckets[at] if known else (key, 0, 0.0)
    fresh = (*buckets[:at], (key, count + 1, total + risk), *buckets[at + known :])
    return TailSketch(k=sketch.k, accuracy=sketch.accuracy, worst=max(sketch.worst, risk), buckets=fresh)


def _key(accuracy: float, risk: float) -> int:
    """Index the bucket of a risk: 0 for [0, 1e-9), i >= 1 for [1e-9 ratio^(i-1), 1e-9 ratio^i).

    Raises ConfigurationError for a risk that is not a finite number in [0, 1e100]; NaN has no place in any order.
    """
    if not 0.0 <= risk <= MAX_RISK:
        raise ConfigurationError.of("risk", "TailSketch", f"a finite number in [0, {MAX_RISK:g}]", risk)
    return 0 if risk < _FLOOR else 1 + math.floor(math.log(risk / _FLOOR) / math.log1p(2.0 * accuracy))


def _edges(accuracy: float, key: int) -> tuple[float, float]:
    if key <= 0:
        return 0.0, _FLOOR
    log_ratio, highest = math.log1p(2.0 * accuracy), math.log(MAX_RISK / _FLOOR)
    lower = _FLOOR * math.exp(min((key - 1) * log_ratio, highest))
    return lower, _FLOOR * math.exp(min(key * log_ratio, highest))
