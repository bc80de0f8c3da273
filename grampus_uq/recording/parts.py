"""Cuts recordings into parts that can be worked on alone: some files, or a row group of a packed file; runs stay whole.

How they are cut depends on the files only, so that what is computed part by part is the same with any number of
workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from grampus_uq.errors import DataError
from grampus_uq.recording.copies import Copies, copies, without_copies
from grampus_uq.recording.packed import is_packed, row_groups
from grampus_uq.recording.parallel import in_order
from grampus_uq.recording.run_names import with_later_parts
from grampus_uq.recording.runs import Paths, Refused, Result, Run, recording_files, refuse_to, refusing, runs_of_file

_PART_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPart:
    """Some files in order, or, with `group`, one row group of one packed file."""

    files: tuple[Path, ...]
    group: int | None = None


def over_parts(
    work: Callable[[Iterator[Run], Refused | None], Result],
    paths: Paths,
    *,
    workers: int = 1,
    on_refused: Refused | None = None,
) -> Iterator[Result]:
    """Yield `work(runs of a part, on_refused)` for each part of files and folders, in order (`parallel.in_order`).

    A file that cannot be read ends at its fault, a run that lies in two files counts once (`copies`), and a run that
    `work` hands to the function it is given is left out: all are given to `on_refused`, in order, after their part.
    Without `on_refused` the first fault is raised.
    """
    files = paths if isinstance(paths, str | os.PathLike) else list(paths)
    known = copies(files)
    parts = ((part, _of_part(known, part)) for part in recording_parts(files, on_refused=on_refused))
    one = partial(_worked, work, on_refused is not None)
    for result, refused in in_order(one, parts, workers=workers):
        for error in refused:
            refuse_to(on_refused, error)
        yield result


def _worked(
    work: Callable[[Iterator[Run], Refused | None], Result], goes_on: bool, given: tuple[RecordingPart, Copies]
) -> tuple[Result, list[DataError]]:
    part, known = given
    refused: list[DataError] = []
    take = refused.append if goes_on else None
    return work(without_copies(runs_of_part(part, on_refused=take), known, take), take), refused


def _of_part(known: Copies, part: RecordingPart) -> Copies:
    return {file: known[file] for file in map(os.fspath, part.files) if file in known}


def recording_parts(
    paths: Paths, *, part_bytes: int = _PART_BYTES, on_refused: Refused | None = None
) -> Iterator[RecordingPart]:
    """Yield the parts of files and folders, in the order of `runs`; together they hold the same runs.

    A file of JSON lines is never cut: pack recordings that share one large file, if they are to be spread. Raises
    DataError for a path that does not exist, and for a packed file that cannot be read unless `on_refused` takes it.
    """
    files: list[Path] = []
    size = 0
    for path in recording_files(paths):
        try:
            groups = row_groups(path) if is_packed(path) else None
        except DataError as error:
            refuse_to(on_refused, error)
            continue
        if files and (groups is not None or size >= part_bytes):
            yield RecordingPart(files=tuple(files))
            files, size = [], 0
        if groups is not None:
            for group in range(len(groups)):
                yield RecordingPart(files=(path,), group=group)
        else:
            files.append(path)
            size += _bytes(path)
    if files:
        yield RecordingPart(files=tuple(files))


def runs_of_part(part: RecordingPart, *, on_refused: Refused | None = None) -> Iterator[Run]:
    """Yield the runs of one part, one at a time. Raises DataError, or gives it to `on_refused`, as `runs` does."""
    groups = None if part.group is None else (part.group,)
    for path in part.files:
        yield from refusing(runs_of_file(path, groups=groups), on_refused)


def total_bytes(paths: Paths) -> int:
    """The bytes to read, unpacked: are further workers worth their start?"""
    return sum(_bytes(path) for path in recording_files(paths))


def _bytes(path: Path) -> int:
    """The size of a file, unpacked, with its later parts; 0 for one that cannot be read: its reader says why."""
    try:
        if is_packed(path):
            return sum(row_groups(path))
        return sum(file.stat().st_size for file in with_later_parts(path))
    except (DataError, OSError):
        return 0
