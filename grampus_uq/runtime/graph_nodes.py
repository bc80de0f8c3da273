"""Built-in nodes: one that waits for a human, and one that judges the model's last answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import AgentStatus, Role, UncertaintyAction
from grampus_uq.runtime.run_state import AgentState

NodeHandler = Callable[[AgentState], Awaitable[AgentState]]
PASSED = "__grampus_passed_by_an_answer__"
"""Marks a node that is finished by an answer; any other waiting node runs again when it is answered."""
ESCALATES = "__grampus_escalates__"
"""Marks a guard that leads on to the node that waits in its place; every other node that waits is waited for."""


def human_node(prompt: str = "Waiting for a human.") -> NodeHandler:
    """A node that pauses the graph, which continues after it when restored with an answer."""

    async def handler(state: AgentState) -> AgentState:
        waiting = state.model_copy(deep=True)
        waiting.messages.append(Message(role=Role.SYSTEM, content=prompt))
        waiting.status = AgentStatus.WAITING_FOR_HUMAN
        return waiting

    setattr(handler, PASSED, True)
    return handler


def uncertainty_guard_node(
    monitor: Any, *, step_type: str = "decision", escalate_node: str | None = None
) -> NodeHandler:
    """A node that judges the last answer of the model: the finding is in `metadata["uncertainty"]`.

    It pauses the graph on a pause or an abort; with `escalate_node`, `metadata["uncertainty_escalate"]` lets a
    conditional edge lead there, to pause. Asks of its monitor only `observe_llm_response` and `summary_metadata`.
    """

    async def handler(state: AgentState) -> AgentState:
        answers = [m for m in state.messages if m.role is Role.ASSISTANT]
        text = (answers[-1].content or "") if answers else ""
        _, action = await monitor.observe_llm_response(text, f"guard_{state.current_step}", step_type=step_type)
        judged = state.model_copy(deep=True)
        judged.metadata["uncertainty"] = monitor.summary_metadata()
        judged.metadata.pop("uncertainty_escalate", None)
        if action in (UncertaintyAction.PAUSE_FOR_HUMAN, UncertaintyAction.ABORT):
            judged.status = AgentStatus.WAITING_FOR_HUMAN
            if escalate_node is not None:
                judged.metadata["uncertainty_escalate"] = True
        return judged

    setattr(handler, PASSED, True)
    setattr(handler, ESCALATES, escalate_node is not None)
    return handler
