"""A Grafana dashboard, Prometheus alerts, and a compose file for both with Jaeger: built here, checked in beside it."""

from __future__ import annotations

from grampus_uq.telemetry.dashboards.alerts import Limits, alert_rules
from grampus_uq.telemetry.dashboards.grafana import dashboard
from grampus_uq.telemetry.dashboards.panels import PANELS, Panel
from grampus_uq.telemetry.dashboards.stack import stack_files, write_stack

__all__ = ["PANELS", "Limits", "Panel", "alert_rules", "dashboard", "stack_files", "write_stack"]
