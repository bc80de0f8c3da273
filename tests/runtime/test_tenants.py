"""Two tenants of one store: whatever one of them tries, nothing of the other is read or changed."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from click.testing import CliRunner

from grampus_uq import AgentStatus, open_store
from grampus_uq.cli import _group
from grampus_uq.errors import ConfigurationError, GrampusError, SessionConflictError, StoreError
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stopping import order_stop
from grampus_uq.runtime.store import Append, Delete, Document, Drop, Put, SessionStore
from grampus_uq.runtime.stores.conformance import check_session_store
from grampus_uq.runtime.stores.tenants import _problems, _secure, add_tenant, problems
from tests.runtime.agents import AGENT, World, runner

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.anyio
SECRET = "acme-secret"
KINDS = (
    "session",
    "decision",
    "grant",
    "stop",
    "checkpoint",
    "branch",
    "watch",
    "job",
    "timer",
    "wake",
    "dead",
    "permit",
    "start",
)


class Shop:
    """A database of its own with an owner who is no superuser, and the roles of two tenants and a stranger."""

    def __init__(self, url: str) -> None:
        self.admin = url
        self.opened: list[SessionStore] = []
        self.name = f"shop_{uuid.uuid4().hex[:12]}"
        self.acme, self.globex, self.owner, self.other = (
            f"{who}_{self.name}" for who in ("acme", "globex", "owner", "other")
        )
        with psycopg.connect(url, autocommit=True) as db:
            for role in (self.owner, self.acme, self.globex, self.other):
                db.execute(f"CREATE ROLE {role} LOGIN")
            db.execute(f"CREATE DATABASE {self.name} OWNER {self.owner}")

    def url(self, role: str = "postgres") -> str:
        return self.admin.replace("postgres:@/postgres", f"{role}:@/{self.name}")

    def open(self, role: str) -> SessionStore:
        self.opened.append(open_store(self.url(role)))
        return self.opened[-1]

    def execute(self, sql: str, role: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(role), autocommit=True) as db:
            done = db.execute(sql)
            return done.fetchall() if done.description else []

    def rows(self) -> list[tuple[Any, ...]]:
        """All that is stored of acme, as a superuser sees it."""
        return [
            row
            for table in ("grampus_documents", "grampus_logs")
            for row in self.execute(f"SELECT t::text FROM {table} AS t WHERE tenant = '{self.acme}' ORDER BY 1")
        ]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def shop(postgres_url: str) -> AsyncIterator[Shop]:
    found = Shop(postgres_url)
    yield found
    for store in found.opened:
        await store.aclose()
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"DROP DATABASE {found.name} WITH (FORCE)")
        for role in (found.owner, found.acme, found.globex, found.other):
            db.execute(f"DROP ROLE {role}")


async def settle_in(store: SessionStore) -> ApprovalRequest:
    """One of everything that a store holds, with the secret in it, and a call that waits."""
    one = runner(World(), store=store, checkpoints=True)
    (request,) = (await one.run(AGENT, SECRET, session_id=f"s-{SECRET}", metadata={"note": SECRET})).pending
    ledger = Ledger(store)
    await ledger.decide(request.decide("respond", principal=SECRET, message=SECRET))
    await ledger.grant(Grant(tool="send_email", principal=SECRET, expires_s=4e9))
    await order_stop(ledger, "mailer", f"s-{SECRET}", principal=SECRET)
    for kind in KINDS:
        await store.put(kind, f"k/{SECRET}", json.dumps({"text": SECRET}), expected=0, label=SECRET)
    return request


MIGHTY = ("SUPERUSER", "BYPASSRLS", "CREATEROLE", "REPLICATION")
Attempt = Callable[[], Awaitable[Any]]


def through_the_store(store: SessionStore, theirs: list[Document], logs: list[str]) -> dict[str, Attempt]:
    """Each primitive at each kind of document and log, with the other's very keys and versions."""
    attempts: dict[str, Attempt] = {}
    for found in theirs:
        at, place = {"kind": found.kind, "key": found.key}, f"{found.kind} {found.key[:30]}"
        attempts |= {
            f"get {place}": lambda at=at: store.get(**at),
            f"scan {place}": lambda at=at: store.scan(at["kind"]),
            f"scan prefix {place}": lambda at=at: store.scan(at["kind"], prefix=at["key"][:2]),
            f"scan label {place}": lambda at=at, label=found.label: store.scan(at["kind"], label=label),
            f"children {place}": lambda at=at: store.children(at["kind"], [at["key"].partition("/")[0]]),
            f"overwrite {place}": lambda at=at, v=found.version: store.write(Put(**at, body="{}", expected=v)),
            f"delete {place}": lambda at=at, v=found.version: store.write(Delete(**at, expected=v)),
            f"create {place}": lambda at=at: store.put(**at, body="{}", expected=0),
        }
    for log in logs:
        attempts |= {
            f"read {log}": lambda log=log: store.read(log),
            f"append {log}": lambda log=log: store.write(Append(log=log, bodies=("{}",), expected=1)),
            f"chain {log}": lambda log=log: store.append(log, "{}", expected=None),
            f"drop {log}": lambda log=log: store.write(Drop(log=log)),
        }
    return attempts


