"""A store in one SQLite file: the default. WAL mode, so that readers never wait, and every write is one transaction."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError
from grampus_uq.runtime.store import (
    SCHEMA_VERSION,
    Append,
    Change,
    Delete,
    Document,
    Put,
    SessionStore,
    after_prefix,
    chained,
)
from grampus_uq.runtime.stores._thread import StoreThread

__all__ = ["SQLiteStore"]

Result = TypeVar("Result")

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
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_BY_LABEL = "INDEXED BY documents_by_label WHERE kind = ? AND label = ?"  # the planner prefers the primary key
_MODE = 0o600


class SQLiteStore(SessionStore):
    """Documents and logs in a file that any number of processes of one machine share; its clock is that machine's.

    `synchronous="NORMAL"` survives the death of the process, "FULL" also a power failure (some ms a write). `timeout_s`
    bounds how long a call waits for other processes. Calls run in worker threads, one at a time a store. A new file is
    readable by its owner only. When the file is removed or replaced under an open store, every call says so.
    """

    def __init__(
        self, path: str | Path, *, synchronous: str = "NORMAL", timeout_s: float = 30.0, create: bool = True
    ) -> None:
        if synchronous not in ("NORMAL", "FULL"):
            raise ConfigurationError.of("synchronous", "SQLiteStore", "'NORMAL' or 'FULL'", synchronous)
        self.path = Path(path)
        self._synchronous = synchronous
        self._timeout_s = timeout_s
        self._create = create
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._thread = StoreThread()

    @classmethod
    def opened(cls, url: str, *, create: bool = True) -> SQLiteStore:
        """By "sqlite:///FILE" or a bare path."""
        return cls(url.removeprefix("sqlite:///"), create=create)

    async def now(self) -> float:
        """This machine's clock; StoreError where the file cannot be used, like any other call."""
        return await self._run(lambda db: time.time())

    async def get(self, kind: str, key: str) -> Document | None:
        """The newest version of a document, or None."""
        found = await self._run(lambda db: _select(db, "WHERE kind = ? AND key = ?", (kind, key)))
        return found[0] if found else None

    async def scan(
        self,
        kind: str,
        *,
        label: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Document]:
        """Documents of a kind, by key: one range of the primary key, or of the index by label."""
        where = "WHERE kind = ? AND key >= ?" if label is None else f"{_BY_LABEL} AND key >= ?"
        values = [kind, prefix] if label is None else [kind, label, prefix]
        for rule, value in (("key < ?", after_prefix(prefix)), ("key > ?", after)):
            if value is not None:
                where += f" AND {rule}"
                values.append(value)
        bound = -1 if limit is None else limit
        return await self._run(lambda db: _select(db, f"{where} ORDER BY key LIMIT ?", (*values, bound)))

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        """The entries from `start` on."""
        sql = "SELECT body FROM logs WHERE log = ? AND position >= ? ORDER BY position"
        return await self._run(lambda db: [row[0] for row in db.execute(sql, (log, start))])

    async def write(self, *changes: Change) -> float:
        """Make all changes in one transaction, which nobody else's can come between."""

        def work(db: sqlite3.Connection) -> float:
            now_s = time.time()
            for change in changes:
                _make(db, change, now_s)
            return now_s

        return await self._run(work, "IMMEDIATE")

    async def aclose(self) -> None:
        """Close the file; it is opened again when needed."""

        def close() -> None:
            with self._lock:
                self._let_go()

        await self._thread.run(close)

    async def _run(self, work: Callable[[sqlite3.Connection], Result], kind: str = "DEFERRED") -> Result:
        return await self._thread.run(self._transact, work, kind)

    def _transact(self, work: Callable[[sqlite3.Connection], Result], kind: str) -> Result:
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
        db = self._connection
        db.execute(f"BEGIN {kind}")
        try:
            result = work(db)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return result

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        """Open the file. One that was open before is not made again: what was in it would seem never to have been."""
        if self._create and self._file is None:
            _make_private(self.path)
        elif not self.path.is_file() or not self.path.stat().st_size:
            raise StoreError(f"There is no SQLite store at {str(self.path)!r}.")
        db = sqlite3.connect(self.path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            self._file = _identity(self.path)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            _migrate(db, create=self._create)
        except BaseException:
            db.close()
            raise
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


def _select(db: sqlite3.Connection, where: str, values: tuple[str | int, ...]) -> list[Document]:
    sql = "SELECT kind, key, version, label, body, written_s FROM documents "
    rows, now_s = db.execute(sql + where, values), time.time()
    return [
        Document(kind=r[0], key=r[1], version=r[2], label=r[3], body=r[4], written_s=r[5], read_s=now_s) for r in rows
    ]


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


def _migrate(db: sqlite3.Connection, *, create: bool) -> None:
    """Bring the file to the newest schema, each step in one transaction; a file from a newer version is refused."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()  # another process may have migrated meanwhile
        if version == 0 and not create:
            raise StoreError("This SQLite file holds no store of sessions.")
        if version > SCHEMA_VERSION:
            raise StoreError(f"The store has schema version {version}; this version reads up to {SCHEMA_VERSION}.")
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
