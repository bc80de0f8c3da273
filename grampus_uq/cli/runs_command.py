"""`grampus-uq runs`: list, show, label, check and tabulate recorded runs (the rest is in `import_command`)."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from grampus_uq.cli.argument_types import OutputFile, SummarisedGroup, login_name
from grampus_uq.cli.import_command import import_, pack_, replay_
from grampus_uq.cli.label_queue_command import agreement, label_next
from grampus_uq.cli.printing import (
    as_json_option,
    naming_refused,
    one_line,
    print_json,
    print_json_array,
    print_result,
    print_table,
    progress,
    refuse_none,
    say_beside,
)
from grampus_uq.errors import DataError
from grampus_uq.recording import (
    Label,
    PartialLine,
    Run,
    encode,
    export,
    find_run,
    label,
    label_all,
    read_labels,
    recording_files,
    runs,
    summarise,
    validate,
)
from grampus_uq.recording.labels import parse_success
from grampus_uq.recording.run_rows import (
    EventRow,
    doubts_in_words,
    event_row,
    lowest_reading,
    outcome_in_words,
    thresholds_in_words,
    thresholds_of,
)
from grampus_uq.recording.table import TABLE_COLUMNS, TableForm, reading_columns, step_rows, write_rows
from grampus_uq.records.events import Event, OutcomeEvent, StepEvent
from grampus_uq.records.values import utc
from grampus_uq.records.vocabulary import StopReason, in_words

_paths = click.argument("paths", nargs=-1, required=True, metavar="FOLDER...")
_SHOWN_READINGS: Final = 3  # in a column of a terminal; elsewhere every one
_FORMS: Final[dict[str, TableForm]] = {"csv": "csv", "parquet": "parquet"}


@click.group(name="runs", cls=SummarisedGroup)
def command() -> None:
    """List, show, label, check, import, pack and replay recorded runs, or write them as a table.

    FOLDER is a folder of recordings (searched at any depth) or one recording.
    """


command.add_command(agreement)
command.add_command(label_next)
command.add_command(import_)
command.add_command(pack_)
command.add_command(replay_)


@command.command(name="list")
@_paths
@as_json_option
@click.option("--unlabelled", is_flag=True, help="Only runs without a known outcome.")
@click.option("--paused", is_flag=True, help="Only runs with a pause or an abort, advisory ones included.")
def list_(paths: tuple[str, ...], as_json: bool, unlabelled: bool, paused: bool) -> None:
    """List runs, one per line: steps, pauses, lowest and last confidence, and outcome."""

    n_runs = 0

    def wanted() -> Iterator[dict[str, Any]]:
        nonlocal n_runs
        with progress("Reading runs") as advance:
            for run in runs(paths, on_partial_line=_tell_partial_line, on_refused=refuse):
                advance(1)
                n_runs += 1
                summary = summarise(run)
                if not (unlabelled and summary.success is not None) and not (paused and summary.pauses == 0):
                    yield dataclasses.asdict(summary)

    with naming_refused() as refuse:
        if as_json:
            print_json_array(wanted())
        else:
            columns = ["session_id", "started", "steps", "pauses", "least", "last", "outcome", "path"]
            end = -1 if sys.stdout.isatty() and len(paths) == 1 else None  # a line for a run
            print_table(columns[:end], (_list_row(summary)[:end] for summary in wanted()))
        refuse_none(n_runs, paths)


def _list_row(summary: dict[str, Any]) -> list[Any]:
    started = summary["started_s"]
    return [
        summary["session_id"],
        None if started is None else _time(started),
        summary["steps"],
        summary["pauses"],
        *(summary[name] for name in ("least_confidence", "last_confidence")),
        outcome_in_words(summary["success"], summary["stop_reason"], summary["labelled_by"]),
        summary["path"],
    ]


def _time(seconds: float) -> str:
    return utc(seconds).isoformat(sep=" ", timespec="seconds")


@command.command()
@click.argument("paths", nargs=-1, metavar="FOLDER...")
@click.argument("session_id", metavar="SESSION")
@as_json_option
@click.option("--text", is_flag=True, help="Show recorded text of model, tools and humans.")
@click.option("--output", "-o", type=OutputFile(), metavar="RUN.html", help="Write the run as a page instead.")
def show(paths: tuple[str, ...], session_id: str, as_json: bool, text: bool, output: str | None) -> None:
    """Show one run: every step, observation, decision and outcome, in order. With --json the events as recorded.

    The page of --output draws confidence and evidence against their limits, lists held calls with reasons, and
    shows recorded text on click.
    """
    if not paths:  # the one word was taken for the last argument
        raise click.UsageError(f"Missing argument 'SESSION': a name from `grampus-uq runs list {session_id}`.")
    if output is not None and (as_json or text):
        raise click.UsageError("--output takes neither --json nor --text: the page holds what was recorded.")
    with naming_refused() as refuse:
        run = find_run(paths, session_id, on_refused=refuse)
        if output is None:
            _show(run, as_json, text)
            return
        from grampus_uq.learn.pages import write_page
        from grampus_uq.learn.pages.run_page import run_html

        write_page(output, run_html(run))
        click.echo(f"Run written to {one_line(output)}.")


def _show(run: Run, as_json: bool, text: bool) -> None:
    summary = dataclasses.asdict(summarise(run))
    if as_json:
        events = [json.loads(encode(event)) for event in run.events]
        for event in events:
            del event["content"]  # the line in the file says how much was kept
        print_json({"summary": summary, "events": events})
        return
    if summary["started_s"] is not None:
        summary["started_s"] = _time(summary["started_s"])
    for name, value in summary.items():
        if value not in (None, ""):
            say_beside(f"{name.removesuffix('_s') + ':':<21}{one_line(value)}{' s' * (name == 'duration_s')}")
    thresholds, lowest = thresholds_of(run), lowest_reading(run)
    if thresholds is not None:
        say_beside(f"{'thresholds:':<21}{thresholds_in_words(thresholds)}")
    if lowest is not None:
        say_beside(f"{'lowest_reading:':<21}{one_line(in_words(lowest[1]))} {lowest[2]:.2f} at step {lowest[0]}")
    say_beside("")
    columns = [field.name for field in dataclasses.fields(EventRow)]
    print_table(columns if text else columns[:-1], (_event_cells(event, text) for event in run.events))
    if sys.stdout.isatty():
        click.echo("As a page: -o run.html." + ("" if text else " Recorded text: --text."))


def _event_cells(event: Event, text: bool) -> list[Any]:
    terminal = sys.stdout.isatty()
    row = event_row(event, most=_SHOWN_READINGS if terminal else None)
    if terminal:  # where a column is narrow, and a line breaks at blanks
        row = dataclasses.replace(row, action=row.action.replace("_", " "))
    cells = [getattr(row, field.name) for field in dataclasses.fields(EventRow)]
    if text and isinstance(event, StepEvent):
        cells[-2] = "; ".join([row.why, *filter(None, doubts_in_words(event))]).strip("; ")
    return cells if text else cells[:-1]


@command.command(name="label")
@click.argument("folder", metavar="FOLDER")
@click.argument("session_id", metavar="SESSION", required=False)
@click.argument("outcome", metavar="success|failure|unknown", required=False)
@click.option(
    "--from",
    "table",
    metavar="FILE.csv",
    help="Label many runs: columns session_id, success[, stop_reason, note, right_looks].",
)
@click.option("--by", help="Author of the label.  [default: the login name]")
@click.option(
    "--stop-reason",
    type=click.Choice([reason.value for reason in StopReason]),
    help="How the run ended; with --from, the runs of which neither recording nor table says it.",
)
@click.option("--note", help="A note, kept as written.")
@click.option("--right-look", "right_looks", multiple=True, metavar="TIER", help="Tier whose other call was right.")
@as_json_option
def label_(
    folder: str,
    session_id: str | None,
    outcome: str | None,
    table: str | None,
    by: str | None,
    stop_reason: str | None,
    note: str | None,
    right_looks: tuple[str, ...],
    as_json: bool,
) -> None:
    """Append a label with a run's outcome, author and time. The latest label counts; earlier ones stay recorded."""
    who = by if by is not None else login_name()
    given: list[OutcomeEvent] = []
    missing: list[str] = []
    stop = StopReason(stop_reason) if stop_reason else None
    with naming_refused() as refuse:
        if table is not None:
            if session_id is not None:
                raise click.UsageError("Give either SESSION and its outcome, or --from, not both.")
            if note is not None or right_looks:
                raise click.UsageError("With --from, `note` and `right_looks` are columns of the table.")
            with progress("Labelling") as advance:
                missing = label_all(
                    folder,
                    list(read_labels(table)),
                    by=who,
                    ended=stop,
                    on_labelled=given.append,
                    on_run=lambda _: advance(1),
                    on_refused=refuse,
                )
        elif session_id is None or outcome is None:
            raise click.UsageError("Give SESSION and success, failure or unknown; or --from FILE.csv.")
        else:
            try:
                success = parse_success(outcome)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint="outcome") from error
            known = Label(session_id=session_id, success=success, stop_reason=stop, note=note, right_looks=right_looks)
            given.append(label(folder, known, by=who, on_refused=refuse))
        if as_json:
            labelled = [json.loads(encode(event)) for event in given]
            print_json({"labelled": labelled, "not_found": missing})
        else:
            click.echo(f"{len(given)} labelled by {one_line(who)}.")
            for name in missing:
                click.echo(f"not found: {one_line(name)}", err=True)
            if missing and not given:
                say_beside(f"The column session_id has none of the names that grampus-uq runs list {folder} shows.")
        if missing:
            raise SystemExit(1)


