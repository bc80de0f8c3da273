"""`grampus-uq stuck`: the sessions that workers set aside after too many errors; try them again, or give them up."""

from __future__ import annotations

from dataclasses import asdict

import click

from grampus_uq.cli.argument_types import SummarisedGroup
from grampus_uq.cli.printing import as_json_option, print_list
from grampus_uq.cli.store_options import as_option, on_store
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.visible_text import short
from grampus_uq.records.vocabulary import span
from grampus_uq.runtime import dead_letters
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore


@click.group(cls=SummarisedGroup)
def command() -> None:
    """List, retry or drop sessions that workers set aside after too many errors."""


@command.command(name="list")
@on_store
@as_json_option
@click.option("--agent", help="Only this agent's sessions.")
async def list_(store: SessionStore, as_json: bool, agent: str | None) -> None:
    """List the first 1,000 sessions that were set aside, with their last errors."""
    now_s, found = await store.now(), await dead_letters.dead_letters(store, agent)
    columns = ("agent", "session", "errors", "since", "last error")
    rows = (
        (letter.agent_id, letter.session_id, letter.failed, span(now_s - letter.since_s), short(letter.why, 200))
        for letter in found
    )
    print_list(as_json, map(asdict, found), columns, rows, "No session is set aside.")


@command.command()
@click.argument("agent_id", required=False)
@click.argument("session_id", required=False)
@on_store
@click.option("--all", "everything", is_flag=True, help="Return every session that was set aside.")
async def retry(agent_id: str | None, session_id: str | None, store: SessionStore, everything: bool) -> None:
    """Return the session SESSION_ID of AGENT_ID to the workers, or every one with --all."""
    given = sum(value is not None for value in (agent_id, session_id))
    if given != (0 if everything else 2):
        rule = "given both, or --all instead of both"
        raise ConfigurationError.of("AGENT_ID SESSION_ID", "stuck retry", rule, (agent_id, session_id))
    done, last = 0, None
    if agent_id is not None and session_id is not None:
        await dead_letters.retry(store, agent_id, session_id)
        done = 1
    while everything and (found := await dead_letters.dead_letters(store, after=last, limit=200)):
        last = found[-1]
        for letter in found:
            await dead_letters.retry(store, letter.agent_id, letter.session_id)
            done += 1
    click.echo(f"Returned to the workers: {done}.")


@command.command()
@click.argument("agent_id")
@click.argument("session_id")
@on_store
@as_option("Who drops it")
async def drop(agent_id: str, session_id: str, store: SessionStore, principal: str) -> None:
    """Drop a session that was set aside: it ends as failed, and nothing of it runs."""
    await dead_letters.drop(Ledger(store), agent_id, session_id, principal=principal)
    click.echo("Dropped: the session has ended.")
