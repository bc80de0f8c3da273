"""Groups the records of a file that belong together, wherever they stand: counted first, then handed out when whole."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from grampus_uq.errors import DataError
from grampus_uq.importers.imported_records import Refused

_Item = TypeVar("_Item")
_MAX_OPEN_CHARS: Final = 64 * 2**20
"""The most text of unfinished groups in memory, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped(Generic[_Item]):
    """One record of a group, its size in characters, its line; `same` is equal where it came twice, None if unknown."""

    key: str
    chars: int
    line: int | None
    item: _Item
    same: Hashable = None


def grouped(
    read: Callable[[Refused | None], Iterable[Grouped[_Item]]], path: str, on_refused: Refused | None
) -> Iterator[tuple[str, list[_Item]]]:
    """Yield `(key, items)` for each group, as soon as its last record was read; one that came twice counts once.

    `read` is called twice: at first only to count, what is refused being dropped, then with `on_refused`.

    Keeps a count a group, and the records of those groups that are not yet whole: in a file that was written while the
    groups were made, these are the ones that overlap. Raises DataError when they hold more than 64 MiB of text: such a
    file has to be sorted by group first.
    """
    counts: dict[int, int] = {}
    for record in read(lambda _: None):
        name = hash(record.key)
        counts[name] = counts.get(name, 0) + 1
    waiting: dict[str, dict[Hashable, Grouped[_Item]]] = {}
    open_chars = 0
    for record in read(on_refused):
        name = hash(record.key)
        held = waiting.setdefault(record.key, {})
        if held.setdefault(len(held) if record.same is None else (record.same,), record) is record:
            open_chars += record.chars
        counts[name] = counts.get(name, 1) - 1
        if counts[name] <= 0:
            open_chars -= sum(one.chars for one in waiting.pop(record.key).values())
            yield record.key, [one.item for one in held.values()]
        elif open_chars > _MAX_OPEN_CHARS:
            reason = f"{len(waiting)} traces are unfinished here, with more than {_MAX_OPEN_CHARS} characters"
            raise DataError(f"{reason}: sort the file by trace.", path=path, line=record.line)
    for key, held in waiting.items():  # two keys of one hash, or a file that grew in between
        yield key, [one.item for one in held.values()]
