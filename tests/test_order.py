"""Tests that may take long begin first, on whatever number of workers, and none is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.order import LONG_S, long_first, turned


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.0, 600.0, LONG_S, 3_600.0]))), st.integers(1, 9)
)
def test_every_share_begins_with_what_may_take_long_and_every_test_stays(
    tests: list[tuple[str, float]], workers: int
) -> None:
    items = list(enumerate(tests))
    ordered = long_first(items, workers, lambda item: item[1][1], lambda item: item[1][0])
    assert sorted(ordered) == items
    short = [item for item in ordered if item[1][1] < LONG_S]
    assert short == sorted(short), "the others stay in their order"
    for name in "abcdef":
        places = [ordered.index(item) for item in items if item[1] == (name, LONG_S) or item[1] == (name, 3_600.0)]
        assert places == list(range(min(places, default=0), min(places, default=0) + len(places))), "a file is split"


@given(st.lists(st.text(), unique=True, min_size=9), st.integers(1, 9))
def test_every_worker_reads_every_room_and_no_two_begin_with_the_same(rooms: list[str], workers: int) -> None:
    orders = [turned(rooms, worker, workers) for worker in range(workers)]
    assert all(sorted(order) == sorted(rooms) for order in orders)
    assert len({order[0] for order in orders}) == workers


def test_four_workers_begin_with_the_four_files_that_may_take_longest() -> None:
    limits = {"life": 3_600.0, "docs": 1_600.0, "mutation": 3_500.0, "mypy": 1_500.0, "demo": 1_300.0}
    items = [f"short-{number}" for number in range(35)]
    items[10:10] = ["mypy", "life"]
    items += ["docs", "demo", "mutation"]
    ordered = long_first(items, 4, lambda item: limits.get(item, 0.0), lambda item: item)
    assert [ordered[place] for place in (0, 1, 10, 20, 30)] == ["life", "demo", "mutation", "docs", "mypy"]
