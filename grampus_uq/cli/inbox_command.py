"""`grampus-uq inbox`: pages on which people decide, with a passkey, what waits in a store."""

from __future__ import annotations

import os
from socket import socket

import anyio
import click

from grampus_uq.cli.argument_types import FiniteRange, SummarisedGroup
from grampus_uq.cli.printing import as_json_option, print_json, print_list
from grampus_uq.cli.store_options import STORE_HELP, on_store
from grampus_uq.inbox.inbox_settings import InboxSettings
from grampus_uq.inbox.people import People, Role, keys_of
from grampus_uq.records.call_sentences import read_sentences
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.pending_approvals import index_pending
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores import open_store

_PORT = 8600
_origin_option = click.option(
    "--origin", help=f"The public address, as https://NAME; http://localhost:{_PORT} by default."
)


@click.group(cls=SummarisedGroup, invoke_without_command=True)
@click.option("--store", "url", envvar="GRAMPUS_UQ_STORE", show_envvar=True, help=STORE_HELP)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=_PORT, type=click.IntRange(1, 65_535))
@_origin_option
@click.option("--required", default=1, type=click.IntRange(1, 20), help="Approvals required by the runner.")
@click.option("--sentences", "path", help="TOML file with a sentence per tool that says what its calls do.")
@click.option("--runs", "folder", help="Folder of recordings to label on the pages.")
@click.option("--notify", metavar="URL", help="Webhook to notify of new pending approvals.")
@click.pass_context
def command(
    context: click.Context,
    url: str | None,
    host: str,
    port: int,
    origin: str | None,
    required: int,
    path: str | None,
    folder: str | None,
    notify: str | None,
) -> None:
    """Serve the inbox, the web pages for pending approvals; its commands manage people and keys.

    Behind a reverse proxy, give its public address as --origin, and pass the Host header unchanged.
    """
    if context.invoked_subcommand is not None:
        return
    if url is None:
        raise click.UsageError("Missing option '--store' (env var: 'GRAMPUS_UQ_STORE').")
    from grampus_uq.inbox.arrivals import Arrivals
    from grampus_uq.inbox.inbox_app import inbox_app
    from grampus_uq.inbox.label_pages import labels_section
    from grampus_uq.inbox.notices import Notices
    from grampus_uq.inbox.reviewer_pages import SECTIONS
    from grampus_uq.runtime.http_server import listening

    settings = InboxSettings(origin=origin or f"http://localhost:{port}")
    sentences = {} if path is None else read_sentences(path)
    secret = os.environ.get("GRAMPUS_UQ_WEBHOOK_SECRET")
    notices = None if notify is None else Notices(url=notify, link=f"{settings.origin}/requests", secret=secret)

    store = open_store(url, create=False)

    async def serve(at: socket) -> None:
        try:
            await index_pending(Ledger(store))
            click.echo(f"The inbox is at {settings.origin}", err=True)
            sections = SECTIONS if folder is None else (labels_section(folder), *SECTIONS)
            app = inbox_app(store, settings, sections, required=required, sentences=sentences)
            async with anyio.create_task_group() as group:
                group.start_soon((notices or Arrivals()).run, store)
                await app.server().serve(sockets=[at])
                group.cancel_scope.cancel()
        finally:
            await store.aclose()

    with listening(host, port) as at:
        anyio.run(serve, at)


@command.command()
@click.argument("name")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="What NAME may do.")
@click.option("--hours", default=1.0, type=FiniteRange(0.01, 168.0), help="Hours for which the link is valid.")
@on_store
@_origin_option
async def invite(name: str, role: str, hours: float, store: SessionStore, origin: str | None) -> None:
    """Print a one-time link with which NAME creates a passkey; it is not stored, so it cannot be printed again."""
    settings = InboxSettings(origin=origin or f"http://localhost:{_PORT}")
    token = await People(store).invite(name, Role(role), for_s=3600.0 * hours)
    click.echo(f"{settings.origin}/invitation#{token}")
    click.echo(f"For {name}, with the role {role}; valid once, for {hours:g} h.", err=True)


@command.command()
@on_store
@click.option(
    "--deputies",
    is_flag=True,
    help="Print the deputies' keys instead, marked as such; `ApprovalPolicy(deputies=)` names them.",
)
async def keys(store: SessionStore, deputies: bool) -> None:
    """Print the public keys of all approvers, as the JSON file that `PublicKeys.from_file` reads."""
    print_json(keys_of(await People(store).all(), Role.DEPUTY if deputies else Role.DECIDE))


@command.command()
@on_store
@as_json_option
async def people(store: SessionStore, as_json: bool) -> None:
    """List people with a passkey, and their roles."""
    found = await People(store).all()
    columns = ("name", "role", "passkeys")
    rows = [(one.name, one.role.value, len(one.passkeys)) for one in found]
    values = (dict(zip(columns, row, strict=True)) for row in rows)
    print_list(as_json, values, columns, rows, "Nobody is registered.")


@command.command()
@click.argument("name")
@on_store
async def remove(name: str, store: SessionStore) -> None:
    """Remove NAME and end their sessions; remove the public key from the runner's configuration yourself."""
    if not await People(store).remove(name):
        raise click.ClickException(f"Nobody is registered as {name!r:.80}; any open invitation is withdrawn.")
    click.echo(f"{name} is removed. The runner accepts their decisions until you remove their key there.")
