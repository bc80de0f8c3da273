"""The dashboard as Grafana's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from grampus_uq.telemetry.dashboards.metric_names import prometheus_name
from grampus_uq.telemetry.dashboards.panels import PANELS, Panel

__all__ = ["UID", "dashboard"]

UID: Final = "grampus-uq"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_HEIGHTS: Final = {"stat": 4, "timeseries": 8, "heatmap": 8}


_HEATMAP: Final[dict[str, Any]] = {
    "calculate": False,
    "cellGap": 1,
    "color": {"exponent": 0.5, "fill": "dark-blue", "mode": "scheme", "reverse": False, "scheme": "Blues", "steps": 32},
    "exemplars": {"color": "rgba(255,0,255,0.7)"},
    "filterValues": {"le": 1e-09},
    "legend": {"show": True},
    "showValue": "never",
    "tooltip": {"show": True},
    "yAxis": {"max": "1", "min": "0"},
}
_OF_EVERY_VARIABLE: Final = {  # Grafana's model has them on all kinds
    "auto": False,
    "auto_count": 30,
    "auto_min": "10s",
    "hide": 0,
    "id": "00000000-0000-0000-0000-000000000000",
    "regex": "",
    "skipUrlSync": False,
}


def dashboard(shown: Sequence[Panel] = PANELS) -> dict[str, Any]:
    """The JSON model that Grafana imports or is provisioned with; `shown` are its panels, placed left to right."""
    return {
        "annotations": {},
        "description": "What grampus_uq sees of the agents that it watches.",
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "panels": _placed(shown),
        "refresh": "30s",
        "schemaVersion": 36,
        "style": "dark",
        "tags": ["grampus_uq", "agents"],
        "templating": {"list": _variables()},
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "title": "Agents under uncertainty",
        "uid": UID,
    }


def _placed(shown: Sequence[Panel]) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    x = y = tallest = 0
    for number, panel in enumerate(shown, start=1):
        height = _HEIGHTS[panel.kind]
        if x + panel.width > _COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        placed.append(_panel(number, panel, {"h": height, "w": panel.width, "x": x, "y": y}))
        x, tallest = x + panel.width, max(tallest, height)
    return placed


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "datasource": _SOURCE,
        "description": panel.tells,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "gridPos": place,
        "id": number,
        "options": _options(panel),
        "repeatDirection": "h",
        "targets": [_target(index, panel) for index in range(len(panel.queries))],
        "title": panel.title,
        "transformations": [],
        "transparent": False,
        "type": panel.kind,
    }


def _target(index: int, panel: Panel) -> dict[str, Any]:
    query = panel.queries[index]
    return {
        "datasource": _SOURCE,
        "expr": query.expr,
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "instant": panel.kind == "stat",
        "legendFormat": query.legend or "__auto",
        "range": panel.kind != "stat",
        "refId": chr(ord("A") + index),
    }


def _field(panel: Panel) -> dict[str, Any]:
    field: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "heatmap":
        field["custom"] = {}
    if panel.kind == "timeseries":
        field["min"] = 0
        field["custom"] = {
            "fillOpacity": 30 if panel.stacked else 0,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "off" if panel.limit is None else "line"},
        }
    if panel.most is not None:
        field["max"] = panel.most
    if panel.limit is not None:
        steps = [{"value": None, "color": "green"}, {"value": panel.limit, "color": "red"}]
        field["thresholds"] = {"mode": "absolute", "steps": steps}
    return field


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        layout = {"justifyMode": "auto", "orientation": "auto", "textMode": "auto"}
        return {"colorMode": "value", "graphMode": "none", "reduceOptions": reduced, **layout}
    if panel.kind == "heatmap":
        return _HEATMAP
    legend = {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _variables() -> list[dict[str, Any]]:
    sessions = prometheus_name("uncertainty.sessions")
    source = {
        **_OF_EVERY_VARIABLE,
        "includeAll": False,
        "label": "Data source",
        "multi": False,
        "name": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "type": "datasource",
    }
    return [source, _variable("job", "Service", sessions), _variable("agent", "Agent", sessions, label="agent_id")]


def _variable(name: str, shown: str, metric: str, *, label: str | None = None) -> dict[str, Any]:
    """A choice of one label's values; "All" also takes series that lack the label."""
    return {
        **_OF_EVERY_VARIABLE,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": _SOURCE,
        "includeAll": True,
        "label": shown,
        "multi": True,
        "name": name,
        "query": f"label_values({metric}, {label or name})",
        "refresh": 2,
        "sort": 1,
        "type": "query",
    }
