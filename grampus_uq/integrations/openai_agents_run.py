"""One watched run of an OpenAI Agents SDK agent: its session's calls, what its model proposed, why it was aborted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grampus_uq import AgentBeliefState, MissingDependencyError, ToolCall, UncertaintyError
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.openai_agents_model import tool_call

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
        self._proposed: dict[str, tuple[ToolCall, str]] = {}

    def propose(self, calls: Sequence[tuple[ToolCall, str]]) -> None:
        """Take the calls of the model's latest answer, each with its arguments as they were written."""
        if len(self._proposed) > _MAX_PROPOSED:
            self._proposed.clear()
        self._proposed.update((call.id, (call, written)) for call, written in calls)

    def proposed(self, call_id: str, name: str, arguments: Any) -> ToolCall:
        """The call of this id as the model's answer had it; another one where the name or the arguments differ."""
        call, written = self._proposed.get(call_id, (None, ""))
        if call is not None and call.name == name and arguments in (written, call.arguments):
            return call
        return tool_call(call_id, name, arguments)

    @property
    def belief(self) -> AgentBeliefState:
        """What is believed now."""
        return self.calls.session.belief()
