"""A file that its readers see whole: the old one or the new one, never a part."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: str | os.PathLike[str], *, mode: int = 0o600, new: bool = False) -> Iterator[Path]:
    """Give an empty draft beside the file, which takes its place, and keeps its mode, at the end of the block.

    After an error nothing is left. `mode` is that of a new file: what was recorded is its owner's alone. `new`: raises
    FileExistsError in place of replacing a file.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    mode = target.stat().st_mode & 0o777 if target.exists() else mode
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield draft
        if new:
            os.link(draft, target)
        else:
            draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
