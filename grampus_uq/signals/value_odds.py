"""Probability of the value of one part of a call, apart from its written form.

    p(value)   = product of p(token) over the tokens of the value, times p(it ends there)
    p(further) = p(what goes on) / (p(what goes on) + p(what ends the arguments)), behind the value

Keys and marks are left out: a grammar, or a form that a model is not used to, makes them unlikely in right calls too.
But what the blanks and quotes before a value might have begun in its place (` -`, ` null`) counts against it.
What ends a value is compared with what would have ended it elsewhere: behind 85, `}` and `,` end it alike, and `0`
does not. `further` is the choice to give one more argument, and belongs to that one; blanks before the comma hide
nothing, and an alternative behind which the comma may yet come or not counts against it. Alternatives that were not
reported take no part, so that without any what ends a value counts whole. Of a value that is one of several that are
known, only these are alternatives (`call_choices`). Linear in the tokens of the value.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from grampus_uq.records.values import TokenLogprob
from grampus_uq.signals.call_candidates import goes_on
from grampus_uq.signals.call_choices import Choice

LOWEST: Final = -1e6
"""The least logarithm of a probability that is added up, in place of minus infinity."""
_CLOSES: Final = ("}", ")", "]")
_BLANKS: Final = re.compile(r"(?:\s|\\{1,8}[nrt])*")
_COMMA: Final = re.compile(_BLANKS.pattern + ",")
_STOPS: Final = re.compile(_BLANKS.pattern + r"(?:[})\]]|\Z)")
_LED: Final = re.compile(r"[:=][\s\"'\\]*\Z")
_GAP: Final = re.compile(r"[\s\"'\\:=]*")
_NEAR: Final = 64
_MOST_BEFORE: Final = 8  # tokens before a value that may have begun another one
_MOST_ALTERNATIVES: Final = 32
_ENDING: Final = re.compile(r"\\{0,8}[\"']")


Written = Sequence[tuple[int, TokenLogprob]]
"""Tokens, each with where it starts."""


class ValueOdds(NamedTuple):
    """Natural logarithms of p(value) and p(further), at most 0."""

    value: float
    further: float


def value_odds(text: str, begin: int, end: int, written: Written, at: int, choice: Choice | None = None) -> ValueOdds:
    """Of the value at `text[begin:end]`; `written` are all tokens, each with where it starts; its first is that `at`.

    `choice` is the value among all that may stand there, if that is known.
    """
    quoted = begin > 0 and text[begin - 1] in "\"'"
    ending = _ENDING.match(text, end) if quoted else None
    mark, last = ending.end() if ending else end, end
    blanks = _BLANKS.match(text, mark)
    behind = blanks.end() if blanks else mark
    value = further = 0.0
    if _LED.search(text, max(begin - _NEAR, 0), begin):
        value += _odds_before(text, begin, end, written[max(at - _MOST_BEFORE, 0) : at], choice)
    for start, token in written[at : bisect_right(written, behind, at, key=itemgetter(0))]:
        stop, own = start + len(token.token), max(min(token.logprob, 0.0), LOWEST)
        if choice is not None and start <= end:
            head = text[start:begin]
            others = ((p[len(head) :], one) if p.startswith(head) else ("", one) for p, one in _others(token))
            value += choice.odds(max(start - begin, 0), own, others, ending[0] if ending else "")
        elif stop <= end:
            value += own
        elif start <= end and (start < end or not text.startswith(_CLOSES, end - 1)):
            alike = [one for piece, one in _others(token) if _ends_alike(text, start, end, piece, quoted)]
            value += _sum(own, alike)
        if stop > end and not (quoted or text[end:stop].strip(" \t")):
            end = stop  # blanks end nothing
        if last < stop and text.startswith(",", behind):
            prefix = text[start:mark]
            there = [(piece[len(prefix) :], one) for piece, one in _others(token) if piece.startswith(prefix)]
            goes_on = _sum(own, [one for piece, one in there if _COMMA.match(piece)])
            further += goes_on - _sum(goes_on, [one for piece, one in there if _STOPS.match(piece)])
    return ValueOdds(value, further)


def _others(token: TokenLogprob) -> Iterator[tuple[str, float]]:
    """The alternatives of a token that have a probability."""
    return ((p, one) for p, one in token.top[:_MOST_ALTERNATIVES] if p != token.token and -math.inf < one <= 0.0)


def _odds_before(text: str, begin: int, end: int, before: Written, choice: Choice | None) -> float:
    """The logarithm of p(value) at the blanks and quotes before it, whose alternatives may begin another value."""
    odds = 0.0
    for start, token in itertools.takewhile(lambda one: _GAP.fullmatch(text, one[0], begin), reversed(before)):
        begun = ((_begun(piece, text[start:begin]), one) for piece, one in _others(token))
        same = [(_is_same(text, begin, end, piece, choice), one) for piece, one in begun if piece]
        own = _sum(max(min(token.logprob, 0.0), LOWEST), [one for kind, one in same if kind])
        odds += own - _sum(own, [one for kind, one in same if kind is False])
    return odds


def _begun(piece: str, gap: str) -> str:
    """What an alternative to the tokens of a gap writes of a value; "" where that is nothing yet."""
    core = "".join(gap.split())
    for place, mark in enumerate(core):
        piece = piece.lstrip()
        if not piece.startswith(mark):
            return "" if core[place:].strip("\\\"'") else piece
        piece = piece[1:]
    return piece.lstrip() if core[-1:] in "\"'" and core else piece.lstrip().lstrip("\\\"'")


def _is_same(text: str, begin: int, end: int, piece: str, choice: Choice | None) -> bool | None:
    """True where a piece begins the value, False where it begins another one, None where that one is not allowed."""
    if choice is not None:
        return choice.is_same(piece, text[end] if text[begin - 1] in "\"'" else "")
    return text.startswith(piece, begin) or (piece.startswith(text[begin:end]) and not goes_on(piece[end - begin :]))


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
