"""`grampus-uq runs import`, `replay` and `pack`: runs from elsewhere, and many recordings at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, get_args

import click

from grampus_uq.cli.argument_types import OutputFolder
from grampus_uq.cli.many_runs import caution_of_others, irreversible_option, refuse_no_recording, workers_option
from grampus_uq.cli.printing import (
    as_json_option,
    naming_refused,
    one_line,
    print_json,
    print_lines,
    print_result,
    progress,
    refuse_none,
    say_beside,
)
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.importers.formats import FORMATS, read_runs
from grampus_uq.importers.imported_run import ImportedRun, events
from grampus_uq.monitor.trajectory_watch import TrajectorySensor, filled_in
from grampus_uq.recording.artifacts import load
from grampus_uq.recording.codec import Content
from grampus_uq.recording.kept_content import folder_key, kept_line
from grampus_uq.recording.packing import pack
from grampus_uq.recording.parallel import cores, in_order
from grampus_uq.recording.replay import ReplayCounts, replay_all
from grampus_uq.recording.run_names import file_name
from grampus_uq.recording.runs import files_at
from grampus_uq.recording.whole_file import place_new
from grampus_uq.records.events import Event
from grampus_uq.records.vocabulary import quantity
from grampus_uq.signals.embedding import HashingEmbedder
from grampus_uq.signals.minilm import MiniLM
from grampus_uq.signals.structure import counted

_MOST_SHOWN: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The options of an import: plain values, which other processes can be given."""

    folder: Path
    form: str
    content: Content
    outcome: str | None
    agent_id: str
    irreversible: tuple[str, ...]
    embedder: str | None


@dataclass(slots=True, kw_only=True)
class _Imported:
    """The result of one file."""

    path: str
    runs: int = 0
    steps: int = 0
    with_outcome: int = 0
    refused: int = 0
    errors: list[str] = field(default_factory=list)
    broken: bool = False

    def refuse(self, error: DataError) -> None:
        self.refused += 1
        if len(self.errors) < _MOST_SHOWN:
            self.errors.append(str(error))


@click.command(name="import")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option("--output", "-o", required=True, type=OutputFolder(), metavar="FOLDER", help="Folder for the recordings.")
@click.option("--format", "form", type=click.Choice(["auto", *FORMATS]), default="auto")
@click.option("--content", type=click.Choice(get_args(Content)), default="hashed", help="What is kept of texts.")
@click.option("--outcome", metavar="NAME", help="The evaluation (OTLP) or feedback (LangSmith) that states success.")
@click.option("--agent", "agent_id", default="", show_default=False, help="Name of the agent, if the files have none.")
@irreversible_option("Tools with this in their name are irreversible: `evaluate` and `fit` look at their calls.")
@click.option("--embedder", type=click.Choice(["hash", "minilm"]), help="Also compute TRACER's text comparisons.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Reading processes.  [default: all cores; 1 for little data]"
)
@as_json_option
def import_(paths: tuple[str, ...], output: str, workers: int | None, as_json: bool, **kept: Any) -> None:
    """Import runs from benchmark results, traces, exports and logs, in the formats of --format.

    FILE is a file or a folder of files, plain or gzip. Invalid records, and runs that FOLDER already has, are
    named and skipped, and the exit status is then 1. Every step has the readings of a live run that need no
    model, whatever --content keeps of the texts: stated confidence, log-probabilities where the file has them,
    and counts of the agent's actions (`count_calls`, ...). `evaluate` and `fit` use them.
    """
    files = list(files_at(paths))
    refuse_none(files, paths, "file")
    plan = _Plan(folder=Path(output), **kept)
    chosen = workers or (
        min(cores(), len(files)) if sum(path.stat().st_size for path in files if path.is_file()) > 2**25 else 1
    )
    found: list[_Imported] = []
    with progress("Importing runs") as advance:
        for one in in_order(partial(_import_file, plan), files, workers=max(1, chosen)):
            found.append(one)
            advance(one.runs)
    refused = sum(one.refused for one in found)
    if as_json:
        print_json({"output": output, "files": [asdict(one) for one in found]})
    else:
        for one in found:
            print_lines((f"left out: {text}" for text in one.errors), err=True)
            if one.refused > len(one.errors):
                click.echo(f"left out: {one.refused - len(one.errors)} more of {one_line(one.path)}", err=True)
        runs, steps = sum(one.runs for one in found), sum(one.steps for one in found)
        imported = f"{quantity(runs, 'run')}, {quantity(steps, 'step')} imported from {quantity(len(found), 'file')}"
        click.echo(f"{imported}; {quantity(refused, 'record')} left out.")
        if runs and not any(one.with_outcome for one in found):
            named = "" if plan.outcome is None else f" named {plan.outcome!r}"
            say_beside(
                f"No run has an outcome{named}: label them (grampus-uq runs label {output} --from FILE.csv), or import "
                "traces that hold it into another folder with --outcome NAME."
            )
    if refused:
        raise SystemExit(1)
    refuse_none(sum(one.runs for one in found), paths)


