"""One recorded run as one trace: the agent's span, the spans that the monitor made or would have made, and its tools.

The monitor's spans come from the emitter that makes them live, so that both look alike. Their parent is a span of the
whole run, `invoke_agent <agent>`; between the release of a call and its result lies `execute_tool <tool>`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from grampus_uq.core.decision import CHAIN
from grampus_uq.errors import DataError
from grampus_uq.recording.runs import outcome_weight
from grampus_uq.records.events import (
    PERMIT,
    DecisionEvent,
    Event,
    ObservationEvent,
    OutcomeEvent,
    SessionStarted,
    StepEvent,
)
from grampus_uq.records.latest import Latest
from grampus_uq.telemetry.conventions import DECISION, RESUMED, RUN, TOOL
from grampus_uq.telemetry.export_sending import RecordedIds
from grampus_uq.telemetry.span_content import Redact, plain_name
from grampus_uq.telemetry.spans import SpanEmitter

_LATEST_NS: Final = 2**63 - 1  # what a backend can hold: the year 2262
_LARGEST: Final = 2**53  # sums of several still fit into 63 bits
_MOST_OPEN_CALLS: Final = 1024
_LET_RUN: Final = ("approve", "edit", "grant", PERMIT, CHAIN)


@dataclass(slots=True)
class _OpenCall:
    """A call without a result: released at `since_ns`, or not run when that is None."""

    name: str
    since_ns: int | None
    key: str


class RunAsSpans:
    """Turns the events of one run, one by one and in their order, into spans; `finish` ends the span of the run.

    It holds the run's open span and the calls without a result, not the events: a run may be as long as it likes.
    """

    def __init__(
        self,
        provider: TracerProvider,
        ids: RecordedIds,
        first: Event,
        began_ns: int,
        *,
        content: bool = False,
        redact: Redact | None = None,
    ) -> None:
        self._ids = ids
        self._tracer = provider.get_tracer("grampus_uq")
        self._emitter = SpanEmitter(self._tracer, content=content, redact=redact)
        self._counts: dict[str, int] = {}
        self._outcome_weight = 0
        self._open: Latest[str, _OpenCall] = Latest(_MOST_OPEN_CALLS)
        self.latest_ns = began_ns
        ids.begin_run(first.agent_id, first.session_id, began_ns)
        name = f"{RUN} {first.agent_id}" if first.agent_id else RUN
        self._root: Span = self._tracer.start_span(
            name, context=otel_context.Context(), start_time=began_ns, attributes=_run_attributes(first)
        )
        self._context = trace.set_span_in_context(self._root, otel_context.Context())

    def take(self, event: Event) -> None:
        """Make the spans of the next event."""
        time_ns = time_ns_of(event)
        if isinstance(event, StepEvent):
            self._step(event, time_ns)
        elif isinstance(event, ObservationEvent):
            self._observation(event, time_ns)
        elif isinstance(event, DecisionEvent):
            self._decision(event, time_ns)
        elif isinstance(event, OutcomeEvent):
            self._outcome(event)
            return  # a label of days later does not make the run longer
        elif isinstance(event, SessionStarted) and event.resumed:
            self._root.add_event(RESUMED, timestamp=time_ns)
        self.latest_ns = max(self.latest_ns, time_ns)

    def finish(self) -> None:
        """End the span of the run, at the time of its latest event."""
        self._root.end(self.latest_ns)

    def _emit(self, event: Event, kind: str) -> str:
        """Let the emitter make its spans of the event beneath the run's; returns the event's key."""
        number = self._counts[kind] = self._counts.get(kind, -1) + 1
        key = f"{kind} {number}"
        self._ids.begin_event(key)
        token = otel_context.attach(self._context)
        try:
            self._emitter.on_event(event)
        finally:
            otel_context.detach(token)
        return key

    def _step(self, event: StepEvent, ended_ns: int) -> None:
        key = self._emit(event, "step")
        if event.step.kind == "tool_call":
            since_ns = None if event.assessment.action.stops else ended_ns
            for call in event.step.tool_calls:
                self._open[call.id] = _OpenCall(call.name, since_ns, key)

    def _observation(self, event: ObservationEvent, time_ns: int) -> None:
        call = self._open.pop(event.call_id, None) if event.call_id is not None else None
        if call is None or call.since_ns is None:  # it was not run, whatever the model was given as its result
            return
        self._ids.begin_event(f"tool {call.key} {event.call_id}")
        name = plain_name(call.name, None)
        span = self._tracer.start_span(
            f"{TOOL} {name}",
            context=self._context,
            start_time=min(call.since_ns, time_ns),
            attributes={
                "gen_ai.operation.name": TOOL,
                "gen_ai.tool.name": name,
                "gen_ai.tool.call.id": plain_name(event.call_id or "", None),
                "gen_ai.conversation.id": event.session_id,
            },
        )
        if event.is_error:
            span.set_attribute("error.type", "tool_error")
            span.set_status(Status(StatusCode.ERROR))
        span.end(time_ns)

    def _decision(self, event: DecisionEvent, time_ns: int) -> None:
        attributes: dict[str, AttributeValue | None] = {
            "decision": event.decision,
            "principal": event.principal,
            "step_id": event.step_id,
            "gen_ai.tool.call.id": None if event.call_id is None else plain_name(event.call_id, None),
            "call_digest": event.call_digest,
            "acknowledged": None if event.acknowledged is None else event.acknowledged.value,
            "uncertainty.permit": event.message if event.decision == PERMIT else None,
        }
        known = {name: value for name, value in attributes.items() if value is not None}
        self._root.add_event(DECISION, known, time_ns)
        self._emit(event, "decision")
        if event.call_id is not None and (call := self._open.get(event.call_id)) is not None:
            call.since_ns = time_ns if event.decision in _LET_RUN else None

    def _outcome(self, event: OutcomeEvent) -> None:
        outcome = event.outcome
        if outcome_weight(outcome) < self._outcome_weight:
            return
        self._outcome_weight = outcome_weight(outcome)
        success = {True: "success", False: "failure", None: "unknown"}[outcome.success]
        self._root.set_attribute("uncertainty.outcome", success)
        self._root.set_attribute("uncertainty.stop_reason", outcome.stop_reason.value)
        if outcome.labelled_by is not None:
            self._root.set_attribute("uncertainty.labelled_by", outcome.labelled_by)


def _run_attributes(first: Event) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "gen_ai.operation.name": RUN,
        "gen_ai.conversation.id": first.session_id,
        "session_id": first.session_id,
        "agent_id": first.agent_id,
        "uncertainty.recorded": True,
    }
    if first.agent_id:
        found["gen_ai.agent.name"] = first.agent_id
    if isinstance(first, SessionStarted):
        found["uncertainty.advisory"] = first.advisory
        if first.model:
            found["gen_ai.request.model"] = first.model
        if first.profile_fingerprint is not None:
            found["uncertainty.profile"] = first.profile_fingerprint
    return found


def time_ns_of(event: Event) -> int:
    """The end of an event in nanoseconds since 1970; for a step imported without times, its `time_s`."""
    if isinstance(event, StepEvent):
        return max(event.started_ns, event.ended_ns) or _nanoseconds(event.step.time_s)
    return _nanoseconds(event.outcome.time_s if isinstance(event, OutcomeEvent) else event.time_s)


def _nanoseconds(time_s: float) -> int:
    return round(max(-1e12, min(time_s, 1e12)) * 1e9)  # what lies beyond is refused anyway, and would overflow here


def wrong_number(event: Event, path: str, line: int) -> DataError | None:
    """The error of the first number that does not fit into a span, by path, line and field; None when all fit."""
    numbers: dict[str, int] = {}
    if isinstance(event, StepEvent):
        times = {"started_ns": event.started_ns, "ended_ns": event.ended_ns}
        times["step.time_s"] = _nanoseconds(event.step.time_s)
        numbers = {f"assessment.{name}": getattr(event.assessment, name) for name in ("index", "samples_used")}
        for index, reading in enumerate(event.readings):
            times[f"readings.{index}.started_ns"] = reading.started_ns
            times[f"readings.{index}.duration_s"] = _nanoseconds(reading.duration_s)
            for name in ("calls", "input_tokens", "output_tokens", "samples"):
                numbers[f"readings.{index}.{name}"] = getattr(reading, name)
    else:
        times = {"outcome.time_s" if isinstance(event, OutcomeEvent) else "time_s": time_ns_of(event)}
    for found, rule, most in (
        (times, "a time from 1970 to 2262, in nanoseconds", _LATEST_NS),
        (numbers, "a count up to 2^53", _LARGEST),
    ):
        for field, number in found.items():
            if not 0 <= number <= most:
                return DataError(f"must be {rule}. Got {number}.", path=path, line=line, field=field)
    return None
