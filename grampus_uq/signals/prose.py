"""Tells prose from other text, and finds its words that describe the action of a call.

Prose can be worded in many ways, so the probability of its wording says little. In doubt a text is none: code, paths,
queries, configuration, lists and names count word by word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_MOST_WORDS: Final = 8
_FEWEST_WORDS: Final = 3  # of a sentence among other things
_CODE = re.compile(r"[=<>{}\[\]\\|~^]|&&|\s--|\s:[^\W\d]|\w\(")
_LISTED = re.compile(r"[\"']\s*,\s*[\"']")  # what JSON and Python write between two texts
_PLAIN = re.compile(r"[\"'(‘“]*+(?:[^\W\d_]+(?:['’-][^\W\d_]+)*)?[-–—.,;:!?…。؟।\"')’”]*")
_ENDED = re.compile(r"[.!?…。؟।][\"')’”]*(?=\s|$)")
_WORD = re.compile(r"\S+")
_LETTER = re.compile(r"[^\W\d_]")
_I = re.compile(r"[\"'(‘“]*I(?:['’][a-z]+)?[.,;:!?…\"')’”]*")
_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)
_BOUND = re.compile(r"<[^<>\n]{0,60}>|\n+|[.!?:](?=\s)")

BLANKS: Final = str.maketrans("ĠĊ▁", " \n ")  # how tokenisers write blanks
Span = tuple[int, int]


def is_prose(value: object) -> bool:
    """Return True for a text of more than eight words in sentences, without traces of code."""
    if not isinstance(value, str) or len(value.split(maxsplit=_MOST_WORDS)) <= _MOST_WORDS:
        return False
    first = _LETTER.search(value)
    if first is None or first[0].islower() or _CODE.search(value) or not _ENDED.search(value):
        return False
    words = value.split()
    return 10 * sum(_PLAIN.fullmatch(word) is not None and not _is_shouted(word) for word in words) >= 7 * len(words)


def wording(text: str, begin: int, end: int) -> Iterator[Span]:
    """The spans of a prose text between the words that count: numbers, names, paths and what else is not a plain word.

    `text` may hold it with JSON's escapes. A capital counts but at the beginning of a sentence; a word in a script
    without capitals counts, since it may be a name, and so does a numeral of any script.
    """
    plain = _ESCAPE.sub(_blank, text[begin:end])
    starts, at = True, begin
    for word in _WORD.finditer(plain):
        if _counts(word[0], starts=starts or "\n" in plain[at - begin : word.start()]):
            if at < begin + word.start():
                yield at, begin + word.start()
            at = begin + word.end()
        starts = word[0][-1] in ".!?:…。؟।"
    if at < end:
        yield at, end


def _blank(escape: re.Match[str]) -> str:
    """Return a placeholder of the same length for an escape; letters stay letters."""
    letter = escape[0][1]
    if letter != "u" or len(escape[0]) == 2:
        return "\n " if letter in "nr" else "  "
    meant = chr(int(escape[0][2:], 16))
    return "Xxxxxx" if meant.isupper() else meant * 6 if _is_caseless(meant) else "x" * 6


def _is_caseless(character: str) -> bool:
    """Return True for a letter of a script without capitals, or a numeral of any script."""
    if character.isascii():
        return character.isdecimal()
    return character.isnumeric() or (character.isalpha() and character.upper() == character.lower())


def _is_shouted(word: str) -> bool:
    return word.isupper() and sum(map(str.isalpha, word)) > 1


def _counts(word: str, *, starts: bool) -> bool:
    if not _PLAIN.fullmatch(word):
        return True
    if not word.isascii() and any(map(_is_caseless, word)):
        return True
    capitals = sum(map(str.isupper, word))
    return bool(capitals) and not (_I.fullmatch(word) or (starts and capitals == 1))


def without_sentences(text: str) -> str:
    """The text, blanks in the place of its sentences: three words or more, half of them plain, and no code in them.

    A line, a mark in angle brackets, and what ends a sentence or a label are bounds.
    """
    kept: list[str] = []
    at = 0
    for bound in _BOUND.finditer(text):
        kept += _unless_sentence(text[at : bound.start()]), bound[0]
        at = bound.end()
    return "".join([*kept, _unless_sentence(text[at:])])


def _unless_sentence(text: str) -> str:
    words = text.split()
    if len(words) < _FEWEST_WORDS or _CODE.search(text) or _LISTED.search(text):
        return text
    plain = sum(_PLAIN.fullmatch(word) is not None for word in words)
    return " " * len(text) if 2 * plain >= len(words) else text
