"""Finds a value in human-written text, and replaces it with another."""

from __future__ import annotations

import re
from functools import partial
from typing import Final, TypeGuard

from pydantic import JsonValue

_LARGEST: Final = 1e15
_NUMBER: Final = re.compile(r"\d(?:[\d ,.']*\d)?")


def is_amount(value: JsonValue) -> TypeGuard[int | float]:
    """Return True for a positive number that a float represents exactly enough to tell it from its neighbours."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST


class Text:
    """A text that is asked again and again whether it holds a value, however a number or a letter is written in it."""

    def __init__(self, text: str) -> None:
        self._folded = text.casefold()
        self._numbers = {number_in(found.group()) for found in _NUMBER.finditer(text)}

    def says(self, value: JsonValue) -> bool:
        """True if it holds the value; False for what is neither an amount nor a text with a letter or sign."""
        if isinstance(value, str):
            sought = value.strip().casefold()
            return bool(sought) and sought in self._folded
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
    """The text with the new value where it had the old one."""
    if isinstance(old, str) and isinstance(new, str):
        return text.replace(old, new) if old.strip() else text
    if is_amount(old) and is_amount(new):
        written = partial(_written_like, new)
        return _NUMBER.sub(lambda found: written(found[0]) if number_in(found[0]) == old else found[0], text)
    return text


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
