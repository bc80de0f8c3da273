"""The command line: one file a command, loaded only when it is called; commands parse, call and print."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click

from grampus_uq.errors import GrampusError

__all__ = ["main"]

# Name of the command -> module under grampus_uq.cli; the module's attribute `command` is the click command.
_COMMANDS = {
    "approvals": "approvals",
    "backtest": "backtest",
    "attribute": "attribute",
    "compare": "compare",
    "dashboard": "dashboard",
    "demo": "demo",
    "doctor": "doctor",
    "evaluate": "evaluate",
    "export": "export",
    "fit": "fit",
    "prune": "prune",
    "risk": "risk",
    "runs": "runs",
    "stop": "stop",
    "watch": "watch",
}


class _LazyGroup(click.Group):
    """Imports a command's module only when that command is asked for, so that `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"grampus_uq.cli.{_COMMANDS[cmd_name]}").command
        assert isinstance(command, click.Command)  # noqa: S101 (a programming error in this package)
        return command


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="grampus-uq")
def _group() -> None:
    """Watch a language-model agent, and pause it before it does harm."""


def main(arguments: Sequence[str] | None = None, **extra: Any) -> None:
    """Run the command line; an error that this package raised on purpose is printed as one line, exit status 1."""
    try:
        _group.main(args=list(arguments) if arguments is not None else None, prog_name="grampus-uq", **extra)
    except GrampusError as error:
        click.echo(f"grampus-uq: {error}", err=True)
        raise SystemExit(1) from error