def through_sql(shop: Shop) -> dict[str, Attempt]:
    """What somebody with the other tenant's password, and no package in between, may try."""
    acme, owner = shop.acme, shop.owner
    statements = [
        "SELECT * FROM grampus_documents",
        "SELECT * FROM grampus_logs",
        f"SELECT body FROM grampus_documents WHERE tenant = '{acme}'",
        "COPY grampus_documents TO STDOUT",
        "SELECT count(*) FROM grampus_documents WHERE 1 / (length(body) - length(body)) > 0",
        "UPDATE grampus_documents SET body = '{}', version = version + 1",
        f"UPDATE grampus_logs SET tenant = current_user WHERE tenant = '{acme}' RETURNING *",
        "DELETE FROM grampus_documents RETURNING *",
        "INSERT INTO grampus_documents (tenant, kind, key, version, label, body)"
        f" VALUES ('{acme}', 'x', 'x', 1, '', '')",
        f"INSERT INTO grampus_logs (tenant, log, position, body) VALUES ('{acme}', 'audit/x', 0, '')",
        "TRUNCATE grampus_documents",
        "DROP TABLE grampus_documents",
        "ALTER TABLE grampus_documents DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE grampus_documents NO FORCE ROW LEVEL SECURITY",
        "DROP POLICY grampus_tenant ON grampus_documents",
        "CREATE POLICY mine ON grampus_documents USING (true)",
        "SET row_security = off; SELECT * FROM grampus_documents",
        f"SET ROLE {acme}; SELECT * FROM grampus_documents",
        f"SET ROLE {owner}; SELECT * FROM grampus_documents",
        f"SET SESSION AUTHORIZATION {acme}; SELECT * FROM grampus_documents",
        f"GRANT {acme} TO CURRENT_USER",
        "ALTER ROLE CURRENT_USER BYPASSRLS",
        "CREATE OR REPLACE FUNCTION grampus_write(text[], text[], text[], bigint[], text[], text[]) RETURNS float8"
        " LANGUAGE sql AS 'SELECT 1.0::float8'",
        "CREATE TEMP TABLE probe (kind text, key text, tenant name, FOREIGN KEY (tenant, kind, key)"
        " REFERENCES grampus_documents (tenant, kind, key))",
        "SELECT most_common_vals FROM pg_stats WHERE tablename = 'grampus_documents'",
        "SELECT * FROM pg_statistic",
        "CREATE TEMP VIEW seen AS SELECT * FROM grampus_documents; SELECT * FROM seen",
        "CREATE FUNCTION pg_temp.tell(t text) RETURNS bool COST 0.0001 LANGUAGE plpgsql AS"
        " $$BEGIN RAISE NOTICE '%', t; RETURN true; END$$; SELECT body FROM grampus_documents WHERE pg_temp.tell(body)",
        "SELECT pg_read_file('postgresql.conf')",
        "MERGE INTO grampus_documents d USING (VALUES (1)) v ON true WHEN MATCHED THEN DELETE",
    ]

    def tried(sql: str) -> Attempt:
        async def attempt() -> Any:
            with psycopg.connect(shop.url(shop.globex), autocommit=True) as db:
                said: list[str] = []
                db.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
                cursor, found = db.cursor(), []
                if sql.startswith("COPY"):
                    with cursor.copy(sql) as copy:
                        found = [bytes(part) for part in copy]
                else:
                    cursor.execute(sql)
                    while True:
                        found += cursor.fetchall() if cursor.description else []
                        if not cursor.nextset():
                            break
                return found, said

        return attempt

    return {sql: tried(sql) for sql in statements}


