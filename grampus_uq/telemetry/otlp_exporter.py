"""Builds the OTLP exporters: which protocol an endpoint speaks, and under which path it takes what."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from grampus_uq.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

_SIGNALS = ("traces", "metrics", "logs")


def otlp_exporter(endpoint: str, *, protocol: str | None = None, timeout_s: float = 10.0) -> SpanExporter:
    """An OTLP exporter of spans; headers, certificates and compression are those of OpenTelemetry's environment.

    `endpoint` is such as "http://localhost:4317" (gRPC) or "http://localhost:4318" (HTTP; "/v1/traces" is added where
    it is missing). `protocol` is "grpc" or "http"; None: HTTP for port 4318 and for a path that ends in "/v1/traces",
    else gRPC. `timeout_s` bounds one batch with all its repetitions. Raises ConfigurationError.
    """
    if protocol not in (None, "grpc", "http"):
        raise ConfigurationError.of("protocol", "otlp_exporter", "'grpc' or 'http'", protocol)
    address = endpoint if "://" in endpoint else f"http://{endpoint}"
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        sound = False
    if not sound:
        shown = endpoint.rpartition("@")[2]  # what stands before it is a password
        raise ConfigurationError.of("endpoint", "otlp_exporter", "an address such as http://localhost:4317", shown)
    spoken = "http/protobuf" if protocol == "http" else protocol
    return span_exporter(address, spoken, owner="otlp_exporter", timeout_s=timeout_s)


def span_exporter(
    endpoint: str,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    owner: str,
    timeout_s: float | None = None,
) -> SpanExporter:
    """An exporter of spans to the endpoint, by gRPC or by HTTP; `timeout_s` bounds a batch with its repetitions."""
    exporter: SpanExporter = _exporter("trace", "Span", endpoint, protocol, headers, owner, timeout_s)
    return exporter


def metric_exporter(
    endpoint: str, protocol: str | None = None, headers: Mapping[str, str] | None = None, *, owner: str
) -> MetricExporter:
    """An exporter of metrics to the endpoint, by gRPC or by HTTP."""
    exporter: MetricExporter = _exporter("metric", "Metric", endpoint, protocol, headers, owner, None)
    return exporter


def _exporter(
    signal: Literal["trace", "metric"],
    kind: str,
    endpoint: str,
    protocol: str | None,
    headers: Mapping[str, str] | None,
    owner: str,
    timeout_s: float | None,
) -> Any:
    if protocol not in (None, "grpc", "http/protobuf"):
        raise ConfigurationError.of("protocol", owner, "'grpc' or 'http/protobuf'", protocol)
    by_path = any(f"/v1/{other}" in endpoint for other in _SIGNALS)
    by_http = protocol == "http/protobuf" or (protocol is None and (by_path or endpoint.rstrip("/").endswith(":4318")))
    spoken = "http" if by_http else "grpc"
    module = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{spoken}.{signal}_exporter")
    make = getattr(module, f"OTLP{kind}Exporter")
    if by_http:
        base = endpoint.rstrip("/")
        for other in _SIGNALS:
            base = base.removesuffix(f"/v1/{other}")
        return make(endpoint=f"{base}/v1/{signal}s", headers=dict(headers or {}), timeout=timeout_s)
    insecure = not endpoint.startswith("https://")
    return make(endpoint=endpoint, insecure=insecure, headers=tuple((headers or {}).items()), timeout=timeout_s)
