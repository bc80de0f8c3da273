"""A store in PostgreSQL, for workers on several machines; needs the extra `postgres` (psycopg 3)."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Generator
from typing import Any

from grampus_uq.errors import DamagedLogError, MissingDependencyError, SessionConflictError, StoreError
from grampus_uq.runtime.store import (
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    WAKING,
    Append,
    Change,
    Delete,
    Put,
    Result,
    check_schema,
)
from grampus_uq.runtime.stores._sql import SQLStore

# A server that vanished without a word (a partition, a power cut) is noticed within seconds, not hours.
_GONE_AFTER = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
_CHANNEL = "grampus_jobs"
_CAUSES = (
    "Connection refused",
    "No such file or directory",
    "authentication failed",
    "does not exist",
    "failed to resolve host",
    "no answer in time",
    "no pg_hba.conf entry",
    "percent-encoded",
    "timeout expired",
    "too many clients",
)
"""The words of libpq that are told. Others may hold a part of a password whose / or @ is not encoded."""
_CONFLICT = "GU409"  # our own SQLSTATE
_DAMAGED = ("GU422", "22P02", "54001")  # our own, and the server's for an entry that is not JSON or nested too deeply

# All changes of a write in one statement: one round trip, and all of them or none. `expected` NULL chains an entry.
# Names mean the server's own objects or those of the store's schema, whatever else a role has put into its path. Who
# chains at the same moment waits at the key of the place and looks again: no lock is named after a session. The hash
# of the last entry is cut from its head: PostgreSQL cannot parse a JSON text that holds \u0000.
WRITE = """
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION %1$I.grampus_write(
  ops text[], names text[], keys text[], expecteds bigint[], labels text[], bodies text[])
RETURNS double precision LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_s numeric := round(extract(epoch FROM clock_timestamp())::numeric, 6);
  time_s text := to_char(now_s, 'FM99999999990.000000');
  done bigint; place bigint; latest text; previous text; content text;
BEGIN
  FOR i IN 1 .. cardinality(ops) LOOP
    done := 1;
    IF ops[i] = 'put' AND expecteds[i] = 0 THEN
      INSERT INTO %1$I.grampus_documents (kind, key, version, label, body, written_s)
        VALUES (names[i], keys[i], 1, labels[i], bodies[i], now_s) ON CONFLICT DO NOTHING;
      GET DIAGNOSTICS done = ROW_COUNT;
    ELSIF ops[i] = 'put' THEN
      UPDATE %1$I.grampus_documents SET version = version + 1, label = labels[i], body = bodies[i], written_s = now_s
        WHERE kind = names[i] AND key = keys[i] AND version = expecteds[i];
      GET DIAGNOSTICS done = ROW_COUNT;
    ELSIF ops[i] = 'delete' THEN
      DELETE FROM %1$I.grampus_documents WHERE kind = names[i] AND key = keys[i] AND version = expecteds[i];
      GET DIAGNOSTICS done = ROW_COUNT;
    ELSIF ops[i] = 'drop' THEN
      DELETE FROM %1$I.grampus_logs WHERE log = names[i];
    ELSE
      FOR attempt IN 1 .. 1000 LOOP
        SELECT position + 1, body INTO place, latest
          FROM %1$I.grampus_logs WHERE log = names[i] ORDER BY position DESC LIMIT 1;
        place := coalesce(place, 0);
        done := 0;
        EXIT WHEN expecteds[i] <> place;
        content := bodies[i];
        IF expecteds[i] IS NULL THEN
          previous := CASE WHEN latest IS NULL THEN repeat('0', 64) WHEN starts_with(latest, '{"v":2,"seq":')
            THEN split_part(split_part(left(latest, 300), '","hash":"', 2), '"', 1) ELSE latest::json ->> 'hash' END;
          IF previous IS NULL OR previous !~ '^[0-9a-f]{64}$' THEN
            RAISE EXCEPTION 'no hash' USING ERRCODE = 'GU422';
          END IF;
          content := '{"v":2,"seq":' || place || ',"time_s":' || time_s || ',"previous":"' || previous || '","hash":"'
            || encode(sha256(convert_to(previous || ' ' || place || ' ' || time_s || ' '
            || encode(sha256(convert_to(content, 'UTF8')), 'hex'), 'UTF8')), 'hex') || '",' || substr(content, 2);
        END IF;
        INSERT INTO %1$I.grampus_logs (log, position, body) VALUES (names[i], place, content) ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS done = ROW_COUNT;
        EXIT WHEN done = 1 OR expecteds[i] IS NOT NULL;
      END LOOP;
    END IF;
    IF done <> 1 THEN
      RAISE EXCEPTION '%% %% is not at %%', names[i], keys[i], expecteds[i] USING ERRCODE = 'GU409';
    END IF;
  END LOOP;
  RETURN now_s;
