"""Matching: as many of one side as can be, each with one of its choices and none with that of another."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Chooser = TypeVar("Chooser", bound=Hashable)
Choice = TypeVar("Choice", bound=Hashable)


def matching(choices: Mapping[Chooser, Iterable[Choice]]) -> dict[Choice, Chooser]:
    """Whom each taken choice went to: a maximum matching of a bipartite graph, by augmenting paths (Berge 1957).

    Choosers come in their order, and one that has a choice keeps one: a later one takes it only where another is left.

    >>> matching({"a": [1, 2], "b": [1], "c": [2]})
    {1: 'b', 2: 'a'}
    """
    given: dict[Choice, Chooser] = {}
    for chooser in choices:
        _augment(chooser, choices, given)
    return given


def _augment(chooser: Chooser, choices: Mapping[Chooser, Iterable[Choice]], given: dict[Choice, Chooser]) -> None:
    """Find this one a choice; whoever loses theirs to them gets another one."""
    before: dict[Chooser, Choice] = {}
    asked_by: dict[Choice, Chooser] = {}
    looking = [chooser]
    for one in looking:
        for choice in choices[one]:
            if choice in asked_by:
                continue
            asked_by[choice] = one
            if choice in given:
                before[given[choice]] = choice
                looking.append(given[choice])
                continue
            free: Choice | None = choice
            while free is not None:
                taker = asked_by[free]
                given[free] = taker
                free = before.get(taker)
            return