def _import_file(plan: _Plan, path: Path) -> _Imported:
    found = _Imported(path=os.fspath(path))
    try:
        for run in read_runs(path, plan.form, outcome=plan.outcome, on_refused=found.refuse):
            try:
                _write(plan, run)
            except DataError as error:
                found.refuse(DataError(error.reason, path=error.path or run.path, line=run.line, field=error.field))
                continue
            found.runs += 1
            found.steps += run.n_steps
            found.with_outcome += run.outcome.success is not None
    except DataError as error:  # the rest of the file cannot be read: what came before stays
        found.refuse(error)
        found.broken = True
    return found


def _write(plan: _Plan, run: ImportedRun) -> None:
    """One run, whole, in a file of its own. Raises DataError when it cannot be recorded, or exists already."""
    profile = Profile(policy=UncertaintyPolicy(irreversible_tool_names=list(plan.irreversible)), advisory=True)
    recorded: Iterable[Event] = counted(events(run, profile=profile, agent_id=run.agent_id or plan.agent_id))
    if plan.embedder is not None:
        recorded = filled_in(recorded, _sensor(plan.embedder))
    key = _made(plan.folder, keyed=plan.content != "none")
    lines = [kept_line(event, plan.content, lambda: key) for event in recorded]
    try:
        place_new(b"".join(lines), plan.folder / file_name(run.run_id))
    except FileExistsError as error:
        raise DataError(f"a run {run.run_id!r:.80} exists already.", field="run_id") from error


@cache  # once a process, and not before there is a run
def _made(folder: Path, *, keyed: bool) -> bytes:
    """Make the folder of an import; returns its key."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder_key(folder) if keyed else b""


@cache
def _sensor(embedder: str) -> TrajectorySensor:
    return TrajectorySensor.of(TrajectoryRiskSettings(), MiniLM() if embedder == "minilm" else HashingEmbedder())


@click.command(name="replay")
@click.argument("paths", nargs=-1, required=True, metavar="FOLDER...")
@click.option("--profile", required=True, metavar="FILE", help="The fitted profile to apply.")
@workers_option
@as_json_option
def replay_(paths: tuple[str, ...], profile: str, workers: int, as_json: bool) -> None:
    """Apply another profile to recorded readings, and count the differences."""
    judge = load(profile)
    with naming_refused() as refuse:
        with progress("Replaying runs") as advance:
            found = replay_all(
                paths, judge.profile, on_part=lambda part: advance(part.runs), on_refused=refuse, workers=workers
            )
        refuse_none(found.runs, paths)
        caution_of_others(paths, judge)
        print_result(as_json, asdict(found), _shown(found))


def _shown(found: ReplayCounts) -> Iterator[str]:
    yield f"runs     {found.runs}, {found.differing} with a step whose conclusion differs"
    yield f"steps    {found.steps}, {found.same} with the recorded conclusion"
    yield f"stopped  {found.stopped_before} steps of {found.runs_stopped_before} runs as recorded"
    yield f"         {found.stopped_now} steps of {found.runs_stopped_now} runs by this profile"
    for why in found.skipped:
        yield f"skipped  {one_line(why)}"


@click.command(name="pack")
@click.argument("paths", nargs=-1, required=True, metavar="FOLDER...")
@click.option(
    "--output",
    "-o",
    required=True,
    type=OutputFolder(),
    metavar="FOLDER",
    help="An empty folder for the Parquet files.",
)
@workers_option
@as_json_option
def pack_(paths: tuple[str, ...], output: str, workers: int, as_json: bool) -> None:
    """Pack recordings into a few Parquet files without loss; every command reads them like recordings."""
    refuse_no_recording(paths)
    with progress("Packing sessions") as advance:
        files = pack(paths, output, on_file=lambda file: advance(file.sessions), workers=workers)
    if as_json:
        print_json([asdict(file) for file in files])
        return
    partial_lines = sum(file.partial_lines for file in files)
    sessions, lines = sum(file.sessions for file in files), sum(file.lines for file in files)
    refuse_none(sessions, paths)
    click.echo(f"{sessions} sessions, {lines} lines in {len(files)} files; {partial_lines} unfinished lines left out.")
