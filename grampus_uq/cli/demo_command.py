"""`grampus-uq demo`: watch a real model act on mails, or answer questions, and see what the monitor holds."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import click

from grampus_uq.cli.argument_types import OutputFolder
from grampus_uq.cli.demo.clerk import Handled
from grampus_uq.cli.demo.demo_run import (
    DEFAULT_N,
    PUBLISHED,
    Answered,
    DemoPlan,
    Fate,
    answer_questions,
    completing,
    plan_demo,
)
from grampus_uq.cli.demo.mail_plan import DEFAULT_MAILS, MailPlan, handle_all, plan_mails
from grampus_uq.cli.demo.mail_report import MailReport, progress_line, to_json
from grampus_uq.cli.demo.mail_report import report_lines as mail_lines
from grampus_uq.cli.printing import as_json_option, print_result, say_stage
from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.models import LocalModel, open_model
from grampus_uq.records.visible_text import without_controls
from grampus_uq.records.vocabulary import UncertaintyAction

_FATES: Final[Mapping[Fate, tuple[str, str]]] = {
    "published": ("published", "let pass"),
    "paused": ("paused for a human", "would pause"),
    "aborted": ("aborted", "would abort"),
    "unanswered": ("no answer", "no answer"),
}
_NO_PROMISE: Final = (
    "The tiers carry no guarantee: nothing bounds how many right answers they pause or wrong ones they publish."
)


def demo_report(answers: Sequence[Answered], plan: DemoPlan, *, interrupted: bool) -> dict[str, Any]:
    """Count a run, finished or interrupted, as JSON values; of an advisory monitor, what its policy wanted.

    `promises` are those of a fitted profile. What each signal is worth is left to `grampus-uq evaluate`.
    """
    fates = [(_wanted(one), one.right is True) for one in answers]
    n, right = Counter(fate for fate, _ in fates), Counter(fate for fate, is_right in fates if is_right)
    artifact = plan.monitor.artifact
    return {
        "model": plan.model,
        "seed": plan.seed,
        "questions": len(plan.questions),
        "drawn_from": plan.out_of,
        "answered": sum(one.right is not None for one in answers),
        "right": right.total(),
        "interrupted": interrupted,
        "advisory": plan.monitor.profile.advisory,
        "groups": [{"decision": fate, "n": n[fate], "right": right[fate]} for fate in _FATES],
        "promises": list(artifact.guarantees) if artifact else [],
        "processor_failures": plan.monitor.processor_failures,
        "recording": str(plan.folder),
        "next_command": plan.next_command,
    }


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report for a reader, without any text of the model."""
    ended = " - interrupted" if report["interrupted"] else ""
    yield (
        f"{report['model'] or 'The server'}: {report['answered']} questions answered, {report['right']} right "
        f"(drawn from {report['drawn_from']}, seed {report['seed']}){ended}"
    )
    yield f"{'what the policy would do' if report['advisory'] else 'what happened':<24}  answers  right"
    for group in report["groups"]:
        if group["n"]:
            words = _FATES[group["decision"]][report["advisory"]]
            yield f"{words:<24}  {group['n']:>7}  {group['right']:>5}"
    yield from report["promises"] or (_NO_PROMISE,)
    for name, failures in report["processor_failures"].items():
        yield f"{name} failed {failures} times: its output is incomplete."
    yield f"Recording: {report['recording']} (published answers in {PUBLISHED})"
    if report["advisory"]:  # else the runs that were held are left out of every score
        yield f"Signals:   grampus-uq evaluate {shlex.quote(report['recording'])}"
    yield f"Next:      {report['next_command']}"


def _wanted(one: Answered) -> Fate:
    """The fate that the policy wanted; the same as the real one unless the monitor was advisory."""
    if one.wanted is None:
        return one.fate
    if one.wanted is UncertaintyAction.ABORT:
        return "aborted"
    return "paused" if one.wanted.stops else "published"


_WAITING = 8  # mails for the inbox
_INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended
_MODEL_TIMEOUT_S = 180.0
_EACH = 10  # answers between two lines of progress
_EMBEDDED_TOKENS = 24
_OTHER_TOKENS = 1_024  # a model that thinks before it answers needs room for it


@click.command(name="demo")
@click.option(
    "--task",
    type=click.Choice(["mails", "questions"]),
    default="mails",
    help="What the agent does. An option marked with a task belongs to it.",
)
@click.option(
    "--n",
    type=click.IntRange(min=1),
    help=f"Emails to handle, or questions to ask.  [default: {DEFAULT_MAILS}, {DEFAULT_N}]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Selects emails or questions.")
