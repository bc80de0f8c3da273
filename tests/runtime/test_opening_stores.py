"""Stores are found by URL, private, migrated from every schema, and never created by who only looks."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq import UNWATCHED, AgentRunner, AgentStatus, FunctionTools, open_store, tool
from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError
from grampus_uq.records.vocabulary import Effect
from grampus_uq.runtime import stores
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import OLDEST_SCHEMA, SCHEMA_VERSION, Append, Document, Put, SessionStore
from grampus_uq.runtime.stores.conformance import check_session_store
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.stores.postgres import MIGRATIONS as POSTGRES_MIGRATIONS
from grampus_uq.runtime.stores.postgres import PostgresStore
from grampus_uq.runtime.stores.redis import RedisStore
from grampus_uq.runtime.stores.sqlite import MIGRATIONS, SQLiteStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, mail, runner, scripted
from tests.servers import free_port

pytestmark = pytest.mark.anyio
GOLDEN = Path(__file__).parent / "golden"


async def test_a_store_is_opened_by_its_url(tmp_path: Path) -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    sqlite = open_store(f"sqlite:///{tmp_path / 'x.db'}")
    assert isinstance(sqlite, SQLiteStore)
    assert sqlite.path == tmp_path / "x.db"
    assert isinstance(open_store(str(tmp_path / "y.db")), SQLiteStore)
    with pytest.raises(ConfigurationError, match="mongodb"):
        open_store("mongodb://user:secret@host/x")


@pytest.mark.parametrize(
    "url", ["sqlite://x.db", "sqlite:/x.db", "sqlite://", "sqlite:///", " sqlite:///x.db", "SQLITE:///x.db", ""]
)
def test_a_mistyped_sqlite_url_is_refused_and_makes_no_folder_of_that_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be sqlite:///FILE\..*Three slashes"):
        open_store(url)


def test_a_store_is_named_by_text() -> None:
    with pytest.raises(ConfigurationError, match=r"must be text\..*Pass str\(path\)"):
        open_store(Path("x.db"))  # type: ignore[arg-type]


async def test_a_server_that_cannot_be_reached_is_named_by_its_cause_and_no_password_shows() -> None:
    here = f"//ann:secret@127.0.0.1:{free_port()}/0"
    for url in (f"postgresql:{here}", f"redis:{here}"):
        with pytest.raises(StoreError, match=r"\(Connection refused\)$"):
            await open_store(url).now()
    with pytest.raises(StoreError, match=r"\(failed to resolve host\)$"):
        await open_store("postgresql://ann:the@secret@127.0.0.1/x").now()
    with pytest.raises(ConfigurationError, match="Percent-encode") as refused:
        await open_store("redis://ann:the/secret@127.0.0.1").now()
    assert refused.value.__cause__ is None
    assert "Got 'another form'" in str(refused.value)


def test_a_package_can_bring_a_store_for_a_scheme_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str, name: str) -> list[EntryPoint]:
        assert group == "grampus_uq.stores"
        return [EntryPoint(name, "tests.runtime.test_opening_stores:opened_elsewhere", group)] if name == "else" else []

    monkeypatch.setattr(stores, "entry_points", found)
    assert isinstance(open_store("else://where"), MemoryStore)
    with pytest.raises(ConfigurationError):
        open_store("nowhere://x")


def opened_elsewhere(url: str, *, create: bool) -> SessionStore:
    assert (url, create) == ("else://where", True)
    return MemoryStore()


# -- looking is not creating ------------------------------------------------------------------------------------------


async def test_who_only_looks_creates_no_store(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS grampus_schema, grampus_documents, grampus_logs")
    missing, namespace = tmp_path / "no" / "such.db", uuid.uuid4().hex

    def empty() -> RedisStore:
        return RedisStore(redis_url, namespace=namespace, create=False)

    stores = (lambda: SQLiteStore(missing, create=False), lambda: PostgresStore(postgres_url, create=False), empty)
    for opened in stores:
        with pytest.raises(StoreError, match=r"no SQLite store|no store"):
            await opened().scan("session")
        await check_absent(opened)
    assert os.listdir(tmp_path) == []
    with psycopg.connect(postgres_url) as db:
        assert db.execute("SELECT to_regclass('grampus_schema')").fetchone() == (None,)


async def check_absent(opened: Callable[[], SessionStore]) -> None:
    kept = MemoryStore()

    async def store() -> SessionStore:
        return kept

    async def absent() -> SessionStore:
        return opened()

    await check_session_store(store, absent=absent)


class EmptyUntilWritten(SQLiteStore):
    """Answers for a store that is not there as for an empty one."""

    async def scan(self, *args: Any, **how: Any) -> list[Document]:
        try:
            return await super().scan(*args, **how)
        except StoreError:
            return []


async def test_the_checks_fail_a_store_that_is_made_by_looking_or_is_empty_where_there_is_none(tmp_path: Path) -> None:
    making, empty = tmp_path / "made.db", tmp_path / "missing.db"
    for opened in (lambda: SQLiteStore(making), lambda: EmptyUntilWritten(empty, create=False)):
        with pytest.raises(AssertionError, match="create=False"):
            await check_absent(opened)


@pytest.mark.parametrize("version", range(SCHEMA_VERSION + 1))
async def test_a_database_of_somebody_elses_is_not_taken_for_a_store_and_stays_as_it_is(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.execute(f"PRAGMA user_version = {version}")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="holds no store"):
        await SQLiteStore(path, create=False).scan("session")
    assert path.read_bytes() == before


# -- files ------------------------------------------------------------------------------------------------------------


async def test_a_new_file_and_its_folders_are_for_their_owner_only_and_what_was_there_is_left_alone(
    tmp_path: Path,
) -> None:
    os.chmod(tmp_path, 0o750)
    old_mask = os.umask(0o000)
    try:
        store = SQLiteStore(tmp_path / "a" / "b" / "s.db")
        await store.put("k", "a", "{}", expected=0)
    finally:
        os.umask(old_mask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "b").iterdir()}
    assert modes == {"s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600}
    folders = [stat.S_IMODE(folder.stat().st_mode) for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")]
    assert folders == [0o750, 0o700, 0o700]
    await store.aclose()


@pytest.mark.parametrize(
    ("synchronous", "level"), [({}, 1), ({"synchronous": "NORMAL"}, 1), ({"synchronous": "FULL"}, 2)]
)
async def test_a_sqlite_store_has_a_write_ahead_log_and_waits_for_the_disk_as_it_was_told(
    synchronous: dict[str, str], level: int, tmp_path: Path
) -> None:
    store = SQLiteStore(tmp_path / "s.db", **synchronous)
    found = await store._run(
        lambda db: [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    )
    assert found == ["wal", level]
    await store.aclose()


async def test_a_file_that_is_deleted_under_an_open_store_stops_irreversible_calls_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    paid: list[int] = []

    @tool(effect=Effect.READ)
    def find() -> str:
        for file in tmp_path.iterdir():
            file.unlink()
        return "found"

    @tool(effect=Effect.IRREVERSIBLE)
    def pay() -> str:
        paid.append(1)
        return "paid"

    def call(name: str) -> object:
        return answer(f"{name}.", tool_calls=[mail("x", "y").model_copy(update={"name": name, "arguments": {}})])

    one = AgentRunner(
        scripted([call("find"), call("pay"), "Done."]),  # type: ignore[list-item]  # as `answer` gives it
        FunctionTools(find, pay), uncertainty_monitor=UNWATCHED, store=SQLiteStore(path),
    )  # fmt: skip
    result = await one.run(AGENT, "x", session_id="s")
    assert paid == []
    assert "session store" in next(m.content or "" for m in result.messages if m.name == "pay")
    assert result.metadata["store_failures"] >= 1
    with pytest.raises(StoreError, match="no SQLite store"):
        await one.ledger.load("mailer", "s")
    assert not path.exists()  # an empty one in its place would look as if nothing had ever been


async def test_a_file_that_is_replaced_under_an_open_store_is_noticed(tmp_path: Path) -> None:
    path, other = tmp_path / "s.db", SQLiteStore(tmp_path / "other.db")
    store = SQLiteStore(path)
    await store.put("k", "a", "mine", expected=0)
    await other.put("k", "a", "other", expected=0)
    await other.aclose()
    shutil.copyfile(tmp_path / "other.db", tmp_path / "copy.db")
    (tmp_path / "copy.db").replace(path)
    with pytest.raises(StoreError, match="removed or replaced"):
        await store.put("k", "a", "x", expected=1)
    await store.aclose()


async def test_a_broken_sqlite_file_is_a_store_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match=r"broken\.db"):
        await SQLiteStore(path).get("session", "a")


@pytest.mark.parametrize(
    "rest",
    [
        *("me:hunter2@127.0.0.1:1/0", "me:hunter2%@127.0.0.1:1/0", "me:a@hunter2@127.0.0.1:1/0", "me:hunter2@[::/0"),
        *("me:hunter2\uff0f@127.0.0.1:1/0", "me:hunter2\ud800@127.0.0.1:1/0", "127.0.0.1:1/0?password=hunter2&x=1"),
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql://", "redis://", "postgresql:", " postgresql://"])
async def test_whatever_is_wrong_with_a_server_or_its_address_no_traceback_holds_the_password(
    scheme: str, rest: str
) -> None:
    with pytest.raises((StoreError, ConfigurationError)) as caught:
        await open_store(scheme + rest).get("session", "a")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("odd", ["x'fffe'", "CAST(x'fffe' AS TEXT)", "'text'", "7.5", "1e999"])
async def test_a_value_of_another_type_in_a_sqlite_file_is_read_as_its_columns_and_no_row_is_in_anothers_way(
    tmp_path: Path, odd: str
) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    await store.write(Put(kind="k", key="a", body="1", expected=0), Append(log="l", bodies=("1",), expected=0))
    await store.put("k", "b", "2", expected=0)
    for table, columns in {"documents": ("key", "version", "label", "written_s", "body"), "logs": ("body",)}.items():
        for column in columns:
            await store._run(lambda db: db.execute(f"UPDATE {table} SET {column} = {odd} WHERE body = '1'"))  # noqa: B023 (awaited)
            found = {one.body: one for one in await store.scan("k")}
            assert found["2"].key == "b"
            types = {
                (type(d.key), type(d.version), type(d.label), type(d.body), type(d.written_s)) for d in found.values()
            }
            assert types == {(str, int, str, str, float)}
            assert [type(entry) for entry in await store.read("l")] == [str]
    await store.aclose()


async def test_a_conflict_in_one_sqlite_handle_leaves_it_usable(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    await store.put("k", "a", "1", expected=0)
    with pytest.raises(SessionConflictError):
        await store.put("k", "a", "2", expected=0)
    assert await store.put("k", "a", "2", expected=1) == 2
    await store.aclose()


async def test_a_text_that_no_file_can_hold_is_a_store_error_and_writes_nothing(
    tmp_path: Path, redis_url: str, postgres_url: str
) -> None:
    for store in (SQLiteStore(tmp_path / "s.db"), open_store(redis_url), open_store(postgres_url)):
        with pytest.raises(StoreError):
            await store.put("k", uuid.uuid4().hex, "half a character: \ud83d", expected=0)
        await store.aclose()


async def test_a_writer_waits_for_one_that_holds_the_file_for_long(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    await store.put("k", "a", "1", expected=0)
    holder = sqlite3.connect(tmp_path / "s.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: store.put("k", "a", "2", expected=1))
        await anyio.sleep(1.5)  # longer than SQLite itself waits
        holder.execute("COMMIT")
    assert (await store.get("k", "a")) is not None
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        await SQLiteStore(tmp_path / "s.db", timeout_s=0.0).put("k", "b", "1", expected=0)
    holder.close()
    await store.aclose()


# -- migrations -------------------------------------------------------------------------------------------------------


def golden(path: Path) -> None:
    """A file that the release with the first schema wrote: a session that waits, in its second turn."""
    db = sqlite3.connect(path)
    db.executescript((GOLDEN / "schema_1.sql").read_text())
    db.close()


async def test_a_sqlite_file_of_the_first_release_opens_and_its_waiting_session_goes_on(tmp_path: Path) -> None:
    path, world = tmp_path / "old.db", World()
    golden(path)
    store = SQLiteStore(path)
    one = runner(world, store=store, p_true=0.95)
    before = await AuditLog(store, "mailer", "s1").entries()
    (listed,) = await one.list_pending_sessions("mailer")
    assert [r.call.name for r in listed.requests if r.call] == ["send_email"]
    (request,) = (await one.resume("mailer", "s1")).pending  # asked again: a decision binds to more than it did then
    result = await one.resume("mailer", "s1", request.decide("approve", principal="ann"))
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])
    after = await AuditLog(store, "mailer", "s1").entries()
    assert after[: len(before)] == before  # one chain over both forms of entries
    assert len(after) > len(before)
    again = await one.ledger.load("mailer", "s1")
    assert again is not None
    assert again[0].messages == result.messages
    await store.aclose()


async def test_a_store_that_needs_a_newer_release_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(StoreError, match=f"schema version {SCHEMA_VERSION + 1}"):
        await SQLiteStore(path).get("session", "a")


async def test_a_store_that_the_next_release_migrated_is_worked_on_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "next.db"
    store = SQLiteStore(path)
    await store.put("k", "a", "{}", expected=0)
    await store.aclose()
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (OLDEST_SCHEMA,)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("UPDATE migrated SET version = ?", (SCHEMA_VERSION + 1,))
    db.commit()
    assert await store.put("k", "a", "{}", expected=1) == 2
    await store.aclose()
    assert db.execute("SELECT version FROM migrated").fetchone() == (SCHEMA_VERSION + 1,)
    db.close()


async def test_a_postgres_database_of_the_first_schema_is_migrated_and_keeps_its_content(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS grampus_schema, grampus_documents, grampus_logs")
        for statement in POSTGRES_MIGRATIONS[0]:
            db.execute(statement)
        db.execute("CREATE TABLE grampus_schema (version integer NOT NULL)")
        db.execute("INSERT INTO grampus_schema VALUES (1)")
        db.execute("INSERT INTO grampus_documents VALUES ('session', 'a/b', 3, 'waiting_for_human', '{}')")
        db.execute("INSERT INTO grampus_logs VALUES ('audit/a/b', 0, 'x')")
    store = PostgresStore(postgres_url)
    (found,) = await store.scan("session", label="waiting_for_human")
    assert (found.key, found.version, found.written_s) == ("a/b", 3, 0.0)
    assert await store.read("audit/a/b") == ["x"]
    assert await store.put("session", "a/b", "{}", expected=3, label="running") == 4
    assert await store.scan("session", label="waiting_for_human") == []
    await store.aclose()


async def test_a_redis_namespace_of_the_first_schema_is_migrated_and_keeps_its_content(redis_url: str) -> None:
    import redis

    namespace = uuid.uuid4().hex + "*"  # a glob to whoever asks for keys
    client = redis.Redis.from_url(redis_url)
    for number in range(3):
        label = "waiting_for_human" if number == 1 else "completed"
        key = f"a/{number}"
        client.hset(f"{namespace}:doc:session:{key}", mapping={"version": 3, "label": label, "body": "{}"})
        client.sadd(f"{namespace}:kind:session", key)
    client.set(f"{namespace}:schema", 1)
    store = RedisStore(redis_url, namespace=namespace, create=False)
    (found,) = await store.scan("session", label="waiting_for_human")
    assert (found.key, found.version) == ("a/1", 3)
    assert len(await store.scan("session")) == 3
    await store.put("session", "a/1", "{}", expected=3, label="running")
    assert await store.scan("session", label="waiting_for_human") == []
    await store.aclose()
    client.close()


async def test_a_file_of_the_first_schema_is_migrated_once_by_whoever_opens_it_first(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "old.db")
    for statement in MIGRATIONS[0]:
        db.execute(statement)
    db.execute("PRAGMA user_version = 1")
    db.close()
    stores = [SQLiteStore(tmp_path / "old.db") for _ in range(6)]
    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores):
            group.start_soon(lambda s=store, n=number: s.put("k", f"{n}", "{}", expected=0))
    assert len(await stores[0].scan("k")) == 6
    for store in stores:
        await store.aclose()


async def test_a_redis_write_that_meets_damage_writes_nothing(redis_url: str) -> None:
    import redis

    def damage(client: redis.Redis, key: str, value: str | None) -> None:
        client.delete(key)
        client.rpush(key, value) if value is not None else client.set(key, "x")

    client = redis.Redis.from_url(redis_url)
    for key, value in (
        ("jobs", None),
        ("index:job", None),
        ("index:session", None),
        ("doc:job:j", None),
        ("log:audit", None),
        ("log:audit", "no JSON"),
        ("log:audit", "7"),
        ("log:audit", "{}"),
    ):
        namespace = uuid.uuid4().hex
        store = RedisStore(redis_url, namespace=namespace)
        await store.put("session", "s", "{}", expected=0, label="a")
        await store.append("audit", "{}", expected=None)
        damage(client, f"{namespace}:{key}", value)
        changes = (
            Put(kind="decision", key="d", body="{}", expected=0),
            Put(kind="session", key="s", body="{}", expected=1, label="b"),
            Put(kind="job", key="j", body="{}", expected=0),
            Append(log="audit", bodies=("{}",), expected=None),
        )
        with pytest.raises(StoreError):
            await store.write(*changes)
        assert await store.get("decision", "d") is None, key
        assert client.hget(f"{namespace}:doc:session:s", "version") == b"1"
        await store.aclose()
    client.close()


async def test_a_new_file_that_somebody_else_keeps_busy_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.touch()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    store = SQLiteStore(path)

    async def let_go() -> None:
        await anyio.sleep(1.5)  # longer than a connection waits by itself
        other.execute("ROLLBACK")

    async with anyio.create_task_group() as group:
        group.start_soon(let_go)
        await store.write(Put(kind="note", key="1", body="there", expected=0))
    other.close()
    assert await store.get("note", "1") is not None
    await store.aclose()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and under which name or number."""
    for name in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, name
        yield from places(value[name])


async def test_the_error_of_a_stored_text_that_cannot_be_read_quotes_nothing_of_it() -> None:
    store, refused = MemoryStore(), list[str]()
    await runner(World(), store=store).run(AGENT, "mail bob", session_id="s")
    (found,) = await store.scan("session")
    for whole, name in places(body := json.loads(found.body)):
        before, whole[name] = whole[name], [{"hunter2": "hunter2"}]
        store._documents["session", found.key] = replace(found, body=json.dumps(body))
        whole[name] = before
        try:
            await Ledger(store).load("mailer", "s")
        except StoreError as error:
            refused.append("".join(traceback.format_exception(error)))
    assert len(refused) > 50
    assert not any("hunter2" in told for told in refused)
