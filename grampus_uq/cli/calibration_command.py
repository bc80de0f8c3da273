"""`grampus-uq calibration`: does a detector's calibration still hold? Feed it finished runs, and see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import click

from grampus_uq.cli.argument_types import SummarisedGroup
from grampus_uq.cli.many_runs import task_key_option
from grampus_uq.cli.printing import as_json_option, naming_refused, print_result, refuse_none
from grampus_uq.cli.store_options import on_store, store_option, with_stores
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.fit.streams import finished_in_recordings
from grampus_uq.recording.artifacts import load
from grampus_uq.runtime.guarantee_watch import CalibrationWatch, label_run, stored_statuses
from grampus_uq.runtime.store import SessionStore
from grampus_uq.stats.calibration_watch import WatchStatus

_check = click.option(
    "--check", is_flag=True, help="Exit with status 1 if a calibration no longer holds, or none is watched."
)


@click.group(cls=SummarisedGroup)
def command() -> None:
    """Check whether a fitted detector's calibration still fits incoming runs.

    The rate of false alarms is bounded at all times. An alarm stays until a new calibration is deployed.
    """


@command.command()
@on_store
@as_json_option
@_check
async def show(store: SessionStore, as_json: bool, check: bool) -> None:
    """Show the state of every calibration watch in the store."""
    _report(await stored_statuses(store), as_json, check)


@command.command()
@click.argument("profile")
@click.argument("paths", nargs=-1, required=True)
@store_option
@click.option("--level", default=0.01, help="Probability of ever raising an alarm without a change.")
@click.option(
    "--advisory", is_flag=True, help="The profile never paused a run, so that runs with an alarm have outcomes too."
)
@task_key_option
@as_json_option
@_check
def feed(
    profile: str,
    paths: tuple[str, ...],
    url: str,
    level: float,
    advisory: bool,
    task_key: str | None,
    as_json: bool,
    check: bool,
) -> None:
    """Add the finished runs in PATHS, recordings or folders of them, to the watch on PROFILE's detector.

    Each run counts once, of the trials of a task the first, and none that the profile was fitted on. New labels on
    runs added before are taken too, so this can run on a schedule.
    """
    artifact = load(profile)
    loaded, key = artifact.profile, task_key or artifact.provenance.task_key
    served = artifact.provenance.listed("runs")
    detector = loaded.detector
    if detector is None:
        raise ConfigurationError.of(
            "PROFILE", "calibration feed", "a profile with a detector", profile, "Run grampus-uq fit"
        )

    async def work(stores: Sequence[SessionStore]) -> Sequence[WatchStatus]:
        watch = CalibrationWatch(stores[0], detector, level=level, acting=not advisory)
        for run in chain(first, runs):
            await watch.finished(run)
        return await watch.statuses()

    with naming_refused() as refuse:
        runs = finished_in_recordings(list(paths), loaded, task_key=key, served=served, on_refused=refuse)
        first = [*islice(runs, 1)]
        refuse_none(first, paths, "finished run that this detector judges and was not fitted on")
        _report(with_stores([url], work, create=True), as_json, check)


@command.command()
@click.argument("run_id")
@click.argument("outcome", type=click.Choice(["success", "failure"]))
@on_store
@as_json_option
@_check
async def label(run_id: str, outcome: str, store: SessionStore, as_json: bool, check: bool) -> None:
    """Label the outcome of a finished run; it counts once and permanently."""
    found = await label_run(store, run_id, outcome == "success")
    if not found:
        raise DataError(
            f"no calibration watch in this store has counted a run {run_id!r:.100}; a run counts once it has finished, "
            "of the trials of a task the first alone."
        )
    _report(found, as_json, check)


def read_statuses(url: str) -> list[WatchStatus]:
    """The status of every watch in the store at this URL."""
    return list(with_stores([url], lambda stores: stored_statuses(stores[0])))


def _report(statuses: Sequence[WatchStatus], as_json: bool, check: bool) -> None:
    print_result(as_json, [status.to_json() for status in statuses], _lines(statuses))
    if check and (not statuses or any(status.alarmed for status in statuses)):
        raise SystemExit(1)


def _lines(statuses: Sequence[WatchStatus]) -> Iterator[str]:
    if not statuses:
        yield "No calibration is watched in this store."
    for status in statuses:
        mark = "ALARM" if status.alarmed else "ok"
        odds = f"{math.exp(min(status.log_martingale, 700.0)):.3g} to 1 (limit {math.exp(status.log_threshold):.0f})"
        yield f"{mark:<6}{status.detector[:12]}  {status.variant.value:<10} evidence {odds}. {status.sentence}"
