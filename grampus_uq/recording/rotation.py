"""Names the parts of a recording that was rotated, and finds those that follow a file.

A session's first part is its plain file, `run-1.jsonl`; the next are `run-1+0001.jsonl`, `run-1+0002.jsonl`, … No
session's own file has a `+` in its name. Nothing is ever renamed, so whoever writes or reads a part goes on doing so.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from grampus_uq.recording.run_names import SUFFIX

__all__ = ["follows", "latest_part", "next_part", "part_name", "with_later_parts"]

_PART: Final = re.compile(r"(.+)\+([0-9]{4,9})" + re.escape(SUFFIX))


def part_name(name: str, number: int) -> str:
    """The name of the n-th part after a session's plain file; the plain file's own name for 0.

    >>> part_name("run-1.jsonl", 2)
    'run-1+0002.jsonl'
    """
    return name if number == 0 else f"{name.removesuffix(SUFFIX)}+{number:04d}{SUFFIX}"


def next_part(name: str) -> str:
    """The name of the part behind this one.

    >>> next_part("run-1.jsonl"), next_part("run-1+0001.jsonl")
    ('run-1+0001.jsonl', 'run-1+0002.jsonl')
    """
    base, number = _taken_apart(name)
    return part_name(base, number + 1)


def follows(name: str, names: Container[str]) -> bool:
    """True when the file is a later part of one that is among the names: it is read with that one.

    >>> follows("run-1+0001.jsonl", {"run-1.jsonl"}), follows("run-1+0002.jsonl", {"run-1.jsonl"})
    (True, False)
    """
    base, number = _taken_apart(name)
    return number > 0 and part_name(base, number - 1) in names


def with_later_parts(path: Path) -> Iterator[Path]:
    """Yield the file, and the parts that follow it without a gap."""
    yield path
    if not path.name.endswith(SUFFIX):
        return
    base, number = _taken_apart(path.name)
    while (path := path.with_name(part_name(base, number := number + 1))).exists():
        yield path


def latest_part(path: Path) -> Path:
    """The last part of the recording that the file begins: what is appended goes there."""
    latest = path
    for part in with_later_parts(path):
        latest = part
    return latest


def _taken_apart(name: str) -> tuple[str, int]:
    found = _PART.fullmatch(name)
    return (name, 0) if found is None else (found[1] + SUFFIX, int(found[2]))
