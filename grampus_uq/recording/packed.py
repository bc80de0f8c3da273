"""Many recordings in few Parquet files: every line as it was written, whole runs in each row group.

A packed file has a row an event: `session_id`, `type`, and `line`, the very bytes of the recording format. So nothing
is lost or rounded, every reader of recordings reads it, and a row group is a part that one worker can take alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from grampus_uq.errors import DataError, MissingDependencyError

PACKED_SUFFIX: Final = ".parquet"
_GROUP_BYTES: Final = 8 * 2**20
_MAGIC: Final = b"PAR1"
_KEY: Final = b"grampus_uq.recording"
_VERSION: Final = b"1"
_TYPE: Final = re.compile(rb'"type":"([a-z]+)"')
_ROWS: Final = 512  # lines of up to 16 MiB: few at a time


def is_packed(path: Path) -> bool:
    """Say whether a file is a packed recording, and not a table or lines. Raises DataError for damaged Parquet."""
    if not is_parquet(path):
        return False
    with _opened(path) as file:
        return bool((file.metadata.metadata or {}).get(_KEY) == _VERSION)


def is_parquet(path: Path) -> bool:
    """Say whether a file begins as Parquet does; False for one that cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def row_groups(path: Path) -> list[int]:
    """Return the size in bytes, unpacked, of each row group. Raises DataError when the file is damaged."""
    with _opened(path) as file:
        return [int(file.metadata.row_group(number).total_byte_size) for number in range(file.num_row_groups)]


def packed_lines(path: Path, groups: Sequence[int] | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield `(number of the row from 1, line)`; of these row groups, by default of all. Raises DataError."""
    pyarrow, _ = pyarrow_for("Reading packed recordings")
    name = os.fspath(path)
    with _opened(path) as file:
        if (file.metadata.metadata or {}).get(_KEY) != _VERSION:
            raise DataError("is Parquet but not a packed recording (a table of steps?).", path=name)
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        for group in range(len(sizes)) if groups is None else groups:
            number = sum(sizes[:group])
            try:
                for batch in file.iter_batches(batch_size=_ROWS, row_groups=[group], columns=["line"]):
                    for line in batch.column(0):
                        number += 1
                        data = line.as_py()
                        if data is None:
                            raise DataError("is missing.", path=name, line=number, field="line")
                        yield number, data
            except (pyarrow.ArrowException, OSError) as error:
                raise DataError(f"is damaged: {error!s:.200}.", path=name, line=number + 1) from error


class PackedWriter:
    """Writes runs, one after the other, into one packed file."""

    def __init__(self, path: Path) -> None:
        pyarrow, parquet = pyarrow_for("Packing recordings")
        self._pyarrow = pyarrow
        words = pyarrow.dictionary(pyarrow.int8(), pyarrow.string())
        columns = [("session_id", pyarrow.string()), ("type", words), ("line", pyarrow.binary())]
        self._schema = pyarrow.schema(columns, metadata={_KEY: _VERSION})
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: tuple[list[str], list[str], list[bytes]] = ([], [], [])
        self._bytes = 0

    def write(self, session_id: str, lines: Iterable[bytes]) -> None:
        """Add the lines of one run; they never cross a row group."""
        for line in lines:
            kind = _TYPE.search(line)
            self._rows[0].append(session_id)
            self._rows[1].append(kind[1].decode() if kind else "")
            self._rows[2].append(line)
            self._bytes += len(line)
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Complete the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows[0]:
            self._writer.write_table(self._pyarrow.table(list(self._rows), schema=self._schema))
        self._rows, self._bytes = ([], [], []), 0


def _opened(path: Path) -> Any:
    pyarrow, parquet = pyarrow_for("Reading packed recordings")
    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError, MemoryError) as error:
        raise DataError(f"is not Parquet, or damaged: {error!s:.200}.", path=os.fspath(path)) from error


def pyarrow_for(purpose: str) -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`; without them MissingDependencyError names the purpose."""
    with MissingDependencyError.unless("pyarrow", "parquet", purpose):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet
