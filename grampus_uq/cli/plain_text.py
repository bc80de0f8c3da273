"""Arguments and values in a terminal: hostile text is made visible, and what is cut says how much."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

from grampus_uq.records.tool_names import looks_like
from grampus_uq.records.visible_text import escaped, is_hidden, visible, without_controls

_MAX_ARGUMENTS, _MAX_WIDTH = 12, 40


def one_line(value: object) -> str:
    """A value as a cell of a table: on one line, without control characters, which terminals obey; None is empty."""
    text = f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
    return without_controls(text)


def legend(text: str) -> list[str]:
    """A line for each kind of character that `visible` marks in the text, at most 20."""
    lines: dict[str, str] = {}
    for character in text:
        if character in "\n\t" or character in lines or len(lines) == 20:
            continue
        name = unicodedata.name(character, "no character")
        if is_hidden(character):
            lines[character] = f"{escaped(character)} is not visible: {name}"
        elif not character.isascii() and looks_like(character) and escaped(character) in visible(text):
            lines[character] = f"{escaped(character)} looks like {looks_like(character)!r}: {name}"
    return list(lines.values())


def short(text: str, width: int) -> str:
    """The beginning of a text, and how much of it is left out."""
    return text if len(text) <= width else f"{text[:width]}…(+{len(text) - width} characters)"


def arguments_in_short(arguments: Mapping[str, Any]) -> str:
    """Every argument by name, each value cut by itself, so that a long one hides no other."""
    shown = [
        f"{visible(short(name, _MAX_WIDTH))}={visible(short(_json(value), _MAX_WIDTH))}"
        for name, value in sorted(arguments.items())[:_MAX_ARGUMENTS]
    ]
    more = len(arguments) - len(shown)
    return " ".join([*shown, *([f"(+{more} arguments)"] if more > 0 else [])])


def whole_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Every argument whole, one a line."""
    return [f"  {visible(name)} = {visible(_json(value))}" for name, value in sorted(arguments.items())]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
