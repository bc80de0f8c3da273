"""The answer in the form that was asked for, read at a glance: one plain sentence or none, then one flat JSON object.

It is what most steps write. Nothing here is a rule of its own: a text with any mark or word that the rules look at is
left to them, and a law holds that what is read here is what they read.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from grampus_uq.signals.admissions import ADMITTING
from grampus_uq.signals.closing_object import ANSWER_FIELDS, FIELDS
from grampus_uq.signals.own_words import SPEAKER
from grampus_uq.signals.stated import MAY_STATE, OTHER_SCALE
from grampus_uq.signals.statement_context import FRAME, REPORT, SOURCE

__all__ = ["plain_answer"]

_OTHER_FIELD = rf'"(?:{"|".join(sorted(ANSWER_FIELDS - FIELDS))})": ?"[^"\\{{\x00-\x1f]{{0,2000}}"'
_PLAIN: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9 ,.!?%$]{0,240}(?:[.!?] |\n\n?))?+"
    rf'\{{ ?(?:{_OTHER_FIELD}, ?){{0,8}}"(?:{"|".join(sorted(FIELDS))})": ?'
    rf"(0(?:\.[0-9]{{1,20}})?|1(?:\.0{{1,20}})?)(?:, ?{_OTHER_FIELD}){{0,8}} ?\}}"
)
_WORDS: Final = re.compile(r"[a-z]+")
_TEXTS: Final = re.compile(r'"([^"]*)"')
_DIGIT: Final = re.compile(r"[0-9]")
_OF_PHRASES: Final = frozenset(
    {"word", "words", "text", "told", "asked", "point", "percent", "five", "seven", "ten", "hundred"}
)
"""Words of phrases that no other word of the phrase gives away."""


def plain_answer(stripped: str) -> float | None:
    """The confidence that such a text states, without blanks around it; None for any other text.

    >>> plain_answer('It is Paris. {"confidence": 0.9}'), plain_answer('It says: {"confidence": 0.9}')
    (0.9, None)
    """
    match = _PLAIN.fullmatch(stripped)
    if match is None:
        return None
    lowered = stripped.lower()
    if "know" in lowered:  # "Let me know if ...}" would be a closing word
        return None
    told = " ".join([text for text in _TEXTS.findall(lowered, match.end(1)) if text not in ANSWER_FIELDS]).split()
    if not _HARMLESS.issuperset(told) and any(map(_matters, told)):
        return None
    if match[1]:
        words = lowered[: match.end(1)].split()
        if not _HARMLESS.issuperset(words) and (any(map(_matters, words)) or OTHER_SCALE(match[1])):
            return None
        if _frames_at_the_end(words[-1]):
            return None
    return float(match[2])


_frames_at_the_end = functools.lru_cache(maxsize=1_024)(FRAME)


def _matters(written: str) -> bool:
    """True for a word that one of the rules looks for, wherever it stands; the others are remembered if without digits.

    It may have marks of punctuation in it, which are no part of a word.
    """
    matters = any(map(_is_sought, _WORDS.findall(written)))
    if not matters and len(written) <= _LONGEST_WORD and _DIGIT.search(written) is None:
        if len(_HARMLESS) >= _MOST_HARMLESS:
            _HARMLESS.clear()
        _HARMLESS.add(written)
    return matters


def _is_sought(word: str) -> bool:
    within = f"{word} x"
    return (
        word in _OF_PHRASES
        or word in ADMITTING
        or SPEAKER.search(word) is not None
        or SPEAKER.search(within) is not None
        or any(search(within) for search in (FRAME, REPORT, SOURCE, MAY_STATE, OTHER_SCALE))
    )


_HARMLESS: Final[set[str]] = set()
_MOST_HARMLESS: Final = 4_096
_LONGEST_WORD: Final = 40
