"""`grampus-uq dashboard`: write a Grafana dashboard, Prometheus alerts, and a compose file that brings them up."""

from __future__ import annotations

import click

from grampus_uq.cli.argument_types import OutputFolder
from grampus_uq.cli.printing import as_json_option, print_json
from grampus_uq.telemetry.dashboards import Limits, write_stack

_DEFAULT = Limits()


@click.command(name="dashboard", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", required=True, type=OutputFolder(), metavar="DIR", help="Folder for the files.")
@click.option("--alpha", type=float, default=_DEFAULT.alpha, show_default=True, help="Alpha of your detector.")
@click.option(
    "--watch-level", type=float, default=_DEFAULT.watch_level, show_default=True, help="Level of the calibration watch."
)
@click.option(
    "--approvals-wait",
    type=int,
    default=_DEFAULT.approvals_wait_min,
    show_default=True,
    metavar="MINUTES",
    help="Alert when approvals wait for longer.",
)
@click.option(
    "--cost-per-hour",
    type=float,
    default=_DEFAULT.monitor_usd_per_hour,
    show_default=True,
    metavar="USD",
    help="Alert when the monitor's own model calls cost more.",
)
@click.option("--force", is_flag=True, help="Overwrite changed files.")
@as_json_option
def command(
    output: str,
    alpha: float,
    watch_level: float,
    approvals_wait: int,
    cost_per_hour: float,
    force: bool,
    as_json: bool,
) -> None:
    """Write a Grafana dashboard, Prometheus alerts, and a compose file with Jaeger and a collector.

    DIR/README.md has three steps. If you have Grafana and Prometheus, use only the dashboard and alerts.yml.
    """
    limits = Limits(
        alpha=alpha,
        watch_level=watch_level,
        approvals_wait_min=approvals_wait,
        monitor_usd_per_hour=cost_per_hour,
    )
    written = [str(path) for path in write_stack(output, limits, replace=force)]
    if as_json:
        print_json({"written": written})
        return
    for path in written:
        click.echo(path)
    click.echo(f"Next: see {written[0]}.")
