"""`grampus-uq prune`: forget the sessions of a store that ended long ago, or move them into recordings."""

from __future__ import annotations

import click

from grampus_uq.cli.argument_types import FiniteRange
from grampus_uq.cli.printing import as_json_option, print_result
from grampus_uq.cli.store_options import on_store
from grampus_uq.errors import ConfigurationError
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.store import SessionStore

_DAY_S = 86_400.0
_DAYS = FiniteRange(min=0, min_open=True)


@click.command()
@on_store
@click.option("--older-than", "days", type=_DAYS, help="Days since the session ended.")
@click.option(
    "--keep", type=click.IntRange(min=0), default=None, help="Keep only this many of the ended sessions, the latest."
)
@click.option(
    "--move-to", default=None, metavar="FOLDER", help="First write each as a recording (`runs pack` packs them)."
)
@click.option("--audits", is_flag=True, help="Also delete their audit logs, which are otherwise kept.")
@click.option(
    "--audits-older-than", "audit_days", type=_DAYS, help="Also delete kept audit logs older than this many days."
)
@as_json_option
async def command(
    store: SessionStore,
    days: float | None,
    keep: int | None,
    move_to: str | None,
    audits: bool,
    audit_days: float | None,
    as_json: bool,
) -> None:
    """Delete ended sessions, with their transcripts and checkpoints. Live ones are never touched."""
    if days is None and keep is None and audit_days is None:
        rule = "at least one of --older-than, --keep and --audits-older-than"
        raise ConfigurationError.of("--older-than", "prune", rule, None)
    forgotten = await prune(
        store,
        older_than_s=None if days is None else days * _DAY_S,
        keep=keep,
        audits=audits,
        audits_older_than_s=None if audit_days is None else audit_days * _DAY_S,
        move_to=move_to,
    )
    line = f"Deleted {forgotten} sessions." if move_to is None else f"Moved {forgotten} sessions."
    print_result(as_json, {"forgotten": forgotten}, [line])
