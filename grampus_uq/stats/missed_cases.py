"""Reviewers measured on known-bad cases: a test that they miss more than is tolerated, and the agreement of two."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import numpy as np

from grampus_uq.stats.ranks import check_level

_EVERY: Final = 10
_LEVEL: Final = 0.05
_TIMES: Final = (1.5, 2.5, 4.0)
"""Odds of a miss that are bet on, as multiples of the tolerated odds."""


def reported_at(missed: Sequence[bool], *, tolerated: float) -> int | None:
    """Return after how many cases it is shown that more than the tolerated share is missed; None: not shown.

    A bet begins at every tenth case j, with the capital `1 / ((j + 1)(j + 2))`, on each of three larger chances q of a
    miss: it is multiplied by `q / t` at a miss and `(1 - q) / (1 - t)` otherwise, with t tolerated. The capitals of all
    begun and unbegun bets add up to 1 before the first case, and it is reported once they exceed 1 / .05.

    Guarantee: if each case is missed with a chance of at most `tolerated` given all before, the probability of a report
    is at most .05, however many cases come and however often it is looked at (Ville). Cases may differ, and so may
    reviewers. What breaks it: cases that reviewers recognise, and answers left out for what they are.

    `missed`: in the order of the answers, True where the case was missed. `tolerated`: share of misses, in (0, 1).

    >>> reported_at([False] * 40 + [True, False] * 30, tolerated=0.15)
    61
    """
    check_level("tolerated", "reported_at", tolerated)
    odds = np.array(_TIMES) * tolerated / (1.0 - tolerated)
    q = odds / (1.0 + odds)
    at_miss, at_catch = np.log(q / tolerated), np.log((1.0 - q) / (1.0 - tolerated))
    running = np.full(len(q), -math.inf)  # of all begun bets on a chance together: they move alike
    for n, miss in enumerate(missed):
        begun = n // _EVERY + 1
        if n % _EVERY == 0:
            running = np.logaddexp(running, -math.log(begun * (begun + 1) * len(q)))
        running += at_miss if miss else at_catch
        unbegun = -math.log(begun + 1)  # what the later beginnings have in sum
        if np.logaddexp.reduce([*running, unbegun]) > -math.log(_LEVEL):
            return n + 1
    return None


def agreement(labels: Sequence[Mapping[str, Hashable]]) -> tuple[float | None, int]:
    """Krippendorff's alpha for categories, and the number of cases with two labels or more that it rests on.

    `alpha = 1 - D_observed / D_expected`: D_observed is the chance that two labels of one case differ, D_expected that
    two labels of any cases do. 1: they always agree; 0: as by chance; below 0: worse than chance. None where it is not
    defined: fewer than 2 labels to compare, or all labels alike.

    `labels`: for each case the label of each reviewer who gave one.

    Source: Krippendorff, Computing Krippendorff's alpha-reliability (2011), section C (nominal data, any number of
    observers, missing data).

    >>> agreement([{"ann": True, "bob": True}, {"ann": True, "bob": False}, {"ann": False, "bob": False}])
    (0.4444444444444444, 3)
    """
    compared = [list(case.values()) for case in labels if len(case) > 1]
    pooled = Counter(label for case in compared for label in case)
    n = sum(pooled.values())
    expected = n * n - sum(count * count for count in pooled.values())
    if not expected:
        return None, len(compared)
    observed = 0.0
    for case in compared:
        size, counts = len(case), Counter(case)
        observed += (size * size - sum(count * count for count in counts.values())) / (size - 1)
    return 1.0 - (n - 1) * observed / expected, len(compared)
