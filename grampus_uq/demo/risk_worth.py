"""What TRACER and its baselines are worth on the demo's questions: each read from the recording at the answer.

At the answer, and not at the end of the run: whether the answer was published is the monitor's doing, and what the tool
then says would tell TRACER so. A run of the demo has one turn, so TRACER is here its surprisal U_t, and counts of
steps, errors and repetitions are the same for every question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grampus_uq.demo.demo_run import ANSWER_STEP, Answered
from grampus_uq.learn.evaluate.risk_scores import READINGS, SCORES
from grampus_uq.learn.trajectories import Trajectory, trajectory_of
from grampus_uq.recording.runs import Run, runs
from grampus_uq.records.events import StepEvent
from grampus_uq.stats.bootstrap import bootstrap
from grampus_uq.stats.ranking import auroc, auroc_rows

__all__ = ["RiskWorth", "risk_worth"]

FloatArray = npt.NDArray[np.float64]

_DRAWS = 2_000
_LEAST_OF_EACH = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskWorth:
    """How well a risk tells wrong answers from right ones.

    `auroc`: probability that a wrong answer has the higher risk, ties counting half; .5 says nothing, and is what a
    score has that is the same for every question. None with answers of one kind only. `low`, `high`: 95 % percentile
    interval over questions, None with fewer than five of a kind. `n` counts the answers with a value.
    """

    score: str
    n: int
    auroc: float | None
    low: float | None
    high: float | None


def risk_worth(folder: Path, answers: Sequence[Answered]) -> tuple[RiskWorth, ...]:
    """Read the recording of a run of the demo, and measure TRACER and every baseline on the graded answers.

    Returns nothing when the runs were not watched with TRACER.
    """
    wrong = {one.session_id: not one.right for one in answers if one.right is not None}
    seen: list[Trajectory] = []
    for run in runs(folder):
        trajectory = trajectory_of(_to_the_answer(run)) if run.session_id in wrong else None
        if trajectory is not None:
            seen.append(trajectory)
    failed = np.array([float(wrong[one.run_id]) for one in seen])
    return tuple(
        _worth(name, np.array([score(one)[-1] for one in seen]), failed)
        for name, score in {**SCORES, **READINGS}.items()
        if seen
    )


def _to_the_answer(run: Run) -> Run:
    """The run as it stood when its answer was committed."""
    for number, event in enumerate(run.events):
        if isinstance(event, StepEvent) and event.step.step_id == ANSWER_STEP:
            return replace(run, events=run.events[: number + 1])
    return replace(run, events=())


def _worth(score: str, risks: FloatArray, failed: FloatArray) -> RiskWorth:
    known = np.isfinite(risks)
    values, wrong = risks[known], failed[known]
    low = high = None
    if min(wrong.sum(), len(wrong) - wrong.sum()) >= _LEAST_OF_EACH:
        # The seed is fixed so that the same recordings always give the same interval.
        interval = bootstrap(
            lambda weights: auroc_rows(values, wrong, weights), len(wrong), rng=np.random.default_rng(0), draws=_DRAWS
        )
        low, high = interval.low, interval.high
    area = auroc(values, wrong) if len(values) else None
    return RiskWorth(score=score, n=len(values), auroc=area, low=low, high=high)
