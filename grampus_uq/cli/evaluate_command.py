"""`grampus-uq evaluate`: how good the confidence streams of recorded runs are, as a table, JSON or an HTML report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from grampus_uq.cli.argument_types import OutputFile
from grampus_uq.cli.calibration_command import read_statuses
from grampus_uq.cli.many_runs import (
    caution_of_others,
    n_files_of_fits,
    of_fits,
    refuse_no_recording,
    task_key_option,
    workers_option,
)
from grampus_uq.cli.printing import (
    as_json_option,
    naming_refused,
    one_line,
    print_json,
    print_lines,
    print_table,
    progress,
    say_beside,
)
from grampus_uq.errors import DataError
from grampus_uq.learn.evaluate import Censoring, Evaluation, ForecastRuns, evaluate, read_recordings
from grampus_uq.learn.evaluate.evaluation_report import SHOWN_SIGNALS, SIGNAL_COLUMNS, signal_rows
from grampus_uq.learn.evaluate.plug_in import plug_in
from grampus_uq.recording.artifacts import load
from grampus_uq.recording.csv_rows import csv_rows
from grampus_uq.records.vocabulary import TASK, quantity

_COLUMNS = ("stream", "runs", "skipped", "tps_log", "tps_brier", "auroc", "aurc", "t_ece", "t_brier")


@click.command(name="evaluate")
@click.argument("paths", nargs=-1, required=True, metavar="RUNS...")
@click.option("--profile", metavar="FILE", help="Score this fitted profile on the recorded readings.")
@click.option(
    "--censoring",
    type=click.Choice(["none", "simple", "exact"]),
    default="none",
    help="Runs stopped at their step limit: left out, scored as failures, or scored by their probability of success.",
)
@click.option(
    "--continuation",
    metavar="FILE.csv",
    help="Columns session_id, q: success probability of censored runs, for --censoring exact. Others are estimated.",
)
@click.option("--draws", type=click.IntRange(min=2), default=2000, help="Bootstrap resamples.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the bootstrap.")
@click.option("--watch", "store", metavar="STORE", help="Also report the calibration watches in this session store.")
@click.option(
    "--all", "every_row", is_flag=True, help="Show every row: each stream raw, recalibrated and by each summary."
)
@task_key_option
@workers_option
@as_json_option
@click.option("--output", "-o", type=OutputFile(), metavar="REPORT.html", help="Also write an HTML report with charts.")
def command(
    paths: tuple[str, ...],
    profile: str | None,
    censoring: str,
    continuation: str | None,
    draws: int,
    seed: int,
    store: str | None,
    every_row: bool,
    task_key: str | None,
    workers: int,
    as_json: bool,
    output: str | None,
) -> None:
    """Find the signal that best separates good runs from bad ones, and the gain of holding calls by it.

    RUNS are labelled recordings (also packed) or folders of them. The twelve best signals are shown; --all, the
    report and --json add the Trajectory Proper Score and the rest.
    """
    if continuation is not None and censoring != "exact":
        raise click.UsageError("--continuation belongs to --censoring exact.")
    refuse_no_recording(paths)
    with naming_refused() as refuse:
        watch = [] if store is None else read_statuses(store)
        artifact = None if profile is None else load(profile)
        with progress("Reading runs") as advance:
            runs = read_recordings(
                paths,
                profile=artifact.profile if artifact else None,
                task_key=task_key or (artifact.provenance.task_key if artifact else TASK),
                on_runs=advance,
                on_refused=refuse,
                workers=workers,
            )
        if artifact is not None:
            caution_of_others(paths, artifact)
        how = _censoring(runs, censoring, continuation)
        found = evaluate(runs, rng=np.random.default_rng(seed), censoring=how, draws=draws, watch=watch)
        if served := of_fits(n_files_of_fits(paths, [artifact] if artifact else [])):
            found = replace(found, warnings=(served, *found.warnings))
        if output is not None:
            from grampus_uq.learn.evaluate.evaluation_report import evaluation_html
            from grampus_uq.learn.pages import write_page

            title = ", ".join(Path(path).name or path for path in paths)
            write_page(output, evaluation_html(found, title=title))
        if as_json:
            print_json(found.to_json())
            return
        _print(found, every_row)
        if output is not None:
            say_beside(f"Report written to {output}.")


def _censoring(runs: ForecastRuns, mode: str, path: str | None) -> Censoring:
    """Measured probabilities first; for the other censored runs those of a model that sees no forecast."""
    measured = _measured(path, set(runs.ids)) if path is not None else {}
    if mode != "exact" or not runs.censored.any():
        return Censoring(mode=mode)  # type: ignore[arg-type]  # click's Choice has checked it
    model = plug_in(runs)
    guessed = sum(name not in measured for name in model.q)
    notes = [f"q: {len(model.q) - guessed} measured, {guessed} from a model that uses no forecast."]
    if guessed and (model.brier is None or model.brier_of_base is None):
        notes.append("No run went on long enough to fit that model: its q is the success rate.")
    elif guessed:
        notes.append(
            f"On held-out runs the model's Brier loss is {model.brier:.4f}, the success rate's "
            f"{model.brier_of_base:.4f}: where the first is not clearly lower, q adds nothing to the success rate."
        )
    return Censoring(mode="exact", q=dict(model.q) | measured, notes=tuple(notes))


def _measured(path: str, known: set[str]) -> dict[str, float]:
    """Read session_id and q; every row is checked."""
    found: dict[str, float] = {}
    for line, row in csv_rows(path, ("session_id", "q")):
        name = row["session_id"] or ""
        if name in found or name not in known:
            reason = "comes twice" if name in found else "is not a run that can be scored"
            raise DataError(f"{name!r:.100} {reason}.", path=path, line=line, field="session_id")
        found[name] = _probability(row["q"], path, line)
    return found


def _probability(text: str | None, path: str, line: int) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise DataError(f"must be a probability in [0, 1]. Got {text!r:.50}.", path=path, line=line, field="q")
    return value


def _print(found: Evaluation, every_row: bool) -> None:
    say_beside(one_line(" ".join(found.verdict.sentences)))
    for row in found.audit:
        say_beside(f"{quantity(row.runs, 'run')}, {row.stop_reason}: {row.use} ({row.why})")
    for line in found.assumptions:
        say_beside(line)
    print_lines((f"warning: {warning}" for warning in found.warnings), err=True)
    for status in found.watch:
        say_beside(f"calibration {status.detector[:12]}, {status.variant.value}: {status.sentence}")
    if every_row:
        print_table(_COLUMNS, ([*_shown(row)] for row in found.table))
        return
    rows = signal_rows(found)
    print_table(SIGNAL_COLUMNS, rows[:SHOWN_SIGNALS])
    others = f"{len(rows) - SHOWN_SIGNALS} more signals, and " if len(rows) > SHOWN_SIGNALS else ""
    say_beside(
        "auroc: probability that a good run ranks above a bad one; 0.5 is chance. gain: log score, recalibrated, over "
        f"the success rate's. t ece: how far off it is as recorded. {others}every score: --all"
    )


def _shown(row: Any) -> list[Any]:
    scalar = "" if row.scalar == "front-weighted mean" else f": {row.scalar}"
    name = row.stream + (", recalibrated" if row.calibrated else "") + scalar
    return [name, row.runs, row.missing, row.tps_log, row.tps_brier, row.auroc, row.aurc, row.t_ece, row.t_brier]
