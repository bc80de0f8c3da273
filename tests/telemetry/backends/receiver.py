"""An OTLP receiver on loopback, by gRPC and by HTTP, that keeps the spans it is sent, or refuses them."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

grpc: Any = importlib.import_module("grpc")  # it comes without types, and so do the stubs
stubs: Any = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")


class Receiver:
    """What came: requests and headers. After `takes` requests it refuses: UNAUTHENTICATED, or HTTP 401."""

    def __init__(self, takes: int | None = None) -> None:
        self.takes = takes
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.endpoint = ""

    def refuses(self) -> bool:
        return self.takes is not None and len(self.requests) >= self.takes

    def Export(self, request: Any, context: Any) -> Any:
        if self.refuses():
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such key")
        self.requests.append(request)
        self.headers.append(dict(context.invocation_metadata()))
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [values(found.resource) for request in self.requests for found in request.resource_spans]

    def wire(self) -> bytes:
        return b"".join(request.SerializeToString() for request in self.requests)


def values(holder: Any) -> dict[str, Any]:
    """The attributes of a span, an event or a resource as plain values."""
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value"))
        for pair in holder.attributes
        if pair.value.WhichOneof("value") is not None
    }


@contextmanager
def by_grpc(takes: int | None = None) -> Iterator[Receiver]:
    """A receiver of OTLP by gRPC."""
    receiver = Receiver(takes)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    stubs.add_TraceServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


@contextmanager
def by_http(takes: int | None = None) -> Iterator[Receiver]:
    """A receiver of OTLP by HTTP."""
    receiver = Receiver(takes)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            refuses = receiver.refuses() or self.path != "/v1/traces"
            if not refuses:
                receiver.requests.append(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(401 if refuses else 200, "no such key" if refuses else None)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    receiver.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
