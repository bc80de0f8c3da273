"""`grampus-uq send`: send recordings as spans, with their own times, to an OTLP endpoint."""

from __future__ import annotations

import click

from grampus_uq.cli.argument_types import FiniteRange
from grampus_uq.cli.printing import as_json_option, naming_refused, print_result, progress, refuse_none
from grampus_uq.telemetry.export import send_recordings
from grampus_uq.telemetry.otlp_exporter import span_exporter


@click.command(name="send")
@click.argument("paths", nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--otlp",
    "endpoint",
    required=True,
    metavar="ENDPOINT",
    envvar=["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
    help="Endpoint, such as http://localhost:4317 (gRPC) or http://localhost:4318 (HTTP).",
)
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "http"]),
    help="[default: http for port 4318 and addresses that end in /v1/traces, else grpc]",
)
@click.option("--service-name", metavar="NAME", help="[default: OTEL_SERVICE_NAME, else grampus-uq]")
@click.option("--content", is_flag=True, help="Also send model answers and tool arguments, unredacted.")
@click.option("--timeout", "timeout_s", type=FiniteRange(min=1.0), default=30.0, metavar="S")
@as_json_option
def command(
    paths: tuple[str, ...],
    endpoint: str,
    protocol: str | None,
    service_name: str | None,
    content: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Send recorded runs as traces, with the recorded times.

    RUNS are recordings or folders of them. Ids are derived from the recordings, so sending again creates no
    second trace. Texts and arguments are sent only with --content, as far as they were recorded. Headers
    (keys), certificates and compression come from OpenTelemetry's environment variables, such as
    OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer ...". Unreadable lines are named, the rest is sent, and the
    exit status is then 1.
    """
    exporter = span_exporter(endpoint, protocol=protocol, timeout_s=timeout_s)
    try:
        with naming_refused() as refuse:
            with progress("Sending spans") as on_sent:
                report = send_recordings(
                    paths, exporter, service_name=service_name, content=content, on_sent=on_sent, on_refused=refuse
                )
            refuse_none(report.runs, paths)
            counts = {name: getattr(report, name) for name in ("files", "runs", "steps", "spans", "torn_lines")}
            places = [{"path": e.path, "line": e.line, "field": e.field, "reason": e.reason} for e in report.refused]
            where = endpoint.rpartition("@")[2]  # what stands before it is a password
            line = f"{report.spans} spans of {report.runs} runs ({report.steps} steps) sent to {where}."
            print_result(as_json, {**counts, "n_left_out": report.n_refused, "left_out": places}, [line])
    finally:
        exporter.shutdown()
