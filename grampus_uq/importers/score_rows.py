"""Rows of a table of scores from CSV or Parquet, a batch at a time, as columns; any wrong cell by row and column."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError, DataError, MissingDependencyError
from grampus_uq.importers.opening import text_blocks

__all__ = ["Batch", "ScoreColumns", "ScoreFile"]

_BATCH: Final = 2_000  # rows of a few small objects each: more of them fall out of the processor cache
_MAX_LINE: Final = 2**24
_PARQUET: Final = b"PAR1"
_SOLVED: Final = {
    "True": True, "true": True, "TRUE": True, "1": True, "1.0": True,
    "False": False, "false": False, "FALSE": False, "0": False, "0.0": False,
}  # fmt: skip
_IS_SPACE: Final = str.isspace


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreColumns:
    """Names of the columns: which run, which step of it (from 1), the step's score, whether the run was right."""

    run: str = "uq_problem_idx"
    step: str = "num_steps"
    score: str = "judge_probability"
    solved: str = "solved"

    def __post_init__(self) -> None:
        if len({self.run, self.step, self.score, self.solved}) < 4:
            raise ConfigurationError.of("columns", "ScoreColumns", "four different names", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows as columns; `first` is the number of the first of them, from 0."""

    first: int
    runs: list[str]
    steps: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    solved: npt.NDArray[np.bool_]


class ScoreFile:
    """A file of scores, its columns, and the rules for its cells."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: ScoreColumns,
        *,
        domain: tuple[float, float] | None,
        allow_missing: bool,
    ) -> None:
        self.path = os.fspath(path)
        self.columns = columns
        self._domain = domain
        self._allow_missing = allow_missing

    def batches(self) -> Iterator[Batch]:
        """Yield all rows. Raises DataError with path, line (in Parquet: the row, from 1) and column."""
        first = 0
        for runs, steps, scores, solved in self._cells():
            yield Batch(
                first=first,
                runs=self._runs(runs, first),
                steps=self._steps(steps, first),
                scores=self._scores(scores, first),
                solved=self._solved(solved, first),
            )
            first += len(runs)

    def error(self, row: int, column: str, reason: str) -> DataError:
        """The error about a cell; a CSV file is read again to find the line on which the row begins."""
        line = row + 1
        if not self._is_parquet():
            line = next(islice(_numbered_rows(self.path), row + 1, None))[0]
        return DataError(reason, path=self.path, line=line, field=column)

    def _cells(self) -> Iterator[tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]]]:
        wanted = (self.columns.run, self.columns.step, self.columns.score, self.columns.solved)
        if self._is_parquet():
            yield from _parquet_cells(self.path, wanted)
        else:
            yield from _csv_cells(self.path, wanted)

    def _is_parquet(self) -> bool:
        try:
            with Path(self.path).open("rb") as stream:
                return stream.read(len(_PARQUET)) == _PARQUET
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}.", path=self.path) from error

    def _column(self, cells: Sequence[Any], convert: Callable[[Any], Any], column: str, first: int) -> list[Any]:
        try:
            return list(map(convert, cells))
        except ValueError:
            for index, cell in enumerate(cells):  # which one?
                try:
                    convert(cell)
                except ValueError as error:
                    raise self.error(first + index, column, str(error)) from None
            raise

    # Each column has a quick way for the cells that nearly every table has, and `_column` for all others.

    def _runs(self, cells: Sequence[Any], first: int) -> list[str]:
        if isinstance(cells[0], str) and all(cells) and not any(map(_IS_SPACE, cells)):
            return list(cells)
        return self._column(cells, _run_id, self.columns.run, first)

    def _steps(self, cells: Sequence[Any], first: int) -> npt.NDArray[np.int64]:
        try:
            if type(cells[0]) is str:
                steps = np.fromiter(map(int, cells), dtype=np.int64, count=len(cells))
                if steps.min() >= 1:
                    return steps
        except (ValueError, TypeError, OverflowError):
            pass  # some cell is no plain whole number
        return np.array(self._column(cells, _step, self.columns.step, first), dtype=np.int64)

    def _solved(self, cells: Sequence[Any], first: int) -> npt.NDArray[np.bool_]:
        try:
            return np.fromiter(map(_SOLVED.__getitem__, cells), dtype=np.bool_, count=len(cells))
        except (KeyError, TypeError):
            return np.array(self._column(cells, _is_solved, self.columns.solved, first), dtype=np.bool_)

    def _scores(self, cells: Sequence[Any], first: int) -> npt.NDArray[np.float64]:
        convert = _score_or_nan if self._allow_missing else float
        try:
            scores = np.fromiter(map(convert, cells), dtype=np.float64, count=len(cells))
        except (ValueError, TypeError):
            found = self._column(cells, self._checked_score, self.columns.score, first)
            scores = np.array(found, dtype=np.float64)
        low, high = self._domain if self._domain is not None else (-np.inf, np.inf)
        wrong = ~((scores >= low) & (scores <= high) & np.isfinite(scores))
        if self._allow_missing:
            wrong &= ~np.isnan(scores)
        if wrong.any():
            index = int(wrong.argmax())
            rule = "a finite number" if self._domain is None else f"a number in [{low:g}, {high:g}]"
            raise self.error(first + index, self.columns.score, f"must be {rule}. Got {cells[index]!r:.50}.")
        return scores

    def _checked_score(self, cell: Any) -> float:
        try:
            return _score_or_nan(cell) if self._allow_missing else float(cell)
        except (ValueError, TypeError):
            raise ValueError("is missing." if _is_empty(cell) else f"must be a number. Got {cell!r:.50}.") from None


