"""The key of a folder's hashes: made once, by whichever process comes first."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Final

from grampus_uq.errors import DataError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, where a rename onto an existing file fails by itself
    fcntl = None

__all__ = ["KEY_FILE", "folder_key"]

KEY_FILE: Final = ".hash-key"
_BYTES: Final = 32


def folder_key(folder: Path) -> bytes:
    """Return the key of the folder, 32 random bytes, readable by the owner only; make it when there is none.

    The key is written under another name and renamed, so that no process reads half a key, and one that is killed
    leaves at most a key that nothing was hashed with. Raises DataError when the file does not hold 32 bytes.
    """
    path = folder / KEY_FILE
    if not path.exists():
        descriptor = os.open(folder, os.O_RDONLY) if fcntl is not None else None
        try:
            if descriptor is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not path.exists():
                _make(path)
        finally:
            if descriptor is not None:
                os.close(descriptor)
    key = path.read_bytes()
    if len(key) != _BYTES:
        raise DataError(f"must hold {_BYTES} bytes. Got {len(key)}.", path=os.fspath(path))
    return key


def _make(path: Path) -> None:
    draft = path.with_name(f"{KEY_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        draft.rename(path)
    except FileExistsError:  # Windows: another process was first; its key counts
        draft.unlink()
