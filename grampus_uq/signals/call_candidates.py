"""Other values that the model might as well have written in an argument's place, from the alternatives of its tokens.

    p(other) = product of p(token) over the tokens of the value before the other one, times p(other token)

This is the probability that the model begins the value so. The value is whole where the other token ends it too, else
only its beginning is known; nothing is asked of the model. Only texts, numbers, booleans and null have candidates, only
printable ones are kept, and none that may be the written value in other tokens. Linear in the tokens of the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from grampus_uq.records.call_parts import Candidate
from grampus_uq.records.values import Message, TokenLogprob
from grampus_uq.signals.call_support import names_of, only_beginning

LEAST: Final = 0.05
"""Least probability of an alternative value."""
SURE: Final = math.log(1.0 - LEAST)
"""The log-probability above which no other token is that likely."""
MOST: Final = 3
_LONGEST: Final = 64
_MOST_ALTERNATIVES: Final = 32
_BARE = re.compile(r"[-+.\w]*", re.ASCII)  # of a value without quotes
_FURTHER = re.compile(r"[ \t]*(?:[-+.\w*/%:@$€£¥]|[,'][0-9])")


class Other(NamedTuple):
    """Another value, or its beginning, and how likely the model was to begin the value so."""

    text: str
    whole: bool
    probability: float


def other_values(text: str, begin: int, end: int, written: Sequence[tuple[int, TokenLogprob]]) -> list[Other]:
    """Other values for `text[begin:end]`, the likeliest first, at most `MOST`.

    `written` are the tokens that write the value and the one that ends it, each with where it starts.
    """
    quote = text[begin - 1] if begin and text[begin - 1] in "\"'" else ""
    found: dict[tuple[str, bool], float] = {}
    before = 0.0
    for start, token in written:
        if before < math.log(LEAST) or start - begin > _LONGEST:
            break  # no other value is likely any more, or short enough
        head, prefix = text[min(start, begin) : begin], text[begin : max(start, begin)]
        for piece, logprob in token.top[:_MOST_ALTERNATIVES] if token.logprob <= SURE else ():
            if piece == token.token or not math.log(LEAST) <= before + logprob <= 1e-3:  # NaN is neither
                continue
            other = _value(prefix, head, piece, quote)
            if other is not None and not _is_same(*other, text[begin:end]):
                found[other] = found.get(other, 0.0) + math.exp(min(before + logprob, 0.0))
        before += token.logprob
    others = [Other(shown, whole, min(probability, 1.0)) for (shown, whole), probability in found.items()]
    return sorted(others, key=lambda other: -other.probability)[:MOST]


def _value(prefix: str, head: str, piece: str, quote: str) -> tuple[str, bool] | None:
    """The value that begins with the prefix and the piece, and whether it ends there; None where it is no such value.

    `head` is what the token at this place writes before the value begins.
    """
    if head:
        if piece.startswith(head):
            piece = piece[len(head) :]
        elif head.isspace():
            piece = piece.lstrip()
        else:
            return None
    rest = prefix + piece
    if quote:
        shown, closes, _ = rest.partition(quote)
        whole = bool(closes)
    else:
        found = _BARE.match(rest)
        shown = found[0] if found else ""
        whole = len(shown) < len(rest)
    kept = "\\" not in rest and "\ufffd" not in shown and shown.isprintable() and len(shown) <= _LONGEST
    return (shown, whole) if kept and (shown or (quote and whole)) else None


def _is_same(shown: str, whole: bool, written: str) -> bool:
    """Return True for the written value or a prefix of it: other tokens may write the same value."""
    return shown == written if whole else written.startswith(shown)


def goes_on(text: str) -> bool:
    """Return True for text behind a value without quotes that makes it another one, as a sum or a unit does."""
    return _FURTHER.match(text) is not None


def candidates_of(others: Sequence[Other], messages: Sequence[Message]) -> Iterator[Candidate]:
    """The other values, each with the names under which the messages have it."""
    for other in others:
        match = None if other.whole else only_beginning(other.text, messages)
        known = other.text if other.whole else match
        names = names_of(known, messages) if known else ()
        yield Candidate(text=other.text, whole=other.whole, probability=other.probability, match=match, occurs_as=names)
