"""What a paused graph waits for, and the command that resumes it with decisions: for LangGraph and LangChain alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grampus_uq import ApprovalDecision, ApprovalError, ApprovalRequest, MissingDependencyError

try:
    from langgraph.types import Command
except ImportError as error:
    raise MissingDependencyError.of("langgraph", "langgraph", "Resuming a graph") from error

if TYPE_CHECKING:
    from langgraph.types import StateSnapshot

__all__ = ["REVIEW", "resume_with", "waiting_requests"]

REVIEW = "uncertainty_review"
"""The `type` of the guard's interrupts: {"type", "requests": ApprovalRequests as JSON, "refused": why, if any}."""


def waiting_requests(state: StateSnapshot) -> list[ApprovalRequest]:
    """What waits in a thread (`app.get_state(config)`), its sub-graphs included; other interrupts are left out."""
    return [ApprovalRequest.model_validate(request) for one in _ours(state) for request in one.value["requests"]]


def resume_with(state: StateSnapshot, decisions: Sequence[ApprovalDecision]) -> Command[Any]:
    """The command that hands decisions to the interrupts that asked: `app.invoke(resume_with(state, [d]), config)`.

    A decision on something that does not wait is handed to the interrupts as well: they refuse it and ask again. Raises
    ApprovalError when nothing of the guard's waits.
    """
    ours = _ours(state)
    if not ours:
        raise ApprovalError("Nothing of the guard's waits in this thread: the decisions are stale, or were taken.")
    known = {request["id"]: one.id for one in ours for request in one.value["requests"]}
    said: dict[str, list[Any]] = {}
    for decision in decisions:
        asked = known.get(decision.request_id)
        for interrupt_id in [asked] if asked is not None else [one.id for one in ours]:
            said.setdefault(interrupt_id, []).append(decision.model_dump(mode="json"))
    return Command(resume={interrupt_id: {"decisions": given} for interrupt_id, given in said.items()})


def _ours(state: StateSnapshot) -> list[Any]:
    return [one for one in state.interrupts if isinstance(one.value, Mapping) and one.value.get("type") == REVIEW]
