"""`grampus-uq export`: send recordings as spans, with their own times, to an OTLP endpoint."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator

import click

from grampus_uq.errors import DataError
from grampus_uq.telemetry.export import ExportReport, otlp_exporter, send_recordings

__all__ = ["command"]

_MOST_SHOWN = 20


@click.command(name="export", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--otlp",
    "endpoint",
    required=True,
    metavar="ENDPOINT",
    envvar=["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
    help="Such as http://localhost:4317 (gRPC) or http://localhost:4318 (HTTP).",
)
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "http"]),
    help="[default: http for port 4318 and addresses that end in /v1/traces, else grpc]",
)
@click.option("--service-name", metavar="NAME", help="[default: OTEL_SERVICE_NAME, else grampus-uq]")
@click.option("--content", is_flag=True, help="Send what the model said and tools were called with, unredacted.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=1.0), default=30.0, show_default=True, metavar="S")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    paths: tuple[str, ...],
    endpoint: str,
    protocol: str | None,
    service_name: str | None,
    content: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Send recorded runs as traces, at the times at which they happened.

    RUNS are recordings or folders of them. Ids come from the recordings: sending again makes no second trace. Texts
    and arguments are sent only with --content, and only as far as they were recorded. Headers (keys), certificates and
    compression are taken from OpenTelemetry's environment variables, such as
    OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer ...". Lines that cannot be read are named, the others sent; the
    exit status is then 1.
    """
    exporter = otlp_exporter(endpoint, protocol=protocol, timeout_s=timeout_s)
    told = 0

    def tell(error: DataError) -> None:
        nonlocal told
        told += 1
        if told <= _MOST_SHOWN:
            click.echo(f"left out: {_plain(str(error))}", err=True)

    try:
        with _progress() as on_sent:
            report = send_recordings(
                paths, exporter, service_name=service_name, content=content, on_sent=on_sent, on_refused=tell
            )
    finally:
        exporter.shutdown()
    _print(report, endpoint, as_json)
    if report.n_refused:
        raise SystemExit(1)


def _print(report: ExportReport, endpoint: str, as_json: bool) -> None:
    if as_json:
        places = [{"path": e.path, "line": e.line, "field": e.field, "reason": e.reason} for e in report.refused]
        counts = {name: getattr(report, name) for name in ("files", "runs", "steps", "spans", "torn_lines")}
        click.echo(json.dumps({**counts, "n_left_out": report.n_refused, "left_out": places}))
        return
    where = _plain(endpoint.rpartition("@")[2])  # what stands before it is a password
    click.echo(f"{report.spans} spans of {report.runs} runs ({report.steps} steps) sent to {where}.")
    if report.n_refused > _MOST_SHOWN:
        click.echo(f"left out: {report.n_refused - _MOST_SHOWN} more; --json lists them.", err=True)


def _plain(text: str) -> str:
    """Without control characters: recordings hold hostile text, and terminals obey some of it."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Count the spans that were taken, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("Sending spans: {task.completed}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda spans: progress.advance(task, spans)
