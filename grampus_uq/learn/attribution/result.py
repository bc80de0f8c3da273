"""What attribution says of one failed run: the set, its steps, why, what it is worth, and in which words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grampus_uq.records.values import TokenUsage
from grampus_uq.stats.conformal import TieBrokenThreshold

__all__ = ["AttributedStep", "Attribution", "coverage_statement", "spans"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedStep:
    """One step of the run: in the set or not, and what was thought of it.

    score: higher = more suspect; None when the step was never scored (lazy filtration). entry: the threshold at which
    the step enters, None when it was not needed. why: what speaks against the step. missing: why no judgement came,
    when the score is the scorer's stand-in.
    """

    index: int
    step_id: str
    speaker: str
    text: str
    inside: bool
    observation: bool = False
    tool_failed: bool | None = None
    score: float | None = None
    entry: float | None = None
    why: str = ""
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The prediction set of one failed run.

    set_steps: 0-based indices, ascending, maybe none. most_suspect: index of the best-scored step among those scored,
    None when none was or all scored alike. coverage: the sentence of the guarantee, with what breaks it. why:
    sentences. notes: what a reader has to know before trusting the set (missing judgements, an empty set, a set that is
    the whole run). evaluations: steps scored; calls and usage: what the scorer spent on this run.
    """

    trajectory_id: str
    task: str
    steps: tuple[AttributedStep, ...]
    set_steps: tuple[int, ...]
    method: str
    scorer: str
    level: float
    recall: float
    threshold: TieBrokenThreshold
    coverage: str
    why: tuple[str, ...]
    notes: tuple[str, ...] = ()
    most_suspect: int | None = None
    evaluations: int = 0
    calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)

    @property
    def first_step(self) -> int | None:
        """Where a rollback restarts: the first step of the set; None when the set is empty."""
        return self.set_steps[0] if self.set_steps else None

    @property
    def contiguous(self) -> bool:
        """True when the set has no holes (an empty set has none)."""
        return not self.set_steps or self.set_steps[-1] - self.set_steps[0] + 1 == len(self.set_steps)

    @property
    def removal_rate(self) -> float:
        """Share of the run that need not be read: 1 - |C|/L, in [0, 1]."""
        return 1.0 - len(self.set_steps) / len(self.steps)

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values; infinities become None, which `rank` and `entry` explain."""
        return {
            "trajectory_id": self.trajectory_id,
            "task": self.task,
            "set_steps": list(self.set_steps),
            "step_ids": [self.steps[i].step_id for i in self.set_steps],
            "first_step": self.first_step,
            "contiguous": self.contiguous,
            "removal_rate": self.removal_rate,
            "most_suspect": self.most_suspect,
            "method": self.method,
            "scorer": self.scorer,
            "level": self.level,
            "recall": self.recall,
            "threshold": _finite(self.threshold.value),
            "rank": self.threshold.rank,
            "calibration_size": self.threshold.n,
            "expected_coverage": self.threshold.expected_coverage,
            "coverage": self.coverage,
            "why": list(self.why),
            "notes": list(self.notes),
            "evaluations": self.evaluations,
            "calls": self.calls,
            "usage": self.usage.model_dump(mode="json"),
            "steps": [
                {
                    "index": step.index,
                    "step_id": step.step_id,
                    "speaker": step.speaker,
                    "text": step.text,
                    "inside": step.inside,
                    "observation": step.observation,
                    "tool_failed": step.tool_failed,
                    "score": step.score,
                    "entry": _finite(step.entry),
                    "why": step.why,
                    "missing": step.missing,
                }
                for step in self.steps
            ],
        }


def spans(indices: Sequence[int]) -> str:
    """Write ascending indices with their neighbours joined.

    >>> spans((1, 4, 5, 6, 9, 10))
    '1, 4 to 6, 9, 10'
    """
    stretches: list[list[int]] = []
    for index in indices:
        if stretches and index == stretches[-1][-1] + 1:
            stretches[-1].append(index)
        else:
            stretches.append([index])
    parts = (f"{s[0]} to {s[-1]}" if len(s) > 2 else ", ".join(map(str, s)) for s in stretches)
    return ", ".join(parts)


def coverage_statement(
    threshold: TieBrokenThreshold, level: float, *, several: bool, recall: float, needed: int
) -> str:
    """Say what the set promises, on which assumption, and what breaks it.

    Args:
        threshold: of the calibration.
        level: wanted coverage.
        several: some calibration trajectory has more than one error, or recall is below 1.
        recall: share of the errors that the set shall hold.
        needed: least number of calibration trajectories for this level.
    """
    if threshold.rank is None:
        return (
            f"No statement: {threshold.n} calibration failures are too few for a level of {level:.0%} "
            f"(at least {needed} are needed), so the set is the whole run."
        )
    share = "all" if recall == 1.0 else f"at least {recall:.0%}"
    what = f"{share} of the run's errors" if several else "the decisive error"
    return (
        f"With probability at least {level:.0%} (rank {threshold.rank} of {threshold.n} + 1: "
        f"{threshold.expected_coverage:.1%}) the set contains {what}, provided that this failure is exchangeable with "
        f"the {threshold.n} calibration failures and that neither the scorer nor the method was fitted or chosen on "
        "them. The probability is over failures and calibration sets together, not for this run alone. Another agent, "
        "another mix of tasks, or errors labelled by other rules break it."
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
