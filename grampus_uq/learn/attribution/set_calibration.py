"""Calibrate on labelled failures, then find the set of a new one: with a plain scorer or an awaited one.

What to score, and what to make of it, is written once, as generators that yield a request and are sent the scores; the
plain and the async entry points only answer requests. Left and right filtration ask step by step and stop early when
the scorer allows it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.composition import FoundSet, attribution_of
from grampus_uq.learn.attribution.failed_trajectory import (
    LabelledTrajectory,
    Trajectory,
    one_of_each_task,
    refuse_duplicates,
    uniform_draws,
)
from grampus_uq.learn.attribution.method_choice import ErrorPositions, error_mask, error_positions
from grampus_uq.learn.attribution.methods import AttributionMethod, LeftFiltration, RightFiltration, Vanilla
from grampus_uq.learn.attribution.result import Attribution
from grampus_uq.learn.attribution.scorers import (
    AsyncLazyStepScorer,
    AsyncStepScorer,
    LazyStepScorer,
    StepScore,
    StepScorer,
    StepScores,
)
from grampus_uq.records.values import TokenUsage
from grampus_uq.stats.arrays import ragged
from grampus_uq.stats.conformal import (
    TieBrokenThreshold,
    conformal_threshold,
    coverage_rank,
    prediction_sets,
    recall_conformity,
)
from grampus_uq.stats.lazy_sets import lazy_conformity_walk, lazy_set_walk

__all__ = ["CalibratedAttribution", "Plan", "calibrate", "calibrate_async", "locate", "locate_async"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How failures are attributed: everything that has to be the same in calibration and prediction.

    method: by default VCP, whose sets have the fewest steps to read, maybe with holes; to roll back take a suffix
    method (`SuffixEnvelope`, `LeftFiltration`), whose first step is where to restart.
    level: wanted coverage, in (0, 1). recall: share of a run's errors that the set shall hold, in (0, 1] (with one
    error a run it makes no difference). seed: of the tie draws. lazy: score step by step and stop early; None does so
    when method and scorer allow it, True refuses when they do not.
    """

    method: AttributionMethod = field(default_factory=Vanilla)
    level: float = 0.8
    recall: float = 1.0
    seed: int = 0
    lazy: bool | None = None

    def __post_init__(self) -> None:
        coverage_rank(0, self.level)
        if not 0.0 < self.recall <= 1.0:
            raise ConfigurationError.of("recall", "Plan", "in (0, 1]", self.recall)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedAttribution:
    """A plan with its scorer and the threshold that labelled failures gave it.

    calibrated_on: their ids; a failure with one of them is refused. several: some had more than one error.
    evaluations, calls and usage: what calibration cost.
    """

    plan: Plan
    scorer: StepScorer | AsyncStepScorer
    threshold: TieBrokenThreshold
    positions: ErrorPositions
    calibrated_on: tuple[str, ...]
    several: bool
    evaluations: int
    calls: int
    usage: TokenUsage


class _Request(NamedTuple):
    """One step to score, or (step None) all of them; the answer is `StepScores` either way."""

    trajectory: Trajectory
    step: int | None


class _Conformity(NamedTuple):
    value: float
    scores: StepScores


def calibrate(
    labelled: Sequence[LabelledTrajectory], scorer: StepScorer, plan: Plan | None = None
) -> CalibratedAttribution:
    """Find the threshold at which the plan's sets hold the labelled errors of enough failures.

    Args:
        labelled: failures with their errors, n >= 1; the scorer was fitted on none of them. Of the trials of a task
            one counts, drawn by the plan's seed.
        scorer: a plain scorer.
        plan: method, level and so on; default: VCP, the fewest steps, at 80 %.

    Returns:
        What `locate` needs. With fewer failures than the level needs the threshold is +inf: every set is the whole run.

    Raises:
        ConfigurationError: no failure, a repeated id, an id that the scorer was fitted on, a scorer that has to be
            awaited, or laziness asked of a method or scorer that has none.
    """
    plan = plan or Plan()
    labelled, lazy = _checked(labelled, scorer, plan)
    rows = [_answered(_conformity(item, plan, lazy), scorer) for item in labelled]
    return _calibrated(labelled, scorer, plan, rows)


