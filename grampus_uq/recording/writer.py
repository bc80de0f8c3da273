"""Writes the events of a monitor into a folder, one file a session, one write a line."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from grampus_uq.errors import ConfigurationError
from grampus_uq.recording.appending import open_to_append, write_line
from grampus_uq.recording.codec import Content
from grampus_uq.recording.kept_content import folder_key, kept_line
from grampus_uq.recording.run_names import file_name, latest_part, next_part
from grampus_uq.records.configuration import checked
from grampus_uq.records.events import DecisionEvent, Event, OutcomeEvent, StepEvent

SyncPolicy = Literal["none", "decisions", "every"]


@checked
class RecordingProcessor:
    """A `Processor` that appends every event to `<folder>/<session>.jsonl`.

    Each event is one `write` to a file opened for appending, so several processes may record into one folder, and even
    into one session, without mixing their lines, and a killed process loses no event whose `on_event` returned.

    `content` says how much free text is kept: `hashed` (default: keyed hashes, so that repetitions still show), `none`,
    or `full`, which keeps messages, arguments and outputs, secrets in them included. Whatever it is, a replay of the
    recording gives the same assessments. Under `full`, an event that could not be read back (a line longer than 16 MiB,
    a log-probability that is not finite) is kept hashed, and its line says so.

    `fsync` says what survives a power cut (a killed process loses nothing under any of them): `none` leaves it to the
    operating system; `decisions` syncs pauses, aborts, human decisions and outcomes; `every` syncs every event. Syncing
    happens on a thread of its own, never in `on_event`; `sync()` returns when everything so far is on the disk.

    `rotate_bytes` and `rotate_s` begin another part of a session's recording (`<session>+0001.jsonl`, …) before an
    event that would make the part larger, or once this process has had it open for so long. Readers take the parts as
    one recording. An event is never divided: one that is larger than `rotate_bytes` has a part of its own.

    `key` (32 bytes) keys the hashes; by default it is made once and kept in `<folder>/.hash-key`: without that file
    nobody can try guesses against the hashes. At most `max_open` files are open at a time.

    Raises ConfigurationError for an unknown `content` or `fsync`, a short key, `max_open` below 1, or a rotation that
    is not above 0.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        content: Content = "hashed",
        fsync: SyncPolicy = "decisions",
        key: bytes | None = None,
        max_open: int = 64,
        rotate_bytes: int | None = None,
        rotate_s: float | None = None,
    ) -> None:
        owner = type(self).__name__
        if content not in ("full", "hashed", "none"):
            raise ConfigurationError.of("content", owner, "'full', 'hashed' or 'none'", content)
        if fsync not in ("none", "decisions", "every"):
            raise ConfigurationError.of("fsync", owner, "'none', 'decisions' or 'every'", fsync)
        if max_open < 1:
            raise ConfigurationError.of("max_open", owner, "at least 1", max_open)
        if key is not None and len(key) < 16:
            raise ConfigurationError.of("key", owner, "at least 16 bytes", f"{len(key)} bytes")
        for name, value in (("rotate_bytes", rotate_bytes), ("rotate_s", rotate_s)):
            if value is not None and not value > 0:
                raise ConfigurationError.of(name, owner, "above 0 or None", value)
        self._rotate_bytes, self._rotate_s = rotate_bytes, rotate_s
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._content: Content = content
        self._fsync = fsync
        self._key = folder_key(self._folder) if key is None and content == "hashed" else key
        self._max_open = max_open
        self._files: OrderedDict[str, _Open] = OrderedDict()
        self._begin()

    def _begin(self) -> None:
        """Locks and threads: made anew in a forked child, whose copies may be locked by threads it does not have."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._syncer = Syncer(self._folder)

    @property
    def folder(self) -> Path:
        """The folder of the recordings."""
        return self._folder

    def path(self, session_id: str) -> Path:
        """The file of a session, whether it exists or not."""
        return self._folder / file_name(session_id)

    def on_event(self, event: Event) -> None:
        """Append one event. Raises OSError when the disk refuses it, DataError when no form of it can be written."""
        line = kept_line(event, self._content, self._hash_key)
        name = file_name(event.session_id)
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            part = self._open(name)
            if self._full(part, len(line)):
                part = self._next(name, part)
            write_line(part.descriptor, line, self._folder / part.name)
            name = part.name
            if self._fsync == "every" or (self._fsync == "decisions" and _decides(event)):
                self._syncer.request(name)
            else:
                self._syncer.remember(name)

    def sync(self) -> None:
        """Return when every event so far is on the disk. Blocks: call it from a worker thread, not an event loop."""
        self._syncer.sync()

    def close(self) -> None:
        """Sync (unless `fsync` is `none`) and close every file; a later event opens its file again."""
        if self._fsync != "none":
            self.sync()
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1].descriptor)
        self._syncer.stop()

    def __enter__(self) -> RecordingProcessor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hash_key(self) -> bytes:
        """The key of hashes, which is made in the folder when the first is needed."""
        if self._key is None:
            self._key = folder_key(self._folder)
        return self._key

    def _open(self, name: str) -> _Open:
        """The part of a session's recording that is written now."""
        part = self._files.get(name)
        if part is not None:
            self._files.move_to_end(name)
            return part
        while len(self._files) >= self._max_open:
            os.close(self._files.popitem(last=False)[1].descriptor)
        latest = latest_part(self._folder / name)
        self._files[name] = part = _Open(self._descriptor(latest), latest.name, time.monotonic())
        return part

    def _descriptor(self, path: Path) -> int:
        """Open a part; where the process has no file handle left, at the cost of the one that was used longest ago."""
        while True:
            try:
                return open_to_append(path)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                    raise
                os.close(self._files.popitem(last=False)[1].descriptor)

    def _full(self, part: _Open, more: int) -> bool:
        """True when the next line belongs into another part. Whoever else writes into this one is counted too."""
        if self._rotate_s is not None and time.monotonic() - part.since_s >= self._rotate_s:
            return os.fstat(part.descriptor).st_size > 0
        if self._rotate_bytes is None:
            return False
        size = os.fstat(part.descriptor).st_size
        return size > 0 and size + more > self._rotate_bytes

    def _next(self, name: str, part: _Open) -> _Open:
        """Close a full part and open the one behind it, or the latest that another process has begun meanwhile."""
        latest = latest_part(self._folder / part.name)
        if latest.name == part.name:
            latest = self._folder / next_part(part.name)
        os.close(self._files.pop(name).descriptor)
        self._files[name] = opened = _Open(self._descriptor(latest), latest.name, time.monotonic())
        return opened


