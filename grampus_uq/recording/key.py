"""The key of a folder's hashes: made once, by whichever process comes first."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from grampus_uq.errors import DataError

__all__ = ["KEY_FILE", "folder_key"]

KEY_FILE: Final = ".hash-key"
_BYTES: Final = 32


def folder_key(folder: Path) -> bytes:
    """Return the key of the folder, 32 random bytes, readable by the owner only; make it when there is none.

    The key is written under another name and then linked, so that no process ever reads half a key, and two that start
    together agree. Raises DataError when the file does not hold 32 bytes.
    """
    path = folder / KEY_FILE
    if not path.exists():
        draft = folder / f"{KEY_FILE}.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, secrets.token_bytes(_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(draft, path)
        except FileExistsError:  # another process was first; its key counts
            pass
        finally:
            draft.unlink()
    key = path.read_bytes()
    if len(key) != _BYTES:
        raise DataError(f"must hold {_BYTES} bytes. Got {len(key)}.", path=os.fspath(path))
    return key
