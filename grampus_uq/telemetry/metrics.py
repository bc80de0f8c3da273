"""Turns events into metrics: distributions of confidence, actions, escalations, alarms, failures, the monitor's cost.

Metrics are for many runs together: no session id, no step id and no tool name ever becomes a label, and every label
that comes from outside is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from grampus_uq.records.configuration import checked
from grampus_uq.records.events import DecisionEvent, Event, OutcomeEvent, SessionStarted, StepEvent
from grampus_uq.records.latest import Latest
from grampus_uq.records.values import StepUncertainty
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.stats.eprocess_thresholds import Mode
from grampus_uq.telemetry.evaluations import WORDS, escalates, fused_of
from grampus_uq.telemetry.instruments import INSTRUMENTS, METER_NAME
from grampus_uq.telemetry.metric_labels import OTHER, BoundedLabel
from grampus_uq.telemetry.span_attributes import Attributes

_KINDS: Final = ("llm_call", "tool_call", "decision", "memory_read")
_RULES: Final = (
    "tier",
    "acknowledged",
    "irreversible_override",
    "missing_evidence",
    "worst_so_far",
    "call_evidence",
    "detector",
    "release",
    "always_ask",
)
_MOST_RINGING: Final = 4096
_ROOM: Final = 16  # values of a label beyond the known ones: an application's own step kinds, signals, rules
_NOT_WANTED: Final = frozenset({MissingReason.NOT_NEEDED.value, MissingReason.NOTHING_TO_JUDGE.value})


class WatchReading(Protocol):
    """The reading of a calibration watch."""

    @property
    def log_martingale(self) -> float:
        """Natural log of the martingale now."""
        ...


class Dropping(Protocol):
    """A processor that counts what it could not keep."""

    @property
    def dropped(self) -> int:
        """The number so far; never falls."""
        ...


@checked
class MetricsProcessor:
    """A `Processor` that records the metrics of `grampus_uq.telemetry.instruments` on a meter provider.

    `meter_provider` takes any: the application's, or one of `grampus_uq.telemetry.meters`; without one it is whatever
    provider the application sets globally, before or after. It is never replaced. One processor serves any number of
    monitors; give a provider only one, because an observable metric is observed once.

    `agent_ids` are the agents that get a label of their own, `agent_id`; all others are "other". Without any, no metric
    has that label. `pending_approvals` returns how many approvals wait (None while that is not known), and
    `calibration_watch` the watches by variant; both are called on the exporting thread. `dropping` are processors whose
    drops are exported, by class name.

    Recording a step takes some tens of microseconds and never blocks: exporting is the provider's.
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        *,
        agent_ids: Collection[str] = (),
        pending_approvals: Callable[[], int | None] | None = None,
        calibration_watch: Callable[[], Mapping[str, WatchReading]] | None = None,
        dropping: Sequence[Dropping] = (),
    ) -> None:
        meter = (meter_provider or metrics.get_meter_provider()).get_meter(METER_NAME)
        self._pending, self._watch, self._dropping = pending_approvals, calibration_watch, tuple(dropping)
        observed = {
            "uncertainty.telemetry.dropped": self._dropped if dropping else None,
            "uncertainty.approvals.pending": self._waiting if pending_approvals else None,
            "uncertainty.calibration.watch": self._watched if calibration_watch else None,
        }
        self._made: dict[str, Any] = {}
        for name, instrument in INSTRUMENTS.items():
            about: dict[str, Any] = {"unit": instrument.unit, "description": instrument.description}
            if instrument.kind == "histogram":
                about["explicit_bucket_boundaries_advisory"] = instrument.buckets
            elif name in observed:
                if observed[name] is None:
                    continue
                about["callbacks"] = [observed[name]]
            self._made[name] = getattr(meter, f"create_{instrument.kind}")(name, **about)
        self._agent = BoundedLabel(agent_ids) if agent_ids else None
        self._kind = BoundedLabel(_KINDS, limit=len(_KINDS) + _ROOM)
        self._rule = BoundedLabel(_RULES, limit=len(_RULES) + _ROOM)
        self._source = BoundedLabel(UncertaintySource, limit=len(UncertaintySource) + _ROOM)
        self._reason = BoundedLabel(MissingReason)
        self._mode = BoundedLabel(Mode, limit=len(Mode) + _ROOM)
        self._variant = BoundedLabel(limit=_ROOM)
        self._ringing: Latest[str, None] = Latest(_MOST_RINGING)
        self._lock = threading.Lock()
        self._begin_at_zero(agent_ids)

    def _begin_at_zero(self, agent_ids: Collection[str]) -> None:
        """Show rare counters before they first count: Prometheus takes a series that begins at 1 for no increase."""
        commons: list[Attributes] = [{"agent_id": agent} for agent in (*agent_ids, OTHER)] if agent_ids else [{}]
        for common in commons:
            self._made["uncertainty.sessions"].add(0, common)
            for mode in Mode:
                self._made["uncertainty.alarms"].add(0, {**common, "mode": mode.value})

    def on_event(self, event: Event) -> None:
        """Record a step or a beginning; follow sessions only as far as an alarm must be counted once."""
        if isinstance(event, StepEvent):
            self._step(event)
            return
        began = isinstance(event, SessionStarted) and not event.resumed
        if began:
            common: Attributes = {} if self._agent is None else {"agent_id": self._agent(event.agent_id)}
            self._made["uncertainty.sessions"].add(1, common)
        if (
            began
            or isinstance(event, OutcomeEvent)
            or (isinstance(event, DecisionEvent) and (event.alarm_answered or event.alarm_rearmed))
        ):
            with self._lock:
                self._ringing.pop(event.session_id, None)

    def _step(self, event: StepEvent) -> None:
        step, made = event.assessment, self._made
        common: Attributes = {} if self._agent is None else {"agent_id": self._agent(event.agent_id)}
        fused = fused_of(step)
        if fused is not None:
            made["uncertainty.confidence.fused"].record(fused, common)
        made["uncertainty.confidence.propagated"].record(step.propagated_confidence, common)
        if step.p_success is not None:
            made["uncertainty.p_success"].record(step.p_success, common)
        if step.trajectory_risk is not None:
            made["uncertainty.trajectory_risk"].record(step.trajectory_risk, common)
        if step.log_e_value is not None:  # a histogram takes no negative number: evidence of success is none of failure
            made["uncertainty.detector.log_m"].record(max(0.0, step.log_e_value), common)
        kind = self._kind(step.step_type)
        made["uncertainty.actions"].add(1, {**common, "action": WORDS[step.action], "step_type": kind})
        if escalates(step):
            made["uncertainty.escalations"].add(
                1, {**common, "level": WORDS[step.level], "rule": self._rule(step.rule)}
            )
        if step.rule == "detector":
            self._alarm(event.session_id, step, common)
        if event.readings:
            duration_s = max(0, event.ended_ns - event.started_ns) / 1e9
            made["uncertainty.sensing.duration"].record(duration_s, common)
            self._readings(event, common)

    def _alarm(self, session_id: str, step: StepUncertainty, common: Attributes) -> None:
        """Count an alarm when it begins. It rings at every step until it is answered or the run ends."""
        with self._lock:
            began = session_id not in self._ringing
            self._ringing[session_id] = None
        if began:
            self._made["uncertainty.alarms"].add(1, {**common, "mode": self._mode(step.alarm_mode or "unknown")})

    def _readings(self, event: StepEvent, common: Attributes) -> None:
        calls = tokens = 0
        cost_usd = 0.0
        for reading in event.readings:
            if reading.value is None and reading.reason not in _NOT_WANTED:
                labels = {"source": self._source(reading.source), "reason": self._reason(reading.reason or "")}
                self._made["uncertainty.signal.failures"].add(1, {**common, **labels})
            calls += reading.calls
            tokens += reading.input_tokens + reading.output_tokens
            cost_usd += reading.cost_usd or 0.0
        for name, amount in (("calls", calls), ("tokens", tokens), ("cost", cost_usd)):
            if amount:
                self._made[f"uncertainty.monitor.{name}"].add(amount, common)

    # -- observed when the provider exports; what these raise is logged by the SDK and leaves the metric out --------

    def _waiting(self, _: CallbackOptions) -> Iterable[Observation]:
        waiting = None if self._pending is None else self._pending()
        return [] if waiting is None else [Observation(waiting)]

    def _watched(self, _: CallbackOptions) -> Iterable[Observation]:
        found = {} if self._watch is None else self._watch()
        return [
            Observation(watch.log_martingale, {"variant": self._variant(variant)}) for variant, watch in found.items()
        ]

    def _dropped(self, _: CallbackOptions) -> Iterable[Observation]:
        sums: dict[str, int] = {}
        for processor in self._dropping:
            name = type(processor).__name__
            sums[name] = sums.get(name, 0) + processor.dropped
        return [Observation(count, {"processor": name}) for name, count in sums.items()]
