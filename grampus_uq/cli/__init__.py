"""The command line: one file a command, loaded only when it is called; commands parse, call and print."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click

from grampus_uq.errors import GrampusError

__all__ = ["main"]

_COMMANDS = (
    "approvals",
    "attribute",
    "backtest",
    "compare",
    "dashboard",
    "demo",
    "doctor",
    "evaluate",
    "export",
    "fit",
    "prune",
    "risk",
    "runs",
    "stop",
    "watch",
)


class _LazyGroup(click.Group):
    """Imports a command's module only when that command is asked for, so that `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"grampus_uq.cli.{cmd_name}_command").command
        assert isinstance(command, click.Command)  # noqa: S101 (a programming error in this package)
        return command


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="grampus-uq")
def _group() -> None:
    """Watch a language-model agent, and pause it before it does harm."""


def main(arguments: Sequence[str] | None = None, **extra: Any) -> None:
    """Run the command line; an error that this package raised on purpose, or of a file, is one line, exit status 1."""
    try:
        _group.main(args=list(arguments) if arguments is not None else None, prog_name="grampus-uq", **extra)
    except GrampusError as error:
        click.echo(f"grampus-uq: {error}", err=True)
        raise SystemExit(1) from error
    except OSError as error:  # of an output, such as a folder that may not be written
        place = "" if error.filename is None else f"{error.filename}: "
        click.echo(f"grampus-uq: {place}{error.strerror or error}.", err=True)
        raise SystemExit(1) from error