END $$
$text$, pg_catalog.current_schema()); END $do$
"""


def write_function(db: Any) -> str:
    """The body of `grampus_write` as this version makes it in the schema of this connection."""
    (schema,) = db.execute("SELECT quote_ident(current_schema())").fetchone()
    return WRITE.split("$$")[1].replace("%1$I", schema).replace("%%", "%")


# One entry a schema version, applied in order; a published entry is never changed. It is one transaction, unless a
# statement of it is CONCURRENTLY: such an entry can be applied again after a death in its midst.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE grampus_documents (kind text NOT NULL, key text NOT NULL, version bigint NOT NULL,"
        " label text NOT NULL, body text NOT NULL, PRIMARY KEY (kind, key))",
        "CREATE INDEX grampus_documents_by_label ON grampus_documents (kind, label)",
        "CREATE TABLE grampus_logs (log text NOT NULL, position bigint NOT NULL, body text NOT NULL,"
        " PRIMARY KEY (log, position))",
    ),
    (
        "ALTER TABLE grampus_documents ADD COLUMN written_s double precision NOT NULL DEFAULT 0",
        "DROP INDEX grampus_documents_by_label",
        'CREATE INDEX grampus_documents_by_label ON grampus_documents (kind, label, key COLLATE "C")',
        'CREATE INDEX grampus_documents_by_key ON grampus_documents (kind, key COLLATE "C")',
        WRITE,
    ),
    # The version behind `version`, which says what a release must know.
    ("ALTER TABLE grampus_schema ADD COLUMN applied integer", WRITE),
)
_FIRST_OF_TWO = 3
_MIGRATING = 726170117  # any constant: the name of our migration lock
_OWNS = "SELECT pg_has_role(relowner, 'MEMBER') FROM pg_class WHERE oid = 'grampus_schema'::regclass"


class PostgresStore(SQLStore):
    """Documents and logs in three tables (`grampus_documents`, `grampus_logs`, `grampus_schema`); the server's clock.

    Calls run on one connection; a broken one is opened again on the next call, and so is one whose server said nothing
    for `timeout_s` (the write that waited for it may have been made, or may be made yet). A migration is waited for.
    The password in the URL never reaches an error message.
    """

    _documents, _logs = "grampus_documents", "grampus_logs"
    _key = 'grampus_documents.key COLLATE "C"'
    _columns = f"kind, {_key}, version, label, body, written_s"
    _clock = "extract(epoch FROM clock_timestamp())::float8"
    _mark = "%s"
    _of_each = (  # the bounds within, and OFFSET 0 around them: else the planner may read a whole kind for each text
        "json_array_elements_text(?::json) AS texts"
        " CROSS JOIN LATERAL (SELECT * FROM grampus_documents WHERE {} OFFSET 0) AS grampus_documents"
    )

    def __init__(self, url: str, *, connect_timeout_s: int = 5, timeout_s: float = 30.0, create: bool = True) -> None:
        super().__init__(create=create)
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s

    async def write(self, *changes: Change) -> float:
        """Make all changes in one statement."""
        columns = [list(column) for column in zip(*(row for change in changes for row in _rows(change)), strict=True)]
        sql = "SELECT grampus_write(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::text[])"
        if any(isinstance(change, Put) and change.kind == WAKING for change in changes):
            sql += f", pg_catalog.pg_notify('{_CHANNEL}', '')"
        return await self._run(lambda db: float(db.execute(sql, columns or [[]] * 6).fetchone()[0]))

    async def wait_for_job(self, at_most_s: float) -> None:
        """Wait for a notification, on a connection of its own."""
        if self._ear is None:
            timeout_s = self._timeout_s + at_most_s
            connect_timeout_s = self._connect_timeout_s
            self._ear = _Ear(self._url, connect_timeout_s=connect_timeout_s, timeout_s=timeout_s, create=False)
        await self._ear.hear(at_most_s)

    def _call(self, work: Callable[[Any], Result]) -> Result:
        with MissingDependencyError.unless("psycopg", "postgres", "The PostgreSQL store"):
            psycopg: Any = importlib.import_module("psycopg")
        with self._lock:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = None
                    self._connection = self._open(psycopg)
                return work(self._connection)
            except (psycopg.Error, UnicodeError) as failure:
                error: Any = failure
                if getattr(error, "sqlstate", None) == _CONFLICT:
                    raise SessionConflictError(f"{error.diag.message_primary}: another writer was first.") from failure
                if getattr(error, "sqlstate", None) in _DAMAGED:
                    raise DamagedLogError("a log cannot go on: its last entry cannot be read") from failure
                told = None if self._connection is None else failure  # on connecting, libpq quotes the address
                self._let_go()
                cause = next((f" ({cause})" for cause in _CAUSES if cause in str(error)), "")
                raise StoreError(f"The PostgreSQL store failed: {type(error).__name__}{cause}") from told

    def _open(self, psycopg: Any) -> Any:
        db = psycopg.connect(self._url, autocommit=True, connect_timeout=self._connect_timeout_s, **_GONE_AFTER)
        patient = db.wait

        def wait(steps: Any, *rest: Any, **named: Any) -> Any:
            return patient(_answered(steps, self._timeout_s, psycopg.OperationalError), *rest, **named)

        try:
            db.wait = wait
            _pin_schema(db)
            if _is_behind(db, create=self._create):
                db.wait = patient  # an index of a large table takes its time
                _migrate(db)
                db.wait = wait
        except BaseException:
            db.close()
            raise
        return db


def _answered(steps: Any, timeout_s: float, error: type[Exception]) -> Generator[Any, Any, Any]:
    """The driver's steps, a None or 0 each tenth of a second; ends with this error when nothing came for so long."""
    ready, until = None, time.monotonic() + timeout_s
    while True:
        try:
            wanted = steps.send(ready)
        except StopIteration as done:
            return done.value
        ready = yield wanted
        if ready:
            until = time.monotonic() + timeout_s
        elif time.monotonic() > until:
            raise error("no answer in time")


