"""`grampus-uq prune`: forget the sessions of a store that ended long ago."""

from __future__ import annotations

import json

import anyio
import click

from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.store import open_store

__all__ = ["command"]


@click.command()
@click.option("--store", "url", required=True, envvar="GRAMPUS_UQ_STORE", help="Where sessions are kept.")
@click.option("--older-than", "days", required=True, type=float, help="Days since the session ended.")
@click.option("--audits", is_flag=True, help="Their audits too, which are otherwise kept.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(url: str, days: float, audits: bool, as_json: bool) -> None:
    """Forget sessions that ended, with their transcripts and checkpoints. What waits or runs is never touched."""

    async def work() -> int:
        store = open_store(url, create=False)
        try:
            return await prune(store, days * 86_400.0, audits=audits)
        finally:
            await store.aclose()

    forgotten = anyio.run(work)
    click.echo(json.dumps({"forgotten": forgotten}) if as_json else f"Forgot {forgotten} sessions.")
