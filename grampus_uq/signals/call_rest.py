"""What a text holds of a call beside the places that are read: its name and its values, in whatever form.

What stands for a call has to hold its name and every value, as often as the call has it. Sentences do not write a call;
anything else may, from the first name or value on to the end of the text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pydantic import JsonValue

from grampus_uq.records.values import ToolCall
from grampus_uq.signals.prose import Span, without_sentences

_MOST_VALUES: Final = 256
_NULL: Final = "null"
_SPACES = str.maketrans("ĠĊ▁", " \n ")  # how tokenisers write blanks
_NUMBERS = (
    re.compile(r"(?<![\w.])-?\d[\d_]{0,400}(?:\.\d{1,400})?(?:e[+-]?\d{1,3})?(?!\w)", re.IGNORECASE | re.ASCII),
    re.compile(r"(?<![\w.])-?\d{1,3}(?:,\d{3}){1,100}(?:\.\d{1,400})?(?!\w)", re.ASCII),
)
_OPENED = re.compile(r"[\"'\]]*(?:\s*[({\[,<>})]|[^\S\n]*\n|\s*$)")
_BROKEN = re.compile(r"\ufffd|\\x[0-9a-f]{2}")  # a letter of which some tokens write bytes
_BROKEN_RUN: Final = r"(?:\ufffd|\\x[0-9a-f]{2}|[^\x00-\x7f])+"
_FOREIGN = re.compile(r"[^\x00-\x7f]+")
_PREFIX = re.compile(r"[./:]|__")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the rest of a text holds of a call.

    `named`: its name, outside sentences; `some`, `every`: of its values; `begin`: where name or values begin;
    `opened`: where the name stands for the last time as a call's name does, None where nowhere.
    """

    named: bool
    some: bool
    every: bool
    begin: int
    opened: int | None


class Rest:
    """A text without the places that are read, in which calls are sought in any form."""

    def __init__(self, text: str, taken: Sequence[Span]) -> None:
        self.taken = sorted(taken)
        pieces: list[str] = []
        at = 0
        for begin, end in self.taken:
            if end > at:
                pieces += text[at:begin] if at < begin else "", "\n" * (end - max(at, begin))
                at = end
        left = "".join([*pieces, text[at:]]).translate(_SPACES)
        lowered = left.lower()
        self.text = lowered if len(lowered) == len(left) else left
        self._cased = left

    @cached_property
    def code(self) -> str:
        """The text without its sentences."""
        kept = without_sentences(self._cased).lower()
        return kept if len(kept) == len(self.text) else self.text

    def spans(self, begin: int) -> Iterator[Span]:
        """What there is from a place on."""
        for taken, end in self.taken:
            if begin < taken:
                yield begin, taken
            begin = max(begin, end)
        if begin < len(self.text):
            yield begin, len(self.text)

    def names(self, name: str) -> bool:
        """True where the name stands somewhere, be it in a sentence."""
        return bool(name) and _word(name).search(self.text) is not None

    def find(self, call: ToolCall) -> Found:
        """What there is of a call."""
        name = _word(call.name) if call.name else None
        mentions = [] if name is None else list(name.finditer(self.code))
        wanted = Counter(_leaves(call.arguments))
        starts = [one.start() for one in mentions[:1]]
        starts += [at for at in (self._first(value, self.code) for value in wanted) if at is not None]
        begin = min(starts, default=len(self.text))
        held = {value: self._count(value, begin) for value in wanted}
        opened = [one.start() for one in mentions if _OPENED.match(self.code, one.end())]
        return Found(
            named=bool(mentions),
            some=any(held[value] and not _is_short(value) for value in wanted),
            every=wanted.total() <= _MOST_VALUES
            and all(held[value] >= times for value, times in wanted.items())
            and self._has_keys(call, begin),
            begin=begin,
            opened=max(opened, default=None),
        )

    def speaks_of(self, call: ToolCall) -> bool:
        """True where something beside sentences may write the call: its name without a prefix, or all of its values."""
        short = _PREFIX.split(call.name)[-1]
        if short and _word(short).search(self.code):
            return True
        found = self.find(call)
        return found.named or (found.every and found.some)

    def _has_keys(self, call: ToolCall, begin: int) -> bool:
        """True where each argument is named, or none is: by position, or the one input."""
        bracket = self.text.find("(", begin)
        if self.text.find("{", begin) < 0 and (bracket < 0 or self.text.find("=", bracket) < 0):
            return True
        return all(any(_word(form).search(self.text, begin) for form in _forms(key)) for key in call.arguments if key)

    @cached_property
    def _numbers(self) -> list[tuple[int, int | float]]:
        found = [one for form in _NUMBERS for one in form.finditer(self.text)]
        known = ((one.start(), _number(one[0])) for one in found)
        return [(at, number) for at, number in known if number is not None]

    def _first(self, value: str | int | float, text: str) -> int | None:
        if not isinstance(value, str):
            return next((at for at, number in self._numbers if number == value and not text[at].isspace()), None)
        found = [one.start() for one in (_word(form).search(text) for form in _forms(value)) if one is not None]
        return min(found, default=None)

    def _count(self, value: str | int | float, begin: int) -> int:
        if not isinstance(value, str):
            return sum(number == value and at >= begin for at, number in self._numbers)
        forms = [_word(form) for form in _forms(value)]
        if not value.isascii() and _BROKEN.search(self.text, begin):
            forms.append(re.compile(_BROKEN_RUN.join(map(re.escape, _FOREIGN.split(value)))))
        return max(sum(1 for _ in form.finditer(self.text, begin)) for form in forms)


def _is_short(value: str | int | float) -> bool:
    """True for one character, which may stand anywhere by chance."""
    return len(value) < 2 if isinstance(value, str) else -10 < value < 10


def _word(text: str) -> re.Pattern[str]:
    """A text that is part of no longer word."""
    shown = text.lower()
    before = r"(?<![\w-])" if shown[0].isalnum() else ""
    after = r"(?![\w-])" if shown[-1].isalnum() else ""
    return re.compile(before + re.escape(shown) + after)


def _forms(value: str) -> set[str]:
    """A text as it is, and as JSON writes it."""
    written = {json.dumps(value, ensure_ascii=plain)[1:-1] for plain in (True, False)}
    return written | {value} | ({"none"} if value == _NULL else set())


def _leaves(arguments: JsonValue) -> list[str | int | float]:
    """The texts and numbers of the arguments, lower case; what no text need hold is left out."""
    found: list[str | int | float] = []
    left: list[JsonValue] = [arguments]
    while left and len(found) <= _MOST_VALUES:
        value = left.pop()
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
        elif value is None:
            found.append(_NULL)
        elif isinstance(value, bool):
            found.append(str(value).lower())
        elif isinstance(value, str):
            found += [value.strip().lower()] if value.strip() else []
        else:
            found.append(value)
    return found


def _number(text: str) -> int | float | None:
    plain = text.replace("_", "").replace(",", "")
    try:
        return int(plain) if plain.lstrip("-").isdecimal() else float(plain)
    except ValueError:  # of too many digits
        return None
