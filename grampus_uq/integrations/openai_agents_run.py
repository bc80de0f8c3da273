"""One watched run of an OpenAI Agents SDK agent: its session's calls, what its model proposed, why it was aborted."""

from __future__ import annotations

from typing import Any

from grampus_uq import AgentBeliefState, MissingDependencyError, ToolCall, UncertaintyError
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.openai_agents_model import Answer, tool_call

try:
    from agents import AgentsException
except ImportError as error:
    raise MissingDependencyError.of("openai-agents", "openai-agents", "watching the OpenAI Agents SDK") from error

__all__ = ["AbortedRunError", "WatchedRun"]

_MAX_PROPOSED = 256


class AbortedRunError(UncertaintyError, AgentsException):
    """The policy aborted the run; the SDK lets it through as one of its own."""

    def __init__(self, error: UncertaintyError) -> None:
        super().__init__(str(error), code=error.code, details=error.details)


class WatchedRun:
    """One run of one session: its belief, and its calls."""

    def __init__(self, calls: HeldCalls, *, model: str) -> None:
        self.calls = calls
        self.model = model
        self.aborted: AbortedRunError | None = None
        self._proposed: dict[tuple[str, str, str], ToolCall] = {}
        self._ids: set[str] = set()

    def propose(self, answer: Answer, step_id: str) -> None:
        """Take the calls of the model's latest answer, those of function tools with their arguments as written."""
        if len(self._proposed) > _MAX_PROPOSED:
            self._proposed.clear()
            self._ids.clear()
        self._proposed.update(((call.id, call.name, written), call) for call, written in answer.written)
        self._ids.update(call.id for call in answer.calls)
        self.calls.propose(answer.calls, step_id)

    def proposed(self, call_id: str, name: str, arguments: Any) -> ToolCall:
        """The call with this id, name and arguments: the model's own object where its answer held just this text."""
        known = self._proposed.get((call_id, name, arguments)) if isinstance(arguments, str) else None
        return tool_call(call_id, name, arguments) if known is None else known

    def proposes(self, call_id: str) -> bool:
        """True for the id of a call in an answer of the model in this process."""
        return call_id in self._ids

    @property
    def belief(self) -> AgentBeliefState:
        """What is believed now."""
        return self.calls.session.belief()
