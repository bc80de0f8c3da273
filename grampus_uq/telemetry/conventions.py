"""Every attribute that a span or a span event of this package may carry: key, type, where, when, and what it may tell.

`ATTRIBUTES` are those of the monitor's own spans and of what it sets on its parent, which in an exported recording is
the span of the run; `EXPORTED` are those that only an exported recording carries.

The keys of OpenTelemetry's GenAI conventions are written out here: those conventions are still in development, and the
packages that hold them rename and move them. A test holds the table of docs/telemetry.md, and every span that is
emitted, against this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ESTIMATE: Final = "uncertainty.estimate"
SEMANTIC: Final = "uncertainty.semantic"
ESCALATE: Final = "uncertainty.escalate"
APPROVAL: Final = "uncertainty.approval"
EVALUATION: Final = "gen_ai.evaluation.result"
PARENT: Final = "parent"
"""Stands for the recording span that was current when a step was committed: the framework's or the application's."""

ESCALATED: Final = "uncertainty.escalated"
"""True on every span of a step that escalates: what samplers and queues must not lose."""

_CONTENT: Final = "content"

RUN: Final = "invoke_agent"
"""The span of the run; its name ends with the agent's."""

TOOL: Final = "execute_tool"
"""The span of a tool call, from its clearance or approval to its result; its name ends with the tool's."""

DECISION: Final = "uncertainty.decision"
"""An event on the span of the run: a decision on a pause."""

RESUMED: Final = "uncertainty.resumed"
"""An event on the span of the run, without attributes: the session was taken up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One attribute.

    `type` is "string", "double", "int" or "boolean". `on` are the spans and events that carry it. `privacy` is what
    kind of thing it tells: "number" (also booleans), "word" (of a fixed vocabulary), "id" (chosen by the application),
    "name" (of a tool, only in the shape of a name), or "content" (free text, only by opt-in, after redaction).
    """

    key: str
    type: str
    on: tuple[str, ...]
    when: str
    privacy: str


def _a(key: str, kind: str, on: str | tuple[str, ...], when: str, privacy: str) -> Attribute:
    return Attribute(key=key, type=kind, on=(on,) if isinstance(on, str) else on, when=when, privacy=privacy)


_EVERY: Final = (ESTIMATE, SEMANTIC, ESCALATE, APPROVAL)
_BOTH: Final = (ESTIMATE, PARENT)
_ALARM: Final = (ESTIMATE, ESCALATE)

