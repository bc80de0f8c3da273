"""`grampus-uq mcp`: a proxy between an MCP client and its server, which holds calls until a human decided on them."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import uuid
from pathlib import PurePath
from typing import Final

import anyio
import click

from grampus_uq.errors import ConfigurationError
from grampus_uq.integrations.mcp.advisory import Advisory
from grampus_uq.integrations.mcp.guard import Guard
from grampus_uq.integrations.mcp.proxy_config import ProxySettings, read_settings
from grampus_uq.integrations.mcp.proxy_parts import ProxyParts
from grampus_uq.integrations.mcp.stdio_proxy import Relay, Send, serve_stdio
from grampus_uq.records.visible_text import without_controls

_LAUNCHERS: Final = frozenset({"npx", "uvx", "uv", "pipx", "run", "python", "python3", "node", "docker"})


@click.command()
@click.option("--config", "path", help="TOML file with settings; options take precedence.")
@click.option(
    "--store", help="Session store: sqlite:///FILE, postgresql://… or redis://… (without one, GRAMPUS_UQ_STORE)."
)
@click.option("--agent", help="Name of the agent in the store.  [default: derived from COMMAND]")
@click.option("--session", help="Resume this session after a restart.")
@click.option("--recordings", help="Folder for recordings.")
@click.option("--trusted", is_flag=True, default=None, help="Trust the server's tool annotations.")
@click.option("--advisory", is_flag=True, default=None, help="Hold nothing; record what would have been held.")
@click.option("--unguarded", is_flag=True, help="Only forward messages: no call is judged or held.")
@click.option("--http", "address", metavar="HOST:PORT", help="Serve the config's [servers] over HTTP.")
@click.argument("server", nargs=-1, metavar="-- COMMAND...")
def command(
    path: str | None, unguarded: bool, address: str | None, server: tuple[str, ...], **given: str | bool | None
) -> None:
    """Run the MCP server COMMAND behind a proxy on standard input and output, or other servers with --http.

    Pending calls are listed and decided by `grampus-uq approvals`. Exits with the server's status.
    """
    if bool(server) == (address is not None) or (unguarded and address is not None):
        raise click.UsageError("Give the COMMAND of one server, or --http.")
    if unguarded:
        if path is not None or any(one is not None for one in given.values()):
            raise click.UsageError("--unguarded only forwards messages: give no other option with it.")
        raise SystemExit(anyio.run(lambda: serve_stdio(server, lambda *_: Relay())))
    settings = read_settings(path, **given)
    store = settings.store or os.environ.get("GRAMPUS_UQ_STORE")
    if not store:
        rule, way_out = "given: pending calls are decided there", "--store sqlite:///FILE, or --unguarded"
        raise ConfigurationError.of("--store", "mcp", rule, None, way_out)
    if address is not None:
        from grampus_uq.integrations.mcp.http_serving import serve_http

        anyio.run(functools.partial(serve_http, settings, ProxyParts(settings, store, say), address, say))
        return
    raise SystemExit(anyio.run(functools.partial(_serve, settings, store, server)))


async def _serve(settings: ProxySettings, url: str, server: tuple[str, ...]) -> int:
    parts = ProxyParts(settings.model_copy(update={"agent": settings.agent or _named(server)}), url, say)
    name = settings.session or uuid.uuid4().hex
    exchange = parts.exchange(name, resumes=settings.session is not None, trusted=settings.trusted)

    def relay(to_client: Send, to_server: Send) -> Relay:
        if settings.advisory:
            return Advisory(exchange=exchange, say=say)
        return Guard(to_client, to_server, exchange=exchange, say=say)

    try:
        return await serve_stdio(server, relay, limit=settings.max_message_bytes)
    finally:
        with anyio.CancelScope(shield=True):
            await parts.aclose()


def _named(server: tuple[str, ...]) -> str:
    """A name for a server's command: its program in words, and a digest of all of it."""
    words = [PurePath(word).name for word in server if not word.startswith("-")]
    program = next((word for word in words if word not in _LAUNCHERS), words[0] if words else "server")
    digest = hashlib.sha256("\0".join(server).encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return f"mcp/{program[:60]}-{digest}"


def say(text: str) -> None:
    """Tell whoever reads the client's log; standard output belongs to the protocol."""
    print(f"grampus-uq mcp: {without_controls(text)}", file=sys.stderr, flush=True)  # noqa: T201 (the command's own output)
