"""Cuts recordings into parts that can be worked on alone: some files, or a row group of a packed file; runs stay whole.

How they are cut depends on the files only, so that what is computed part by part is the same with any number of
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grampus_uq.recording.packed import is_packed, row_groups
from grampus_uq.recording.reader import TornLine, report
from grampus_uq.recording.rotation import with_later_parts
from grampus_uq.recording.runs import Paths, Run, recording_files, runs_of_file

__all__ = ["PART_BYTES", "RecordingPart", "recording_parts", "runs_of_part", "total_bytes"]

PART_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPart:
    """Some files in order, or, with `group`, one row group of one packed file."""

    files: tuple[Path, ...]
    group: int | None = None


def recording_parts(paths: Paths, *, part_bytes: int = PART_BYTES) -> Iterator[RecordingPart]:
    """Yield the parts of files and folders, in the order of `runs`; together they hold the same runs.

    A file of JSON lines is never cut: pack recordings that share one large file, if they are to be spread. Raises
    DataError for a path that does not exist.
    """
    files: list[Path] = []
    size = 0
    for path in recording_files(paths):
        packed = is_packed(path)
        if files and (packed or size >= part_bytes):
            yield RecordingPart(files=tuple(files))
            files, size = [], 0
        if packed:
            for group in range(len(row_groups(path))):
                yield RecordingPart(files=(path,), group=group)
        else:
            files.append(path)
            size += sum(file.stat().st_size for file in with_later_parts(path))
    if files:
        yield RecordingPart(files=tuple(files))


def runs_of_part(part: RecordingPart, *, on_torn: Callable[[TornLine], None] = report) -> Iterator[Run]:
    """Yield the runs of one part, one at a time. Raises DataError as `runs` does."""
    for path in part.files:
        yield from runs_of_file(path, on_torn=on_torn, groups=None if part.group is None else (part.group,))


def total_bytes(paths: Paths) -> int:
    """How much there is to read, unpacked; to see whether further workers are worth their start."""
    return sum(
        sum(row_groups(path)) if is_packed(path) else sum(file.stat().st_size for file in with_later_parts(path))
        for path in recording_files(paths)
    )
