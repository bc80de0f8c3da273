"""Fits TRACER on labelled recordings: what goes into the profile, and its worth on tasks it was not fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.columns import TASK
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.learn.fit.fit_tracer import (
    TracerCrossValidation,
    TracerFit,
    cross_validate_tracer,
    fit_tracer,
)
from grampus_uq.learn.fit.streams import runs_of_recordings
from grampus_uq.learn.trajectories import Trajectories, labelled_trajectories
from grampus_uq.recording.runs import Refused
from grampus_uq.recording.runs import runs as read_runs
from grampus_uq.stats.trajectory_risk import Composite

LEAST_OF_EACH = 10
"""Failures, and successes, below which parameters are noise: the defaults are better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerRunsFit:
    """Fitted settings, ready for `Profile.trajectory_risk`; what they were fitted on; and their worth on other tasks.

    `cross_validation` is None when there are fewer tasks than folds, or a fold leaves runs of one kind only: then
    nobody knows what the fit is worth. `counts`: runs used and, by reason, left out.
    """

    settings: TrajectoryRiskSettings
    fit: TracerFit
    cross_validation: TracerCrossValidation | None
    counts: Mapping[str, int]


def fit_tracer_settings(
    trajectories: Trajectories,
    *,
    rng: np.random.Generator,
    base: TrajectoryRiskSettings | None = None,
) -> TracerRunsFit:
    """Fit (alpha, beta, gamma, k, w) on labelled trajectories, and cross-validate the fit with whole tasks in folds.

    `base`: the settings that the runs were watched with; its other constants stay. The parameters hold for the same
    embedder. Whatever is calibrated on the risk afterwards (a detector's threshold) needs other runs than these.

    Raises ConfigurationError with fewer than `LEAST_OF_EACH` failures or successes.
    """
    base = TrajectoryRiskSettings() if base is None else base
    composite = base.parameters.composite
    runs = trajectories.runs
    failures = sum(run.failed for run in runs)
    successes = len(runs) - failures
    if min(failures, successes) < LEAST_OF_EACH:
        rule = f"at least {LEAST_OF_EACH} failures and {LEAST_OF_EACH} successes that were watched with TRACER"
        got = f"{failures} failures, {successes} successes; left out: {dict(trajectories.excluded)}"
        raise ConfigurationError.of("trajectories", "fit_tracer_settings", rule, got)
    steps, failed = [run.steps for run in runs], [run.failed for run in runs]
    validated = cross_validated(trajectories, rng=rng, composite=composite)
    fit = fit_tracer(steps, failed, rng=rng, composite=composite)
    return TracerRunsFit(
        settings=base.model_copy(update={"parameters": fit.parameters}),
        fit=fit,
        cross_validation=validated,
        counts={"failures": failures, "successes": successes, **trajectories.excluded},
    )


def cross_validated(
    trajectories: Trajectories, *, rng: np.random.Generator, composite: Composite = Composite.MAX
) -> TracerCrossValidation | None:
    """Cross-validate the fit, whole tasks in folds; None where the runs do not allow it."""
    runs = trajectories.runs
    try:
        return cross_validate_tracer(
            [run.steps for run in runs],
            [run.failed for run in runs],
            [run.task for run in runs],
            rng=rng,
            composite=composite,
        )
    except ConfigurationError:  # fewer tasks than folds, or only failures, or only successes, outside of one
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerShare:
    """TRACER's settings for a profile, how many runs taught them (0: defaults), and their AUROC on other tasks."""

    settings: TrajectoryRiskSettings
    runs: int = 0
    auroc: float | None = None
    default_auroc: float | None = None


def tracer_and_detector_runs(
    paths: Sequence[str],
    streams: Sequence[str],
    *,
    rng: np.random.Generator,
    fits: bool,
    labelled: bool = True,
    task_key: str = TASK,
    policy: UncertaintyPolicy | None = None,
    at_calls: bool | None = None,
    on_refused: Refused | None = None,
) -> tuple[TracerShare, DetectorRuns]:
    """Give TRACER's settings and the runs for a detector that reads its stream, computed with these settings.

    With `fits`, half of the tasks teach TRACER and no run of theirs is left for the detector: its threshold holds for
    runs that nothing was fitted on. Without, the paper's defaults are taken and every run is left. A run that was not
    watched with TRACER has no value in the stream. `policy` names irreversible tools; `at_calls` as in
    `runs_of_recordings`. Raises as `fit_tracer_settings`; `on_refused` as in `runs`.
    """
    share, without = TracerShare(settings=TrajectoryRiskSettings()), frozenset[str]()
    if fits:
        every = labelled_trajectories(read_runs(list(paths), on_refused=on_refused), task_key=task_key)
        tasks = sorted({run.task for run in every.runs})
        teaching = {tasks[i] for i in rng.permutation(len(tasks))[: len(tasks) // 2]}
        chosen = tuple(run for run in every.runs if run.task in teaching)
        found = fit_tracer_settings(Trajectories(runs=chosen, excluded=every.excluded), rng=rng)
        validated = found.cross_validation
        share = TracerShare(
            settings=found.settings,
            runs=len(chosen),
            auroc=None if validated is None else validated.auroc,
            default_auroc=None if validated is None else validated.default_auroc,
        )
        without = frozenset(run.run_id for run in chosen)
    kept = (run for run in read_runs(list(paths), on_refused=on_refused) if run.session_id not in without)
    profile = Profile(trajectory_risk=share.settings, policy=policy or UncertaintyPolicy())
    return share, runs_of_recordings(
        kept, streams, labelled=labelled, profile=profile, task_key=task_key, at_calls=at_calls
    )
