"""The mean of the largest K of N risks, K = max(1, floor(kN)), of a list and of a stream (TRACER, eq. 21-22)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heappush, heappushpop
from typing import Final, Protocol

from grampus_uq.errors import ConfigurationError

MAX_RISK: Final = 1e100
"""Largest accepted risk: below it no sum of risks overflows, so a mean is finite whenever its inputs are."""

_FLOOR_SLACK: Final = 1e-9
"""Added before rounding down: .29 * 100 is 28.999999999999996 in binary, and its tail is 29 steps, not 28."""


def tail_count(n: int, k: float) -> int:
    """Give the number of steps in the tail, K = max(1, floor(k n + 1e-9)) (eq. 21; the slack undoes binary rounding).

    `n` >= 1 steps, tail fraction `k` in (0, 1]. Returns an integer in 1..n. Raises ConfigurationError outside of that.

    >>> tail_count(100, 0.29), tail_count(3, 0.1)
    (29, 1)
    """
    check_fraction(k, "tail_count")
    if n < 1:
        raise ConfigurationError.of("n", "tail_count", "at least 1", n)
    return _count(n, k)


def tail_mean(risks: Sequence[float], k: float) -> float | None:
    """Average the largest K risks, TM_k(r) = (1/K) sum_{i<=K} r_(i) (eq. 22).

    `risks`: finite numbers in [0, 1e100], in any order. `k` in (0, 1]: 1 is the mean, small values are the maximum.
    Returns a number between the mean and the maximum of the risks, higher is worse; None for no risks.
    Raises ConfigurationError for a risk that is NaN, negative, infinite or above 1e100.

    >>> tail_mean([0.1, 0.9, 0.5, 0.7], 0.5)
    0.8
    """
    check_fraction(k, "tail_mean")
    if not len(risks):
        return None
    ordered = sorted((check_risk(risk, "tail_mean") for risk in risks), reverse=True)
    count = _count(len(ordered), k)
    return math.fsum(ordered[:count]) / count


class Tail(Protocol):
    """What keeps the tail mean of a growing run: `TailMean`, exact, or `TailSketch`, bounded in memory."""

    @property
    def count(self) -> int: ...
    @property
    def mean(self) -> float | None: ...
    @property
    def worst(self) -> float | None: ...
    @property
    def error(self) -> float: ...
    def update(self, risk: float) -> float: ...
    def peek(self, risk: float) -> float: ...


class TailMean:
    """The tail mean of a growing run: `update` adds a risk in O(log N), `peek` says what adding one would give in O(1).

    Two heaps hold the run: the K largest risks, with their sum, and all others. One float a step is kept, because a
    risk that is outside the tail today enters it when K grows. The sum is compensated (two-sum), and as risks are
    never negative it never shrinks, so cancellation cannot build up: every prefix equals `tail_mean` to 1e-12
    relative, usually exactly.

    It is held, not passed on as a value, because a heap is changed in place; `values` in arrival order, kept by the
    caller (a column of a recording), rebuild it with `TailMean(k, values)` to the last bit. Not safe for concurrent
    updates.

    >>> stream = TailMean(0.5)
    >>> [stream.update(risk) for risk in (0.5, 0.1, 0.9, 0.7)]
    [0.5, 0.5, 0.9, 0.8]
    >>> stream.peek(1.0), stream.mean, stream.worst
    (0.95, 0.8, 0.9)
    """

    __slots__ = ("_carry", "_k", "_n", "_rest", "_top", "_total", "_worst")

    def __init__(self, k: float, values: Iterable[float] = ()) -> None:
        check_fraction(k, "TailMean")
        self._k = k
        self._n = 0
        self._top: list[float] = []  # min-heap of the K largest
        self._rest: list[float] = []  # max-heap of the others, as negated values
        self._total = 0.0
        self._carry = 0.0
        self._worst = 0.0
        for value in values:
            self.update(value)

    @property
    def count(self) -> int:
        """The number of risks so far, N."""
        return self._n

    @property
    def mean(self) -> float | None:
        """The tail mean TM_k of the run so far; None before the first risk."""
        return (self._total + self._carry) / len(self._top) if self._n else None

    @property
    def worst(self) -> float | None:
        """The largest risk so far, ||r||_inf; None before the first risk."""
        return self._worst if self._n else None

    @property
    def error(self) -> float:
        """Bound on the absolute error of `mean` beyond rounding: 0, this form is exact."""
        return 0.0

    def update(self, risk: float) -> float:
        """Add one risk, a finite number in [0, 1e100], and give the tail mean of the longer run."""
        if not 0.0 <= risk <= MAX_RISK:
            check_risk(risk, "TailMean.update")
        n = self._n = self._n + 1
        if risk > self._worst:
            self._worst = risk
        top = self._top
        tail = int(self._k * n + _FLOOR_SLACK) or 1
        if tail > len(top):
            entering = -heappushpop(self._rest, -risk)
            heappush(top, entering)
            self._add(entering)
        elif risk > top[0]:
            leaving = heappushpop(top, risk)
            heappush(self._rest, -leaving)
            self._add(risk)
            self._add(-leaving)
        else:
            heappush(self._rest, -risk)
        return (self._total + self._carry) / tail

    def peek(self, risk: float) -> float:
        """Give the tail mean that `update(risk)` would give, and change nothing."""
        if not 0.0 <= risk <= MAX_RISK:
            check_risk(risk, "TailMean.peek")
        top = self._top
        tail = int(self._k * (self._n + 1) + _FLOOR_SLACK) or 1
        if tail > len(top):
            entering = max(risk, -self._rest[0]) if self._rest else risk
            total, carry = _two_sum(self._total, self._carry, entering)
        elif risk > top[0]:
            total, carry = _two_sum(*_two_sum(self._total, self._carry, risk), -top[0])
        else:
            total, carry = self._total, self._carry
        return (total + carry) / tail

    def _add(self, value: float) -> None:
        self._total, self._carry = _two_sum(self._total, self._carry, value)


def check_fraction(k: float, owner: str) -> None:
    """Refuse a tail fraction outside (0, 1]."""
    if not 0.0 < k <= 1.0:
        raise ConfigurationError.of("k", owner, "in (0, 1]", k, "A percentage? Use 0.1 for 10 %.")


def check_risk(risk: float, owner: str) -> float:
    """Refuse a risk that is not a finite number in [0, 1e100]; NaN would hide inside a heap and order nothing."""
    if not 0.0 <= risk <= MAX_RISK:
        raise ConfigurationError.of("risk", owner, f"a finite number in [0, {MAX_RISK:g}]", risk)
    return float(risk)


def _count(n: int, k: float) -> int:
    return max(1, math.floor(k * n + _FLOOR_SLACK))


def _two_sum(total: float, carry: float, value: float) -> tuple[float, float]:
    """Add a value to an unevaluated sum total + carry; what rounding loses goes to the carry (Knuth's two-sum)."""
    new = total + value
    part = new - total
    return new, carry + ((total - (new - part)) + (value - part))
