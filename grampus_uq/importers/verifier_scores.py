"""Tables of step-wise verifier scores, one row a step: CSV, gzipped CSV or Parquet, into arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from grampus_uq.importers.score_rows import Batch, ScoreColumns, ScoreFile
from grampus_uq.importers.score_table import ScoreTable

__all__ = ["ScoreColumns", "ScoreTable", "read_scores", "stream_scores"]

_DEFAULT = ScoreColumns()


def read_scores(
    path: str | os.PathLike[str],
    *,
    columns: ScoreColumns = _DEFAULT,
    domain: tuple[float, float] | None = (0.0, 1.0),
    allow_missing: bool = False,
) -> ScoreTable:
    """Read a whole table of scores. The order of its rows does not matter: runs come sorted by id, steps from 1.

    `domain` are the least and the greatest score that is accepted, None accepts any finite number. With `allow_missing`
    an empty score is NaN. Holds 25 bytes a row and the ids.

    Raises DataError with path, line and column (in Parquet the number of the row, from 1) for a cell that is missing or
    of the wrong type or out of its domain; for steps that do not count 1, 2, 3 without a gap or a repetition; for a run
    that is solved in one row and not in another; for anything that is no table in UTF-8.
    """
    file = ScoreFile(path, columns, domain=domain, allow_missing=allow_missing)
    codes_of: dict[str, int] = {}
    codes: list[npt.NDArray[np.int64]] = []
    batches: list[Batch] = []
    for batch in file.batches():
        for run in dict.fromkeys(batch.runs):
            codes_of.setdefault(run, len(codes_of))
        codes.append(np.fromiter(map(codes_of.__getitem__, batch.runs), np.int64, len(batch.runs)))
        batch.runs.clear()
        batches.append(batch)
    ids = sorted(codes_of)
    rank = np.empty(len(ids), dtype=np.int64)
    rank[[codes_of[run] for run in ids]] = np.arange(len(ids))
    ranks = rank[np.concatenate(codes)] if codes else np.empty(0, dtype=np.int64)
    return _table(file, tuple(ids), ranks, batches, 0)


def stream_scores(
    path: str | os.PathLike[str],
    *,
    columns: ScoreColumns = _DEFAULT,
    domain: tuple[float, float] | None = (0.0, 1.0),
    allow_missing: bool = False,
) -> Iterator[ScoreTable]:
    """Yield a table of scores part by part, in the order of the file: for files larger than memory.

    Each part holds whole runs, some thousand rows. The rows of a run have to be adjacent. What is kept throughout is a
    number for every run. Raises DataError as `read_scores` does, and when a run goes on after another one.
    """
    file = ScoreFile(path, columns, domain=domain, allow_missing=allow_missing)
    seen: set[int] = set()
    held: Batch | None = None
    for batch in file.batches():
        held = batch if held is None else _joined(held, batch)
        last = held.runs[-1]
        cut = len(held.runs) - 1
        while cut > 0 and held.runs[cut - 1] == last:
            cut -= 1
        if cut:
            yield _part(file, _sliced(held, 0, cut), seen)
            held = _sliced(held, cut, len(held.runs))
    if held is not None:
        yield _part(file, held, seen)


def _part(file: ScoreFile, batch: Batch, seen: set[int]) -> ScoreTable:
    """The table of a batch of whole runs, in the order of the file."""
    ids: list[str] = []
    codes = np.empty(len(batch.runs), dtype=np.int64)
    previous = None
    for index, run in enumerate(batch.runs):
        if run != previous:
            if hash(run) in seen:
                raise file.error(batch.first + index, file.columns.run, f"{run!r:.80} goes on after another run.")
            seen.add(hash(run))
            ids.append(run)
            previous = run
        codes[index] = len(ids) - 1
    return _table(file, tuple(ids), codes, [batch], batch.first)


def _table(
    file: ScoreFile, ids: tuple[str, ...], codes: npt.NDArray[np.int64], batches: list[Batch], first: int
) -> ScoreTable:
    """Sort the rows by run and step, check them, and drop what is no longer needed."""
    empty = Batch(first=0, runs=[], steps=np.empty(0, np.int64), scores=np.empty(0), solved=np.empty(0, np.bool_))
    parts = batches or [empty]
    steps = np.concatenate([batch.steps for batch in parts])
    scores = np.concatenate([batch.scores for batch in parts])
    solved = np.concatenate([batch.solved for batch in parts])
    order = np.lexsort((steps, codes))  # stable: of two equal steps the later row comes second
    codes, steps, solved = codes[order], steps[order], solved[order]
    starts = np.searchsorted(codes, np.arange(len(ids) + 1)).astype(np.int64)
    expected = np.arange(len(steps)) - starts[codes] + 1
    _check(file, ids, codes, steps, expected, order + first)
    of_run = solved[starts[:-1]]
    differs = solved != of_run[codes]
    if differs.any():
        at = int(differs.argmax())
        reason = f"run {ids[codes[at]]!r:.80} is {bool(of_run[codes[at]])} in an earlier step, {bool(solved[at])} here."
        raise file.error(int(order[at]) + first, file.columns.solved, reason)
    return ScoreTable(ids=ids, starts=starts, scores=scores[order], solved=of_run)


def _check(
    file: ScoreFile,
    ids: tuple[str, ...],
    codes: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64],
    expected: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> None:
    wrong = steps != expected
    if not wrong.any():
        return
    at = int(wrong.argmax())
    run, step = ids[codes[at]], int(steps[at])
    if expected[at] == 1:
        reason = f"run {run!r:.80} begins with step {step}; steps count from 1."
    elif step == steps[at - 1]:
        reason = f"run {run!r:.80} has step {step} twice."
    else:
        reason = f"run {run!r:.80} has no step {int(expected[at])}, but a step {step}."
    raise file.error(int(rows[at]), file.columns.step, reason)


def _joined(one: Batch, other: Batch) -> Batch:
    return Batch(
        first=one.first,
        runs=one.runs + other.runs,
        steps=np.concatenate([one.steps, other.steps]),
        scores=np.concatenate([one.scores, other.scores]),
        solved=np.concatenate([one.solved, other.solved]),
    )


def _sliced(batch: Batch, start: int, stop: int) -> Batch:
    return Batch(
        first=batch.first + start,
        runs=batch.runs[start:stop],
        steps=batch.steps[start:stop],
        scores=batch.scores[start:stop],
        solved=batch.solved[start:stop],
    )
