"""`grampus-uq fit`: labelled runs in, a profile out whose one alarm has a stated false-alarm rate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Literal

import click
import numpy as np
from pydantic import JsonValue

from grampus_uq.cli.argument_types import SHARE, FiniteRange, OutputFile
from grampus_uq.cli.fit_account import base_of, fit_and_print
from grampus_uq.cli.many_runs import irreversible_option, refuse_no_recording, workers_option
from grampus_uq.cli.printing import as_json_option
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile
from grampus_uq.core.worst_case import UNAIDED
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.detector import fit_budget
from grampus_uq.learn.fit.streams import read_detector_runs
from grampus_uq.learn.guarded import guarding_as_recorded
from grampus_uq.learn.profiles import FitOptions, Part, ProfileFit, fit_profile
from grampus_uq.learn.profiles.p_success import must_take_the_word, word_in
from grampus_uq.learn.sensed import sensing_as_recorded
from grampus_uq.recording.artifacts import FittedFor, InputFile, ProfileArtifact, Provenance
from grampus_uq.recording.runs import Refused, beginnings, recording_files, run_digests
from grampus_uq.records.vocabulary import TASK, UncertaintySource


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("-o", "--output", type=OutputFile(), default="profile.json", metavar="FILE", help="Output file.")
@click.option("--false-alarms", default=0.1, help="Largest share of good runs ever paused.")
@click.option(
    "--assurance", default=0.9, help="Probability that the promise holds over calibrations; 0: on average only."
)
@click.option("--budget", type=SHARE, help="Without labels: pause at most this share of all runs.")
@click.option(
    "--accuracy", type=float, help="Release irreversible calls so that this share of the released is right: 0.9, say."
)
@click.option("--wrong-releases", type=float, help="Or: at most this share of runs is released and wrong: 0.05, say.")
@click.option("--certified-only", is_flag=True, help="Release nothing without a guarantee.")
@click.option("--pause-share", type=float, help="Or: hold at most this share of irreversible calls.")
@irreversible_option(
    "Tools with this in their name are irreversible, in addition to those of the recordings' monitors."
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
    "--stream",
    "streams",
    multiple=True,
    help="Streams that the detector reads.  [default: p_success, else call_probability or unaided]",
)
@click.option("--trust-stated", is_flag=True, help="Let p_success use the model's stated confidence beside others.")
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
    workers: int,
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
    how = "by_score" if labels == "by-score" else labels
    options = FitOptions(labels=how, streams=streams or None, **chosen)
    refuse_no_recording(paths)
    if budget is None:
        work = partial(fit_profile, list(paths), base=base_of(base, irreversible), options=options, workers=workers)
        fit_and_print(work, paths, output, force=force, as_json=as_json)
        return
    others: dict[str, Any] = {"--accuracy": options.accuracy, "--wrong-releases": options.wrong_releases}
    others |= {"--question": options.question, "--pause-share": options.pause_share}
    for name, value in (others | {"--base": base, "--labels": labels}).items():
        if value is not None:
            raise ConfigurationError.of(name, "fit", "left out with --budget, which fits a detector alone", value)
    policy = UncertaintyPolicy(irreversible_tool_names=list(irreversible))
    policy = guarding_as_recorded(policy, paths)
    without_labels = partial(_fit_budget, paths, streams, budget, policy, options=options, workers=workers)
    fit_and_print(without_labels, paths, output, force=force, as_json=as_json)


def _costs(given: tuple[str, ...]) -> dict[str, float] | None:
    try:
        return {name: float(cost) for name, _, cost in (one.rpartition("=") for one in given)} or None
    except ValueError as error:
        raise ConfigurationError.of("--look", "fit", "TIER=COST, as big=0.02", " ".join(given)) from error


def _fit_budget(
    paths: tuple[str, ...],
    streams: tuple[str, ...],
    budget: float,
    policy: UncertaintyPolicy,
    *,
    options: FitOptions,
    workers: int,
    on_runs: Callable[[int], None],
    on_refused: Refused,
) -> ProfileFit:
    """Fit a detector without labels; TRACER, where it is one of its streams, has its default parameters."""
    risk = TrajectoryRiskSettings() if UncertaintySource.TRAJECTORY_RISK in streams else None
    profile = Profile(policy=policy, trajectory_risk=risk)
    data = read_detector_runs(
        paths,
        streams or ("fused", UNAIDED, UncertaintySource.VERBALIZED),
        labelled=False,
        profile=profile,
        task_key=options.task_key,
        at_calls=None if options.detector_at is None else options.detector_at == "calls",
        on_runs=on_runs,
        on_refused=on_refused,
        workers=workers,
    )
    if not streams:
        taken = must_take_the_word(data.share_read(UncertaintySource.VERBALIZED), data.share_read(UNAIDED))
        data = data.only("fused" if options.trust_stated or taken else UNAIDED)
    fit = fit_budget(data, rng=np.random.default_rng(options.seed), share=budget)
    threshold, number = fit.detector.threshold, len(fit.report.threshold_ids)
    artifact = ProfileArtifact(
        profile=sensing_as_recorded(profile, data.streams, data.sensed).model_copy(update={"detector": fit.detector}),
        fitted_for=FittedFor.shared((one.model, one.prompt_hash, one.tools_hash) for one in beginnings(list(paths))),
        guarantees=(threshold.guarantee,),
        provenance=Provenance(
            counts=dict(fit.report.counts),
            inputs=tuple(islice(InputFile.of_each(recording_files(list(paths))), 1000)),
            splits={"fit": 0, "threshold": number},
            seed=options.seed,
            details={"options": {"task_key": options.task_key}, "runs": list[JsonValue](run_digests(paths))},
        ),
    )
    part = Part(
        name="detector",
        status="not fitted" if threshold.shortage else "fitted",
        why=threshold.shortage or fit.report.reason + word_in(data.streams),
        promise="" if threshold.shortage else threshold.guarantee,
        figures={"statistic": fit.report.member, "streams": list(data.streams)},
    )
    return ProfileFit(
        artifact=artifact,
        parts=(part,),
        counts=dict(fit.report.counts),
        splits={"learn": 0, "thresholds": number},
        expected={"runs": 0},
        tasks=number,
        detector=fit,
    )
