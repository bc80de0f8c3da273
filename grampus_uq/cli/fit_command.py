"""`grampus-uq fit`: labelled runs in, a profile out whose one alarm has a stated false-alarm rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from grampus_uq.cli.argument_types import FiniteRange, OutputFile
from grampus_uq.cli.fit_whole import detector_json, fit_whole, guarded_lines, written_lines
from grampus_uq.cli.many_runs import chosen_workers, workers_option
from grampus_uq.cli.printing import as_json_option, counts_line, naming_refused, print_json, progress
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.columns import TASK
from grampus_uq.learn.fit.detector import DetectorFit, fit_budget
from grampus_uq.learn.fit.streams import read_detector_runs
from grampus_uq.learn.guarded import guarding_as_recorded
from grampus_uq.learn.profiles import FitOptions
from grampus_uq.recording.artifacts import FittedFor, InputFile, ProfileArtifact, Provenance, save
from grampus_uq.recording.runs import beginnings, recording_files
from grampus_uq.records.tool_names import refusal_of
from grampus_uq.records.vocabulary import UncertaintySource
from grampus_uq.signals.registry import switches_of


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("-o", "--output", type=OutputFile(), default="profile.json", metavar="FILE", help="Output file.")
@click.option("--false-alarms", default=0.1, help="Largest share of good runs ever paused.")
@click.option(
    "--assurance", default=0.9, help="Probability that the promise holds over calibrations; 0: on average only."
)
@click.option("--budget", type=float, help="Without labels: pause at most this share of all runs.")
@click.option(
    "--accuracy", type=float, help="Release irreversible calls so that this share of the released is right (0.9)."
)
@click.option("--wrong-releases", type=float, help="Or: at most this share of runs is released and wrong (0.05).")
@click.option("--certified-only", is_flag=True, help="Release nothing without a guarantee.")
@click.option("--pause-share", type=float, help="Or: hold at most this share of irreversible calls.")
@click.option(
    "--irreversible",
    multiple=True,
    metavar="NAME",
    callback=lambda _ctx, _param, names: _checked(names),
    help="Tools with this in their name are irreversible, in addition to those of the recordings' monitors.",
)
@click.option("--base", metavar="PROFILE", help="Profile that supplies policy, estimator and propagator.")
@click.option(
    "--keep-p-success",
    "keep_p_success",
    is_flag=True,
    help="Keep p_success of --base, so that all labels set thresholds.",
)
@click.option(
    "--labels",
    type=click.Choice(["random", "by-score"]),
    help=(
        "How the labelled runs were chosen; with by-score a run without a label counts as wrong.  [default: detected]"
    ),
)
@click.option("--task-key", default=TASK, help="Session metadata with the run's task.")
@click.option("--held-out", default=0.5, help="Share of runs that set thresholds and are not learned from.")
@click.option(
    "--runs-per-day",
    type=FiniteRange(min=0, min_open=True),
    help="Runs per day, for the forecast of pauses.  [default: as recorded]",
)
@click.option(
    "--stream", "streams", multiple=True, help="Streams that the detector reads.  [default: p_success, else fused]"
)
@click.option(
    "--detector-at",
    type=click.Choice(["calls", "steps"]),
    help="Steps that the detector examines.  [default: irreversible calls, if half of the runs have one]",
)
@click.option(
    "--question", type=float, metavar="COST", help="Cost of asking a human: fits a chain of the recorded looks alone."
)
@click.option(
    "--look",
    "look_costs",
    multiple=True,
    metavar="TIER=COST",
    callback=lambda _ctx, _param, given: _costs(given),
    help="Cost of a look of a tier, in the same unit.  [default: its seconds]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the splits.")
@click.option("--force", is_flag=True, help="Write a profile even if nothing could be fitted.")
@workers_option
@as_json_option
def command(
    paths: tuple[str, ...],
    output: str,
    budget: float | None,
    irreversible: tuple[str, ...],
    base: str | None,
    labels: Literal["random", "by-score"] | None,
    streams: tuple[str, ...],
    force: bool,
    workers: int | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Fit a profile on PATHS: labelled recordings, or folders of them.

    Fits everything that the labels allow, on disjoint runs: the worth of each stream, p_success, TRACER, a
    detector, the release of irreversible calls, error attribution. Parts that could not be fitted state the
    reason. With --budget, fits a detector alone. With --question, fits a chain alone, from the recorded looks of
    AgentRunner(looks=...): at most the share --wrong-releases (0.05) of calls is released and wrong. If nothing
    can be fitted, nothing is written and the exit status is 1; --force writes the profile anyway.

    Runs that a human or the monitor stopped or decided on, or that hit the step limit, have no outcome of their
    own: they are left out and counted. --budget needs no labels; its promise concerns the share of all runs
    that are paused. The stream trajectory_risk needs runs recorded with TRACER.
    """
    if "" in streams:
        raise ConfigurationError.of("--stream", "fit", "the name of a score stream", "")
    if not 0.0 <= chosen["assurance"] < 1.0:
        raise ConfigurationError.of("--assurance", "fit", "in [0, 1)", chosen["assurance"], "0.9 leaves a 10 % chance")
    how = "by_score" if labels == "by-score" else labels
    options = FitOptions(labels=how, streams=streams or None, **chosen)
    workers = chosen_workers(paths, workers)
    if budget is None:
        fit_whole(
            paths, output, options, base=base, irreversible=irreversible, workers=workers, force=force, as_json=as_json
        )
        return
    others: dict[str, Any] = {"--accuracy": options.accuracy, "--wrong-releases": options.wrong_releases}
    others |= {"--question": options.question, "--pause-share": options.pause_share}
    for name, value in (others | {"--base": base, "--labels": labels}).items():
        if value is not None:
            raise ConfigurationError.of(name, "fit", "left out with --budget, which fits a detector alone", value)
    streams = streams or ("fused",)
    policy = guarding_as_recorded(_policy(streams, irreversible), paths)
    _fit_budget(paths, output, options, streams, budget, workers, policy, force=force, as_json=as_json)


