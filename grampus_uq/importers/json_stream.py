"""The elements of a JSON array, or JSON lines, or a single JSON object: one at a time, however long the file is."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, Final, NoReturn

from grampus_uq.errors import DataError
from grampus_uq.importers.opening import BLOCK_BYTES, text_blocks
from grampus_uq.recording.runs import Refused, refuse_to
from grampus_uq.records.strict_json import refuse_constant

MAX_ELEMENT_CHARS: Final = 32 * 2**20
"""The longest element that is read, in characters."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_LONGEST_TOKEN: Final = 12  # "false", an escape \uXXXX\uXXXX: a cut within it shows this near to the end
_CUT: Final = "Unterminated string"
_NO_END: Final = "the file is truncated: the {} does not end"


class DoubledNameError(DataError):
    """An object has a name twice, so no reader knows which value was meant; what follows it can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One JSON object, where it begins, and its number from 0; `place` is how a field of it is named."""

    value: dict[str, Any]
    path: str
    line: int
    index: int
    in_array: bool
    chars: int = 0
    prefix: str = ""

    def error(self, field: str, reason: str) -> DataError:
        """The error that names a field of this element, "" for the element itself."""
        place = f"{self.prefix}[{self.index}].{field}" if self.in_array else f"{self.prefix}{field}"
        return DataError(reason, path=self.path, line=self.line, field=place.removesuffix("."))


