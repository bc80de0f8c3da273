"""The latest steps of a session, and its latest escalations: bounded, for people and for the summary of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from grampus_uq.core.state import SessionState
from grampus_uq.records.values import StepUncertainty
from grampus_uq.records.vocabulary import UncertaintyLevel

_STEPS: Final = 64
_DECIDED_ON: Final = {
    "step_id",
    "level",
    "action",
    "advisory_action",
    "rule",
    "guarantee",
    "reasoning",
    "fused_confidence",
    "propagated_confidence",
    "missing_reason",
    "tool_name",
}


class AgentBeliefState(BaseModel):
    """The monitor's belief about a session so far; `step_uncertainties` holds the latest steps."""

    model_config = ConfigDict(allow_inf_nan=False)

    session_id: str = ""
    agent_id: str = ""
    step_uncertainties: list[StepUncertainty] = Field(default_factory=list)
    cumulative_confidence: float = 1.0
    overall_level: UncertaintyLevel = UncertaintyLevel.MEDIUM
    total_steps: int = 0
    high_uncertainty_steps: int = 0
    escalation_history: list[dict[str, JsonValue]] = Field(default_factory=list)

    def to_summary(self) -> dict[str, Any]:
        """The five numbers that travel in `result.metadata["uncertainty"]`."""
        return {
            "overall_level": self.overall_level.value,
            "cumulative_confidence": self.cumulative_confidence,
            "total_steps": self.total_steps,
            "high_uncertainty_steps": self.high_uncertainty_steps,
            "last_step_id": self.step_uncertainties[-1].step_id if self.step_uncertainties else None,
        }


def unaided_part(state: SessionState) -> dict[str, Any]:
    """A summary's entry on the belief without what the model states, where that is less; None if it stated all."""
    if state.only_stated:
        return {"unaided_confidence": None}
    return {} if state.unaided is None else {"unaided_confidence": state.unaided.cumulative}


class History:
    """No decision depends on it. Its owner guards it by a lock."""

    __slots__ = ("escalations", "steps")

    def __init__(self, steps: Iterable[StepUncertainty] = (), escalations: Iterable[dict[str, JsonValue]] = ()) -> None:
        self.steps: deque[StepUncertainty] = deque(steps, maxlen=_STEPS)
        self.escalations: deque[dict[str, JsonValue]] = deque(map(dict, escalations), maxlen=_STEPS)

    def escalate(self, assessment: StepUncertainty) -> None:
        """Add the numbers that a pause or an abort was decided on."""
        self.escalations.append(assessment.model_dump(mode="json", include=_DECIDED_ON))

    def copy(self, latest: int | None = None) -> History:
        """A copy; of the `latest` steps and escalations, or all."""
        if latest is None:
            return History(self.steps, self.escalations)
        return History(
            islice(self.steps, max(0, len(self.steps) - latest), None),
            islice(self.escalations, max(0, len(self.escalations) - latest), None),
        )

    def belief(self, state: SessionState) -> AgentBeliefState:
        """The belief of a session with this state."""
        return AgentBeliefState(
            session_id=state.session_id,
            agent_id=state.agent_id,
            step_uncertainties=list(self.steps),
            cumulative_confidence=state.cumulative,
            overall_level=state.level,
            total_steps=state.n_steps,
            high_uncertainty_steps=state.n_high,
            escalation_history=list(self.escalations),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Its entries of a snapshot."""
        return {
            "recent": [assessment.model_dump(mode="json") for assessment in self.steps],
            "escalations": [dict(escalation) for escalation in self.escalations],
        }
