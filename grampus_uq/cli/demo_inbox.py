"""`grampus-uq demo --inbox`: the clerk's held calls wait on a page, and approving one finishes its run."""

from __future__ import annotations

from typing import Any

import anyio
import click

from grampus_uq.cli.demo.mails import draw_mails
from grampus_uq.cli.demo.waiting_mails import CLERK, SENTENCES, waiting_clerk
from grampus_uq.inbox.inbox_app import inbox_app
from grampus_uq.inbox.inbox_serving import listening, serve_inbox
from grampus_uq.inbox.inbox_settings import InboxSettings
from grampus_uq.inbox.people import People, Role
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.worker import Worker

_PORT = 8600


async def run_inbox(client: Any, url: str, *, n: int, seed: int, port: int = _PORT) -> None:
    """Handle the mails with this model, then serve what waits, with a worker beside it, until a signal ends it."""
    at = listening("127.0.0.1", port)
    store, mails, done = open_store(url), draw_mails(n, seed), list[str]()
    agent = waiting_clerk(client, mails, store, done)
    try:
        waits = 0
        for mail in mails:
            result = await agent.run(CLERK, mail.text, session_id=f"mail-{mail.id}")
            waits += result.status is AgentStatus.WAITING_FOR_HUMAN
        settings = InboxSettings(origin=f"http://localhost:{port}")
        token = await People(store).invite("you", Role.DECIDE)
        click.echo(f"{waits} of {n} calls wait, {len(done)} executed. This clerk accepts any decision, signed or not.")
        click.echo(f"Create a passkey and decide: {settings.origin}/invitation#{token}")
        worker = Worker(runner=agent, agents=[CLERK.name], on_job=lambda job, ended, why: _tell(done))
        app = inbox_app(store, settings, sentences=SENTENCES)
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            await serve_inbox(app, at)
            worker.stop()
    finally:
        await store.aclose()


def _tell(done: list[str]) -> None:
    if done:
        click.echo(f"done so far: {', '.join(done)}", err=True)
