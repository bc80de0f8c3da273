"""Rows of a small CSV file with a header, each with its line."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from grampus_uq.errors import DataError

_LONGEST: Final = 2**20


def csv_rows(path: str | os.PathLike[str], columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yield `(line, row)` for each row of a CSV file in UTF-8 whose header has these columns; a missing cell is None.

    Raises DataError with path and line for a file that cannot be read, is not a CSV in UTF-8, lacks a column, names one
    twice, or has a row with more cells than columns: which cell is meant, and what a cut text said, is not known.
    """
    name, line = os.fspath(path), 1
    try:
        with Path(path).open(newline="", encoding="utf-8-sig", errors="surrogateescape") as stream:
            rows = csv.DictReader(_lines(stream), strict=True)
            for column in columns:
                if column not in (rows.fieldnames or ()):
                    found = ", ".join(rows.fieldnames or ()) or "none"
                    raise DataError(f"the column is missing; found {found:.200}.", path=name, line=1, field=column)
            twice = [one for one, count in Counter(rows.fieldnames).items() if one and count > 1]
            if twice:
                raise DataError("the column comes twice.", path=name, line=1, field=f"{twice[0]:.100}")
            line = rows.line_num + 1
            for row in rows:
                if any(row.get(None) or ()):
                    more = "has more cells than the header. (A comma in a text? Put the text in quotation marks.)"
                    raise DataError(more, path=name, line=rows.line_num)
                yield rows.line_num, row
                line = rows.line_num + 1
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}.", path=name) from error
    except (csv.Error, UnicodeEncodeError) as error:
        raise DataError(f"is not CSV in UTF-8: {error}.", path=name, line=line) from error


def _lines(stream: TextIO) -> Iterator[str]:
    """The lines of a file; one that is too long is never read whole, and one that is not UTF-8 is known as that."""
    while line := stream.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise csv.Error(f"a line of {_LONGEST} characters or more")
        line.encode()  # a byte that is not UTF-8 is a surrogate here
        yield line
