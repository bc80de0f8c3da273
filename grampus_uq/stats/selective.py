"""Release thresholds: the least chance of success at which enough of the released cases are right.

A case has a calibrated chance p of success and is released where p is at least a threshold. `certified_threshold` finds
one for which "at least a share `target` of the released are right" holds with high probability over the calibration
cases; `budget_of_wrong_releases` bounds how many of all cases are released and wrong, which takes far fewer labels;
`estimated_threshold` estimates one without a guarantee; `share_threshold` bounds how many are held.

Counting a case of unknown outcome as wrong only makes a threshold stricter, so every promise here holds whichever
outcomes are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray, IntArray, numbers, truths
from grampus_uq.stats.ranks import binomial_log_sf, check_level, smallest_n_for_pac


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A threshold on the calibration cases: of `cases`, `released` were at or above it, of which `wrong` were wrong.

    `threshold` is None when none will do; the counts are then those of the candidate that came nearest, or 0.
    """

    threshold: float | None
    cases: int
    released: int
    wrong: int


def certified_threshold(
    chances: npt.ArrayLike, right: npt.ArrayLike, *, candidates: Sequence[float], target: float, delta: float
) -> Released:
    """Test the candidates one after the other and take the one that releases most among those that pass.

    A candidate lambda passes when `P(Bin(n, 1 - target) <= wrong) <= delta`, n the released cases and `wrong` those of
    them that were wrong; the first that does not pass ends the tests (fixed-sequence testing), so no correction for
    their number is due.

    Guarantee: if the cases and the new one are independent draws, and candidates and their order were chosen without
    these cases, then with probability at least 1 - delta over the cases, a released new case is right with
    probability at least `target`. What breaks it: cases that served the fit of the chances or the choice of the
    candidates, selected cases, a population that moved, several cases of one task counted as independent.

    `chances`: shape (n,), in [0, 1]; NaN is a case without a chance: it is never released. `right`: shape (n,), True
    where the case succeeded. `candidates`: thresholds in the order in which they are tested, the most promising first.
    `target`: wanted share of right ones among the released; `delta`: allowed probability of an unlucky calibration;
    both in (0, 1).

    Source: Learn then Test (Angelopoulos et al. 2021), fixed-sequence testing; selective prediction with guaranteed
    risk (Geifman and El-Yaniv 2017).

    >>> certified_threshold([.9] * 30 + [.2] * 30, [True] * 30 + [False] * 30, candidates=[.9, .2], target=.9, delta=.1)
    Released(threshold=0.9, cases=60, released=30, wrong=0)
    """
    p, good = _cases(chances, right, target=target, delta=delta)
    best: Released | None = None
    nearest = Released(threshold=None, cases=len(p), released=0, wrong=0)
    for candidate in candidates:
        out = p >= candidate
        found = Released(
            threshold=float(candidate), cases=len(p), released=int(out.sum()), wrong=int((out & ~good).sum())
        )
        if _log_p_value(found.released, found.wrong, target) > math.log(delta):
            nearest = replace(found, threshold=None)
            break
        if best is None or found.released > best.released:
            best = found
    return best or nearest


def certified_by_count(chances: npt.ArrayLike, right: npt.ArrayLike, *, target: float, delta: float) -> Released:
    """Certify without other cases to choose candidates on: test the best k cases, for K sizes k, each at delta/K.

    The candidate of size k releases what is strictly above the (k + 1)-th largest chance; given that chance, the cases
    above it are independent draws of those that it releases, so each test is exact, and K of them share delta.

    Guarantee, args and errors: as `certified_threshold`, without candidates.

    >>> certified_by_count([.9] * 40 + [.2] * 30, [True] * 40 + [False] * 30, target=.9, delta=.1).released
    40
    """
    p, good = _cases(chances, right, target=target, delta=delta)
    there = np.sort(p[~np.isnan(p)])[::-1]
    sizes = _sizes(len(there), target, delta)
    best = Released(threshold=None, cases=len(p), released=0, wrong=0)
    for size in sizes:
        floor = float(there[size]) if size < len(there) else -math.inf
        out = p > floor
        n, wrong = int(out.sum()), int((out & ~good).sum())
        if n > best.released and _log_p_value(n, wrong, target) <= math.log(delta / len(sizes)):
            least = 0.0 if floor < 0.0 else float(np.nextafter(floor, math.inf))
            best = Released(threshold=least, cases=len(p), released=n, wrong=wrong)
    return best


def _sizes(n: int, target: float, delta: float) -> list[int]:
    """Sizes to test, each 1.5 times the one before; the least can pass only without a wrong case."""
    found: list[int] = []
    while True:
        count = len(found) + 1
        least = math.ceil(math.log(delta / count) / math.log(target) - 1e-9)
        sizes = [math.ceil(least * 1.5**j) for j in range(count)]
        if sizes[-1] > n:
            return found
        found = sizes


