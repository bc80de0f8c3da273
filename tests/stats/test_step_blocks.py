"""Runs as blocks of equal step: nothing is lost, nothing is mixed up, nothing is padded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.step_blocks import (
    first_step_where,
    in_caller_order,
    run_maximum,
    run_of_row,
    step_blocks,
    step_of_row,
)

RAGGED = st.lists(st.lists(st.floats(-9, 9) | st.just(float("nan")), min_size=1, max_size=6), max_size=8)


@given(RAGGED)
def test_every_row_knows_its_run_and_step_and_finds_its_way_back(runs: list[list[float]]) -> None:
    values = np.array([x for run in runs for x in run])
    blocks = step_blocks(values, np.array([len(run) for run in runs], dtype=int))
    pairs = [(run, step) for run, scores in enumerate(runs) for step in range(1, len(scores) + 1)]
    found = list(zip(run_of_row(blocks).tolist(), step_of_row(blocks).tolist(), strict=True))
    assert [found[i] for i in np.argsort(blocks.rows)] == pairs
    np.testing.assert_array_equal(in_caller_order(blocks, blocks.values[:, 0]), values)


@given(RAGGED)
def test_maximum_and_first_crossing_are_those_of_each_run_alone(runs: list[list[float]]) -> None:
    values = np.array([x for run in runs for x in run])
    blocks = step_blocks(values, np.array([len(run) for run in runs], dtype=int))
    peaks = [max((x for x in run if x == x), default=-np.inf) for run in runs]
    assert run_maximum(blocks, blocks.values[:, 0]).tolist() == peaks
    first = [next((t for t, x in enumerate(run, start=1) if x > 2.0), 0) for run in runs]
    assert first_step_where(blocks, blocks.values[:, 0] > 2.0).tolist() == first


@pytest.mark.parametrize(
    ("values", "lengths"),
    [
        ([1.0, 2.0], [1]),
        ([1.0, 2.0], [3]),
        ([1.0, 2.0], [2, 0]),
        ([1.0, np.inf], [2]),
        ([1.0, 2.0], [1.0, 1.0]),
        (np.zeros((2, 2, 2)), [2]),
    ],
)
def test_lengths_that_do_not_fit_and_infinite_scores_are_refused(values: object, lengths: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="step_blocks"):
        step_blocks(values, lengths)  # type: ignore[arg-type]  # some are wrong on purpose