class _Open(NamedTuple):
    """A part that is open: its descriptor and name, and since when by the monotonic clock."""

    descriptor: int
    name: str
    since_s: float


def _decides(event: Event) -> bool:
    """Return True for events that must survive a power cut: stops, decisions, outcomes."""
    return isinstance(event, DecisionEvent | OutcomeEvent) or (
        isinstance(event, StepEvent) and event.assessment.action.stops
    )


_log = logging.getLogger("grampus_uq.recording")
_MOST_UNSYNCED: Final = 4096  # files; beyond it they are synced unasked, so that memory stays bounded


class Syncer:
    """Calls fsync for files of one folder, never on the thread that asks with `request` or `remember`.

    Files are synced by name, not by descriptor: fsync brings everything of a file to the disk, whoever wrote it, and
    the writer may close its own descriptor at any time.
    """

    def __init__(self, folder: Path, fsync: Callable[[int], None] = os.fsync) -> None:
        self._folder = folder
        self._fsync = fsync
        self._state = threading.Condition()
        self._turn = threading.Lock()  # held while files are synced: who holds it knows that none is under way
        self._unsynced: set[str] = set()
        self._wanted = False
        self._failure: OSError | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    def remember(self, name: str) -> None:
        """Note that the file holds something new, for a later `sync`."""
        with self._state:
            self._unsynced.add(name)
            if len(self._unsynced) > _MOST_UNSYNCED:
                self._wake()

    def request(self, name: str) -> None:
        """Sync the file soon, and with it all that are remembered; returns at once."""
        with self._state:
            self._unsynced.add(name)
            self._wake()

    def sync(self) -> None:
        """Return when all that was requested or remembered so far is on the disk. Raises OSError when the disk refuses.

        An error that the thread met since the last call is raised here too: after a failed fsync the system may call
        the lost data clean, so a later success proves nothing.
        """
        self._take_turn()
        with self._state:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """End the thread after what it was asked for; a later request starts another."""
        with self._state:
            thread, self._stopping = self._thread, True
            self._state.notify_all()
        if thread is not None:
            thread.join()
        with self._state:
            self._thread, self._stopping = None, False

    def _wake(self) -> None:
        self._wanted = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grampus-uq-sync", daemon=True)
            self._thread.start()
        self._state.notify_all()

    def _run(self) -> None:
        while True:
            with self._state:
                while not self._wanted and not self._stopping:
                    self._state.wait()
                if not self._wanted:
                    return
            self._take_turn()

    def _take_turn(self) -> None:
        with self._turn:
            with self._state:
                names, self._unsynced, self._wanted = self._unsynced, set(), False
            try:
                _sync_files(self._folder, names, self._fsync)
            except OSError as error:
                _log.error("%s: could not be synced to the disk: %s", self._folder, error)
                with self._state:
                    self._failure = error


def _sync_files(folder: Path, names: Iterable[str], fsync: Callable[[int], None]) -> None:
    """fsync every file, then the folder (a new file's name is part of it); raise the first error after trying all."""
    failure: OSError | None = None
    for path in [*(folder / name for name in names), *([folder] if hasattr(os, "O_DIRECTORY") else [])]:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # removed meanwhile by its owner: nothing is left to keep
            continue
        try:
            fsync(descriptor)
        except OSError as error:
            failure = failure or error
        finally:
            os.close(descriptor)
    if failure is not None:
        raise failure
