"""Finds traces of a call outside the places that are read: its name and its values, in any form.

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
from grampus_uq.signals.prose import BLANKS, Span, without_sentences

MOST_LEAVES: Final = 256
"""Values of one call that are told apart."""
_NULL: Final = "null"
_SHOWN = str.maketrans("ĠĊ▁İΣς", " \n iσσ")  # blanks as tokenisers write them; lower() keeps the length of all else
_NUMBERS = (
    re.compile(r"(?<![\w.])-?\d[\d_]{0,400}(?:\.\d{1,400})?(?:e[+-]?\d{1,3})?(?!\w)", re.IGNORECASE | re.ASCII),
    re.compile(r"(?<![\w.])-?\d{1,3}(?:,\d{3}){1,100}(?:\.\d{1,400})?(?!\w)", re.ASCII),
)
_OPENED = re.compile(r"[\"'\]]*(?:\s*[({\[,<>})]|\s+:\w|:\d+<|[^\S\n]*\n|\s*$)")
_BROKEN = re.compile(r"\ufffd|\\x[0-9a-f]{2}")  # a letter of which some tokens write bytes
_BROKEN_RUN = re.compile(r"(?:\\x[0-9a-f]{2}|[^\x00-\x7f])+")
_WORD = re.compile(r"\w+")
_FRAMED = re.compile(r"[\"'\\]{0,4}\s{0,8}=|[\"'\\]{1,4}\s{0,8}:|>")  # behind a key that stands as code writes it
_PREFIX = re.compile(r"[./:]|__")
_SLOT = re.compile(r"[\"'`\\]{0,4}(?:\s{0,8}[:=]|>|\s\w{1,12}=)|</")  # behind a key, wherever a value may follow
_TARGET = re.compile(r"\s{0,4}=\s{0,4}[\"']?(?:[a-z_]{1,30}\.)?")  # of `to=functions.pay`
_ATTRIBUTE = re.compile(r"<[^<>\n]{0,40}(?:invoke|param(?:eter)?|function_call|arg(?:ument)?)\s{1,4}$")
_NEAR: Final = 120  # characters before what a sentence quotes
_WORDS = re.compile(r"(?<!\S)(?:[^\W\d_]+\s+){3}")
_VARIABLE = re.compile(r"^[ \t]*([a-z_]\w{0,63})[ \t]*=(?!=)", re.MULTILINE)

Leaf = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Traces of a call in the rest of a text.

    `named`: its name, outside sentences; `some`, `every`: of its values; `begin`: where name or values begin;
    `opened`: where the name stands as a call's name does; `others`: where a value of more than one character stands
    outside sentences, or a key as code writes it.
    """

    named: bool
    some: bool
    every: bool
    begin: int
    opened: Sequence[int]
    others: Sequence[int]

    def stands_behind(self, place: int, but: Sequence[Span]) -> bool:
        """True where something of the call stands behind a place, and in none of the spans."""
        return any(
            at >= place and not any(begin <= at < end for begin, end in but) for at in (*self.opened, *self.others)
        )


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
        self.text = lowered(self._cased)
        self._spans: dict[Leaf, Sequence[Span]] = {}
        self._known: dict[str, Sequence[int]] = {}
        self._keys_found: dict[str, Sequence[Span]] = {}

    @cached_property
    def code(self) -> str:
        """The text without its sentences."""
        return lowered(without_sentences(self._cased.translate(BLANKS)))

    def spans(self, begin: int) -> Iterator[Span]:
        """The spans still there from a place on."""
        for taken, end in self.taken:
            if begin < taken:
                yield begin, taken
            begin = max(begin, end)
        if begin < len(self.text):
            yield begin, len(self.text)

    def names(self, name: str) -> bool:
        """True where the name stands somewhere, be it in a sentence."""
        return bool(self._places(lowered(name)))

    def mentions(self, name: str) -> list[int]:
        """The places of the name outside sentences, but in a closing tag."""
        shown = lowered(name)
        found = [at for at in self._places(shown) if self.code.startswith(shown, at)]
        return [at for at in found if not self.code.endswith("</", 0, at)]

    def is_in_words(self, at: int) -> bool:
        """Return True for a position after three words of the same line, as in a quotation."""
        return (
            _WORDS.search(self.text, max(self.text.rfind("\n", max(at - _NEAR, 0), at) + 1, at - _NEAR), at) is not None
        )

    def is_opened(self, at: int, name: str) -> bool:
        """True where a name stands as a call's name does."""
        return _OPENED.match(self.code, at + len(name)) is not None

    def keys(self, key: str) -> list[Span]:
        """The places of a key with room for a value behind it: framed, or behind a colon as Lisp writes it."""
        return [span for span in self._keyed(key) if not self.code.endswith("</", 0, span[0])]

    def _keyed(self, key: str) -> Sequence[Span]:
        """The same, those in closing tags among them."""
        known = self._keys_found.get(key)
        if known is None:
            forms = "|".join(map(re.escape, sorted(filter(None, _forms(lowered(key))), key=len, reverse=True)))
            sought = rf"(?<=[ (]:)(?:{forms})(?!\w)|(?<!\w)(?:{forms})(?!\w)(?={_SLOT.pattern})"
            spans = (one.span() for one in re.finditer(sought, self.code)) if forms else ()
            known = self._keys_found[key] = [
                (begin, end)
                for begin, end in spans
                if _is_whole(self.code, begin, end) and not self._is_of_form(begin, end)
            ]
        return known

    def _is_of_form(self, begin: int, end: int) -> bool:
        """Return True for the `to=` of a call that is read, and the `name=` of `<invoke name=` and its parameters."""
        target = _TARGET.match(self.code, end)
        tag = _ATTRIBUTE.search(self.code, max(begin - _NEAR, 0), begin) if self.code[begin:end] == "name" else None
        return tag is not None or (target is not None and target.end() in self._begins)

    @cached_property
    def _begins(self) -> frozenset[int]:
        return frozenset(begin for begin, _ in self.taken)

    @cached_property
    def variables(self) -> Mapping[str, int]:
        """Behind which place the value of a variable stands, as code sets it last."""
        return {one[1]: one.end() for one in _VARIABLE.finditer(self.code)}

    def places_of(self, leaf: Leaf) -> Sequence[Span]:
        """The places of a value (`leaves`), in any form, in order."""
        known = self._spans.get(leaf)
        if known is None:
            known = self._spans[leaf] = sorted(self._found(leaf))
        return known

    def _found(self, value: Leaf) -> Iterator[Span]:
        if not isinstance(value, str):
            yield from self._numbers.get(value, ())
            return
        for form in _forms(value):
            yield from ((at, at + len(form)) for at in self._places(form))
        if not value.isascii() and _BROKEN.search(self.text):
            text, places = self._runs_shortened
            shortened = _BROKEN_RUN.sub("\ufffd", value)
            yield from ((places[at], places[at + len(shortened)]) for at in _found(shortened, text))

    @cached_property
    def _runs_shortened(self) -> tuple[str, Sequence[int]]:
        """The text with one sign for each run of broken letters, and where each character of it begins, and the end."""
        pieces: list[str] = []
        places: list[int] = []
        at = 0
        for run in _BROKEN_RUN.finditer(self.text):
            pieces += self.text[at : run.start()], "\ufffd"
            places += range(at, run.start() + 1)
            at = run.end()
        places += range(at, len(self.text) + 1)
        return "".join([*pieces, self.text[at:]]), places

    def long_values(self, call: ToolCall) -> Iterator[int]:
        """The places of values of more than one character outside sentences."""
        for value in long_leaves(call):
            yield from (at for at, _ in self.places_of(value) if not self.code[at].isspace())

    def find(self, call: ToolCall) -> Found:
        """The parts of a call that are there."""
        name = lowered(call.name)
        mentions = [at for at in self._places(name) if self.code.startswith(name, at)]
        wanted = Counter(leaves(call.arguments))
        starts = {value: [at for at, _ in self.places_of(value) if not self.code[at].isspace()] for value in wanted}
        begin = min([*mentions[:1], *(at for own in starts.values() for at in own)], default=len(self.text))
        held = {value: len({at for at, _ in self.places_of(value) if at >= begin}) for value in wanted}
        return Found(
            named=bool(mentions),
            some=any(held[value] and not _is_short(value) for value in wanted),
            every=wanted.total() <= MOST_LEAVES
            and all(held[value] >= times for value, times in wanted.items())
            and self._has_keys(call, begin),
            begin=begin,
            opened=[at for at in mentions if self.is_opened(at, name)],
            others=[*self.long_values(call), *self._keys(call)],
        )

    def speaks_of(self, call: ToolCall) -> bool:
        """True where something beside sentences may write the call: its name without a prefix, or all of its values."""
        short = _PREFIX.split(lowered(call.name))[-1]
        if any(self.code.startswith(short, at) for at in self._places(short)):
            return True
        if any(True for _ in self._keys(call)):
            return True
        found = self.find(call)
        return found.named or (found.every and found.some)

    def _keys(self, call: ToolCall) -> Iterator[int]:
        """Yield the positions of the call's keys as code writes them."""
        for key in call.arguments:
            yield from (begin for begin, end in self._keyed(key) if _FRAMED.match(self.code, end))

    def _has_keys(self, call: ToolCall, begin: int) -> bool:
        """True where each argument is named, or none is: by position, or the one input."""
        bracket = self.text.find("(", begin)
        if self.text.find("{", begin) < 0 and (bracket < 0 or self.text.find("=", bracket) < 0):
            return True
        return all(
            any(at >= begin for form in _forms(lowered(key)) for at in self._places(form))
            for key in call.arguments
            if key
        )

    @cached_property
    def _words(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for one in _WORD.finditer(self.text):
            found.setdefault(one[0], []).append(one.start())
        return found

    def _places(self, shown: str) -> Sequence[int]:
        """The positions of a lower-case text that is not part of a longer word."""
        known = self._known.get(shown)
        if known is None:
            known = self._known[shown] = list(self._sought(shown))
        return known

    def _sought(self, shown: str) -> Iterator[int]:
        """The same, searched by the rarest word of the text."""
        words = [(one[0], one.start()) for one in _WORD.finditer(shown)]
        word, offset = min(words, key=lambda one: len(self._words.get(one[0], ())), default=(shown, 0))
        found = self._words.get(word, ()) if words else _found(shown, self.text)
        free = 0
        for begin in (at - offset for at in found):
            if begin >= free and self.text.startswith(shown, begin) and _is_whole(self.text, begin, begin + len(shown)):
                yield begin
                free = begin + len(shown)

    @cached_property
    def _numbers(self) -> Mapping[int | float, Sequence[Span]]:
        found: dict[int | float, list[Span]] = {}
        for one in (one for form in _NUMBERS for one in form.finditer(self.text)):
            number = _number(one[0])
            if number is not None:
                found.setdefault(number, []).append(one.span())
        return found


def lowered(text: str) -> str:
    """The text in small letters, of the same length."""
    return text.translate(_SHOWN).lower()


def _found(part: str, text: str) -> Iterator[int]:
    at = text.find(part) if part else -1
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


def _is_whole(text: str, begin: int, end: int) -> bool:
    """Return True for a span that is not part of a longer word, hyphenated words included."""
    before, after = text[max(begin - 2, 0) : begin], text[end : end + 2]
    if text[begin].isalnum() and before.endswith("-") and (text[begin].isdigit() or _WORD.match(before)):
        return False
    return not (text[end - 1].isalnum() and after.startswith("-") and _WORD.fullmatch(after[1:]))


def long_leaves(call: ToolCall) -> set[Leaf]:
    """A call's values of more than one character."""
    return {value for value in leaves(call.arguments) if not _is_short(value)}


def _is_short(value: Leaf) -> bool:
    """Return True for a single character, which may occur anywhere by chance."""
    return len(value) < 2 if isinstance(value, str) else -10 < value < 10


def _forms(value: str) -> set[str]:
    """A text as it is, and as JSON, XML and Python write it."""
    written = {json.dumps(value, ensure_ascii=plain)[1:-1] for plain in (True, False)}
    written |= {html.escape(value), html.escape(value, quote=False), repr(value)[1:-1]}
    return written | {value} | ({"none"} if value == _NULL else set())


def leaves(arguments: JsonValue) -> list[Leaf]:
    """The texts and numbers of the arguments in their order, lower case; what no text need hold is left out."""
    found: list[Leaf] = []
    left: list[JsonValue] = [arguments]
    while left and len(found) <= MOST_LEAVES:
        value = left.pop()
        if isinstance(value, dict | list):
            left += reversed([*value.values()] if isinstance(value, dict) else value)
        elif value is None:
            found.append(_NULL)
        elif isinstance(value, bool):
            found.append(str(value).lower())
        elif isinstance(value, str):
            found += [lowered(value.strip())] if value.strip() else []
        else:
            found.append(value)
    return found


def _number(text: str) -> int | float | None:
    plain = text.replace("_", "").replace(",", "")
    try:
        return int(plain) if plain.lstrip("-").isdecimal() else float(plain)
    except ValueError:  # of too many digits
        return None
