"""Emits named events through OpenTelemetry's logs, for backends that read evaluations there."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.util.types import AttributeValue

from grampus_uq.errors import ConfigurationError


class EventLog:
    """A logger for named events, of the given logger provider or of the application's global one.

    Raises ConfigurationError where the installed OpenTelemetry has no event names on log records yet.
    """

    __slots__ = ("_logger", "_record")

    def __init__(self, logger_provider: Any = None) -> None:
        from opentelemetry import _logs

        record = getattr(_logs, "LogRecord", None)
        if record is None or "event_name" not in inspect.signature(record.__init__).parameters:
            raise ConfigurationError.of(
                "evaluation_events",
                "SpanEmitter",
                "'span' or 'none' with this version of OpenTelemetry",
                "log",
                "Newer releases of opentelemetry-sdk have events in their logs.",
            )
        self._record = record
        self._logger = (logger_provider or _logs.get_logger_provider()).get_logger("grampus_uq")

    def emit(self, name: str, attributes: Mapping[str, AttributeValue], context: Context, time_ns: int) -> None:
        """Emit one event in this context: it carries the ids of the context's span."""
        self._logger.emit(
            self._record(timestamp=time_ns, context=context, event_name=name, attributes=dict(attributes), body=None)
        )
