"""The attribution of one failed run: the set, its steps, the reasons, and the guarantee in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grampus_uq.stats.arrays import finite
from grampus_uq.stats.conformal import TieBrokenThreshold
from grampus_uq.stats.eprocess_thresholds import successes_needed


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedStep:
    """One step of the run: in the set or not, and its judgement.

    score: higher = more suspect. entry: the threshold at which the step enters the set. why: what speaks against the
    step. missing: why the scorer has no judgement, when the score is its stand-in.
    """

    index: int
    step_id: str
    speaker: str
    text: str
    inside: bool
    observation: bool = False
    tool_failed: bool | None = None
    score: float
    entry: float
    why: str = ""
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The prediction set of one failed run.

    set_steps: 0-based indices, ascending, maybe none. shape: form of the method's sets, in words. several: some
    calibration failure has more than one error. most_suspect: index of the step with the highest score, None when all
    scores are equal.
    """

    trajectory_id: str
    task: str
    steps: tuple[AttributedStep, ...]
    set_steps: tuple[int, ...]
    method: str
    shape: str
    scorer: str
    level: float
    recall: float
    threshold: TieBrokenThreshold
    several: bool = False
    most_suspect: int | None = None

    @property
    def first_step(self) -> int | None:
        """Restart point of a rollback: the first step of the set; None when the set is empty."""
        return self.set_steps[0] if self.set_steps else None

    @property
    def contiguous(self) -> bool:
        """True when the set has no holes (an empty set has none)."""
        return not self.set_steps or self.set_steps[-1] - self.set_steps[0] + 1 == len(self.set_steps)

    @property
    def removal_rate(self) -> float:
        """Share of the run that need not be read: 1 - |C|/L, in [0, 1]."""
        return 1.0 - len(self.set_steps) / len(self.steps)

    @property
    def coverage(self) -> str:
        """The guarantee in one paragraph: what it promises, on which assumption, and what breaks it."""
        threshold = self.threshold
        if threshold.rank is None:
            return (
                f"No statement: {threshold.n} calibration failures are too few for a level of {self.level:.0%} "
                f"(at least {successes_needed(1.0 - self.level)} are needed), so the set is the whole run."
            )
        share = "all" if self.recall == 1.0 else f"at least {self.recall:.0%}"
        several = self.several or self.recall < 1.0
        what = f"{share} of the run's errors" if several else "the decisive error"
        return (
            f"With probability at least {self.level:.0%} (rank {threshold.rank} of {threshold.n} + 1: "
            f"{threshold.expected_coverage:.1%}) the set contains {what}, provided that this failure is exchangeable "
            f"with the {threshold.n} calibration failures and that neither the scorer nor the method was "
            "fitted or chosen on them. The probability is over failures and calibration sets together, not for this "
            "run alone. Another agent, another mix of tasks, or errors labelled by other rules break it."
        )

    @property
    def why(self) -> tuple[str, ...]:
        """Sentences on the size of the set and on the most suspect step."""
        size, length = len(self.set_steps), len(self.steps)
        sentences = [f"The set holds {size} of {length} steps: {self.shape}."] if 0 < size < length else []
        if self.most_suspect is None:
            sentences.append("All steps have the same score: only their positions speak.")
        else:
            step = self.steps[self.most_suspect]
            because = f"; against it: {step.why}" if step.why else ""
            sentences.append(
                f"Step {step.index} ({step.speaker}) is the most suspect: score {step.score:.3g}{because}."
            )
        return tuple(sentences)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences to read before trusting the set: it is empty, it is the whole run, judgements are missing."""
        notes = []
        if not self.set_steps:
            notes.append(
                "The set is empty: no step is as suspect as the errors of the calibration failures were. This run is "
                f"among the at most {1.0 - self.level:.0%} that the level gives up; look at the most suspect step "
                "first."
            )
        if len(self.set_steps) == len(self.steps) and self.threshold.rank is not None:
            notes.append("The set is the whole run: the scores do not tell its steps apart well enough.")
        missing = [step.index for step in self.steps if step.missing is not None]
        if missing:
            shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
            notes.append(f"{len(missing)} steps have no judgement ({shown}); the scorer's stand-in counts for them.")
        return tuple(notes)

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
            "threshold": finite(self.threshold.value),
            "rank": self.threshold.rank,
            "calibration_size": self.threshold.n,
            "expected_coverage": self.threshold.expected_coverage,
            "coverage": self.coverage,
            "why": list(self.why),
            "notes": list(self.notes),
            "steps": [asdict(step) | {"entry": finite(step.entry)} for step in self.steps],
        }


def most_suspect_step(scores: Sequence[float]) -> int | None:
    """Return the index of the highest score, the first of equals; None when several steps all have the same."""
    return None if len(scores) > 1 and min(scores) == max(scores) else scores.index(max(scores))


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
