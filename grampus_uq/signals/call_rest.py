"""What a text holds of a call beside the places that are read: its name and its values, in whatever form.

What stands for a call has to hold its name and every value, as often as the call has it. Sentences do not write a call;
anything else may, from the first name or value on to the end of the text.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pydantic import JsonValue

from grampus_uq.records.values import ToolCall
from grampus_uq.signals.prose import Span, without_sentences

_MOST_VALUES: Final = 256
_NULL: Final = "null"
_SHOWN = str.maketrans("ĠĊ▁İΣς", " \n iσσ")  # blanks as tokenisers write them; lower() keeps the length of all else
_NUMBERS = (
    re.compile(r"(?<![\w.])-?\d[\d_]{0,400}(?:\.\d{1,400})?(?:e[+-]?\d{1,3})?(?!\w)", re.IGNORECASE | re.ASCII),
    re.compile(r"(?<![\w.])-?\d{1,3}(?:,\d{3}){1,100}(?:\.\d{1,400})?(?!\w)", re.ASCII),
)
_OPENED = re.compile(r"[\"'\]]*(?:\s*[({\[,<>})]|[^\S\n]*\n|\s*$)")
_BLANKS = str.maketrans("ĠĊ▁", " \n ")
_BROKEN = re.compile(r"\ufffd|\\x[0-9a-f]{2}")  # a letter of which some tokens write bytes
_BROKEN_RUN = re.compile(r"(?:\\x[0-9a-f]{2}|[^\x00-\x7f])+")
_ONE_RUN: Final = "\ufffd"
_WORD = re.compile(r"\w+")
_FRAMED = re.compile(r"[\"'\\]{0,4}\s{0,8}=|[\"'\\]{1,4}\s{0,8}:|>")  # behind a key that stands as code writes it
_PREFIX = re.compile(r"[./:]|__")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the rest of a text holds of a call.

    `named`: its name, outside sentences; `some`, `every`: of its values; `begin`: where name or values begin;
    `opened`: where the name stands for the last time as a call's name does, None where nowhere; `last`: where a value
    of more than one character stands for the last time outside sentences, or a key as code writes it.
    """

    named: bool
    some: bool
    every: bool
    begin: int
    opened: int | None
    last: int | None


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
        self._cased = "".join([*pieces, text[at:]])
        self.text = _lowered(self._cased)

    @cached_property
    def code(self) -> str:
        """The text without its sentences."""
        return _lowered(without_sentences(self._cased.translate(_BLANKS)))

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
        return next(self._places(_lowered(name)), None) is not None

    def find(self, call: ToolCall) -> Found:
        """What there is of a call."""
        name = _lowered(call.name)
        mentions = [at for at in self._places(name) if self.code.startswith(name, at)]
        wanted = Counter(_leaves(call.arguments))
        starts = {value: [at for at in self._starts(value) if not self.code[at].isspace()] for value in wanted}
        begin = min([*mentions[:1], *(at for own in starts.values() for at in own)], default=len(self.text))
        long = [at for value, own in starts.items() if not _is_short(value) for at in own]
        broken = _joined(self.text[begin:]) if _BROKEN.search(self.text, begin) else ""
        held = {value: self._count(value, begin, broken) for value in wanted}
        opened = [at for at in mentions if _OPENED.match(self.code, at + len(name))]
        return Found(
            named=bool(mentions),
            some=any(held[value] and not _is_short(value) for value in wanted),
            every=wanted.total() <= _MOST_VALUES
            and all(held[value] >= times for value, times in wanted.items())
            and self._has_keys(call, begin),
            begin=begin,
            opened=max(opened, default=None),
            last=max([*long, *self._keys(call)], default=None),
        )

    def speaks_of(self, call: ToolCall) -> bool:
        """True where something beside sentences may write the call: its name without a prefix, or all of its values."""
        short = _PREFIX.split(_lowered(call.name))[-1]
        if any(self.code.startswith(short, at) for at in self._places(short)):
            return True
        if any(True for _ in self._keys(call)):
            return True
        found = self.find(call)
        return found.named or (found.every and found.some)

    def _keys(self, call: ToolCall) -> Iterator[int]:
        """Where a key of the call stands as code writes it."""
        for key in map(_lowered, call.arguments):
            for at in self._places(key):
                if _FRAMED.match(self.code, at + len(key)):
                    yield at

    def _has_keys(self, call: ToolCall, begin: int) -> bool:
        """True where each argument is named, or none is: by position, or the one input."""
        bracket = self.text.find("(", begin)
        if self.text.find("{", begin) < 0 and (bracket < 0 or self.text.find("=", bracket) < 0):
            return True
        return all(
            any(at >= begin for form in _forms(_lowered(key)) for at in self._places(form))
            for key in call.arguments
            if key
        )

    @cached_property
    def _words(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for one in _WORD.finditer(self.text):
            found.setdefault(one[0], []).append(one.start())
        return found

    def _places(self, shown: str) -> Iterator[int]:
        """Where a text in small letters stands that is part of no longer word, sought at its rarest word."""
        words = [(one[0], one.start()) for one in _WORD.finditer(shown)]
        word, offset = min(words, key=lambda one: len(self._words.get(one[0], ())), default=(shown, 0))
        found = self._words.get(word, ()) if words else _found(shown, self.text)
        free = 0
        for begin in (at - offset for at in found):
            if begin >= free and self.text.startswith(shown, begin) and _is_whole(self.text, begin, begin + len(shown)):
                yield begin
                free = begin + len(shown)

    @cached_property
    def _numbers(self) -> Mapping[int | float, Sequence[int]]:
        found: dict[int | float, list[int]] = {}
        for one in (one for form in _NUMBERS for one in form.finditer(self.text)):
            number = _number(one[0])
            if number is not None:
                found.setdefault(number, []).append(one.start())
        return found

    def _starts(self, value: str | int | float) -> Iterator[int]:
        """Where a value stands, in any form."""
        if isinstance(value, str):
            return (at for form in _forms(value) for at in self._places(form))
        return iter(self._numbers.get(value, ()))

    def _count(self, value: str | int | float, begin: int, broken: str) -> int:
        """How often a value stands behind a place; `broken` is the text from there, where tokens write bytes."""
        if not isinstance(value, str):
            return sum(at >= begin for at in self._starts(value))
        counts = [sum(at >= begin for at in self._places(form)) for form in _forms(value)]
        return max(*counts, broken.count(_joined(value)) if broken and not value.isascii() else 0)


def _lowered(text: str) -> str:
    """The text in small letters, of the same length."""
    return text.translate(_SHOWN).lower()


def _joined(text: str) -> str:
    """The text with one mark for each run of letters of which tokens may write bytes."""
    return _BROKEN_RUN.sub(_ONE_RUN, text)


def _found(part: str, text: str) -> Iterator[int]:
    at = text.find(part) if part else -1
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


def _is_whole(text: str, begin: int, end: int) -> bool:
    """True for what is part of no longer word, a word with a hyphen inside included."""
    before, after = text[max(begin - 2, 0) : begin], text[end : end + 2]
    if text[begin].isalnum() and before.endswith("-") and (text[begin].isdigit() or _WORD.match(before)):
        return False
    return not (text[end - 1].isalnum() and after.startswith("-") and _WORD.fullmatch(after[1:]))


def _is_short(value: str | int | float) -> bool:
    """True for one character, which may stand anywhere by chance."""
    return len(value) < 2 if isinstance(value, str) else -10 < value < 10


def _forms(value: str) -> set[str]:
    """A text as it is, and as JSON, XML and Python write it."""
    written = {json.dumps(value, ensure_ascii=plain)[1:-1] for plain in (True, False)}
    written |= {html.escape(value), html.escape(value, quote=False), repr(value)[1:-1]}
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
            found += [_lowered(value.strip())] if value.strip() else []
        else:
            found.append(value)
    return found


def _number(text: str) -> int | float | None:
    plain = text.replace("_", "").replace(",", "")
    try:
        return int(plain) if plain.lstrip("-").isdecimal() else float(plain)
    except ValueError:  # of too many digits
        return None