def elements(
    path: str | os.PathLike[str],
    on_refused: Refused | None = None,
    *,
    max_element_chars: int = MAX_ELEMENT_CHARS,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[Element]:
    """Yield the objects of a file that holds one array of objects, or objects one after the other.

    No more than one element and one block are held. One with a name twice goes to `on_refused` (without it, it raises),
    and the next one is read. Raises DataError with path and line when the file is truncated, is
    not JSON in UTF-8, holds NaN or something that is not an object, or has an element longer than `max_element_chars`.
    """
    window = _Window(path, max_element_chars, block_bytes)
    in_array = window.peek() == "["
    for index in window.items() if in_array else takewhile(lambda _: window.peek() != "", count()):
        line, before = window.line, window.position
        try:
            value = window.take()
        except DoubledNameError as error:
            refuse_to(on_refused, error)
            continue
        if not isinstance(value, dict):
            raise DataError(f"must be a JSON object. Got {type(value).__name__}.", path=window.path, line=line)
        chars = window.position - before
        yield Element(value=value, path=window.path, line=line, index=index, in_array=in_array, chars=chars)
    if in_array and window.peek():
        window.fail("something follows the array")


def nested(path: str | os.PathLike[str], trail: Sequence[str]) -> Iterator[Element | DataError]:
    """Yield the objects at the end of a trail of arrays: with ("a", "b") those in `{"a": [{"b": [...]}]}`.

    The file holds one such object, or several one after the other. What lies beside the trail is parsed, a value or an
    element of an array at a time, and dropped, so that a single object of gigabytes is read in bounded memory. What is
    on the trail and is not an array of objects is yielded as an error, and passed over. Raises as `elements` does.
    """
    window = _Window(path, MAX_ELEMENT_CHARS, BLOCK_BYTES)
    while (head := window.peek()) != "":
        if head != "{":
            window.fail(f"must be a JSON object. It begins with {head!r}")
        yield from _along(window, trail, "")


def _along(window: _Window, trail: Sequence[str], prefix: str) -> Iterator[Element | DataError]:
    """Read one object, and yield what is at the end of the trail in it."""
    for key in window.members():
        if key != trail[0]:
            window.drop()
            continue
        place = f"{prefix}{key}"
        if window.peek() != "[":
            line, value = window.line, window.take()
            if value is not None:
                reason = f"must be a list. Got {type(value).__name__}."
                yield DataError(reason, path=window.path, line=line, field=place)
            continue
        for index in window.items():
            line = window.line
            if window.peek() != "{":
                value = window.take()
                reason = f"must be an object. Got {type(value).__name__}."
                yield DataError(reason, path=window.path, line=line, field=f"{place}[{index}]")
            elif len(trail) > 1:
                yield from _along(window, trail[1:], f"{place}[{index}].")
            else:
                before = window.position
                try:
                    value = window.take()
                except DoubledNameError as error:
                    yield error
                    continue
                yield Element(
                    value=value,
                    path=window.path,
                    line=line,
                    index=index,
                    in_array=True,
                    chars=window.position - before,
                    prefix=place,
                )


class _Window:
    """The part of the text that is being looked at, and the number of its line."""

    def __init__(self, path: str | os.PathLike[str], limit: int, block_bytes: int) -> None:
        self.path = os.fspath(path)
        self.line = 1
        self._blocks = text_blocks(path, size=block_bytes)
        self._text = ""
        self._at = 0
        self._passed = 0
        self._limit = limit
        self._twice: list[str] = []
        self._decoder = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=self._object)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            self._twice.extend(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        return found

    def peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self.skip(len(space[0]) if space else 0)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip(self, count: int) -> None:
        self.line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def take(self) -> Any:
        """The value that begins here. Read further, twice as far each time, while it may only be cut off.

        Raises DoubledNameError once the value is passed, and DataError for what ends the file.
        """
        while True:
            self._twice.clear()
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith(_CUT) or error.pos >= len(self._text) - _LONGEST_TOKEN
                if not (cut and self._grow()):
                    early = ", or ends too early" if cut else ""
                    self.fail(f"is not JSON{early}: {error.msg}", error.pos, error)
            except RecursionError as error:
                self.fail("is nested too deeply", self._at, error)
            except ValueError as error:  # NaN, or an integer of thousands of digits
                self.fail(f"is not JSON: {error}", self._at, error)
            else:
                if end == len(self._text) and type(value) in (int, float) and self._grow():
                    continue  # the number may go on
                line = self.line
                self.skip(end - self._at)
                if self._twice:
                    reason = f"the name {self._twice[0]!r:.80} appears twice in one object."
                    raise DoubledNameError(reason, path=self.path, line=line)
                return value

    @property
    def position(self) -> int:
        """The number of characters passed so far."""
        return self._passed + self._at

    def members(self) -> Iterator[str]:
        """Yield the keys of the object that begins here; the caller takes or drops each value before the next."""
        for _ in self._parts("}", "a value", "object"):
            key = self.take()
            if not isinstance(key, str):
                self.fail(f"must be the name of a field. Got {type(key).__name__}")
            if self.peek() != ":":
                self.fail("expected ':' after the name of a field")
            self.skip(1)
            self.peek()
            yield key

    def items(self) -> Iterator[int]:
        """Yield the numbers of the elements of the array that begins here, as `members` does keys."""
        return self._parts("]", "an element", "array")

    def _parts(self, end: str, part: str, whole: str) -> Iterator[int]:
        self.skip(1)
        index = 0
        while (head := self.peek()) != end:
            if index:
                if head != ",":
                    self.fail(f"expected ',' or '{end}' after {part}" if head else _NO_END.format(whole))
                self.skip(1)
                self.peek()
            yield index
            index += 1
        self.skip(1)

    def drop(self) -> None:
        """Pass over the value that begins here, whatever names it has twice; of an array an element at a time."""
        for _ in self.items() if self.peek() == "[" else (0,):
            with suppress(DoubledNameError):
                self.take()

    def fail(self, reason: str, at: int | None = None, cause: BaseException | None = None) -> NoReturn:
        line = self.line + self._text.count("\n", self._at, self._at if at is None else at)
        raise DataError(f"{reason}.", path=self.path, line=line) from cause

    def _grow(self) -> bool:
        """Read until the text from here is twice as long; False at the end of the file."""
        wanted = 2 * (len(self._text) - self._at)
        if len(self._text) - self._at > self._limit:
            self.fail(f"an element is longer than {self._limit} characters")
        parts = [self._text[self._at :]]
        have = len(parts[0])
        while have < wanted and (block := next(self._blocks, None)) is not None:
            parts.append(block)
            have += len(block)
        grown = have > len(parts[0])
        self._passed += self._at
        self._text, self._at = "".join(parts), 0
        return grown

    def _more(self) -> bool:
        block = next(self._blocks, None)
        self._passed += self._at
        self._text, self._at = block or "", 0
        return block is not None