@command.command(name="table")
@_paths
@click.option(
    "--output",
    "-o",
    required=True,
    type=OutputFile(),
    metavar="FILE",
    help="FILE.csv or .parquet; - for standard output.",
)
@click.option("--format", "form", type=click.Choice(["csv", "parquet"]), help="[default: by the suffix of FILE]")
@as_json_option
def table_(paths: tuple[str, ...], output: str, form: str | None, as_json: bool) -> None:
    """Write a flat table with one row per step: readings, confidences, level, action, outcome."""
    wanted = _FORMS.get(form or output.rpartition(".")[2].lower())
    if wanted is None:
        raise click.UsageError("FILE has no known suffix; give --format csv or parquet.")
    refuse_none(next(recording_files(paths), None), paths, "recording")
    with naming_refused() as refuse:
        if output == "-":
            if wanted == "parquet":
                raise click.UsageError("Parquet needs a FILE.")
            shown = one_line if sys.stdout.isatty() else str  # a terminal obeys what is in a text
            columns = [*map(shown, (*TABLE_COLUMNS, *reading_columns(paths, on_refused=refuse)))]
            rows = step_rows(paths, on_refused=refuse)
            cells = ({shown(k): shown(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows)
            write_rows(cells, columns, sys.stdout)
            return
        with progress("Exporting") as advance:
            count = export(paths, output, wanted, on_run=lambda _: advance(1), on_refused=refuse)
        refuse_none(count, paths, "step")
        print_result(as_json, {"rows": count, "output": output}, [f"{count} rows written to {output}."])


@command.command(name="validate")
@_paths
@as_json_option
def validate_(paths: tuple[str, ...], as_json: bool) -> None:
    """Check every line; report errors by path, line and field. Exit status 1 if there is an error."""
    ok, sessions = True, 0

    def reports() -> Iterator[dict[str, Any]]:
        nonlocal ok, sessions
        with progress("Checking files") as advance:
            for report in validate(paths):
                advance(1)
                ok, sessions = ok and report.ok, sessions + report.sessions
                yield {**dataclasses.asdict(report), "ok": report.ok, "shown": list(map(str, report.findings))}

    if as_json:
        print_json_array({name: value for name, value in report.items() if name != "shown"} for report in reports())
    else:
        files = steps = 0
        for report in reports():
            files, steps = files + 1, steps + report["steps"]
            for finding, shown in zip(report["findings"], report["shown"], strict=True):
                click.echo(f"{finding['severity']}: {one_line(shown)}")
            if report["more"]:
                click.echo(f"error: {one_line(report['path'])}: {report['more']} more findings.")
        click.echo(f"{files} files, {sessions} sessions, {steps} steps: {'valid' if ok and sessions else 'invalid'}.")
    refuse_none(sessions, paths)
    if not ok:
        raise SystemExit(1)


def _tell_partial_line(found: PartialLine) -> None:
    place = DataError(f"an unfinished line of {len(found.data)} bytes was left out.", path=found.path, line=found.line)
    click.echo(f"warning: {one_line(place)}", err=True)
