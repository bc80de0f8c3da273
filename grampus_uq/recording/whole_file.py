"""A file that its readers see whole: the old one or the new one, never a part."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    """An error that there is no more room names the file, as it does not by itself."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            error.filename = os.fspath(target)
        raise


@contextmanager
def whole_file(path: str | os.PathLike[str], *, mode: int = 0o600) -> Iterator[Path]:
    """Give an empty draft beside the file, which takes its place, and keeps its mode, at the end of the block.

    After an error nothing is left. `mode` is that of a new file: what was recorded is its owner's alone.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    mode = target.stat().st_mode & 0o777 if target.exists() else mode
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        with _naming(target):
            yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def place_new(content: bytes, target: Path, *, sync: bool = False) -> None:
    """Put a file at a free name, whole or not at all, readable by the owner only; `sync`: on the disk before that.

    Raises FileExistsError where the name is taken.
    """
    number, draft = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # others may write it too
    try:
        with _naming(target), os.fdopen(number, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        try:
            os.link(draft, target)  # unlike a rename it replaces nothing
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links: an empty file holds the name for a moment
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            os.replace(draft, target)
    finally:
        Path(draft).unlink(missing_ok=True)
