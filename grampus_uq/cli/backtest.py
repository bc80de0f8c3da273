"""`grampus-uq backtest`: what a profile's detector would have done on recorded runs that it was not fitted on."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from grampus_uq.artifacts import InputFile, load
from grampus_uq.errors import ConfigurationError
from grampus_uq.fit.backtest import BacktestRow, backtest
from grampus_uq.fit.streams import TABLES, read_detector_runs
from grampus_uq.recording.runs import recording_files

__all__ = ["command"]


@click.command()
@click.argument("profile")
@click.argument("paths", nargs=-1, required=True)
@click.option("--unlabelled", is_flag=True, help="Use no outcomes: only pauses and their position are shown.")
@click.option("--all", "everything", is_flag=True, help="Show the thresholds of every mode, not the deployed one's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(profile: str, paths: tuple[str, ...], unlabelled: bool, everything: bool, as_json: bool) -> None:
    """Apply every threshold in PROFILE to PATHS: folders of recordings, or one table of verifier scores."""
    artifact = load(profile)
    detector = artifact.profile.detector
    if detector is None:
        raise ConfigurationError.of("PROFILE", "backtest", "a profile with a detector", profile, "Run grampus-uq fit.")
    data = read_detector_runs(paths, detector.streams, labelled=not unlabelled)
    rows = backtest(detector, data)
    seen = {file.sha256 for file in artifact.provenance.inputs}
    files = list(paths) if paths[0].endswith(TABLES) else list(recording_files(list(paths)))
    overlap = sum(InputFile.of(path).sha256 in seen for path in files)
    if as_json:
        shown = [row.to_json() for row in rows]
        click.echo(json.dumps({"profile": artifact.fingerprint, "files_used_in_the_fit": overlap, "rows": shown}))
        return
    if overlap:
        click.echo(f"CAUTION: {overlap} of {len(files)} files served the fit; these figures are too good.", err=True)
    mode = detector.threshold.mode.value
    rows = [row for row in rows if everything or row.mode == mode]
    table = Table("mode", "level", "false alarms", "power", "precision", "position", "pauses/100", "cost used")
    for row in rows:
        mark = " *" if row.deployed else ""
        table.add_row(
            row.mode,
            f"{row.alpha:.3g}{mark}",
            _interval(row.false_alarm_rate, row.false_alarm_low, row.false_alarm_high),
            _interval(row.power, row.power_low, row.power_high),
            _figure(row.precision),
            _figure(row.alarm_position),
            f"{row.pauses_per_100:.1f}",
            _figure(row.cost_used),
        )
    Console().print(table)
    deployed = next(row for row in rows if row.deployed)
    click.echo(f"* deployed, on {deployed.runs} runs. {_standing(deployed)}")


def _standing(row: BacktestRow) -> str:
    return f"It never rings: {row.shortage}" if row.shortage else row.guarantee


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    return "-" if value is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
