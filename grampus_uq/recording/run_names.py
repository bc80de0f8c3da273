"""Which file holds which session: names that no session id can turn into a path or into another session's file."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["SUFFIX", "file_name"]

SUFFIX: Final = ".jsonl"
_PLAIN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}", re.ASCII)
_OTHER: Final = re.compile(r"[^a-z0-9._-]+", re.ASCII)
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.ASCII)  # device names on Windows


def file_name(session_id: str) -> str:
    """Name of the file of a session: the id itself when it is plain, else a readable part, `~` and 128 bits of hash.

    Plain is lower-case letters, digits, `.`, `_` and `-`, at most 100, not starting with a dot: names that no file
    system folds, forbids or follows. A plain id has no `~`, so no two ids share a file.

    >>> file_name("run-17"), file_name("../../etc/passwd")
    ('run-17.jsonl', 'etc-passwd~3754d6cb3a38e1185e5b382d5f3ef3f1.jsonl')
    """
    if _PLAIN.fullmatch(session_id) and not _RESERVED.fullmatch(session_id):
        return session_id + SUFFIX
    digest = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    readable = _OTHER.sub("-", session_id[:200].lower()).strip("-._")[:60]
    return f"{readable}~{digest}{SUFFIX}"
