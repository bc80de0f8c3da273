"""The files of a session: names that no session id can turn into a path, and the parts of a rotated recording.

A session's first part is its plain file, `run-1.jsonl`; the next are `run-1+0001.jsonl`, `run-1+0002.jsonl`, … No
session's own file has a `+` in its name. Nothing is ever renamed, so open files stay valid for writers and readers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from grampus_uq.records.values import sha256_of

SUFFIX: Final = ".jsonl"
_PLAIN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}", re.ASCII)
_OTHER: Final = re.compile(r"[^a-z0-9._-]+", re.ASCII)
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.ASCII)  # device names on Windows
_PART: Final = re.compile(r"(.+)\+([0-9]{4,9})" + re.escape(SUFFIX))


def file_name(session_id: str) -> str:
    """Name of the file of a session: the id itself when it is plain, else a readable part, `~` and 128 bits of hash.

    Plain is lower-case letters, digits, `.`, `_` and `-`, at most 100, not starting with a dot: names that no file
    system folds, forbids or follows. A plain id has no `~`, so no two ids share a file.

    >>> file_name("run-17"), file_name("../../etc/passwd")
    ('run-17.jsonl', 'etc-passwd~3754d6cb3a38e1185e5b382d5f3ef3f1.jsonl')
    """
    if _PLAIN.fullmatch(session_id) and not _RESERVED.fullmatch(session_id):
        return session_id + SUFFIX
    digest = sha256_of(session_id)[:32]
    readable = _OTHER.sub("-", session_id[:200].lower()).strip("-._")[:60]
    return f"{readable}~{digest}{SUFFIX}"


def _part_name(name: str, number: int) -> str:
    """The name of the n-th part after a session's plain file; the plain file's own name for 0.

    >>> _part_name("run-1.jsonl", 2)
    'run-1+0002.jsonl'
    """
    return name if number == 0 else f"{name.removesuffix(SUFFIX)}+{number:04d}{SUFFIX}"


def next_part(name: str) -> str:
    """The name of the part behind this one.

    >>> next_part("run-1.jsonl"), next_part("run-1+0001.jsonl")
    ('run-1+0001.jsonl', 'run-1+0002.jsonl')
    """
    base, number = _split_name(name)
    return _part_name(base, number + 1)


def follows(path: Path) -> bool:
    """True when the file is a later part of one that is beside it: it is read with that one."""
    base, number = _split_name(path.name)
    return number > 0 and os.path.exists(path.with_name(_part_name(base, number - 1)))


def with_later_parts(path: Path) -> Iterator[Path]:
    """Yield the file, and the parts that follow it without a gap."""
    yield path
    if not path.name.endswith(SUFFIX):
        return
    base, number = _split_name(path.name)
    while (path := path.with_name(_part_name(base, number := number + 1))).is_file():
        yield path


def latest_part(path: Path) -> Path:
    """The last part of the recording that the file begins: what is appended goes there."""
    latest = path
    for part in with_later_parts(path):
        latest = part
    return latest


def _split_name(name: str) -> tuple[str, int]:
    found = _PART.fullmatch(name)
    return (name, 0) if found is None else (found[1] + SUFFIX, int(found[2]))
