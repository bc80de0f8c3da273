"""How a value stands in a text that people wrote: whether it does, and another one in its place."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final, TypeGuard

from pydantic import JsonValue

_LARGEST: Final = 1e15
_NUMBER: Final = re.compile(r"\d(?:[\d ,.']*\d)?")
_WITHOUT_SPACES: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_JOINED_BEFORE: Final = re.compile(r"(?:[^\W\d]|[#\u2116]\s?|\w[-/]|\d:|\d of )$")
_JOINED_AFTER: Final = re.compile(r"(?![A-Z]{3}(?!\w))[^\W\d]|[-/]\w|:\d| of \d|\s?%")
_MONEY_BEFORE: Final = re.compile(r"""(?:(?<!\w)[A-Z]{3} ?|["'] ?: ?)$""")
_MONEY_AFTER: Final = re.compile(r"\s?(?:[A-Z]{3}|euros?|dollars?|pounds?)(?!\w)")
_FAR: Final = 8
_SMALL: Final = 10_000
"""Whole numbers below it are numbers of steps, days and years too."""


def is_amount(value: JsonValue) -> TypeGuard[int | float]:
    """True for a positive number that a float tells from its neighbours."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST


class Text:
    """A text that is asked again and again whether it holds a value, however a number or a letter is written in it."""

    def __init__(self, text: str) -> None:
        self._folded = text.casefold()
        self._numbers = {number_in(found.group()) for found in _amounts(text)}

    def says(self, value: JsonValue) -> bool:
        """Whether it holds the value, as whole words or as an amount; False for what is neither text nor amount."""
        if isinstance(value, str):
            sought = value.strip().casefold()
            return bool(sought) and next(_whole(self._folded, sought), None) is not None
        return is_amount(value) and value in self._numbers


def number_in(text: str) -> float | None:
    """The value of a number as people write it, with either mark of decimals; None where it is none.

    >>> [number_in(text) for text in ("1,234.50", "1.234,50", "42", "1.2.3")]
    [1234.5, 1234.5, 42.0, None]
    """
    plain = text.replace(" ", "").replace("'", "")
    if "," in plain and plain.rfind(",") > plain.rfind(".") and len(plain) - plain.rfind(",") <= 3:
        plain = plain.replace(".", "").replace(",", ".")
    try:
        return float(plain.replace(",", ""))
    except ValueError:
        return None


def in_place(text: str, old: JsonValue, new: JsonValue) -> str:
    """The text with the new value where it had the old one, as whole words or as an amount.

    >>> in_place("Please pay lea 30 EUR for 30-20", "lea", "bob"), in_place("30 EUR for 30-20", 30, 45)
    ('Please pay bob 30 EUR for 30-20', '45 EUR for 30-20')
    """
    if isinstance(old, str) and isinstance(new, str):
        places = [(start, start + len(old), new) for start in _whole(text, old)] if old.strip() else []
    elif is_amount(old) and is_amount(new):
        found = [one for one in _amounts(text) if number_in(one[0]) == old]
        places = [(*one.span(), _written_like(new, one[0])) for one in found]
    else:
        return text
    parts, done = list[str](), 0
    for start, end, written in places:
        parts += [text[done:start], written]
        done = end
    return "".join([*parts, text[done:]])


def is_clear(value: JsonValue, texts: Iterable[str]) -> bool:
    """False for a small whole number that also stands in the texts as something else than an amount, as far as is seen.

    A currency or a field's name beside it tells an amount. Where it has one anywhere it needs one everywhere, and no
    text may hold it twice without.
    """
    if not is_amount(value) or value != int(value) or value >= _SMALL:
        return True
    told = [[_is_money(text, one) for one in _amounts(text) if number_in(one[0]) == value] for text in texts]
    ever = any(any(one) for one in told)
    return all(all(one) for one in told) if ever else all(len(one) < 2 for one in told)


def _is_money(text: str, found: re.Match[str]) -> bool:
    before, after = text[max(0, found.start() - _FAR) : found.start()], text[found.end() : found.end() + _FAR]
    signs = before.rstrip(" ")[-1:] + after.lstrip(" ")[:1]
    written = not found[0].isdecimal()  # with decimals, or thousands apart
    return (
        written
        or "Sc" in map(unicodedata.category, signs)
        or bool(_MONEY_BEFORE.search(before) or _MONEY_AFTER.match(after))
    )


def _amounts(text: str) -> Iterator[re.Match[str]]:
    """The figures that stand as an amount would: no part of a word, a date, a number of several parts or a share."""
    for found in _NUMBER.finditer(text):
        before, after = text[max(0, found.start() - _FAR) : found.start()], text[found.end() : found.end() + _FAR]
        if not _JOINED_BEFORE.search(before) and not _JOINED_AFTER.match(after):
            yield found


def _whole(text: str, sought: str) -> Iterator[int]:
    """Where the sought text begins in the text as whole words, none overlapping another."""
    start = text.find(sought)
    while start >= 0:
        end = start + len(sought)
        whole = not (_in_word(text[start - 1 : start]) and _in_word(sought[0])) and not (
            _in_word(text[end : end + 1]) and _in_word(sought[-1])
        )
        if whole:
            yield start
        start = text.find(sought, end if whole else start + 1)


def _in_word(character: str) -> bool:
    """True for a letter, figure or mark of a script with spaces between its words."""
    if not character or _WITHOUT_SPACES.match(character):
        return False
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"


def _written_like(number: JsonValue, old: str) -> str:
    """A number in words of the old one: with as many decimals at least, and its mark of decimals.

    >>> [_written_like(75.5, old) for old in ("42", "42.10", "42,10")]
    ['75.5', '75.50', '75,50']
    """
    mark = "," if number_in(old) != number_in(old.replace(",", "")) else "."
    decimals = len(old.rpartition(mark)[2]) if mark in old else 0
    exact = str(number)
    text = f"{number:.{decimals}f}" if decimals > len(exact.partition(".")[2]) else exact
    return text.replace(".", mark)
