"""What a sick telemetry backend costs the agent: p95 of a step's latency, drops at saturation, memory.

An agent's steps take 50 ms each (they wait for a model), several sessions side by side on one event loop, while a
background task makes the load up to `--rate` spans a second on the same tracer. Latency is what the agent sees: from
the moment its model answered to the assessment, on top of the 50 ms. Each endpoint takes turns with none at all
("none": spans are made and go nowhere), several rounds, because the machine's own noise is larger than what is
measured; `p95_ratio` is the median over rounds of (p95 of the whole step with the endpoint / p95 in the same round
with none).

Endpoints: `none`; `healthy` (OTLP over HTTP on loopback); `dead` (nobody listens); `slow` (answers after 5 s);
`refusing` (HTTP 400); `flapping` (503 every other second); `raising` (an exporter that raises); `grpc_dead`.

A second part saturates the queue with an exporter that never returns: `saturated_spans` were put in, `dropped` were
counted, `waiting` is the queue, `rss_growth_mb` what the process grew by while ten queues' worth of spans came in
after the queue was full.

    python -m tests.benchmarks.telemetry [--rounds 5] [--seconds 6] [--rate 1000] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from rich.progress import track

from grampus_uq import GrampusTracer, UncertaintyMonitor
from tests.benchmarks._report import emit

TEXT = 'The capital of France is Paris. {"answer": "Paris", "confidence": 0.97}'
STEP_S = 0.05
SESSIONS = 8
_SPAWN = multiprocessing.get_context("spawn")


class Raising(SpanExporter):
    """An exporter that raises."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("broken")

    def shutdown(self) -> None:
        return


class Stuck(SpanExporter):
    """An exporter that returns only when it is shut down."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.released.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.released.set()


@contextlib.contextmanager
def none() -> Iterator[GrampusTracer]:
    """Spans are made and go nowhere."""
    yield GrampusTracer(service_name="bench")


def _serve(kind: str, pipe: Any) -> None:
    """A backend in a process of its own, so that its work is not taken for ours: answers as `kind` says, for ever."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(5.0 if kind == "slow" else 0.0)
            down = kind == "refusing" or (kind == "flapping" and int(time.time()) % 2)
            self.send_response({"refusing": 400}.get(kind, 503) if down else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    pipe.send(server.server_port)
    server.serve_forever()


def over_http(kind: str) -> Any:
    """A tracer that sends to such a backend."""

    @contextlib.contextmanager
    def opened() -> Iterator[GrampusTracer]:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_serve, args=(kind, theirs), daemon=True)
        process.start()
        try:
            endpoint = f"http://127.0.0.1:{ours.recv()}"
            yield GrampusTracer(service_name="bench", otlp_endpoint=endpoint, protocol="http/protobuf")
        finally:
            process.kill()
            process.join()

    return opened


def to(endpoint: str, protocol: str) -> Any:
    """A tracer that sends to an address."""

    @contextlib.contextmanager
    def opened() -> Iterator[GrampusTracer]:
        yield GrampusTracer(service_name="bench", otlp_endpoint=endpoint, protocol=protocol)

    return opened


@contextlib.contextmanager
def raising() -> Iterator[GrampusTracer]:
    """An exporter that raises."""
    yield GrampusTracer(service_name="bench", exporter=Raising())


CASES: dict[str, Any] = {
    "healthy": over_http("healthy"),
    "dead": to("http://127.0.0.1:9/v1/traces", "http/protobuf"),
    "slow": over_http("slow"),
    "refusing": over_http("refusing"),
    "flapping": over_http("flapping"),
    "raising": raising,
    "grpc_dead": to("http://127.0.0.1:9", "grpc"),
}


