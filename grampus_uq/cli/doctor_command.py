"""`grampus-uq doctor MODEL`: which signals work on a model, what each costs, and what is lost without it."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap

import anyio
import click

from grampus_uq.cli.model_progress import model_progress
from grampus_uq.models.choose import open_model
from grampus_uq.models.doctor import Examination, SignalCheck, examine
from grampus_uq.models.probes import Finding
from grampus_uq.signals.registry import LABELS

__all__ = ["command"]

_NAMES = {
    "answer": "answers at all",
    "logprobs": "log-probabilities",
    "temperature": "temperature",
    "n": "several answers a request",
    "response_format": "JSON by response_format",
    "tools": "tool calls",
} | LABELS


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option("--api-base", metavar="URL", help="An OpenAI-compatible server, such as http://127.0.0.1:8000/v1.")
@click.option("--timeout", "timeout_s", type=float, default=30.0, show_default=True, help="Seconds for each probe.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(model: str, api_base: str | None, timeout_s: float, as_json: bool) -> None:
    """Try what the signals need on MODEL, with about 20 short calls.

    MODEL is "local" (the embedded model), litellm's name of a model, or, with --api-base, the name that the server
    there has for it. A key for that server is read from GRAMPUS_UQ_API_KEY, never from the command line.

    Exit status: 0 when the model answers, 1 when it does not.
    """
    found = anyio.run(_examine, model, api_base, timeout_s)
    if as_json:
        click.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        _show(found)
    sys.exit(0 if found.answers else 1)


async def _examine(model: str, api_base: str | None, timeout_s: float) -> Examination:
    with model_progress() as progress:
        client = open_model(model, api_base=api_base, timeout_s=timeout_s, progress=progress)
        await client.warmup()
    async with client:
        name = "" if api_base is None and model == "local" else model
        return await examine(client, model=name, timeout_s=timeout_s, tell=_tell)


def _tell(what: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\033[2Ktrying: {what}", err=True, nl=False)


def _show(found: Examination) -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[2K", err=True, nl=False)
    click.secho(_plain(found.client), bold=True)
    _heading("What it can do")
    for finding in found.abilities:
        _item(_NAMES[finding.name], finding.verdict, finding, finding.detail)
    if not found.answers:
        click.echo("\nThe model gave no usable answer, so nothing else was tried.")
        return
    _heading("One step of each signal, on top of the agent's own call")
    for check in found.signals:
        verdict = "missing" if not check.works else "weak" if check.weak else "works"
        seen = ", ".join(f"{name} {value:.2f}" for name, value in check.values.items())
        why = "; ".join(part for part in (seen, check.weak, (check.reason or "").replace("_", " ")) if part)
        _item(_NAMES[check.source], verdict, check, f"{why}. Lost without it: {check.lost_without}.")
    spent = f"{found.calls} calls, {found.input_tokens} + {found.output_tokens} tokens, {found.seconds:.0f} s"
    click.echo(f"\nThe examination took {spent}.")


def _heading(title: str) -> None:
    click.echo(f"\n{title:<56} calls  tokens in/out  seconds")


def _item(name: str, verdict: str, cost: Finding | SignalCheck, words: str) -> None:
    tokens = f"{cost.input_tokens}/{cost.output_tokens}"
    colour = {"works": "green", "untested": None}.get(verdict, "yellow")
    click.echo(
        f"  {click.style(f'{verdict:<9}', fg=colour)} {name:<44} {cost.calls:>5}  {tokens:>13}  {cost.seconds:>7.1f}"
    )
    width = max(40, shutil.get_terminal_size().columns - 1)
    indent = " " * 12
    click.echo(textwrap.fill(_plain(words), width, initial_indent=indent, subsequent_indent=indent))


def _plain(text: str) -> str:
    """The text without control characters: a model's words must not move the cursor or colour the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
