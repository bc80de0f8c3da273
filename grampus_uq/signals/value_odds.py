"""Probability of the value of one part of a call, apart from its written form.

    p(value)   = product of p(token) over the tokens of the value, times p(it ends there)
    p(further) = p(what goes on) / (p(what goes on) + p(what ends the arguments)), behind the value

Keys and marks are left out: a grammar, or a form that a model is not used to, makes them unlikely in right calls too.
What ends a value is compared with what would have ended it elsewhere: behind 85, `}` and `,` end it alike, and `0`
does not. `further` is the choice to give one more argument, and belongs to that one. Alternatives that were not
reported take no part, so that without any what ends a value counts whole. Of a value that is one of several that are
known, only these are alternatives (`call_choices`). Linear in the tokens of the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from grampus_uq.records.values import TokenLogprob
from grampus_uq.signals.call_candidates import goes_on
from grampus_uq.signals.call_choices import Choice

BEHIND: Final = 3
"""Characters behind a value in which it ends and goes on: a quote with its escape, and a comma."""
LOWEST: Final = -1e6
"""The least logarithm of a probability that is added up, in place of minus infinity."""
_GOES_ON: Final = ","
_CLOSES: Final = ("}", ")", "]")
_MOST_ALTERNATIVES: Final = 32
_ENDING: Final = re.compile(r"\\{0,8}[\"']")


class ValueOdds(NamedTuple):
    """Natural logarithms of p(value) and p(further), at most 0."""

    value: float
    further: float


def value_odds(
    text: str, begin: int, end: int, written: Sequence[tuple[int, TokenLogprob]], choice: Choice | None = None
) -> ValueOdds:
    """Of the value at `text[begin:end]`; `written` are its tokens and those `BEHIND` it, each with where it starts.

    `choice` is the value among all that may stand there, if that is known.
    """
    quoted = begin > 0 and text[begin - 1] in "\"'"
    mark = end + (2 if text.startswith("\\", end) else 1) if quoted else end  # where it goes on
    value = further = 0.0
    for start, token in written:
        stop, own = start + len(token.token), max(min(token.logprob, 0.0), LOWEST)
        if choice is not None and start <= end:
            head = text[start:begin]
            others = ((p[len(head) :], one) if p.startswith(head) else ("", one) for p, one in _others(token))
            ending = _ENDING.match(text, end) if quoted else None
            value += choice.odds(max(start - begin, 0), own, others, ending[0] if ending else "")
        elif stop <= end:
            value += own
        elif start <= end and (start < end or not text.startswith(_CLOSES, end - 1)):
            alike = [one for piece, one in _others(token) if _ends_alike(text, start, end, piece, quoted)]
            value += _sum(own, alike)
        if stop > end and not (quoted or text[end:stop].strip(" \t")):
            end = stop  # blanks end nothing
        if start <= mark < stop and text.startswith(_GOES_ON, mark):
            there = [(piece, one) for piece, one in _others(token) if piece.startswith(text[start:mark])]
            goes_on = _sum(own, [one for piece, one in there if piece.startswith(_GOES_ON, mark - start)])
            closes = [one for piece, one in there if piece.startswith(_CLOSES, mark - start)]
            further = goes_on - _sum(goes_on, closes)
    return ValueOdds(value, further)


def _others(token: TokenLogprob) -> Iterator[tuple[str, float]]:
    """The alternatives of a token that have a probability."""
    return ((p, one) for p, one in token.top[:_MOST_ALTERNATIVES] if p != token.token and -math.inf < one <= 0.0)


def _ends_alike(text: str, start: int, end: int, piece: str, quoted: bool) -> bool:
    """Return True if the alternative writes the rest of the value and ends it."""
    if not piece.startswith(text[start:end]) or len(piece) == end - start:
        return False
    after = piece[end - start :]
    return after[0] == text[end] if quoted else bool(after.strip(" \t")) and not goes_on(after)


def _sum(own: float, others: Sequence[float]) -> float:
    """The logarithm of the sum of probabilities, at most 0."""
    total = math.fsum(map(math.exp, others))
    return own if not total else min(math.log(math.exp(own) + total), 0.0)
