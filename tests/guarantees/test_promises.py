"""Each promise that a fit prints holds as often as it says, publishes, and is broken by what its sentence excludes."""

from __future__ import annotations

import pytest

from tests.binomial import binomial_ceiling
from tests.guarantees.afterwards import WATCHED
from tests.guarantees.promises import PROMISES, SABOTAGES, sabotaged, simulate

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")

LITTLE_POWER = {
    "wrong-few": 0.8,
    "wrong-prone": 0.3,
    "pac-few": 0.5,
    "certificate-small": 0.4,
    "certificate-few-call": 0.7,
    "certificate-trials": 0.75,  # some 25 of 50 tasks reach the best threshold; of fewer none may be wrong
}
"""The least share of calibrations that publish; the others publish in nine of ten."""
UNHURRIED = pytest.mark.timeout(3600)
SAMPLE = {"certificate-trials": 30, "wrong-sure-trials": 30, "watch": 30}
"""Calibrations in the slow stage: 12 find every other sabotage."""


def test_a_promise_is_kept_and_published() -> None:
    promise = PROMISES["wrong"]
    found = simulate(promise, 15)
    assert found.kept(promise), found.row(promise)
    assert sum(found.there) >= 0.7 * 15


@pytest.mark.slow
def test_sabotage_runs_that_call_nothing_break_the_certificate_of_those_that_do() -> None:
    promise = sabotaged("certificate-few-call")
    found = simulate(promise, 4)
    assert not found.kept(promise), found.row(promise)


@pytest.mark.slow
def test_the_watch_seldom_rings_without_a_change_and_often_with_one() -> None:
    """Two histories of 250 runs each; the slow stage has enough of them to hold its level to account."""
    found = simulate(PROMISES["watch"], 5)
    assert sum(found.bounded) <= binomial_ceiling(5, WATCHED, 0.95)
    assert sum(found.worth) >= 2


@pytest.mark.parametrize(
    ("name", "calibrations"),
    [
        *(pytest.param(name, SAMPLE.get(name, 12), marks=pytest.mark.slow) for name in PROMISES),
        *(pytest.param(name, 200, marks=[pytest.mark.promises, UNHURRIED]) for name in PROMISES),
    ],
)
def test_every_promise_is_kept_in_many_calibrations_and_published(name: str, calibrations: int) -> None:
    promise = PROMISES[name]
    found = simulate(promise, calibrations, seed=1)
    row = found.row(promise)
    assert found.kept(promise), row
    unpublished = calibrations - sum(found.there)
    assert unpublished <= binomial_ceiling(calibrations, 1.0 - LITTLE_POWER.get(name, 0.9)), row
    assert row["out"] > 0.05, row


@pytest.mark.promises
@UNHURRIED
@pytest.mark.parametrize("name", SABOTAGES)
def test_every_promise_is_broken_where_what_it_assumes_does_not_hold(name: str) -> None:
    promise = sabotaged(name)
    found = simulate(promise, 80, seed=1)
    assert not found.kept(promise), found.row(promise)
