"""The values of drills are those of calls, each as often as it is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.runtime.lent_values import lent_values, other_amount, other_recipient
from grampus_uq.runtime.values_in_text import Text
from tests.runtime.drill_worlds import NAMES

AMOUNTS = st.lists(st.integers(1, 40).map(lambda n: n * 2.5), min_size=1, max_size=12)
PEOPLE = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 30)), min_size=1, max_size=12).map(
    lambda found: [f"{name}{number}@shop.example" for name, number in found]
)
ODD = st.lists(
    st.sampled_from([10**400, -1, 0, 2, 2.0, True, None, "", " ", "-", [1], {"a": 1}, 1e308, "\ud800", "9" * 5_000]),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(AMOUNTS | PEOPLE | ODD, st.data())
def test_a_lent_value_is_certainly_another_which_the_run_does_not_say_and_the_right_one_is_said(
    values: Sequence[Any], data: st.DataObject
) -> None:
    said = [data.draw(st.lists(st.sampled_from(values), max_size=2)) for _ in values]
    runs = [f"{value} and {more} paid" for value, more in zip(values, said, strict=True)]
    for differ in (other_amount, other_recipient):
        lent = lent_values(values, runs, differ)
        assert len(lent) == len(values)
        for right, value, run in zip(values, lent, runs, strict=True):
            if value is not None:
                assert differ(right, value)
                assert Text(run).says(right)
                assert not Text(run).says(value)
        given_ = [value for value in lent if value is not None]
        assert not Counter(map(repr, given_)) - Counter(map(repr, values)), "no call lends its value twice"


@settings(deadline=None)
@given(st.sets(st.integers(0, 60), min_size=2, max_size=15), st.booleans())
def test_each_value_stands_in_one_drill_so_that_none_is_more_frequent_than_among_calls(
    numbers: set[int], names: bool
) -> None:
    """What takes the likest value for each call takes short ones, and round ones, more often than they are there."""
    values = [f"ann{n:02}" if names else round(1.3**n, 2) for n in sorted(numbers)]  # none is a part of another
    lent = lent_values(values, [f"I paid: {value}" for value in values], other_recipient if names else other_amount)
    assert Counter(map(str, lent)) == Counter(map(str, values))


@pytest.mark.parametrize(
    ("values", "lent"),
    [
        (["ann7@shop.example", "bob3@shop.example", "ann8@shop.example", "bob4@shop.example"], [2, 3, 0, 1]),
        ([123_456.0, 789.0, 456_123.0, 997.0], [2, 3, 0, 1]),
    ],
)
def test_values_are_traded_among_those_that_are_most_alike(values: Sequence[Any], lent: Sequence[int]) -> None:
    differ = other_amount if isinstance(values[0], float) else other_recipient
    runs = [f"I paid {value} to you" for value in values]
    assert lent_values(values, runs, differ) == [values[place] for place in lent]
