"""Names of the spans and span events of this package; docs/telemetry.md and docs/recordings.md list their attributes.

A test holds those two tables against every span that is emitted.
"""

from __future__ import annotations

from typing import Final

ESTIMATE: Final = "uncertainty.estimate"
SEMANTIC: Final = "uncertainty.semantic"
ESCALATE: Final = "uncertainty.escalate"
APPROVAL: Final = "uncertainty.approval"
EVALUATION: Final = "gen_ai.evaluation.result"

ESCALATED: Final = "uncertainty.escalated"
"""True on every span of a step that escalates: what samplers and queues must not lose."""

RUN: Final = "invoke_agent"
"""The span of the run; its name ends with the agent's."""

TOOL: Final = "execute_tool"
"""The span of a tool call, from its clearance or approval to its result; its name ends with the tool's."""

DECISION: Final = "uncertainty.decision"
"""An event on the span of the run: a decision on a pause."""

RESUMED: Final = "uncertainty.resumed"
"""An event on the span of the run, without attributes: the session was taken up again."""
