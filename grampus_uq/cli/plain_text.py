"""Text that a model, a tool or a stranger wrote, as a human may safely read it: nothing hidden, nothing mistaken.

Characters that are invisible, control the terminal or turn the direction of reading are shown as escapes, and so are
letters of another script in a word that reads as plain ASCII. What is cut says how much.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from grampus_uq.records.tool_names import looks_like

_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {chr(c) for c in range(0xFE00, 0xFE10)}
_WORD = re.compile(r"[^\W_]+")
_MAX_ARGUMENTS, _MAX_WIDTH = 12, 40


def _hidden(character: str) -> bool:
    if character in _INVISIBLE or "\U000e0100" <= character <= "\U000e01ef":
        return True
    category = unicodedata.category(character)
    return category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or (category == "Zs" and character != " ")


def _escaped(character: str) -> str:
    return ascii(character)[1:-1]


def _word(found: re.Match[str]) -> str:
    word = found[0]
    if word.isascii() or not all(character.isascii() or looks_like(character) for character in word):
        return word  # a word of another script shows itself as one
    return "".join(character if character.isascii() else _escaped(character) for character in word)


def one_line(value: object) -> str:
    """A value as a cell of a table: on one line, without control characters, which terminals obey; None is empty."""
    text = f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
    return "".join(char if char.isprintable() else " " for char in text)


def plain(text: str) -> str:
    """The text on one line, every character that hides, moves or imitates another shown as an escape.

    >>> plain("to p\u0430y\u200b, \u043f\u0440\u0438\u0432\u0435\u0442")
    'to p\\\\u0430y\\\\u200b, привет'
    """
    shown = "".join(_escaped(c) if _hidden(c) else c for c in text)
    return shown if shown.isascii() else _WORD.sub(_word, shown)


def legend(text: str) -> list[str]:
    """A line for each kind of character that `plain` marks in the text, at most 20."""
    lines: dict[str, str] = {}
    for character in text:
        if character in "\n\t" or character in lines or len(lines) == 20:
            continue
        name = unicodedata.name(character, "no character")
        if _hidden(character):
            lines[character] = f"{_escaped(character)} is not visible: {name}"
        elif not character.isascii() and looks_like(character) and _escaped(character) in plain(text):
            lines[character] = f"{_escaped(character)} looks like {looks_like(character)!r}: {name}"
    return list(lines.values())


def short(text: str, width: int) -> str:
    """The beginning of a text, and how much of it is left out."""
    return text if len(text) <= width else f"{text[:width]}…(+{len(text) - width} characters)"


def arguments_in_short(arguments: Mapping[str, Any]) -> str:
    """Every argument by name, each value cut by itself, so that a long one hides no other."""
    shown = [
        f"{plain(short(name, _MAX_WIDTH))}={plain(short(_json(value), _MAX_WIDTH))}"
        for name, value in sorted(arguments.items())[:_MAX_ARGUMENTS]
    ]
    more = len(arguments) - len(shown)
    return " ".join([*shown, *([f"(+{more} arguments)"] if more > 0 else [])])


def whole_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Every argument whole, one a line."""
    return [f"  {plain(name)} = {plain(_json(value))}" for name, value in sorted(arguments.items())]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
