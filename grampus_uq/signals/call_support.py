"""The source of a call's argument: said, returned by a tool, computed from numbers there, or none.

Evidence that needs no model: a value that occurs nowhere is the commonest harm. Linear in the text; at most the latest
32 messages are read, the last 8,000 characters of each.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import JsonValue

from grampus_uq.records.call_parts import Support
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role

MAX_MESSAGES: Final = 32
MAX_CHARACTERS: Final = 8_000
MAX_NUMBERS: Final = 32
"""The latest different numbers whose sums, differences and products are tried; no more are when there are more."""
_MOST_MENTIONS: Final = 64
_LARGEST: Final = 10**15
_WORD: Final = re.compile(r"[^\W_](?:[\w.-]{0,62}[^\W_])?")
_DIGIT: Final = re.compile(r"\d")
_LETTER: Final = re.compile(r"[^\W\d_]")
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d{1,9})?(?![\w]|\.\d)", re.ASCII)
_MOST_NAMES: Final = 2
_ENTRY: Final = re.compile(  # a name, and what stands behind it
    r"""(?<![\w-])([A-Za-z_][A-Za-z0-9_-]{0,39})["']?[ \t]{0,4}[:=][ \t\n]{0,4}"""
    r"""(?:"([^"\\\n]{1,64})"|'([^'\\\n]{1,64})'|(-?[0-9]{1,15}(?:\.[0-9]{1,9})?)(?![\w.]))"""
)


def support_of(value: JsonValue, messages: Sequence[Message]) -> Support | None:
    """The support of a text or a number of a call: its places; None for any other or an empty value, or where none is.

    Texts are compared as whole words without regard to case, numbers by value: 85, 85.0 and "85.00" are one. A value
    with digits that is the only one of its form, in the results or in what was said, is told from one that was chosen.
    """
    key = _normal(value)
    if key is None:
        return None
    text, number = (value.strip().lower() if isinstance(value, str) else ""), key if isinstance(key, float) else None
    returned: list[str] = []
    said: list[str] = []
    for role, given in reversed(_given(messages)):
        (returned if role is Role.TOOL else said).append(given)
    found: list[Support] = []
    for texts, alone, among in (
        (returned, Support.RETURNED, Support.RETURNED_AMONG_OTHERS),
        (said, Support.SAID, Support.SAID_AMONG_OTHERS),
    ):
        if any(_occurs(text, number, given) for given in texts):
            if not _has_rivals(key, texts):
                return alone
            found.append(among)
    if found:
        return found[0]
    if number is not None and not isinstance(value, str) and _is_computed(number, (*said, *returned)):
        return Support.COMPUTED
    return Support.NOWHERE if returned or said else None


def _normal(value: JsonValue) -> str | float | None:
    """A text in lower case, a number, or a text that is one, by its value; None for any other or an empty value."""
    if isinstance(value, str):
        text = value.strip().lower()
        return float(text) if _NUMBER.fullmatch(text) else text or None
    number = isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST
    return float(value) if number else None  # type: ignore[arg-type]  # a number


def _given(messages: Sequence[Message]) -> list[tuple[Role, str]]:
    """The ends of the latest messages that the model did not write, each with its role, the latest first."""
    latest = [(one.role, one.content[-MAX_CHARACTERS:]) for one in messages[-MAX_MESSAGES:] if one.content]
    return [one for one in reversed(latest) if one[0] is not Role.ASSISTANT]


def names_of(value: JsonValue, messages: Sequence[Message]) -> tuple[str, ...]:
    """The names under which a text or a number stands in what was said or returned, the latest first, at most two.

    A name is a plain word before a colon or an equals sign: `"customer": "C118"`, `total=5`. Values are compared as in
    `support_of`.
    """
    key = _normal(value)
    if key is None:
        return ()
    found: dict[str, None] = {}
    for _, given in _given(messages):
        found.update(dict.fromkeys(_named(given).get(key, ())))
    return tuple(found)[:_MOST_NAMES]


