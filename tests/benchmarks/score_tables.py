"""Reads a table of step-wise verifier scores, plain or gzipped; a fault is named by path, line and field."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

from grampus_uq.errors import DataError
from grampus_uq.importers.opening import text_blocks

SOLVED = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Runs in order of first appearance: ids, the probability of each step (None where it is blank), whether solved."""

    ids: list[str]
    scores: list[list[float | None]]
    solved: list[bool]


def read_score_table(path: Path) -> ScoreTable:
    """Read the columns `uq_problem_idx`, `num_steps` (from 1), `judge_probability` and `solved`; others feed nothing.

    Rows may come in any order. Raises DataError for a table without rows, a missing column, a probability outside
    [0, 1], steps of a run that are not 1, 2, 3, ..., and a run that is both solved and not.
    """
    steps: dict[str, dict[int, float | None]] = {}
    outcomes: dict[str, bool] = {}
    rows = csv.DictReader(io.StringIO("".join(text_blocks(path)), newline=""))
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise DataError(f"is no table: {error}.", path=str(path), line=rows.line_num) from error
        if row is None:
            break
        _read_row(row, steps, outcomes, path, rows.line_num)
    if not steps:
        raise DataError("holds no row of scores.", path=str(path))
    for name, trace in steps.items():
        if sorted(trace) != list(range(1, len(trace) + 1)):
            raise DataError(f"steps of {name} are not 1..{len(trace)}", path=str(path), field="num_steps")
    return ScoreTable(
        ids=list(steps),
        scores=[[trace[step] for step in sorted(trace)] for trace in steps.values()],
        solved=list(outcomes.values()),
    )


def _read_row(
    row: dict[str, str], steps: dict[str, dict[int, float | None]], outcomes: dict[str, bool], path: Path, line: int
) -> None:
    def refused(field: str, rule: str) -> DataError:
        return DataError(f"{rule}. Got {row.get(field)!r:.60}.", path=str(path), line=line, field=field)

    name = row.get("uq_problem_idx")
    if not name:
        raise refused("uq_problem_idx", "must name a run")
    number = _number(row.get("num_steps"))
    if number is None or not number.is_integer():
        raise refused("num_steps", "must be a whole number")
    written = row.get("judge_probability")
    p = _number(written) if written else None
    if written is None or (p is None and written.strip().lower() not in ("", "nan")) or not 0.0 <= (p or 0.0) <= 1.0:
        raise refused("judge_probability", "must be a number in [0, 1], or blank")
    solved = SOLVED.get((row.get("solved") or "").strip().lower())
    if solved is None or outcomes.setdefault(name, solved) != solved:
        raise refused("solved", "must be one of True and False, the same all along")
    if number in steps.setdefault(name, {}):
        raise refused("num_steps", f"must not occur twice in {name}")
    steps[name][int(number)] = p


def _number(text: str | None) -> float | None:
    """The finite number that a text writes."""
    try:
        number = float(text or "nan")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
