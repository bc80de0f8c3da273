"""Tenants of one PostgreSQL store: each a database role, kept apart by row-level security.

A row belongs to the role that wrote it, and no other role sees it, whatever this package or its caller does: the
server checks it on every statement. The policy is forced on the tables' owner too. Superusers and roles with BYPASSRLS
see everything; so does whoever may become one. `problems` names them, and all else that is not as `add_tenant` left it.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grampus_uq.errors import ConfigurationError, StoreError
from grampus_uq.runtime.store import Result
from grampus_uq.runtime.stores.postgres import WRITE, PostgresStore, write_function

_TABLES = {"grampus_documents": ("kind", "key"), "grampus_logs": ("log", "position")}
_INDEXES = {
    "grampus_documents_by_label": '(tenant, kind, label, key COLLATE "C")',
    "grampus_documents_by_key": '(tenant, kind, key COLLATE "C")',
}
_LOCK_TRIES = 60
_ROWS = ("SELECT", "INSERT", "UPDATE", "DELETE")
# What a role may do that is not the owner. Row-level security watches over these rights on rows, and over no others.
_MAY = {"grampus_documents": _ROWS, "grampus_logs": _ROWS, "grampus_schema": ("SELECT",)}
_TENANTS = """
SELECT DISTINCT rolname FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) acl JOIN pg_roles r ON r.oid = acl.grantee
WHERE pg_class.oid = ANY (%s::regclass[]) AND grantee <> relowner ORDER BY 1
"""
_RIGHTS = """
SELECT relname, privilege_type, is_grantable, quote_ident(attname),
  CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END
FROM pg_class c CROSS JOIN LATERAL (
  SELECT *, NULL AS attname FROM aclexplode(c.relacl)
  UNION ALL SELECT acl.*, attname FROM pg_attribute, aclexplode(attacl) acl WHERE attrelid = c.oid
) acl WHERE c.oid = ANY (%s::regclass[]) AND grantee <> relowner ORDER BY 1, 5, 2
"""
# Whoever can be one of these reads or writes rows of others, through the server or around it. Who makes objects where
# others look for them (a better match for a call, a schema named after a role) lets others run what is in them.
_MIGHTY = """
WITH place AS (
  SELECT relowner, nspowner, datdba, nspname, nspacl, datacl FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
  JOIN pg_database ON datname = current_database() WHERE c.oid = 'grampus_documents'::regclass
), mighty AS (
  SELECT oid, why FROM pg_roles CROSS JOIN LATERAL (VALUES
    (rolsuper OR rolbypassrls, 'sees every row'),
    (rolcreaterole, 'gives itself other roles'),
    (rolreplication, 'copies the whole server'),
    (starts_with(rolname::text, 'pg_'), 'has rights over the server or the database')
  ) AS reason (holds, why) WHERE holds
  UNION SELECT relowner, 'owns the tables' FROM place
  UNION SELECT nspowner, 'owns the schema' FROM place
  UNION SELECT datdba, 'owns the database' FROM place
  UNION SELECT grantee, 'may create in the schema ' || nspname || ' what others then call'
    FROM place, aclexplode(nspacl) WHERE privilege_type = 'CREATE'
  UNION SELECT grantee, 'may create schemas in the database that others then look into'
    FROM place, aclexplode(datacl) WHERE privilege_type = 'CREATE'
)
SELECT r.rolname, m.rolname, why FROM mighty JOIN pg_roles m USING (oid)
  JOIN pg_roles r ON r.oid = m.oid OR NOT r.rolsuper AND pg_has_role(r.oid, m.oid, 'MEMBER')
  WHERE r.rolname = ANY (%(roles)s)
UNION SELECT r.rolname, m.rolname, 'is another tenant' FROM pg_roles r, pg_roles m
  WHERE r.rolname = ANY (%(roles)s) AND m.rolname = ANY (%(tenants)s) AND r.oid <> m.oid
  AND NOT r.rolsuper AND pg_has_role(r.oid, m.oid, 'MEMBER')
UNION SELECT coalesce(rolname, 'Everybody (PUBLIC)'), coalesce(rolname, 'Everybody (PUBLIC)'), why
  FROM place, mighty LEFT JOIN pg_roles USING (oid)
  WHERE starts_with(why, 'may create') AND oid NOT IN (relowner, nspowner, datdba) AND rolsuper IS NOT TRUE