def through_the_command_line(shop: Shop, request: ApprovalRequest) -> dict[str, Attempt]:
    place = ["--store", shop.url(shop.globex)]
    session = f"s-{SECRET}"
    commands = [
        ["approvals", "list", "--json"],
        *(["approvals", what, request.id] for what in ("show", "approve", "reject")),
        ["approvals", "respond", request.id[:8], "-m", "x"],
        ["approvals", "edit", request.id, "--arguments", "{}"],
        ["stop", "mailer", session, "--wait", "0"],
        ["stop", "--all", "--wait", "0"],
        ["prune", "--older-than", "0.0000001", "--audits"],
        ["tenants", "add", shop.globex],
    ]

    def tried(command: list[str]) -> Attempt:
        async def attempt() -> Any:
            done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(_group, [*command, *place]))
            said = f"{done.output} {done.exception}"
            given = " ".join(command)
            return said.replace(session, "") if session in given else said

        return attempt

    return {" ".join(command): tried(command) for command in commands}


async def leaks(shop: Shop, attempts: dict[str, Attempt]) -> list[str]:
    """The attempts after which something of acme had been seen or changed."""
    found = []
    for name, attempt in attempts.items():
        before = shop.rows()
        try:
            said = repr(await attempt())
        except (GrampusError, psycopg.Error) as refused:
            said = "" if isinstance(refused, SessionConflictError) else str(refused)
        if SECRET in said or shop.rows() != before:
            found.append(name)
    return found


async def everything(shop: Shop, *, command_line: bool = True) -> dict[str, Attempt]:
    store = shop.open(shop.acme)
    request = await settle_in(store)
    kinds = [kind for (kind,) in shop.execute("SELECT DISTINCT kind FROM grampus_documents")]
    theirs = [(await store.scan(kind, limit=1))[0] for kind in kinds]
    logs = [log for (log,) in shop.execute("SELECT DISTINCT log FROM grampus_logs")]
    await store.aclose()
    attempts = through_sql(shop) | (through_the_command_line(shop, request) if command_line else {})
    return attempts | through_the_store(shop.open(shop.globex), theirs, logs)  # last: it makes rows of these names


async def test_a_tenant_gets_at_nothing_of_another_ones_by_any_way(shop: Shop) -> None:
    await add_tenant(shop.url(shop.owner), shop.acme)
    await add_tenant(shop.url(shop.owner), shop.globex)
    assert await problems(shop.url(shop.owner)) == ([shop.acme, shop.globex], [])
    attempts = await everything(shop)
    assert len(attempts) > 100
    assert await leaks(shop, attempts) == []
    assert len(await shop.open(shop.acme).scan("session", prefix="mailer/")) == 1  # there, for its owner
    owners = shop.open(shop.owner)
    assert await owners.scan("session") == []  # the tables' owner is no exception


@pytest.mark.slow
async def test_without_the_policy_the_same_attempts_get_at_nearly_everything(shop: Shop) -> None:
    await add_tenant(shop.url(shop.owner), shop.acme)
    await add_tenant(shop.url(shop.owner), shop.globex)
    shop.execute("ALTER TABLE grampus_documents DISABLE ROW LEVEL SECURITY")
    shop.execute("ALTER TABLE grampus_logs DISABLE ROW LEVEL SECURITY")
    _, found = await problems(shop.url(shop.owner))
    assert sum("row-level security f" in problem for problem in found) == 2
    attempts = await everything(shop, command_line=False)
    assert len(await leaks(shop, dict(reversed(attempts.items())))) > 20  # reversed: one of the first deletes all


async def test_a_tenants_store_keeps_the_whole_contract_of_a_store(shop: Shop) -> None:
    await add_tenant(shop.url(shop.owner), shop.acme)

    async def opened() -> SessionStore:
        return shop.open(shop.acme)

    await check_session_store(opened)


