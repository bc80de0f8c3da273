"""Commands that read many runs: how many processes read, and which files served a fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import click

from grampus_uq.recording.artifacts import ANY, InputFile, ProfileArtifact
from grampus_uq.recording.parallel import cores
from grampus_uq.recording.parts import total_bytes
from grampus_uq.recording.runs import beginnings, recording_files

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


def n_files_of_fits(paths: Sequence[str], artifacts: Iterable[ProfileArtifact]) -> int:
    """The number of files at these paths that served the fit of a profile: figures taken on them are too good."""
    fitted_on = {file.sha256 for artifact in artifacts for file in artifact.provenance.inputs}
    return sum(file.sha256 in fitted_on for file in InputFile.of_each(recording_files(list(paths))))


def caution_of_fits(n_files: int) -> None:
    """Say on standard error that so many files served a fit."""
    if n_files:
        click.echo(
            f"CAUTION: {n_files} of these files were used to fit a profile; its figures are too optimistic.", err=True
        )


def caution_of_others(paths: Sequence[str], artifact: ProfileArtifact) -> None:
    """Say on standard error how many runs say that they are of another agent: there the profile would not act."""
    fitted = artifact.fitted_for.model_dump()
    n = sum(
        any(getattr(run, name) and value not in (None, ANY, getattr(run, name)) for name, value in fitted.items())
        for run in beginnings(paths)
    )
    if n:
        click.echo(
            f"CAUTION: {n} of these runs have another model, prompt or tools than the profile was fitted for; live it "
            "would not act there.",
            err=True,
        )
