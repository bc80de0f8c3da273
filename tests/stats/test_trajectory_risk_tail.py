"""The tail mean of a stream keeps its stated error of the definition on every prefix."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.tail_sketch import TailSketch, tail_count, tail_update
from tests.trajectory_runs import exact_tail_mean

FRACTIONS = (0.01, 0.05, 0.1, 0.29, 0.3333, 0.5, 0.57, 0.99, 1.0)


@pytest.mark.parametrize(
    ("n", "k", "count"), [(100, 0.29, 29), (100, 0.57, 57), (10, 0.1, 1), (9, 0.1, 1), (3, 1.0, 3)]
)
def test_the_tail_count_is_the_decimal_one_where_binary_rounding_falls_short(n: int, k: float, count: int) -> None:
    assert tail_count(n, k) == count


@pytest.mark.parametrize("risk", [math.nan, -1e-9, math.inf, -math.inf, 1e101])
def test_a_number_that_is_no_risk_is_refused(risk: float) -> None:
    with pytest.raises(ConfigurationError, match="'risk' parameter"):
        tail_update(TailSketch.of(0.1, [0.5]), risk)


@pytest.mark.parametrize("k", [0.0, -0.1, 1.0000001, 10.0, math.nan])
def test_a_tail_fraction_outside_of_zero_to_one_is_refused(k: float) -> None:
    for use in (TailSketch.of, lambda value: tail_count(3, value)):
        with pytest.raises(ConfigurationError, match="'k' parameter"):
            use(k)


def test_a_run_without_steps_has_no_tail_mean() -> None:
    assert TailSketch.of(0.1).mean is None
    assert TailSketch.of(0.1).error == 0.0


@given(
    st.lists(
        st.one_of(
            st.floats(0.0, 20.0),
            st.sampled_from((0.0, 1e-10, 1e-9, 0.5, 20.0, 1e6)),
            st.sampled_from((1.0, 1.0009, 1.009, 1.19)),  # many of one bucket, at both its ends
        ),
        min_size=1,
        max_size=80,
    ),
    st.sampled_from(FRACTIONS),
    st.sampled_from((0.0005, 0.005, 0.1)),
)
def test_the_bounded_form_is_within_its_stated_error_on_every_prefix(
    risks: list[float], k: float, accuracy: float
) -> None:
    sketch = TailSketch.of(k, accuracy=accuracy)
    for number, risk in enumerate(risks, 1):
        sketch = tail_update(sketch, risk)
        assert sketch.mean is not None
        exact = exact_tail_mean(risks[:number], k)
        rounding = 1e-12 * exact + 1e-300  # below the normal numbers nothing is relative
        assert abs(sketch.mean - exact) <= sketch.error + rounding
        assert sketch.error <= accuracy * exact + 5e-10 + rounding
        assert (sketch.worst, sketch.count) == (max(risks[:number]), number)


@given(st.floats(1e-3, 20.0), st.integers(1, 200), st.sampled_from(FRACTIONS), st.sampled_from((0.005, 0.1)))
def test_the_error_of_equal_risks_is_within_the_accuracy_wherever_they_lie_in_their_bucket(
    risk: float, n: int, k: float, accuracy: float
) -> None:
    assert TailSketch.of(k, [risk] * n, accuracy=accuracy).error <= accuracy * risk + 5e-10


def test_the_error_that_the_bounded_form_states_is_not_an_empty_promise() -> None:
    # It has to be large enough to be needed and small enough to be of use: both break if it were 0 or the mean itself.
    rng = random.Random(1)
    risks = [rng.random() for _ in range(3000)]
    sketch = TailSketch.of(0.1, risks, accuracy=0.05)
    assert sketch.mean is not None
    difference = abs(sketch.mean - exact_tail_mean(risks, 0.1))
    assert 0.0 < difference <= sketch.error < 0.05


def test_the_bounded_form_does_not_grow_with_the_run() -> None:
    rng = random.Random(2)
    sketch = TailSketch.of(0.1)
    sizes = []
    for more in (10_000, 20_000):
        sketch = reduce(tail_update, (0.5 + rng.random() for _ in range(more)), sketch)
        sizes.append(len(sketch.buckets))
    assert sizes[0] == sizes[1] <= 112  # ln 3 / ln 1.01 buckets between .5 and 1.5


@given(st.lists(st.floats(0.0, 50.0), max_size=40), st.lists(st.floats(0.0, 50.0), max_size=10))
def test_a_stored_sketch_goes_on_as_if_it_had_not_been_stored(before: list[float], after: list[float]) -> None:
    adapter = TypeAdapter(TailSketch)
    whole = TailSketch.of(0.29, before)
    restored = adapter.validate_json(adapter.dump_json(whole))
    restored.check()
    assert reduce(tail_update, after, restored) == reduce(tail_update, after, whole)


@pytest.mark.parametrize(
    "buckets",
    [
        ((3, 0, 0.0),),
        ((-1, 1, 0.0),),
        ((2000, 1, 5.0), (1999, 1, 4.9)),
        ((2000, 1, 500.0),),
        ((2000, 1, math.nan),),
    ],
)
def test_a_stored_sketch_that_no_run_can_reach_is_refused(buckets: tuple[tuple[int, int, float], ...]) -> None:
    with pytest.raises(ConfigurationError, match="'buckets' parameter"):
        TailSketch(k=0.1, accuracy=0.005, worst=1.0, buckets=buckets).check()


def test_a_stored_worst_risk_outside_of_the_highest_bucket_is_refused() -> None:
    for sketch in (TailSketch.of(0.1, [0.2, 0.4]), TailSketch.of(0.1)):
        with pytest.raises(ConfigurationError, match="'worst' parameter"):
            replace(sketch, worst=0.9).check()


@pytest.mark.parametrize(("name", "value"), [("k", 0.0), ("accuracy", 0.6), ("accuracy", math.nan)])
def test_a_stored_sketch_of_no_fraction_or_accuracy_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' parameter"):
        replace(TailSketch.of(0.1, [0.2]), **{name: value}).check()  # type: ignore[arg-type]  # a dict has one value type
