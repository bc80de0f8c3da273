"""`grampus-uq delegations`: let a deputy decide in one's place until a time, see who may, and end it."""

from __future__ import annotations

from typing import Any

import click

from grampus_uq.cli.argument_types import FiniteRange, SummarisedGroup
from grampus_uq.cli.printing import as_json_option, print_list, print_result
from grampus_uq.cli.store_options import Signer, as_option, on_store, signing
from grampus_uq.errors import ConfigurationError
from grampus_uq.gate.delegations import LONGEST_S, Delegation
from grampus_uq.records.visible_text import in_short, visible
from grampus_uq.runtime.permit_words import until
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_delegations import StoredDelegation, delegate, revoke_delegation, stored_delegations

_HOUR_S, _TIME = 3600.0, "%Y-%m-%d %H:%M:%S UTC"


@click.group(name="delegations", cls=SummarisedGroup)
def command() -> None:
    """Grant, list and revoke delegations, which let a deputy decide in your place.

    A delegation is valid if the runner's `ApprovalPolicy(deputies=...)` names the deputy, and an approver
    signed it with the private key in --key or GRAMPUS_UQ_APPROVAL_KEY_FILE.
    """


@command.command()
@click.argument("deputy")
@click.option("--hours", required=True, type=FiniteRange(0.01, LONGEST_S / _HOUR_S), help="Duration from now on.")
@click.option("--tool", "tools", multiple=True, metavar="NAME", help="Only on calls of this tool; may be repeated.")
@on_store
@signing("Your name")
@as_json_option
async def grant(
    deputy: str,
    hours: float,
    tools: tuple[str, ...],
    signer: Signer | None,
    principal: str,
    store: SessionStore,
    as_json: bool,
) -> None:
    """Let DEPUTY decide in your place from now on, for a number of hours."""
    if signer is None:
        raise ConfigurationError.of("--key", "delegations grant", "given: a delegation is signed", None)
    now_s = await store.now()
    times: dict[str, Any] = {"from_s": now_s, "until_s": now_s + hours * _HOUR_S}
    try:
        given = Delegation(principal=principal, deputy=deputy, tools=tools or None, **times)
    except ValueError as error:
        raise ConfigurationError.of("DEPUTY", "delegations grant", "a name other than one's own", deputy) from error
    given = signer.sign(given)
    await delegate(store, given)
    line = (
        f"{visible(given.deputy)} decides in place of {visible(given.principal)} on {_tools(given)} until "
        f"{until(given.until_s, _TIME)}: {given.id}"
    )
    print_result(as_json, given.model_dump(mode="json"), [line])


@command.command(name="list")
@on_store
@as_json_option
async def list_(store: SessionStore, as_json: bool) -> None:
    """List delegations, earliest end first; only the runner checks signatures."""
    found = await stored_delegations(store)
    columns = ("delegation", "deputy", "for", "on", "until", "valid")
    print_list(as_json, map(_shown, found), columns, map(_row, found), "No delegations.")


def _shown(one: StoredDelegation) -> dict[str, Any]:
    return one.delegation.model_dump(mode="json") | {"revoked_by": one.revoked, "why_not": one.why_not}


def _row(one: StoredDelegation) -> list[str]:
    given = one.delegation
    by = "" if one.revoked is None else f" by {in_short(one.revoked, 40)}"
    names = [in_short(name, 80) for name in (given.deputy, given.principal)]
    ends, valid = until(given.until_s, _TIME), f"{one.why_not or 'yes'}{by}"
    return [visible(given.id[:8]), *names, _tools(given), ends, valid]


def _tools(given: Delegation) -> str:
    return "everything" if given.tools is None else in_short(", ".join(given.tools), 200)


@command.command()
@click.argument("delegation_id")
@as_option("Your name")
@on_store
async def revoke(delegation_id: str, principal: str, store: SessionStore) -> None:
    """End a delegation now; the deputy's decisions that no runner has processed lapse."""
    given = (await revoke_delegation(store, delegation_id, principal)).delegation
    click.echo(f"{visible(given.deputy)} no longer decides in place of {visible(given.principal)}.")