async def latencies(tracer: GrampusTracer, *, seconds: float, rate: float) -> tuple[list[float], int]:
    """The latency of every step of the sessions, and how many spans were made while they ran."""
    monitor = UncertaintyMonitor(tracer=tracer)
    until, took, made = time.perf_counter() + seconds, [], 0

    async def agent(name: str) -> None:
        session, number = monitor.session(name), 0
        while time.perf_counter() < until:
            started = time.perf_counter()
            await asyncio.sleep(STEP_S)
            await session.observe_llm_response(TEXT, f"llm_{number}")
            took.append(time.perf_counter() - started)
            number += 1

    async def load() -> None:
        nonlocal made
        started, source = time.perf_counter(), tracer._tracer
        while time.perf_counter() < until:
            due = int((time.perf_counter() - started) * rate) - made
            for _ in range(due):
                source.start_span("load", attributes={"step_id": "llm_1", "level": "medium", "fused": 0.7}).end()
            made += due
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as group:
        group.create_task(load())
        for number in range(SESSIONS):
            group.create_task(agent(f"s{number}"))
    return took, made + len(took)


def p95(values: Sequence[float]) -> float:
    """The 95 % quantile."""
    return sorted(values)[int(0.95 * len(values))]


def once(opened: Any, *, seconds: float, rate: float) -> dict[str, float]:
    """One measurement: p95 of a step's latency, what was dropped by its end, spans a second."""
    gc.collect()
    with opened() as tracer:
        took, made = asyncio.run(latencies(tracer, seconds=seconds, rate=rate))
        dropped = tracer.dropped
        tracer.provider.shutdown()
    return {"p95": p95(took), "dropped": dropped, "rate": made / seconds}


def measure(rounds: int, *, seconds: float, rate: float) -> list[dict[str, Any]]:
    """One row an endpoint; in each round it is measured beside none, now before it, now after."""
    found: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {name: [] for name in CASES}
    for number, (name, case) in enumerate(
        track(list(CASES.items()) * rounds, "endpoints", disable=not sys.stderr.isatty())
    ):
        order = (case, none) if (number // len(CASES)) % 2 else (none, case)
        taken = {opened: once(opened, seconds=seconds, rate=rate) for opened in order}
        found[name].append((taken[case], taken[none]))
    return [
        {
            "case": name,
            "p95_ms": statistics.median(with_it["p95"] for with_it, _ in pairs) * 1e3,
            "p95_none_ms": statistics.median(without["p95"] for _, without in pairs) * 1e3,
            "p95_ratio": statistics.median(with_it["p95"] / without["p95"] for with_it, without in pairs),
            "spans_per_s": statistics.median(with_it["rate"] for with_it, _ in pairs),
            "dropped": int(statistics.median(with_it["dropped"] for with_it, _ in pairs)),
        }
        for name, pairs in found.items()
    ]


def rss_mb() -> float:
    """What the process holds in memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def saturation(capacity: int = 2048, queues: int = 10) -> dict[str, Any]:
    """Fill the queue before an exporter that never returns, then put ten times as much in again."""
    tracer = GrampusTracer(service_name="bench", exporter=Stuck(), queue_size=capacity)
    source = tracer._tracer

    def put(n: int) -> None:
        for number in range(n):
            source.start_span("load", attributes={"step_id": f"llm_{number}", "level": "medium", "fused": 0.7}).end()

    put(2 * capacity)
    gc.collect()
    before = rss_mb()
    put(queues * capacity)
    after = rss_mb()
    queue = tracer._queue
    assert queue is not None
    row = {
        "case": "saturated",
        "saturated_spans": (2 + queues) * capacity,
        "dropped": tracer.dropped,
        "waiting": queue._outbox.waiting,
        "rss_growth_mb": after - before,
    }
    tracer.shutdown()
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each endpoint is measured")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each measurement lasts")
    parser.add_argument("--rate", type=float, default=1000.0, help="spans a second beside the agents' own")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    logging.getLogger("grampus_uq").setLevel(logging.CRITICAL)
    rows = [saturation(), *measure(given.rounds, seconds=given.seconds, rate=given.rate)]
    emit("telemetry", rows, given.json)


if __name__ == "__main__":
    main()
