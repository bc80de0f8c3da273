"""What Prometheus calls our metrics: the names that its exporters make of OpenTelemetry's name, kind and unit."""

from __future__ import annotations

from typing import Final

from grampus_uq.telemetry.instruments import INSTRUMENTS

__all__ = ["prometheus_name"]

_UNITS: Final = {"1": "", "s": "_seconds"}  # a unit in braces is left out, any other is appended as it is


def prometheus_name(name: str) -> str:
    """The Prometheus name of one of our instruments; of a histogram the stem, without `_bucket`, `_count` or `_sum`.

    Both the exporter for Python and the collector's make these names. (They differ on a gauge of unit "1", to which
    only the collector appends "_ratio": no gauge of ours has it.)

    >>> prometheus_name("uncertainty.sensing.duration"), prometheus_name("uncertainty.monitor.cost")
    ('uncertainty_sensing_duration_seconds', 'uncertainty_monitor_cost_USD_total')
    """
    instrument = INSTRUMENTS[name]
    unit = "" if instrument.unit.startswith("{") else _UNITS.get(instrument.unit, f"_{instrument.unit}")
    total = "_total" if instrument.kind.endswith("counter") else ""
    return name.replace(".", "_") + unit + total
