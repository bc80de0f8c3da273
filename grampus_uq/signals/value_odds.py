"""Probability of the value of one part of a call, apart from its written form.

    p(value)   = product of p(token) over the tokens of the value, times p(it ends there)
    p(further) = p(what goes on) / (p(what goes on) + p(what ends the arguments)), behind the value

Keys and marks are left out: a grammar, or a form that a model is not used to, makes them unlikely in right calls too.
But what the blanks, quotes and mark before a value might have begun in its place (` -`, ` null`, `.get` for the `.` of
`functions.pay`) counts against it, were it only its beginning; so does a text in place of what is none, or none in
place of a text, but a number may be either; and the wish to give no argument against the first, were it only opened.
What ends a value is compared with what would have ended it elsewhere: behind 85, `}` and `,` end it alike, and `0`
does not. `further` is the choice to give one more argument, and belongs to that one; blanks before the comma hide
nothing, and an alternative behind which the comma may yet come or not counts against it. What was not reported may have
begun another value before an argument's; elsewhere it takes no part, so that without any alternative what ends a value
counts whole. Of a value that is one of several that are known, only these are alternatives (`call_choices`). Linear in
the tokens of the value and of the blanks before it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Final

from grampus_uq.records.values import TokenLogprob
from grampus_uq.signals.call_candidates import goes_on
from grampus_uq.signals.call_choices import Choice

LOWEST: Final = -1e6
"""The least logarithm of a probability that is added up, in place of minus infinity."""
_CLOSES: Final = ("}", ")", "]")
_BLANKS: Final = re.compile(r"(?:\s|\\{1,8}[nrt])*")
_COMMA: Final = re.compile(_BLANKS.pattern + ",")
_STOPS: Final = re.compile(_BLANKS.pattern + r"(?:[})\]]|\Z)")
_NONE: Final = re.compile(r"[{(]?" + _BLANKS.pattern + r"([})]|\Z)")
_FIRST: Final = re.compile(r"[{(](?P<blanks>\s*)\\*[\"']?[\w .$-]{1,64}\\*[\"']?\s*\Z")
_NEAR: Final = 100
_BEGUN: Final = re.compile(rf".{_BLANKS.pattern}(\\{{0,8}}[\"']?)(.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_MOST_ALTERNATIVES: Final = 32
_LEADS: Final = tuple(":=.[](<>")
"""Marks behind which a value stands, or the name of a tool."""
_ENDING: Final = re.compile(r"\\{0,8}[\"']")
_QUOTES: Final = ("'", '"')

_Odds = tuple[str, float]
Written = Sequence[tuple[int, TokenLogprob]]
"""All tokens, each with where it starts."""


def value_odds(
    text: str, begin: int, end: int, written: Written, at: int, choice: Choice | None = None, *, named: bool = False
) -> tuple[float, float]:
    """The logarithms of p(value) and p(further), at most 0, for `text[begin:end]`, whose first token is that `at`.

    `choice` is the value among all that may stand there, if that is known; `named`: it is the tool's name.
    """
    quoted = begin > 0 and text[begin - 1] in "\"'"
    ending = _ENDING.match(text, end) if quoted else None
    quote, mark, last = (ending[0], ending.end(), end) if ending else ("", end, end)
    blanks = _BLANKS.match(text, mark)
    behind = blanks.end() if blanks else mark
    value, further = odds_before(text, begin, end, written, at, choice, named=named), 0.0
    for start, token in written[at : bisect_right(written, behind, at, key=itemgetter(0))]:
        stop, own = start + len(token.token), max(min(token.logprob, 0.0), LOWEST)
        if choice is not None and start <= end:
            head = text[start:begin]
            others = ((p[len(head) :], one) if p.startswith(head) else ("", one) for p, one in _others(token))
            value += choice.odds(max(start - begin, 0), own, others, quote)
        elif stop <= end:
            value += own
        elif start <= end and (quoted or start < end or not text.startswith(_CLOSES, end - 1)):
            alike = [one for piece, one in _others(token) if _ends_alike(text, start, end, piece, quoted)]
            value += _sum(own, alike)
        if stop > end and not (quoted or text[end:stop].strip(" \t")):
            end = stop  # blanks end nothing
        if last < stop and text.startswith(",", behind):
            prefix = text[start:mark]
            there = [(piece[len(prefix) :], one) for piece, one in _others(token) if piece.startswith(prefix)]
            goes_on = _sum(own, [one for piece, one in there if _COMMA.match(piece)])
            further += goes_on - _sum(goes_on, [one for piece, one in there if _STOPS.match(piece)])
    return value, further


def _others(token: TokenLogprob) -> Iterator[_Odds]:
    """The alternatives of a token that have a probability, the likeliest of many."""
    top: Sequence[_Odds] = token.top
    if len(top) > _MOST_ALTERNATIVES:
        top = nlargest(_MOST_ALTERNATIVES, (one for one in top if one[1] <= 0.0), key=itemgetter(1))
    return ((p, one) for p, one in top if p != token.token and -math.inf < one <= 0.0)


def odds_before(
    text: str, begin: int, end: int, written: Written, at: int, choice: Choice | None = None, *, named: bool = True
) -> float:
    """The logarithm of p(value) at the marks before it, where another value may have begun, or none of any argument.

    A token that writes more than these marks is compared with the alternatives that begin as it does, and before an
    argument also with what was not reported.
    """
    gap, odds, quoted = _gap(text, begin), 0.0, begin > 0 and text[begin - 1] in "\"'"
    quote = text[end : end + 1] if quoted else ""
    if not quoted and (opened := _ENDING.match(text, begin)):
        begin = opened.end()
    is_text = text.startswith(_QUOTES, begin - 1)
    told = choice is not None or _NUMBER.fullmatch(text, begin, end)  # "85" and 85 are one value
    for start, ours, own, others, unseen in _between(written, gap, written[at][0], text):
        led = [(_BEGUN.match(text[gap:start] + piece), one) for piece, one in others]
        begun = [(found[2], found[1], one) for found, one in led if found and found[0][0] == text[gap]]
        values = [(piece, one) for piece, _, one in begun if piece[:1].isalnum() or (piece and text[gap] in ":=")]
        if text[gap] in ":=" and not told:  # a quote alone begins a text in place of none or of the empty one
            has_begun = ours.endswith(_QUOTES)
            decides = has_begun or not is_text or not text[begin:end].strip("\\\"'")
            values += [(piece, one) for piece, mark, one in begun if decides and not piece and bool(mark) != has_begun]
        kinds = [
            (choice.is_same(piece, quote) if choice else _ends_alike(text, begin, end, piece, quoted), one)
            for piece, one in values
        ]
        same = _sum(own, [one for kind, one in kinds if kind])
        against = [one for kind, one in kinds if kind is False]
        odds += same - _sum(same, against if named or text[gap] not in ":=" else [*against, unseen])
    if first := _FIRST.search(text, max(gap - _NEAR, 0), gap):
        for _, ours, own, others, _ in _between(written, first.start(), first.end("blanks") + 1, text):
            none = [(_NONE.match(piece), piece, one) for piece, one in others]
            odds += own - _sum(own, [one for found, p, one in none if found and (found[1] or ours.startswith(p))])
    return odds


def _between(
    written: Written, begin: int, end: int, text: str
) -> Iterator[tuple[int, str, float, Sequence[_Odds], float]]:
    """The tokens that write some of a span: place, from the span on, log-probability, alternatives that begin alike,
    and the log-probability of all that were not reported."""
    for number in range(max(bisect_right(written, begin, key=itemgetter(0)) - 1, 0), len(written)):
        start, token = written[number]
        if start >= end:
            return
        head, listed, own = text[start:begin], [*_others(token)], max(min(token.logprob, 0.0), LOWEST)
        others = [(piece[len(head) :], one) for piece, one in listed if piece.startswith(head)]
        unseen = 1.0 - math.fsum([math.exp(own), *(math.exp(one) for _, one in listed)])
        yield start, token.token[len(head) :], own, others, math.log(unseen) if unseen > 0.0 else -math.inf


def _gap(text: str, begin: int) -> int:
    """Where the mark stands that leads to a value, before blanks and quotes; the value's own place where none does."""
    at = begin
    while at and (text[at - 1] in " \n\r\t\"'\\" or (text[at - 1] in "nrt" and text[at - 2 : at - 1] == "\\")):
        at -= 1
    return at - 1 if at and text.startswith(_LEADS, at - 1) else begin


def _ends_alike(text: str, start: int, end: int, piece: str, quoted: bool) -> bool:
    """Return True if the alternative writes the rest of the value and ends it."""
    if len(piece) <= end - start or not piece.startswith(text[start:end]):
        return False
    after = piece[end - start :]
    return text.startswith(after[0], end) if quoted else bool(after.strip(" \t")) and not goes_on(after)


def _sum(own: float, others: Sequence[float]) -> float:
    """The logarithm of the sum of probabilities, at most 0."""
    total = math.fsum(map(math.exp, others))
    return own if not total else min(math.log(math.exp(own) + total), 0.0)