def _is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _score_or_nan(cell: Any) -> float:
    return float("nan") if _is_empty(cell) else float(cell)


def _run_id(cell: Any) -> str:
    if _is_empty(cell):
        raise ValueError("is missing.")
    return str(cell)


def _step(cell: Any) -> int:
    """A whole number from 1; "3.0" is one, as tables write it that once had gaps."""
    try:
        number = int(cell)
        if type(cell) is not str and number != cell:
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        try:
            value = float(cell)
            number = int(value)
        except (ValueError, TypeError, OverflowError):
            reason = "is missing." if _is_empty(cell) else f"must be a whole number. Got {cell!r:.50}."
            raise ValueError(reason) from None
        if value != number:
            raise ValueError(f"must be a whole number. Got {cell!r:.50}.") from None
    if not 1 <= number < 2**62:
        raise ValueError(f"must count from 1. Got {cell!r:.50}.")
    return number


def _is_solved(cell: Any) -> bool:
    found = _SOLVED.get(cell) if isinstance(cell, str) else bool(cell) if cell in (0, 1) else None
    if found is None:
        raise ValueError("is missing." if _is_empty(cell) else f"must be True or False, or 1 or 0. Got {cell!r:.50}.")
    return found


def _lines(path: str) -> Iterator[str]:
    return chain.from_iterable(_line_blocks(path))


def _line_blocks(path: str) -> Iterator[Iterable[str]]:
    """The lines of a text, many at a time; only a newline ends a line (a quoted cell may hold other separators)."""
    rest, number = "", 1
    for block in text_blocks(path):
        text = rest + block
        cut = text.rfind("\n") + 1
        if cut:
            yield io.StringIO(text[:cut], newline="\n")
            number += text.count("\n")
        rest = text[cut:]
        if len(rest) > _MAX_LINE:
            raise DataError(f"is longer than {_MAX_LINE} characters.", path=path, line=number)
    if rest:
        yield [rest]


def _numbered_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, the header among them, each with the line on which it begins."""
    reader = csv.reader(_lines(path), strict=True)
    begin = 1
    try:
        for row in reader:
            if row:
                yield begin, row
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"is not CSV: {error}.", path=path, line=begin) from error


def _csv_cells(path: str, wanted: Sequence[str]) -> Iterator[tuple[list[str], list[str], list[str], list[str]]]:
    reader = csv.reader(_lines(path), strict=True)
    rows = filter(None, reader)
    try:
        header = next(rows, [])
        places = [_place(header, column, path) for column in wanted]
        row_number = 0
        while batch := list(islice(rows, _BATCH)):
            if set(map(len, batch)) != {len(header)}:
                _uneven(path, batch, header, row_number)
            run, step, score, solved = ([row[place] for row in batch] for place in places)
            yield run, step, score, solved
            row_number += len(batch)
    except csv.Error as error:
        raise DataError(f"is not CSV: {error}.", path=path, line=reader.line_num) from error


def _place(header: list[str], column: str, path: str) -> int:
    if header.count(column) != 1:
        problem = "comes twice in" if column in header else "is missing from"
        reason = f"the column {problem} the header: {', '.join(header)!s:.300}."
        raise DataError(reason, path=path, line=1, field=column)
    return header.index(column)


def _uneven(path: str, batch: list[list[str]], header: list[str], first: int) -> None:
    index = next(index for index, row in enumerate(batch) if len(row) != len(header))
    line, row = next(islice(_numbered_rows(path), first + index + 1, None))
    field = header[len(row)] if len(row) < len(header) else ""
    raise DataError(f"has {len(row)} cells; the header has {len(header)}.", path=path, line=line, field=field)


def _parquet_cells(path: str, wanted: Sequence[str]) -> Iterator[tuple[list[Any], list[Any], list[Any], list[Any]]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError.of("pyarrow", "parquet", "Reading Parquet") from error
    try:
        with pq.ParquetFile(path) as file:
            for column in wanted:
                _place(file.schema_arrow.names, column, path)
            for batch in file.iter_batches(batch_size=65_536, columns=list(wanted)):
                run, step, score, solved = (batch.column(column).to_pylist() for column in wanted)
                yield run, step, score, solved
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"is not Parquet, or damaged: {error!s:.200}.", path=path) from error
