"""The command line: one file a command, loaded only when it is called; commands parse, call and print."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import click

from grampus_uq.cli.argument_types import SummarisedGroup
from grampus_uq.errors import ConfigurationError, GrampusError
from grampus_uq.records.visible_text import visible, without_controls

_COMMANDS: Final = {
    "approvals": "List, show and decide pending approvals.",
    "attribute": "Find the steps of a failed run that contain its decisive error, with a stated probability.",
    "backtest": "Apply every threshold in PROFILE to PATHS: recordings or folders of them.",
    "calibration": "Check whether a fitted detector's calibration still fits incoming runs.",
    "compare": "Compare the decisions of two profiles on the same labelled RUNS.",
    "dashboard": "Write a Grafana dashboard, Prometheus alerts, and a compose file with Jaeger and a collector.",
    "delegations": "Grant, list and revoke delegations, which let a deputy decide in your place.",
    "demo": "Run a small model, and see which of its calls are held.",
    "doctor": "Test with about 20 short calls which signals work with MODEL.",
    "drills": "Mix known-bad calls into the pending approvals, and measure how many reviewers miss.",
    "evaluate": "Find the signal that best separates good runs from bad ones, and the gain of holding calls by it.",
    "evidence": "Export what was shown, decided, signed and executed, and verify such a file offline.",
    "fit": "Fit a profile on PATHS: labelled recordings, or folders of them.",
    "grants": "List and revoke grants, which let calls of one tool run without asking.",
    "health": "Report the state of a store's agents and reviewers over the last days.",
    "inbox": "Serve the inbox, the web pages for pending approvals; its commands manage people and keys.",
    "mcp": "Run the MCP server COMMAND behind a proxy on standard input and output, or other servers with --http.",
    "permits": "Manage permits: calls that proceed without asking, with a stated promise.",
    "prune": "Delete ended sessions, with their transcripts and checkpoints.",
    "runs": "List, show, label, check, import, pack and replay recorded runs, or write them as a table.",
    "send": "Send recorded runs as traces, with the recorded times.",
    "stop": "Stop the session SESSION_ID of AGENT_ID, or every session with --all, within a second.",
    "stuck": "List, retry or drop sessions that workers set aside after too many errors.",
    "tenants": "Separate tenants of one PostgreSQL store by row-level security; a tenant is a database role.",
    "worker": "Resume decided, expired or orphaned sessions until SIGTERM or SIGINT.",
}
"""The commands, and the first sentence of each one's help."""
_FOUND, _USAGE, _INTERRUPTED = 1, 2, 130


class _LazyGroup(SummarisedGroup):
    """Imports a command's module only when that command is asked for, so that `--help` stays quick."""

    renamed: ClassVar = {"export": "send", "watch": "calibration"}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*_COMMANDS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        with _ended_by_ctrl_c():
            command = importlib.import_module(f"grampus_uq.cli.{cmd_name}_command").command
        assert isinstance(command, click.Command)  # noqa: S101 (a programming error in this package)
        return command


@contextlib.contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the process at once: of KeyboardInterrupt compiled modules make other errors as they are imported."""

    def end(*_: object) -> None:
        _tell("\ngrampus-uq: interrupted.")
        os._exit(_INTERRUPTED)

    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


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
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter())
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


class _VisibleFormatter(logging.Formatter):
    """Writes what is logged, which may quote a stranger, as everything else is written to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), keep="\n" if record.exc_info else "")


def _drop_output() -> None:
    """Let what is still to be written go nowhere: the interpreter would try again at its end, and complain."""
    with contextlib.suppress(OSError, ValueError):  # standard output without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(text: str) -> None:
    """Print to standard error what may quote an argument, without the characters that a terminal obeys."""
    click.echo(without_controls(text, keep="\n"), err=True)
