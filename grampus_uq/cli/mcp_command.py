"""`grampus-uq mcp`: a proxy between an MCP client and its server, which holds calls until a human decided on them."""

from __future__ import annotations

import functools
import sys
import uuid

import anyio
import click

from grampus_uq.errors import ConfigurationError
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.seal import Seal
from grampus_uq.mcp.call_exchange import CallExchange
from grampus_uq.mcp.guard import Guard
from grampus_uq.mcp.guarded_calls import GuardedCalls, SessionNames
from grampus_uq.mcp.listed_tools import ListedTools
from grampus_uq.mcp.proxy_config import ProxySettings, read_settings
from grampus_uq.mcp.request_state import RequestStates
from grampus_uq.mcp.stdio_proxy import Passing, Send, serve_stdio
from grampus_uq.recording.writer import RecordingProcessor
from grampus_uq.records.visible_text import without_controls
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stored_permits import StoredPermits
from grampus_uq.runtime.stores import open_store


@click.command()
@click.option("--config", "path", default=None, help="Settings in a TOML file; options here come before it.")
@click.option(
    "--store",
    default=None,
    envvar="GRAMPUS_UQ_STORE",
    help="Where sessions are kept: sqlite:///FILE, postgresql://… or redis://… (or GRAMPUS_UQ_STORE).",
)
@click.option("--agent", default=None, help="Name of the agent in the store.  [default: mcp]")
@click.option("--session", default=None, help="Go on with this session after a restart.")
@click.option("--recordings", default=None, help="Folder for recordings.")
@click.option("--trusted", is_flag=True, default=None, help="Believe the server's annotations of its tools.")
@click.option("--advisory", is_flag=True, default=None, help="Record what would wait, and let it run.")
@click.option("--unguarded", is_flag=True, help="Only pass messages on: no call is judged, none waits.")
@click.argument("server", nargs=-1, required=True, metavar="-- COMMAND...")
def command(path: str | None, unguarded: bool, server: tuple[str, ...], **given: str | bool | None) -> None:
    """Run the MCP server COMMAND behind a proxy, on standard input and output.

    A call that waits is listed and decided by `grampus-uq approvals`. Exits with the server's status.
    """
    if unguarded:
        raise SystemExit(anyio.run(lambda: serve_stdio(server, lambda client, to: Passing(client, to, say))))
    settings = read_settings(path, **given)
    if settings.store is None:
        rule, way_out = "given: there the calls that wait are decided", "--store sqlite:///FILE, or --unguarded"
        raise ConfigurationError.of("--store", "mcp", rule, None, way_out)
    raise SystemExit(anyio.run(functools.partial(_serve, settings, settings.store, server)))


async def _serve(settings: ProxySettings, url: str, server: tuple[str, ...]) -> int:
    recorder = None if settings.recordings is None else RecordingProcessor(settings.recordings)
    monitor = settings.monitor([] if recorder is None else [recorder])
    tools, store = ListedTools(settings.tool_effects(), trusted=settings.trusted), open_store(url, create=True)
    approvals = settings.approvals.policy()
    ledger = Ledger(store, seal=approvals.seal)
    gate = Gate(
        approvals=approvals,
        effects=tools.effects(),
        schema_of=tools.schema,
        clock=ledger.now_s,
        permits=StoredPermits(store, approvals),
    )
    names = SessionNames(
        agent_id=settings.agent, session_id=settings.session or uuid.uuid4().hex, resumes=settings.session is not None
    )
    calls = GuardedCalls(names, monitor=monitor, ledger=ledger, gate=gate, tools=tools, say=say)
    states = RequestStates(approvals.seal or Seal.of_this_process())
    exchange = CallExchange(calls, states, say, hold_s=settings.hold_s)

    def relay(to_client: Send, to_server: Send) -> Guard:
        return Guard(to_client, to_server, exchange=exchange, say=say)

    try:
        return await serve_stdio(server, relay, limit=settings.max_message_bytes)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()
        if recorder is not None:
            recorder.close()


def say(text: str) -> None:
    """Tell whoever reads the client's log; standard output belongs to the protocol."""
    print(f"grampus-uq mcp: {without_controls(text)}", file=sys.stderr, flush=True)  # noqa: T201 (the command's own output)
