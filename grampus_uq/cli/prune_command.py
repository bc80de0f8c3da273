"""`grampus-uq prune`: forget the sessions of a store that ended long ago."""

from __future__ import annotations

import click

from grampus_uq.cli.printing import as_json_option, print_json
from grampus_uq.cli.store_options import store_option, with_store
from grampus_uq.runtime.retention import prune


@click.command()
@store_option
@click.option("--older-than", "days", required=True, type=float, help="Days since the session ended.")
@click.option("--audits", is_flag=True, help="Their audits too, which are otherwise kept.")
@as_json_option
def command(url: str, days: float, audits: bool, as_json: bool) -> None:
    """Forget sessions that ended, with their transcripts and checkpoints. Live ones are never touched."""
    forgotten = with_store(url, lambda store: prune(store, days * 86_400.0, audits=audits))
    if as_json:
        print_json({"forgotten": forgotten})
    else:
        click.echo(f"Forgot {forgotten} sessions.")