@click.option("--inbox", is_flag=True, help="(mails) Serve a page on which you decide the held calls.")
@click.option("--details", is_flag=True, help="(mails) Show every email with the decisions of both monitors.")
@click.option("--model", metavar="NAME", help="(questions) Any model that litellm knows.  [default: the embedded one]")
@click.option("--api-base", metavar="URL", help="(questions) An OpenAI-compatible server, for --model if given.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="(questions) Maximum length of an answer.  [default: 24 embedded, else 1024]",
)
@click.option("--parallel", type=click.IntRange(1, 64), default=4, help="(questions) Concurrent questions.")
@click.option("--advisory", is_flag=True, help="(questions) Pause nothing, only record what would have been paused.")
@click.option(
    "--profile", "profile_file", type=click.Path(dir_okay=False), help="(questions) Let a fitted profile decide."
)
@click.option("--every-signal", is_flag=True, help="(questions) Sample every answer again: best for fitting.")
@click.option("--otlp", metavar="URL", help="(questions) Send spans to this endpoint, such as http://localhost:4317.")
@click.option("--runs-folder", type=OutputFolder(), default="runs", help="Folder for recordings.")
@as_json_option
@click.pass_context
def command(context: click.Context, /, task: str, inbox: bool, details: bool, as_json: bool, **options: Any) -> None:
    """Run a small model, and see which of its calls are held.

    The emails come from customers who want a refund or a cancellation. Each is handled three ways: without a
    monitor, under the default limits, and under a profile fitted on other emails.

    With --task questions the model answers questions with known answers, and the irreversible call
    publish_answer is held or cleared.
    """
    if task == "questions":
        if details or inbox:
            raise click.UsageError(
                "--details and --inbox belong to --task mails; for questions use grampus-uq runs show."
            )
        with _leaving_no_empty(options["runs_folder"]):
            _ask_questions(as_json=as_json, **options)
        return
    given = {name for name in options if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    if strange := sorted(given - {"n", "seed", "runs_folder"}):
        flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
        raise click.UsageError(f"{flags[strange[0]]} belongs to --task questions.")
    if inbox and (details or as_json):
        raise click.UsageError("--details and --json do not go with --inbox, which serves until a signal ends it.")
    if inbox:
        _let_mails_wait(n=options["n"] or _WAITING, seed=options["seed"], runs_folder=options["runs_folder"])
        return
    number, place = options["n"] or DEFAULT_MAILS, options["runs_folder"]
    with _leaving_no_empty(place):
        _handle_mails(n=number, seed=options["seed"], runs_folder=place, details=details, as_json=as_json)


@contextlib.contextmanager
def _leaving_no_empty(folder: str) -> Iterator[None]:
    """Remove the folder for recordings at the end if it was made meanwhile and nothing is in it."""
    place = Path(folder).expanduser()
    new = not place.exists()
    try:
        yield
    finally:
        if new:
            with contextlib.suppress(OSError):  # something is in it
                place.rmdir()


def _handle_mails(*, n: int, seed: int, runs_folder: str, details: bool, as_json: bool) -> None:
    """Handle the mails, and print what there is when the model fails or somebody interrupts."""
    plan = plan_mails(n=n, seed=seed, runs_folder=runs_folder)
    handled: list[tuple[Handled, ...]] = []
    started = time.monotonic()

    def on_mail(ends: tuple[Handled, ...]) -> None:
        handled.append(ends)
        click.echo(progress_line(handled, len(plan.mails)), err=True)

    click.echo(f"A small model handles {n} customer emails. The fitted profile executes or holds its calls:", err=True)
    try:
        ended = _to_the_end(_handle_all, plan, on_mail)
    finally:
        plan.recording.close()
        if not handled:
            shutil.rmtree(plan.folder, ignore_errors=True)
    if handled:
        report = MailReport(handled=handled, seconds=time.monotonic() - started, interrupted=ended is not None)
        if not as_json:
            click.echo(err=True)
        print_result(as_json, to_json(report, plan), mail_lines(report, plan, details=details))
    if ended is not None:
        raise ended


async def _handle_all(plan: MailPlan, on_mail: Callable[[tuple[Handled, ...]], None]) -> None:
    async with LocalModel(timeout_s=_MODEL_TIMEOUT_S, progress=say_stage) as model:
        await handle_all(plan, model, on_mail)


def _let_mails_wait(*, n: int, seed: int, runs_folder: str) -> None:
    """Handle the mails, and let what is held wait in the inbox."""
    from grampus_uq.cli.demo_inbox import run_inbox

    folder = Path(runs_folder).expanduser() / time.strftime("demo-inbox-%Y%m%d-%H%M%S", time.gmtime())
    file = folder / "sessions.db"

    async def work() -> None:
        async with LocalModel(timeout_s=_MODEL_TIMEOUT_S, progress=say_stage) as model:
            await run_inbox(model, f"sqlite:///{file}", n=n, seed=seed)

    anyio.run(work)


def _to_the_end(work: Callable[..., Any], *given: Any) -> BaseException | None:
    """Run the work, and return what ended it early: the model's error, or the exit of a program that Ctrl-C ended."""
    try:
        anyio.run(work, *given)
    except KeyboardInterrupt:
        return SystemExit(_INTERRUPTED)
    except ModelError as error:
        return error
    return None


def _ask_questions(
    *, model: str | None, api_base: str | None, max_tokens: int | None, as_json: bool, **options: Any
) -> None:
    if model is not None and not model.strip():
        raise ConfigurationError.of(
            "--model", "demo", "the name of a model", model, "Without it the embedded one is asked."
        )
    name = model or ("local" if api_base is None else "")
    limit = max_tokens or (_EMBEDDED_TOKENS if name == "local" and api_base is None else _OTHER_TOKENS)
    n = options.pop("n") or DEFAULT_N
    plan = plan_demo(model=name, n=n, max_tokens=limit, otlp_endpoint=options.pop("otlp"), **options)
    answers: list[Answered] = []
    client = open_model(name, api_base=api_base, timeout_s=_MODEL_TIMEOUT_S, progress=say_stage)

    def on_answered(answered: Answered) -> None:
        answers.append(answered)
        if len(answers) % _EACH == 0:
            click.echo(f"{len(answers)} of {n} answered", err=True)

    ended = _to_the_end(_run, plan, client, on_answered)
    if not isinstance(ended, ModelError) or any(one.right is not None for one in answers):
        report = demo_report(answers, plan, interrupted=ended is not None)
        print_result(as_json, report, map(without_controls, report_lines(report)))
    if ended is not None:
        raise ended


async def _run(plan: DemoPlan, client: Any, on_answered: Callable[[Answered], None]) -> None:
    async with completing(plan):
        try:
            await client.warmup()
            await answer_questions(plan, client, on_answered)
        finally:
            await client.aclose()
