"""A file that its readers see whole: the old one or the new one, never a part."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a draft beside the file, which takes its place at the end of the block; after an error nothing is left."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
