"""Calibrate on labelled failures, then find the prediction set of a new failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.error_positions import ErrorPositions, error_positions
from grampus_uq.learn.attribution.failed_trajectory import (
    LabelledTrajectory,
    Trajectory,
    one_of_each_task,
    refuse_duplicates,
    uniform_draws,
)
from grampus_uq.learn.attribution.methods import METHODS, AttributionMethod
from grampus_uq.learn.attribution.result import AttributedStep, Attribution, most_suspect_step
from grampus_uq.learn.attribution.scorers import StepScore, StepScorer
from grampus_uq.records.configuration import checked
from grampus_uq.stats.arrays import ragged
from grampus_uq.stats.conformal import (
    TieBrokenThreshold,
    conformal_threshold,
    coverage_rank,
    prediction_sets,
    recall_conformity,
)
from grampus_uq.stats.entry_thresholds import EntryThresholds


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings that calibration and prediction share.

    method: by default VCP, whose sets have the fewest steps to read, maybe with holes; to roll back take a suffix
    method (`METHODS["lf_envelope"]` or `METHODS["lf"]`), whose first step is where to restart.
    level: wanted coverage, in (0, 1). recall: share of a run's errors that the set shall hold, in (0, 1] (with one
    error a run it makes no difference). seed: of the tie draws.
    """

    method: AttributionMethod = METHODS["vcp"]
    level: float = 0.8
    recall: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        coverage_rank(0, self.level)
        if not 0.0 < self.recall <= 1.0:
            raise ConfigurationError.of("recall", "Plan", "in (0, 1]", self.recall)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedAttribution:
    """A plan with its scorer and the threshold found on labelled failures.

    calibrated_on: their ids; a failure with one of them is refused. several: some had more than one error.
    """

    plan: Plan
    scorer: StepScorer
    threshold: TieBrokenThreshold
    positions: ErrorPositions
    calibrated_on: tuple[str, ...]
    several: bool


def calibrate(
    labelled: Sequence[LabelledTrajectory], scorer: StepScorer, plan: Plan | None = None
) -> CalibratedAttribution:
    """Find the threshold at which the plan's sets hold the labelled errors of enough failures.

    `labelled`: n >= 1 failures with their errors; the scorer was fitted on none of them. Of the trials of a task one
    counts, drawn by the plan's seed. `plan`: default VCP, the fewest steps, at 80 %. With fewer failures than the level
    needs the threshold is +inf: every set is the whole run.

    Raises ConfigurationError for no failure, a repeated id, an id that the scorer was fitted on, or a scorer that does
    not return one score a step.
    """
    plan = plan or Plan()
    if not labelled:
        raise ConfigurationError.of("labelled", "calibrate", "at least one failure", "none")
    refuse_duplicates([item.trajectory for item in labelled], "calibrate")
    seen = {item.trajectory.trajectory_id for item in labelled} & set(getattr(scorer, "fitted_on", ()))
    if seen:
        hint = "calibrate on failures that the scorer has not seen"
        raise ConfigurationError.of("labelled", "calibrate", "apart from the scorer's fit", sorted(seen)[:3], hint)
    labelled = one_of_each_task(labelled, plan.seed)
    ids = tuple(item.trajectory.trajectory_id for item in labelled)
    conformity = [_conformity(item, scorer, plan) for item in labelled]
    return CalibratedAttribution(
        plan=plan,
        scorer=scorer,
        threshold=conformal_threshold(conformity, plan.level, uniform_draws(ids, plan.seed, "ties")),
        positions=error_positions(labelled),
        calibrated_on=ids,
        several=any(len(item.error_steps) > 1 for item in labelled),
    )


def locate(failed: Trajectory, calibrated: CalibratedAttribution) -> Attribution:
    """Find the set of a failed run; it may be empty (one of the failures that the level gives up) or the whole run.

    Guarantee: see `grampus_uq.stats.conformal`; the result's `coverage` says it in words.

    Raises ConfigurationError when the run served calibration, or the scorer does not return one score a step.
    """
    plan = calibrated.plan
    if failed.trajectory_id in calibrated.calibrated_on:
        hint = "a run cannot be held against a threshold that it helped to set"
        raise ConfigurationError.of("failed", "locate", "no calibration failure", failed.trajectory_id, hint)
    scores = _scores(failed, calibrated.scorer)
    entry = _entry(failed, scores, plan)
    draws = uniform_draws([failed.trajectory_id], plan.seed, "ties")
    inside = prediction_sets(entry, calibrated.threshold, draws)[0]
    return Attribution(
        trajectory_id=failed.trajectory_id,
        task=failed.task,
        steps=tuple(
            AttributedStep(
                index=index,
                step_id=step.step_id,
                speaker=step.speaker,
                text=step.text,
                inside=bool(inside[index]),
                observation=step.observation,
                tool_failed=step.tool_failed,
                score=score.value,
                entry=float(entry.values[0, index]),
                why=score.why,
                missing=score.missing,
            )
            for index, (step, score) in enumerate(zip(failed.steps, scores, strict=True))
        ),
        set_steps=tuple(np.flatnonzero(inside).tolist()),
        method=plan.method.name,
        shape=plan.method.shape,
        scorer=calibrated.scorer.name,
        level=plan.level,
        recall=plan.recall,
        threshold=calibrated.threshold,
        several=calibrated.several,
        most_suspect=most_suspect_step([score.value for score in scores]),
    )


def _conformity(item: LabelledTrajectory, scorer: StepScorer, plan: Plan) -> float:
    """Conformity score of one labelled failure."""
    entry = _entry(item.trajectory, _scores(item.trajectory, scorer), plan)
    errors = np.zeros((1, len(item.trajectory)), dtype=np.bool_)
    errors[0, list(item.error_steps)] = True
    return float(recall_conformity(entry, errors, plan.recall)[0])


def _entry(trajectory: Trajectory, scores: Sequence[StepScore], plan: Plan) -> EntryThresholds:
    batch = ragged([[score.value for score in scores]], owner="attribution")
    entry = plan.method.entry(batch, uniform_draws([trajectory.trajectory_id], plan.seed, "nodes"))
    fits = isinstance(entry, EntryThresholds) and entry.values.shape == batch.values.shape
    if not fits or not np.array_equal(entry.lengths, batch.lengths):
        rule = f"one that returns EntryThresholds with one for each step {batch.values.shape}"
        raise ConfigurationError.of("method", "attribution", rule, f"{plan.method.name}: {entry!r:.80}")
    return entry


def _scores(trajectory: Trajectory, scorer: StepScorer) -> Sequence[StepScore]:
    """Score a trajectory and check the answer of the scorer."""
    scores = scorer.score(trajectory)
    scored = isinstance(scores, Sequence) and all(isinstance(score, StepScore) for score in scores)
    if not scored or len(scores) != len(trajectory):
        found = f"{len(scores)} scores" if scored else type(scores).__name__
        rule = f"one that returns a StepScore for each step ({len(trajectory)})"
        raise ConfigurationError.of("scorer", "attribution", rule, f"{scorer.name}: {found}")
    return scores
