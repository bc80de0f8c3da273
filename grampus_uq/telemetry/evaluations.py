"""An assessment as evaluation scores: name, value, label; a score has the name of the span attribute that holds it."""

from __future__ import annotations

from typing import Final, NamedTuple

from grampus_uq.records.values import NO_READING, StepUncertainty
from grampus_uq.records.vocabulary import STOPPING, STOPPING_LEVELS, UncertaintyAction, UncertaintyLevel

__all__ = ["WORDS", "Evaluation", "escalates", "evaluations", "fused_of"]

_FITTED: Final = ("p_success", "trajectory_risk")
WORDS: Final[dict[str, str]] = {word: word.value for words in (UncertaintyLevel, UncertaintyAction) for word in words}
"""Levels and actions as plain text, which attributes take."""


class Evaluation(NamedTuple):
    """One score of one step; `label` is the level of the run where the score decides it, None elsewhere."""

    name: str
    value: float
    label: str | None = None


def escalates(step: StepUncertainty) -> bool:
    """True for a step at a stopping level, or whose action stops the run or would if the monitor were not advisory."""
    fields = step.__dict__  # an attribute of a pydantic model takes several times as long
    return (fields["advisory_action"] or fields["action"]) in STOPPING or fields["level"] in STOPPING_LEVELS


def fused_of(step: StepUncertainty) -> float | None:
    """The fused confidence, or None on a step where nothing was read (the field then holds 0.5)."""
    fields = step.__dict__
    return None if (fields["missing_reason"] or "").endswith(NO_READING) else fields["fused_confidence"]


def evaluations(step: StepUncertainty) -> list[Evaluation]:
    """The scores of a step: its fused confidence with the level it led to, and what a fitted profile adds."""
    fields, fused = step.__dict__, fused_of(step)
    found = [] if fused is None else [Evaluation("uncertainty.confidence.fused", fused, WORDS[fields["level"]])]
    found += [Evaluation(f"uncertainty.{name}", fields[name]) for name in _FITTED if fields[name] is not None]
    return found
