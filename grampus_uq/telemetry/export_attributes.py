"""Every attribute that only an exported recording carries: on the span of the run, on those of tools, on decisions.

What the monitor's own spans carry is in `grampus_uq.telemetry.conventions`; so is what it sets on its parent, which
here is the span of the run. A test holds the table of docs/recordings.md, and every span that is sent, against this.
"""

from __future__ import annotations

from typing import Final

from grampus_uq.telemetry.conventions import Attribute

__all__ = ["DECISION", "EXPORTED", "RESUMED", "RUN", "TOOL"]

RUN: Final = "invoke_agent"
"""The span of the run; its name ends with the agent's."""

TOOL: Final = "execute_tool"
"""The span of a tool call, from its clearance or approval to its result; its name ends with the tool's."""

DECISION: Final = "uncertainty.decision"
"""An event on the span of the run: somebody answered a pause."""

RESUMED: Final = "uncertainty.resumed"
"""An event on the span of the run, without attributes: the session was taken up again."""


def _a(key: str, kind: str, on: str | tuple[str, ...], when: str, privacy: str) -> Attribute:
    return Attribute(key=key, type=kind, on=(on,) if isinstance(on, str) else on, when=when, privacy=privacy)


_ALL: Final = (
    _a("session_id", "string", RUN, "always", "id"),
    _a("agent_id", "string", RUN, "always", "id"),
    _a("uncertainty.recorded", "boolean", RUN, "always; true", "number"),
    _a("uncertainty.advisory", "boolean", RUN, "the beginning was recorded", "number"),
    _a("uncertainty.profile", "string", RUN, "a fitted profile: its fingerprint", "id"),
    _a("uncertainty.outcome", "string", RUN, "recorded: success, failure or unknown", "word"),
    _a("uncertainty.stop_reason", "string", RUN, "the outcome is recorded", "word"),
    _a("uncertainty.labelled_by", "string", RUN, "somebody labelled it", "id"),
    _a("gen_ai.operation.name", "string", (RUN, TOOL), "always", "word"),
    _a("gen_ai.conversation.id", "string", (RUN, TOOL), "always: the session", "id"),
    _a("gen_ai.agent.name", "string", RUN, "the agent has an id", "id"),
    _a("gen_ai.request.model", "string", RUN, "the model is known", "id"),
    _a("gen_ai.tool.name", "string", TOOL, "always", "name"),
    _a("gen_ai.tool.call.id", "string", (TOOL, DECISION), "the call has an id", "name"),
    _a("error.type", "string", TOOL, "the tool failed", "word"),
    _a("decision", "string", DECISION, "always", "word"),
    _a("principal", "string", DECISION, "always: who decided", "id"),
    _a("step_id", "string", DECISION, "it is on a step", "id"),
    _a("call_digest", "string", DECISION, "it is on a call", "id"),
    _a("acknowledged", "string", DECISION, "a level asks no more", "word"),
)

EXPORTED: Final = {attribute.key: attribute for attribute in _ALL}
"""The table by key."""