@functools.lru_cache(maxsize=256)
def _named(text: str) -> dict[str | float, tuple[str, ...]]:
    """The names of each value that has one."""
    found: dict[str | float, tuple[str, ...]] = {}
    for entry in _ENTRY.finditer(text):
        value, name = _normal(entry[2] or entry[3] or entry[4]), entry[1]
        if value is not None:
            known = found.get(value, ())
            found[value] = known if name in known or len(known) == _MOST_NAMES else (*known, name)
    return found


def only_beginning(beginning: str, messages: Sequence[Message]) -> str | None:
    """The one word with digits in what was said or returned that begins so; None where there is none, or several."""
    lowered = beginning.lower()
    found = {word for _, given in _given(messages) for word in _words(given) if word.lower().startswith(lowered)}
    return found.pop() if len(found) == 1 else None


@functools.lru_cache(maxsize=256)
def _words(text: str) -> frozenset[str]:
    return frozenset([found[0] for found in _WORD.finditer(text) if _DIGIT.search(found[0])])


def _occurs(text: str, number: float | None, given: str) -> bool:
    if number is not None and number in _numbers(given):
        return True
    lowered = _lowered(given)
    at = lowered.find(text) if text else -1
    for _ in range(_MOST_MENTIONS):
        if at < 0:
            break
        before, after = lowered[at - 1 : at], lowered[at + len(text) : at + len(text) + 1]
        if not (before.isalnum() or after.isalnum()):
            return True
        at = lowered.find(text, at + len(text))
    return False


@functools.lru_cache(maxsize=256)
def _lowered(text: str) -> str:
    return text.lower()


@functools.lru_cache(maxsize=256)  # a message stays in the prompt of every later step
def _numbers(text: str) -> frozenset[float]:
    return frozenset(map(float, _NUMBER.findall(text)))


def _has_rivals(value: str | float, texts: Sequence[str]) -> bool:
    """True where other values of the same form stand in the texts; a value without digits has no form."""
    kinds = [_kinds(text) for text in texts]
    forms = {form for found in kinds for form, values in found.items() if value in values}
    return any(found[form] - {value} for found in kinds for form in forms & found.keys())


@functools.lru_cache(maxsize=256)
def _kinds(text: str) -> dict[str, frozenset[str | float]]:
    """The words with digits of a text by their form: "C220" is like "C118", 9117 like 8364, 42.5 like 7.09."""
    found: dict[str, set[str | float]] = {}
    for word, value in _values(text):
        form = "." if isinstance(value, float) and "." in word else _LETTER.sub("a", _DIGIT.sub("9", word))
        found.setdefault(form, set()).add(value)
    return {form: frozenset(values) for form, values in found.items()}


def words_with_digits(text: str) -> Iterator[str | float]:
    """The words with digits of a text in their order: in lower case, numbers by value. Linear time."""
    return (value for _, value in _values(text))


def _values(text: str) -> Iterator[tuple[str, str | float]]:
    for found in _WORD.finditer(text):
        if _DIGIT.search(found[0]):
            yield found[0], float(found[0]) if _NUMBER.fullmatch(found[0]) else found[0].lower()


def _is_computed(number: float, texts: Sequence[str]) -> bool:
    """Return True for a sum, difference or product of two of the numbers, or a x b + c or a x b - c of three."""
    known = frozenset().union(*map(_numbers, texts))
    if len(known) > MAX_NUMBERS:
        return False
    reachable = _reachable(known)
    return any(round(number - c, 6) in reachable or round(number + c, 6) in reachable for c in (*known, 0.0))


@functools.lru_cache(maxsize=16)  # all arguments of a step are held against the same numbers
def _reachable(known: frozenset[float]) -> frozenset[float]:
    return known | {round(a * b, 6) for a, b in itertools.combinations(known, 2)}
