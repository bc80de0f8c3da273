"""Brings files to the disk on a thread of its own, many writes with one sync."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

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
        self._turn = (
            threading.Lock()
        )  # held while files are taken and synced: who holds it knows that none is under way
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
