"""What an assessment says as evaluation scores: name, value, label; numbers that are no evidence are left out."""

from __future__ import annotations

from typing import Final, NamedTuple

from grampus_uq.records.values import StepUncertainty
from grampus_uq.records.vocabulary import STOPPING, STOPPING_LEVELS, UncertaintyAction, UncertaintyLevel

__all__ = ["FUSED", "SCORES", "WORDS", "Evaluation", "escalates", "evaluations", "fused_of"]

FUSED: Final = "uncertainty.confidence.fused"
SCORES: Final = (FUSED, "uncertainty.p_success", "uncertainty.trajectory_risk")
"""Names of the scores of a step, which are those of the span's attributes that hold them."""
_NOTHING_READ: Final = "no reading on this step"
WORDS: Final[dict[str, str]] = {word: word.value for words in (UncertaintyLevel, UncertaintyAction) for word in words}
"""Levels and actions as plain text, which attributes take."""


class Evaluation(NamedTuple):
    """One score of one step; `label` is the level of the run where the score decides it, None elsewhere."""

    name: str
    value: float
    label: str | None = None


def escalates(step: StepUncertainty) -> bool:
    """True for a step that stops the run, or would if the monitor did not only advise, and for one at a grave level."""
    fields = step.__dict__  # an attribute of a pydantic model takes several times as long
    return (fields["advisory_action"] or fields["action"]) in STOPPING or fields["level"] in STOPPING_LEVELS


def fused_of(step: StepUncertainty) -> float | None:
    """The fused confidence, or None on a step where nothing was read (the guide's float then says 0.5)."""
    fields = step.__dict__
    return None if (fields["missing_reason"] or "").endswith(_NOTHING_READ) else fields["fused_confidence"]


def evaluations(step: StepUncertainty) -> list[Evaluation]:
    """The scores of a step: its fused confidence with the level it led to, and what a fitted profile adds."""
    values = zip(SCORES, (fused_of(step), step.p_success, step.trajectory_risk), strict=True)
    return [
        Evaluation(name, value, WORDS[step.level] if name == FUSED else None)
        for name, value in values
        if value is not None
    ]
