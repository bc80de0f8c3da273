"""`grampus-uq compare`: two profiles on the same recorded runs, with the difference and its interval."""

from __future__ import annotations

from dataclasses import asdict

import click
import numpy as np

from grampus_uq.cli.many_runs import caution, n_files_of_fits, of_fits, task_key_option, workers_option
from grampus_uq.cli.printing import (
    as_json_option,
    counts_line,
    naming_refused,
    print_json,
    print_table,
    progress,
    say_beside,
)
from grampus_uq.learn.profiles.comparing import Comparison, compare_profiles
from grampus_uq.recording.artifacts import load
from grampus_uq.records.vocabulary import TASK


@click.command(name="compare")
@click.argument("first", metavar="PROFILE")
@click.argument("second", metavar="PROFILE")
@click.argument("paths", nargs=-1, required=True, metavar="RUNS...")
@click.option("--draws", type=click.IntRange(min=2), default=2000, help="Bootstrap resamples.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the bootstrap.")
@task_key_option
@workers_option
@as_json_option
def command(
    first: str,
    second: str,
    paths: tuple[str, ...],
    draws: int,
    seed: int,
    task_key: str | None,
    workers: int,
    as_json: bool,
) -> None:
    """Compare the decisions of two profiles on the same labelled RUNS.

    Both profiles process the recorded readings; signals that were not read stay unread. Runs that a human or
    the monitor stopped or decided on are left out and counted.
    """
    artifacts = (load(first), load(second))
    keys = [artifact.provenance.task_key for artifact in artifacts]
    with naming_refused() as refuse:
        with progress("Reading runs") as advance:
            found = compare_profiles(
                list(paths),
                artifacts[0].profile,
                artifacts[1].profile,
                rng=np.random.default_rng(seed),
                draws=draws,
                task_key=task_key or next((key for key in keys if key != TASK), TASK),
                on_runs=advance,
                on_refused=refuse,
                workers=workers,
            )
        served = n_files_of_fits(paths, artifacts)
        if as_json:
            prints = [artifact.fingerprint for artifact in artifacts]
            print_json({"profiles": prints, "files_used_in_a_fit": served, **asdict(found)})
            return
        caution(of_fits(served))
        _print(found)


def _print(found: Comparison) -> None:
    say_beside(counts_line(found.counts))
    columns = ("measure", "better", "first", "second", "difference", "95 % interval", "runs")
    cells = (
        [
            row.measure,
            row.better,
            _figure(row.first),
            _figure(row.second),
            _figure(row.delta, sign=True),
            None if row.low is None or row.high is None else f"[{row.low:+z.3f}, {row.high:+z.3f}]",
            row.runs,
        ]
        for row in found.rows
    )
    print_table(columns, cells)
    say_beside("Each interval is computed on its own: of many, some exclude 0 by chance.")


def _figure(value: float | None, *, sign: bool = False) -> str | None:
    return None if value is None else f"{value:+z.3f}" if sign else f"{value:.3f}"
