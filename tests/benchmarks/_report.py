"""What every benchmark prints: one JSON object with the machine and flat rows, or the same rows as a table."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grampus_uq.errors import ConfigurationError, DataError


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


def positive(text: str) -> int:
    """A type of argparse: a whole number from 1; none of them leaves a figure undefined."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 1")
    return int(text)


def share(text: str) -> float:
    """A type of argparse: a number in (0, 1)."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.0 < found < 1.0:
        raise argparse.ArgumentTypeError(f"{text}: must be a number in (0, 1)")
    return found


def progress(text: str) -> None:
    """Print a line about what was done so far, where somebody watches: on a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


@contextmanager
def usage_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Make a file that cannot be read, or is too small for what is asked, one line of usage instead of a traceback."""
    try:
        yield
    except (DataError, ConfigurationError) as error:
        parser.error(str(error))


def emit(benchmark: str, rows: Iterable[Mapping[str, Any]], as_json: bool) -> None:
    """Print the rows once, as one JSON object or as a table; figures are shortened in the table only.

    An undefined figure (NaN, infinite), such as a rate over no case, is null: strict JSON has no word for it.
    """
    rows = [{key: None if _undefined(value) else value for key, value in row.items()} for row in rows]
    if as_json:
        json.dump({"benchmark": benchmark, "machine": machine(), "rows": rows}, sys.stdout, allow_nan=False)
        sys.stdout.write("\n")
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_shown(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    print(f"{benchmark}   {machine()}")
    for line in [columns, *cells]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _undefined(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