async def test_a_store_in_use_becomes_one_of_tenants_and_its_rows_stay_their_owners(shop: Shop) -> None:
    store, world = shop.open(shop.owner), World()
    (request,) = (await runner(world, store=store).run(AGENT, "x", session_id="s")).pending
    await add_tenant(shop.url(shop.owner), shop.acme)
    await add_tenant(shop.url(shop.owner), shop.acme)  # twice is once
    result = await runner(world, store=store).resume("mailer", "s", request.decide("approve", principal="ann"))
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])
    assert await shop.open(shop.acme).scan("session") == []
    shop.execute(
        "INSERT INTO grampus_documents (kind, key, version, label, body, written_s)"
        " SELECT 'session', n || '/s', 1, '', '{}', 0 FROM generate_series(1, 5000) AS n",
        shop.acme,
    )
    shop.execute("ANALYZE grampus_documents")
    plan = "\n".join(
        line
        for (line,) in shop.execute(
            "EXPLAIN SELECT key FROM grampus_documents WHERE kind = 'session'"
            " AND key COLLATE \"C\" >= 'a/' AND key COLLATE \"C\" < 'a0'",
            shop.acme,
        )
    )
    assert "Index" in plan
    assert (
        ">= 'a/'" in plan.partition("Index Cond")[2].partition("\n")[0]
    )  # a range of the index, not a filter behind it


POWERS = {
    **{power: (f"ALTER ROLE {{globex}} {power}", f"ALTER ROLE {{globex}} NO{power}") for power in MIGHTY},
    **{
        f"member of {role}": (f"GRANT {role} TO {{globex}}", f"REVOKE {role} FROM {{globex}}")
        for role in ("{owner}", "{acme}", "{other}", "pg_read_server_files", "pg_monitor")
    },
    **{
        f"CREATE {place}, {who}": (f"GRANT CREATE ON {place} TO {who}", f"REVOKE CREATE ON {place} FROM {who}")
        for place in ("SCHEMA public", "DATABASE {name}")
        for who in ("{globex}", "PUBLIC", "{other}")
    },
    "owner of the database": ("ALTER DATABASE {name} OWNER TO {globex}", "ALTER DATABASE {name} OWNER TO {owner}"),
    "owner of the schema": ("ALTER SCHEMA public OWNER TO {globex}", "ALTER SCHEMA public OWNER TO pg_database_owner"),
}


async def test_a_role_that_could_see_other_rows_is_refused_and_found_when_it_becomes_so_later(shop: Shop) -> None:
    url = shop.url(shop.owner)
    names = {"globex": shop.globex, "acme": shop.acme, "owner": shop.owner, "name": shop.name, "other": shop.other}
    powers = {name: [sql.format(**names) for sql in statements] for name, statements in POWERS.items()}
    creator = f"GRANT CREATE ON DATABASE {shop.name} TO {shop.other};"
    powers["member of {other}"][0] = creator + powers["member of {other}"][0]
    powers["member of {other}"][1] += f"; {creator.replace('GRANT', 'REVOKE').replace(' TO ', ' FROM ')}"
    await add_tenant(url, shop.acme)
    for grant, back in powers.values():
        shop.execute(grant)
        with pytest.raises(ConfigurationError, match="sees its own rows only"):
            await add_tenant(url, shop.globex)
        shop.execute(back)
    longest = shop.globex.ljust(63, "x")  # the server cuts off what is behind, and the checks would look for another
    shop.execute(f"CREATE ROLE {longest} BYPASSRLS")
    with pytest.raises(ConfigurationError, match="a role of this database server"):
        await add_tenant(url, longest + "x")
    shop.execute(f"DROP ROLE {longest}")
    await add_tenant(url, shop.globex)
    for name, (grant, back) in powers.items():
        shop.execute(grant)
        _, found = await problems(url)
        assert [line for line in found if any(who in line for who in (shop.globex, "PUBLIC", shop.other))], name
        shop.execute(back)
    assert await problems(url) == ([shop.acme, shop.globex], [])


RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER", "ALL")
RIGHTS += ("SELECT (tenant)", "UPDATE (tenant)", "REFERENCES (tenant)", "ALL (tenant)")
TABLES = ("grampus_documents", "grampus_logs", "grampus_schema")


@contextmanager
def changed(db: psycopg.Connection, owner: str, sql: str) -> Iterator[None]:
    """The store as its owner sees it after these statements of a superuser, which are never committed."""
    with db.transaction(force_rollback=True):
        db.execute(f"SET LOCAL search_path = public, pg_temp; {sql}; SET LOCAL ROLE {owner}")
        yield


