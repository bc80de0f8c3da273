"""A store in PostgreSQL, for workers on several machines; needs the extra `postgres` (psycopg 3)."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from grampus_uq.errors import GrampusError, MissingDependencyError, SessionConflictError, StoreError
from grampus_uq.runtime.store import SCHEMA_VERSION, Document
from grampus_uq.runtime.stores._thread import StoreThread

__all__ = ["PostgresStore"]

Result = TypeVar("Result")

# A server that vanished without a word (a partition, a power cut) is noticed within seconds, not hours.
_GONE_AFTER = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}

# One entry a schema version, applied in order; a published entry is never changed.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE grampus_documents (kind text NOT NULL, key text NOT NULL, version bigint NOT NULL,"
        " label text NOT NULL, body text NOT NULL, PRIMARY KEY (kind, key))",
        "CREATE INDEX grampus_documents_by_label ON grampus_documents (kind, label)",
        "CREATE TABLE grampus_logs (log text NOT NULL, position bigint NOT NULL, body text NOT NULL,"
        " PRIMARY KEY (log, position))",
    ),
)


class PostgresStore:
    """Documents and logs in three tables (`grampus_documents`, `grampus_logs`, `grampus_schema`).

    Calls run on one connection in worker threads, so asyncio and trio both work; a broken connection is opened again on
    the next call. The password in the URL never reaches an error message.
    """

    def __init__(self, url: str, *, connect_timeout_s: int = 5) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        self._connection: Any = None
        self._lock = threading.Lock()
        self._thread = StoreThread()

    async def get(self, kind: str, key: str) -> Document | None:
        """The newest version of a document, or None."""

        def read(db: Any) -> Document | None:
            row = db.execute(
                "SELECT version, label, body FROM grampus_documents WHERE kind = %s AND key = %s", (kind, key)
            ).fetchone()
            return None if row is None else Document(kind=kind, key=key, version=row[0], label=row[1], body=row[2])

        return await self._run(read)

    async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
        """Compare and set, in one transaction."""

        def write(db: Any) -> int:
            if expected == 0:
                done = db.execute(
                    "INSERT INTO grampus_documents (kind, key, version, label, body) VALUES (%s, %s, 1, %s, %s)"
                    " ON CONFLICT DO NOTHING",
                    (kind, key, label, body),
                )
            else:
                done = db.execute(
                    "UPDATE grampus_documents SET version = version + 1, label = %s, body = %s"
                    " WHERE kind = %s AND key = %s AND version = %s",
                    (label, body, kind, key, expected),
                )
            if done.rowcount != 1:
                raise SessionConflictError(f"{kind} {key!r} is not at version {expected}: another writer was first.")
            return expected + 1

        return await self._run(write)

    async def scan(self, kind: str, *, label: str | None = None, prefix: str = "") -> list[Document]:
        """All documents of a kind, by key."""

        def read(db: Any) -> list[Document]:
            rows = db.execute(
                "SELECT key, version, label, body FROM grampus_documents WHERE kind = %s"
                ' AND (%s::text IS NULL OR label = %s) AND left(key, %s) = %s ORDER BY key COLLATE "C"',
                (kind, label, label, len(prefix), prefix),
            ).fetchall()
            return [Document(kind=kind, key=r[0], version=r[1], label=r[2], body=r[3]) for r in rows]

        return await self._run(read)

    async def append(self, log: str, body: str, *, expected: int) -> None:
        """Append if the log is as long as expected: the primary key refuses a second entry at one position."""

        def write(db: Any) -> None:
            (length,) = db.execute("SELECT COUNT(*) FROM grampus_logs WHERE log = %s", (log,)).fetchone()
            done = 0
            if length == expected:
                done = db.execute(
                    "INSERT INTO grampus_logs (log, position, body) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                    (log, expected, body),
                ).rowcount
            if done != 1:
                raise SessionConflictError(f"log {log!r} has not {expected} entries: another writer was first.")

        await self._run(write)

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        """The entries from `start` on."""

        def read(db: Any) -> list[str]:
            rows = db.execute(
                "SELECT body FROM grampus_logs WHERE log = %s AND position >= %s ORDER BY position", (log, start)
            ).fetchall()
            return [row[0] for row in rows]

        return await self._run(read)

    async def aclose(self) -> None:
        """Close the connection; it is opened again when needed."""
        await self._thread.run(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    async def _run(self, work: Callable[[Any], Result]) -> Result:
        return await self._thread.run(self._transact, work)

    def _transact(self, work: Callable[[Any], Result]) -> Result:
        psycopg = _psycopg()
        with self._lock:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._open(psycopg)
                with self._connection.transaction():
                    return work(self._connection)
            except psycopg.Error as error:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
                raise StoreError(f"The PostgreSQL store failed: {type(error).__name__}") from error

    def _open(self, psycopg: Any) -> Any:
        db = psycopg.connect(self._url, autocommit=True, connect_timeout=self._connect_timeout_s, **_GONE_AFTER)
        try:
            _migrate(db)
        except BaseException:
            db.close()
            raise
        return db


def _psycopg() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise MissingDependencyError.of("psycopg", "postgres", "The PostgreSQL store") from error


def _migrate(db: Any) -> None:
    """Bring the database to the newest schema under an advisory lock; one from a newer version is refused."""
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(726170117)")  # any constant: the name of our migration lock
        db.execute("CREATE TABLE IF NOT EXISTS grampus_schema (version integer NOT NULL)")
        row = db.execute("SELECT version FROM grampus_schema").fetchone()
        version = 0 if row is None else row[0]
        if version > SCHEMA_VERSION:
            raise _newer(version)
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                db.execute(statement)
        if row is None:
            db.execute("INSERT INTO grampus_schema (version) VALUES (%s)", (SCHEMA_VERSION,))
        elif version != SCHEMA_VERSION:
            db.execute("UPDATE grampus_schema SET version = %s", (SCHEMA_VERSION,))


def _newer(version: int) -> GrampusError:
    return StoreError(f"The store has schema version {version}; this version reads up to {SCHEMA_VERSION}.")
