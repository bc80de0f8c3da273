"""Our own tracer: private, sends by OTLP over either protocol, and a dead endpoint costs the agent nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import grpc
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq import GrampusTracer, UncertaintyMonitor
from grampus_uq.errors import ConfigurationError


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector on loopback, by gRPC and by HTTP, that keeps what it is sent."""

    def __init__(self):
        self.requests = []
        self.headers = []

    def Export(self, request, context):
        self.requests.append(request)
        self.headers.append(dict(context.invocation_metadata()))
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self):
        return [
            (resource, span)
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def grpc_receiver():
    receiver = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield receiver
    server.stop(None).wait()


@pytest.fixture
def http_receiver():
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield receiver
    server.shutdown()
    server.server_close()


def watch(tracer):
    async def run():
        session = UncertaintyMonitor(tracer=tracer).session("s1", "a1")
        await session.observe_llm_response("Confidence: 10%", "l1")

    anyio.run(run)
    assert tracer.force_flush()


def check(receiver):
    assert {span.name for _, span in receiver.spans()} == {"uncertainty.estimate", "uncertainty.escalate"}
    for resource, span in receiver.spans():
        names = {item.key: item.value.string_value for item in resource.resource.attributes}
        assert (names["service.name"], names["team"]) == ("my-agent", "x")
        assert {item.key: item.value.string_value for item in span.attributes}["session_id"] == "s1"
        assert span.end_time_unix_nano >= span.start_time_unix_nano
    assert receiver.headers[0]["x-key"] == "k"


def test_spans_arrive_by_grpc(grpc_receiver):
    with GrampusTracer(
        service_name="my-agent",
        otlp_endpoint=grpc_receiver.endpoint,
        headers={"x-key": "k"},
        resource_attributes={"team": "x"},
    ) as tracer:
        watch(tracer)
    check(grpc_receiver)


@pytest.mark.parametrize(
    ("path", "protocol"), [("", "http/protobuf"), ("/", "http/protobuf"), ("/v1/traces", None), ("/v1/traces/", None)]
)
def test_spans_arrive_by_http(http_receiver, path, protocol):
    with GrampusTracer(
        service_name="my-agent",
        otlp_endpoint=http_receiver.endpoint + path,
        protocol=protocol,
        headers={"x-key": "k"},
        resource_attributes={"team": "x"},
    ) as tracer:
        watch(tracer)
    check(http_receiver)
    assert http_receiver.headers[0]["path"].rstrip("/") == "/v1/traces"


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [
        ("http://localhost:4317", "grpc"),
        ("localhost:4317", "grpc"),
        ("http://localhost:4318", "http"),
        ("http://localhost:4318/", "http"),
        ("https://collector.example/v1/traces", "http"),
    ],
)
def test_the_endpoint_says_which_protocol_it_speaks(endpoint, kind):
    from grampus_uq.telemetry.otlp_exporter import span_exporter

    exporter = span_exporter(endpoint, owner="GrampusTracer")
    try:
        assert f".proto.{kind}." in type(exporter).__module__
    finally:
        exporter.shutdown()


def test_an_unknown_protocol_is_refused():
    with pytest.raises(ConfigurationError, match="protocol"):
        GrampusTracer(service_name="x", otlp_endpoint="http://localhost:4317", protocol="carrier pigeon")


def test_an_exporter_or_a_processor_of_ones_own_takes_the_spans():
    exporter, other = InMemorySpanExporter(), InMemorySpanExporter()
    with GrampusTracer(service_name="x", exporter=exporter, span_processor=SimpleSpanProcessor(other)) as tracer:
        watch(tracer)
        assert len(exporter.get_finished_spans()) == len(other.get_finished_spans()) == 2


def test_leaving_the_block_sends_what_is_queued():
    exporter = InMemorySpanExporter()

    async def run():
        await UncertaintyMonitor(tracer=tracer).session("s").observe_llm_response("Confidence: 100%", "l")

    with GrampusTracer(service_name="x", exporter=exporter) as tracer:
        anyio.run(run)
    assert len(exporter.get_finished_spans()) == 1


@pytest.mark.timeout(60)
def test_a_dead_endpoint_does_not_hold_up_the_agent():
    """The step only queues its spans; nobody listens on the port."""
    tracer = GrampusTracer(service_name="x", otlp_endpoint="http://127.0.0.1:9/v1/traces")

    async def run():
        session = UncertaintyMonitor(tracer=tracer).session("s")
        for n in range(50):
            await session.observe_llm_response("Confidence: 100%", f"l{n}")
        return session.state.n_steps

    assert anyio.run(run) == 50
    threading.Thread(target=tracer.shutdown, daemon=True).start()


def test_no_global_tracer_provider_is_ever_set():
    program = """
        import anyio
        from opentelemetry import trace
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from grampus_uq import GrampusTracer, UncertaintyMonitor
        with GrampusTracer(service_name="x", exporter=InMemorySpanExporter()) as tracer:
            session = UncertaintyMonitor(tracer=tracer).session("s")
            anyio.run(session.observe_llm_response, "Confidence: 1%", "l")
        assert trace._TRACER_PROVIDER is None, trace._TRACER_PROVIDER
        assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)
    assert trace._TRACER_PROVIDER is None
