"""Lazy filtration finds the set of the eager form and asks for no score beyond the step that closes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import ragged
from grampus_uq.stats.conformal import TieBrokenThreshold, conformity_at, prediction_sets
from grampus_uq.stats.entry_thresholds import left_filtration_entry, right_filtration_entry
from grampus_uq.stats.lazy_sets import Filtration, lazy_conformity_walk, lazy_set_walk

T = TypeVar("T")

rows = st.lists(st.integers(0, 4).map(lambda k: k / 3) | st.floats(0, 5), min_size=1, max_size=9)


class Counting:
    """A scorer that remembers what it was asked."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores
        self.asked: list[int] = []

    def __call__(self, step: int) -> float:
        self.asked.append(step)
        return self.scores[step]


def drive(walk: Generator[int, float, T], score_step: Callable[[int], float]) -> T:
    """Answer a walk's questions with a plain function."""
    answer: float | None = None
    while True:
        try:
            wanted = next(walk) if answer is None else walk.send(answer)
        except StopIteration as finished:
            result: T = finished.value
            return result
        answer = score_step(wanted)


@given(rows, st.sampled_from(Filtration), st.floats(0, 1), st.data())
def test_lazy_sets_are_the_eager_ones_with_one_evaluation_more_than_steps_inside(
    scores: list[float], filtration: Filtration, draw: float, data: st.DataObject
) -> None:
    """Thresholds are taken from the entry thresholds themselves, so ties happen, and their draws decide."""
    eager = right_filtration_entry if filtration is Filtration.RIGHT else left_filtration_entry
    entry = eager(ragged([scores]))
    some = data.draw(st.sampled_from([*entry.values[0].tolist(), -math.inf, math.inf, 0.0, 1.0]))
    threshold = TieBrokenThreshold(value=some, draw=data.draw(st.sampled_from([0.0, draw, 1.0])), rank=1, n=1)
    wanted = np.flatnonzero(prediction_sets(entry, threshold, [draw])[0])
    scorer = Counting(scores)
    found = drive(lazy_set_walk(filtration, len(scores), threshold, draw), scorer)
    assert list(found) == wanted.tolist()
    assert len(scorer.asked) == min(len(wanted) + 1, len(scores))
    assert len(set(scorer.asked)) == len(scorer.asked), "no step is scored twice"


@given(rows, st.sampled_from(Filtration), st.data())
def test_lazy_calibration_gives_the_eager_score_from_the_steps_up_to_the_true_one(
    scores: list[float], filtration: Filtration, data: st.DataObject
) -> None:
    true_step = data.draw(st.integers(0, len(scores) - 1))
    eager = right_filtration_entry if filtration is Filtration.RIGHT else left_filtration_entry
    wanted = conformity_at(eager(ragged([scores])), [true_step])[0]
    scorer = Counting(scores)
    assert drive(lazy_conformity_walk(filtration, len(scores), true_step), scorer) == wanted
    assert len(scorer.asked) == filtration.step_at(true_step, len(scores)) + 1


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_a_score_that_would_make_stopping_early_wrong_is_refused(bad: float) -> None:
    threshold = TieBrokenThreshold(value=10.0, draw=1.0, rank=1, n=1)
    with pytest.raises(ConfigurationError, match="eager form"):
        drive(lazy_set_walk(Filtration.RIGHT, 2, threshold, 0.5), Counting([0.1, bad]))


def test_an_empty_trajectory_and_a_true_step_outside_are_refused() -> None:
    threshold = TieBrokenThreshold(value=1.0, draw=1.0, rank=1, n=1)
    with pytest.raises(ConfigurationError, match="length"):
        drive(lazy_set_walk(Filtration.RIGHT, 0, threshold, None), Counting([]))
    with pytest.raises(ConfigurationError, match="true_step"):
        drive(lazy_conformity_walk(Filtration.RIGHT, 2, 2), Counting([0.0, 0.0]))
