"""Commands that read many runs: how many processes read, and which files served a fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from grampus_uq.cli.printing import refuse_none
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.recording.artifacts import ANY, InputFile, ProfileArtifact
from grampus_uq.recording.parallel import cores
from grampus_uq.recording.parts import total_bytes
from grampus_uq.recording.runs import beginnings, recording_files, run_digests
from grampus_uq.records.tool_names import refusal_of

_WORTH_IT: Final = 32 * 2**20  # a process takes about a second to start, and reads this much in three


def _chosen(context: click.Context, _: click.Parameter, workers: int | None) -> int:
    """The number that was asked for, else one a core, and one for little data; an option not given is read last."""
    if workers is not None:
        return workers
    return cores() if cores() > 1 and total_bytes(context.params["paths"]) > _WORTH_IT else 1


workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    callback=_chosen,
    help="Reading processes.  [default: all cores; 1 for little data]",
)

task_key_option = click.option(
    "--task-key", metavar="NAME", help="Session metadata with the run's task.  [default: that of the profile's fit]"
)


def irreversible_option(help_: str) -> Callable[[Any], Any]:
    """The option `--irreversible`, repeated for several names."""
    return click.option("--irreversible", multiple=True, metavar="NAME", callback=_names_of_tools, help=help_)


def _names_of_tools(context: click.Context, _: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if (refused := refusal_of(name)) is not None:
            raise ConfigurationError.of("--irreversible", str(context.info_name), refused[0], name, refused[1])
    return names


def refuse_no_recording(paths: Sequence[str]) -> None:
    """Raise DataError where there is no file of recordings, damaged or not."""
    refuse_none(next(recording_files(list(paths)), None), paths, "recording")


def n_files_of_fits(paths: Sequence[str], artifacts: Sequence[ProfileArtifact]) -> int:
    """The number of files at these paths that served the fit of a profile, or hold a run that did.

    Figures taken on them are too good. A file that has grown since, by a label say, is known by its runs.
    """
    fitted_on = {file.sha256 for artifact in artifacts for file in artifact.provenance.inputs}
    served = {name for artifact in artifacts for name in artifact.provenance.listed("runs")}

    def is_known(path: Path) -> bool:
        if any(file.sha256 in fitted_on for file in InputFile.of_each([path])):
            return True
        with suppress(DataError):  # of a file that is not there the reader of its runs said so
            return bool(served) and not served.isdisjoint(run_digests(path))
        return False

    return sum(map(is_known, recording_files(list(paths)))) if artifacts else 0


def of_fits(n_files: int) -> str:
    """The sentence on so many files that served a fit; nothing where there are none."""
    were = "was" if n_files == 1 else "were"
    return f"{n_files} of these files {were} used to fit a profile; its figures are too optimistic." if n_files else ""


def of_trials(runs: int, tasks: int) -> str:
    """The sentence on intervals that take trials of tasks for independent runs; nothing where each run is a task."""
    what = f"these {runs} runs are trials of {tasks} tasks; the intervals take each run to be independent and are"
    return f"{what} too short." if tasks < runs else ""


def caution(of: str) -> None:
    """Say it on standard error, if there is anything to say."""
    if of:
        click.echo(f"CAUTION: {of}", err=True)


def caution_of_others(paths: Sequence[str], artifact: ProfileArtifact) -> None:
    """Say on standard error how many runs say that they are of another agent: there the profile would not act."""
    fitted = artifact.fitted_for.model_dump()
    n = sum(
        any(getattr(run, name) and value not in (None, ANY, getattr(run, name)) for name, value in fitted.items())
        for run in beginnings(paths)
    )
    what = "of another model, prompt or tools than the profile was fitted for; live it would not act there."
    caution(f"{n} of these runs {'is' if n == 1 else 'are'} {what}" if n else "")
