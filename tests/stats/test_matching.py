"""A maximum matching, against every choice by hand."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.stats.matching import matching

CHOICES = st.dictionaries(st.integers(0, 4), st.lists(st.sampled_from("abcd"), max_size=4, unique=True), max_size=5)


def most(choices: dict[int, list[str]]) -> int:
    """By letting them choose in every order, each the first that is left, in every order of their choices."""
    best = 0
    for order in permutations(choices):
        sets: set[frozenset[str]] = {frozenset()}
        for one in order:
            sets |= {taken | {choice} for taken in sets for choice in choices[one] if choice not in taken}
        best = max(best, *(len(taken) for taken in sets))
    return best


@given(CHOICES)
def test_as_many_as_can_be_have_a_choice_of_their_own(choices: dict[int, list[str]]) -> None:
    given_ = matching(choices)
    assert all(choice in choices[one] for choice, one in given_.items())
    assert len(set(given_.values())) == len(given_) == most(choices)


@given(CHOICES)
def test_who_comes_first_keeps_a_choice_whoever_comes_later(choices: dict[int, list[str]]) -> None:
    first = dict(list(choices.items())[:-1])
    assert {*matching(first).values()} <= {*matching(choices).values()}


def test_a_chain_of_thousands_moves_along() -> None:
    choices = {n: [n, n + 1] for n in range(3_000)} | {3_000: [0]}
    assert len(matching(choices)) == 3_001
