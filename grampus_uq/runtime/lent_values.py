"""Values for drills: calls exchange their values, so that each value stays as frequent as among real calls.

Every call gets the value of one other, and every value goes to one call. So among the drills of many calls a value, a
length, a figure is as frequent as among the calls themselves, and whatever counts words finds nothing. What is left is
that a value is repeated less often in a run that it does not fit: of all trades that one is made after which the
values share the most with their runs, the rarer words and pairs of words weighing more, as in TF-IDF.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from pydantic import JsonValue

from grampus_uq.records.visible_text import name_form
from grampus_uq.runtime.values_in_text import Text, is_amount
from grampus_uq.stats.arrays import FloatArray
from grampus_uq.stats.assignment import assignment

MOST_TRADING: Final = 100
"""Calls among which values are traded: each further one costs time where transcripts are long."""

_LEAST_RATIO: Final = 1.25
_LONGEST: Final = 100
_NAME: Final = re.compile(r"[^\W_]+")
_PIECE: Final = re.compile(r"[^\W\d_]+|\d")


def words_of(name: str) -> tuple[frozenset[str], str]:
    """The words of a name, whatever its case and signs, and all of them as one."""
    words = [found.group() for found in _NAME.finditer(name_form(name))]
    return frozenset(words), "".join(words)


def other_amount(right: JsonValue, value: JsonValue) -> bool:
    """Return True if both are amounts of one type, the larger at least 1.25 times the smaller."""
    if not is_amount(right) or not is_amount(value) or type(right) is not type(value):
        return False
    low, high = sorted((right, value))
    return high >= _LEAST_RATIO * low


def other_recipient(
    right: JsonValue, value: JsonValue, words: Callable[[str], tuple[frozenset[str], str]] = words_of
) -> bool:
    """Return True if the names differ by more than added words, signs or word order."""
    if not isinstance(right, str) or not isinstance(value, str):
        return False
    (one, joined), (other, as_one) = words(right), words(value)
    return not one <= other and not other <= one and joined != as_one


def lent_values(
    values: Sequence[JsonValue], runs: Sequence[str], differ: Callable[[JsonValue, JsonValue], bool]
) -> list[JsonValue]:
    """For each call the value of another one; None where its run does not say the right one, or another fits none.

    Args:
        values: the right value of each call; of one at least.
        runs: what is shown of each call's run, without the model's own words.
        differ: whether a value is certainly another than the right one.
    """
    texts = [Text(run) for run in runs]
    possible = np.array(
        [[differ(r, v) and not text.says(v) for v in values] for r, text in zip(values, texts, strict=True)]
    )
    shared = _shared([v if isinstance(v, str) else str(v) if is_amount(v) else "" for v in values], runs)
    lender = assignment(np.where(possible, -shared, len(values) * (shared.max() + 1.0)))
    return [
        values[lender[i]] if possible[i, lender[i]] and text.says(values[i]) else None for i, text in enumerate(texts)
    ]


def _shared(values: Sequence[str], runs: Sequence[str]) -> FloatArray:
    """Return the similarity of each run (rows) and each value: the TF-IDF product of their counts of pieces."""
    of_values = [Counter(_pieces(value[:_LONGEST])) for value in values]
    place = {piece: index for index, piece in enumerate(dict.fromkeys(itertools.chain(*of_values)))}
    of_runs = [Counter(piece for piece in _pieces(run) if piece in place) for run in runs]
    counts = np.zeros((2, len(values), len(place)))
    for matrix, counted in zip(counts, (of_runs, of_values), strict=True):
        for row, count in zip(matrix, counted, strict=True):
            row[[place[piece] for piece in count]] = [*count.values()]
    weight = 1.0 + np.log(len(runs) / np.maximum((counts[0] > 0).sum(axis=0), 1))
    return np.asarray((counts[0] * weight**2) @ counts[1].T)


def _pieces(text: str) -> list[tuple[str, ...]]:
    """The words and the single figures of a text, and each two that follow one another."""
    found = _PIECE.findall(text.casefold())
    return [*zip(found, strict=True), *itertools.pairwise(found)]
