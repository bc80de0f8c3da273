"""`grampus-uq attribute`: which steps of a failed run hold the decisive error, with what probability, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from grampus_uq.cli.refused import naming_refused
from grampus_uq.errors import DataError
from grampus_uq.importers import read_failure_logs
from grampus_uq.learn.attribution import (
    Attribution,
    CalibratedAttribution,
    LabelledTrajectory,
    Plan,
    Trajectory,
    advise,
    attribution_html,
    calibration_from_json,
    fit_and_calibrate,
    locate,
    read_labelled_failures,
    trajectory_from_run,
)
from grampus_uq.learn.attribution.labelled_recordings import labelled_recordings, recorded_trajectory
from grampus_uq.learn.attribution.methods import METHODS
from grampus_uq.learn.attribution.result import spans
from grampus_uq.recording import runs
from grampus_uq.recording.artifacts import is_profile, load
from grampus_uq.recording.copies import distinct_runs

__all__ = ["command"]

_RECORDING: Final = b'{"v":'
_SHOWN: Final = 600
_METHOD: Final = "vcp: the fewest steps, to read; lf_envelope and lf: suffixes, to roll back."


@click.command()
@click.argument("failed", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--calibration",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="LABELLED",
    help="Failures whose errors are known (some fit the step scorer, the rest calibrate), or a fitted profile.",
)
@click.option("--level", type=float, default=None, show_default="0.8", help="Wanted coverage, in (0, 1).")
@click.option("--method", type=click.Choice(list(METHODS)), default=None, show_default="vcp", help=_METHOD)
@click.option("--run", "run_id", default=None, help="Only this run of FAILED.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the parts and of tie draws.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="REPORT.html", help="Draw one run."
)
def command(
    failed: Path,
    calibration: Path,
    level: float | None,
    method: str | None,
    run_id: str | None,
    seed: int,
    as_json: bool,
    output: Path | None,
) -> None:
    """Find the steps of a failed run that hold its decisive error with a stated probability.

    FAILED and LABELLED are logs of failed runs (JSON lines or an array; `history`, `mistake_step`) or recordings (files
    or folders) made with content="full". A recording is labelled by `grampus-uq runs label SESSION failure --note
    "error at STEP"`. Logs of LABELLED that cannot calibrate, and runs that FAILED holds too, are left out and named.
    """
    with naming_refused() as refuse:
        _attribute(failed, calibration, level, method, run_id, seed, as_json, output, refuse)


def _attribute(
    failed: Path,
    calibration: Path,
    level: float | None,
    method: str | None,
    run_id: str | None,
    seed: int,
    as_json: bool,
    output: Path | None,
    refuse: Callable[[DataError], None],
) -> None:
    trajectories = [run for run in _failed(failed, refuse) if run_id in (None, run.trajectory_id)]
    if not trajectories:
        raise DataError("holds no failed run" + (f" {run_id!r:.80}." if run_id else "."), path=str(failed))
    if output is not None and len(trajectories) > 1:
        raise click.UsageError(f"FAILED holds {len(trajectories)} runs: say with --run which one to draw.")
    left_out: list[str] = []
    calibrated = _of_profile(calibration)
    if calibrated is not None and (level is not None or method is not None):
        plan = calibrated.plan
        reason = f"The profile was calibrated for {plan.method.name} at {plan.level:g}: leave --method and --level out."
        raise click.UsageError(reason)
    if calibrated is None:
        same = {run.trajectory_id for run in trajectories}
        labelled = []
        for item in _labelled(calibration, left_out.append, refuse):
            if item.trajectory.trajectory_id in same:
                left_out.append(f"{calibration}: run {item.trajectory.trajectory_id!r:.80} is one of the failed ones.")
            else:
                labelled.append(item)
        plan = Plan(seed=seed)
        plan = replace(
            plan, method=METHODS[method] if method else plan.method, level=plan.level if level is None else level
        )
        calibrated = fit_and_calibrate(labelled, plan)
    found = [locate(run, calibrated) for run in trajectories]
    if output is not None:
        page = attribution_html(found[0], positions=calibrated.positions)
        try:
            output.write_text(page, encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot be written: {error.strerror}.", path=str(output)) from error
    if as_json:
        click.echo(json.dumps(_as_json(found, calibrated, left_out)))
        return
    for place in left_out:
        click.echo(f"left out: {_plain(place)}", err=True)
    for attribution in found:
        _show(attribution)
    positions = calibrated.positions
    click.echo(f"\nThe {positions.trajectories} calibration failures: {advise(positions).why}")
    if output is not None:
        click.echo(f"Drawn in {output}.")


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
    """The calibration that a profile holds (`grampus-uq fit`); None where the file is no profile."""
    if path.is_dir() or not is_profile(path):
        return None
    stored = load(path).attribution
    if stored is None:
        reason = "this profile holds none: there were too few failures whose label names the step of the error."
        raise DataError(reason, path=str(path), field="attribution")
    return calibration_from_json(stored)


def _labelled(path: Path, tell: Callable[[str], None], refuse: Callable[[DataError], None]) -> list[LabelledTrajectory]:
    if not _is_recording(path):
        return read_labelled_failures(path, on_left_out=lambda error: tell(str(error)))
    return labelled_recordings(distinct_runs(path, on_refused=refuse), lambda error: tell(str(error)))


def _is_recording(path: Path) -> bool:
    if path.is_dir():
        return True
    with path.open("rb") as stream:
        head = stream.read(4096).lstrip()
    return head.startswith(_RECORDING) and b'"type"' in head


def _show(found: Attribution) -> None:
    click.echo(f"run {_plain(found.trajectory_id)}: {found.method} at {found.level:.0%}, {_spans(found)}")
    for index in found.set_steps:
        step = found.steps[index]
        click.echo(f"\n  step {index} [{_plain(step.step_id)}] {_plain(step.speaker)}")
        text = _plain(step.text)
        more = len(text) - _SHOWN
        click.echo(f"    {text[:_SHOWN]}{f'… ({more} more characters)' if more > 0 else ''}")
        if step.why:
            click.echo(f"    against it: {_plain(step.why)}")
    click.echo("")
    for sentence in (*found.why, *found.notes, found.coverage):
        click.echo(_plain(sentence))


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
            "advice": advise(positions).why,
        },
        "attributions": [attribution.to_json() for attribution in found],
    }


def _plain(value: object) -> str:
    """A text on one line without control characters: an agent's words are hostile, and terminals obey some of them."""
    return "".join(char if char.isprintable() else " " for char in str(value)).strip()
