"""Writes one line a step to the application's log: numbers, words and ids, never a text."""

from __future__ import annotations

import logging
from typing import Any

from grampus_uq.records.configuration import checked
from grampus_uq.records.events import DecisionEvent, Event, OutcomeEvent, SessionStarted, StepEvent
from grampus_uq.telemetry.evaluations import escalates, fused_of
from grampus_uq.telemetry.span_content import plain_name


@checked
class LogProcessor:
    """A `Processor` that logs events on a standard logger, "grampus_uq.events" by default.

    A step that stops the run, or would if the monitor did not only advise, is a WARNING, one at level HIGH or CRITICAL
    too; other steps are DEBUG; sessions, decisions and outcomes INFO. The message is "uncertainty.step level=high …";
    the same fields are the record's `uncertainty` (a dict), for a formatter that writes JSON.

    The logger's handlers run where the step is committed: give them a `QueueHandler` when they may block.
    """

    def __init__(self, logger: logging.Logger | str = "grampus_uq.events") -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger

    def on_event(self, event: Event) -> None:
        """Log one event; tool results and what users say are not logged."""
        found = _described(event)
        if found is None:
            return
        name, severity, fields = found
        if self._logger.isEnabledFor(severity):
            text = " ".join(f"{key}={_shown(value)}" for key, value in fields.items())
            self._logger.log(severity, "%s %s", name, text, extra={"uncertainty": fields})


def _described(event: Event) -> tuple[str, int, dict[str, Any]] | None:
    fields: dict[str, Any] = {"session_id": event.session_id, "agent_id": event.agent_id}
    if isinstance(event, StepEvent):
        severity = logging.WARNING if escalates(event.assessment) else logging.DEBUG
        return "uncertainty.step", severity, fields | _step_fields(event)
    if isinstance(event, SessionStarted):
        return "uncertainty.session", logging.INFO, fields | {"resumed": event.resumed, "advisory": event.advisory}
    if isinstance(event, DecisionEvent):
        decided = {"decision": event.decision, "principal": event.principal, "step_id": event.step_id}
        return "uncertainty.decision", logging.INFO, fields | decided
    if isinstance(event, OutcomeEvent):
        ended = {"success": event.outcome.success, "stop_reason": event.outcome.stop_reason.value}
        return "uncertainty.outcome", logging.INFO, fields | ended
    return None


def _step_fields(event: StepEvent) -> dict[str, Any]:
    step = event.assessment
    fields = {
        "step_id": step.step_id,
        "step_type": step.step_type,
        "level": step.level.value,
        "action": step.action.value,
        "rule": step.rule,
        "propagated_confidence": step.propagated_confidence,
        "fused_confidence": fused_of(step),
        "p_success": step.p_success,
        "trajectory_risk": step.trajectory_risk,
        "log_e_value": step.log_e_value,
        "log_threshold": step.log_threshold,
        "advisory_action": step.advisory_action.value if step.advisory_action else None,
        "tool_name": plain_name(step.tool_name, None) if step.tool_name is not None else None,
        "missing_reason": step.missing_reason,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _shown(value: Any) -> str:
    """A value without spaces or control characters: one event is one line for any id."""
    if isinstance(value, float):
        return format(value, ".4g")
    text = str(value)
    return text if text.isprintable() and " " not in text else ascii(text)