ORDER BY 1, 2, 3
"""
# A fact a row: what the catalogue says of the tables and the function that could let one role at the rows of another.
_FACTS = """
WITH tables AS (SELECT * FROM pg_class WHERE oid = ANY (%s::regclass[])),
  shared AS (SELECT * FROM tables WHERE relname <> 'grampus_schema'),
  columns AS (SELECT shared.relname, a.* FROM shared
    JOIN pg_attribute a ON attrelid = shared.oid AND attnum > 0 AND NOT attisdropped)
SELECT relname, format('row-level security %%s, forced %%s', relrowsecurity, relforcerowsecurity) FROM shared
UNION SELECT relname, format('%%s policy %%s for %%s to %%s using %%s with check %%s',
  permissive, policyname, cmd, roles, qual, with_check)
  FROM pg_policies JOIN tables ON relname = tablename WHERE schemaname = current_schema()
UNION SELECT relname, format('column %%s %%s%%s default %%s', attname, format_type(atttypid, atttypmod),
  CASE WHEN attnotnull THEN ' not null' END, pg_get_expr(adbin, adrelid))
  FROM columns LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attname = 'tenant' OR atthasdef
UNION SELECT relname, 'statistics of ' || attname FROM columns WHERE attstattarget IS DISTINCT FROM 0
UNION SELECT relname, 'statistics ' || stxname FROM shared JOIN pg_statistic_ext ON stxrelid = shared.oid
UNION SELECT relname, replace(pg_get_indexdef(indexrelid), format(' ON %%I.', current_schema()), ' ON ')
  || CASE WHEN indisvalid THEN '' ELSE ' (invalid)' END FROM shared JOIN pg_index ON indrelid = shared.oid
UNION SELECT relname, 'trigger ' || tgname FROM tables JOIN pg_trigger ON tgrelid = tables.oid AND NOT tgisinternal
UNION SELECT relname, 'rule ' || rulename FROM tables JOIN pg_rewrite ON ev_class = tables.oid
UNION SELECT relname, 'constraint ' || conname FROM tables
  JOIN pg_constraint ON tables.oid IN (conrelid, confrelid) AND contype NOT IN ('p', 'n')
UNION SELECT relname, 'inheritance' FROM tables JOIN pg_inherits ON tables.oid IN (inhrelid, inhparent)
UNION SELECT relname, 'owner ' || pg_get_userbyid(relowner) FROM tables
  WHERE relowner <> (SELECT relowner FROM pg_class WHERE oid = 'grampus_documents'::regclass)
UNION SELECT proname, fact FROM pg_proc p JOIN pg_language l ON l.oid = prolang
  JOIN tables ON relnamespace = pronamespace AND proname = 'grampus_write' AND relname = 'grampus_documents'
  CROSS JOIN LATERAL (VALUES ('arguments ' || pg_get_function_identity_arguments(p.oid)),
    (CASE WHEN prosecdef THEN 'rights of its owner' ELSE 'rights of its caller' END),
    (format('settings %%s', proconfig)),
    (format('language %%s, body %%s', lanname, left(encode(sha256(convert_to(prosrc, 'UTF8')), 'hex'), 32))),
    (CASE WHEN proowner <> relowner THEN 'owner ' || pg_get_userbyid(proowner) END)) AS f (fact) WHERE fact IS NOT NULL