class _Ear(PostgresStore):
    """A connection that hears of new jobs; what came while it was not there is looked for at once."""

    _opened = False

    async def hear(self, at_most_s: float) -> None:
        await self._run(lambda db: self._hear(db, at_most_s))

    def _hear(self, db: Any, at_most_s: float) -> None:
        if self._opened:
            self._opened = False
            return
        for _ in db.notifies(timeout=at_most_s, stop_after=1):
            continue

    def _open(self, psycopg: Any) -> Any:
        db = super()._open(psycopg)
        db.execute(f"LISTEN {_CHANNEL}")
        self._opened = True
        return db


def _rows(change: Change) -> list[tuple[Any, ...]]:
    """The arguments of `grampus_write` for one change."""
    if isinstance(change, Put):
        return [("put", change.kind, change.key, change.expected, change.label, change.body)]
    if isinstance(change, Delete):
        return [("delete", change.kind, change.key, change.expected, None, None)]
    if isinstance(change, Append):
        return [
            ("append", change.log, None, None if change.expected is None else change.expected + place, None, body)
            for place, body in enumerate(change.bodies)
        ]
    return [("drop", change.log, None, None, None, None)]


# The schemas of the path, those with a store first. One that is named after this role counts only if it belongs to
# whoever could change the role's data anyway: others may have made it, since "$user" leads the path.
_SCHEMAS = """
SELECT quote_ident(n.nspname), owner.rolname = current_user, store.oid IS NOT NULL
FROM unnest(%s::text[]) WITH ORDINALITY AS path (name, place)
JOIN pg_namespace n ON n.nspname = path.name
JOIN pg_roles owner ON owner.oid = n.nspowner
LEFT JOIN pg_class store ON store.relnamespace = n.oid AND store.relname = 'grampus_schema'
WHERE n.nspname <> current_user OR owner.rolsuper OR owner.rolname IN (current_user, 'pg_database_owner')
  OR n.nspowner = (SELECT datdba FROM pg_database WHERE datname = current_database())
ORDER BY store.oid IS NULL, path.place
"""


