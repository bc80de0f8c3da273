"""Which tests begin first: on several workers those that may take long, so that none begins when the rest is done.

A test says how long it may take by its time limit. Tests of one file stay together: they share what is costly to make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

Item = TypeVar("Item")
LONG_S = 1_200.0


def limit_s(item: pytest.Item) -> float:
    """The time limit that a test states; 0 where it has that of all."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None and mark.args else 0.0


def turned(rooms: Sequence[str], worker: int, workers: int) -> list[str]:
    """All rooms, beginning elsewhere for each worker.

    In a new checkout each file of tests is compiled, which takes longer than to load it. Workers that read in the same
    order compile every file at the same time; in different ones each finds most of them compiled by others.
    """
    first = worker * len(rooms) // workers
    return [*rooms[first:], *rooms[:first]]


def long_first(
    items: Sequence[Item], workers: int, limit_s: Callable[[Item], float], file: Callable[[Item], object]
) -> list[Item]:
    """The items in another order: each worker's share, which pytest-xdist cuts out in one piece, begins with long."""
    groups: dict[object, list[Item]] = {}
    rest: list[Item] = []
    for item in items:
        if limit_s(item) >= LONG_S:
            groups.setdefault(file(item), []).append(item)
        else:
            rest.append(item)
    longest = sorted(groups.values(), key=lambda group: -sum(map(limit_s, group)))
    ordered, left = list[Item](), len(items)
    for worker in range(workers):
        share = left // (workers - worker)  # as xdist's `worksteal` counts
        left -= share
        heads = [item for group in longest[worker::workers] for item in group]
        ordered += heads + rest[: max(0, share - len(heads))]
        del rest[: max(0, share - len(heads))]
    return ordered + rest