"""


async def add_tenant(url: str, role: str) -> None:
    """Give a database role a place of its own in the store at `url`, which is logged into as the tables' owner.

    The first call makes the store one of tenants, while it is in use: what is there belongs to the owner from then on.
    Rights on the tables that row-level security does not watch over are taken back from every role.
    Raises ConfigurationError for a role that is not there or that could see other tenants' rows, StoreError otherwise,
    also where something that is not of this package would let tenants at each other's rows.
    """

    def work(db: Any) -> None:
        (owner,) = db.execute("SELECT relowner::regrole::text FROM pg_class WHERE oid = %s::regclass", names).fetchone()
        if owner != db.execute("SELECT quote_ident(current_user)").fetchone()[0]:
            raise StoreError(f"The store belongs to the role {owner!r}: only this role can give it tenants.")
        if db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s::text", (role,)).fetchone() is None:
            way_out = "CREATE ROLE … LOGIN PASSWORD … makes one."
            raise ConfigurationError.of("role", "tenants add", "a role of this database server", role, way_out)
        wrong = _mighty(db, [role], _tenants(db))
        if wrong:
            raise ConfigurationError.of("role", "tenants add", "one that sees its own rows only", role, wrong[0])
        _divide(db)
        _secure(db)
        wrong = _problems(db, _tenants(db))
        if wrong:
            raise StoreError(f"Tenants of this store would not be kept apart. {' '.join(wrong)}")
        (quoted,) = db.execute("SELECT quote_ident(%s)", (role,)).fetchone()
        for table, rights in _MAY.items():
            db.execute(f"GRANT {', '.join(rights)} ON {table} TO {quoted}")

    names = ("grampus_documents",)
    store = PostgresStore(url)
    await store.now()  # makes the tables
    await store.aclose()
    await _connected(url, work)


async def problems(url: str) -> tuple[list[str], list[str]]:
    """The roles that may use the store at `url`, and in a sentence each why rows of tenants are not kept apart."""

    def work(db: Any) -> tuple[list[str], list[str]]:
        roles = _tenants(db)
        return roles, _problems(db, roles)

    return await _connected(url, work)


async def _connected(url: str, work: Callable[[Any], Result]) -> Result:
    store = PostgresStore(url, create=False, timeout_s=math.inf)  # an index of a large table takes its time
    try:
        return await store._run(work)
    finally:
        await store.aclose()


def _tenants(db: Any) -> list[str]:
    return [str(name) for (name,) in db.execute(_TENANTS, ([*_TABLES],))]


def _problems(db: Any, roles: Sequence[str]) -> list[str]:
    """Why the rows of these roles are not kept apart: powers of roles, rights on the tables, facts of the catalogue."""
    undue: dict[tuple[str, str], list[str]] = {}
    for table, who, right, _ in _undue(db):
        undue.setdefault((table, who), []).append(right)
    expected, found = _expected(db), {tuple(row) for row in db.execute(_FACTS, ([*_MAY],))}
    return [
        *_mighty(db, roles, roles),
        *(f"{who} holds {', '.join(rights)} on {table}." for (table, who), rights in undue.items()),
        *(f"{place} lacks what `tenants add` makes: {fact}." for place, fact in sorted(expected - found)),
        *(f"{place} has what `tenants add` does not make: {fact}." for place, fact in sorted(found - expected)),
    ]


def _expected(db: Any) -> set[tuple[str, str]]:
    """The facts of a store of tenants as `add_tenant` leaves them."""
    body = hashlib.sha256(write_function(db).encode()).hexdigest()[:32]
    function = (
        "arguments ops text[], names text[], keys text[], expecteds bigint[], labels text[], bodies text[]",
        "rights of its caller",
        'settings {"search_path=pg_catalog, pg_temp"}',
        f"language plpgsql, body {body}",
    )
    facts = {("grampus_write", fact) for fact in function}
    mine = "(tenant = CURRENT_USER)"
    for table, key in _TABLES.items():
        place = ", ".join(('"position"' if name == "position" else name) for name in ("tenant", *key))
        facts |= {
            (table, "row-level security t, forced t"),
            (table, f"PERMISSIVE policy grampus_tenant for ALL to {{public}} using {mine} with check {mine}"),
            (table, "column tenant name not null default CURRENT_USER"),
            (table, f"CREATE UNIQUE INDEX {table}_pkey ON {table} USING btree ({place})"),
        }
    written = "column written_s double precision not null default 0"
    indexes = {f"CREATE INDEX {name} ON grampus_documents USING btree {columns}" for name, columns in _INDEXES.items()}
    return facts | {("grampus_documents", fact) for fact in {written, *indexes}}


def _undue(db: Any) -> Iterator[tuple[str, str, str, str]]:
    """Rights that only the owner should have: table, holder, what it holds, and the statement that takes it back."""
    for table, right, grantable, column, who in db.execute(_RIGHTS, ([*_MAY],)).fetchall():
        fair = who != "PUBLIC" and column is None and right in _MAY[table]
        named = right if column is None else f"{right} ({column})"
        if not fair:
            yield table, who, named, f"REVOKE {named} ON {table} FROM {who} CASCADE"
        elif grantable:
            yield (
                table,
                who,
                f"{named} with grant option",
                f"REVOKE GRANT OPTION FOR {named} ON {table} FROM {who} CASCADE",
            )


def _mighty(db: Any, roles: Sequence[str], tenants: Sequence[str]) -> list[str]:
    rows = db.execute(_MIGHTY, {"roles": [*roles], "tenants": [*tenants]}).fetchall()
    return [
        f"{role} {why}." if role == mighty else f"{role} is a member of {mighty}, who {why}."
        for role, mighty, why in rows
    ]


def _divide(db: Any) -> None:
    """Give every row its tenant, and every index the tenant first; nothing where that was done. Writers go on."""
    for table, key in _TABLES.items():
        _patiently(db, f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS tenant name NOT NULL DEFAULT current_user")
        if _leads(db, f"{table}_pkey"):
            continue
        _indexed(db, f"{table}_of_tenant", table, f"(tenant, {', '.join(key)})", "UNIQUE ")
        _patiently(
            db,
            f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey,"
            f" ADD CONSTRAINT {table}_pkey PRIMARY KEY USING INDEX {table}_of_tenant",
        )
    for name, columns in _INDEXES.items():
        if not _leads(db, name):
            _indexed(db, f"{name}_of_tenant", "grampus_documents", columns)
            _patiently(db, f"DROP INDEX IF EXISTS {name}", f"ALTER INDEX {name}_of_tenant RENAME TO {name}")


def _leads(db: Any, index: str) -> bool:
    """Return True if the index's first column is the tenant."""
    sql = "SELECT pg_get_indexdef(to_regclass(%s), 1, true) = 'tenant'"
    return bool(db.execute(sql, (index,)).fetchone()[0])