def budget_of_wrong_releases(
    chances: npt.ArrayLike,
    right: npt.ArrayLike,
    *,
    budget: float,
    delta: float | None = None,
    mass: npt.ArrayLike | None = None,
) -> Released:
    """Take the threshold that releases most while few enough of *all* cases are released and wrong.

    On average (delta None), by conformal risk control, m_i the mass of a case:

        sum of m_i over cases released and wrong  +  1 - budget  <=  budget * sum of all m_i

    which for single cases is `(wrong + 1)/(n + 1) <= budget`. With high probability: `P(Bin(n, budget) <= wrong) <=
    delta`.

    Guarantee: if the tasks and the new one are exchangeable, a case of the new one is released and wrong with
    probability at most `budget`, on average over the calibration too; a calibration without a threshold releases
    nothing and counts as 0. With delta: if the n cases and the new one are independent draws, then with probability at
    least 1 - delta over them that probability is at most `budget`. What breaks it: as `certified_threshold`. Neither
    says how many of the released are right.

    `chances`, `right`: as `certified_threshold`. `budget`: allowed share of all cases, in (0, 1). `delta`: allowed
    probability of an unlucky calibration; None: a promise on average. `mass`: shape (n,), in (0, 1]: of a case whose
    task has k runs, with a case or without, 1/k; None: 1 each, every case is a task. Not with delta, whose count needs
    one case a task. Returns the threshold, and cases: how many independent ones they amount to, rounded down.

    Source: conformal risk control (Angelopoulos et al. 2022), theorem 1, for the loss (wrong and released - budget)
    summed over a task's cases and divided by its runs, whose bound is B = 1 - budget; with delta: risk-controlling
    prediction sets (Bates et al. 2021), theorem 1, with the exact binomial bound.

    >>> budget_of_wrong_releases([.9] * 15 + [.4] * 4, [True] * 15 + [False] * 4, budget=.05)
    Released(threshold=0.9, cases=19, released=15, wrong=0)
    """
    p, good = _cases(chances, right, budget=budget, **({} if delta is None else {"delta": delta}))
    m = np.ones(len(p)) if mass is None else numbers("mass", "budget_of_wrong_releases", mass)
    if m.shape != p.shape or not ((m > 0.0) & (m <= 1.0)).all() or (mass is not None and delta is not None):
        rule = f"of shape {p.shape}, in (0, 1], and left out with delta"
        raise ConfigurationError.of("mass", "budget_of_wrong_releases", rule, mass)
    n = math.floor(float(m.sum()) + 1e-9)
    order, last = _falling(p)
    wrong = np.cumsum(~good[order] * m[order])[last]
    if delta is None:
        will_do = np.flatnonzero(wrong + (1.0 - budget) <= budget * float(m.sum()) + 1e-9)
    else:
        right_at_least = binomial_log_sf(n, 1.0 - budget)  # at most k wrong of n = at least n - k that are not
        will_do = np.flatnonzero(right_at_least[n - wrong.astype(np.intp)] <= math.log(delta) + 1e-11)
    return _most_released(p, good, order, last[will_do], n)


def budget_needed(budget: float, delta: float | None = None) -> int:
    """Least number of cases (tasks) for which a budget of wrong releases can release any.

    >>> budget_needed(0.05), budget_needed(0.05, 0.1)
    (19, 45)
    """
    check_level("budget", "selective release", budget)
    return math.ceil(1.0 / budget - 1.0 - 1e-9) if delta is None else smallest_n_for_pac(budget, delta)


def candidate_thresholds(
    chances: npt.ArrayLike, right: npt.ArrayLike, *, target: float, cases: int, most: int = 20
) -> list[float]:
    """Choose and order candidates on *other* cases: those most likely to pass on `cases` new ones come first.

    At most `most` quantiles of the chances, ordered by the p-value that the shares seen here would have among `cases`
    cases. Args as `certified_threshold`; these cases must not be the ones that it tests on.
    """
    p, good = _cases(chances, right)
    there = p[~np.isnan(p)]
    if not len(there):
        return []
    levels = np.unique(np.quantile(there, np.linspace(0.0, 0.95, most), method="higher"))
    ranked = []
    for level in levels:
        out = p >= level
        n, wrong = int(out.sum()), int((out & ~good).sum())
        # Half a wrong one more, halves rounded up: where none was seen wrong the share is not taken to be 0.
        expected = ((2 * wrong + 1) * cases + len(p)) // (2 * len(p))  # in whole numbers: a half is one exactly
        ranked.append((_log_p_value(round(n * cases / len(p)), expected, target), level))
    return [float(level) for _, level in sorted(ranked)]


