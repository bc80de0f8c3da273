"""The runs of files and folders, one at a time: events, outcome, and the source of its label."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from grampus_uq.errors import DataError
from grampus_uq.recording.artifacts import FittedFor
from grampus_uq.recording.codec import decode
from grampus_uq.recording.packed import PACKED_SUFFIX, is_packed
from grampus_uq.recording.reader import PartialLine, raw_lines, read_lines, report
from grampus_uq.recording.run_names import SUFFIX, file_name, follows
from grampus_uq.records.events import (
    BRANCH,
    DecisionEvent,
    Event,
    ObservationEvent,
    OutcomeEvent,
    SessionStarted,
    StepEvent,
)
from grampus_uq.records.values import Outcome, sha256_of

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Refused = Callable[[DataError], None]
"""Takes what was wrong with a file, or with one of its runs, that is left out."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One recorded run: its events in commit order, and the file and line where it begins.

    A session that was taken up again is one run; a session id that was used again is another run. `last` is True when
    nothing follows in the file, `superseded` when another run of the same id does.
    """

    path: str
    line: int
    session_id: str
    events: tuple[Event, ...]
    last: bool = True
    superseded: bool = False

    @cached_property
    def start(self) -> SessionStarted | None:
        """The beginning of the session; None when the recording lacks it."""
        return next((event for event in self.events if isinstance(event, SessionStarted)), None)

    @cached_property
    def made_with(self) -> tuple[str, str | None, str | None] | None:
        """Model, prompt hash and tools hash, each unknown where it changed; None when the recording lacks them."""
        starts = [event for event in self.events if isinstance(event, SessionStarted)]
        facts = FittedFor.shared((start.model, start.prompt_hash, start.tools_hash) for start in starts)
        return facts.made_with if starts else None

    @cached_property
    def steps(self) -> tuple[StepEvent, ...]:
        """The steps that led to the end, in commit order.

        After a session was taken up from an older state, the steps behind that state are repeated; their
        first versions are in `events` only.
        """
        found: list[StepEvent] = []
        for event in self.events:
            if isinstance(event, StepEvent):
                while found and found[-1].assessment.index >= event.assessment.index:
                    found.pop()
                found.append(event)
        return tuple(found)

    @cached_property
    def observations(self) -> tuple[ObservationEvent, ...]:
        """The answers of tools and users."""
        return tuple(event for event in self.events if isinstance(event, ObservationEvent))

    @cached_property
    def decisions(self) -> tuple[DecisionEvent, ...]:
        """The decisions of humans."""
        return tuple(event for event in self.events if isinstance(event, DecisionEvent))

    @cached_property
    def went_back(self) -> bool:
        """True when the run was rolled back or forked: labels of what was discarded are in `outcome` all the same."""
        return any(BRANCH in event.metadata for event in self.events if isinstance(event, SessionStarted))

    @cached_property
    def outcome(self) -> Outcome | None:
        """The end of the run, by `outcome_weight`; None when the recording holds none."""
        outcomes = [event.outcome for event in self.events if isinstance(event, OutcomeEvent)]
        return max(reversed(outcomes), key=outcome_weight, default=None)

    @cached_property
    def touched(self) -> bool:
        """True when a human decided something or the monitor really stopped a step: the outcome is then selected."""
        return bool(self.decisions) or any(
            event.assessment.action.stops for event in self.events if isinstance(event, StepEvent)
        )


def outcome_weight(outcome: Outcome) -> int:
    """Of a run's outcomes the latest of the heaviest counts: a label, else one of success or failure, else any."""
    return 2 if outcome.labelled_by is not None else int(outcome.success is not None)


def recording_files(paths: Paths) -> Iterator[Path]:
    """Yield the recordings under files and folders: a file as it is, a folder's at any depth, sorted.

    Of a folder these are its `*.jsonl`, and those of its `*.parquet` that are packed recordings (tables are not).
    The later parts of a rotated recording belong to its first file and are not yielded by themselves. Links to folders
    are not followed, hidden files not taken. A folder that cannot be read comes as a file, which its reader cannot read
    either. A file that is there twice, by another name too, comes once. Raises
    DataError for a path that does not exist, and for a pipe.
    """
    met: set[tuple[int, int]] = set()
    for path in files_at(paths, _is_recording):
        try:
            found = path.stat()
        except OSError:
            yield path  # its reader says what is wrong with it
            continue
        if (found.st_dev, found.st_ino) not in met:
            met.add((found.st_dev, found.st_ino))
            yield path


