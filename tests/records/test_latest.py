"""A bounded mapping keeps what was set last, whatever is set, read and removed in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.records.latest import Latest

KEYS = st.integers(0, 5)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "setdefault", "update", "pop"]), KEYS, st.integers()), max_size=30)


@given(STEPS, st.integers(1, 4))
def test_the_entries_that_were_set_last_are_kept_oldest_first(steps: list[tuple[str, int, int]], most: int) -> None:
    latest: Latest[int, int] = Latest(most)
    expected: list[tuple[int, int]] = []
    for how, key, value in steps:
        known = dict(expected)
        if how == "pop":
            assert latest.pop(key, None) == known.get(key)
        elif how == "setdefault":
            assert latest.setdefault(key, value) == known.get(key, value)
        elif how == "update":
            latest.update([(key, value)])
        else:
            latest[key] = value
        if not (how == "setdefault" and key in known):
            expected = [entry for entry in expected if entry[0] != key]
            expected = (expected if how == "pop" else [*expected, (key, value)])[-most:]
        assert list(latest.items()) == expected
