"""Figures of an alarm rule: each by its definition, None where there is nothing to divide by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.alarm_figures import alarm_figures
from grampus_uq.stats.ranks import binomial_interval

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

    assert (found.runs, found.failures) == (len(runs), len(bad))
    assert found.false_alarm_rate == share(good)
    assert found.power == share(bad)
    assert found.precision == share(alarmed)
    assert found.paused_share == share([alarm > 0 for _, alarm, _ in runs])
    caught = [alarm / length for length, alarm, success in runs if alarm and not success]
    assert found.alarm_position == (pytest.approx(np.mean(caught)) if caught else None)
    used = sum(alarm or length for length, alarm, _ in runs)
    assert found.cost_used == (pytest.approx(used / sum(n for n, _, _ in runs)) if runs else None)
    if good:
        assert found.accuracy_kept == pytest.approx(1 - sum(good) / len(good))
        assert found.false_alarm_interval == binomial_interval(sum(good), len(good))
    else:
        assert found.accuracy_kept is None
        assert found.false_alarm_interval is None


def test_an_alarm_after_the_end_or_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="step of its run"):
        alarm_figures([3], [2], [True])
    with pytest.raises(ConfigurationError, match="as long as"):
        alarm_figures([1], [2, 2], [True, True])
