"""The other process of a pause: takes the session up from a snapshot file, goes on with it, and sends its spans.

Usage: python -m tests.telemetry.backends.second_process SNAPSHOT FOLDER ENDPOINT PROJECT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio

from grampus_uq import GrampusTracer
from tests.telemetry.backends.recorded import watch_second_half


def main(snapshot: str, folder: str, endpoint: str, project: str) -> None:
    named = {"openinference.project.name": project}
    with GrampusTracer(service_name="second", otlp_endpoint=endpoint, resource_attributes=named) as tracer:
        anyio.run(watch_second_half, Path(folder), tracer, json.loads(Path(snapshot).read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