def files_at(paths: Paths, wanted: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield files as they are, and of folders the `wanted` as `files_below`. Raises DataError as `recording_files`."""
    for given in [paths] if isinstance(paths, str | os.PathLike) else paths:
        start = Path(given)
        if os.fspath(given) == "":
            raise DataError("an empty path names no file.")
        if os.path.isdir(start):
            yield from files_below(start, wanted)
        elif start.is_fifo():  # what is read is read more than once
            raise DataError("is a pipe. Write what comes out of it to a file.", path=os.fspath(given))
        elif os.path.exists(start):
            yield start
        else:
            raise DataError("does not exist.", path=os.fspath(given))


def files_below(folder: Path, wanted: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """The wanted files of a folder at any depth, sorted, none that is hidden; then each folder that cannot be read.

    What is there and is no file is left out: a pipe would never end.
    """
    closed: list[OSError] = []
    for place, inner, names in os.walk(folder, onerror=closed.append):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        found = (Path(place, name) for name in sorted(names) if not name.startswith("."))
        yield from filter(wanted, (path for path in found if os.path.isfile(path) or not os.path.exists(path)))
    yield from (Path(error.filename) for error in closed)  # its reader says what is wrong with it


def _is_recording(path: Path) -> bool:
    if follows(path):
        return False
    return path.name.endswith(SUFFIX) or (path.name.endswith(PACKED_SUFFIX) and _may_be_packed(path))


def _may_be_packed(path: Path) -> bool:
    """Return False for a table; True for damaged Parquet, so that its reader reports the fault."""
    try:
        return is_packed(path)
    except DataError:
        return True


def runs(
    paths: Paths, *, on_partial_line: Callable[[PartialLine], None] = report, on_refused: Refused | None = None
) -> Iterator[Run]:
    """Yield every run under files and folders, holding one at a time; file by file, in the order of names.

    A file may hold several sessions, one after the other. What `read` raises, and that a session's lines are
    interrupted by another's (sort such a file by session first), is given to `on_refused`, and the rest of that file is
    left out; without `on_refused` it is raised.
    """
    for path in recording_files(paths):
        yield from refusing(runs_of_file(path, on_partial_line=on_partial_line), on_refused)


def refusing(found: Iterator[Run], on_refused: Refused | None) -> Iterator[Run]:
    """Yield the runs of a file up to its first fault, which `on_refused` takes; without it the fault is raised."""
    try:
        yield from found
    except DataError as error:
        refuse_to(on_refused, error)


def refuse_to(on_refused: Refused | None, error: DataError) -> None:
    """Hand an error to `on_refused`, or raise it without one."""
    if on_refused is None:
        raise error
    on_refused(error)


def each(
    items: Iterable[Item | DataError], read: Callable[[Item], Result], on_refused: Refused | None
) -> Iterator[Result]:
    """Yield what is read of each item; the error that one is, or that reading it raises, goes to `refuse_to`."""
    for item in items:
        try:
            if isinstance(item, DataError):
                raise item
            result = read(item)
        except DataError as error:
            refuse_to(on_refused, error)
        else:
            yield result


def runs_of_file(
    path: Path, *, on_partial_line: Callable[[PartialLine], None] = report, groups: Sequence[int] | None = None
) -> Iterator[Run]:
    """Yield the runs of one file, holding one at a time; with `groups`, of these row groups of a packed file."""
    seen: set[str] = set()
    events: list[Event] = []
    first = 0
    found = read_lines(path, on_partial_line=on_partial_line, groups=groups)
    for number, event, _ in chain(found, ((0, None, b""),)):
        current = events[0].session_id if events else None
        if event is not None and event.session_id != current:
            if event.session_id in seen:
                raise interleaved(event.session_id, path, number)
            seen.add(event.session_id)
        again = isinstance(event, SessionStarted) and not event.resumed
        if current is not None and (event is None or again or event.session_id != current):
            yield Run(
                path=os.fspath(path),
                line=first,
                session_id=current,
                events=tuple(events),
                last=event is None,
                superseded=event is not None and event.session_id == current,
            )
            events = []
        if event is None:
            return
        if not events:
            first = number
        events.append(event)


def interleaved(session_id: str, path: Path, line: int) -> DataError:
    """The error of a session whose lines are interrupted by another session's."""
    reason = f"{session_id!r:.100} goes on here after another session; keep its lines together."
    return DataError(reason, path=os.fspath(path), line=line, field="session_id")


def beginnings(paths: Paths) -> Iterator[SessionStarted]:
    """Yield how each session under files and folders began; of the other lines nothing is read but their type.

    Lines that do not decode and files that cannot be read are passed over; reading the runs reports them.
    """
    for path in recording_files(paths):
        with suppress(DataError):
            for _, line in raw_lines(path):
                # Only these lines have the field; in a text its quotes would be escaped.
                if isinstance(line, bytes) and b'"resumed"' in line:
                    with suppress(DataError):
                        event = decode(line)
                        if isinstance(event, SessionStarted):
                            yield event


def run_digests(paths: Paths) -> list[str]:
    """The digests of the first 20,000 runs."""
    return sorted(set(map(run_digest, islice(beginnings(paths), 20_000))))


def run_digest(start: SessionStarted) -> str:
    """A short digest of session id and beginning: the same in every copy of a recording."""
    return sha256_of(f"{start.time_s!r} {start.session_id}")[:12]


def find_run(paths: Paths, session_id: str, *, on_refused: Refused | None = None) -> Run:
    """Return one run by its session id, the latest of its file. Raises DataError when there is none, or several files.

    A folder that holds a file named after the session is not searched further. `on_refused` as in `runs`.
    """
    places = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    own = [path for place in places if (path := Path(place) / file_name(session_id)).is_file()]
    found = [
        run for run in runs(own or places, on_refused=on_refused) if run.session_id == session_id and not run.superseded
    ]
    if len(found) != 1:
        where = ", ".join(run.path for run in found)
        several = f"{len(found)} runs have the session id {session_id!r:.100}: {where}."
        none = f"no run has the session id {session_id!r:.100}; `grampus-uq runs list` shows those that are there."
        reason = several if found else none
        raise DataError(reason, path=", ".join(os.fspath(place) for place in places))
    return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line about a run. `pauses` counts the steps that stopped or, advisory, would have; times are in seconds."""

    session_id: str
    agent_id: str
    model: str
    started_s: float | None
    duration_s: float | None
    steps: int
    pauses: int
    decisions: int
    least_confidence: float | None
    last_confidence: float | None
    success: bool | None
    stop_reason: str | None
    labelled_by: str | None
    touched: bool
    advisory: bool
    release_probability: float | None
    profile_fingerprint: str | None
    path: str


def summarise(run: Run) -> RunSummary:
    """Say what a run was, in one flat record; confidences are the propagated ones, higher is better."""
    steps = run.steps
    start = run.start
    outcome = run.outcome
    times = [start.time_s] if start else []
    times += [steps[0].step.time_s, steps[-1].step.time_s] if steps else []
    timed = bool(times) and min(times) > 0.0  # a run imported without times counts its messages from 0
    wanted = [step.assessment.advisory_action or step.assessment.action for step in steps]
    confidences = [believed for step in steps if (believed := step.assessment.believed) is not None]
    return RunSummary(
        session_id=run.session_id,
        agent_id=run.events[0].agent_id,
        model=start.model if start else "",
        started_s=min(times) if timed else None,
        duration_s=max(times) - min(times) if timed else None,
        steps=len(steps),
        pauses=sum(action.stops for action in wanted),
        decisions=len(run.decisions),
        least_confidence=min(confidences, default=None),
        last_confidence=confidences[-1] if confidences else None,
        success=outcome.success if outcome else None,
        stop_reason=outcome.stop_reason.value if outcome else None,
        labelled_by=outcome.labelled_by if outcome else None,
        touched=run.touched,
        advisory=start.advisory if start else False,
        release_probability=start.release_probability if start else None,
        profile_fingerprint=start.profile_fingerprint if start else None,
        path=run.path,
    )
