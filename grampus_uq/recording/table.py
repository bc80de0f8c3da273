"""Recordings as one flat table, a row a step: for notebooks, spreadsheets and anything that is not this package."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from grampus_uq.errors import ConfigurationError
from grampus_uq.recording.packed import pyarrow_for
from grampus_uq.recording.runs import Paths, Refused, Run, runs
from grampus_uq.recording.whole_file import whole_file
from grampus_uq.records.events import StepEvent

TableForm = Literal["csv", "parquet"]


def _was_read(event: StepEvent) -> bool:
    return any(reading.value is not None for reading in event.readings)


def _sum(costs: Iterable[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


TABLE_COLUMNS: Final[dict[str, tuple[type, Callable[[Run, StepEvent], Any]]]] = {
    "session_id": (str, lambda run, e: run.session_id),
    "agent_id": (str, lambda run, e: e.agent_id),
    "model": (str, lambda run, e: run.start and run.start.model),
    "profile_fingerprint": (str, lambda run, e: run.start and run.start.profile_fingerprint),
    "index": (int, lambda run, e: e.assessment.index),
    "step_id": (str, lambda run, e: e.step.step_id),
    "step_type": (str, lambda run, e: e.step.kind),
    "time_s": (float, lambda run, e: e.step.time_s),
    "tool_name": (str, lambda run, e: e.step.tool_name),
    "effect": (str, lambda run, e: e.step.effect and e.step.effect.value),
    "proposed_calls": (int, lambda run, e: len(e.step.tool_calls)),
    "fused_confidence": (float, lambda run, e: e.assessment.fused_confidence if _was_read(e) else None),
    "propagated_confidence": (float, lambda run, e: e.assessment.propagated_confidence),
    "p_success": (float, lambda run, e: e.assessment.p_success),
    "trajectory_risk": (float, lambda run, e: e.assessment.trajectory_risk),
    "log_e_value": (float, lambda run, e: e.assessment.log_e_value),
    "level": (str, lambda run, e: e.assessment.level.value),
    "action": (str, lambda run, e: e.assessment.action.value),
    "advisory_action": (str, lambda run, e: e.assessment.advisory_action and e.assessment.advisory_action.value),
    "rule": (str, lambda run, e: e.assessment.rule),
    "missing_reason": (str, lambda run, e: e.assessment.missing_reason),
    "monitor_calls": (int, lambda run, e: sum(x.calls for x in e.readings)),
    "monitor_tokens": (int, lambda run, e: sum(x.input_tokens + x.output_tokens for x in e.readings)),
    "monitor_cost_usd": (float, lambda run, e: _sum(x.cost_usd for x in e.readings)),
    "monitor_s": (float, lambda run, e: (e.ended_ns - e.started_ns) / 1e9),
    "agent_tokens": (int, lambda run, e: e.step.input_tokens + e.step.output_tokens),
    "success": (bool, lambda run, e: run.outcome and run.outcome.success),
    "stop_reason": (str, lambda run, e: run.outcome and run.outcome.stop_reason.value),
    "labelled_by": (str, lambda run, e: run.outcome and run.outcome.labelled_by),
    "touched": (bool, lambda run, e: run.touched),
    "release_probability": (float, lambda run, e: run.start and run.start.release_probability),
}
"""The fixed columns by name: type, and value at a step of a run. A column `reading_<source>` a signal follows."""

_BATCH: Final = 20_000
_FORMULA: Final = re.compile(r"[\t\r\n]|\s*[=+@\uff1d\uff0b\uff0d\uff20-]")  # in full width too


def reading_columns(
    paths: Paths, *, on_run: Callable[[Run], None] | None = None, on_refused: Refused | None = None
) -> tuple[str, ...]:
    """Name the sources of all readings under the paths, sorted, as columns of the table."""
    sources: set[str] = set()
    for run in runs(paths, on_refused=on_refused):
        sources.update(reading.source for step in run.steps for reading in step.readings)
        if on_run is not None:
            on_run(run)
    return tuple(f"reading_{source}" for source in sorted(sources))


def step_rows(
    paths: Paths, *, on_run: Callable[[Run], None] | None = None, on_refused: Refused | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a flat row for each step; outcome and other facts of the run are repeated on each of its steps.

    A reading without a value is None. `fused_confidence` is None on a step without any reading (0.5 there is a
    placeholder). A run without steps has no row. `on_refused` as in `runs`.
    """
    for run in runs(paths, on_refused=on_refused):
        for step in run.steps:
            row = {name: value(run, step) for name, (_, value) in TABLE_COLUMNS.items()}
            yield row | {f"reading_{reading.source}": reading.value for reading in step.readings}
        if on_run is not None:
            on_run(run)


def export(
    paths: Paths,
    target: str | os.PathLike[str],
    form: TableForm,
    *,
    on_run: Callable[[Run], None] | None = None,
    on_refused: Refused | None = None,
) -> int:
    """Write the table to a file and return the number of rows; the file appears only when it is complete.

    The recordings are read twice, a run at a time: first for the columns. Parquet needs the extra `parquet`. Raises
    DataError, or gives it to `on_refused`, as `runs` does; ConfigurationError for an unknown form.
    """
    if form not in ("csv", "parquet"):
        raise ConfigurationError.of("form", "export", "'csv' or 'parquet'", form)
    columns = (*TABLE_COLUMNS, *reading_columns(paths, on_run=on_run, on_refused=on_refused))
    rows = step_rows(paths, on_run=on_run, on_refused=on_refused)
    with whole_file(target) as draft:
        if form == "parquet":
            return _write_parquet(rows, columns, draft)
        with draft.open("w", encoding="utf-8", newline="") as stream:
            return write_rows(rows, columns, stream)


def write_rows(rows: Iterable[dict[str, Any]], columns: Sequence[str], stream: TextIO) -> int:
    """Write rows as CSV (empty cells for None; an apostrophe before what would be a formula); return how many."""
    count = 0
    writer = csv.DictWriter(stream, columns, extrasaction="ignore")
    writer.writeheader()
    for count, row in enumerate(rows, 1):  # noqa: B007 (the number of the last is returned)
        writer.writerow({name: _no_formula(value) for name, value in row.items()})
    return count


def _no_formula(value: Any) -> Any:
    """A text that a spreadsheet would run, as text: names are a model's, ids those of whoever wrote the recording."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _write_parquet(rows: Iterable[dict[str, Any]], columns: Sequence[str], path: Path) -> int:
    pa, pq = pyarrow_for("Exporting Parquet")
    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema(
        [(column, types[TABLE_COLUMNS[column][0] if column in TABLE_COLUMNS else float]) for column in columns]
    )
    count = 0
    iterator = iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        while batch := list(islice(iterator, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count
