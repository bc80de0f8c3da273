"""Put a found set, the scores behind it and the promise together into an `Attribution`, in words to act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grampus_uq.learn.attribution.failed_trajectory import Trajectory
from grampus_uq.learn.attribution.methods import AttributionMethod
from grampus_uq.learn.attribution.result import AttributedStep, Attribution, coverage_statement
from grampus_uq.learn.attribution.scorers import StepScore, StepScores
from grampus_uq.stats.conformal import TieBrokenThreshold, coverage_rank

__all__ = ["FoundSet", "attribution_of", "smallest_calibration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSet:
    """The steps of a set, the scores that were asked for, the entry thresholds where they were computed, the cost."""

    inside: tuple[int, ...]
    scored: Mapping[int, StepScore] = field(default_factory=dict)
    entries: Mapping[int, float] = field(default_factory=dict)
    cost: StepScores = field(default_factory=lambda: StepScores(steps=()))


def attribution_of(
    failed: Trajectory,
    found: FoundSet,
    *,
    method: AttributionMethod,
    scorer: str,
    level: float,
    recall: float,
    several: bool,
    threshold: TieBrokenThreshold,
) -> Attribution:
    """Compose the result; `several` says that calibration had failures with more than one error."""
    members = frozenset(found.inside)
    steps = tuple(_attributed(failed, index, found, inside=index in members) for index in range(len(failed)))
    most_suspect = _most_suspect(found.scored)
    return Attribution(
        trajectory_id=failed.trajectory_id,
        task=failed.task,
        steps=steps,
        set_steps=found.inside,
        method=method.name,
        scorer=scorer,
        level=level,
        recall=recall,
        threshold=threshold,
        coverage=coverage_statement(
            threshold, level, several=several or recall < 1.0, recall=recall, needed=smallest_calibration(level)
        ),
        why=_why(steps, found, most_suspect, method),
        notes=_notes(steps, found.inside, level, threshold),
        most_suspect=most_suspect,
        evaluations=len(found.scored),
        calls=found.cost.calls,
        usage=found.cost.usage,
    )


def smallest_calibration(level: float) -> int:
    """Return the least number of calibration trajectories for which a set can be less than the whole run.

    >>> smallest_calibration(0.8), smallest_calibration(0.95)
    (4, 19)
    """
    n = 1
    while coverage_rank(n, level) is None:
        n += 1
    return n


def _most_suspect(scored: Mapping[int, StepScore]) -> int | None:
    """The step with the highest score, the first of equals; None when there is no score or all are the same."""
    values = {score.value for score in scored.values()}
    if not values or (len(values) == 1 and len(scored) > 1):
        return None
    return max(scored, key=lambda index: (scored[index].value, -index))


def _attributed(failed: Trajectory, index: int, found: FoundSet, *, inside: bool) -> AttributedStep:
    step, score = failed.steps[index], found.scored.get(index)
    return AttributedStep(
        index=index,
        step_id=step.step_id,
        speaker=step.speaker,
        text=step.text,
        inside=inside,
        observation=step.observation,
        tool_failed=step.tool_failed,
        score=None if score is None else score.value,
        entry=found.entries.get(index),
        why="" if score is None else score.why,
        missing=None if score is None else score.missing,
    )


def _why(
    steps: Sequence[AttributedStep], found: FoundSet, most_suspect: int | None, method: AttributionMethod
) -> tuple[str, ...]:
    told = []
    scored = len(found.scored)
    if found.inside and len(found.inside) < len(steps):
        told.append(f"The set holds {len(found.inside)} of {len(steps)} steps: {method.shape}.")
    if most_suspect is not None:
        step = steps[most_suspect]
        among = "" if scored == len(steps) else f" of the {scored} that were scored"
        because = f"; against it: {step.why}" if step.why else ""
        told.append(
            f"Step {most_suspect} ({step.speaker}) is the most suspect{among}: score {step.score:.3g}{because}."
        )
    elif scored:
        told.append("All scored steps have the same score: only their positions speak.")
    if scored < len(steps):
        told.append(f"{len(steps) - scored} of {len(steps)} steps did not have to be scored.")
    return tuple(told)


def _notes(
    steps: Sequence[AttributedStep], inside: Sequence[int], level: float, threshold: TieBrokenThreshold
) -> tuple[str, ...]:
    notes = []
    if not inside:
        notes.append(
            "The set is empty: no step is as suspect as the errors of the calibration failures were. This run is among "
            f"the at most {1.0 - level:.0%} that the level gives up; look at the most suspect step first."
        )
    if len(inside) == len(steps) and threshold.rank is not None:
        notes.append("The set is the whole run: the scores do not tell its steps apart well enough.")
    missing = [step.index for step in steps if step.missing is not None]
    if missing:
        shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        notes.append(f"No judgement came for {len(missing)} steps ({shown}); the scorer's stand-in counts for them.")
    return tuple(notes)