def _checked(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        refused = refusal_of(name)
        if refused is not None:
            raise ConfigurationError.of("--irreversible", "fit", refused[0], name, refused[1])
    return names


def _costs(given: tuple[str, ...]) -> dict[str, float] | None:
    try:
        return {name: float(cost) for name, _, cost in (one.rpartition("=") for one in given)} or None
    except ValueError as error:
        raise ConfigurationError.of("--look", "fit", "TIER=COST, as big=0.02", " ".join(given)) from error


def _fit_budget(
    paths: tuple[str, ...],
    output: str,
    options: FitOptions,
    streams: tuple[str, ...],
    budget: float,
    workers: int,
    policy: UncertaintyPolicy,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Fit a detector without labels; TRACER, where it is one of its streams, has its default parameters."""
    risk = TrajectoryRiskSettings() if UncertaintySource.TRAJECTORY_RISK in streams else None
    at_calls = None if options.detector_at is None else options.detector_at == "calls"
    with naming_refused() as refuse:
        with progress("Reading runs") as advance:
            judge = Profile(policy=policy, trajectory_risk=risk) if risk or policy.irreversible_tool_names else None
            data = read_detector_runs(
                paths,
                streams,
                labelled=False,
                profile=judge,
                task_key=options.task_key,
                at_calls=at_calls,
                on_runs=advance,
                on_refused=refuse,
                workers=workers,
            )
        fit = fit_budget(data, rng=np.random.default_rng(options.seed), share=budget)
        files = list(filter(Path.is_file, recording_files(list(paths))))[:1000]
        artifact = ProfileArtifact(
            profile=Profile(detector=fit.detector, policy=policy, trajectory_risk=risk),
            fitted_for=_fitted_for(paths),
            guarantees=(fit.detector.threshold.guarantee,),
            provenance=Provenance(
                counts=dict(fit.report.counts),
                inputs=tuple(InputFile.of(path) for path in files),
                splits={"fit": 0, "threshold": len(fit.report.threshold_ids)},
                seed=options.seed,
            ),
        )
        empty = bool(fit.detector.threshold.shortage)
        write = force or not empty
        if write:
            save(artifact, output)
        _print(fit, output if write else None, artifact, as_json)
        if empty:
            raise SystemExit(1)


def _policy(streams: Sequence[str], irreversible: Sequence[str]) -> UncertaintyPolicy:
    """The default policy with the signals switched on that the detector reads: without them it would never alarm."""
    policy = UncertaintyPolicy(irreversible_tool_names=list(irreversible))
    return policy.model_copy(update=switches_of(streams))


def _fitted_for(paths: tuple[str, ...]) -> FittedFor:
    """The model, prompt and tools that all runs share; None for what differs or was not recorded."""
    facts = {(start.model, start.prompt_hash, start.tools_hash) for start in beginnings(list(paths))}
    models, prompts, tools = ({fact[place] for fact in facts} for place in range(3))
    return FittedFor(
        model=(models.pop() or None) if len(models) == 1 else None,
        prompt_hash=prompts.pop() if len(prompts) == 1 else None,
        tools_hash=tools.pop() if len(tools) == 1 else None,
    )


def _print(fit: DetectorFit, output: str | None, artifact: ProfileArtifact, as_json: bool) -> None:
    threshold, report, fingerprint = fit.detector.threshold, fit.report, artifact.fingerprint
    if as_json:
        shown: dict[str, Any] = {
            "profile": output,
            "fingerprint": fingerprint,
            "counts": dict(report.counts),
            **detector_json(fit),
        }
        print_json(shown)
        return
    click.echo(counts_line(report.counts))
    click.echo(f"statistic  {report.member} ({report.reason})")
    for line in guarded_lines(artifact.profile.policy):
        click.echo(line)
    click.echo(f"promise    {threshold.guarantee}")
    if threshold.shortage:
        click.echo(f"SHORTAGE   {threshold.shortage}")
    for line in written_lines(output, fingerprint, rings=not threshold.shortage):
        click.echo(line)
