"""Every store holds the one contract, on real servers, on asyncio and trio; old schemas migrate, newer are refused."""

from __future__ import annotations

import sqlite3
import uuid
from pathlib import Path

import pytest

from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError
from grampus_uq.runtime.store import SCHEMA_VERSION, Document, SessionStore, open_store
from grampus_uq.runtime.stores.conformance import check_session_store
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.stores.postgres import PostgresStore
from grampus_uq.runtime.stores.redis import RedisStore
from grampus_uq.runtime.stores.sqlite import MIGRATIONS, SQLiteStore

pytestmark = pytest.mark.anyio


async def test_the_memory_store_conforms() -> None:
    store = MemoryStore()

    async def opened() -> SessionStore:
        return store

    await check_session_store(opened)


async def test_the_sqlite_store_conforms(tmp_path: Path) -> None:
    async def opened() -> SessionStore:
        return SQLiteStore(tmp_path / "s.db")

    await check_session_store(opened)


async def test_the_postgres_store_conforms(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as db:
        for table in ("grampus_documents", "grampus_logs", "grampus_schema"):
            db.execute(f"DROP TABLE IF EXISTS {table}")

    async def opened() -> SessionStore:
        return PostgresStore(postgres_url)

    await check_session_store(opened)


async def test_the_redis_store_conforms(redis_url: str) -> None:
    namespace = uuid.uuid4().hex

    async def opened() -> SessionStore:
        return RedisStore(redis_url, namespace=namespace)

    await check_session_store(opened)


class _LastWriterWins(MemoryStore):
    """A store as many are written: it checks nothing."""

    async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
        self._documents[kind, key] = Document(kind=kind, key=key, version=expected + 1, body=body, label=label)
        return expected + 1


async def test_the_conformance_checks_catch_a_store_where_the_last_writer_wins() -> None:
    store = _LastWriterWins()

    async def opened() -> SessionStore:
        return store

    with pytest.raises(AssertionError, match="conflict"):
        await check_session_store(opened)


async def test_a_sqlite_file_of_the_first_schema_is_migrated_and_keeps_its_content(tmp_path: Path) -> None:
    """The first schema, as it was published; this test stays for ever."""
    path = tmp_path / "old.db"
    db = sqlite3.connect(path)
    for statement in MIGRATIONS[0]:
        db.execute(statement)
    db.execute("PRAGMA user_version = 1")
    db.execute("INSERT INTO documents VALUES ('session', 'a/b', 3, 'waiting_for_human', '{}')")
    db.execute("INSERT INTO logs VALUES ('audit/a/b', 0, 'x')")
    db.commit()
    db.close()
    store = SQLiteStore(path)
    found = await store.get("session", "a/b")
    assert found is not None
    assert (found.version, found.label) == (3, "waiting_for_human")
    assert await store.read("audit/a/b") == ["x"]
    await store.aclose()


async def test_a_store_of_a_newer_schema_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(StoreError, match=f"schema version {SCHEMA_VERSION + 1}"):
        await SQLiteStore(path).get("session", "a")


async def test_a_broken_sqlite_file_is_a_store_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match=r"broken\.db"):
        await SQLiteStore(path).get("session", "a")


async def test_an_unreachable_server_is_a_store_error_without_the_password() -> None:
    for url in ("postgresql://me:hunter2@127.0.0.1:1/x", "redis://:hunter2@127.0.0.1:1/0"):
        with pytest.raises(StoreError) as caught:
            await open_store(url).get("session", "a")
        assert "hunter2" not in str(caught.value)


async def test_a_store_is_opened_by_its_url(tmp_path: Path) -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    sqlite = open_store(f"sqlite:///{tmp_path / 'x.db'}")
    assert isinstance(sqlite, SQLiteStore)
    assert sqlite.path == tmp_path / "x.db"
    assert isinstance(open_store(str(tmp_path / "y.db")), SQLiteStore)
    with pytest.raises(ConfigurationError, match="mongodb"):
        open_store("mongodb://user:secret@host/x")


async def test_a_conflict_in_one_sqlite_handle_leaves_it_usable(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    await store.put("k", "a", "1", expected=0)
    with pytest.raises(SessionConflictError):
        await store.put("k", "a", "2", expected=0)
    assert await store.put("k", "a", "2", expected=1) == 2
    await store.aclose()
