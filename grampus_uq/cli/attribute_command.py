"""`grampus-uq attribute`: which steps of a failed run hold the decisive error, with what probability, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from grampus_uq.cli.argument_types import OutputFile
from grampus_uq.cli.printing import as_json_option, naming_refused, one_line, print_json
from grampus_uq.errors import DataError
from grampus_uq.importers import read_failure_logs
from grampus_uq.learn.attribution import (
    METHODS,
    Attribution,
    CalibratedAttribution,
    LabelledTrajectory,
    Plan,
    Trajectory,
    attribution_html,
    calibration_from_json,
    fit_and_calibrate,
    locate,
    read_labelled_failures,
    trajectory_from_run,
)
from grampus_uq.learn.attribution.labelled_recordings import labelled_recordings, recorded_trajectory
from grampus_uq.learn.attribution.result import spans
from grampus_uq.learn.pages import write_page
from grampus_uq.recording import runs
from grampus_uq.recording.artifacts import is_profile, load
from grampus_uq.recording.copies import distinct_runs
from grampus_uq.recording.runs import files_at
from grampus_uq.records.vocabulary import TASK

_RECORDING: Final = b'{"v":'
_SHOWN: Final = 600
_METHOD: Final = "vcp: the fewest steps, for reading; lf_envelope and lf: suffixes, for rolling back.  [default: vcp]"


@click.command()
@click.argument("failed", type=click.Path(path_type=Path))
@click.option(
    "--calibration",
    required=True,
    type=click.Path(path_type=Path),
    metavar="LABELLED",
    help="Failures with known errors (some fit the step scorer, the rest calibrate), or a fitted profile.",
)
@click.option("--level", type=float, help="Coverage, in (0, 1).  [default: 0.8]")
@click.option("--method", type=click.Choice(list(METHODS)), help=_METHOD)
@click.option("--task-key", default=TASK, help="Session metadata with the run's task.")
@click.option("--run", "run_id", help="Analyse only this run of FAILED.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the split and of tie draws.")
@as_json_option
@click.option("--output", "-o", type=OutputFile(), metavar="REPORT.html", help="Write a report of one run.")
def command(
    failed: Path,
    calibration: Path,
    level: float | None,
    method: str | None,
    task_key: str,
    run_id: str | None,
    seed: int,
    as_json: bool,
    output: str | None,
) -> None:
    """Find the steps of a failed run that contain its decisive error, with a stated probability.

    FAILED and LABELLED are logs of failed runs (JSON lines or an array; `history`, `mistake_step`) or
    recordings (files or folders) made with content="full". A recording is labelled by `runs label FOLDER SESSION
    failure --note "error at STEP"`. Logs of LABELLED that cannot calibrate, and runs that FAILED holds too, are left
    out and named.
    """
    with naming_refused() as refuse:
        for given in (failed, calibration):
            next(files_at(given), None)  # a pipe is refused: each is read more than once
        trajectories = [run for run in _failed(failed, refuse) if run_id in (None, run.trajectory_id)]
        if not trajectories:
            raise DataError("holds no failed run" + (f" {run_id!r:.80}." if run_id else "."), path=str(failed))
        if output is not None and len(trajectories) > 1:
            raise click.UsageError(f"FAILED holds {len(trajectories)} runs: select one with --run.")
        left_out: list[str] = []
        calibrated = _of_profile(calibration)
        if calibrated is None:
            plan = Plan(seed=seed)
            plan = replace(
                plan, method=METHODS[method] if method else plan.method, level=plan.level if level is None else level
            )
            same = {run.trajectory_id for run in trajectories}
            calibrated = fit_and_calibrate(_labelled(calibration, same, task_key, left_out, refuse), plan)
        elif level is not None or method is not None:
            plan = calibrated.plan
            fitted = f"{plan.method.name} at {plan.level:g}"
            raise click.UsageError(f"The profile was calibrated for {fitted}: omit --method and --level.")
        found = [locate(run, calibrated) for run in trajectories]
        if output is not None:
            write_page(output, attribution_html(found[0], positions=calibrated.positions))
        if as_json:
            print_json(_as_json(found, calibrated, left_out))
            return
        for attribution in found:
            _show(attribution)
        positions = calibrated.positions
        click.echo(f"\nThe {positions.trajectories} calibration failures: {positions.advice}")
        if output is not None:
            click.echo(f"Report written to {output}.")


def _failed(path: Path, refuse: Callable[[DataError], None]) -> Iterator[Trajectory]:
    """The runs of FAILED, labelled or not; a label is not looked at."""
    if not _is_recording(path):
        for log in read_failure_logs(path, on_refused=refuse):
            yield trajectory_from_run(log.run)
        return
    for run in runs(path, on_refused=refuse):
        if run.superseded or (run.outcome is not None and run.outcome.success):
            continue
        try:
            yield recorded_trajectory(run)
        except DataError as error:
            refuse(error)


def _of_profile(path: Path) -> CalibratedAttribution | None:
    """The calibration that a profile holds (`grampus-uq fit`); None where the file is not a profile."""
    if path.is_dir() or not is_profile(path):
        return None
    stored = load(path).attribution
    if stored is None:
        reason = "this profile has no attribution: too few failures had a label that names the step of the error."
        raise DataError(reason, path=str(path), field="attribution")
    return calibration_from_json(stored)


def _labelled(
    path: Path, failed: Collection[str], task_key: str, left_out: list[str], refuse: Callable[[DataError], None]
) -> list[LabelledTrajectory]:
    """The failures whose errors are known, without the failed runs; what is left out is named before a fit may fail."""
    recorded = _is_recording(path)

    def leave_out(error: DataError) -> None:
        left_out.append(str(error))
        if recorded or error.field:
            click.echo(f"left out: {one_line(error)}", err=True)
        else:  # it is no log that is damaged but the file, whose rest is lost
            refuse(error)

    if recorded:
        items = labelled_recordings(distinct_runs(path, on_refused=refuse), leave_out, task_key)
    else:
        items = read_labelled_failures(path, on_left_out=leave_out)
    for name in (item.trajectory.trajectory_id for item in items if item.trajectory.trajectory_id in failed):
        leave_out(DataError(f"{name!r:.80} is among the failed runs.", path=str(path), field="run"))
    return [item for item in items if item.trajectory.trajectory_id not in failed]


def _is_recording(path: Path) -> bool:
    if path.is_dir():
        return True
    with path.open("rb") as stream:
        head = stream.read(4096).lstrip()
    return head.startswith(_RECORDING) and b'"type"' in head


def _show(found: Attribution) -> None:
    click.echo(f"run {one_line(found.trajectory_id)}: {found.method} at {found.level:.0%}, {_spans(found)}")
    for index in found.set_steps:
        step = found.steps[index]
        click.echo(f"\n  step {index} [{one_line(step.step_id)}] {one_line(step.speaker)}")
        text = one_line(step.text).strip()
        more = len(text) - _SHOWN
        click.echo(f"    {text[:_SHOWN]}{f'… ({more} more characters)' if more > 0 else ''}")
        if step.why:
            click.echo(f"    against it: {one_line(step.why)}")
    click.echo("")
    for sentence in (*found.why, *found.notes, found.coverage):
        click.echo(one_line(sentence))


def _spans(found: Attribution) -> str:
    inside = found.set_steps
    if not inside:
        return "no step"
    return f"step{'s' if len(inside) > 1 else ''} {spans(inside)} of 0 to {len(found.steps) - 1}"


def _as_json(found: list[Attribution], calibrated: CalibratedAttribution, left_out: list[str]) -> dict[str, object]:
    positions = calibrated.positions
    return {
        "calibration": {
            "failures": positions.trajectories,
            "fitted_on": len(getattr(calibrated.scorer, "fitted_on", ())),
            "left_out": left_out,
            "error_positions": list(positions.counts),
            "advice": positions.advice,
        },
        "attributions": [attribution.to_json() for attribution in found],
    }
