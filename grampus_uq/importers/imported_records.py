"""One JSON object after the other, and one run of each: what is broken costs itself only, and is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Final, Protocol, TypeVar

from grampus_uq.errors import DataError
from grampus_uq.importers.json_stream import MAX_ELEMENT_CHARS, Element, elements
from grampus_uq.importers.opening import blocks
from grampus_uq.recording.runs import Refused as Refused
from grampus_uq.recording.runs import each as each
from grampus_uq.recording.runs import refuse_to as refuse_to
from grampus_uq.records.strict_json import is_json, json_object

_BOM: Final = b"\xef\xbb\xbf"
_SPACES: Final = b" \t\r\n"


class _Named(Protocol):
    @property
    def run_id(self) -> str: ...


_Run = TypeVar("_Run", bound=_Named)


def each_run(
    found: Iterable[Element | DataError], read: Callable[[Element], _Run], on_refused: Refused | None, *, id_field: str
) -> Iterator[_Run]:
    """Read a run of each element; one that is wrong, or whose id came before, is given to `on_refused` or raises.

    `read` may walk nested values by recursion: a record too deep for it is refused like any other.
    """
    seen: set[str] = set()

    def new_run(element: Element) -> _Run:
        try:
            run = read(element)
        except RecursionError as error:
            raise element.error("", "is nested too deeply.") from error
        if run.run_id in seen:
            raise element.error(id_field, f"{run.run_id!r:.80} is a duplicate: an earlier run of this file has it.")
        seen.add(run.run_id)
        return run

    return each(found, new_run, on_refused)


def records(path: str | os.PathLike[str], on_refused: Refused | None = None) -> Iterator[Element]:
    """Yield the objects of a file: JSON lines, one array, or objects one after the other; plain or gzip.

    In JSON lines a line that is not an object in UTF-8 is given to `on_refused` (without it, it raises) and the next
    one is read. In the other forms so is an object with a name twice, and a fault in the JSON itself ends the file:
    DataError with path and line.
    """
    lines = line_records(path, on_refused)
    return elements(path, on_refused) if lines is None else lines


def line_records(path: str | os.PathLike[str], on_refused: Refused | None) -> Iterator[Element] | None:
    """The objects of JSON lines; None for a file whose first line is not an object by itself.

    A broken first line, as a rotated log has, may be followed by an object.
    """
    lines = ((number, line) for number, line in _byte_lines(path) if isinstance(line, DataError) or line.strip(_SPACES))
    head = list(islice(lines, 2))
    begins_array = bool(head) and isinstance(head[0][1], bytes) and head[0][1].lstrip(_SPACES).startswith(b"[")
    if begins_array or not any(_is_object(line) for _, line in head):
        return None
    name = os.fspath(path)

    def element(numbered: tuple[int, tuple[int, bytes | DataError]]) -> Element:
        index, (number, line) = numbered
        if isinstance(line, DataError):
            raise line
        value = json_object(line, path=name, line=number, unique_names=True)
        return Element(value=value, path=name, line=number, index=index, in_array=False, chars=len(line))

    return each(enumerate(chain(head, lines)), element, on_refused)


def _byte_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes | DataError]]:
    """Yield `(number from 1, line)`; in place of one that is too long a DataError, the rest of it skipped."""
    number, size, too_long = 1, 0, False
    pieces: list[bytes] = []
    for place, block in enumerate(blocks(path)):
        start = len(_BOM) if place == 0 and block.startswith(_BOM) else 0
        while (end := block.find(b"\n", start)) >= 0:
            if not too_long:
                pieces.append(block[start:end])
                yield number, b"".join(pieces) if size + end - start <= MAX_ELEMENT_CHARS else _too_long(path, number)
            pieces, size, too_long, start = [], 0, False, end + 1
            number += 1
        rest = block[start:]
        size += len(rest)
        if size > MAX_ELEMENT_CHARS and not too_long:
            yield number, _too_long(path, number)
            pieces, too_long = [], True
        if not too_long:
            pieces.append(rest)
    if size and not too_long:
        yield number, b"".join(pieces)


def _too_long(path: str | os.PathLike[str], number: int) -> DataError:
    return DataError(f"is longer than {MAX_ELEMENT_CHARS} bytes.", path=os.fspath(path), line=number)


def _is_object(line: bytes | DataError) -> bool:
    return not isinstance(line, DataError) and line.lstrip(_SPACES).startswith(b"{") and is_json(line)