async def test_every_right_that_row_level_security_does_not_watch_over_is_named_and_taken_back(shop: Shop) -> None:
    """Whoever holds it and however: every right, on tables and on columns, with and without the grant option."""
    url = shop.url(shop.owner)
    await add_tenant(url, shop.acme)
    fair = {("SELECT", table) for table in TABLES} | {(right, table) for table in TABLES[:2] for right in RIGHTS[:4]}
    db = psycopg.connect(shop.url(), autocommit=True)
    for table, who, option in itertools.product(TABLES, (shop.acme, "PUBLIC", shop.other), ("", " WITH GRANT OPTION")):
        rights = [right.replace("tenant", "version") if table == TABLES[2] else right for right in RIGHTS]
        for right in rights if who != "PUBLIC" or not option else ():
            with changed(db, shop.owner, f"GRANT {right} ON {table} TO {who}{option}"):
                found, named = _problems(db, [shop.acme]), right.partition(" ")[0]
                if (right, table) in fair and who != "PUBLIC" and not option:
                    assert found == []
                else:
                    assert [line for line in found if who in line and (named in line or named == "ALL")], (right, who)
    db.close()
    for who in (shop.acme, "PUBLIC", shop.other):
        shop.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {who}")
        shop.execute(f"GRANT ALL (body) ON grampus_documents TO {who}")
    shop.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {shop.other} WITH GRANT OPTION")
    shop.execute(f"SET ROLE {shop.other}; GRANT TRIGGER ON grampus_logs TO {shop.acme}")
    assert len((await problems(url))[1]) == 3 * 3
    await add_tenant(url, shop.globex)
    assert await problems(url) == (sorted([shop.acme, shop.globex, shop.other]), [])


MUTATIONS = {
    "row-level security off": "ALTER TABLE grampus_logs DISABLE ROW LEVEL SECURITY",
    "not forced": "ALTER TABLE grampus_documents NO FORCE ROW LEVEL SECURITY",
    "no policy": "DROP POLICY grampus_tenant ON grampus_logs",
    "a policy that lets all see": "ALTER POLICY grampus_tenant ON grampus_documents USING (true)",
    "a policy that lets all write": "ALTER POLICY grampus_tenant ON grampus_logs WITH CHECK (true)",
    "a policy for some": "ALTER POLICY grampus_tenant ON grampus_logs TO {acme}",
    "another policy": "CREATE POLICY mine ON grampus_documents FOR SELECT USING (true)",
    "a policy that only restricts": "DROP POLICY grampus_tenant ON grampus_logs; CREATE POLICY grampus_tenant ON"
    " grampus_logs AS RESTRICTIVE USING (tenant = current_user) WITH CHECK (tenant = current_user)",
    "another default": "ALTER TABLE grampus_logs ALTER COLUMN tenant SET DEFAULT '{acme}'",
    "session_user": "ALTER TABLE grampus_documents ALTER COLUMN tenant SET DEFAULT session_user",
    "rows of nobody": "ALTER TABLE grampus_logs DROP CONSTRAINT grampus_logs_pkey, ALTER tenant DROP NOT NULL",
    "a key for all": "ALTER TABLE grampus_logs DROP CONSTRAINT grampus_logs_pkey, ADD PRIMARY KEY (log, position)",
    "a unique key more": "CREATE UNIQUE INDEX more ON grampus_documents (kind, key, version, tenant)",
    "an index that calls": "CREATE INDEX more ON grampus_documents ((lower(body)))",
    "an index for all": "DROP INDEX grampus_documents_by_key",
    "statistics": "ALTER TABLE grampus_documents ALTER COLUMN body SET STATISTICS 100",
    "statistics of several": "CREATE STATISTICS more ON kind, label FROM grampus_documents",
    "a trigger": "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    "CREATE TRIGGER t AFTER INSERT ON grampus_logs EXECUTE FUNCTION f()",
    "a trigger on versions": "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    "CREATE TRIGGER t BEFORE TRUNCATE ON grampus_schema EXECUTE FUNCTION f()",
    "a rule": "CREATE RULE r AS ON INSERT TO grampus_logs DO ALSO NOTIFY seen",
    "a check that calls": "ALTER TABLE grampus_documents ADD CHECK (length(body) >= 0)",
    "a default that calls": "ALTER TABLE grampus_documents ALTER COLUMN label SET DEFAULT lower('X')",
    "a child": "CREATE TABLE child () INHERITS (grampus_documents)",
    "a reference": "CREATE TABLE refers (t name, l text, p bigint, FOREIGN KEY (t, l, p) REFERENCES grampus_logs)",
    "another owner": "GRANT {other} TO {owner}; GRANT CREATE ON SCHEMA public TO {other};"
    "ALTER TABLE grampus_logs OWNER TO {other}; REVOKE CREATE ON SCHEMA public FROM {other}",
    "the function of another": "GRANT CREATE ON SCHEMA public TO {other};"
    "ALTER FUNCTION grampus_write OWNER TO {other};"
    "REVOKE CREATE ON SCHEMA public FROM {other}",
    "the function as its owner": "ALTER FUNCTION grampus_write SECURITY DEFINER",
    "the function in any path": "ALTER FUNCTION grampus_write RESET search_path",
    "the function in another path": "ALTER FUNCTION grampus_write SET search_path = public",
    "another function": "CREATE OR REPLACE FUNCTION grampus_write(ops text[], names text[], keys text[],"
    " expecteds bigint[], labels text[], bodies text[]) RETURNS float8 SET search_path = pg_catalog, pg_temp"
    " LANGUAGE plpgsql AS 'BEGIN RETURN 1.0; END'",
    "a function beside it": "CREATE FUNCTION grampus_write(a text[], b text[], c text[], d bigint[], e text[],"
    " f varchar[]) RETURNS float8 LANGUAGE sql AS 'SELECT 1.0::float8'",
}
MENDED = ("row-level", "not forced", "no policy", "a policy", "statistics", "the function", "another function")
"""What `tenants add` puts right; what it never made it does not remove: it refuses, and says what is there."""


