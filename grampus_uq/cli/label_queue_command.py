"""`grampus-uq runs label-next` and `runs agreement`: labels one key each, and how far two people agree."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import click

from grampus_uq.cli.argument_types import login_name
from grampus_uq.cli.many_runs import refuse_no_recording
from grampus_uq.cli.printing import as_json_option, naming_refused, one_line, print_json, refuse_none, say_beside
from grampus_uq.recording.label_queue import has_step, label_agreement, label_by_key, label_queue, shown_rows
from grampus_uq.recording.runs import Run, RunSummary, find_run
from grampus_uq.records.visible_text import in_short, visible
from grampus_uq.records.vocabulary import quantity

_ASKED = "[s]uccess  [f]ailure  [e]rror at a step  [u]nsure  [n]ext  [q]uit"


@click.command(name="label-next")
@click.argument("folder", metavar="FOLDER")
@click.option("--by", help="Author of the labels.  [default: the login name]")
@click.option("--second", is_flag=True, help="Label runs that one other person has labelled, to measure agreement.")
@as_json_option
def label_next(folder: str, by: str | None, second: bool, as_json: bool) -> None:
    """Label finished runs with one key each, the most valuable first. With --json only list them."""
    who = by if by is not None else login_name()
    refuse_no_recording([folder])
    with naming_refused() as refuse:
        queue = label_queue(folder, by=who, second=second, on_refused=refuse)
        if as_json:
            print_json([asdict(one) for one in queue])
            return
        if not queue:
            say_beside("No runs left to label.")
        labelled = 0
        for number, summary in enumerate(queue):
            key = _asked(folder, summary, f"{number + 1} of {len(queue)}")
            if key == "q":
                break
            labelled += _labelled(folder, summary.session_id, key, who, second)
        click.echo(f"{labelled} labelled by {one_line(who)}.")


def _asked(folder: str, summary: RunSummary, place: str) -> str:
    """Show a run, without what others said of it, and return the key."""
    agent = f" ({visible(summary.agent_id)})" if summary.agent_id else ""
    click.echo(f"--- {place}: {visible(summary.session_id)}{agent} ---")
    for step, row in shown_rows(find_run(folder, summary.session_id)):
        click.echo(f"{in_short(step, 40):>8} {visible(row.event)}: {in_short(row.text, 400)}")
    click.echo(_ASKED)
    key = ""
    while key not in ("s", "f", "e", "u", "n", "q"):
        key = click.getchar().lower()
        if not key:
            return "q"  # the end of the input
    return key


def _labelled(folder: str, session_id: str, key: str, who: str, second: bool) -> int:
    if key == "n":
        return 0
    if key == "u" and second:
        click.echo("Nothing was written: unknown would withdraw the first label.")
        return 0
    step = click.prompt("step", value_proc=partial(_step, find_run(folder, session_id))) if key == "e" else None
    label_by_key(folder, session_id, key, by=who, step=step)
    return 1


def _step(run: Run, typed: str) -> str:
    if not has_step(run, typed):
        raise click.BadParameter(f"the run has no step {in_short(typed, 40)!r}.")
    return typed


@click.command(name="agreement")
@click.argument("paths", nargs=-1, required=True, metavar="FOLDER...")
@as_json_option
def agreement(paths: tuple[str, ...], as_json: bool) -> None:
    """Report how far people who labelled the same runs agree, and the runs on which they differ."""
    with naming_refused() as refuse:
        found = label_agreement(paths, on_refused=refuse)
        refuse_none(found.runs, paths, "run that two people labelled")
    if as_json:
        print_json(asdict(found))
        return
    alpha = "not defined" if found.alpha is None else f"{found.alpha:.2f}"
    people = ", ".join(map(one_line, found.people)) or "nobody"
    of = f"{quantity(found.runs, 'run')}, of {people}"
    click.echo(f"agreement  {alpha} (Krippendorff's alpha; 1: always, 0: as by chance) on {of}")
    for session_id in found.differ:
        click.echo(f"differ     {one_line(session_id)}")
