"""Prometheus' alerts: when an operator should look, why, and what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from grampus_uq.errors import ConfigurationError
from grampus_uq.telemetry.dashboards.metric_names import prometheus_name

__all__ = ["Limits", "alert_rules"]

# Reasons that something is broken or overloaded; the others say that a model states or reports nothing, which is how
# it is, or that nothing was to be read.
_BROKEN: Final = "timeout|model_error|signal_error|rate_limited|invalid_value|parse_error"
_FEWEST_RUNS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where the alerts begin.

    `alpha` is the detector's, `watch_level` the calibration watch's; `failing_share` is the share of a service's
    sensed steps at which one signal breaks, `approvals_wait_min` in minutes, `monitor_usd_per_hour` in US dollars.
    """

    alpha: float = 0.05
    watch_level: float = 0.01
    failing_share: float = 0.2
    approvals_wait_min: int = 30
    monitor_usd_per_hour: float = 10.0

    def __post_init__(self) -> None:
        for name in ("alpha", "watch_level", "failing_share"):
            value = getattr(self, name)
            if not 0.0 < value < 1.0:
                raise ConfigurationError.of(name, "Limits", "in (0, 1)", value)
        if self.approvals_wait_min < 1:
            raise ConfigurationError.of("approvals_wait_min", "Limits", "at least 1", self.approvals_wait_min)
        if not 0.0 < self.monitor_usd_per_hour < math.inf:
            raise ConfigurationError.of("monitor_usd_per_hour", "Limits", "above 0", self.monitor_usd_per_hour)

    @property
    def watch_log_threshold(self) -> float:
        """Natural log of the watch's threshold, 1 / level."""
        return -math.log(self.watch_level)


def alert_rules(limits: Limits | None = None) -> dict[str, Any]:
    """The content of a Prometheus rule file, as plain values."""
    limits = limits or Limits()
    rules = [
        _alarm_rate(limits),
        _watch(limits),
        _signals(limits),
        _approvals(limits),
        _dropped(),
        _cost(limits),
    ]
    return {"groups": [{"name": "grampus_uq", "rules": rules}]}


def _rule(name: str, expr: str, wait: str, severity: str, summary: str, description: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expr,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": description},
    }


def _alarm_rate(limits: Limits) -> dict[str, Any]:
    """Alpha bounds the share of good runs that ring; three standard deviations of chance come on top."""
    alarms = f"sum by (job) (increase({prometheus_name('uncertainty.alarms')}[1d]))"
    runs = f"sum by (job) (increase({prometheus_name('uncertainty.sessions')}[1d]))"
    alpha, spread = f"{limits.alpha:g}", f"{9 * limits.alpha * (1 - limits.alpha):g}"
    return _rule(
        "GrampusAlarmsBeyondAlpha",
        f"{alarms} > {alpha} * {runs} + sqrt({spread} * {runs}) and {runs} >= {_FEWEST_RUNS}",
        "10m",
        "warning",
        "More runs of {{ $labels.job }} ring than the detector allows for.",
        f"{{{{ $value | humanize }}}} alarms in a day. A detector with alpha {alpha} rings on at most that share of "
        "the runs that go well: either more runs fail, or the calibration no longer fits. Compare with the calibration "
        "watch, and read some of the alarmed runs.",
    )


def _watch(limits: Limits) -> dict[str, Any]:
    watch = prometheus_name("uncertainty.calibration.watch")
    return _rule(
        "GrampusCalibrationWatchCrossed",
        f"max by (job, variant) (max_over_time({watch}[1h])) >= {limits.watch_log_threshold:.6g}",
        "0m",
        "critical",
        "The calibration of {{ $labels.job }} no longer holds ({{ $labels.variant }}).",
        f"While nothing has changed this happens with probability at most {limits.watch_level:g}, ever. The guarantee "
        "of the detector is void until it is fitted on recent, labelled runs.",
    )


def _signals(limits: Limits) -> dict[str, Any]:
    failures = prometheus_name("uncertainty.signal.failures") + f'{{reason=~"{_BROKEN}"}}'
    steps = prometheus_name("uncertainty.sensing.duration") + "_count"
    return _rule(
        "GrampusSignalFails",
        f"sum by (job, source) (rate({failures}[15m])) / on (job) group_left () sum by (job) (rate({steps}[15m]))"
        f" > {limits.failing_share:g}",
        "10m",
        "warning",
        "The signal {{ $labels.source }} of {{ $labels.job }} fails.",
        "It gives no reading at {{ $value | humanizePercentage }} of the sensed steps. Steps without evidence hold "
        "irreversible calls. `grampus-uq doctor` tries the model that is asked.",
    )


def _approvals(limits: Limits) -> dict[str, Any]:
    pending = prometheus_name("uncertainty.approvals.pending")
    return _rule(
        "GrampusApprovalsWait",
        f"max by (job) ({pending}) > 0",
        f"{limits.approvals_wait_min}m",
        "warning",
        "Approvals of {{ $labels.job }} have waited for long.",
        f"There was always one waiting for {limits.approvals_wait_min} minutes, {{{{ $value }}}} now, and agents stand "
        "still. `grampus-uq approvals list` shows them.",
    )


def _dropped() -> dict[str, Any]:
    dropped = prometheus_name("uncertainty.telemetry.dropped")
    return _rule(
        "GrampusTelemetryDropped",
        f"sum by (job, processor) (increase({dropped}[15m])) > 0",
        "0m",
        "warning",
        "{{ $labels.processor }} of {{ $labels.job }} drops telemetry.",
        "{{ $value | humanize }} events were dropped in 15 minutes: its backend is gone or too slow. Traces are "
        "incomplete; agents and recordings are not affected, and `grampus-uq export` can send the recordings later.",
    )


def _cost(limits: Limits) -> dict[str, Any]:
    cost = prometheus_name("uncertainty.monitor.cost")
    return _rule(
        "GrampusMonitorCost",
        f"sum by (job) (increase({cost}[1h])) > {limits.monitor_usd_per_hour:g}",
        "0m",
        "warning",
        "Monitoring {{ $labels.job }} costs more than planned.",
        "The monitor's own model calls cost {{ $value | humanize }} US dollars in an hour. Bound them with the budget "
        "of the profile or `max_overhead`.",
    )
