"""`grampus-uq demo --inbox`: the clerk's held calls wait on a page, and approving one finishes its run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio
import click

from grampus_uq.cli.demo.clerk import TOOLS, CallingModel, prompt
from grampus_uq.cli.demo.mail_plan import MODEL, SENSING, clerk_policy
from grampus_uq.cli.demo.mails import Mail, draw_mails
from grampus_uq.core.state import Profile
from grampus_uq.inbox.inbox_app import inbox_app
from grampus_uq.inbox.inbox_settings import InboxSettings
from grampus_uq.inbox.people import People
from grampus_uq.inbox.people import Role as PersonRole
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import AgentDefinition, Message, ModelResponse
from grampus_uq.records.vocabulary import AgentStatus, Effect, Role
from grampus_uq.runtime.http_server import listening
from grampus_uq.runtime.runner import AgentRunner
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.tools import FunctionTools, tool
from grampus_uq.runtime.worker import Worker

_PORT: Final = 8600
_CLERK: Final = AgentDefinition(name="clerk", model=MODEL)
_SENTENCES: Final = {"refund": "Pays {amount} EUR back for order {order}.", "cancel": "Cancels order {order}."}


async def run_inbox(client: Any, url: str, *, n: int, seed: int, port: int = _PORT) -> None:
    """Handle the mails with this model, then serve what waits, with a worker beside it, until a signal ends it."""
    at = listening("127.0.0.1", port)
    store, mails, done = open_store(url), draw_mails(n, seed), list[str]()
    agent = _waiting_clerk(client, mails, store, done)
    try:
        waits = 0
        for mail in mails:
            result = await agent.run(_CLERK, mail.text, session_id=f"mail-{mail.id}")
            waits += result.status is AgentStatus.WAITING_FOR_HUMAN
        settings = InboxSettings(origin=f"http://localhost:{port}")
        token = await People(store).invite("you", PersonRole.DECIDE)
        click.echo(f"{waits} of {n} calls wait, {len(done)} executed. This clerk accepts any decision, signed or not.")
        click.echo(f"Create a passkey and decide: {settings.origin}/invitation#{token}")
        worker = Worker(runner=agent, agents=[_CLERK.name], on_job=lambda job, ended, why: _tell(done))
        app = inbox_app(store, settings, sentences=_SENTENCES)
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            await app.server().serve(sockets=[at])
            worker.stop()
    finally:
        await store.aclose()


def _tell(done: list[str]) -> None:
    if done:
        click.echo(f"done so far: {', '.join(done)}", err=True)


class _OneCall:
    """A client that answers a mail by one call, and its result by a word: the model is too small to go on by itself."""

    def __init__(self, client: ModelClient, mails: Sequence[Mail]) -> None:
        self._calling = CallingModel(client)
        self._mails = {mail.text: mail for mail in mails}

    async def complete(self, *, messages: Sequence[Message], model: str = "", **options: Any) -> ModelResponse:
        if any(message.role is Role.TOOL for message in messages):
            return ModelResponse(content="Done.", model=model)
        mail = next(self._mails[message.content or ""] for message in messages if message.role is Role.USER)
        return await self._calling.complete(
            messages=prompt(mail), model=model, tools=TOOLS, temperature=0.0, top_logprobs=5
        )


def _waiting_clerk(client: ModelClient, mails: Sequence[Mail], store: SessionStore, done: list[str]) -> AgentRunner:
    """A runner for these mails under the default limits; what its tools did is appended to `done`."""

    @tool(effect=Effect.IRREVERSIBLE)
    def refund(order: str, amount: str) -> str:
        """Pay money back. It cannot be taken back."""
        done.append(f"refunded {amount} EUR for {order}")
        return done[-1]

    @tool(effect=Effect.IRREVERSIBLE)
    def cancel(order: str) -> str:
        """Cancel an order. It cannot be taken back."""
        done.append(f"cancelled {order}")
        return done[-1]

    monitor = UncertaintyMonitor(profile=Profile(policy=clerk_policy()), sensing=SENSING)
    tools = FunctionTools(refund, cancel)
    return AgentRunner(_OneCall(client, mails), tools, uncertainty_monitor=monitor, store=store)
