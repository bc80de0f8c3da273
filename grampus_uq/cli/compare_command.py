"""`grampus-uq compare`: two profiles on the same recorded runs, with the difference and its interval."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from grampus_uq.cli.refused import naming_refused
from grampus_uq.cli.spreading import spread_over, spreading, telling
from grampus_uq.recording.artifacts import InputFile, ProfileArtifact, load
from grampus_uq.recording.runs import recording_files

__all__ = ["command"]


@click.command(name="compare")
@click.argument("first", metavar="PROFILE")
@click.argument("second", metavar="PROFILE")
@click.argument("paths", nargs=-1, required=True, metavar="RUNS...")
@click.option("--draws", type=click.IntRange(min=2), default=2000, show_default=True, help="Bootstrap resamples.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the bootstrap.")
@spreading
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    first: str,
    second: str,
    paths: tuple[str, ...],
    draws: int,
    seed: int,
    workers: int | None,
    backend: str,
    as_json: bool,
) -> None:
    """Say what two profiles would have done on the same labelled RUNS, and how they differ.

    The recorded readings go through both; signals that were not read stay unread. Runs that a human or the monitor
    touched are left out and counted.
    """
    import numpy as np

    from grampus_uq.learn.profiles.comparing import compare_profiles

    artifacts = (load(first), load(second))
    with naming_refused() as refuse:
        with telling("Reading runs") as advance:
            found = compare_profiles(
                list(paths),
                artifacts[0].profile,
                artifacts[1].profile,
                rng=np.random.default_rng(seed),
                draws=draws,
                on_runs=advance,
                on_refused=refuse,
                **spread_over(paths, workers, backend),
            )
        served = _served(artifacts, paths)
        if as_json:
            prints = [artifact.fingerprint for artifact in artifacts]
            click.echo(
                json.dumps({"profiles": prints, "files_used_in_a_fit": served, **found.to_json()}, allow_nan=False)
            )
            return
        from grampus_uq.cli.runs_command import _print_table

        if served:
            click.echo(
                f"CAUTION: {served} of these files served the fit of a profile; its figures are too good.", err=True
            )
        click.echo(f"runs       {', '.join(f'{n} {what}' for what, n in found.counts.items() if n)}")
        columns = ("measure", "better", "first", "second", "difference", "95 % interval", "runs")
        _print_table(
            columns,
            (
                [
                    row.measure,
                    row.better,
                    _figure(row.first),
                    _figure(row.second),
                    _figure(row.delta, sign=True),
                    "-" if row.low is None or row.high is None else f"[{row.low:+.3f}, {row.high:+.3f}]",
                    row.runs,
                ]
                for row in found.rows
            ),
        )
        click.echo("Each interval stands alone: of many, some exclude 0 by chance.")


def _served(artifacts: Sequence[ProfileArtifact], paths: Sequence[str]) -> int:
    seen = {file.sha256 for artifact in artifacts for file in artifact.provenance.inputs}
    return sum(InputFile.of(path).sha256 in seen for path in filter(Path.is_file, recording_files(list(paths))))


def _figure(value: float | None, *, sign: bool = False) -> str:
    return "-" if value is None else f"{value:+.3f}" if sign else f"{value:.3f}"
