"""Tables of step-wise verifier scores, one row a step: CSV, gzipped CSV or Parquet, into arrays."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.importers.opening import text_blocks
from grampus_uq.recording.packed import is_packed, is_parquet, pyarrow_for

_BATCH: Final = 2_000  # rows of a few small objects each: more of them fall out of the processor cache
_MAX_LINE: Final = 2**24
_ENDINGS: Final = (".csv", ".csv.gz", ".parquet", ".pq")
_SOLVED: Final = {
    "True": True, "true": True, "TRUE": True, "1": True, "1.0": True,
    "False": False, "false": False, "FALSE": False, "0": False, "0.0": False,
}  # fmt: skip
_Cells = tuple[Sequence[int], list[Sequence[Any]]]
"""Some rows: the line on which each begins, and the cells of each wanted column."""


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
class ScoreTable:
    """`scores[starts[i]:starts[i + 1]]` are the scores of run `ids[i]`, step 1 first; `solved[i]` is its outcome.

    `scores` is float64 of shape (rows,), in [0, 1] unless another domain was read, higher is better, NaN where a score
    was missing and that was allowed; `starts` is int64 of shape (runs + 1,); `solved` is bool of shape (runs,).
    """

    ids: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    solved: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of steps of each run, at least 1."""
        return np.diff(self.starts)


_DEFAULT: Final = ScoreColumns()


def is_score_table(path: str) -> bool:
    """Return True for a table of scores (CSV, gzipped CSV or Parquet), False for recordings."""
    place = Path(path)
    return path.lower().endswith(_ENDINGS) and not place.is_dir() and not is_packed(place)


def read_scores(
    path: str | os.PathLike[str],
    *,
    columns: ScoreColumns = _DEFAULT,
    domain: tuple[float, float] | None = (0.0, 1.0),
    allow_missing: bool = False,
) -> ScoreTable:
    """Read a whole table of scores. The order of its rows does not matter: runs come sorted by id, steps from 1.

    `domain` are the least and the greatest score that is accepted, None accepts any finite number. With `allow_missing`
    an empty score is NaN. Holds 33 bytes a row and the ids.

    Raises DataError with path, line and column (in Parquet the number of the row, from 1) for a cell that is missing or
    of the wrong type or out of its domain; for steps that do not count 1, 2, 3 without a gap or a repetition; for a run
    that is solved in one row and not in another; for anything that is no table in UTF-8.
    """
    name = os.fspath(path)
    names = (columns.run, columns.step, columns.score, columns.solved)
    score = partial(_score, domain=domain, allow_missing=allow_missing)
    converters: tuple[Callable[[Any], Any], ...] = (_run_id, _step, score, _is_solved)
    codes_of: dict[str, int] = {}
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    for lines, cells in _parquet_cells(name, names) if is_parquet(Path(name)) else _csv_cells(name, names):
        runs, steps, scores, solved = (
            _converted(given, convert, name, lines, column)
            for given, convert, column in zip(cells, converters, names, strict=True)
        )
        codes = [codes_of.setdefault(run, len(codes_of)) for run in runs]
        parts.append(
            (
                np.array(codes, dtype=np.int64),
                np.array(steps, dtype=np.int64),
                np.array(scores, dtype=np.float64),
                np.array(solved, dtype=np.bool_),
                np.array(lines, dtype=np.int64),
            )
        )
    if not parts:
        empty = np.empty(0)
        return ScoreTable(ids=(), starts=np.zeros(1, dtype=np.int64), scores=empty, solved=empty.astype(np.bool_))
    return _table(name, columns, codes_of, *(np.concatenate(part) for part in zip(*parts, strict=True)))


def _table(
    path: str,
    columns: ScoreColumns,
    codes_of: dict[str, int],
    codes: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float64],
    solved: npt.NDArray[np.bool_],
    lines: npt.NDArray[np.int64],
) -> ScoreTable:
    """Sort the rows by run and step, and check that steps count from 1 and that a run has one outcome."""
    ids = sorted(codes_of)
    rank = np.empty(len(ids), dtype=np.int64)
    rank[[codes_of[run] for run in ids]] = np.arange(len(ids))
    order = np.lexsort((steps, rank[codes]))  # stable: of two equal steps the later row comes second
    ranks, steps, solved, lines = rank[codes][order], steps[order], solved[order], lines[order]
    starts = np.searchsorted(ranks, np.arange(len(ids) + 1)).astype(np.int64)
    expected = np.arange(len(steps)) - starts[ranks] + 1
    wrong = steps != expected
    if wrong.any():
        at = int(wrong.argmax())
        run, step = ids[ranks[at]], int(steps[at])
        if expected[at] == 1:
            reason = f"run {run!r:.80} begins with step {step}; steps count from 1."
        elif step == steps[at - 1]:
            reason = f"run {run!r:.80} has step {step} twice."
        else:
            reason = f"run {run!r:.80} has no step {int(expected[at])}, but a step {step}."
        raise DataError(reason, path=path, line=int(lines[at]), field=columns.step)
    of_run = solved[starts[:-1]]
    differs = solved != of_run[ranks]
    if differs.any():
        at = int(differs.argmax())
        reason = f"run {ids[ranks[at]]!r:.80} is {bool(of_run[ranks[at]])} in an earlier step, {bool(solved[at])} here."
        raise DataError(reason, path=path, line=int(lines[at]), field=columns.solved)
    return ScoreTable(ids=tuple(ids), starts=starts, scores=scores[order], solved=of_run)


