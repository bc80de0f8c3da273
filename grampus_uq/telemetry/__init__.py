"""Turns events into spans; `GrampusTracer` is loaded when it is first used, because its SDK takes a while to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grampus_uq.telemetry.tracer import GrampusTracer as GrampusTracer

__all__ = ["GrampusTracer"]


def __getattr__(name: str) -> Any:
    if name != "GrampusTracer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from grampus_uq.telemetry.tracer import GrampusTracer

    return GrampusTracer
