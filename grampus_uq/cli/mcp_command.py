"""`grampus-uq mcp`: a proxy between an MCP client and its servers."""

from __future__ import annotations

import sys

import anyio
import click

from grampus_uq.mcp.stdio_proxy import Passing, serve_stdio


@click.command(context_settings={"ignore_unknown_options": False})
@click.option("--unguarded", is_flag=True, help="Only pass messages on: no tool call is judged, none waits.")
@click.argument("server", nargs=-1, required=True, metavar="-- COMMAND...")
def command(unguarded: bool, server: tuple[str, ...]) -> None:
    """Run the MCP server COMMAND behind a proxy, on standard input and output.

    Exits with the server's status.
    """
    if not unguarded:
        raise click.UsageError("Give --unguarded.")
    raise SystemExit(anyio.run(lambda: serve_stdio(server, lambda client, to: Passing(client, to, say))))


def say(text: str) -> None:
    """Tell whoever reads the client's log; standard output belongs to the protocol."""
    print(f"grampus-uq mcp: {text}", file=sys.stderr, flush=True)  # noqa: T201 (the command's own output)
