"""The files that bring the dashboard up: a compose file with Jaeger, Prometheus, Grafana and a collector, and a README.

Only the alerts, the dashboard and Prometheus' configuration are run by our tests; the images are not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.telemetry.dashboards.alerts import Limits, alert_rules
from grampus_uq.telemetry.dashboards.grafana import UID, dashboard
from grampus_uq.telemetry.dashboards.panels import panels
from grampus_uq.telemetry.dashboards.yaml_text import yaml_text

__all__ = ["IMAGES", "stack_files", "write_stack"]

IMAGES: Final[Mapping[str, str]] = {
    "collector": "otel/opentelemetry-collector-contrib:0.135.0",
    "jaeger": "jaegertracing/jaeger:2.10.0",
    "prometheus": "prom/prometheus:v3.5.0",
    "grafana": "grafana/grafana:12.1.1",
}
_WRITTEN: Final = "Written by `grampus-uq dashboard`."


def stack_files(limits: Limits | None = None) -> dict[str, str]:
    """Every file, by its path below the folder."""
    limits = limits or Limits()
    shown = panels(alpha=limits.alpha, watch_log_threshold=limits.watch_log_threshold)
    return {
        "README.md": _README,
        "docker-compose.yml": yaml_text(_compose(), comment=_WRITTEN),
        "otel-collector.yml": yaml_text(_collector(), comment=_WRITTEN),
        "prometheus.yml": yaml_text(_prometheus(), comment=_WRITTEN),
        "alerts.yml": yaml_text(alert_rules(limits), comment=_WRITTEN),
        "grafana/dashboards/grampus-uq.json": json.dumps(dashboard(shown), indent=2) + "\n",
        "grafana/provisioning/datasources/grampus-uq.yml": yaml_text(_sources(), comment=_WRITTEN),
        "grafana/provisioning/dashboards/grampus-uq.yml": yaml_text(_provider(), comment=_WRITTEN),
    }


def write_stack(folder: str | os.PathLike[str], limits: Limits | None = None, *, replace: bool = False) -> list[Path]:
    """Write every file below the folder, and return their paths.

    Raises ConfigurationError, before anything is written, when one is there already with other content and `replace` is
    not set; DataError when one cannot be written.
    """
    files = {Path(folder) / name: text for name, text in stack_files(limits).items()}
    try:
        for path, text in files.items():
            if not replace and path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
                rule = "a folder without files of other content"
                raise ConfigurationError.of("folder", "write_stack", rule, str(path), "--force replaces them")
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}.", path=os.fspath(error.filename or folder)) from error
    return list(files)


def _compose() -> dict[str, Any]:
    """Ports are those of loopback only: none of these pages asks for a password worth the name."""

    def service(name: str, *ports: int, **more: Any) -> dict[str, Any]:
        published = {"ports": [f"127.0.0.1:{port}:{port}" for port in ports]} if ports else {}
        return {"image": IMAGES[name], "restart": "unless-stopped", **published, **more}

    return {
        "name": "grampus-uq",
        "services": {
            "collector": service(
                "collector",
                4317,
                4318,
                command=["--config=/etc/otel-collector.yml"],
                volumes=["./otel-collector.yml:/etc/otel-collector.yml:ro"],
                depends_on=["jaeger"],
            ),
            "jaeger": service("jaeger", 16686),
            "prometheus": service(
                "prometheus",
                9090,
                command=["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.retention.time=30d"],
                volumes=[
                    "./prometheus.yml:/etc/prometheus/prometheus.yml:ro",
                    "./alerts.yml:/etc/prometheus/alerts.yml:ro",
                    "prometheus-data:/prometheus",
                ],
            ),
            "grafana": service(
                "grafana",
                3000,
                environment={
                    "GF_AUTH_ANONYMOUS_ENABLED": "true",
                    "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
                    "GF_ANALYTICS_REPORTING_ENABLED": "false",
                    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
                    "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": "/var/lib/grafana/dashboards/grampus-uq.json",
                },
                volumes=[
                    "./grafana/provisioning:/etc/grafana/provisioning:ro",
                    "./grafana/dashboards:/var/lib/grafana/dashboards:ro",
                    "grafana-data:/var/lib/grafana",
                ],
                depends_on=["prometheus", "jaeger"],
            ),
        },
        "volumes": {"prometheus-data": {}, "grafana-data": {}},
    }


def _collector() -> dict[str, Any]:
    """Spans go on to Jaeger; metrics are held for Prometheus to scrape."""
    protocols = {"grpc": {"endpoint": "0.0.0.0:4317"}, "http": {"endpoint": "0.0.0.0:4318"}}
    return {
        "receivers": {"otlp": {"protocols": protocols}},
        "processors": {
            "memory_limiter": {"check_interval": "1s", "limit_mib": 512, "spike_limit_mib": 128},
            "batch": {},
        },
        "exporters": {
            "otlp/jaeger": {"endpoint": "jaeger:4317", "tls": {"insecure": True}},
            "prometheus": {"endpoint": "0.0.0.0:8889"},
        },
        "service": {
            "pipelines": {
                "traces": _pipeline("otlp/jaeger"),
                "metrics": _pipeline("prometheus"),
            }
        },
    }


def _pipeline(exporter: str) -> dict[str, list[str]]:
    return {"receivers": ["otlp"], "processors": ["memory_limiter", "batch"], "exporters": [exporter]}


def _prometheus() -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {
                "job_name": "collector",
                "honor_labels": True,  # `job` is then the service that sent the metrics, not the collector
                "static_configs": [{"targets": ["collector:8889"]}],
            }
        ],
    }


def _sources() -> dict[str, Any]:
    def source(name: str, kind: str, url: str, *, default: bool) -> dict[str, Any]:
        return {"name": name, "type": kind, "uid": kind, "access": "proxy", "url": url, "isDefault": default}

    prometheus = source("Prometheus", "prometheus", "http://prometheus:9090", default=True)
    prometheus["jsonData"] = {"timeInterval": "15s"}
    jaeger = source("Jaeger", "jaeger", "http://jaeger:16686", default=False)
    return {"apiVersion": 1, "datasources": [prometheus, jaeger]}


def _provider() -> dict[str, Any]:
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": UID,
                "type": "file",
                "allowUiUpdates": False,
                "options": {"path": "/var/lib/grafana/dashboards"},
            }
        ],
    }


_README: Final = """\
# Watching agents in Jaeger, Prometheus and Grafana

