"""Figures of an alarm rule: each by its definition, None where there is nothing to divide by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.alarm_figures import Figure, alarm_figures
from grampus_uq.stats.ranks import binomial_interval
from tests.binomial import binomial_ceiling
from tests.sampling import sampled

RUNS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.booleans()), max_size=30)


@given(RUNS)
def test_figures_follow_their_definitions(drawn: list[tuple[int, int, bool]]) -> None:
    runs = [(length, min(alarm, length), good) for length, alarm, good in drawn]
    found = alarm_figures([a for _, a, _ in runs], [n for n, _, _ in runs], [g for _, _, g in runs])
    good = [alarm > 0 for _, alarm, success in runs if success]
    bad = [alarm > 0 for _, alarm, success in runs if not success]
    alarmed = [not success for _, alarm, success in runs if alarm]

    def share(hits: list[bool]) -> float | None:
        return sum(hits) / len(hits) if hits else None

    assert found.false_alarms.estimate == share(good)
    assert found.power.estimate == share(bad)
    assert found.precision.estimate == share(alarmed)
    assert found.paused.estimate == share([alarm > 0 for _, alarm, _ in runs])
    positions = [alarm / length for length, alarm, _ in runs if alarm]
    assert found.position.estimate == (pytest.approx(np.median(positions)) if positions else None)
    used = [(alarm or length) / length for length, alarm, _ in runs]
    assert found.cost_used.estimate == (pytest.approx(np.mean(used)) if used else None)
    interval = (found.false_alarms.low, found.false_alarms.high)
    assert interval == (binomial_interval(sum(good), len(good)) if good else (None, None))


def test_without_outcomes_only_figures_that_need_none_are_there() -> None:
    found = alarm_figures([0, 1], [2, 2], None)
    assert (found.false_alarms, found.power, found.precision) == (Figure(), Figure(), Figure())
    assert (found.paused.estimate, found.cost_used.estimate) == (0.5, 0.75)


def test_an_alarm_after_the_end_or_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="step of its run"):
        alarm_figures([3], [2], [True])
    with pytest.raises(ConfigurationError, match="as long as"):
        alarm_figures([1], [2, 2], [True, True])


@sampled("times", [80], full=[300])
def test_the_interval_of_the_cost_holds_the_truth_also_where_hardly_a_run_alarms(times: int) -> None:
    """A normal interval is a point where no run alarms: at thirty runs, .05 alarming, it held the truth in .67."""
    rng, missed = np.random.default_rng(0), 0
    for _ in range(times):
        alarm = np.where(rng.random(30) < 0.05, rng.integers(1, 11, 30), 0)
        cost = alarm_figures(alarm, np.full(30, 10), None).cost_used
        assert cost.low is not None
        assert cost.high is not None
        missed += not cost.low <= 1.0 - 0.05 * 0.45 <= cost.high
    assert missed <= binomial_ceiling(times, 0.05)
