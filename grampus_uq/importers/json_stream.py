"""The elements of a JSON array, or JSON lines, or a single JSON object: one at a time, however long the file is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from grampus_uq.errors import DataError
from grampus_uq.importers.opening import BLOCK_BYTES, text_blocks

__all__ = ["MAX_ELEMENT_CHARS", "Element", "elements"]

MAX_ELEMENT_CHARS: Final = 32 * 2**20
"""The longest element that is read, in characters."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_LONGEST_TOKEN: Final = 12  # "false", an escape \uXXXX\uXXXX: a cut within it shows this near to the end
_CUT: Final = "Unterminated string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One JSON object, where it begins, and its number from 0; `place` is how a field of it is named."""

    value: dict[str, Any]
    path: str
    line: int
    index: int
    in_array: bool

    def error(self, field: str, reason: str) -> DataError:
        """The error that names a field of this element."""
        place = f"[{self.index}].{field}" if self.in_array else field
        return DataError(reason, path=self.path, line=self.line, field=place)


def elements(
    path: str | os.PathLike[str], *, max_element_chars: int = MAX_ELEMENT_CHARS, block_bytes: int = BLOCK_BYTES
) -> Iterator[Element]:
    """Yield the objects of a file that holds one array of objects, or objects one after the other.

    No more than one element and one block are held. Raises DataError with path and line when the file is truncated, is
    not JSON in UTF-8, holds NaN or something that is no object, or has an element longer than `max_element_chars`.
    """
    window = _Window(path, max_element_chars, block_bytes)
    in_array = window.peek() == "["
    if in_array:
        window.skip(1)
    index = 0
    while (head := window.peek()) != "":
        if in_array and head == "]":
            window.skip(1)
            if window.peek():
                window.fail("something follows the array")
            return
        if in_array and index:
            if head != ",":
                window.fail("expected ',' or ']' behind an element")
            window.skip(1)
            window.peek()
        line = window.line
        value = window.take()
        if not isinstance(value, dict):
            raise DataError(f"must be a JSON object. Got {type(value).__name__}.", path=window.path, line=line)
        yield Element(value=value, path=window.path, line=line, index=index, in_array=in_array)
        index += 1
    if in_array:
        window.fail("the file is truncated: the array does not end")


class _Window:
    """The part of the text that is being looked at, and the number of its line."""

    def __init__(self, path: str | os.PathLike[str], limit: int, block_bytes: int) -> None:
        self.path = os.fspath(path)
        self.line = 1
        self._blocks = text_blocks(path, size=block_bytes)
        self._text = ""
        self._at = 0
        self._limit = limit
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            end = _end_of_space(self._text, self._at)
            self.skip(end - self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip(self, count: int) -> None:
        self.line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def take(self) -> Any:
        """The value that begins here. Read further, twice as far each time, while it may only be cut off."""
        while True:
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
                self.skip(end - self._at)
                return value

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
        self._text, self._at = "".join(parts), 0
        return grown

    def _more(self) -> bool:
        block = next(self._blocks, None)
        self._text, self._at = block or "", 0
        return block is not None


def _end_of_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return found.end() if found else start


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
