"""An assessment as evaluation scores: name, value, label; a score has the name of the span attribute that holds it."""

from __future__ import annotations

from typing import Final, NamedTuple

from grampus_uq.records.values import NO_READING, StepUncertainty
from grampus_uq.records.vocabulary import STOPPING, STOPPING_LEVELS, UncertaintyAction, UncertaintyLevel

FUSED: Final = "uncertainty.confidence.fused"
SCORES: Final = (FUSED, "uncertainty.p_success", "uncertainty.trajectory_risk")
"""The scores of a step by name, as span attributes hold them; the first decides the level."""
WORDS: Final[dict[str, str]] = {word: word.value for words in (UncertaintyLevel, UncertaintyAction) for word in words}
"""Levels and actions as plain text, which attributes take."""


class NamedScore(NamedTuple):
    """One score of one step; `label` is the level of the run where the score decides it, None elsewhere."""

    name: str
    value: float
    label: str | None = None


def escalates(step: StepUncertainty) -> bool:
    """Return True if the step is at a stopping level, or its action stops the run or would outside advisory mode."""
    fields = step.__dict__  # an attribute of a pydantic model takes several times as long
    return (fields["advisory_action"] or fields["action"]) in STOPPING or fields["level"] in STOPPING_LEVELS


def fused_of(step: StepUncertainty) -> float | None:
    """The fused confidence, or None on a step where nothing was read (the field then holds 0.5)."""
    fields = step.__dict__
    return None if (fields["missing_reason"] or "").endswith(NO_READING) else fields["fused_confidence"]


def evaluations(step: StepUncertainty) -> list[NamedScore]:
    """The scores of a step: its fused confidence with the level it led to, and what a fitted profile adds."""
    fields = step.__dict__
    values = (fused_of(step), fields["p_success"], fields["trajectory_risk"])
    return [
        NamedScore(name, value, WORDS[fields["level"]] if name == FUSED else None)
        for name, value in zip(SCORES, values, strict=True)
        if value is not None
    ]
