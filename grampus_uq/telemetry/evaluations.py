"""What spans, metrics, scores and log lines share of an assessment: the scores' names, levels as text, escalation."""

from __future__ import annotations

from typing import Final

from grampus_uq.records.values import NO_READING, StepUncertainty
from grampus_uq.records.vocabulary import STOPPING, STOPPING_LEVELS, UncertaintyAction, UncertaintyLevel

FUSED: Final = "uncertainty.confidence.fused"
SCORES: Final = (FUSED, "uncertainty.p_success", "uncertainty.trajectory_risk")
"""The scores of a step by name, as span attributes hold them; the first decides the level."""
WORDS: Final[dict[str, str]] = {word: word.value for words in (UncertaintyLevel, UncertaintyAction) for word in words}
"""Levels and actions as plain text, which attributes take."""


def escalates(step: StepUncertainty) -> bool:
    """Return True if the step is at a stopping level, or its action stops the run or would outside advisory mode."""
    fields = step.__dict__  # an attribute of a pydantic model takes several times as long
    return (fields["advisory_action"] or fields["action"]) in STOPPING or fields["level"] in STOPPING_LEVELS


def fused_of(step: StepUncertainty) -> float | None:
    """The fused confidence, or None on a step where nothing was read (the field then holds 0.5)."""
    fields = step.__dict__
    return None if (fields["missing_reason"] or "").endswith(NO_READING) else fields["fused_confidence"]
