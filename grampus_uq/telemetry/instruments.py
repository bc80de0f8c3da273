"""Every metric that this package exports: its name, kind, unit, labels and buckets, in one table.

`grampus_uq.telemetry.metrics` makes its instruments from this table, the dashboards query it, and a test holds the
table of docs/telemetry.md against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

METER_NAME: Final = "grampus_uq"

_CONFIDENCE: Final = tuple(n / 20 for n in range(1, 21))
_RISK: Final = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 50.0)
# Natural logs: 2.3 is M_t = 10, 3.0 is 1/alpha for alpha 0.05, 4.6 for 0.01, 6.9 for 0.001.
_LOG_M: Final = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.3, 2.6, 3.0, 3.5, 4.0, 4.6, 5.3, 6.0, 6.9, 8.0, 10.0, 15.0, 20.0)
_SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One metric: `kind` is "histogram", "counter", "observable_counter" or "observable_gauge".

    `labels` are the attributes of its points, beside `agent_id` where that is allowed; `buckets` are upper bounds.
    """

    name: str
    kind: str
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _histogram(name: str, unit: str, description: str, buckets: tuple[float, ...]) -> Instrument:
    return Instrument(name=name, kind="histogram", unit=unit, description=description, buckets=buckets)


def _without_buckets(kind: str, name: str, unit: str, description: str, *labels: str) -> Instrument:
    return Instrument(name=name, kind=kind, unit=unit, description=description, labels=labels)


_counter = partial(_without_buckets, "counter")
_observed_counter = partial(_without_buckets, "observable_counter")
_gauge = partial(_without_buckets, "observable_gauge")

_ALL: Final = (
    _histogram(
        "uncertainty.confidence.fused", "1", "Fused confidence of a step, where anything was read.", _CONFIDENCE
    ),
    _histogram(
        "uncertainty.confidence.propagated", "1", "Confidence in the run after a step; decides its level.", _CONFIDENCE
    ),
    _histogram(
        "uncertainty.p_success", "1", "Calibrated probability that the run succeeds, where it is fitted.", _CONFIDENCE
    ),
    _histogram("uncertainty.trajectory_risk", "1", "TRACER's risk of the run so far; higher is worse.", _RISK),
    _histogram(
        "uncertainty.detector.log_m",
        "1",
        "Natural log of the detector's evidence of failure; 0 stands for none, and for evidence of success.",
        _LOG_M,
    ),
    _counter("uncertainty.sessions", "{session}", "Runs begun; one that is taken up again is not counted again."),
    _counter("uncertainty.actions", "{step}", "Steps by the action taken.", "action", "step_type"),
    _counter(
        "uncertainty.escalations",
        "{escalation}",
        "Steps at level HIGH or CRITICAL, or whose action stops the run.",
        "level",
        "rule",
    ),
    _counter("uncertainty.alarms", "{alarm}", "Alarms of a fitted detector, each counted when it begins.", "mode"),
    _counter("uncertainty.signal.failures", "{reading}", "Wanted readings without a value.", "source", "reason"),
    _counter("uncertainty.monitor.calls", "{call}", "Model calls of the monitor's own."),
    _counter("uncertainty.monitor.tokens", "{token}", "Tokens of the monitor's own model calls."),
    _counter("uncertainty.monitor.cost", "USD", "Known cost of the monitor's own model calls."),
    _histogram(
        "uncertainty.sensing.duration", "s", "From a step to its assessment, where something was read.", _SECONDS
    ),
    _observed_counter(
        "uncertainty.telemetry.dropped", "{event}", "Events that a processor could not keep.", "processor"
    ),
    _gauge("uncertainty.approvals.pending", "{approval}", "Approvals that wait for a human."),
    # not "1": the collector's Prometheus exporter would call it a ratio
    _gauge(
        "uncertainty.calibration.watch",
        "{nat}",
        "Natural log of the martingale that watches the calibration; it alarms at its threshold.",
        "variant",
    ),
)

INSTRUMENTS: Final = {instrument.name: instrument for instrument in _ALL}
"""The table by name."""