async def test_whatever_differs_in_the_catalogue_from_what_add_leaves_is_named_and_add_mends_it_or_refuses(
    shop: Shop,
) -> None:
    url = shop.url(shop.owner)
    await add_tenant(url, shop.acme)
    db = psycopg.connect(shop.url(), autocommit=True)
    for name, sql in MUTATIONS.items():
        with changed(db, shop.owner, sql.format(acme=shop.acme, other=shop.other, owner=shop.owner)):
            assert len(_problems(db, [shop.acme])) >= 1, name
            if name.startswith(MENDED) and name not in ("statistics of several", "the function of another"):
                _secure(db)
                assert _problems(db, [shop.acme]) == [], name
    db.close()
    shop.execute(MUTATIONS["a trigger"])
    with pytest.raises(StoreError, match="trigger t"):
        await add_tenant(url, shop.globex)
    assert (await problems(url))[0] == [shop.acme]


async def test_a_view_that_stands_on_the_tables_is_named_before_the_first_tenant(shop: Shop) -> None:
    store = shop.open(shop.owner)
    await store.put("session", "a/b", "{}", expected=0)
    shop.execute("CREATE VIEW seen AS SELECT key FROM grampus_documents", shop.owner)
    with pytest.raises(StoreError, match=r"view.* seen .*Drop it, add the tenant, and make it again"):
        await add_tenant(shop.url(shop.owner), shop.acme)
    assert (await problems(shop.url(shop.owner)))[0] == []
    shop.execute("DROP VIEW seen", shop.owner)
    await add_tenant(shop.url(shop.owner), shop.acme)
    shop.execute(
        f"CREATE VIEW seen AS SELECT key FROM grampus_documents; GRANT SELECT ON seen TO {shop.acme}", shop.owner
    )
    await add_tenant(shop.url(shop.owner), shop.globex)
    assert shop.execute("SELECT * FROM seen", shop.acme) == []  # the policy asks who calls, not who made the view
    assert await problems(shop.url(shop.owner)) == ([shop.acme, shop.globex], [])


PLANTED = """
CREATE SCHEMA {acme};
CREATE TABLE {acme}.grampus_documents AS TABLE public.grampus_documents; CREATE TABLE {acme}.grampus_schema AS SELECT 2;
CREATE TABLE public.loot (who name);
CREATE FUNCTION {acme}.grampus_write(ops text[], names text[], keys text[], expecteds bigint[], labels text[],
  bodies text[]) RETURNS float8 LANGUAGE sql AS 'INSERT INTO public.loot VALUES (current_user) RETURNING 1.0::float8';
CREATE FUNCTION public.cardinality(text[]) RETURNS int LANGUAGE sql
  AS 'INSERT INTO public.loot VALUES (current_user); SELECT pg_catalog.array_length($1, 1)';
CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE sql
  AS 'INSERT INTO public.loot VALUES (current_user); SELECT * FROM pg_catalog.unnest($1)';
CREATE FUNCTION public.joined(text, bigint) RETURNS text LANGUAGE sql
  AS 'INSERT INTO public.loot VALUES (current_user); SELECT $1 OPERATOR(pg_catalog.||) $2::text';
CREATE OPERATOR public.|| (FUNCTION = public.joined, LEFTARG = text, RIGHTARG = bigint);
GRANT USAGE ON SCHEMA {acme} TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA {acme} TO PUBLIC; GRANT ALL ON loot TO PUBLIC
"""


