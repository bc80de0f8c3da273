"""`grampus-uq demo --task mails`: the clerk's mails three ways, on the embedded model."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import anyio
import click

from grampus_uq.cli.demo.clerk import Handled
from grampus_uq.cli.demo.mail_plan import MailPlan, handle_all, plan_mails
from grampus_uq.cli.demo.mail_report import MailReport, progress_line, report_lines, to_json
from grampus_uq.cli.printing import print_json
from grampus_uq.errors import ModelError
from grampus_uq.models import LocalModel

_INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended
_MODEL_TIMEOUT_S = 180.0


def run_mails(*, n: int, seed: int, runs_folder: str, details: bool, as_json: bool) -> None:
    """Handle the mails, and print what there is when the model fails or somebody interrupts."""
    plan = plan_mails(n=n, seed=seed, runs_folder=runs_folder)
    handled: list[tuple[Handled, ...]] = []
    started = time.monotonic()
    interrupted, failure = False, None

    def on_mail(ends: tuple[Handled, ...]) -> None:
        handled.append(ends)
        click.echo(progress_line(handled, len(plan.mails)), err=True)

    click.echo(f"A small model handles {n} customer emails; its calls move money and are irreversible.", err=True)
    try:
        anyio.run(_handle, plan, on_mail)
    except KeyboardInterrupt:
        interrupted = True
    except ModelError as error:
        failure = error
    finally:
        plan.recording.close()
        if not handled:
            shutil.rmtree(plan.folder, ignore_errors=True)
    if handled:
        ended_early = interrupted or failure is not None
        report = MailReport(handled=handled, seconds=time.monotonic() - started, interrupted=ended_early)
        _print(report, plan, details, as_json)
    if failure is not None:
        raise failure
    if interrupted:
        raise SystemExit(_INTERRUPTED)


def run_waiting_mails(*, n: int, seed: int, runs_folder: str) -> None:
    """Handle the mails, and let what is held wait in the inbox."""
    from grampus_uq.cli.demo_inbox import run_inbox

    folder = Path(runs_folder).expanduser() / time.strftime("demo-inbox-%Y%m%d-%H%M%S", time.gmtime())
    file = folder / "sessions.db"

    async def work() -> None:
        async with LocalModel(timeout_s=_MODEL_TIMEOUT_S, progress=Stages()) as model:
            await run_inbox(model, f"sqlite:///{file}", n=n, seed=seed)

    anyio.run(work)


async def _handle(plan: MailPlan, on_mail: Any) -> None:
    async with LocalModel(timeout_s=_MODEL_TIMEOUT_S, progress=Stages()) as model:
        await handle_all(plan, model, on_mail)


class Stages:
    """Names each stage of fetching and starting the model once, on standard error."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage not in self._named:
            self._named.add(stage)
            words = {"download": "Downloading the model (98 MB, once) ...", "start": "Starting the model ..."}
            click.echo(words.get(stage, stage), err=True)


def _print(report: MailReport, plan: MailPlan, details: bool, as_json: bool) -> None:
    if as_json:
        print_json(to_json(report, plan))
        return
    click.echo(err=True)
    for line in report_lines(report, plan, details=details):
        click.echo(line)
