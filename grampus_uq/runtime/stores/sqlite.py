"""A store in one SQLite file: the default. WAL mode, so that readers never wait, and every write is one transaction."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError
from grampus_uq.runtime.store import (
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    Append,
    Change,
    Delete,
    Put,
    Result,
    chained,
    check_schema,
)
from grampus_uq.runtime.stores._sql import SQLStore

# One entry a schema version, applied in order; a published entry is never changed.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE documents (kind TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, label TEXT NOT NULL,"
        " body TEXT NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID",
        "CREATE INDEX documents_by_label ON documents (kind, label)",
        "CREATE TABLE logs (log TEXT NOT NULL, position INTEGER NOT NULL, body TEXT NOT NULL,"
        " PRIMARY KEY (log, position)) WITHOUT ROWID",
    ),
    ("ALTER TABLE documents ADD COLUMN written_s REAL NOT NULL DEFAULT 0",),
    # The version behind `user_version`, which says what a release must know.
    ("CREATE TABLE migrated (version INTEGER NOT NULL)", "INSERT INTO migrated (version) VALUES (3)"),
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_MODE = 0o600
_ASK_S = 0.02


class SQLiteStore(SQLStore):
    """Documents and logs in a file that any number of processes of one machine share; its clock is that machine's.

    `synchronous="NORMAL"` survives the death of the process, "FULL" also a power failure (some ms a write). `timeout_s`
    bounds how long a call waits for other processes. Calls run in worker threads, one at a time a store. A new file is
    readable by its owner only. When the file is removed or replaced under an open store, every call says so.
    """

    _by_label = "INDEXED BY documents_by_label"  # the planner prefers the primary key
    _clock = "grampus_now()"
    _columns = (  # SQLite keeps values of any type: whoever writes the file could put one there that ends its readers
        "CAST(kind AS TEXT), CAST(documents.key AS TEXT), CAST(version AS INTEGER), CAST(label AS TEXT),"
        " CAST(body AS TEXT), CAST(written_s AS REAL)"
    )

    def __init__(
        self, path: str | Path, *, synchronous: str = "NORMAL", timeout_s: float = 30.0, create: bool = True
    ) -> None:
        if synchronous not in ("NORMAL", "FULL"):
            raise ConfigurationError.of("synchronous", "SQLiteStore", "'NORMAL' or 'FULL'", synchronous)
        super().__init__(create=create)
        self.path = Path(path)
        self._synchronous = synchronous
        self._timeout_s = timeout_s
        self._file: tuple[int, int] | None = None
        self._seen: int | None = None

    @classmethod
    def opened(cls, url: str, *, create: bool = True) -> SQLiteStore:
        """By "sqlite:///FILE" or a bare path."""
        path = url.removeprefix("sqlite:///")
        if not path or urlsplit(path).scheme == "sqlite":  # "sqlite://FILE" would make a folder "sqlite:"
            way_out = "Three slashes, four before an absolute path."
            raise ConfigurationError.of("url", "open_store", "sqlite:///FILE", url, way_out)
        return cls(path, create=create)

    async def write(self, *changes: Change) -> float:
        """Make all changes in one transaction, which nobody else's can come between."""

        def work(db: sqlite3.Connection) -> float:
            now_s = time.time()
            for change in changes:
                _make(db, change, now_s)
            return now_s

        return await self._in_thread(self._call, work, "IMMEDIATE")

    async def wait_for_job(self, at_most_s: float) -> None:
        """Ask SQLite's counter of other connections' changes 50 times a second, on a connection of its own."""
        if self._ear is None:
            self._ear = SQLiteStore(self.path, timeout_s=self._timeout_s, create=False)
        until = time.monotonic() + at_most_s
        while True:
            version = await self._ear._run(lambda db: int(db.execute("PRAGMA data_version").fetchone()[0]))
            if version != self._seen or time.monotonic() >= until:
                break
            await anyio.sleep(_ASK_S)
        self._seen = version

    def _call(self, work: Callable[[sqlite3.Connection], Result], kind: str = "DEFERRED") -> Result:
        """Run in one transaction, and again while others are in the way: SQLite itself does not wait in every place."""
        deadline = time.monotonic() + self._timeout_s
        with self._lock:
            while True:
                try:
                    return self._once(work, kind)
                except (sqlite3.Error, OSError, UnicodeError) as error:
                    busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY
                    if not busy or time.monotonic() >= deadline:
                        raise StoreError(f"The SQLite store {self.path.name!r} failed: {error}") from error
                time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 (who comes first, not a secret)

    def _once(self, work: Callable[[sqlite3.Connection], Result], kind: str) -> Result:
        if self._connection is None:
            self._connection = self._open()
        elif self._file != _identity(self.path):
            self._let_go()
            raise StoreError(
                f"The SQLite store {self.path.name!r} was removed or replaced since it was opened: nothing is written."
            )
        db: sqlite3.Connection = self._connection
        db.execute(f"BEGIN {kind}")
        try:
            result = work(db)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return result

    def _open(self) -> sqlite3.Connection:
        """Open the file. One that was open before is not made again: what was in it would seem never to have been."""
        if self._create and self._file is None:
            _make_private(self.path)
        elif not self.path.is_file() or not self.path.stat().st_size:
            raise StoreError(
                f"There is no SQLite store at {str(self.path.absolute())!r}. (A run of the agent makes it.)"
            )
        db = sqlite3.connect(self.path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            db.create_function("grampus_now", 0, time.time)
            db.text_factory = lambda text: text.decode("utf-8", "replace")
            file = _identity(self.path)
            _migrate(db, create=self._create)  # first: a file of somebody else stays as it is
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            db.close()
            raise
        self._file = file  # only now: what another connection kept busy is tried again, and may still be empty
        return db


def _make_private(path: Path) -> None:
    """Create the file for its owner only (SQLite's files beside it follow); what is there keeps its own rights."""
    for folder in reversed([folder for folder in path.parents if not folder.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _MODE))
    except FileExistsError:
        return


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make(db: sqlite3.Connection, change: Change, now_s: float) -> None:
    if isinstance(change, Append):
        _append(db, change, now_s)
    elif isinstance(change, Put | Delete):
        at = (change.kind, change.key)
        if isinstance(change, Delete):
            done = db.execute(
                "DELETE FROM documents WHERE kind = ? AND key = ? AND version = ?", (*at, change.expected)
            )
        elif change.expected == 0:
            done = db.execute(
                "INSERT OR IGNORE INTO documents (kind, key, version, label, body, written_s)"
                " VALUES (?, ?, 1, ?, ?, ?)",
                (*at, change.label, change.body, now_s),
            )
        else:
            done = db.execute(
                "UPDATE documents SET version = version + 1, label = ?, body = ?, written_s = ?"
                " WHERE kind = ? AND key = ? AND version = ?",
                (change.label, change.body, now_s, *at, change.expected),
            )
        if done.rowcount != 1:
            raise SessionConflictError(f"{at[0]} {at[1]!r} is not at {change.expected}: another writer was first.")
    else:
        db.execute("DELETE FROM logs WHERE log = ?", (change.log,))


def _append(db: sqlite3.Connection, change: Append, now_s: float) -> None:
    sql = "SELECT position, body FROM logs WHERE log = ? ORDER BY position DESC LIMIT 1"
    position, last = db.execute(sql, (change.log,)).fetchone() or (-1, None)
    if change.expected not in (None, position + 1):
        raise SessionConflictError(
            f"log {change.log!r} has {position + 1} entries, not {change.expected}: another writer was first."
        )
    for place, body in enumerate(change.bodies, position + 1):
        last = body if change.expected is not None else chained(body, place, now_s, last)
        db.execute("INSERT INTO logs (log, position, body) VALUES (?, ?, ?)", (change.log, place, last))


def _version(db: sqlite3.Connection) -> int:
    """The schema of a file, 0 for one without a store; one that needs a newer release is refused."""
    (needed,) = db.execute("PRAGMA user_version").fetchone()
    check_schema(needed)
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name IN ('documents', 'migrated')")}
    if "migrated" not in tables:
        return int(needed) if "documents" in tables else 0
    return int(db.execute("SELECT max(version) FROM migrated").fetchone()[0])


def _migrate(db: sqlite3.Connection, *, create: bool) -> None:
    """Bring the file to the newest schema in one transaction."""
    if _version(db) >= SCHEMA_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db)  # another process may have migrated meanwhile
        if version == 0 and not create:
            raise StoreError("This SQLite file holds no store of sessions.")
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                db.execute(statement)
        if version < SCHEMA_VERSION:
            db.execute("UPDATE migrated SET version = ?", (SCHEMA_VERSION,))
            db.execute(f"PRAGMA user_version = {OLDEST_SCHEMA}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