async def test_what_another_role_puts_into_a_tenants_search_path_is_neither_called_nor_written_to(shop: Shop) -> None:
    await add_tenant(shop.url(shop.owner), shop.acme)
    await add_tenant(shop.url(shop.owner), shop.globex)
    shop.execute(f"GRANT CREATE ON DATABASE {shop.name} TO {shop.globex}; GRANT CREATE ON SCHEMA public TO PUBLIC")
    shop.execute(PLANTED.format(acme=shop.acme), shop.globex)
    world, store = World(), shop.open(shop.acme)
    (request,) = (await runner(world, store=store).run(AGENT, "x", session_id="s")).pending
    await runner(world, store=store).resume("mailer", "s", request.decide("approve", principal="ann"))
    found = await problems(shop.url(shop.owner))
    assert world.sent == [("bob", "hi")]
    assert shop.execute("SELECT * FROM loot") == []
    assert shop.execute("SELECT tenant FROM public.grampus_documents WHERE kind = 'session'") == [(shop.acme,)]
    assert sum("may create" in line for line in found[1]) >= 2
    shop.execute("SELECT grampus_write('{}', '{}', '{}', '{}', '{}', '{}')", shop.acme)
    assert shop.execute("SELECT * FROM loot") == [(shop.acme,)]  # what befalls those who use other tools


async def test_a_store_in_a_schema_of_its_own_is_named_by_the_url_and_two_in_one_path_are_refused(shop: Shop) -> None:
    def url(role: str, path: str) -> str:
        return f"{shop.url(role)}{'&' if '?' in shop.url(role) else '?'}options=-csearch_path%3D{path}"

    shop.execute(
        f"CREATE SCHEMA agents AUTHORIZATION {shop.owner}; CREATE SCHEMA more; GRANT ALL ON SCHEMA more TO PUBLIC"
    )
    await add_tenant(url(shop.owner, "agents,more"), shop.acme)
    shop.execute(f"GRANT USAGE ON SCHEMA agents TO {shop.acme}")
    assert await problems(url(shop.owner, "more,agents")) == ([shop.acme], [])
    theirs = open_store(url(shop.acme, "more,agents"))
    await theirs.put("session", "a/b", "{}", expected=0)
    await theirs.aclose()
    assert shop.execute("SELECT tenant FROM agents.grampus_documents") == [(shop.acme,)]
    shop.execute("CREATE TABLE more.grampus_schema AS SELECT 2 AS version", shop.globex)
    lost = open_store(url(shop.acme, "more,agents"))
    with pytest.raises(StoreError, match="two stores"):
        await lost.now()
    await lost.aclose()
    assert (await problems(url(shop.owner, "agents,more")))[0] == [shop.acme]  # what is a role's own is no trap


async def test_the_planner_and_the_locks_tell_a_tenant_nothing_of_the_rows_of_another(shop: Shop) -> None:
    async def fill(role: str) -> None:
        store = shop.open(role)
        for number in range(0, 600, 60):
            keys = [f"{role}/{n}" for n in range(number, number + 60)]
            await store.write(*(Put(kind=f"of {role}", key=k, body=f'"{k}"', expected=0, label=role) for k in keys))
        await store.append(f"audit/{role}", "{}", expected=None)

    def told() -> set[str]:
        """What a row estimate says for each text that bounds something of acme's, and for one that bounds nothing."""
        shop.execute("ANALYZE grampus_documents; ANALYZE grampus_logs")
        plans = set()
        for column, text in itertools.product(
            ("tenant", "kind", "key", "label", "body"),
            (shop.acme, f"of {shop.acme}", f"{shop.acme}/3", f'"{shop.acme}/3', "a", "zz"),
        ):
            for comparison in ("<", ">=", "=", "<>"):
                sql = f"EXPLAIN SELECT 1 FROM grampus_documents WHERE {column} {comparison} '{text}'"
                plans.add(f"{column} {comparison} {shop.execute(sql, shop.globex)[0][0]}")
        return plans

    await fill(shop.owner)
    shop.execute("ANALYZE grampus_documents")  # as the server did by itself, before the store had tenants
    for role in (shop.acme, shop.globex):
        await add_tenant(shop.url(shop.owner), role)
    await fill(shop.acme)
    assert len(told()) == 5 * 4
    shop.execute("ALTER TABLE grampus_documents ALTER COLUMN body SET STATISTICS 100")
    assert len(told()) > 5 * 4  # what the assertion before it would have seen
    chain = "SELECT grampus_write('{append}', '{audit/x}', '{NULL}', '{NULL}', '{NULL}', ARRAY['{}'])"
    with psycopg.connect(shop.url(shop.acme)) as writing:
        writing.execute(chain)
        assert shop.execute("SELECT * FROM pg_locks WHERE locktype = 'advisory'", shop.globex) == []
        shop.execute(f"SET lock_timeout = '1s'; {chain}", shop.globex)  # a log of the same name is another log


