"""Copies among recorded runs: a run counts once, in however many folders it lies.

Two runs of different files are one if they have the same session id and nothing but labels tells them apart, or one
breaks off where the other goes on. Hashed texts are as good as texts of their length: many keep both. The one that
goes on longest counts; of equal ones that with more labels, then with texts, then the first. Runs of one id that differ
in anything else are different runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grampus_uq.errors import DataError
from grampus_uq.recording.codec import encode
from grampus_uq.recording.kept_content import redact
from grampus_uq.recording.reader import raw_lines
from grampus_uq.recording.runs import Paths, Refused, Run, recording_files, refuse_to, refusing, runs, runs_of_file
from grampus_uq.records.events import Event, ObservationEvent, OutcomeEvent, StepEvent

Copies = dict[str, dict[int, DataError]]
"""By file and line where a copy begins: the error that names it."""

_HASHED = re.compile(r"hmac:[0-9a-f]{32}:(\d{1,9})")
_ID = re.compile(rb'"session_id"\s*:\s*("(?:[^"\\]|\\.)*")')


def distinct_runs(paths: Paths, *, on_refused: Refused | None = None) -> Iterator[Run]:
    """Yield what `runs` does, each run once; a copy is given to `on_refused`, or raised without it."""
    given = paths if isinstance(paths, str | os.PathLike) else list(paths)
    return without_copies(runs(given, on_refused=on_refused), copies(given), on_refused)


def without_copies(found: Iterator[Run], known: Copies, on_refused: Refused | None) -> Iterator[Run]:
    """Yield the runs that are not copies; an error that names a copy is given to `on_refused`, or raised without it."""
    for run in found:
        copy = known.get(run.path, {}).get(run.line)
        if copy is None:
            yield run
        else:
            refuse_to(on_refused, copy)


def distinct_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """Ids that tell runs apart: `#1` behind that of a second run of one session id, and so on."""
    seen: Counter[str] = Counter()
    found = []
    for name in ids:
        found.append(name if seen[name] == 0 else f"{name}#{seen[name]}")
        seen[name] += 1
    return tuple(found)


def copies(paths: Paths) -> Copies:
    """Find the copies under files and folders. Only files that share a session id are read as more than bytes."""
    files = [os.fspath(path) for path in recording_files(paths)]
    first: dict[str, str] = {}
    shared: dict[str, dict[str, None]] = {}
    for file in files if len(files) > 1 else ():
        for name in _session_ids(file):
            if (other := first.setdefault(name, file)) != file:
                shared.setdefault(name, {other: None})[file] = None
    digests: dict[str, list[_Digests]] = {}
    for file in dict.fromkeys(file for places in shared.values() for file in places):
        for run in refusing(runs_of_file(Path(file), on_partial_line=lambda _: None), lambda error: None):
            if run.session_id in shared:
                digests.setdefault(run.session_id, []).append(_digests_of(run))
    result: Copies = {}
    for name, same in digests.items():
        for copy, path in _copied(sorted(same, key=lambda one: one.order)):
            reason = f"the session {name!r:.100} is also in {path}, and a run counts once."
            error = DataError(reason, path=copy.path, line=copy.line, field="session_id")
            result.setdefault(copy.path, {})[copy.line] = error
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Digests:
    """Place of a run, its digests up to each event other than labels, and its number of labels; no texts."""

    path: str
    line: int
    so_far: dict[bytes, None]
    labels: int
    hashed: bool

    @property
    def order(self) -> tuple[int, int, bool, str, int]:
        """The run that counts comes first."""
        return (-len(self.so_far), -self.labels, self.hashed, self.path, self.line)


def _digests_of(run: Run) -> _Digests:
    digest, labels, hashed = hashlib.blake2b(digest_size=16), 0, False
    so_far: dict[bytes, None] = {}
    for event in run.events:
        if isinstance(event, OutcomeEvent) and event.outcome.labelled_by is not None:
            labels += 1
        else:
            length, is_hashed = _text_of(event)
            hashed = hashed or is_hashed
            digest.update(b"%d %b" % (length, encode(redact(event, "none", b""))))
            so_far[digest.digest()] = None
    return _Digests(path=run.path, line=run.line, so_far=so_far, labels=labels, hashed=hashed)


def _text_of(event: Event) -> tuple[int, bool]:
    """The length of an event's text, and whether only its hash was kept."""
    text = (
        event.step.text if isinstance(event, StepEvent) else event.text if isinstance(event, ObservationEvent) else ""
    )
    kept = _HASHED.fullmatch(text)
    return (int(kept[1]), True) if kept else (len(text), False)


def _copied(digests: list[_Digests]) -> Iterator[tuple[_Digests, str]]:
    """Each copy, and the file of the run that it is one of; the longest digests come first."""
    seen: dict[bytes, str] = {}
    for one in digests:
        whole = seen.get(next(reversed(one.so_far), b""), one.path)
        if whole != one.path:
            yield one, whole
        else:
            for digest in one.so_far:
                seen.setdefault(digest, one.path)


def _session_ids(path: str) -> set[str]:
    found: set[bytes] = set()
    with suppress(DataError, OSError):  # reported when the runs are read
        for _, line in raw_lines(path):
            if not isinstance(line, DataError):
                found.update(_ID.findall(line))
    names = set[str]()
    for quoted in found:
        with suppress(ValueError):
            names.add(str(json.loads(quoted)))
    return names
