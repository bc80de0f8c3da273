"""Lazy filtration finds the set of the eager form and asks for no score beyond the step that closes it."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.aggregation import Aggregation, LogSumExpAggregation, MaxAggregation, SumAggregation, ragged
from grampus_uq.stats.conformal import TieBrokenThreshold, conformity_at, prediction_sets
from grampus_uq.stats.entry_thresholds import left_filtration_entry, right_filtration_entry
from grampus_uq.stats.lazy_sets import Filtration, drive, lazy_conformity_walk, lazy_set, lazy_set_async

AGGREGATIONS: list[Aggregation] = [
    SumAggregation(),
    SumAggregation(length_penalty=0.3),
    MaxAggregation(),
    MaxAggregation(length_penalty=0.2),
    LogSumExpAggregation(beta=0.7),
]

rows = st.lists(st.integers(0, 4).map(lambda k: k / 3) | st.floats(0, 5), min_size=1, max_size=9)


class Counting:
    """A scorer that remembers what it was asked."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores
        self.asked: list[int] = []

    def __call__(self, step: int) -> float:
        self.asked.append(step)
        return self.scores[step]

    async def later(self, step: int) -> float:
        await asyncio.sleep(0)
        return self(step)


@given(rows, st.sampled_from(AGGREGATIONS), st.sampled_from(Filtration), st.booleans(), st.floats(0, 1), st.data())
def test_lazy_sets_are_the_eager_ones_with_one_evaluation_more_than_steps_inside(
    scores: list[float],
    aggregation: Aggregation,
    filtration: Filtration,
    boundary: bool,
    draw: float,
    data: st.DataObject,
) -> None:
    """Thresholds are taken from the entry thresholds themselves, so ties happen, and their draws decide."""
    eager = right_filtration_entry if filtration is Filtration.RIGHT else left_filtration_entry
    entry = eager(ragged([scores]), aggregation, infinite_boundary=boundary)
    some = data.draw(st.sampled_from([*entry.values[0].tolist(), -math.inf, math.inf, 0.0, 1.0]))
    threshold = TieBrokenThreshold(value=some, draw=data.draw(st.sampled_from([0.0, draw, 1.0])), rank=1, n=1)
    wanted = np.flatnonzero(prediction_sets(entry, threshold, [draw])[0])
    scorer = Counting(scores)
    found = lazy_set(scorer, filtration, len(scores), threshold, aggregation, draw=draw, infinite_boundary=boundary)
    assert list(range(found.start, found.stop)) == wanted.tolist()
    needed = min(len(wanted) + 1, len(scores) - boundary)
    assert found.evaluations == len(scorer.asked) == needed
    assert len(set(scorer.asked)) == needed, "no step is scored twice"
    assert np.isfinite(found.scores).sum() == needed

    again = Counting(scores)
    awaited = asyncio.run(
        lazy_set_async(
            again.later, filtration, len(scores), threshold, aggregation, draw=draw, infinite_boundary=boundary
        )
    )
    assert (awaited.start, awaited.stop, again.asked) == (found.start, found.stop, scorer.asked)


@given(rows, st.sampled_from(AGGREGATIONS), st.sampled_from(Filtration), st.booleans(), st.data())
def test_lazy_calibration_gives_the_eager_score_from_the_steps_up_to_the_true_one(
    scores: list[float], aggregation: Aggregation, filtration: Filtration, boundary: bool, data: st.DataObject
) -> None:
    true_step = data.draw(st.integers(0, len(scores) - 1))
    eager = right_filtration_entry if filtration is Filtration.RIGHT else left_filtration_entry
    wanted = conformity_at(eager(ragged([scores]), aggregation, infinite_boundary=boundary), [true_step])[0]
    scorer = Counting(scores)
    walk = lazy_conformity_walk(filtration, len(scores), true_step, aggregation, infinite_boundary=boundary)
    assert drive(walk, scorer) == wanted
    assert len(scorer.asked) <= filtration.step_at(true_step, len(scores)) + 1


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_a_score_that_would_make_stopping_early_wrong_is_refused(bad: float) -> None:
    threshold = TieBrokenThreshold(value=10.0, draw=1.0, rank=1, n=1)
    with pytest.raises(ConfigurationError, match="eager form"):
        lazy_set(Counting([0.1, bad]), Filtration.RIGHT, 2, threshold, SumAggregation())


def test_a_negative_score_is_fine_where_g_stays_monotone() -> None:
    threshold = TieBrokenThreshold(value=0.0, draw=1.0, rank=1, n=1)
    found = lazy_set(Counting([-1.0, 2.0, 3.0]), Filtration.RIGHT, 3, threshold, MaxAggregation())
    assert (found.start, found.stop, found.evaluations) == (0, 1, 2)


def test_what_the_scorer_raises_comes_through_even_stop_iteration() -> None:
    def empty(_: int) -> float:
        return next(iter(()))

    threshold = TieBrokenThreshold(value=1.0, draw=1.0, rank=1, n=1)
    with pytest.raises(StopIteration):
        lazy_set(empty, Filtration.LEFT, 2, threshold, SumAggregation())


def test_cancelling_while_a_step_is_scored_stops_the_walk() -> None:
    asked: list[int] = []

    async def stuck(step: int) -> float:
        asked.append(step)
        await asyncio.sleep(3600)
        return 0.0

    async def main() -> None:
        threshold = TieBrokenThreshold(value=1.0, draw=1.0, rank=1, n=1)
        task = asyncio.create_task(lazy_set_async(stuck, Filtration.LEFT, 3, threshold, SumAggregation()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert asked == [2]


def test_an_empty_trajectory_and_a_true_step_outside_are_refused() -> None:
    threshold = TieBrokenThreshold(value=1.0, draw=1.0, rank=1, n=1)
    with pytest.raises(ConfigurationError, match="length"):
        lazy_set(Counting([]), Filtration.RIGHT, 0, threshold, SumAggregation())
    with pytest.raises(ConfigurationError, match="true_step"):
        drive(lazy_conformity_walk(Filtration.RIGHT, 2, 2, SumAggregation()), Counting([0.0, 0.0]))
