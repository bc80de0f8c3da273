"""Tenants of one PostgreSQL store: each a database role, kept apart by row-level security.

A row belongs to the role that wrote it, and no other role sees it, whatever this package or its caller does: the
server checks it on every statement. The policy is forced on the tables' owner too. Superusers and roles with BYPASSRLS
see everything; so does whoever may become one. `problems` names them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from grampus_uq.errors import ConfigurationError, StoreError
from grampus_uq.runtime.stores.postgres import PostgresStore

Result = TypeVar("Result")

_TABLES = {"grampus_documents": ("kind", "key"), "grampus_logs": ("log", "position")}
_INDEXES = {
    "grampus_documents_by_label": '(tenant, kind, label, key COLLATE "C")',
    "grampus_documents_by_key": '(tenant, kind, key COLLATE "C")',
}
_LOCK_TRIES = 60
_GRANTED = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON grampus_documents, grampus_logs TO {}",
    "GRANT SELECT ON grampus_schema TO {}",
)
# Whoever can be one of these can read or write every row, through the server or around it.
_MIGHTY = """
SELECT r.rolname, m.rolname FROM pg_roles r JOIN pg_roles m ON pg_has_role(r.oid, m.oid, 'MEMBER')
WHERE NOT r.rolsuper AND r.rolname = ANY (%s) AND (m.rolbypassrls OR m.rolcreaterole OR m.rolreplication OR m.rolsuper
  OR m.rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program')
  OR (m.oid <> r.oid AND (m.rolname = ANY (%s)
    OR m.oid = (SELECT relowner FROM pg_class WHERE oid = 'grampus_documents'::regclass))))
UNION ALL SELECT rolname, 'a superuser' FROM pg_roles WHERE rolsuper AND rolname = ANY (%s)
"""
_BARE = (
    "SELECT relname FROM pg_class WHERE oid IN (%s::regclass, %s::regclass)"
    " AND NOT (relrowsecurity AND relforcerowsecurity)"
)
_OTHERS = "SELECT tablename, policyname FROM pg_policies WHERE tablename = ANY (%s) AND policyname <> 'grampus_tenant'"


async def add_tenant(url: str, role: str) -> None:
    """Give a database role a place of its own in the store at `url`, which is logged into as the tables' owner.

    The first call makes the store one of tenants, while it is in use: what is there belongs to the owner from then on.
    Raises ConfigurationError for a role that is not there or that could see other tenants' rows, StoreError otherwise.
    """

    def work(db: Any) -> None:
        (owner,) = db.execute("SELECT tableowner FROM pg_tables WHERE tablename = 'grampus_documents'").fetchone()
        if owner != db.execute("SELECT current_user").fetchone()[0]:
            raise StoreError(f"The store belongs to the role {owner!r}: only this role can give it tenants.")
        if db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
            way_out = "CREATE ROLE … LOGIN PASSWORD … makes one."
            raise ConfigurationError.of("role", "tenants add", "a role of this database server", role, way_out)
        wrong = _mighty(db, [role], _tenants(db))
        if wrong:
            raise ConfigurationError.of("role", "tenants add", "one that sees its own rows only", role, wrong[0])
        _divide(db)
        _secure(db)
        quoted = db.execute("SELECT quote_ident(%s)", (role,)).fetchone()[0]
        for grant in _GRANTED:
            db.execute(grant.format(quoted))

    store = PostgresStore(url)
    await store.now()  # makes the tables
    await store.aclose()
    await _connected(url, work)


async def problems(url: str) -> tuple[list[str], list[str]]:
    """The roles that may use the store at `url`, and in a sentence each why rows of tenants are not kept apart."""

    def work(db: Any) -> tuple[list[str], list[str]]:
        roles = _tenants(db)
        found = _mighty(db, roles, roles)
        names = [*_TABLES]
        bare = db.execute(_BARE, names).fetchall()
        found += [f"The table {name} has no row-level security that is forced." for (name,) in bare]
        others = db.execute(_OTHERS, (names,)).fetchall()
        return roles, found + [f"The table {table} has another policy too, {name!r}." for table, name in others]

    return await _connected(url, work)


async def _connected(url: str, work: Callable[[Any], Result]) -> Result:
    store = PostgresStore(url, create=False)
    try:
        return await store._run(work)
    finally:
        await store.aclose()


def _tenants(db: Any) -> list[str]:
    sql = (
        "SELECT DISTINCT grantee FROM information_schema.role_table_grants WHERE table_name = ANY (%s)"
        " AND grantee <> (SELECT tableowner FROM pg_tables WHERE tablename = 'grampus_documents')"
    )
    return sorted(str(name) for (name,) in db.execute(sql, ([*_TABLES],)))


def _mighty(db: Any, roles: Sequence[str], tenants: Sequence[str]) -> list[str]:
    rows = db.execute(_MIGHTY, (list(roles), list(tenants), list(roles))).fetchall()
    return [f"The role {role!r} is or can become {mighty!r}, who sees more than its own rows." for role, mighty in rows]


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
    """True for an index whose first column is the tenant."""
    sql = "SELECT pg_get_indexdef(to_regclass(%s), 1, true) = 'tenant'"
    return bool(db.execute(sql, (index,)).fetchone()[0])


def _indexed(db: Any, name: str, table: str, columns: str, unique: str = "") -> None:
    """Make an index beside the writers; one that an earlier attempt left unfinished is made anew."""
    db.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    db.execute(f"CREATE {unique}INDEX CONCURRENTLY {name} ON {table} {columns}")


def _secure(db: Any) -> None:
    statements = []
    for table in _TABLES:
        statements += [
            f"REVOKE ALL ON {table} FROM PUBLIC",
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
            f"DROP POLICY IF EXISTS grampus_tenant ON {table}",
            f"CREATE POLICY grampus_tenant ON {table} USING (tenant = current_user) WITH CHECK (tenant = current_user)",
        ]
    _patiently(db, *statements)


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
