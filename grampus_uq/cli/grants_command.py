"""`grampus-uq grants`: see which grants let calls run unasked, and take one back."""

from __future__ import annotations

from typing import Any

import click

from grampus_uq.cli.argument_types import SummarisedGroup
from grampus_uq.cli.printing import as_json_option, one_line, print_list
from grampus_uq.cli.store_options import as_option, on_store
from grampus_uq.records.values import canonical_json
from grampus_uq.records.visible_text import short
from grampus_uq.runtime.permit_words import until
from grampus_uq.runtime.standing_grants import StoredGrant, revoke_grant, stored_grants
from grampus_uq.runtime.store import SessionStore


@click.group(name="grants", cls=SummarisedGroup)
def command() -> None:
    """List and revoke grants, which let calls of one tool run without asking. `Ledger.grant` stores one."""


@command.command(name="list")
@on_store
@as_json_option
async def list_(store: SessionStore, as_json: bool) -> None:
    """List grants, earliest end first; only the runner checks signatures."""
    found = await stored_grants(store)
    columns = ("grant", "tool", "limits", "by", "until", "used", "valid")
    print_list(as_json, map(_shown, found), columns, map(_row, found), "No grants.")


def _shown(one: StoredGrant) -> dict[str, Any]:
    known = {"uses": one.uses, "revoked_by": one.revoked, "why_not": one.why_not}
    return one.grant.model_dump(mode="json") | known


def _row(one: StoredGrant) -> list[str]:
    given, by = one.grant, "" if one.revoked is None else f" by {one.revoked}"
    limits, ends = canonical_json(given.limits), until(given.expires_s, "%Y-%m-%d %H:%M:%S UTC")
    cells = (given.id, given.tool, limits, given.principal, ends, str(one.uses), f"{one.why_not or 'yes'}{by}")
    return [short(cell, 200) for cell in cells]


@command.command()
@click.argument("grant_id")
@as_option("Who revokes it")
@on_store
async def revoke(grant_id: str, principal: str, store: SessionStore) -> None:
    """Take a grant back: calls that have not started are asked about. Needs no key: anybody with access to the store
    may stop it.
    """
    found = (await revoke_grant(store, grant_id, principal)).grant
    click.echo(f"Grant {one_line(found.id)} lets no further call of {one_line(found.tool)} run.")
