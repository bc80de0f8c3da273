"""`grampus-uq backtest`: what a profile's detector would have done on recorded runs that it was not fitted on."""

from __future__ import annotations

from collections.abc import Sequence

import click

from grampus_uq.cli.calibration_command import read_statuses
from grampus_uq.cli.many_runs import (
    caution,
    caution_of_others,
    n_files_of_fits,
    of_fits,
    of_trials,
    refuse_no_recording,
    task_key_option,
    workers_option,
)
from grampus_uq.cli.printing import as_json_option, naming_refused, print_json, print_table, progress, say_beside
from grampus_uq.core.worst_case import UNAIDED
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.alarm_figures import Figure
from grampus_uq.learn.fit.backtest import BacktestRow, backtest
from grampus_uq.learn.fit.streams import read_detector_runs
from grampus_uq.recording.artifacts import load
from grampus_uq.stats.calibration_watch import detector_id


@click.command()
@click.argument("profile")
@click.argument("paths", nargs=-1, required=True)
@click.option("--unlabelled", is_flag=True, help="Ignore outcomes: show only pauses and their position.")
@click.option("--all", "everything", is_flag=True, help="Show the thresholds of every mode, not only the deployed one.")
@click.option("--watch", "store", metavar="STORE", help="Also report the calibration watch on this detector.")
@task_key_option
@workers_option
@as_json_option
def command(
    profile: str,
    paths: tuple[str, ...],
    unlabelled: bool,
    everything: bool,
    store: str | None,
    task_key: str | None,
    workers: int,
    as_json: bool,
) -> None:
    """Apply every threshold in PROFILE to PATHS: recordings or folders of them."""
    artifact = load(profile)
    detector = artifact.profile.detector
    if detector is None:
        raise ConfigurationError.of("PROFILE", "backtest", "a profile with a detector", profile, "Run grampus-uq fit.")
    refuse_no_recording(paths)
    with naming_refused() as refuse:
        with progress("Reading runs") as advance:
            # What computes streams of its own or says what a call is, without detector and release; else as recorded.
            own = artifact.profile
            computes = detector.at_calls or UNAIDED in detector.streams or own.calibration or own.trajectory_risk
            judge = own.model_copy(update={"detector": None, "release": None}) if computes else None
            data = read_detector_runs(
                paths,
                detector.streams,
                labelled=not unlabelled,
                profile=judge,
                task_key=task_key or artifact.provenance.task_key,
                at_calls=detector.at_calls,
                on_runs=advance,
                on_refused=refuse,
                workers=workers,
            )
        if not data:
            what = "a call that the profile knows as irreversible" if data.at_calls else "a step of the model"
            labelled = "" if unlabelled else ", an outcome and nobody's interference"
            raise DataError(
                f"holds no run that this detector judges: one with {what}{labelled}.", path=", ".join(paths)
            )
        rows = backtest(detector, data)
        overlap, tasks = n_files_of_fits(paths, [artifact]), len(set(data.tasks or data.ids))
        watched = [] if store is None else [s for s in read_statuses(store) if s.detector == detector_id(detector)]
        if as_json:
            shown = {
                "profile": artifact.fingerprint,
                "files_used_in_the_fit": overlap,
                "tasks": tasks,
                "rows": [row.to_json() for row in rows],
                "watch": [status.to_json() for status in watched],
            }
            print_json(shown)
            return
        caution(of_fits(overlap))
        caution(of_trials(len(data), tasks))
        caution_of_others(paths, artifact)
        mode = None if everything else detector.threshold.mode
        _print([row for row in rows if mode in (None, row.threshold.mode)])
        for status in watched:
            say_beside(f"watch, {status.variant.value}: {status.sentence}")
        if store is not None and not watched:
            say_beside("watch: that store has no calibration watch on this detector.")


def _print(rows: Sequence[BacktestRow]) -> None:
    columns = ("mode", "level", "false alarms", "power", "precision", "position", "pauses/100", "cost used")
    cells = (
        [
            row.threshold.mode.value,
            f"{row.threshold.alpha:.3g}{' *' if row.deployed else ''}",
            *map(_interval, (row.figures.false_alarms, row.figures.power, row.figures.precision, row.figures.position)),
            _interval(row.figures.paused, unit=100.0, digits=1),
            _interval(row.figures.cost_used),
        ]
        for row in rows
    )
    print_table(columns, cells)
    deployed = next(row for row in rows if row.deployed)
    set_by = deployed.threshold
    promise = f"It never alarms: {set_by.shortage}" if set_by.shortage else set_by.guarantee
    say_beside(f"* deployed, on {deployed.runs} runs, 95 % intervals. {promise}")


def _interval(figure: Figure, *, unit: float = 1.0, digits: int = 3) -> str | None:
    if figure.estimate is None:
        return None
    ends = ""
    if figure.low is not None and figure.high is not None:
        ends = f" [{unit * figure.low:.{digits}f}, {unit * figure.high:.{digits}f}]"
    return f"{unit * figure.estimate:.{digits}f}{ends}"
