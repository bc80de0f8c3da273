"""Brings files to the disk on a thread of its own, several writes with one sync."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Syncer"]

_log = logging.getLogger("grampus_uq.recording")


class Syncer:
    """Calls fsync for the files of one folder, never on the thread that asks.

    Files are synced by name, not by descriptor: fsync brings everything of a file to the disk, whoever wrote it, and
    the writer may close its own descriptor at any time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = threading.Condition()
        self._unsynced: set[str] = set()  # written since their last sync
        self._wanted: set[str] = set()
        self._busy: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._stopping = False

    def remember(self, name: str) -> None:
        """Note that the file holds something new, for a later `sync`."""
        with self._state:
            self._unsynced.add(name)

    def request(self, name: str) -> None:
        """Sync the file soon; returns at once."""
        with self._state:
            self._unsynced.add(name)
            self._wanted.add(name)
            self._start()
            self._state.notify_all()

    def sync(self, names: Iterable[str] = ()) -> None:
        """Return when the given files, and all that were written since their last sync, are on the disk.

        Raises OSError when the disk refuses one.
        """
        with self._state:
            names = {*names, *self._unsynced}
            self._unsynced -= names
            self._wanted -= names
            # A sync under way may have begun before the last write, so it is waited for and the file synced again.
        self._sync(names)

    def stop(self) -> None:
        """End the thread after what it was asked for; a later request starts another."""
        with self._state:
            thread, self._stopping = self._thread, True
            self._state.notify_all()
        if thread is not None and self._process == os.getpid():
            thread.join()
        with self._state:
            self._thread, self._stopping = None, False

    def _start(self) -> None:
        if self._thread is None or self._process != os.getpid():  # a fork keeps the object but not the thread
            self._process = os.getpid()
            self._thread = threading.Thread(target=self._run, name="grampus-uq-sync", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._state:
                while not self._wanted and not self._stopping:
                    self._state.wait()
                if not self._wanted:
                    return
                names, self._wanted = self._wanted, set()
                self._unsynced -= names
            try:
                self._sync(names)
            except OSError as error:
                _log.error("%s: could not be synced to the disk: %s", self._folder, error)

    def _sync(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                descriptor = os.open(self._folder / name, os.O_RDONLY)
            except FileNotFoundError:  # removed meanwhile by its owner: nothing is left to keep
                continue
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        if hasattr(os, "O_DIRECTORY"):  # a new file's name is part of its folder
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
