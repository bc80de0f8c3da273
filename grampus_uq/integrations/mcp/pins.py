"""Pins of tool definitions: compares a server's definitions with earlier ones by digest, and names the changes.

A definition is everything that a model or a client reads of a tool: name, title, description, schemas, annotations and
whatever else is there, except `_meta` and `icons`. A pin is taken when a call of the tool is approved; a later call
under another definition is asked about anew, and its request says what changed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from grampus_uq.errors import DataError
from grampus_uq.records.strict_json import json_object
from grampus_uq.records.values import canonical_json, sha256_of

_UNPINNED = frozenset({"_meta", "icons"})
_MAX_KEPT = 65_536
_READ_FIRST = ("description", "title", "annotations", "inputSchema", "outputSchema")  # by models and clients
_MAX_PATH, _MAX_VALUE, _MAX_CHANGES = 160, 1_000, 6_000
_MAX_DEPTH, _BETWEEN = 64, "; "
_WORD = re.compile(r"[A-Za-z0-9_$-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One tool as it was defined: SHA-256 of the definition, and its canonical JSON unless that is too long to keep."""

    name: str
    digest: str
    definition: str | None


def pinned(tool: Mapping[str, Any]) -> Pin:
    """The pin of a listed tool. Raises ValueError without a name, or for what is not JSON or too deeply nested."""
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("A tool without a name cannot be pinned.")
    try:
        text = canonical_json({key: value for key, value in tool.items() if key not in _UNPINNED})
    except (TypeError, RecursionError) as error:
        raise ValueError(f"The definition of {name!r:.80} is not JSON, or is nested too deeply.") from error
    digest = sha256_of(text)
    return Pin(name=name, digest=digest, definition=text if len(text) <= _MAX_KEPT else None)


def quoted(name: str) -> str:
    """A name that a stranger gave: as it is where it is one plain word, else as JSON, so that it ends where it ends."""
    return name if _WORD.fullmatch(name) else canonical_json(name)


@dataclass(frozen=True, slots=True)
class Differences:
    """Changes between two pins of a tool, in words; `whole`: nothing is cut."""

    text: str
    whole: bool = True


_NOT_COMPARED: Final = Differences("it cannot be compared here", whole=False)


def differences(old: Pin, new: Pin) -> Differences:
    """The changes: a part each, with both values where they are short enough; 6,000 characters at most.

    First what models and clients read; of each, what was added comes last. Names and values are the server's, and may
    hold anything: they are quoted, and whoever shows them escapes them.
    """
    if old.digest == new.digest:
        return Differences("")
    if old.definition is None or new.definition is None:
        return _NOT_COMPARED
    try:
        before, after = json_object(old.definition), json_object(new.definition)
    except (DataError, TypeError):  # whatever stood in the store
        return _NOT_COMPARED
    said = _Said()
    for names in (*([name] for name in _READ_FIRST), {*before, *after}.difference(_READ_FIRST)):
        was, now = ({name: values[name] for name in names if name in values} for values in (before, after))
        for _, line in sorted(_changes("", was, now, 0, said), key=operator.itemgetter(0)):
            said.line(line)
    return said.differences()


class _Said:
    """Lines up to a bound, and whether something was cut."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._room, self._more, self._whole = _MAX_CHANGES, 0, True

    def line(self, line: str) -> None:
        """Say one change."""
        if self._more or len(line) > self._room:
            self._more += 1
            return
        self._lines.append(line)
        self._room -= len(line) + len(_BETWEEN)

    def cut(self, text: str, most: int) -> str:
        """The beginning of a long text."""
        if len(text) <= most:
            return text
        self._whole = False
        return f"{text[:most]}…(+{len(text) - most} characters)"

    def differences(self) -> Differences:
        """Everything that was said."""
        more = [f"and {self._more} more changes"] if self._more else []
        return Differences(_BETWEEN.join([*self._lines, *more]), whole=self._whole and not more)


def _changes(path: str, old: Any, new: Any, depth: int, said: _Said) -> Iterator[tuple[bool, str]]:
    """Yield for each change whether it is an addition, and its line of text."""
    if isinstance(old, dict) and isinstance(new, dict) and depth < _MAX_DEPTH:
        for key in sorted({*old, *new}):
            place = f"{path}.{quoted(key)}" if path else quoted(key)
            if key not in new:
                was = said.cut(canonical_json(old[key]), _MAX_VALUE)
                yield False, f"{said.cut(place, _MAX_PATH)}: removed, was {was}"
            elif key not in old:
                now = said.cut(canonical_json(new[key]), _MAX_VALUE)
                yield True, f"{said.cut(place, _MAX_PATH)}: added, {now}"
            else:
                yield from _changes(place, old[key], new[key], depth + 1, said)
    elif canonical_json(old) != canonical_json(new):
        shown = _from_where_they_differ(canonical_json(old), canonical_json(new), said)
        yield False, f"{said.cut(path, _MAX_PATH)}: {shown}"


def _from_where_they_differ(old: str, new: str, said: _Said) -> str:
    """Both values, long ones from a little before their first difference: what was added at their end is shown."""
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(0, same - 20) if max(len(old), len(new)) > _MAX_VALUE else 0
    cut = ['"…' if start and text.startswith('"') else "…" if start else "" for text in (old, new)]
    shown = [lead + said.cut(text[start:], _MAX_VALUE) for lead, text in zip(cut, (old, new), strict=True)]
    return f"{shown[0]} is now {shown[1]}"
