"""The panels and the alerts of the dashboard as plain values, and what Prometheus calls our metrics."""

from __future__ import annotations

import importlib
import json
from typing import Any, Final

from grampus_uq.telemetry.dashboards import stack_files
from grampus_uq.telemetry.instruments import INSTRUMENTS

_yaml: Any = importlib.import_module("yaml")  # it comes without types
_UNITS: Final = {"1": "", "s": "_seconds"}  # a unit in braces is left out, any other is appended as it is


def panels() -> list[dict[str, Any]]:
    """Every panel of the dashboard with the default limits."""
    found: list[dict[str, Any]] = json.loads(stack_files()["grafana/dashboards/grampus-uq.json"])["panels"]
    return found


def alert_rules() -> list[dict[str, Any]]:
    """Every rule of the one group of alerts."""
    (group,) = _yaml.safe_load(stack_files()["alerts.yml"])["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def prometheus_name(name: str) -> str:
    """The Prometheus name of one of our instruments; of a histogram the stem, without `_bucket`, `_count` or `_sum`.

    Both the exporter for Python and the collector's make these names. (They differ on a gauge of unit "1", to which
    only the collector appends "_ratio": no gauge of ours has it.)
    """
    instrument = INSTRUMENTS[name]
    unit = "" if instrument.unit.startswith("{") else _UNITS.get(instrument.unit, f"_{instrument.unit}")
    total = "_total" if instrument.kind.endswith("counter") else ""
    return name.replace(".", "_") + unit + total
