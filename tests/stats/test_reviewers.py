"""The test of misses keeps its promise and sees a fall soon; the agreement is that of its source."""

from __future__ import annotations

import numpy as np
import pytest

from grampus_uq.stats.missed_cases import agreement, reported_at
from grampus_uq.stats.ranks import binomial_interval
from tests.binomial import binomial_ceiling
from tests.sampling import sampled

WORLDS = 120


def test_no_more_than_the_tolerated_share_is_reported_in_at_most_a_twentieth_of_the_worlds() -> None:
    rng = np.random.default_rng(1)
    steady = [reported_at(rng.random(300) < 0.15, tolerated=0.15) for _ in range(WORLDS)]  # type: ignore[arg-type]
    assert sum(found is not None for found in steady) <= binomial_ceiling(WORLDS, 0.05)


def test_a_fall_from_nine_in_ten_caught_to_one_in_two_is_reported_within_sixty_drills() -> None:
    rng = np.random.default_rng(2)
    for before in (0, 40, 200):
        worlds = [np.concatenate([rng.random(before) < 0.1, rng.random(60) < 0.5]) for _ in range(60)]
        found = [reported_at(world, tolerated=0.15) for world in worlds]  # type: ignore[arg-type]
        assert sum(at is not None and at > before for at in found) >= 54


def test_misses_above_the_tolerated_share_break_the_ceiling_of_the_first_test() -> None:
    """The sabotage: worlds outside of the promise's assumption are reported too often to pass there."""
    rng = np.random.default_rng(3)
    worlds = [rng.random(300) < 0.25 for _ in range(WORLDS)]
    found = [reported_at(world, tolerated=0.15) for world in worlds]  # type: ignore[arg-type]
    assert sum(at is not None for at in found) > binomial_ceiling(WORLDS, 0.05)


@sampled("groups", [150], full=[500])
def test_the_interval_covers_the_share_that_these_reviewers_miss(groups: int) -> None:
    """Reviewers differ (beta-binomial), and tire: the truth is the mean chance over the drills that each answered."""
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(groups):
        sizes = rng.integers(5, 60, size=rng.integers(2, 8))
        rates = rng.beta(1.0, 5.0, size=len(sizes))
        chances = np.concatenate(
            [np.clip(rate * np.linspace(0.7, 1.6, n), 0.0, 1.0) for rate, n in zip(rates, sizes, strict=True)]
        )
        missed = int((rng.random(len(chances)) < chances).sum())
        low, high = binomial_interval(missed, len(chances), 0.9)
        covered += low <= chances.mean() <= high
    assert covered >= 0.88 * groups


def test_the_agreement_of_four_observers_is_that_of_the_source() -> None:
    """Krippendorff 2011, section C: four observers, twelve units, missing data; nominal alpha .743."""
    table = ["1 2 3 3 2 1 4 1 2 . . .", "1 2 3 3 2 2 4 1 2 5 . 3", ". 3 3 3 2 3 4 2 2 5 1 .", "1 2 3 3 2 4 4 1 2 5 1 ."]
    rows = [row.split() for row in table]
    units = [{str(o): row[u] for o, row in enumerate(rows) if row[u] != "."} for u in range(12)]
    alpha, n = agreement(units)
    assert alpha == pytest.approx(0.743, abs=5e-4)
    assert n == 11


def test_the_agreement_of_two_on_everything_alike_is_not_defined() -> None:
    assert agreement([{"a": 1, "b": 1}] * 5) == (None, 5)
    assert agreement([{"a": 1}]) == (None, 0)
    assert agreement([{"a": 1, "b": 0}, {"a": 0, "b": 1}])[0] == pytest.approx(-0.5)