def estimated_threshold(
    chances: npt.ArrayLike, right: npt.ArrayLike, *, target: float, weights: npt.ArrayLike | None = None
) -> Released:
    """Take the threshold that releases most while `(right + 1/2)/(released + 1) >= target` on the cases themselves.

    That is the posterior mean of the share right under Jeffreys' prior; at least `1/(1 - target)` cases are released,
    so that one wrong among them would not break the target. No guarantee: the threshold was chosen on these very
    cases. With `weights` (one over the probability that a case was seen) counts are sums of weights, and the largest
    weight stands for one case.

    Args and errors as `certified_threshold`.

    >>> estimated_threshold([.9] * 30 + [.2] * 30, [True] * 30 + [False] * 30, target=.9)
    Released(threshold=0.9, cases=60, released=30, wrong=0)
    """
    p, good = _cases(chances, right, target=target)
    w = np.ones(len(p)) if weights is None else numbers("weights", "estimated_threshold", weights)
    if w.shape != p.shape or not (np.isfinite(w) & (w > 0.0)).all():
        raise ConfigurationError.of("weights", "estimated_threshold", f"of shape {p.shape}, finite, > 0", weights)
    order, last = _falling(p)
    mass = w[order]
    wrong, released = np.cumsum(mass * ~good[order])[last], np.cumsum(mass)[last]
    extra = float(mass.max()) if len(mass) else 1.0
    enough = (1.0 - target) * released >= extra * (1.0 - 1e-9)
    will_do = np.flatnonzero((wrong + extra / 2 <= (1.0 - target + 1e-12) * (released + extra)) & enough)
    return _most_released(p, good, order, last[will_do], len(p))


def share_threshold(chances: npt.ArrayLike, share: float) -> float | None:
    """Hold a new case with probability at most `share`: the k-th smallest chance, `k = floor((n + 1) share)`.

    Guarantee: if the n cases and the new one are exchangeable, its chance is below the threshold with probability at
    most `share`. Needs no outcome. None when n is too small for the share (k = 0).

    >>> share_threshold([0.1, 0.2, 0.3, 0.4], 0.4)
    0.2
    """
    check_level("share", "selective release", share)
    p = numbers("chances", "selective release", chances)
    k = min(math.floor((len(p) + 1) * share + 1e-9), len(p))  # a share that is nearly 1 rounds to n + 1
    found = np.sort(np.where(np.isnan(p), -np.inf, p))
    return None if k < 1 or not math.isfinite(found[k - 1]) else float(found[k - 1])


def released_needed(share_right: float, target: float, delta: float, *, most: int = 100_000) -> int | None:
    """The number of released cases that a certificate needs when `share_right` of them are right; None: none is enough.

    >>> released_needed(1.0, 0.9, 0.1), released_needed(0.95, 0.9, 0.1), released_needed(0.9, 0.9, 0.1)
    (22, 78, None)
    """
    if share_right <= target:
        return None
    n = 1
    while n <= most:
        if _log_p_value(n, math.ceil(n * (1.0 - share_right) - 1e-9), target) <= math.log(delta):
            return n
        n += max(1, n // 200)
    return None


def _falling(p: FloatArray) -> tuple[IntArray, IntArray]:
    """The cases with a chance by falling chance, and the last place of each run of equal ones, which go together."""
    there = np.flatnonzero(~np.isnan(p))
    order = there[np.argsort(-p[there], kind="stable")]
    falling = p[order]
    return order, np.flatnonzero(np.append(falling[1:] != falling[:-1], len(falling) > 0))


def _most_released(p: FloatArray, good: BoolArray, order: IntArray, ends: IntArray, cases: int) -> Released:
    """What is released up to the last of the places at which a threshold will do; nothing where none does."""
    out = order[: ends[-1] + 1] if len(ends) else order[:0]
    threshold = float(p[out[-1]]) if len(out) else None
    return Released(threshold=threshold, cases=cases, released=len(out), wrong=int((~good[out]).sum()))


def _log_p_value(released: int, wrong: int, target: float) -> float:
    """ln P(Bin(released, 1 - target) <= wrong), the largest such probability if fewer than `target` are right."""
    if released == 0 or wrong >= released:
        return 0.0
    # at most `wrong` wrong ones = at least released - wrong right ones
    return float(binomial_log_sf(released, target)[released - wrong])


def _cases(chances: npt.ArrayLike, right: npt.ArrayLike, **levels: float) -> tuple[FloatArray, BoolArray]:
    for name, level in levels.items():
        check_level(name, "selective release", level)
    p, good = numbers("chances", "selective release", chances), truths("right", "selective release", right)
    if p.ndim != 1 or p.shape != good.shape:
        raise ConfigurationError.of("right", "selective release", f"of the shape of chances, {p.shape}", good.shape)
    return p, good
