"""A meter provider of our own: OTLP, and a page on loopback that Prometheus scrapes; never the global one."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from grampus_uq.errors import ConfigurationError, MissingDependencyError
from grampus_uq.records.configuration import checked
from grampus_uq.telemetry.flushing import within
from grampus_uq.telemetry.otlp_exporter import metric_exporter


@checked
class GrampusMeters:
    """A private meter provider, as `provider`, for `MetricsProcessor(meters.provider)`.

    `otlp_endpoint` such as "http://localhost:4317" (gRPC) or "http://localhost:4318" (HTTP, by `protocol` or by its
    port or path) is sent the metrics every `interval_s`. `prometheus_port` serves them at
    http://127.0.0.1:PORT/metrics for Prometheus to scrape (0: any free port, see `prometheus`); another
    `prometheus_host` than loopback shows them to whoever reaches it: the page has no password. `readers` takes any
    OpenTelemetry metric reader instead or as well.

    Everything happens on threads of its own; a dead endpoint costs the agent nothing. `shutdown` sends what is there.
    """

    def __init__(
        self,
        *,
        service_name: str,
        otlp_endpoint: str | None = None,
        protocol: str | None = None,
        headers: Mapping[str, str] | None = None,
        interval_s: float = 15.0,
        prometheus_port: int | None = None,
        prometheus_host: str = "127.0.0.1",
        readers: Sequence[MetricReader] = (),
        resource_attributes: Mapping[str, Any] | None = None,
    ) -> None:
        owner = type(self).__name__
        if not 0.0 < interval_s < float("inf"):
            raise ConfigurationError.of("interval_s", owner, "above 0 seconds", interval_s)
        self._pushing = list(readers)  # a page is pulled from: flushing it would show everything twice
        if otlp_endpoint is not None:
            exporter = metric_exporter(otlp_endpoint, protocol, headers, owner=owner)
            self._pushing.append(
                PeriodicExportingMetricReader(
                    exporter, export_interval_millis=interval_s * 1000.0, export_timeout_millis=interval_s * 1000.0
                )
            )
        self.prometheus: PrometheusPage | None = None
        if prometheus_port is not None:
            self.prometheus = PrometheusPage(prometheus_port, host=prometheus_host)
        resource = Resource.create({"service.name": service_name, **dict(resource_attributes or {})})
        pulled = [] if self.prometheus is None else [self.prometheus.reader]
        self.provider = MeterProvider(metric_readers=[*self._pushing, *pulled], resource=resource)

    def force_flush(self, timeout_s: float = 10.0) -> bool:
        """Send what is there; False when the deadline passed first. Blocks: call it off the event loop."""
        return within(timeout_s, self._flush)

    def _flush(self) -> bool:
        for reader in self._pushing:
            reader.force_flush()
        return True

    def shutdown(self, timeout_s: float = 10.0) -> bool:
        """Send what is there and stop; False when the deadline passed first. Blocks: call it off the event loop."""
        in_time = within(timeout_s, lambda: self.provider.shutdown(timeout_s * 1000.0))
        if self.prometheus is not None:
            self.prometheus.close()
        return in_time

    def __enter__(self) -> GrampusMeters:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class PrometheusPage:
    """An HTTP server on a thread of its own that serves the metrics of its `reader` at /metrics.

    Its registry is its own: what the application registers with `prometheus_client` is neither shown nor changed.

    Raises MissingDependencyError without the extra "prometheus", OSError when the port is taken.
    """

    def __init__(self, port: int = 0, *, host: str = "127.0.0.1") -> None:
        with MissingDependencyError.unless("opentelemetry-exporter-prometheus", "prometheus", "Prometheus' page"):
            from opentelemetry.exporter.prometheus import PrometheusMetricReader
            from prometheus_client import CollectorRegistry, start_http_server
        registry = CollectorRegistry()
        self.reader: MetricReader = PrometheusMetricReader(registry=registry)
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.host, self.port = host, int(self._server.server_port)
        self._closing = threading.Lock()

    @property
    def url(self) -> str:
        """The address that Prometheus scrapes."""
        return f"http://{self.host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving and free the port; may be called again."""
        with self._closing:
            if self._thread.is_alive():
                self._server.shutdown()
                self._thread.join()
                self._server.server_close()
