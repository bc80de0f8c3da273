"""A store in one SQLite file: the default. WAL mode, so that readers never wait, and every write is one transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError
from grampus_uq.runtime.store import SCHEMA_VERSION, Document
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
)


class SQLiteStore:
    """Documents and logs in a file that any number of processes of one machine share.

    `synchronous="NORMAL"` survives the death of the process, "FULL" also a power failure (some ms a write). `timeout_s`
    bounds how long a write waits for another process. Calls run in worker threads, one at a time a store.
    """

    def __init__(self, path: str | Path, *, synchronous: str = "NORMAL", timeout_s: float = 5.0) -> None:
        if synchronous not in ("NORMAL", "FULL"):
            raise ConfigurationError.of("synchronous", "SQLiteStore", "'NORMAL' or 'FULL'", synchronous)
        self.path = Path(path)
        self._synchronous = synchronous
        self._timeout_s = timeout_s
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._thread = StoreThread()

    async def get(self, kind: str, key: str) -> Document | None:
        """The newest version of a document, or None."""

        def read(db: sqlite3.Connection) -> Document | None:
            row = db.execute(
                "SELECT version, label, body FROM documents WHERE kind = ? AND key = ?", (kind, key)
            ).fetchone()
            return None if row is None else Document(kind=kind, key=key, version=row[0], label=row[1], body=row[2])

        return await self._run(read)

    async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
        """Compare and set, in one transaction."""

        def write(db: sqlite3.Connection) -> int:
            if expected == 0:
                done = db.execute(
                    "INSERT OR IGNORE INTO documents (kind, key, version, label, body) VALUES (?, ?, 1, ?, ?)",
                    (kind, key, label, body),
                )
            else:
                done = db.execute(
                    "UPDATE documents SET version = version + 1, label = ?, body = ?"
                    " WHERE kind = ? AND key = ? AND version = ?",
                    (label, body, kind, key, expected),
                )
            if done.rowcount != 1:
                raise SessionConflictError(f"{kind} {key!r} is not at version {expected}: another writer was first.")
            return expected + 1

        return await self._run(write, "IMMEDIATE")

    async def scan(self, kind: str, *, label: str | None = None, prefix: str = "") -> list[Document]:
        """All documents of a kind, by key."""

        def read(db: sqlite3.Connection) -> list[Document]:
            rows = db.execute(
                "SELECT key, version, label, body FROM documents WHERE kind = ? AND (? IS NULL OR label = ?)"
                " AND substr(key, 1, ?) = ? ORDER BY key",
                (kind, label, label, len(prefix), prefix),
            )
            return [Document(kind=kind, key=r[0], version=r[1], label=r[2], body=r[3]) for r in rows]

        return await self._run(read)

    async def append(self, log: str, body: str, *, expected: int) -> None:
        """Append if the log is as long as expected."""

        def write(db: sqlite3.Connection) -> None:
            (length,) = db.execute("SELECT COUNT(*) FROM logs WHERE log = ?", (log,)).fetchone()
            if length != expected:
                raise SessionConflictError(
                    f"log {log!r} has {length} entries, not {expected}: another writer was first."
                )
            db.execute("INSERT INTO logs (log, position, body) VALUES (?, ?, ?)", (log, expected, body))

        await self._run(write, "IMMEDIATE")

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        """The entries from `start` on."""

        def read(db: sqlite3.Connection) -> list[str]:
            rows = db.execute("SELECT body FROM logs WHERE log = ? AND position >= ? ORDER BY position", (log, start))
            return [row[0] for row in rows]

        return await self._run(read)

    async def aclose(self) -> None:
        """Close the file; it is opened again when needed."""

        def close() -> None:
            with self._lock:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None

        await self._thread.run(close)

    async def _run(self, work: Callable[[sqlite3.Connection], Result], kind: str = "DEFERRED") -> Result:
        return await self._thread.run(self._transact, work, kind)

    def _transact(self, work: Callable[[sqlite3.Connection], Result], kind: str) -> Result:
        """Run in one transaction; what an IMMEDIATE one reads cannot change before it writes."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                db = self._connection
                db.execute(f"BEGIN {kind}")
                try:
                    result = work(db)
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreError(f"The SQLite store {self.path.name!r} failed: {error}") from error
            return result

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            _migrate(db)
        except BaseException:
            db.close()
            raise
        return db


def _migrate(db: sqlite3.Connection) -> None:
    """Bring the file to the newest schema, each step in one transaction; a file from a newer version is refused."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()  # another process may have migrated meanwhile
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
