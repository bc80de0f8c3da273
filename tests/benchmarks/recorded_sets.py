"""Opens a set of recorded runs, a folder or an archive with `outcomes.jsonl`, and reads its lines; faults are named."""

from __future__ import annotations

import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grampus_uq.errors import DataError
from grampus_uq.importers.imported_records import records
from tests.archives import unpack


@contextmanager
def opened_set(path: Path) -> Iterator[Path]:
    """Yield the folder of a set: the one below `path` that holds `outcomes.jsonl`.

    Raises DataError for what is neither a folder nor a whole archive, or holds no outcomes.
    """
    with tempfile.TemporaryDirectory() as unpacked:
        if not path.is_dir():
            try:
                with tarfile.open(path) as archive:
                    unpack(archive, Path(unpacked))
            except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
                why = str(error).partition("\n")[0].rstrip(":.")
                raise DataError(f"is neither a folder nor a whole .tar.gz: {why}.", path=str(path)) from None
        folder = path if path.is_dir() else Path(unpacked)
        found = next(iter(sorted(folder.glob("**/outcomes.jsonl"))), None)
        if found is None:
            raise DataError("holds no outcomes.jsonl.", path=str(path))
        try:
            yield found.parent
        except DataError as error:  # named by the archive, which is still there when the error is read
            place = error.path.replace(unpacked, str(path))
            raise DataError(error.reason, path=place, line=error.line, field=error.field) from error


def lines(path: Path, needed: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, each with the needed fields; nothing where there is no file."""
    for element in records(path) if path.exists() and path.stat().st_size else ():
        for name in needed:
            if name not in element.value:
                raise element.error(name, "is missing.")
        yield element.value
