"""Packs recordings into Parquet files that hold every line of theirs, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from grampus_uq.errors import DataError
from grampus_uq.recording.packed import PACKED_SUFFIX, PackedWriter, is_packed
from grampus_uq.recording.parallel import in_order
from grampus_uq.recording.parts import RecordingPart, recording_parts
from grampus_uq.recording.reader import PartialLine, read_lines
from grampus_uq.recording.runs import Paths, interleaved, recording_files
from grampus_uq.recording.whole_file import whole_file

_FILE_BYTES: Final = 128 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile:
    """One file that was written: its path, how many sessions and lines it holds, how many unfinished lines it lacks."""

    path: str
    sessions: int
    lines: int
    partial_lines: int


def pack(
    paths: Paths,
    folder: str | os.PathLike[str],
    *,
    workers: int = 1,
    file_bytes: int = _FILE_BYTES,
    on_file: Callable[[PackedFile], None] | None = None,
) -> list[PackedFile]:
    """Write the recordings under files and folders into `part-00000.parquet` and so on; return what was written.

    Each part takes about `file_bytes` of lines; which ones does not depend on the number of workers. Unfinished lines
    are left out and counted. Needs the extra `parquet`. Raises DataError for a damaged line, interleaved sessions, a
    source that is packed already, or a folder that holds packed parts: they would be counted twice.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    there = next(recording_files(target), None)
    if there is not None:
        raise DataError("already exists; choose an empty folder.", path=os.fspath(there))
    parts = enumerate(recording_parts(paths, part_bytes=file_bytes))
    written = []
    for file in in_order(partial(_pack_part, target), parts, workers=workers):
        written.append(file)
        if on_file is not None:
            on_file(file)
    return written


def _pack_part(folder: Path, numbered: tuple[int, RecordingPart]) -> PackedFile:
    number, part = numbered
    path = folder / f"part-{number:05d}{PACKED_SUFFIX}"
    sessions = lines = 0
    partial_lines: list[PartialLine] = []
    with whole_file(path) as draft, closing(PackedWriter(draft)) as writer:
        for source in part.files:
            for session_id, found in _sessions(source, partial_lines.append):
                writer.write(session_id, found)
                sessions, lines = sessions + 1, lines + len(found)
    return PackedFile(path=os.fspath(path), sessions=sessions, lines=lines, partial_lines=len(partial_lines))


def _sessions(path: Path, on_partial_line: Callable[[PartialLine], None]) -> Iterator[tuple[str, list[bytes]]]:
    """The lines of each session of a file, those of a session id that was used again with those before."""
    if is_packed(path):
        raise DataError("is packed already.", path=os.fspath(path))
    seen: set[str] = set()
    found = read_lines(path, on_partial_line=on_partial_line)
    for session_id, own in groupby(found, key=lambda line: line[1].session_id):
        if session_id in seen:
            raise interleaved(session_id, path, next(own)[0])
        seen.add(session_id)
        yield session_id, [line for _, _, line in own]  # noqa: B031 (where it was used, this is not reached)
