"""Turns events into spans and metrics; each public name is loaded when it is first used: their SDKs import slowly."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grampus_uq.telemetry.meters import GrampusMeters as GrampusMeters
    from grampus_uq.telemetry.metrics import MetricsProcessor as MetricsProcessor
    from grampus_uq.telemetry.tracer import GrampusTracer as GrampusTracer

_PLACES = {"GrampusMeters": "meters", "GrampusTracer": "tracer", "MetricsProcessor": "metrics"}

__all__ = ["GrampusMeters", "GrampusTracer", "MetricsProcessor"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"grampus_uq.telemetry.{_PLACES[name]}"), name)