def _pin_schema(db: Any) -> None:
    """Let every name of this connection mean the server's own object, or one of the store's schema."""
    (path,) = db.execute("SELECT pg_catalog.current_schemas(false)::pg_catalog.text[]").fetchone()
    pin = "SELECT pg_catalog.set_config('search_path', %s, false)"
    db.execute(pin, ("pg_catalog, pg_temp",))
    found = db.execute(_SCHEMAS, (path,)).fetchall()
    if not found:
        raise StoreError("The search path of this PostgreSQL role names no schema that it may use.")
    (schema, own, _), *others = found
    if not own and any(holds_store for *_, holds_store in others):  # somebody may have put one before the real one
        raise StoreError("The search path names two stores. Name one schema: …?options=-csearch_path%3DSCHEMA")
    db.execute(pin, (f"{schema}, pg_temp",))


def _version(db: Any) -> int:
    """The schema of a database, 0 for one without; one that needs a newer release is refused."""
    if not db.execute("SELECT to_regclass('grampus_schema') IS NOT NULL").fetchone()[0]:
        return 0
    row = db.execute("SELECT version, to_json(s) ->> 'applied' FROM grampus_schema AS s").fetchone()
    needed, applied = row or (0, None)
    check_schema(needed)
    return int(needed if applied is None else applied)


def _is_behind(db: Any, *, create: bool) -> bool:
    """True where this connection has to migrate the database: only the tables' owner may."""
    version = _version(db)
    if version == 0 and not create:
        raise StoreError("This PostgreSQL database holds no store of sessions.")
    return version < OLDEST_SCHEMA or (version < SCHEMA_VERSION and db.execute(_OWNS).fetchone()[0])


def _migrate(db: Any) -> None:
    """Bring the database to the newest schema, while others work on."""
    while not db.execute("SELECT pg_try_advisory_lock(%s)", (_MIGRATING,)).fetchone()[0]:
        if _version(db) >= OLDEST_SCHEMA:
            return  # somebody is at it
        time.sleep(0.05)  # not within a statement: an index that is made beside the writers waits for those
    done = _version(db)
    for number, statements in enumerate(MIGRATIONS[done:], done + 1):
        beside = any("CONCURRENTLY" in statement for statement in statements)
        with contextlib.nullcontext() if beside else db.transaction():
            db.execute("CREATE TABLE IF NOT EXISTS grampus_schema (version integer NOT NULL)")
            for statement in statements:
                db.execute(statement)
            _record(db, number)
    db.execute("SELECT pg_advisory_unlock(%s)", (_MIGRATING,))


def _record(db: Any, version: int) -> None:
    with db.transaction():
        db.execute("DELETE FROM grampus_schema")
        if version < _FIRST_OF_TWO:
            db.execute("INSERT INTO grampus_schema (version) VALUES (%s)", (version,))
        else:
            db.execute("INSERT INTO grampus_schema (version, applied) VALUES (%s, %s)", (version - 1, version))