_ALL: Final = (
    # Bare keys.
    _a("session_id", "string", _EVERY, "always", "id"),
    _a("agent_id", "string", _EVERY, "always", "id"),
    _a("step_id", "string", _EVERY, "always; on an approval where the decision names one", "id"),
    _a("step_type", "string", ESTIMATE, "always", "id"),
    _a("verbalized_confidence", "double", ESTIMATE, "always; 0.5 when none was stated", "number"),
    _a("p_true_confidence", "double", ESTIMATE, "always; -1 when not run, 0.5 when it failed", "number"),
    _a("fused_confidence", "double", ESTIMATE, "always; 0.5 when nothing was read", "number"),
    _a("propagated_confidence", "double", ESTIMATE, "always", "number"),
    _a("level", "string", (ESTIMATE, ESCALATE), "always", "word"),
    _a("action", "string", (ESTIMATE, ESCALATE), "always", "word"),
    _a("p_true_ran", "boolean", ESTIMATE, "always", "number"),
    _a("samples_used", "int", ESTIMATE, "always", "number"),
    _a("rule", "string", (ESTIMATE, ESCALATE), "always", "word"),
    _a("missing_reason", "string", (ESTIMATE, SEMANTIC), "a reading has no value", "word"),
    _a("token_probability", "double", ESTIMATE, "it was read", "number"),
    _a("token_entropy", "double", ESTIMATE, "it was read", "number"),
    _a("semantic_confidence", "double", (ESTIMATE, SEMANTIC), "it was read", "number"),
    _a("p_success", "double", ESTIMATE, "the profile is calibrated", "number"),
    _a("sample_count", "int", SEMANTIC, "always", "number"),
    _a("early_stopped", "boolean", SEMANTIC, "always", "number"),
    _a("cumulative_confidence", "double", ESCALATE, "always", "number"),
    _a("irreversible", "boolean", ESCALATE, "always", "number"),
    _a("wanted_action", "string", ESCALATE, "always; differs from `action` where the monitor only advises", "word"),
    _a(
        "decision", "string", APPROVAL, "always: approve, edit, reject, respond, guidance, permit, grant, chain", "word"
    ),
    _a("uncertainty.permit", "string", APPROVAL, "a permit let the call go ahead: its promise at that moment", "word"),
    _a("guarantee", "string", ESCALATE, "always; `no guarantee` where there is none", "word"),
    # Numbers that are evidence, and only those; the same keys on the parent.
    _a("uncertainty.confidence.fused", "double", _BOTH, "something was read", "number"),
    _a("uncertainty.confidence.propagated", "double", _BOTH, "always", "number"),
    _a("uncertainty.call_probability", "double", ESTIMATE, "the tokens of the step's calls were read", "number"),
    _a("uncertainty.p_success", "double", _BOTH, "the profile is calibrated", "number"),
    _a("uncertainty.trajectory_risk", "double", _BOTH, "the profile has a TRACER", "number"),
    _a("uncertainty.surprisal", "double", ESTIMATE, "TRACER, and the model reports log-probabilities", "number"),
    _a("uncertainty.level", "string", _BOTH, "always", "word"),
    _a("uncertainty.action", "string", _BOTH, "always", "word"),
    _a("uncertainty.step_id", "string", PARENT, "always", "id"),
    _a(ESCALATED, "boolean", (ESTIMATE, ESCALATE, PARENT), "the step escalates; then true", "number"),
    _a("uncertainty.alarm_mode", "string", _ALARM, "the profile has a detector", "word"),
    _a("uncertainty.log_e_value", "double", _ALARM, "the detector has evidence: log M_t", "number"),
    _a("uncertainty.log_threshold", "double", _ALARM, "the detector's threshold is finite", "number"),
    _a("uncertainty.alpha", "double", _ALARM, "the profile has a detector", "number"),
    _a("uncertainty.monitor.calls", "int", ESTIMATE, "the monitor asked a model", "number"),
    _a("uncertainty.monitor.input_tokens", "int", ESTIMATE, "the monitor asked a model", "number"),
    _a("uncertainty.monitor.output_tokens", "int", ESTIMATE, "the monitor asked a model", "number"),
    _a("uncertainty.monitor.cost_usd", "double", ESTIMATE, "a cost is known", "number"),
    # OpenTelemetry's GenAI conventions.
    _a("gen_ai.conversation.id", "string", _EVERY, "always: the session", "id"),
    _a("gen_ai.agent.name", "string", _EVERY, "the agent has an id", "id"),
    _a("gen_ai.operation.name", "string", _EVERY, "always: `evaluate`, on an approval `await_approval`", "word"),
    _a("openinference.span.kind", "string", _EVERY, "always: EVALUATOR; GUARDRAIL on escalations, approvals", "word"),
    _a("gen_ai.tool.name", "string", ESTIMATE, "a tool step", "name"),
    _a(
        "gen_ai.tool.call.id",
        "string",
        (ESTIMATE, APPROVAL),
        "a tool step or decision whose call has an id",
        "name",
    ),
    _a("gen_ai.evaluation.name", "string", EVALUATION, "always", "word"),
    _a("gen_ai.evaluation.score.value", "double", EVALUATION, "always", "number"),
    _a("gen_ai.evaluation.score.label", "string", EVALUATION, "the fused confidence: the level", "word"),
    _a("gen_ai.output.messages", "string", ESTIMATE, "opt-in: what the model said, as JSON", _CONTENT),
    _a("gen_ai.tool.call.arguments", "string", ESTIMATE, "opt-in: a tool step's arguments, as JSON", _CONTENT),
)

ATTRIBUTES: Final = {attribute.key: attribute for attribute in _ALL}
"""The table by key."""

_OF_EXPORTS: Final = (
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
    _a("uncertainty.permit", "string", DECISION, "a permit let the call go ahead: its promise at that moment", "word"),
)

EXPORTED: Final = {attribute.key: attribute for attribute in _OF_EXPORTS}
"""The attributes of exported recordings alone, by key: on the span of the run, on spans of tools, on decisions."""
