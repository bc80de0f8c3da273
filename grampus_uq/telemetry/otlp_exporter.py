"""Builds the OTLP exporters: which protocol an endpoint speaks, and under which path it takes what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from grampus_uq.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["metric_exporter", "span_exporter"]

_SIGNALS = ("traces", "metrics", "logs")


def span_exporter(
    endpoint: str,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    owner: str,
    timeout_s: float | None = None,
) -> SpanExporter:
    """An exporter of spans to the endpoint, by gRPC or by HTTP; `timeout_s` bounds a batch with its repetitions."""
    if _speaks(endpoint, protocol, owner) == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(
            endpoint=endpoint,
            insecure=not endpoint.startswith("https://"),
            headers=tuple((headers or {}).items()),
            timeout=timeout_s,
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=_with_path(endpoint, "traces"), headers=dict(headers or {}), timeout=timeout_s)


def metric_exporter(
    endpoint: str, protocol: str | None = None, headers: Mapping[str, str] | None = None, *, owner: str
) -> MetricExporter:
    """An exporter of metrics to the endpoint, by gRPC or by HTTP."""
    if _speaks(endpoint, protocol, owner) == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        return GrpcExporter(
            endpoint=endpoint, insecure=not endpoint.startswith("https://"), headers=tuple((headers or {}).items())
        )
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

    return HttpExporter(endpoint=_with_path(endpoint, "metrics"), headers=dict(headers or {}))


def _speaks(endpoint: str, protocol: str | None, owner: str) -> str:
    if protocol not in (None, "grpc", "http/protobuf"):
        raise ConfigurationError.of("protocol", owner, "'grpc' or 'http/protobuf'", protocol)
    if protocol is not None:
        return protocol
    by_path = any(f"/v1/{signal}" in endpoint for signal in _SIGNALS)
    return "http/protobuf" if by_path or endpoint.rstrip("/").endswith(":4318") else "grpc"


def _with_path(endpoint: str, signal: Literal["traces", "metrics"]) -> str:
    base = endpoint.rstrip("/")
    for other in _SIGNALS:
        base = base.removesuffix(f"/v1/{other}")
    return f"{base}/v1/{signal}"