Three steps:

1. Start the four services (needs Docker with compose):

       docker compose up -d

2. Let your agent's monitor send to them:

       from grampus_uq import GrampusTracer, UncertaintyMonitor
       from grampus_uq.telemetry import GrampusMeters, MetricsProcessor

       tracer = GrampusTracer(service_name="my-agent", otlp_endpoint="http://localhost:4317")
       meters = GrampusMeters(service_name="my-agent", otlp_endpoint="http://localhost:4317")
       monitor = UncertaintyMonitor(tracer=tracer, processors=[MetricsProcessor(meters.provider)])

   or send runs that you recorded: `grampus-uq export runs --otlp http://localhost:4317`

3. Look: Grafana http://localhost:3000, traces in Jaeger http://localhost:16686 (search for the service, or for the tag
   `session_id`), alerts in Prometheus http://localhost:9090/alerts.

Everything listens on this machine only and keeps no password: before you open a port to others, put your own
authentication in front of it. Traces are kept in Jaeger's memory and are gone when it restarts; give it a storage for
more. Alerts are shown, not sent: add an Alertmanager to `prometheus.yml`, or load `alerts.yml` into your own
Prometheus. If you have Grafana and Prometheus already, import `grafana/dashboards/grampus-uq.json` and load
`alerts.yml`; nothing else here is needed.

To scrape an agent without a collector, give it `GrampusMeters(service_name=..., prometheus_port=9464)` and add its
address to `scrape_configs` of `prometheus.yml`. Do not do both for one agent: it would be counted twice.

What was run by the tests of the package: the alerts (checked and unit-tested), `prometheus.yml` (checked), and every
query of the dashboard against a real Prometheus. The images of the compose file were not run by them.
"""
