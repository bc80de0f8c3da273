"""`grampus-uq approvals`: see what waits for a human, and decide it, from any machine that reaches the store."""

from __future__ import annotations

import getpass
import json
import time
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grampus_uq.errors import ApprovalError, ConfigurationError
from grampus_uq.gate.requests import ApprovalPolicy, ApprovalRequest
from grampus_uq.gate.signatures import HmacSigner
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.state import AgentState
from grampus_uq.runtime.store import open_store

__all__ = ["command"]

Result = TypeVar("Result")

_store = click.option(
    "--store",
    "url",
    required=True,
    envvar="GRAMPUS_UQ_STORE",
    help="Where sessions are kept: sqlite:///FILE, postgresql://… or redis://… (or GRAMPUS_UQ_STORE).",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_principal = click.option("--as", "principal", default=None, help="Who decides; the login name when not given.")


@click.group()
def command() -> None:
    """List, show and decide what waits for a human.

    Decisions are signed with the key in GRAMPUS_UQ_APPROVAL_KEY; a runner with a key refuses unsigned ones.
    """


def _with_ledger(url: str, work: Callable[[Ledger], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        store = open_store(url, create=False)
        try:
            return await work(Ledger(store))
        finally:
            await store.aclose()

    return anyio.run(run)


@command.command(name="list")
@_store
@_json
@click.option("--agent", default=None, help="Only this agent's sessions.")
def list_(url: str, as_json: bool, agent: str | None) -> None:
    """List what waits."""
    sessions = _with_ledger(url, lambda ledger: ledger.pending(agent))
    requests = [request for session in sessions for request in session.requests if request.child_session is None]
    if as_json:
        click.echo(json.dumps([_shown(request) for request in requests]))
        return
    if not requests:
        click.echo("Nothing waits for a human.")
        return
    table = Table("request", "agent", "session", "what", "level", "why", "waits", "expires")
    now = time.time()
    for request in requests:
        what = "the answer" if request.call is None else _short(request.call.canonical(), 60)
        expires = "never" if request.expires_s is None else f"in {request.expires_s - now:.0f} s"
        waits = f"{now - request.created_s:.0f} s"
        cells = (request.agent_id, request.session_id, what, request.level.value, request.reason, waits, expires)
        table.add_row(request.id[:8], *(Text(_plain(cell)) for cell in cells))
    Console().print(table)


@command.command()
@click.argument("request_id")
@_store
@_json
def show(request_id: str, url: str, as_json: bool) -> None:
    """Show one request: the whole call, why it waits, and the end of the transcript."""
    state, request = _with_ledger(url, lambda ledger: ledger.find_request(request_id))
    if as_json:
        tail = [m.model_dump(mode="json") for m in state.messages[-6:]]
        click.echo(json.dumps(_shown(request) | {"transcript_tail": tail}))
        return
    click.echo(f"request    {request.id}")
    click.echo(f"agent      {_plain(request.agent_id)}\nsession    {_plain(request.session_id)}")
    click.echo(f"level      {request.level.value} (rule {request.rule}; {request.guarantee or 'no guarantee'})")
    click.echo(f"why        {_plain(request.reason)}")
    if request.call is not None:
        click.echo(f"call       {_plain(request.call.name)}")
        click.echo(json.dumps(request.call.arguments, indent=2, sort_keys=True))
    click.echo("--- the end of the transcript ---")
    for message in state.messages[-6:]:
        click.echo(f"[{message.role.value}] {_plain(_short(message.content or '', 400))}")


@command.command()
@click.argument("request_id")
@_store
@_principal
@_json
def approve(request_id: str, url: str, principal: str | None, as_json: bool) -> None:
    """Let the waiting call run, exactly as it was shown."""
    _decide(url, request_id, "approve", principal, None, None, as_json)


@command.command()
@click.argument("request_id")
@_store
@_principal
@click.option("--message", "-m", default=None, help="What the model is told.")
@_json
def reject(request_id: str, url: str, principal: str | None, message: str | None, as_json: bool) -> None:
    """Refuse the waiting call."""
    _decide(url, request_id, "reject", principal, message, None, as_json)


@command.command()
@click.argument("request_id")
@_store
@_principal
@click.option("--arguments", required=True, help="The new arguments, a JSON object.")
@_json
def edit(request_id: str, url: str, principal: str | None, arguments: str, as_json: bool) -> None:
    """Let the waiting call run with other arguments."""
    try:
        parsed = json.loads(arguments)
    except ValueError as error:
        raise ConfigurationError.of("--arguments", "approvals edit", "a JSON object", arguments) from error
    if not isinstance(parsed, dict):
        raise ConfigurationError.of("--arguments", "approvals edit", "a JSON object", arguments)
    _decide(url, request_id, "edit", principal, None, parsed, as_json)


@command.command()
@click.argument("request_id")
@_store
@_principal
@click.option("--message", "-m", required=True, help="What stands in place of the call's result.")
@_json
def respond(request_id: str, url: str, principal: str | None, message: str, as_json: bool) -> None:
    """Answer in place of the tool; the call does not run."""
    _decide(url, request_id, "respond", principal, message, None, as_json)


def _decide(
    url: str,
    request_id: str,
    kind: str,
    principal: str | None,
    message: str | None,
    arguments: dict[str, Any] | None,
    as_json: bool,
) -> None:
    signer = HmacSigner.from_environment()

    async def work(ledger: Ledger) -> tuple[AgentState, ApprovalRequest]:
        state, request = await ledger.find_request(request_id)
        decision = request.decide(kind, principal=principal or getpass.getuser(), message=message, arguments=arguments)
        if signer is not None:
            decision = signer.sign(decision)
        ApprovalPolicy(signer=signer).check(request, decision)
        await ledger.decide(decision)
        return state, request

    try:
        _, request = _with_ledger(url, work)
    except ApprovalError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({"request": request.id, "kind": kind, "signed": signer is not None}))
    else:
        note = "" if signer is not None else " (unsigned: GRAMPUS_UQ_APPROVAL_KEY is not set)"
        click.echo(f"{kind}: {request.id[:8]}{note}. It takes effect when the session is resumed.")


def _shown(request: ApprovalRequest) -> dict[str, Any]:
    return request.model_dump(mode="json") | {"digest": request.digest()}


def _plain(text: str) -> str:
    """The text without power over the terminal: what a tool or a model wrote must not repaint what a human decides on.

    Control, formatting (also the bidirectional ones) and line characters are shown as escapes, on one line.
    """
    return "".join(
        character if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else ascii(character)[1:-1]
        for character in text
    )


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
