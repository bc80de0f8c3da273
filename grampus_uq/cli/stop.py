"""`grampus-uq stop`: order one session, or all of a store, to stop wherever they run."""

from __future__ import annotations

import getpass
import json

import anyio
import click

from grampus_uq.errors import ConfigurationError
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import open_store
from grampus_uq.vocabulary import AgentStatus

__all__ = ["command"]


@click.command()
@click.argument("agent_id", required=False)
@click.argument("session_id", required=False)
@click.option("--store", "url", required=True, envvar="GRAMPUS_UQ_STORE", help="Where sessions are kept.")
@click.option("--all", "everything", is_flag=True, help="Every session of the store that runs now.")
@click.option("--as", "principal", default=None, help="Who orders it; the login name when not given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    agent_id: str | None, session_id: str | None, url: str, everything: bool, principal: str | None, as_json: bool
) -> None:
    """Stop the session SESSION_ID of AGENT_ID, or with --all every session: within a second of the order."""
    if everything == (session_id is not None):
        raise ConfigurationError.of("AGENT_ID SESSION_ID", "stop", "given, or --all instead", agent_id)

    async def work() -> None:
        store = open_store(url)
        try:
            ledger = Ledger(store)
            if agent_id is not None and session_id is not None:
                await _check_runs(ledger, agent_id, session_id)
            await ledger.stop(agent_id, session_id, principal=principal or getpass.getuser())
        finally:
            await store.aclose()

    anyio.run(work)
    what = "all sessions" if everything else f"{agent_id}/{session_id}"
    click.echo(json.dumps({"stopped": what}) if as_json else f"Ordered {what} to stop.")


async def _check_runs(ledger: Ledger, agent_id: str, session_id: str) -> None:
    """Refuse an order that would reach nobody: who mistyped an id must not believe that the agent stands still."""
    loaded = await ledger.load(agent_id, session_id)
    if loaded is None:
        raise click.ClickException(f"There is no session {session_id!r:.80} of agent {agent_id!r:.80}.")
    if loaded[0].status in (AgentStatus.COMPLETED, AgentStatus.FAILED):
        raise click.ClickException(f"Session {session_id!r:.80} has ended already ({loaded[0].status.value}).")
