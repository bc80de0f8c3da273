"""`grampus-uq dashboard`: write a Grafana dashboard, Prometheus alerts, and a compose file that brings them up."""

from __future__ import annotations

import click

from grampus_uq.cli.argument_types import SHARE, OutputFolder
from grampus_uq.cli.printing import as_json_option, print_result
from grampus_uq.telemetry.dashboards import write_stack


@click.command(name="dashboard")
@click.option("-o", "--output", required=True, type=OutputFolder(), metavar="DIR", help="Folder for the files.")
@click.option("--alpha", type=SHARE, default=0.05, help="Alpha of the detector.")
@click.option("--force", is_flag=True, help="Overwrite changed files.")
@as_json_option
def command(output: str, alpha: float, force: bool, as_json: bool) -> None:
    """Write a Grafana dashboard, Prometheus alerts, and a compose file with Jaeger and a collector.

    DIR/README.md has three steps. If you have Grafana and Prometheus, use only the dashboard and alerts.yml.
    """
    written = [str(path) for path in write_stack(output, alpha, replace=force)]
    print_result(as_json, {"written": written}, [*written, f"Next: see {written[0]}."])
