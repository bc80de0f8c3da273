"""Turns events into spans and metrics; each public name is loaded when it is first used: their SDKs import slowly."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grampus_uq.telemetry.flushing import flush_on_sigterm as flush_on_sigterm
    from grampus_uq.telemetry.log_lines import LogProcessor as LogProcessor
    from grampus_uq.telemetry.log_lines import StructlogProcessor as StructlogProcessor
    from grampus_uq.telemetry.meters import GrampusMeters as GrampusMeters
    from grampus_uq.telemetry.metrics import MetricsProcessor as MetricsProcessor
    from grampus_uq.telemetry.sampling import AlarmSampler as AlarmSampler
    from grampus_uq.telemetry.scores import LangfuseScores as LangfuseScores
    from grampus_uq.telemetry.scores import PhoenixAnnotations as PhoenixAnnotations
    from grampus_uq.telemetry.spans import SpanEmitter as SpanEmitter
    from grampus_uq.telemetry.trace_context import context_of as context_of
    from grampus_uq.telemetry.tracer import GrampusTracer as GrampusTracer

_PLACES = {
    "AlarmSampler": "sampling",
    "GrampusMeters": "meters",
    "GrampusTracer": "tracer",
    "LangfuseScores": "scores",
    "LogProcessor": "log_lines",
    "MetricsProcessor": "metrics",
    "PhoenixAnnotations": "scores",
    "SpanEmitter": "spans",
    "StructlogProcessor": "log_lines",
    "context_of": "trace_context",
    "flush_on_sigterm": "flushing",
}

__all__ = [
    "AlarmSampler",
    "GrampusMeters",
    "GrampusTracer",
    "LangfuseScores",
    "LogProcessor",
    "MetricsProcessor",
    "PhoenixAnnotations",
    "SpanEmitter",
    "StructlogProcessor",
    "context_of",
    "flush_on_sigterm",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"grampus_uq.telemetry.{_PLACES[name]}"), name)
