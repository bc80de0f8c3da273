"""`grampus-uq tenants`: the database roles that share one PostgreSQL store without seeing each other's rows."""

from __future__ import annotations

import anyio
import click

from grampus_uq.cli.argument_types import SummarisedGroup
from grampus_uq.cli.printing import as_json_option, print_result
from grampus_uq.cli.store_options import store_option
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.visible_text import visible
from grampus_uq.runtime.stores.tenants import add_tenant, problems


@click.group(cls=SummarisedGroup)
def command() -> None:
    """Separate tenants of one PostgreSQL store by row-level security; a tenant is a database role."""


def _postgres(url: str) -> str:
    if not url.startswith(("postgresql:", "postgres:")):
        way_out = "SQLite: a file for each tenant; Redis: ?namespace=… and an ACL for each."
        raise ConfigurationError.of("--store", "tenants", "postgresql://…", url.partition(":")[0] + ":…", way_out)
    return url


@command.command()
@click.argument("role")
@store_option
def add(role: str, url: str) -> None:
    """Give the database role ROLE a separate area of the store; --store logs in as the owner of its tables."""
    anyio.run(add_tenant, _postgres(url), role)
    click.echo(f"{visible(role)} has a separate area. Existing data belongs to the owner of the tables.")


@command.command()
@store_option
@as_json_option
def check(url: str, as_json: bool) -> None:
    """List the roles that may use the store, and every reason why their rows are not separated."""
    roles, found = anyio.run(problems, _postgres(url))
    print_result(as_json, {"roles": roles, "problems": found}, map(visible, [*roles, *found]))
    if found or not roles:
        mended = (
            "`tenants add` with one of these roles repairs rights, policies and the function; fix the rest by hand."
        )
        raise click.ClickException(f"{len(found)} problems. {mended}" if found else "This store has no tenants.")
