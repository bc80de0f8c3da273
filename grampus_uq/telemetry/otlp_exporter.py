"""Builds the OTLP exporters: which protocol an endpoint speaks, and under which path it takes what."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.configuration import web_address

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

_PATHS = ("/v1/traces", "/v1/metrics", "/v1/logs")


def span_exporter(
    endpoint: str,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    owner: str = "span_exporter",
    timeout_s: float | None = None,
) -> SpanExporter:
    """An OTLP exporter of spans; other headers, certificates and compression are those of OpenTelemetry's environment.

    `endpoint` is such as "http://localhost:4317" (gRPC) or "http://localhost:4318" (HTTP; "/v1/traces" is added where
    it is missing). `protocol` is "grpc" or "http" ("http/protobuf" is the same); None: HTTP for port 4318 and for a
    path such as "/v1/traces", else gRPC. `timeout_s` bounds one batch with all its repetitions. Raises
    ConfigurationError.
    """
    exporter: SpanExporter = _exporter("trace", "Span", endpoint, protocol, headers, owner, timeout_s)
    return exporter


def metric_exporter(
    endpoint: str, protocol: str | None = None, headers: Mapping[str, str] | None = None, *, owner: str
) -> MetricExporter:
    """An OTLP exporter of metrics; as `span_exporter`."""
    exporter: MetricExporter = _exporter("metric", "Metric", endpoint, protocol, headers, owner, None)
    return exporter


def _exporter(
    signal: str,
    kind: str,
    endpoint: str,
    protocol: str | None,
    headers: Mapping[str, str] | None,
    owner: str,
    timeout_s: float | None,
) -> Any:
    if protocol not in (None, "grpc", "http", "http/protobuf"):
        raise ConfigurationError.of("protocol", owner, "'grpc' or 'http'", protocol)
    base = endpoint if "://" in endpoint else f"http://{endpoint}"
    web_address(base, "endpoint", owner, "http://localhost:4317")
    by_path = any(path in base for path in _PATHS)
    if protocol == "grpc" or (protocol is None and not by_path and not base.rstrip("/").endswith(":4318")):
        given: dict[str, Any] = {"insecure": not base.startswith("https://"), "headers": tuple((headers or {}).items())}
        spoken = "grpc"
    else:
        base = base.rstrip("/")
        for path in _PATHS:
            base = base.removesuffix(path)
        base, given, spoken = f"{base}/v1/{signal}s", {"headers": dict(headers or {})}, "http"
    module = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{spoken}.{signal}_exporter")
    return getattr(module, f"OTLP{kind}Exporter")(endpoint=base, timeout=timeout_s, **given)
