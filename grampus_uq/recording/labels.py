"""Labels: what somebody knows of a run's outcome, appended to its recording with who and when."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.recording.appending import append_line
from grampus_uq.recording.codec import encode
from grampus_uq.recording.csv_rows import csv_rows
from grampus_uq.recording.packed import is_packed
from grampus_uq.recording.run_names import latest_part
from grampus_uq.recording.runs import Paths, Refused, Run, find_run, runs
from grampus_uq.records.configuration import checked
from grampus_uq.records.events import OutcomeEvent
from grampus_uq.records.values import Outcome
from grampus_uq.records.vocabulary import StopReason

_WORDS: Final = {
    "success": True,
    "true": True,
    "yes": True,
    "1": True,
    "failure": False,
    "false": False,
    "no": False,
    "0": False,
    "unknown": None,
}


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A label of one run; `success` None is "unknown" and takes an earlier label back.

    `stop_reason` None keeps the recorded one. `right_looks`: as in `Outcome`.
    """

    session_id: str
    success: bool | None
    stop_reason: StopReason | None = None
    note: str | None = None
    right_looks: tuple[str, ...] = ()


def label(
    paths: Paths,
    known: Label,
    *,
    by: str,
    time_s: float | None = None,
    only_own: bool = False,
    on_refused: Refused | None = None,
) -> OutcomeEvent:
    """Append a label to the recording of its run, and return the event; it is on the disk when this returns.

    `by` says who, `time_s` when (seconds since 1970; default: now). A run whose end was never recorded needs a stop
    reason, because only the caller can know whether it ended by itself. The note is kept as it is, whatever the content
    policy of the recording: it was written to be kept. With `only_own` an unknown outcome takes back nobody else's
    label. Raises DataError for an unknown session, a missing stop reason and another's label, ConfigurationError when
    `by` is empty. `on_refused` as in `runs`.
    """
    run = find_run(paths, known.session_id, on_refused=on_refused)
    last = run.outcome
    if only_own and known.success is None and last is not None and last.success is not None and last.labelled_by != by:
        raise DataError(f"{run.session_id!r:.100} has another person's label by now, which stays.")
    return _append(run, known, by, time.time() if time_s is None else time_s)


def label_all(
    paths: Paths,
    labels: Iterable[Label],
    *,
    by: str,
    time_s: float | None = None,
    ended: StopReason | None = None,
    on_labelled: Callable[[OutcomeEvent], None] | None = None,
    on_run: Callable[[Run], None] | None = None,
    on_refused: Refused | None = None,
) -> list[str]:
    """Append many labels in one pass over the recordings; return the session ids of labels whose run was not found.

    `ended` is the stop reason of runs of which neither recording nor label says one. Raises as `label` does; what was
    appended before stays. `on_refused` as in `runs`.
    """
    wanted = {known.session_id: known for known in labels}
    when = time.time() if time_s is None else time_s
    for run in runs(paths, on_refused=on_refused):
        if on_run is not None:
            on_run(run)
        known = None if run.superseded else wanted.pop(run.session_id, None)
        if known is not None:
            event = _append(run, known, by, when, ended)
            if on_labelled is not None:
                on_labelled(event)
    return list(wanted)


def read_labels(path: str | os.PathLike[str]) -> Iterator[Label]:
    """Yield the labels of a CSV file: `session_id`, `success`, and if wanted `stop_reason`, `note`, `right_looks`.

    `success` is success/failure/unknown, true/false, yes/no or 1/0; `right_looks` are names with ";" between them.
    Raises DataError with path, line and field for a file that cannot be read, a missing column, a cell that is none of
    these, or a session that is named twice.
    """
    name = os.fspath(path)
    seen: set[str] = set()
    for line, row in csv_rows(path, ("session_id", "success")):
        known = _label_of(row, name, line)
        if known.session_id in seen:
            raise DataError(f"{known.session_id!r:.100} is labelled twice.", path=name, line=line, field="session_id")
        seen.add(known.session_id)
        yield known


def parse_success(word: str) -> bool | None:
    """Turn success/failure/unknown, true/false, yes/no, 1/0 into True, False or None. Raises ValueError otherwise."""
    try:
        return _WORDS[word.strip().lower()]
    except KeyError:
        raise ValueError(f"must be one of {', '.join(_WORDS)}. Got {word!r:.50}.") from None


def _label_of(row: dict[str, str | None], path: str, line: int) -> Label:
    session_id, success = row["session_id"], row["success"]
    if not session_id:
        raise DataError("is empty.", path=path, line=line, field="session_id")
    if success is None:
        raise DataError("is missing.", path=path, line=line, field="success")
    try:
        known = parse_success(success)
    except ValueError as error:
        raise DataError(str(error), path=path, line=line, field="success") from error
    reason = row.get("stop_reason") or None
    if reason is not None and reason not in list(StopReason):
        rule = f"must be one of {', '.join(StopReason)}. Got {reason!r:.50}."
        raise DataError(rule, path=path, line=line, field="stop_reason")
    return Label(
        session_id=session_id,
        success=known,
        stop_reason=StopReason(reason) if reason else None,
        note=row.get("note") or None,
        right_looks=tuple(filter(None, map(str.strip, (row.get("right_looks") or "").split(";")))),
    )


def _append(run: Run, known: Label, by: str, time_s: float, ended: StopReason | None = None) -> OutcomeEvent:
    if not by.strip():
        raise ConfigurationError.of("by", "label", "the name of the person or program that labels", by)
    stop_reason = known.stop_reason or (run.outcome.stop_reason if run.outcome is not None else ended)
    if stop_reason is None:
        reason = (
            f"the end of {run.session_id!r:.100} was never recorded, and only you can know how it ended: label it with "
            "--stop-reason clean (or, in a table, the column stop_reason) where it ended by itself. "
            "`session.finish(Outcome(success=None))` records an end."
        )
        raise DataError(reason, path=run.path, line=run.line, field="stop_reason")
    outcome = Outcome(
        success=known.success,
        stop_reason=stop_reason,
        labelled_by=by,
        time_s=time_s,
        note=known.note,
        right_looks=known.right_looks,
    )
    event = OutcomeEvent(session_id=run.session_id, agent_id=run.events[0].agent_id, outcome=outcome)
    if is_packed(Path(run.path)):
        reason = "is packed and accepts no more lines; label the recordings, then pack them."
        raise DataError(reason, path=run.path, line=run.line)
    if not run.last:
        reason = f"another session follows {run.session_id!r:.100}; a label at the end of the file would be its."
        raise DataError(reason, path=run.path, line=run.line)
    append_line(latest_part(Path(run.path)), encode(event, content="full"))
    return event
