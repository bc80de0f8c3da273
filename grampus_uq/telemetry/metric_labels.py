"""Keeps the values of a metric's label to a bounded set: everything beyond it is counted as "other"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OTHER: Final = "other"
_MOST_CHARACTERS: Final = 64


class BoundedLabel:
    """Maps a text to itself while it is one of at most `limit` values, and to "other" afterwards.

    Each value of a label is a time series that lives for ever in the metrics' backend, so no text from outside may
    become one freely. `known` values are always kept; further ones are taken in the order of their arrival while there
    is room, and only when they are short, printable words. Two threads at the edge may both be let in: the set exceeds
    the limit by at most the number of threads.
    """

    __slots__ = ("_limit", "_seen")

    def __init__(self, known: Iterable[str] = (), *, limit: int = 0) -> None:
        self._seen = {str(value) for value in known}
        self._limit = max(limit, len(self._seen))

    def __call__(self, value: str) -> str:
        """The value, or "other"."""
        if value in self._seen:
            return value
        if len(self._seen) < self._limit and 0 < len(value) <= _MOST_CHARACTERS and value.isprintable():
            self._seen.add(value)
            return value
        return OTHER
