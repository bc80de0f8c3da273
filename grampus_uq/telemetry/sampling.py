"""A sampler that keeps a share of the traces and every escalation.

Our spans are made when a step is over: its level and action are among the attributes that a span starts with, so a
head sampler can still decide on them.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import (
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, get_current_span
from opentelemetry.trace.span import TraceState
from opentelemetry.util.types import Attributes

from grampus_uq.errors import ConfigurationError
from grampus_uq.telemetry.conventions import ESCALATED


class AlarmSampler(Sampler):
    """Samples every span that says `uncertainty.escalated`, and leaves the others to `base`.

    An escalation inside a trace that was not sampled is kept with its estimate span; their parent is then missing in
    the backend, and the trace id still leads to the logs. For an application's own provider:
    `TracerProvider(sampler=AlarmSampler(ParentBased(TraceIdRatioBased(0.1))))`.
    """

    def __init__(self, base: Sampler) -> None:
        self._base = base

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Ask `base`, unless the span escalates."""
        if attributes is not None and attributes.get(ESCALATED) is True:
            parent = get_current_span(parent_context).get_span_context()
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, parent.trace_state)
        return self._base.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """The sampler's name in the SDK."""
        return f"AlarmSampler({self._base.get_description()})"


def keep_share(share: float) -> Sampler:
    """Keep this share of the traces, whole, and every escalation; a trace begun elsewhere is kept as it was there.

    Raises ConfigurationError unless the share is in [0, 1].
    """
    if not 0.0 <= share <= 1.0:
        raise ConfigurationError.of("sample", "GrampusTracer", "a share of the traces in [0, 1]", share)
    return AlarmSampler(ParentBased(TraceIdRatioBased(share)))
