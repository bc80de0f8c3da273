"""How long a fresh interpreter takes to import the package, and to have a monitor: best and median of several.

Each import runs in a process of its own; what is measured is the import alone, by the wall clock, not the start of the
interpreter. To reach: under 0.5 s. The command ends with 1 when that is missed.

    python -m tests.benchmarks.import_time [--runs 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from rich.progress import track

from tests.benchmarks._report import emit

MAX_S = 0.5
CASES = (
    "import grampus_uq",
    "from grampus_uq import UncertaintyMonitor",
    "from grampus_uq import GrampusTracer, UncertaintyMonitor",
)
PROGRAM = """
import json, sys, time
before, started = len(sys.modules), time.perf_counter()
{case}
print(json.dumps([time.perf_counter() - started, len(sys.modules) - before]))
"""


def once(case: str) -> tuple[float, int]:
    """Seconds and newly loaded modules of one import in a process of its own."""
    program = PROGRAM.format(case=case)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    seconds, modules = json.loads(done.stdout)
    return float(seconds), int(modules)


def measure(runs: int) -> list[dict[str, Any]]:
    """A row an import. One run before the others fills the cache of compiled modules and of the disk."""
    rows = []
    for case in track(CASES, "imports", disable=not sys.stderr.isatty()):
        once(case)
        taken = [once(case) for _ in range(runs)]
        seconds = [second for second, _ in taken]
        rows.append(
            {"case": case, "best_s": min(seconds), "median_s": statistics.median(seconds), "modules": taken[0][1]}
        )
    return rows


def main() -> None:
    """Measure, print, and fail when the bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes an import")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    rows = measure(given.runs)
    emit("import_time", rows, given.json)
    if any(row["best_s"] >= MAX_S for row in rows[:2]):
        sys.exit(1)


if __name__ == "__main__":
    main()