def _indexed(db: Any, name: str, table: str, columns: str, unique: str = "") -> None:
    """Make an index beside the writers; one that an earlier attempt left unfinished is made anew."""
    db.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    db.execute(f"CREATE {unique}INDEX CONCURRENTLY {name} ON {table} {columns}")


def _secure(db: Any) -> None:
    """Put policies, rights, statistics and the function as they must be, whatever they were, in one transaction."""
    statements = [WRITE, *(statement for *_, statement in _undue(db))]
    for table in _TABLES:
        statements += [
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
            f"DROP POLICY IF EXISTS grampus_tenant ON {table}",
            *_without_statistics(db, table),
            f"CREATE POLICY grampus_tenant ON {table} USING (tenant = current_user) WITH CHECK (tenant = current_user)",
        ]
    from psycopg import errors

    try:
        _patiently(db, *statements)
    except errors.FeatureNotSupported as error:  # what was sampled goes only while nobody else builds on the columns
        what = f"{error.diag.message_primary}: {error.diag.message_detail}"
        raise StoreError(f"{what}. Drop it, add the tenant, and make it again.") from error


def _without_statistics(db: Any, table: str) -> list[str]:
    """Statements that forget what ANALYZE sampled of a table: everybody may ask the planner for its bounds."""
    sampled = (
        "SELECT quote_ident(attname), format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attstattarget IS DISTINCT FROM 0"
    )
    return [  # the type stays what it is: nothing is rewritten, but what was sampled goes
        f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind}, ALTER COLUMN {name} SET STATISTICS 0"
        for name, kind in db.execute(sampled, (table,)).fetchall()
    ]


def _patiently(db: Any, *statements: str) -> None:
    """Run statements that lock a table in one transaction, without others queueing behind it: by short attempts."""
    from psycopg import errors

    for attempt in range(_LOCK_TRIES):
        try:
            with db.transaction():
                db.execute("SET LOCAL lock_timeout = '200ms'")
                for statement in statements:
                    db.execute(statement)
            return
        except (errors.LockNotAvailable, errors.DeadlockDetected):
            if attempt + 1 == _LOCK_TRIES:
                raise
            time.sleep(0.05)
