"""`grampus-uq doctor MODEL`: which signals work on a model, what each costs, and what is lost without it."""

from __future__ import annotations

import shutil
import sys
import textwrap

import anyio
import click

from grampus_uq.cli.argument_types import FiniteRange
from grampus_uq.cli.printing import as_json_option, one_line, print_json, say_stage
from grampus_uq.models.doctor import Examination, SignalCheck, examine
from grampus_uq.models.model_choice import open_model
from grampus_uq.models.probes import ProbeResult
from grampus_uq.signals.registry import LABELS

_NAMES = {
    "answer": "answers",
    "logprobs": "log-probabilities",
    "temperature": "temperature",
    "response_format": "JSON by response_format",
    "tools": "tool calls",
} | LABELS


@click.command()
@click.argument("model")
@click.option("--api-base", metavar="URL", help="An OpenAI-compatible server, such as http://127.0.0.1:8000/v1.")
@click.option(
    "--timeout", "timeout_s", type=FiniteRange(min=0, min_open=True), default=30.0, help="Seconds for each probe."
)
@as_json_option
def command(model: str, api_base: str | None, timeout_s: float, as_json: bool) -> None:
    """Test with about 20 short calls which signals work with MODEL.

    MODEL is "local" (the embedded model), a litellm model name or, with --api-base, the server's name for the
    model. The key for that server is read from GRAMPUS_UQ_API_KEY, never from the command line.

    Exit status: 0 if the model answers, 1 otherwise.
    """
    found = anyio.run(_examine, model, api_base, timeout_s)
    if as_json:
        print_json(found.to_json())
    else:
        _show(found)
    sys.exit(0 if found.answers else 1)


async def _examine(model: str, api_base: str | None, timeout_s: float) -> Examination:
    async with open_model(model, api_base=api_base, timeout_s=timeout_s, progress=say_stage) as client:
        name = "" if api_base is None and model == "local" else model
        return await examine(client, model=name, timeout_s=timeout_s, tell=_tell)


def _tell(what: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\033[2Ktrying: {what}", err=True, nl=False)


def _show(found: Examination) -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[2K", err=True, nl=False)
    click.secho(one_line(found.client), bold=True)
    _heading("Capabilities")
    for finding in found.abilities:
        _item(_NAMES[finding.name], finding.verdict, finding, finding.detail)
    if not found.answers:
        click.echo("\nThe model gave no usable answer, so nothing else was tested.")
        return
    _heading("One step of each signal, on top of the agent's own call")
    for check in found.signals:
        verdict = "missing" if not check.works else "weak" if check.weak else "works"
        values = ", ".join(f"{name} {value:.2f}" for name, value in check.values.items())
        why = "; ".join(part for part in (values, check.weak, (check.reason or "").replace("_", " ")) if part)
        _item(_NAMES[check.source], verdict, check, f"{why}. Lost without it: {check.lost_without}.")
    spent = f"{found.calls} calls, {found.input_tokens} + {found.output_tokens} tokens, {found.seconds:.0f} s"
    click.echo(f"\nThe test took {spent}.")


def _heading(title: str) -> None:
    click.echo(f"\n{title:<56} calls  tokens in/out  seconds")


def _item(name: str, verdict: str, cost: ProbeResult | SignalCheck, words: str) -> None:
    tokens = f"{cost.input_tokens}/{cost.output_tokens}"
    colour = "green" if verdict == "works" else "yellow"
    click.echo(
        f"  {click.style(f'{verdict:<9}', fg=colour)} {name:<44} {cost.calls:>5}  {tokens:>13}  {cost.seconds:>7.1f}"
    )
    width = max(40, shutil.get_terminal_size().columns - 1)
    indent = " " * 12
    click.echo(textwrap.fill(one_line(words), width, initial_indent=indent, subsequent_indent=indent))