# -- cells --


def _converted(
    cells: Sequence[Any], convert: Callable[[Any], Any], path: str, lines: Sequence[int], column: str
) -> list[Any]:
    found: list[Any] = []
    try:
        found.extend(map(convert, cells))  # on an error it holds the cells before
    except ValueError as error:
        raise DataError(str(error), path=path, line=lines[len(found)], field=column) from None
    return found


def _is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _wrong(cell: Any, rule: str) -> ValueError:
    return ValueError("is missing." if _is_empty(cell) else f"must {rule}. Got {cell!r:.50}.")


def _run_id(cell: Any) -> str:
    if _is_empty(cell):
        raise _wrong(cell, "be an id")
    return str(cell)


def _step(cell: Any) -> int:
    """A whole number from 1; "3.0" is one, as tables write it that once had gaps."""
    try:
        exact = isinstance(cell, int) or (isinstance(cell, str) and cell.isdecimal())
        value = int(cell) if exact else float(cell)
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        raise _wrong(cell, "be a whole number") from None
    if number != value:
        raise _wrong(cell, "be a whole number")
    if not 1 <= number < 2**62:
        raise _wrong(cell, "count from 1")
    return number


def _score(cell: Any, *, domain: tuple[float, float] | None, allow_missing: bool) -> float:
    if allow_missing and _is_empty(cell):
        return float("nan")
    try:
        score = float(cell)
    except (ValueError, TypeError):
        raise _wrong(cell, "be a number") from None
    if allow_missing and score != score:
        return score
    low, high = (-np.inf, np.inf) if domain is None else domain
    if not (low <= score <= high and abs(score) < np.inf):
        raise _wrong(cell, "be a finite number" if domain is None else f"be a number in [{low:g}, {high:g}]")
    return score


def _is_solved(cell: Any) -> bool:
    found = _SOLVED.get(cell) if isinstance(cell, str) else bool(cell) if cell in (0, 1) else None
    if found is None:
        raise _wrong(cell, "be True or False, or 1 or 0")
    return found


# -- files --


def _csv_cells(path: str, wanted: Sequence[str]) -> Iterator[_Cells]:
    reader = csv.reader(chain.from_iterable(_line_blocks(path)), strict=True)
    header: list[str] = []
    places: list[int] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    begin = 1
    try:
        for row in reader:
            if row and not places:
                header, places = row, [_place(row, column, path) for column in wanted]
            elif row:
                if len(row) != len(header):
                    field = header[len(row)] if len(row) < len(header) else ""
                    reason = f"has {len(row)} cells; the header has {len(header)}."
                    raise DataError(reason, path=path, line=begin, field=field)
                rows.append(row)
                lines.append(begin)
                if len(rows) == _BATCH:
                    yield lines, [[row[place] for row in rows] for place in places]
                    rows, lines = [], []
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"is not CSV: {error}.", path=path, line=reader.line_num) from error
    if not places:
        _place([], wanted[0], path)
    if rows:
        yield lines, [[row[place] for row in rows] for place in places]


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


def _place(header: list[str], column: str, path: str) -> int:
    if header.count(column) != 1:
        problem = "comes twice in" if column in header else "is missing from"
        reason = f"the column {problem} the header: {', '.join(header)!s:.300}."
        raise DataError(reason, path=path, line=1, field=column)
    return header.index(column)


def _parquet_cells(path: str, wanted: Sequence[str]) -> Iterator[_Cells]:
    pa, pq = pyarrow_for("Reading Parquet")
    first = 1
    try:
        with pq.ParquetFile(path) as file:
            for column in wanted:
                _place(file.schema_arrow.names, column, path)
            for batch in file.iter_batches(batch_size=65_536, columns=list(wanted)):
                yield range(first, first + len(batch)), [batch.column(column).to_pylist() for column in wanted]
                first += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"is not Parquet, or damaged: {error!s:.200}.", path=path) from error
