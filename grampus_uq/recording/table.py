"""Recordings as one flat table, a row a step: for notebooks, spreadsheets and anything that is not this package."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from grampus_uq.errors import ConfigurationError
from grampus_uq.recording.packed import pyarrow_for
from grampus_uq.recording.runs import Paths, Refused, Run, runs
from grampus_uq.records.events import StepEvent

TableForm = Literal["jsonl", "csv", "parquet"]

TABLE_COLUMNS: Final[dict[str, type]] = {
    "session_id": str,
    "agent_id": str,
    "model": str,
    "profile_fingerprint": str,
    "index": int,
    "step_id": str,
    "step_type": str,
    "time_s": float,
    "tool_name": str,
    "effect": str,
    "proposed_calls": int,
    "fused_confidence": float,
    "propagated_confidence": float,
    "p_success": float,
    "trajectory_risk": float,
    "log_e_value": float,
    "level": str,
    "action": str,
    "advisory_action": str,
    "rule": str,
    "missing_reason": str,
    "monitor_calls": int,
    "monitor_tokens": int,
    "monitor_cost_usd": float,
    "monitor_s": float,
    "agent_tokens": int,
    "success": bool,
    "stop_reason": str,
    "labelled_by": str,
    "touched": bool,
    "release_probability": float,
}
"""Name and type of the fixed columns; every one may be empty. A column `reading_<source>` a signal follows."""

_BATCH: Final = 20_000


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
            yield _row(run, step)
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
    if form not in ("jsonl", "csv", "parquet"):
        raise ConfigurationError.of("form", "export", "'jsonl', 'csv' or 'parquet'", form)
    columns = (*TABLE_COLUMNS, *reading_columns(paths, on_run=on_run, on_refused=on_refused))
    draft = Path(f"{os.fspath(target)}.{os.getpid()}.part")
    try:
        if form == "parquet":
            count = _write_parquet(step_rows(paths, on_run=on_run, on_refused=on_refused), columns, draft)
        else:
            with draft.open("w", encoding="utf-8", newline="") as stream:
                count = write_rows(step_rows(paths, on_run=on_run, on_refused=on_refused), columns, stream, form)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return count


def write_rows(
    rows: Iterable[dict[str, Any]], columns: Sequence[str], stream: TextIO, form: Literal["jsonl", "csv"]
) -> int:
    """Write rows as JSON lines (every column present) or CSV (empty cells for None); return how many."""
    count = 0
    writer = csv.writer(stream)
    if form == "csv":
        writer.writerow(columns)
    for row in rows:
        values = [row.get(column) for column in columns]
        if form == "csv":
            writer.writerow(values)
        else:
            stream.write(json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=False) + "\n")
        count += 1
    return count


def _write_parquet(rows: Iterable[dict[str, Any]], columns: Sequence[str], path: Path) -> int:
    pa, pq = pyarrow_for("Exporting Parquet")
    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(column, types[TABLE_COLUMNS.get(column, float)]) for column in columns])
    count = 0
    iterator = iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        while batch := list(islice(iterator, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def _row(run: Run, event: StepEvent) -> dict[str, Any]:
    step, seen, start, outcome = event.step, event.assessment, run.start, run.outcome
    values = [reading.value for reading in event.readings if reading.value is not None]
    costs = [reading.cost_usd for reading in event.readings if reading.cost_usd is not None]
    row: dict[str, Any] = {
        "session_id": run.session_id,
        "agent_id": event.agent_id,
        "model": start.model if start else None,
        "profile_fingerprint": start.profile_fingerprint if start else None,
        "index": seen.index,
        "step_id": step.step_id,
        "step_type": step.kind,
        "time_s": step.time_s,
        "tool_name": step.tool_name,
        "effect": step.effect.value if step.effect else None,
        "proposed_calls": len(step.tool_calls),
        "fused_confidence": seen.fused_confidence if values else None,
        "propagated_confidence": seen.propagated_confidence,
        "p_success": seen.p_success,
        "trajectory_risk": seen.trajectory_risk,
        "log_e_value": seen.log_e_value,
        "level": seen.level.value,
        "action": seen.action.value,
        "advisory_action": seen.advisory_action.value if seen.advisory_action else None,
        "rule": seen.rule,
        "missing_reason": seen.missing_reason,
        "monitor_calls": sum(reading.calls for reading in event.readings),
        "monitor_tokens": sum(reading.input_tokens + reading.output_tokens for reading in event.readings),
        "monitor_cost_usd": sum(costs) if costs else None,
        "monitor_s": (event.ended_ns - event.started_ns) / 1e9,
        "agent_tokens": step.input_tokens + step.output_tokens,
        "success": outcome.success if outcome else None,
        "stop_reason": outcome.stop_reason.value if outcome else None,
        "labelled_by": outcome.labelled_by if outcome else None,
        "touched": run.touched,
        "release_probability": start.release_probability if start else None,
    }
    row.update((f"reading_{reading.source}", reading.value) for reading in event.readings)
    return row
