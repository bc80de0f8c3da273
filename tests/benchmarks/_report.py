"""What every benchmark prints: one JSON object with the machine and flat rows, or the same rows as a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Say on what the figures were taken; `load_1min` above 0.5 a core means the machine was busy."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_1min": load,
    }


def existing(text: str) -> Path:
    """A type of argparse: a file or folder that is there; any other is one line of usage instead of a traceback."""
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{text}: there is no such file or folder")
    return path


def emit(benchmark: str, rows: Iterable[Mapping[str, Any]], as_json: bool) -> None:
    """Print the rows once, as one JSON object or as a table; figures are shortened in the table only."""
    rows = [dict(row) for row in rows]
    if as_json:
        json.dump({"benchmark": benchmark, "machine": machine(), "rows": rows}, sys.stdout)
        sys.stdout.write("\n")
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_shown(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    print(f"{benchmark}   {machine()}")
    for line in [columns, *cells]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
