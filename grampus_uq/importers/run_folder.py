"""A folder that finished runs are written into as recordings, each whole and in a file of its own, or not at all."""

from __future__ import annotations

from pathlib import Path

from grampus_uq.errors import DataError
from grampus_uq.importers.imported_run import ImportedRun, events
from grampus_uq.recording.kept_content import kept_line
from grampus_uq.recording.run_names import file_name
from grampus_uq.recording.whole_file import place_new
from grampus_uq.signals.structure import counted


def write_run(folder: Path, run: ImportedRun, start_s: float) -> None:
    """Write a run that began at `start_s` with all its text; nothing is done when this very run is there already.

    The folder is made where it is missing. Raises DataError when another run has its name, or it cannot be recorded.
    """
    lines = [kept_line(event, "full", bytes) for event in counted(events(run, start_s=start_s))]
    content, target = b"".join(lines), folder / file_name(run.run_id)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        place_new(content, target, sync=True)
    except FileExistsError as error:
        if not target.exists() or target.read_bytes() != content:
            raise DataError(f"another run {run.run_id!r:.80} is there already.", field="run_id") from error