async def test_only_the_owner_adds_tenants_and_only_roles_that_are_there(shop: Shop) -> None:
    await add_tenant(shop.url(shop.owner), shop.acme)
    for role in (shop.acme, "postgres"):
        with pytest.raises(StoreError, match="only this role"):
            await add_tenant(shop.url(role), shop.globex)
    with pytest.raises(ConfigurationError, match="CREATE ROLE"):
        await add_tenant(shop.url(shop.owner), "nobody'; DROP TABLE grampus_documents; --")


# -- Redis: a namespace for each tenant, kept by the server's own access list -----------------------------------------


def documented_access(name: str) -> list[str]:
    """The access list that docs/scale.md gives, for this user, with the password "pw"."""
    page = (ROOT / "docs" / "scale.md").read_text("utf-8")
    rights = page.partition("`ACL SETUSER acme on >… ")[2].partition("`")[0].replace("acme", name).split()
    return ["ACL", "SETUSER", name, "on", ">pw", *rights]


BY_HAND = [
    ["SCAN", "0", "COUNT", "100000"],
    ["KEYS", "*"],
    ["EVAL", "return redis.call('SCAN', '0', 'COUNT', '100000')", "0"],
    ["RANDOMKEY"],
    ["FUNCTION", "LOAD", "REPLACE", "#!lua name=x\nredis.register_function('x', function() return 1 end)"],
    ["FUNCTION", "FLUSH"],
    ["SCRIPT", "FLUSH"],
    ["CLIENT", "TRACKING", "ON", "BCAST"],
    ["MONITOR"],
    ["SLOWLOG", "GET"],
]
"""Commands that name no key, and would show, or change, what is others'."""


async def test_a_redis_user_with_a_namespace_of_its_own_gets_at_nothing_of_another_ones(redis_url: str) -> None:
    import redis

    admin, (acme, globex) = redis.Redis.from_url(redis_url), (f"t{uuid.uuid4().hex}" for _ in range(2))
    for name in (acme, globex):
        admin.execute_command(*documented_access(name))

    def url(user: str, namespace: str) -> str:
        return redis_url.replace("redis://", f"redis://{user}:pw@") + f"?namespace={namespace}"

    theirs = open_store(url(acme, acme))
    await settle_in(theirs)
    intruder, own = open_store(url(globex, acme)), open_store(url(globex, globex))
    found = (await theirs.scan("session"))[0]
    logs = [f"audit/mailer/s-{SECRET}"]
    before = sorted((key, admin.dump(key)) for key in admin.keys(f"{acme}:*"))
    for store in (intruder, own):
        for attempt in through_the_store(store, [found], logs).values():
            try:
                assert SECRET not in repr(await attempt())
            except (StoreError, SessionConflictError):
                continue
    assert sorted((key, admin.dump(key)) for key in admin.keys(f"{acme}:*")) == before
    assert len(await own.scan("session")) == 1  # what it created itself, under the same key
    assert SECRET in str(admin.keys())  # the names of keys are worth hiding
    by_hand = redis.Redis.from_url(url(globex, globex).partition("?")[0])
    for words in BY_HAND:
        with pytest.raises(redis.ResponseError, match="permissions"):
            by_hand.execute_command(*words)
    by_hand.close()
    for store in (theirs, intruder, own):
        await store.aclose()
    admin.close()


async def test_a_redis_users_store_keeps_the_whole_contract_of_a_store(redis_url: str) -> None:
    import redis

    name = f"t{uuid.uuid4().hex}"
    with redis.Redis.from_url(redis_url) as admin:
        admin.execute_command(*documented_access(name))
    url = f"{redis_url.replace('redis://', f'redis://{name}:pw@')}?namespace={name}"

    async def opened() -> SessionStore:
        return open_store(url)

    await check_session_store(opened)
