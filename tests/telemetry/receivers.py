"""Servers on loopback that telemetry is sent to: OTLP by gRPC and HTTP, and JSON over HTTP, behaving as told."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Received:
    """What arrived: decoded requests, by kind, and the headers and path of each; `endpoint` is where to send."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.traces: list[Any] = []
        self.metrics: list[Any] = []
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.n = 0

    def spans(self) -> list[tuple[Any, Any, Any]]:
        """(resource, scope, span) of every span."""
        return [
            (resource.resource, scope.scope, span)
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:
        self._received.traces.append(request)
        self._received.headers.append(dict(context.invocation_metadata()))
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:
        self._received.metrics.append(request)
        self._received.headers.append(dict(context.invocation_metadata()))
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextmanager
def otlp_grpc() -> Iterator[Received]:
    """A collector that speaks OTLP by gRPC."""
    received, server = Received(), grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(received), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(received), server)
    received.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(None).wait()


@contextmanager
def http(
    reply: Callable[[Received], tuple[int, dict[str, str], bytes]] = lambda _: (200, {}, b"{}"), delay_s: float = 0.0
) -> Iterator[Received]:
    """An HTTP server that keeps what it is posted (protobuf of OTLP, or JSON) and answers as `reply` says."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            time.sleep(delay_s)
            received.n += 1
            received.paths.append(self.path)
            received.headers.append({name.lower(): value for name, value in self.headers.items()})
            if self.path.endswith("/v1/traces"):
                received.traces.append(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            elif self.path.endswith("/v1/metrics"):
                received.metrics.append(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body))
            else:
                received.bodies.append(json.loads(body))
            status, headers, answer = reply(received)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    received.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