async def calibrate_async(
    labelled: Sequence[LabelledTrajectory], scorer: StepScorer | AsyncStepScorer, plan: Plan | None = None
) -> CalibratedAttribution:
    """Calibrate with a scorer that may have to be awaited, one failure after the other; otherwise as `calibrate`."""
    plan = plan or Plan()
    labelled, lazy = _checked(labelled, scorer, plan)
    rows = [await _answered_async(_conformity(item, plan, lazy), scorer) for item in labelled]
    return _calibrated(labelled, scorer, plan, rows)


def locate(failed: Trajectory, calibrated: CalibratedAttribution) -> Attribution:
    """Find the set of a failed run.

    Guarantee: see `grampus_uq.stats.conformal`; the result's `coverage` says it in words.

    Args:
        failed: a run that failed, not among the calibration failures.
        calibrated: from `calibrate`.

    Returns:
        The result; its set may be empty (one of the failures that the level gives up) or the whole run.

    Raises:
        ConfigurationError: the run served calibration, or the scorer has to be awaited.
    """
    return _answered(_location(failed, calibrated), calibrated.scorer)


async def locate_async(failed: Trajectory, calibrated: CalibratedAttribution) -> Attribution:
    """Find the set with a scorer that may have to be awaited; otherwise as `locate`."""
    return await _answered_async(_location(failed, calibrated), calibrated.scorer)


def _checked(
    labelled: Sequence[LabelledTrajectory], scorer: StepScorer | AsyncStepScorer, plan: Plan
) -> tuple[list[LabelledTrajectory], bool]:
    """Refuse what would void the guarantee; one failure of each task, and whether scoring is lazy."""
    if not labelled:
        raise ConfigurationError.of("labelled", "calibrate", "at least one failure", "none")
    refuse_duplicates([item.trajectory for item in labelled], "calibrate")
    seen = {item.trajectory.trajectory_id for item in labelled} & set(getattr(scorer, "fitted_on", ()))
    if seen:
        hint = "calibrate on failures that the scorer has not seen"
        raise ConfigurationError.of("labelled", "calibrate", "apart from the scorer's fit", sorted(seen)[:3], hint)
    return one_of_each_task(labelled, plan.seed), _is_lazy(scorer, plan)


def _is_lazy(scorer: StepScorer | AsyncStepScorer, plan: Plan) -> bool:
    by_step = isinstance(scorer, LazyStepScorer | AsyncLazyStepScorer)
    possible = by_step and plan.method.filtration is not None
    if plan.lazy and not possible:
        what = "a method that filters from one end" if by_step else "a scorer whose steps need no other step's score"
        hint = "leave `lazy` out to score every step"
        raise ConfigurationError.of("lazy", "Plan", f"used with {what}", f"{plan.method.name}, {scorer.name}", hint)
    return possible and plan.lazy is not False


def _conformity(item: LabelledTrajectory, plan: Plan, lazy: bool) -> Generator[_Request, StepScores, _Conformity]:
    """Conformity score of one labelled failure."""
    trajectory = item.trajectory
    method = plan.method
    if lazy and isinstance(method, LeftFiltration | RightFiltration):
        entering = sorted(item.error_steps, key=lambda j: method.filtration.step_at(j, len(trajectory)))
        wanted = entering[math.ceil(plan.recall * len(entering) - 1e-9) - 1]
        walk = lazy_conformity_walk(method.filtration, len(trajectory), wanted)
        value, spent = yield from _step_by_step(trajectory, walk)
        return _Conformity(value, StepScores(steps=tuple(spent.values())))
    scores = yield _Request(trajectory, None)
    batch = ragged([scores.values], owner="calibrate")
    entry = method.entry(batch, uniform_draws([trajectory.trajectory_id], plan.seed, "nodes"))
    value = float(recall_conformity(entry, error_mask([item], len(trajectory)), plan.recall)[0])
    return _Conformity(value, scores)


