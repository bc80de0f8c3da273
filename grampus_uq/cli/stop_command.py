"""`grampus-uq stop`: order one session, or all of a store, to stop wherever they run, and see whether they stand."""

from __future__ import annotations

import click

from grampus_uq.cli.argument_types import FiniteRange
from grampus_uq.cli.printing import as_json_option, print_result
from grampus_uq.cli.store_options import as_option, on_store
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.vocabulary import ENDED
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stopping import order_stop
from grampus_uq.runtime.store import SessionStore


@click.command()
@click.argument("agent_id", required=False)
@click.argument("session_id", required=False)
@on_store
@click.option("--all", "everything", is_flag=True, help="Stop every running session of the store.")
@click.option("--wait", "wait_s", type=FiniteRange(min=0), default=5.0, help="Seconds to wait for sessions to stop.")
@as_option("Who orders it")
@as_json_option
async def command(
    agent_id: str | None,
    session_id: str | None,
    store: SessionStore,
    everything: bool,
    wait_s: float,
    principal: str,
    as_json: bool,
) -> None:
    """Stop the session SESSION_ID of AGENT_ID, or every session with --all, within a second.

    Exits with an error if there was no session to stop, or if one still runs after --wait seconds.
    """
    given = sum(value is not None for value in (agent_id, session_id))
    if given != (0 if everything else 2):
        rule = "given both, or --all instead of both"
        raise ConfigurationError.of("AGENT_ID SESSION_ID", "stop", rule, (agent_id, session_id))

    ledger, resumable = Ledger(store), False
    if agent_id is not None and session_id is not None:
        state, _ = await ledger.known(agent_id, session_id)
        if state.status in ENDED:
            raise click.ClickException(f"Session {session_id!r:.80} has ended already ({state.status.value}).")
        resumable = not state.leased_for_s()
    report = await order_stop(ledger, agent_id, session_id, principal=principal, wait_s=wait_s)
    what = "all sessions" if everything else f"{agent_id}/{session_id}"
    reached, acknowledged = len(report.reached), len(report.acknowledged)
    line = f"Ordered {what} to stop. Running then: {reached}; stopped now: {acknowledged}."
    print_result(as_json, {"stopped": what, "reached": report.reached, "acknowledged": report.acknowledged}, [line])
    if not reached and resumable:
        click.echo("The session is not running: the order applies when it is resumed.", err=True)
    elif not reached:
        raise click.ClickException("Nothing was stopped: no session of this store was running.")
    elif acknowledged < reached:
        left = ", ".join(key for key in report.reached if key not in report.acknowledged)
        raise click.ClickException(f"{reached - acknowledged} sessions did not stop within {wait_s:g} s: {left:.500}")
