"""One watched run of an OpenAI Agents SDK agent: its session's calls, what its model proposed, why it was aborted."""

from __future__ import annotations

from typing import Any

from grampus_uq import AgentBeliefState, MissingDependencyError, ToolCall, UncertaintyError
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.openai_agents_model import Answer, form_of, tool_call

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
        self._latest: list[ToolCall] = []
        self.aborted: AbortedRunError | None = None
        self._proposed: dict[tuple[str, str, str], ToolCall] = {}

    def propose(self, answer: Answer, step_id: str) -> None:
        """Take the calls of the model's latest answer, those of function tools with their arguments as written."""
        if len(self._proposed) > _MAX_PROPOSED:
            self._proposed.clear()
        self._proposed.update(((call.id, call.name, written), call) for call, written in answer.written)
        ungated = {(call.id, call.name) for call, _ in answer.ungated}
        calls = [call for call in answer.calls if (call.id, call.name) not in ungated]
        self._latest = calls
        self.calls.propose(calls, step_id)

    def proposed(self, call_id: str, name: str, arguments: Any) -> ToolCall:
        """The call with this id, name and arguments: the model's own object where its answer held just this text."""
        known = self._proposed.get((call_id, name, arguments)) if isinstance(arguments, str) else None
        return tool_call(call_id, name, arguments) if known is None else known

    def meant(self, call_id: str, name: str, given: Any) -> ToolCall:
        """The call that a shell, apply-patch or custom tool is given, as the model's answer had it.

        An editor is given no id: the call of its operation that has not run yet is the one.
        """
        form = form_of(given)
        for call in (*self.calls.known(name), *self._latest):
            if call.name == name and call_id in ("", call.id) and form_of(call.arguments) == form:
                return call
        return tool_call(call_id, name, form)

    @property
    def belief(self) -> AgentBeliefState:
        """What is believed now."""
        return self.calls.session.belief()
