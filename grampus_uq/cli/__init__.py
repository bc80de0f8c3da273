"""The command line: one file a command, loaded only when it is called; commands parse, call and print."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from grampus_uq.cli.argument_types import SummarisedGroup
from grampus_uq.errors import ConfigurationError, GrampusError
from grampus_uq.records.visible_text import without_controls

_COMMANDS: Final = (
    "approvals",
    "attribute",
    "backtest",
    "calibration",
    "compare",
    "dashboard",
    "delegations",
    "demo",
    "doctor",
    "drills",
    "evaluate",
    "evidence",
    "fit",
    "health",
    "inbox",
    "mcp",
    "permits",
    "prune",
    "runs",
    "send",
    "stop",
    "stuck",
    "tenants",
    "worker",
)
_RENAMED: Final = {"export": "send", "watch": "calibration"}
_FOUND, _USAGE, _INTERRUPTED = 1, 2, 130


class _LazyGroup(SummarisedGroup):
    """Imports a command's module only when that command is asked for, so that `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"grampus_uq.cli.{cmd_name}_command").command
        assert isinstance(command, click.Command)  # noqa: S101 (a programming error in this package)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        near = _RENAMED.get(name) or next(iter(difflib.get_close_matches(name, _COMMANDS, n=1)), None)
        if name not in _COMMANDS and not name.startswith("-") and near is not None:
            ctx.fail(f"No such command {name!r:.80}. Did you mean {near!r}?")
        return super().resolve_command(ctx, args)


@click.command(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(package_name="grampus-uq")
def _group() -> None:
    """Monitor LLM agents, and hold irreversible calls that they are unsure of.

    Exit status: 0 done; 1 failed or incomplete, with the reason; 2 wrong usage; 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with the status that `--help` explains; an error is told in one line."""
    try:
        status = _group.main(
            args=None if arguments is None else list(arguments), prog_name="grampus-uq", standalone_mode=False
        )
    except click.ClickException as error:
        text = io.StringIO()
        error.show(file=text)
        _tell(text.getvalue().rstrip("\n"))
        status = error.exit_code
    except click.Abort:
        _tell("grampus-uq: interrupted.")
        status = _INTERRUPTED
    except GrampusError as error:
        _tell(f"grampus-uq: {error}")
        status = _USAGE if isinstance(error, ConfigurationError) else _FOUND
    except BrokenPipeError:  # whoever read the output has enough of it
        _drop_output()
        status = _FOUND
    except OSError as error:  # of an output, such as a full disk
        if error.filename is None:
            _drop_output()
        place = "" if error.filename is None else f"{error.filename}: "
        _tell(f"grampus-uq: {place}{error.strerror or error}.")
        status = _FOUND
    raise SystemExit(status if isinstance(status, int) else 0)


def _drop_output() -> None:
    """Let what is still to be written go nowhere: the interpreter would try again at its end, and complain."""
    with contextlib.suppress(OSError, ValueError):  # standard output without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(text: str) -> None:
    """Print to standard error what may quote an argument, without the characters that a terminal obeys."""
    click.echo(without_controls(text, keep="\n"), err=True)