def _location(failed: Trajectory, calibrated: CalibratedAttribution) -> Generator[_Request, StepScores, Attribution]:
    plan, threshold, method = calibrated.plan, calibrated.threshold, calibrated.plan.method
    if failed.trajectory_id in calibrated.calibrated_on:
        hint = "a run cannot be held against a threshold that it helped to set"
        raise ConfigurationError.of("failed", "locate", "no calibration failure", failed.trajectory_id, hint)
    draw = float(uniform_draws([failed.trajectory_id], plan.seed, "ties")[0])
    found = FoundSet(inside=tuple(range(len(failed))))  # the whole run
    if _is_lazy(calibrated.scorer, plan) and isinstance(method, LeftFiltration | RightFiltration):
        if threshold.rank is not None:  # else the set is the whole run whatever the scores, and nothing is asked
            walk = lazy_set_walk(method.filtration, len(failed), threshold, draw)
            steps, spent = yield from _step_by_step(failed, walk)
            found = FoundSet(
                inside=tuple(steps),
                scored=spent,
                cost=StepScores(steps=tuple(spent.values())),
            )
    else:
        scores = yield _Request(failed, None)
        batch = ragged([scores.values], owner="locate")
        entry = method.entry(batch, uniform_draws([failed.trajectory_id], plan.seed, "nodes"))
        inside = np.flatnonzero(prediction_sets(entry, threshold, [draw])[0])
        found = FoundSet(
            inside=tuple(inside.tolist()),
            scored=dict(enumerate(scores.steps)),
            entries=dict(enumerate(entry.values[0].tolist())),
            cost=scores,
        )
    return attribution_of(
        failed,
        found,
        method=method,
        scorer=calibrated.scorer.name,
        level=plan.level,
        recall=plan.recall,
        several=calibrated.several,
        threshold=threshold,
    )


def _step_by_step(
    trajectory: Trajectory, walk: Generator[int, float, T]
) -> Generator[_Request, StepScores, tuple[T, dict[int, StepScore]]]:
    """Turn a walk's questions about indices into requests, and keep the answers."""
    spent: dict[int, StepScore] = {}
    answer: float | None = None
    while True:
        try:
            wanted = next(walk) if answer is None else walk.send(answer)
        except StopIteration as finished:
            return finished.value, spent
        spent[wanted] = (yield _Request(trajectory, wanted)).steps[0]
        answer = spent[wanted].value


def _answered(asking: Generator[_Request, StepScores, T], scorer: StepScorer | AsyncStepScorer) -> T:
    answer: StepScores | None = None
    while True:
        try:
            request = next(asking) if answer is None else asking.send(answer)
        except StopIteration as finished:
            result: T = finished.value
            return result
        reply = _ask(scorer, request)
        if inspect.isawaitable(reply):
            if inspect.iscoroutine(reply):
                reply.close()
            hint = "use calibrate_async and locate_async"
            raise ConfigurationError.of("scorer", "calibrate", "a plain scorer", scorer.name, hint)
        answer = _scores(reply, request, scorer)


async def _answered_async(asking: Generator[_Request, StepScores, T], scorer: StepScorer | AsyncStepScorer) -> T:
    answer: StepScores | None = None
    while True:
        try:
            request = next(asking) if answer is None else asking.send(answer)
        except StopIteration as finished:
            result: T = finished.value
            return result
        reply = _ask(scorer, request)
        answer = _scores(await reply if inspect.isawaitable(reply) else reply, request, scorer)


def _ask(scorer: StepScorer | AsyncStepScorer, request: _Request) -> object:
    if request.step is not None and isinstance(scorer, LazyStepScorer | AsyncLazyStepScorer):
        return scorer.score_step(request.trajectory, request.step)
    return scorer.score(request.trajectory)


def _scores(reply: object, request: _Request, scorer: StepScorer | AsyncStepScorer) -> StepScores:
    """Check what a scorer (anybody's) gave."""
    if isinstance(reply, StepScore):
        reply = StepScores(steps=(reply,))
    wanted = len(request.trajectory) if request.step is None else 1
    if not isinstance(reply, StepScores) or len(reply.steps) != wanted:
        found = f"{len(reply.steps)} scores" if isinstance(reply, StepScores) else type(reply).__name__
        rule = f"one that gives StepScores with a score a step ({wanted})"
        raise ConfigurationError.of("scorer", "attribution", rule, f"{scorer.name}: {found}")
    return reply


def _calibrated(
    labelled: Sequence[LabelledTrajectory],
    scorer: StepScorer | AsyncStepScorer,
    plan: Plan,
    rows: Sequence[_Conformity],
) -> CalibratedAttribution:
    ids = tuple(item.trajectory.trajectory_id for item in labelled)
    threshold = conformal_threshold([row.value for row in rows], plan.level, uniform_draws(ids, plan.seed, "ties"))
    return CalibratedAttribution(
        plan=plan,
        scorer=scorer,
        threshold=threshold,
        positions=error_positions(labelled),
        calibrated_on=ids,
        several=any(len(item.error_steps) > 1 for item in labelled),
        evaluations=sum(len(row.scores.steps) for row in rows),
        calls=sum(row.scores.calls for row in rows),
        usage=sum((row.scores.usage for row in rows), start=TokenUsage()),
    )
