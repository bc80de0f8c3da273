"""The assignment has the least cost that there is."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from grampus_uq.stats.assignment import assignment

COSTS = st.integers(0, 6).flatmap(
    lambda n: arrays(np.float64, (n, n), elements=st.integers(-9, 9) | st.sampled_from([0.25, 1e6]))
)


@given(COSTS)
def test_no_other_permutation_costs_less(cost: npt.NDArray[np.float64]) -> None:
    found = assignment(cost)
    rows = np.arange(len(cost))
    assert sorted(found) == [*rows]
    least = min(cost[rows, list(columns)].sum() for columns in itertools.permutations(rows))
    assert cost[rows, found].sum() == least


@pytest.mark.parametrize("seed", range(5))
def test_of_a_hundred_rows_it_costs_what_scipys_costs(seed: int) -> None:
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(seed)
    cost = np.where(rng.random((100, 100)) < 0.1, 1e4, rng.normal(size=(100, 100)))
    rows, columns = linear_sum_assignment(cost)
    assert cost[np.arange(100), assignment(cost)].sum() == pytest.approx(cost[rows, columns].sum())
